// SPDX-License-Identifier: GPL-2.0

//! What a client has of the memory for commands.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

/// The memory that the commands of one client host have of a pool.
pub(in crate::server) struct Account {
    bytes: Atomic<usize>,
}

impl Account {
    /// Makes the account of a client that has nothing. May sleep.
    pub(in crate::server) fn new() -> Result<Arc<Self>> {
        let bytes = Atomic::new(0);
        Ok(Arc::new(Self { bytes }, GFP_KERNEL)?)
    }

    /// Returns the bytes that it has. Any context.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// Bytes that an account has. The drop takes them away again.
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    /// Charges an account with `bytes`. Any context.
    pub(super) fn new(account: &Arc<Account>, bytes: usize) -> Self {
        account.bytes.fetch_add(bytes, Relaxed);
        Self {
            account: account.clone(),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Relaxed);
    }
}
