// SPDX-License-Identifier: GPL-2.0

//! What was exported last, whether the export is enabled or not.

#![forbid(unsafe_code)]

use kernel::{
    str::CString,
    sync::Arc, //
};

use crate::proto::Kind;
use crate::server::backend::Source;

/// What the contents of an export are.
pub(super) struct Contents {
    kind: Kind,
    device_path: Option<Arc<CString>>,
}

impl Contents {
    /// Of an export that is enabled with `source`.
    pub(super) fn new(source: &Source) -> Self {
        Self {
            kind: source.kind,
            device_path: source.device_path.clone(),
        }
    }

    /// Returns whether these are the contents that `other` are.
    pub(super) fn are(&self, other: &Self) -> bool {
        let path = |of: &Self| of.device_path.clone();
        let (ours, theirs) = (path(self), path(other));
        self.kind == other.kind && ours.as_deref().map(bytes) == theirs.as_deref().map(bytes)
    }
}

fn bytes(path: &CString) -> &[u8] {
    path.to_bytes()
}
