// SPDX-License-Identifier: GPL-2.0

//! Receive queues: a queue pair's own, or one that several share.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::ESHUTDOWN,
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    qp::{
        Qp,
        QpHandler,
        Receives,
        Transport, //
    },
    wc::WcError,
    wr::{
        RecvOwner,
        RECV_BUFFERS, //
    },
};
use core::cell::UnsafeCell;
use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::atomic::Relaxed,
    types::Opaque, //
};

/// The function that the core calls when a receive has completed.
pub(in crate::rdma) type Done =
    unsafe extern "C" fn(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc);

/// The list of the receive slots that are free.
struct Free {
    /// The free slots; its capacity suffices for all.
    slots: KVVec<u16>,
    /// Nothing may be posted any more.
    closed: bool,
}

/// A slot of a receive queue of `Q`.
///
/// # Invariants
///
/// - `cqe` is the first field, as the functions that complete it need it.
/// - A slot that is in the list of free ones has no owner. The function that takes a slot off the
///   list is the only one to access its owner until it has posted the slot or put it back, and has
///   the list locked until then. From then on only the handler of the completion accesses it, and,
///   once the list is closed and no completion can come, [`RecvQueue::take_rest`].
#[repr(C)]
pub(in crate::rdma) struct RecvSlot<R: RecvOwner, Q> {
    cqe: Opaque<bindings::ib_cqe>,
    queue: UnsafeCell<*const Q>,
    owner: UnsafeCell<Option<R>>,
}

impl<R: RecvOwner, Q> RecvSlot<R, Q> {
    /// Makes a slot.
    fn new(done: Done) -> Self {
        // INVARIANT: There is no owner.
        Self {
            cqe: Opaque::new(bindings::ib_cqe { done: Some(done) }),
            queue: UnsafeCell::new(core::ptr::null()),
            owner: UnsafeCell::new(None),
        }
    }

    /// Returns the slot of a completed receive, and the queue that it belongs to; `None` if its
    /// owner was taken already.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of the completion `wc` of a slot of such a queue that was
    /// posted.
    pub(in crate::rdma) unsafe fn completed<'a>(wc: &bindings::ib_wc) -> Option<(&'a Self, &'a Q)> {
        // SAFETY: The slot exists until all completions of it were handled, and no other can come.
        let slot = unsafe { &*wc.__bindgen_anon_1.wr_cqe.cast::<Self>() };
        // SAFETY: The slot's receive has completed, so this handler may access its owner.
        if unsafe { (*slot.owner.get()).is_none() } {
            return None;
        }
        // SAFETY: The queue is in place as long as one of its slots has an owner.
        Some((slot, unsafe { &**slot.queue.get() }))
    }

    /// Stores the owner, and returns a work request for its buffers with the segments, of which
    /// there are at most `max_sge`. Fails with `EINVAL` if the device cannot receive into them;
    /// also then the owner is stored.
    ///
    /// # Safety
    ///
    /// The caller must have taken the slot off the list of free ones, and have it locked.
    unsafe fn build(
        &self,
        owner: R,
        device: &Device,
        lkey: u32,
        max_sge: u32,
    ) -> Result<(bindings::ib_recv_wr, [bindings::ib_sge; RECV_BUFFERS])> {
        // SAFETY: By the type invariants the owner is the caller's to access. What is borrowed from
        // it stays so until it is taken: nothing accesses it until then.
        let owner = unsafe { &mut *self.owner.get() }.insert(owner);
        // No loop, in which the compiler would not know what kinds of buffers they are.
        let places = owner.buffers().map(|buffer| match buffer {
            Some(buffer) => buffer.place(device).map(Some),
            None => Ok(None),
        });
        let [first, second] = places;
        let mut sges = [bindings::ib_sge::default(); RECV_BUFFERS];
        let mut num_sge = 0;
        for (sge, (addr, length)) in sges.iter_mut().zip([first?, second?].into_iter().flatten()) {
            *sge = bindings::ib_sge { addr, length, lkey };
            num_sge += 1;
        }
        if num_sge == 0 || num_sge > max_sge {
            return Err(EINVAL);
        }
        let slot = core::ptr::from_ref(self).cast_mut();
        let wr = bindings::ib_recv_wr {
            __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 {
                // The first field; the completion needs the whole slot.
                wr_cqe: slot.cast(),
            },
            // CAST: A small number.
            num_sge: num_sge as i32,
            ..pin_init::zeroed()
        };
        Ok((wr, sges))
    }

    /// Takes the owner, if there is one.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may access the owner, and the device be done with its
    /// buffers.
    unsafe fn take(&self) -> Option<R> {
        // SAFETY: The caller promises that nobody else accesses it.
        let mut owner = unsafe { &mut *self.owner.get() }.take()?;
        // No loop: see `build()`.
        let _: [(); RECV_BUFFERS] = owner.buffers().map(|buffer| {
            if let Some(buffer) = buffer {
                buffer.sync_for_cpu();
            }
        });
        Some(owner)
    }
}

/// The slots of a receive queue of `Q`.
#[pin_data]
pub(in crate::rdma) struct RecvQueue<R: RecvOwner, Q> {
    #[pin]
    free: IrqSaveSpinLock<Free>,
    slots: KVVec<RecvSlot<R, Q>>,
}

impl<R: RecvOwner, Q> RecvQueue<R, Q> {
    /// Makes a queue of `count` slots.
    pub(in crate::rdma) fn new(count: u32, done: Done) -> Result<impl PinInit<Self, Error>> {
        let mut slots = KVVec::with_capacity(count as usize, GFP_KERNEL)?;
        let mut free = KVVec::with_capacity(count as usize, GFP_KERNEL)?;
        for index in 0..count {
            slots.push(RecvSlot::new(done), GFP_KERNEL)?;
            free.push(u16::try_from(index).map_err(|_| EINVAL)?, GFP_KERNEL)?;
        }
        Ok(try_pin_init!(Self {
            free <- new_irqsave_spinlock!(Free {
                slots: free,
                closed: false,
            }),
            slots,
        }? Error))
    }

    /// Sets the queue that the slots belong to.
    ///
    /// # Safety
    ///
    /// Nobody else may use the slots yet. `queue` must stay in place as long as one has an owner.
    pub(in crate::rdma) unsafe fn init(&self, queue: &Q) {
        for slot in self.slots.iter() {
            // SAFETY: The caller promises that nobody else uses it.
            unsafe { *slot.queue.get() = queue };
        }
    }

    /// Calls `post` to post a receive of at most `max_sge` segments for `owner`. The errors are
    /// those of [`Qp::recv`]; the owner is returned with them.
    pub(in crate::rdma) fn post(
        &self,
        owner: R,
        device: &Device,
        lkey: u32,
        max_sge: u32,
        post: impl FnOnce(&bindings::ib_recv_wr) -> c_int,
    ) -> Result<(), (Error, R)> {
        let mut free = self.free.lock();
        if free.closed {
            return Err((ESHUTDOWN, owner));
        }
        let Some((index, slot)) = free
            .slots
            .pop()
            .and_then(|index| Some((index, self.slots.get(usize::from(index))?)))
        else {
            return Err((EAGAIN, owner));
        };
        // SAFETY: The slot was free and was taken off the list, which is locked until it is posted.
        let result = match unsafe { slot.build(owner, device, lkey, max_sge) } {
            Ok((mut wr, mut sges)) => {
                wr.sg_list = sges.as_mut_ptr();
                to_result(post(&wr))
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else {
            return Ok(());
        };
        // SAFETY: The slot is still ours, as it was not posted.
        let owner = unsafe { slot.take() };
        // The capacity suffices for all slots.
        let _ = free.slots.push_within_capacity(index);
        match owner {
            Some(owner) => Err((error, owner)),
            // `build()` has stored an owner.
            None => Ok(()),
        }
    }

    /// Frees the slot of a receive that has completed, and returns the owner.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion, for one of this queue's slots.
    #[inline]
    pub(in crate::rdma) unsafe fn take(&self, slot: &RecvSlot<R, Q>) -> Option<R> {
        // SAFETY: The slot's receive has completed, so that nobody else uses it.
        let owner = unsafe { slot.take() };
        // SAFETY: The slot is one of `slots`.
        let index = unsafe { core::ptr::from_ref(slot).offset_from(self.slots.as_ptr()) };
        // CAST: There are at most as many slots. The capacity suffices for all.
        let _ = self.free.lock().slots.push_within_capacity(index as u16);
        owner
    }

    /// Lets nothing more be posted.
    pub(in crate::rdma) fn close(&self) {
        self.free.lock().closed = true;
    }

    /// Takes the owners that are left, one by one.
    ///
    /// # Safety
    ///
    /// The queue must be closed, and the device be done with it.
    pub(in crate::rdma) unsafe fn take_rest(&self) -> impl Iterator<Item = R> + '_ {
        // SAFETY: No slot is being posted, as the list was locked to close it; a slot that was
        // posted is not used by the device any more, as the caller promises.
        self.slots.iter().filter_map(|slot| unsafe { slot.take() })
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts a receive; if the queue pair has a shared receive queue, there.
    ///
    /// On failure the owner is returned. The errors are: `EAGAIN` if there is no room until a
    /// receive has completed; `ESHUTDOWN` after the queue pair has failed; `EINVAL` for buffers
    /// that the device cannot write, or more of them than it takes; and those of `ib_post_recv()`.
    ///
    /// # Context
    ///
    /// Any. Does not sleep or allocate.
    pub(crate) fn recv(&self, owner: H::Recv) -> Result<(), (Error, H::Recv)> {
        if let Receives::Shared(srq) = &self.receives {
            return srq.recv(owner);
        }
        let device = self.pd.device();
        self.rq
            .post(owner, device, self.lkey, self.recv_sges, |wr| {
                // SAFETY: By the type invariants the queue pair is valid. The work request is valid
                // for the call, and the buffers until the completion, as the owner lies in the
                // slot.
                let ret =
                    unsafe { bindings::ib_post_recv(self.as_raw(), wr, core::ptr::null_mut()) };
                if ret == 0 {
                    let posted = self.recv_posted.load(Relaxed);
                    self.recv_posted.store(posted.wrapping_add(1), Relaxed);
                }
                ret
            })
    }

    /// Handles a receive that has completed. To be called by the handler of that completion.
    #[inline]
    pub(in crate::rdma) fn received(&self, owner: H::Recv, wc: &bindings::ib_wc) {
        // First the sends that the peer answers.
        if self.reaps {
            self.send_cq.cq().reap();
        }
        let completions = self.recv_completions.load(Relaxed);
        self.recv_completions
            .store(completions.wrapping_add(1), Relaxed);
        let result = T::received(wc);
        let Err(error) = &result else {
            return self.handler.recv_done(self, owner, result);
        };
        if matches!(error, WcError::Unexpected { .. }) {
            let Err(owner) = self.offer_write(owner, wc) else {
                return;
            };
            // The handler receives the reason before the failure.
            self.close();
            self.handler.recv_done(self, owner, result);
            return self.note_error();
        }
        self.note_error();
        self.handler.recv_done(self, owner, result);
    }
}

/// Handles the completion of a receive.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a
/// receive with the `cqe` of a slot of a queue pair with this handler that was posted.
pub(super) unsafe extern "C" fn recv_done<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: By the invariants of `Qp` it is in place as long as its slots have owners, and this
    // is the handler of the completion.
    let Some((slot, qp)) = (unsafe { RecvSlot::<H::Recv, Qp<H, T>>::completed(wc) }) else {
        return;
    };
    // SAFETY: As above.
    if let Some(owner) = unsafe { qp.rq.take(slot) } {
        qp.received(owner, wc);
    }
}
