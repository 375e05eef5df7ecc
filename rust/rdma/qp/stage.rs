// SPDX-License-Identifier: GPL-2.0

//! How far the teardown of a queue pair is.

use crate::rdma::qp::{
    Qp,
    QpHandler,
    Transport, //
};
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
};

/// The progress of the teardown of a queue pair.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// It may be in use.
    Live,
    /// It is closed, and went to its error state at this time. Completions may come.
    Failed(Instant<Monotonic>),
    /// It is closed, and the device did not take it to its error state: only destroying it ends
    /// what was posted. Completions may come.
    Stuck,
    /// It is closed and in its error state, and every completion has been handled.
    Drained,
    /// The same, and the C object is destroyed.
    Destroyed,
    /// It is closed and could not be drained, and the device has refused to destroy it, with this
    /// error: it may go on to use what was posted. Completions may come.
    Lost(Error),
}

/// Proof that the slots of a queue pair are used neither by the device nor by a completion, and
/// that nothing can be posted any more. Only its methods take an owner out of a slot that was
/// posted and has not completed.
///
/// # Invariants
///
/// The stage of the queue pair is [`Stage::Drained`] or [`Stage::Destroyed`].
pub(super) struct Drained<'a, H: QpHandler<T>, T: Transport>(pub(super) &'a Qp<H, T>);
