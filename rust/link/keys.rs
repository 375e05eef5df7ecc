// SPDX-License-Identifier: GPL-2.0

//! [`auth`] over the kernel's library functions.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex,
        UniqueArc, //
    },
};

use crate::base::{
    crypto,
    sync, //
};
use crate::proto::{
    auth::{
        self,
        KeyId,
        Primitives,
        KEY_SIZE, //
    },
    key::{
        self,
        NoKey, //
    },
};

/// The kernel's library functions.
pub(crate) enum Library {}

/// What only those know who may; see [`auth::Secret`].
pub(crate) type Secret = auth::Secret<Library>;
/// One side's part of the exchange on a control connection.
pub(crate) type Share = auth::Share<Library>;
/// All that was said on a connection so far.
pub(crate) type Transcript = auth::Transcript<Library>;
/// The keys of a control connection.
pub(crate) type Keys = auth::Keys<Library>;
/// What the tickets of I/O connections are made with.
pub(crate) type Tickets = auth::Tickets<Library>;
/// What cookies are made with.
pub(crate) type Cookies = auth::Cookies<Library>;
pub(crate) use auth::{
    Ends,
    Forged,
    WeakPoint, //
};

impl Primitives for Library {
    fn sha256(parts: &[&[u8]]) -> [u8; KEY_SIZE] {
        crypto::sha256(parts)
    }

    fn hmac_sha256(key: &[u8; KEY_SIZE], parts: &[&[u8]], out: &mut [u8; KEY_SIZE]) {
        crypto::hmac_sha256(key, parts, out);
    }

    fn x25519(scalar: &[u8; KEY_SIZE], point: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool {
        crypto::x25519(scalar, point, out).is_ok()
    }

    fn x25519_base(scalar: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool {
        crypto::x25519_base(scalar, out).is_ok()
    }

    fn equal(one: &[u8], other: &[u8]) -> bool {
        crypto::equal(one, other)
    }

    fn random(bytes: &mut [u8]) {
        sync::random_bytes(bytes);
    }

    fn wipe(bytes: &mut [u8]) {
        crypto::wipe(bytes);
    }
}

/// A key that a client host and a server have in common: a pre-shared key.
pub(crate) struct Psk {
    /// Its name, which tells nothing of it.
    pub(crate) id: KeyId,
    /// The key itself.
    pub(crate) secret: Secret,
}

impl Psk {
    /// Returns the key that an administrator has written; `None` for an empty text. Fails with
    /// `EINVAL` if the text is no key. May sleep.
    pub(crate) fn parse(text: &str) -> Result<Option<Arc<Self>>> {
        if text.is_empty() {
            return Ok(None);
        }
        let unset = Self {
            id: KeyId([0; 8]),
            secret: Secret::zero(),
        };
        let mut key = UniqueArc::new(unset, GFP_KERNEL)?;
        let this = &mut *key;
        key::parse(text.as_bytes(), &mut this.secret).map_err(|NoKey| EINVAL)?;
        this.id = auth::key_id(&this.secret);
        Ok(Some(key.into()))
    }
}

/// A place for a key, which may change at any time.
#[pin_data]
pub(crate) struct KeySlot {
    #[pin]
    key: Mutex<Option<Arc<Psk>>>,
}

impl KeySlot {
    /// Makes an empty place.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { key <- new_mutex!(None, "KeySlot::key") })
    }

    /// Returns the key. May sleep.
    pub(crate) fn get(&self) -> Option<Arc<Psk>> {
        self.key.lock().clone()
    }

    /// Returns the name of the key. May sleep.
    pub(crate) fn id(&self) -> Option<KeyId> {
        self.key.lock().as_ref().map(|key| key.id)
    }

    /// Puts another key, or none, there. May sleep.
    pub(crate) fn set(&self, key: Option<Arc<Psk>>) {
        let old = core::mem::replace(&mut *self.key.lock(), key);
        drop(old);
    }
}
