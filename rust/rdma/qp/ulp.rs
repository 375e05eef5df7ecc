// SPDX-License-Identifier: GPL-2.0

//! What an upper-layer protocol (ULP) adds to a queue pair.
//!
//! A slot of a queue pair ends when its last work request has completed: then its owner comes back.
//! A ULP may keep the owner for longer, as the peer may still have access to its memory. For that
//! it has data of its own in the queue pair and in each slot, and is asked where a slot may end. It
//! is a type, which the handler names ([`QpHandler::Ulp`]), so that all of it is compiled for that
//! handler alone: `()` is the one of users that want verbs and nothing else, and costs nothing.
//!
//! [`Requests`](crate::rdma::request::Requests) is the other one.

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
#[cfg(doc)]
use crate::rdma::qp::Uc;
use crate::rdma::{
    pd::Pd,
    qp::{
        slot::{
            Body,
            SendSlot, //
        },
        Qp,
        QpCaps,
        QpHandler,
        Transport, //
    },
    wc::WcError,
    wr::RemoteRange, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// An upper-layer protocol for queue pairs of transport `T` with handler `H`; `()` if there is
/// none.
///
/// See [`QpHandler`] for an example.
///
/// # Safety
///
/// - What is in [`Self::Shared`] and [`Self::Slot`] may be used by any thread, as far as the
///   methods of the ULP do so, and be dropped by any.
/// - [`Self::sizes`] returns the same for the same sizes.
/// - A ULP uses a slot within [`Self::read_into_region`], [`Self::completed`], [`Self::clear`] and
///   [`Self::end`], when they are given it, and in [`Qp::post`]. Between [`Self::completed`], if
///   that keeps the slot, and [`Self::is_left`], if that returns true, the function that ends the
///   slot by [`Qp::finish`] uses it, of which the ULP lets there be one.
/// - When [`Self::completed`] returns a result, when [`Self::end`] returns true, and when the ULP
///   calls [`Qp::finish`], no peer can access memory by what the ULP did for the slot.
pub(crate) unsafe trait Ulp<H: QpHandler<T>, T: Transport>: Sized + 'static {
    /// The sizes of a queue pair.
    type Caps: Copy;
    /// What it has in each queue pair.
    type Shared;
    /// What it has in each slot.
    type Slot;
    /// What it tells when a queue pair was drained.
    type Outcome;

    /// Returns the sizes of the queue pair itself, and how many work requests of the ULP's own, see
    /// [`Qp::post_extra`], there are on the send queue at once.
    fn sizes(caps: &Self::Caps) -> (QpCaps, u32);

    /// Makes its part of a queue pair. Fails with `EINVAL` for sizes that are not possible, and for
    /// reasons of its own. May sleep.
    fn make(pd: &Arc<Pd>, caps: &Self::Caps) -> Result<impl PinInit<Self::Shared>>;

    /// Makes its part of the slot of this index. May sleep.
    fn make_slot(pd: &Arc<Pd>, caps: &Self::Caps, index: u16) -> Result<Self::Slot>;

    /// Fills in the work requests of an RDMA READ of a device that needs a memory region for where
    /// the data go. Fails with `EOPNOTSUPP` if there is none.
    ///
    /// # Safety
    ///
    /// To be called within [`Qp::post`], with what that gives.
    unsafe fn read_into_region(
        qp: &Qp<H, T>,
        slot: &SendSlot<H, T>,
        owner: &H::Send,
        body: &mut Body,
        remote: RemoteRange,
    ) -> Result;

    /// Notes that the last work request of `slot` has completed, with this result. Returns the
    /// result with which its owner is to be given back now, or `None` if the ULP does that later.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion, which must not use the slot afterwards if
    /// this returns `None`.
    unsafe fn completed(
        qp: &Qp<H, T>,
        slot: &SendSlot<H, T>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>>;

    /// Undoes what the ULP did for `slot`, which is being freed.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot. The device must be done with it, and the
    /// access of the peer by it have ended.
    unsafe fn clear(qp: &Qp<H, T>, slot: &SendSlot<H, T>);

    /// Returns true if the caller, which drains the queue pair, has to end what was posted in
    /// `slot`. The ULP does not end it any more after this. Returns false if nothing is posted, or
    /// if a function of the ULP is just giving it back.
    fn is_left(slot: &SendSlot<H, T>) -> bool;

    /// Ends all access of the peer by `slot`. Returns false if that is not possible: then the ULP
    /// has taken the owner out of the slot, which is not used any more.
    ///
    /// # Safety
    ///
    /// [`Self::is_left`] must have returned true to the caller, and neither the device nor a
    /// completion use the slot any more.
    unsafe fn end(qp: &Qp<H, T>, slot: &SendSlot<H, T>) -> bool;

    /// Returns what [`Qp::drain`] tells its caller, after it has `stopped` the queue pair, or
    /// failed with the error with which the device has refused to destroy that.
    fn outcome(shared: &Self::Shared, stopped: Result) -> Self::Outcome;

    /// Takes the handler of a queue pair of `pd` that is gone: nothing of it can come any more.
    fn retire(shared: &Self::Shared, pd: &Pd, handler: H);
}

// SAFETY: There is nothing in the queue pair or its slots, no slot is kept, and nothing lets a peer
// access memory.
unsafe impl<H: QpHandler<T, Ulp = Self>, T: Transport> Ulp<H, T> for () {
    type Caps = QpCaps;
    type Shared = ();
    type Slot = ();
    /// Fails if the queue pair is lost.
    type Outcome = Result;

    fn sizes(caps: &QpCaps) -> (QpCaps, u32) {
        (*caps, 0)
    }

    fn make(_: &Arc<Pd>, _: &QpCaps) -> Result<impl PinInit<()>> {
        Ok(())
    }

    fn make_slot(_: &Arc<Pd>, _: &QpCaps, _: u16) -> Result {
        Ok(())
    }

    unsafe fn read_into_region(
        _: &Qp<H, T>,
        _: &SendSlot<H, T>,
        _: &H::Send,
        _: &mut Body,
        _: RemoteRange,
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    #[inline]
    unsafe fn completed(
        _: &Qp<H, T>,
        _: &SendSlot<H, T>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>> {
        Some(result)
    }

    #[inline]
    unsafe fn clear(_: &Qp<H, T>, _: &SendSlot<H, T>) {}

    fn is_left(slot: &SendSlot<H, T>) -> bool {
        slot.is_posted()
    }

    unsafe fn end(_: &Qp<H, T>, _: &SendSlot<H, T>) -> bool {
        true
    }

    fn outcome((): &(), stopped: Result) -> Result {
        stopped
    }

    fn retire((): &(), _: &Pd, handler: H) {
        drop(handler);
    }
}

/// The sizes of a queue pair with handler `H`: [`QpCaps`], or those of its ULP.
pub(crate) type Caps<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Caps;

/// What the ULP of `H` has in each queue pair.
pub(super) type Shared<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Shared;

/// What the ULP of `H` has in each slot.
pub(super) type UlpSlot<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Slot;

/// What [`Qp::drain`] of a queue pair with handler `H` tells.
pub(super) type Outcome<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Outcome;

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts a work request of the ULP's own, which belongs to no chain, at once. Does nothing if
    /// the queue pair is closed; if the device refuses it, the queue pair has failed.
    ///
    /// # Safety
    ///
    /// `wr` must be valid, for the device to do. Its completion entry must stay until it has
    /// completed, and no more such work requests be under way than [`Ulp::sizes`] says.
    #[cold]
    pub(in crate::rdma) unsafe fn post_extra(&self, wr: &bindings::ib_send_wr) {
        let mut sq = self.sq.lock();
        if sq.closed {
            return;
        }
        let mut bad = core::ptr::null();
        // SAFETY: By the type invariants the queue pair is valid as long as the queue is locked and
        // not closed, and there is room for so many work requests. The device copies this one; the
        // caller promises the rest.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), wr, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let posted = self.extra_posted.load(Relaxed);
        self.extra_posted.store(posted.wrapping_add(1), Relaxed);
        if to_result(ret).is_err() {
            sq.closed = true;
            drop(sq);
            self.note_error();
        }
    }
}
