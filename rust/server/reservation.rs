// SPDX-License-Identifier: GPL-2.0

//! Whose an export was last, be it enabled or not.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::sync;
use crate::proto::Kind;
use crate::server::backend::Source;
use crate::session::{
    reservation::{
        Claim,
        Custody,
        Verdict, //
    },
    Tenure, //
};

/// The tenure of all maps of an export that several may have at a time.
const SHARED: Tenure = 1;

struct Kept {
    custody: Custody,
    /// Several maps may have it at a time: nobody is evicted, and everybody resumes what he had.
    shared: bool,
    /// What was exported last.
    contents: Option<(Kind, Option<Arc<CString>>)>,
}

/// Keeps the [`Custody`] of an export for as long as the export has a directory.
#[pin_data]
pub(crate) struct Keeper {
    #[pin]
    kept: Mutex<Kept>,
}

impl Keeper {
    /// Nobody had the export yet, as far as this server knows.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let kept = Kept {
            custody: Custody::default(),
            shared: false,
            contents: None,
        };
        Arc::pin_init(
            pin_init!(Self { kept <- new_mutex!(kept, "Keeper::kept") }),
            GFP_KERNEL,
        )
    }

    /// The export is enabled with these contents, for one map at a time or `shared`. Nobody resumes what
    /// he had of other contents, or before others could write, too. May sleep.
    pub(super) fn begin(&self, source: &Source, shared: bool) {
        let mut kept = self.kept.lock();
        let contents = (source.kind, source.device_path.clone());
        let others = kept.contents.as_ref().is_some_and(|past| {
            past.0 != contents.0 || past.1.as_deref().map(bytes) != contents.1.as_deref().map(bytes)
        });
        if others || shared {
            kept.custody.revoke(fresh());
        }
        kept.shared = shared;
        kept.contents = Some(contents);
    }

    /// As [`Custody::judge`], and whether the server remembers what is resumed. May sleep.
    pub(super) fn judge(
        &self,
        claim: &Claim,
        incarnation: Option<u64>,
        room: bool,
    ) -> (Verdict, bool) {
        let mut kept = self.kept.lock();
        if kept.shared {
            let verdict = Custody::default().judge(claim, incarnation, room, SHARED);
            return (verdict, true);
        }
        let remembered = kept.custody.remembers(claim);
        let verdict = kept.custody.judge(claim, incarnation, room, fresh());
        (verdict, remembered)
    }

    /// Nobody can resume what was. May sleep.
    pub(super) fn revoke(&self) {
        self.kept.lock().custody.revoke(fresh());
    }
}

fn bytes(path: &CString) -> &[u8] {
    path.to_bytes()
}

/// A tenure that was never used; not 0.
fn fresh() -> Tenure {
    sync::random_u64() | 1
}
