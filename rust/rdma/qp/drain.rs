// SPDX-License-Identifier: GPL-2.0

//! The teardown of a queue pair: it makes certain that the device, its completions and the peer do
//! not use what was posted any more, so that the owners can be given back.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::ESHUTDOWN;
use crate::bindings;
use crate::rdma::{
    cq::AnyCq,
    might_sleep,
    qp::{
        slot::SendSlot,
        ulp::Outcome,
        Drained,
        Qp,
        QpHandler,
        Receives,
        Stage,
        Transport,
        Ulp, //
    },
    remnant::{
        DeviceObject,
        Remnants, //
    },
    wc::WcError, //
};
use core::mem::ManuallyDrop;
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

/// How long the device may take to drain a queue pair, from when that goes to its error state.
/// After that the queue pair is destroyed instead. So queue pairs that fail together, and are then
/// drained one after the other, have this time together.
const DRAIN_MS: u32 = 5_000;
/// How long a step of draining a queue pair may take at least, however long ago that has failed:
/// what is waited for may only just have been posted.
const DRAIN_STEP_MS: u32 = 10;
/// How long the device may take to tell of the last receive, from when the queue pair goes to its
/// error state, if it is not known not to do so. A device that takes longer loses receives at most.
const LAST_RECEIVE_MS: u32 = 1_000;

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Moves the queue pair to its error state: all that is posted or chained comes back with an
    /// error, and nothing can be posted any more.
    ///
    /// The time that the device may take to drain the queue pair begins here. A task that drains
    /// several queue pairs calls this for all of them first, so that they have that time together.
    ///
    /// # Context
    ///
    /// May sleep. Not in a method of the handler.
    pub(crate) fn fail(&self) {
        might_sleep();
        self.close();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Live) && !self.as_raw().is_null() {
            // SAFETY: `stage` is locked and `Live`.
            if let Err(error) = unsafe { self.enter_error_state(&mut stage) } {
                // Firmware that does not answer takes its time for each command.
                *stage = Stage::Stuck;
                pr_warn!(
                    "cannot move a queue pair to its error state: {}\n",
                    error.to_errno()
                );
            }
        }
    }

    /// Moves the queue pair to its error state, as [`Self::fail`] does. Returns true if the device
    /// has confirmed that, or there is no C object: then the peer has no access by it any more. To
    /// be called before the queue pair is drained.
    ///
    /// # Context
    ///
    /// May sleep. Not in a method of the handler.
    pub(crate) fn revoke(&self) -> bool {
        self.fail();
        match *self.stage.lock() {
            Stage::Failed(_) | Stage::Drained | Stage::Destroyed => true,
            Stage::Live => self.as_raw().is_null(),
            Stage::Stuck | Stage::Lost(_) => false,
        }
    }

    /// Moves the queue pair to its error state, as [`Self::fail`] does, and gives back all that was
    /// posted or chained: when this returns, neither the device nor the peer accesses the owners'
    /// memory, and all owners are back. Exceptions are those that another task is just posting,
    /// which that call returns, and those that the ULP is just giving back, or could not; what is
    /// returned tells that.
    ///
    /// If the device cannot drain the queue pair, the queue pair is destroyed, which has the same
    /// effect. If the device refuses that, too, the queue pair is lost: owners come back only when
    /// the device completes what was posted, or gives in. What is returned tells that.
    ///
    /// May be called again, and returns the same then; but of a queue pair that is lost the device
    /// is asked once more to destroy it. A caller that waits for owners and keeps a reference has
    /// to call this from time to time, and so has one whose owners have references: only without
    /// any the queue pair becomes a [remnant](crate::rdma::remnant), which is tried again when the
    /// device goes.
    ///
    /// # Context
    ///
    /// Sleeps. If the device does not drain, until some seconds have passed since the queue pair
    /// has failed, by [`Self::fail`] or here. Neither in a method of the handler nor in a
    /// completion of another queue pair on the same completion queues.
    pub(crate) fn drain(&self) -> Outcome<H, T> {
        might_sleep();
        self.close();
        self.wait_given_back();
        let mut stage = self.stage.lock();
        let stopped = self.stop(&mut stage).map(|drained| drained.give_back());
        H::Ulp::outcome(&self.ulp, stopped)
    }

    /// Makes the device and the completions stop using the slots: by draining the queue pair, or
    /// else by destroying it. Fails if the device does neither: then the queue pair is lost, and
    /// this may be called again.
    fn stop(&self, stage: &mut Stage) -> Result<Drained<'_, H, T>> {
        self.close();
        match *stage {
            Stage::Live | Stage::Failed(_) | Stage::Stuck => match self.quiesce(stage) {
                // INVARIANT: It was closed, and all completions were handled.
                Ok(Quiet::Drained) => *stage = Stage::Drained,
                Ok(Quiet::Unknown) => self.destroy_undrained(stage),
                Err(error) => {
                    pr_warn!(
                        "cannot drain a queue pair: {}; it is destroyed\n",
                        error.to_errno()
                    );
                    self.destroy_undrained(stage);
                }
            },
            Stage::Lost(_) => {
                if let Receives::Shared(srq) = &self.receives {
                    // As before the first try: what has completed since would be lost.
                    srq.cq().flush();
                }
                self.destroy_or_lose(stage);
            }
            Stage::Drained | Stage::Destroyed => {}
        }
        match *stage {
            Stage::Lost(error) => Err(error),
            // INVARIANT: The stage is one of these two now.
            _ => Ok(Drained(self)),
        }
    }

    /// Waits until all that was posted has completed and was handled, as far as the device can
    /// tell. The queue pair must be closed, and not be drained yet.
    fn quiesce(&self, stage: &mut Stage) -> Result<Quiet> {
        if self.as_raw().is_null() {
            return Ok(Quiet::Drained);
        }
        if matches!(*stage, Stage::Stuck) {
            return Err(EIO);
        }
        // Also if it was not connected: in its error state it cannot be any more, and a driver may
        // keep what was posted before.
        // SAFETY: `stage` is locked, and `Live` or `Failed`.
        let failed = unsafe { self.enter_error_state(stage) }?;
        match &self.receives {
            Receives::Own(_) if !T::TAKES_MARKERS => return Ok(Quiet::Unknown),
            Receives::Own(cq) => {
                // A queue that was never used has nothing to drain; and a device that could not
                // connect the queue pair may never drain its receive queue.
                if self.send_posted.load(Relaxed) != 0 {
                    self.drain_sends(failed)?;
                }
                if self.recv_posted.load(Relaxed) != 0 {
                    self.drain_receives(cq.cq(), failed)?;
                }
            }
            Receives::Shared(srq) => {
                // A queue pair that was never connected cannot have received anything.
                let connected = self.id.was_connected();
                let told = !connected || self.wait_last_receive(failed);
                // The receives may complete in the same queue.
                if connected || self.send_posted.load(Relaxed) != 0 {
                    self.drain_sends(failed)?;
                }
                if !told {
                    return Ok(Quiet::Unknown);
                }
                if connected && srq.cq().is_direct() {
                    srq.cq().flush();
                }
                srq.retire(self);
                srq.forget(self);
            }
        }
        Ok(Quiet::Drained)
    }

    /// Waits until the device has told that the queue pair, which has gone to its error state at
    /// `failed`, receives nothing any more. Returns false if it does not do so.
    fn wait_last_receive(&self, failed: Instant<Monotonic>) -> bool {
        let device = self.pd.device();
        // A software device is as late as the CPU is busy, and is known.
        let learns = !device.is_software();
        let most = match device.tells_last_receive() {
            true if learns => LAST_RECEIVE_MS,
            true => DRAIN_MS,
            false => 0,
        };
        let told = self.last_wqe.wait_timeout(left_ms(failed, most)).is_ok();
        if learns {
            device.set_tells_last_receive(told);
        }
        told
    }

    /// Destroys a queue pair that cannot be drained, and handles what it has left in the completion
    /// queues: no other completion of it can come. If the device refuses that, it is lost.
    fn destroy_undrained(&self, stage: &mut Stage) {
        if let Receives::Shared(srq) = &self.receives {
            // The device removes what is in the queue when it destroys the queue pair, and the
            // receives would be lost with it. One that it has taken and not completed is.
            srq.cq().flush();
            self.lost_receives
                .store(self.id.was_connected().into(), Relaxed);
            // A queue pair that is created while this one goes may have its address.
            srq.retire(self);
        }
        // What the peer has sent before is still handled, but answers nothing: the C object is
        // gone. The handler must find by `has_failed()` that such an answer is late, and no fault
        // of the peer.
        self.note_error();
        self.destroy_or_lose(stage);
        if let Stage::Lost(error) = *stage {
            pr_err!(
                "a device refuses to destroy a queue pair: {}; what was posted stays until it \
                 gives in\n",
                error.to_errno()
            );
        }
    }

    /// Destroys a queue pair that was not drained, and handles what it has left in the completion
    /// queues. If the device refuses, it is lost.
    fn destroy_or_lose(&self, stage: &mut Stage) {
        match self.destroy(stage) {
            Ok(()) => self.handle_rest(),
            Err(error) => *stage = Stage::Lost(error),
        }
    }

    /// Handles what a queue pair that was destroyed before it was drained has left in the
    /// completion queues.
    fn handle_rest(&self) {
        self.send_cq.cq().flush();
        match &self.receives {
            Receives::Own(cq) => cq.cq().flush(),
            Receives::Shared(srq) => {
                srq.cq().flush();
                srq.forget(self);
            }
        }
    }

    /// Destroys the C object, which there must be. The queue pair must be closed. Fails with the
    /// error of the device if that refuses; then it may be tried again.
    fn destroy(&self, stage: &mut Stage) -> Result {
        let first = self.detached.xchg(1, Relaxed) == 0;
        if first {
            // The core destroys no queue pair that is attached to a group. The groups are left with
            // `self`: that waits for handlers, which must not happen with `stage` locked.
            for group in self.groups.lock().iter() {
                // SAFETY: `stage` is locked, and there is a C object.
                unsafe { group.detach(self.as_raw()) };
            }
        }
        // SAFETY: By the type invariants the queue pair is ours, and is that of the id until the
        // function has taken it from that. As it is closed and `stage` is locked, nobody else uses
        // it.
        let ret = unsafe { bindings::farblk_destroy_qp(self.id.as_raw(), self.as_raw()) };
        if first {
            self.id.release_qp();
        }
        to_result(ret)?;
        self.raw.store(core::ptr::null_mut(), Relaxed);
        *stage = Stage::Destroyed;
        Ok(())
    }

    /// Moves the queue pair to its error state, and returns when it went there first. It must be
    /// closed.
    ///
    /// # Safety
    ///
    /// `stage` must be that of `self`, locked, and `Live` or `Failed`, and there be a C object.
    unsafe fn enter_error_state(&self, stage: &mut Stage) -> Result<Instant<Monotonic>> {
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_ERR,
            ..pin_init::zeroed()
        };
        // SAFETY: By the safety requirements the queue pair is valid.
        to_result(unsafe {
            bindings::ib_modify_qp(
                self.as_raw(),
                &mut attr,
                bindings::ib_qp_attr_mask_IB_QP_STATE as i32,
            )
        })?;
        let failed = match *stage {
            Stage::Failed(failed) => failed,
            _ => Instant::now(),
        };
        *stage = Stage::Failed(failed);
        Ok(failed)
    }

    /// Waits until all that was posted to the send queue has completed, and all that has completed
    /// before in the same completion queue was handled. The queue pair must be closed, in its error
    /// state since `failed`, and `stage` be locked.
    fn drain_sends(&self, failed: Instant<Monotonic>) -> Result {
        // Not `ib_drain_sq()`: that does not tell whether it has drained anything.
        let left = left_ms(failed, DRAIN_MS);
        self.send_cq.cq().drain(&self.send_marker, left, |cqe| {
            let wr = bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 { wr_cqe: cqe },
                    opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                    send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
                    ..pin_init::zeroed()
                },
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: `stage` is locked, and not `Destroyed`. Nothing else can be posted since
            // `close()`, and there is room for one more work request. The device copies it; the
            // marker stays until its completion was handled, or none can come.
            to_result(unsafe { bindings::ib_post_send(self.as_raw(), &wr.wr, &mut bad) })
        })
    }

    /// Waits until all that was posted to the queue pair's own receive queue has completed. As for
    /// [`Self::drain_sends`].
    fn drain_receives(&self, cq: &AnyCq, failed: Instant<Monotonic>) -> Result {
        cq.drain(&self.recv_marker, left_ms(failed, DRAIN_MS), |cqe| {
            let wr = bindings::ib_recv_wr {
                __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 { wr_cqe: cqe },
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: As in `drain_sends()`.
            to_result(unsafe { bindings::ib_post_recv(self.as_raw(), &wr, &mut bad) })
        })
    }
}

/// Returns how long the next step of draining a queue pair may take that has gone to its error
/// state at `failed`, in ms, if it may end `most` ms after that.
fn left_ms(failed: Instant<Monotonic>, most: u32) -> u32 {
    let spent = u32::try_from(failed.elapsed().as_millis()).unwrap_or(u32::MAX);
    most.saturating_sub(spent).max(DRAIN_STEP_MS)
}

/// What is known of a queue pair that is in its error state.
enum Quiet {
    /// All that was posted has completed, and no completion can come any more.
    Drained,
    /// Only when the queue pair is destroyed it is certain that no completion can come: the device
    /// does not tell whether it still receives into the shared queue, or no marker can be posted.
    Unknown,
}

impl<H: QpHandler<T>, T: Transport> Drained<'_, H, T> {
    /// Gives back all that was posted and has not completed, and what the ULP has kept.
    fn give_back(&self) {
        let qp = self.0;
        for slot in qp.sends.iter() {
            // A slot that is claimed, and not posted or not any more, is given back by the function
            // that has claimed it.
            if H::Ulp::is_left(slot) {
                self.end(slot);
            }
        }
        // SAFETY: The queue is closed, and by the type invariants the device is done with it.
        for owner in unsafe { qp.rq.take_rest() } {
            let result = Err(WcError::NotCompleted(ESHUTDOWN));
            qp.handler.recv_done(qp, owner, result);
        }
    }

    /// Ends all access to the memory of `slot`, which was posted, and gives back its owner, unless
    /// the ULP has to keep that.
    fn end(&self, slot: &SendSlot<H, T>) {
        let qp = self.0;
        // SAFETY: By the type invariants neither the device nor a completion uses the slot, and
        // `is_left()` has kept all others from it.
        if !unsafe { H::Ulp::end(qp, slot) } {
            return;
        }
        // SAFETY: As above.
        let error = unsafe { (*slot.body.get()).error.take() };
        let error = error.unwrap_or(WcError::NotCompleted(ESHUTDOWN));
        // SAFETY: As above, and the peer has no access any more.
        unsafe { qp.finish(slot, Err(error)) };
    }
}

// SAFETY: `release()` has then drained and destroyed the queue pair, or destroyed it and handled
// what it has left in the completion queues.
unsafe impl<H: QpHandler<T>, T: Transport> DeviceObject for Qp<H, T> {
    fn kind(&self) -> &'static str {
        "queue pair"
    }

    fn remnants(&self) -> &Arc<Remnants> {
        self.pd.device().remnants()
    }

    /// Gives back all that was posted, and destroys the C object, if there is one: otherwise it was
    /// destroyed, and nothing is posted.
    unsafe fn release(&self) -> Result {
        if self.as_raw().is_null() {
            return Ok(());
        }
        might_sleep();
        let mut stage = self.stage.lock();
        let drained = self.stop(&mut stage)?;
        let destroyed = match *stage {
            Stage::Destroyed => Ok(()),
            // If the device refuses, it still has stopped using the slots.
            _ => self.destroy(&mut stage),
        };
        drained.give_back();
        destroyed
    }
}

#[pinned_drop]
impl<H: QpHandler<T>, T: Transport> PinnedDrop for Qp<H, T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: No field is moved that is pinned.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: It is not used again: the C object is gone, or could not be created, and no
        // completion can come.
        let handler = unsafe { ManuallyDrop::take(&mut this.handler) };
        H::Ulp::retire(&this.ulp, &this.pd, handler);
    }
}
