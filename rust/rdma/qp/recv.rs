// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a queue pair.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    Qp,
    QpHandler, //
};
use crate::{
    bindings,
    errno::ESHUTDOWN,
    rdma::{
        device::Device,
        dma::DmaBuffer,
        wc::WcError,
        wr::RecvOwner, //
    }, //
};
use core::cell::UnsafeCell;
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::Relaxed,
    types::Opaque, //
};

/// Which receive slots are free.
pub(super) struct RecvQueue {
    /// The free slots; its capacity suffices for all.
    pub(super) free: KVVec<u16>,
    /// Nothing may be posted any more.
    pub(super) closed: bool,
}

/// A slot of the receive queue.
///
/// # Invariants
///
/// - `cqe` is the first field, as [`recv_done`] needs it.
/// - A slot that is in the list of free ones, or has just been taken off, has no owner. Its owner is
///   accessed by who took it off, until it is posted, and then by the handler of its completion.
/// - `buffer` is borrowed from the owner, if there is one.
#[repr(C)]
pub(super) struct RecvSlot<H: QpHandler> {
    cqe: Opaque<bindings::ib_cqe>,
    qp: UnsafeCell<*const Qp<H>>,
    owner: UnsafeCell<Option<H::Recv>>,
    buffer: UnsafeCell<*const DmaBuffer>,
}

impl<H: QpHandler> RecvSlot<H> {
    /// Makes a slot.
    pub(super) fn new() -> Self {
        // INVARIANT: There is no owner.
        Self {
            cqe: Opaque::new(bindings::ib_cqe {
                done: Some(recv_done::<H>),
            }),
            qp: UnsafeCell::new(core::ptr::null()),
            owner: UnsafeCell::new(None),
            buffer: UnsafeCell::new(core::ptr::null()),
        }
    }

    /// Sets the queue pair.
    ///
    /// # Safety
    ///
    /// Nobody else may use the slot yet, and it must be one of `qp`'s.
    pub(super) unsafe fn init(&self, qp: &Qp<H>) {
        // SAFETY: The caller promises that nobody else uses it.
        unsafe { *self.qp.get() = qp };
    }

    /// Stores the owner, whatever it returns: a work request and its segment, or why its buffer
    /// cannot be received into.
    ///
    /// # Safety
    ///
    /// The caller must have taken the slot off the list of free ones.
    pub(super) unsafe fn build(
        &self,
        owner: H::Recv,
        device: &Device,
        lkey: u32,
    ) -> Result<(bindings::ib_recv_wr, bindings::ib_sge)> {
        // SAFETY: By the type invariants the owner is the caller's to access.
        let buffer = unsafe { &mut *self.owner.get() }.insert(owner).buffer();
        // SAFETY: As above.
        // INVARIANT: It is borrowed from the owner, which nothing accesses until it is taken.
        unsafe { *self.buffer.get() = buffer };
        if !buffer.is_for(device) || !buffer.direction().device_writes() {
            return Err(EINVAL);
        }
        buffer.sync_for_device();
        let slot = core::ptr::from_ref(self).cast_mut();
        let wr = bindings::ib_recv_wr {
            __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 {
                // The first field; the completion needs the whole slot.
                wr_cqe: slot.cast(),
            },
            num_sge: 1,
            ..pin_init::zeroed()
        };
        let sge = bindings::ib_sge {
            addr: buffer.addr(),
            length: u32::try_from(buffer.len())?,
            lkey,
        };
        Ok((wr, sge))
    }

    /// Takes the owner, if there is one.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may access the owner, and the device be done with the buffer.
    pub(super) unsafe fn take(&self) -> Option<H::Recv> {
        // SAFETY: The caller promises that nobody else accesses it.
        let owner = unsafe { &mut *self.owner.get() };
        if owner.is_some() {
            // SAFETY: By the type invariants the buffer was borrowed from the owner, which is still
            // in place.
            unsafe { (**self.buffer.get()).sync_for_cpu() };
        }
        owner.take()
    }
}

impl<H: QpHandler> Qp<H> {
    /// Posts a receive.
    ///
    /// On failure the owner comes back. The errors are: `EAGAIN` if there is no room until a receive
    /// has completed; `ESHUTDOWN` after a failure; `EINVAL` for a buffer that the device cannot
    /// write; and those of `ib_post_recv()`.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn recv(&self, owner: H::Recv) -> Result<(), (Error, H::Recv)> {
        let mut rq = self.rq.lock();
        if rq.closed {
            return Err((ESHUTDOWN, owner));
        }
        let Some((index, slot)) = rq
            .free
            .pop()
            .and_then(|index| Some((index, self.recvs.get(usize::from(index))?)))
        else {
            return Err((EAGAIN, owner));
        };
        drop(rq);

        // SAFETY: The slot was free and was taken off the list, so nobody else uses it.
        let wr = unsafe { slot.build(owner, self.pd.device(), self.lkey) };
        let mut rq = self.rq.lock();
        let result = match wr {
            Ok((_, _)) if rq.closed => Err(ESHUTDOWN),
            Ok((mut wr, mut sge)) => {
                wr.sg_list = &mut sge;
                // SAFETY: By the type invariants the queue pair is valid. The work request is valid
                // for the call, and the buffer until the completion, as the owner lies in the slot.
                to_result(unsafe {
                    bindings::ib_post_recv(self.as_raw(), &wr, core::ptr::null_mut())
                })
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                let posted = self.recv_posted.load(Relaxed);
                self.recv_posted.store(posted.wrapping_add(1), Relaxed);
                Ok(())
            }
            Err(error) => {
                // SAFETY: The slot is still ours, as it was not posted.
                let owner = unsafe { slot.take() };
                // The capacity suffices for all slots.
                let _ = rq.free.push_within_capacity(index);
                drop(rq);
                match owner {
                    Some(owner) => Err((error, owner)),
                    // `build()` has stored an owner.
                    None => Ok(()),
                }
            }
        }
    }

    /// Handles the completion of a receive.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    unsafe fn recv_completed(&self, slot: &RecvSlot<H>, wc: &bindings::ib_wc) {
        let completions = self.recv_completions.load(Relaxed);
        self.recv_completions
            .store(completions.wrapping_add(1), Relaxed);
        let result = WcError::check(wc);
        if result.is_err() {
            self.note_error();
        }
        // SAFETY: The slot's receive has completed, so that nobody else uses it.
        let owner = unsafe { slot.take() };
        let base: *const RecvSlot<H> = self.recvs.as_ptr();
        // SAFETY: The slot is one of `recvs`.
        let index = unsafe { core::ptr::from_ref(slot).offset_from(base) };
        // CAST: There are at most as many slots. The capacity suffices for all.
        let _ = self.rq.lock().free.push_within_capacity(index as u16);
        if let Some(owner) = owner {
            self.handler.recv_done(self, owner, result);
        }
    }
}

/// Handles the completion of a receive.
///
/// # Safety
///
/// Must only be called by the RDMA core, for a receive with the `cqe` of a [`RecvSlot<H>`] that was
/// posted.
unsafe extern "C" fn recv_done<H: QpHandler>(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The core gives a valid completion of a slot that exists until the queue pair is
    // destroyed and drained, or for ever.
    let (wc, slot) = unsafe { (&*wc, &*(*wc).__bindgen_anon_1.wr_cqe.cast::<RecvSlot<H>>()) };
    // SAFETY: The slot's receive has completed, so this handler may access its owner.
    if unsafe { (*slot.owner.get()).is_none() } {
        return;
    }
    // SAFETY: By the invariants of `Qp` it is in place as long as its slots have owners, and this is
    // the handler of the completion.
    unsafe { (**slot.qp.get()).recv_completed(slot, wc) };
}
