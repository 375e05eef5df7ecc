// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of what two tasks do at the same time: one drains a queue pair, or flushes a
//! completion queue, while the other one is in the middle of something.

use crate::base::errno::ESHUTDOWN;
use crate::rdma::{
    cq::CqNotify,
    kunit::{
        broken::{
            post_fails,
            replaced,
            IGNORED, //
        },
        *, //
    }, //
};
use kernel::{
    ffi::c_int,
    sync::atomic::Full,
    task::Task, //
};

/// How long a task waits for its rival.
const RACE_MS: u32 = 300;

/// What a [`Rival`] does.
pub(super) enum Job {
    /// Drains a queue pair.
    Drain(ObjectRef<Qp<Handler>>),
    /// Flushes a completion queue.
    Flush(ObjectRef<AnyCq>),
    /// Handles the completions of one.
    Reap(ObjectRef<AnyCq>),
}

/// A task that does its job while another task is in the middle of something.
#[pin_data]
pub(super) struct Rival {
    queue: OwnedQueue,
    #[pin]
    job: Mutex<Option<Job>>,
    /// The events of the queue pair that is drained.
    events: Arc<Events>,
    /// The owners that had come back when [`Self::race`] returned.
    early: Atomic<u32>,
    #[pin]
    done: Completion,
    #[pin]
    work: Work<Rival>,
}

impl_has_work! {
    impl HasWork<Self> for Rival { self.work }
}

impl WorkItem for Rival {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let job = this.job.lock().take();
        match job {
            // The test looks at what came back.
            Some(Job::Drain(qp)) => drop(qp.drain()),
            Some(Job::Flush(cq)) => cq.flush(),
            Some(Job::Reap(cq)) => drop(cq.reap()),
            None => {}
        }
        this.done.complete_all();
    }
}

impl Rival {
    /// A task with this job. May sleep; so may dropping the last reference.
    pub(super) fn new(job: Job, events: &Arc<Events>) -> Result<Arc<Self>> {
        let queue = OwnedQueue::ordered(some_device()?.0.release(), c"farblk_kunit")?;
        let events = events.clone();
        Arc::pin_init(
            pin_init!(Self {
                queue,
                job <- new_mutex!(Some(job)),
                events,
                early: Atomic::new(0),
                done <- Completion::new(),
                work <- new_work!("Rival::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the task run, and waits for some time until its job is done. Where a task cannot be
    /// interrupted there is no race: then this returns at once.
    pub(super) fn race(self: &Arc<Self>) {
        // SAFETY: The function has no requirements.
        if unsafe { bindings::farblk_irqs_disabled() } {
            return;
        }
        let _ = self.queue.enqueue(self.clone());
        let _ = self.done.wait_timeout(RACE_MS);
        let early = self.events.sends.len() + self.events.recvs.len();
        // CAST: A small number.
        self.early.store(early as u32, Relaxed);
    }
}

/// The address of the queue that is flushed. The core polls queues of its own on the device.
static FLUSHED: Atomic<usize> = Atomic::new(0);
/// Whether [`slow_poll`] waits until that is over.
static HELD: Atomic<bool> = Atomic::new(false);
/// Tasks that are in [`slow_poll`].
static POLLING: Atomic<u32> = Atomic::new(0);
/// Times that another one was there.
static OVERLAPS: Atomic<u32> = Atomic::new(0);

/// Finds no completion, and takes some time for that.
///
/// # Safety
///
/// Called by a task that may sleep.
unsafe extern "C" fn slow_poll(
    cq: *mut bindings::ib_cq,
    _: c_int,
    _: *mut bindings::ib_wc,
) -> c_int {
    if cq.addr() != FLUSHED.load(Relaxed) {
        return 0;
    }
    if POLLING.fetch_add(1, Full) > 0 {
        OVERLAPS.fetch_add(1, Relaxed);
    }
    // SAFETY: By the safety requirements.
    unsafe { bindings::msleep(20) };
    let _ = wait_until(|| !HELD.load(Relaxed));
    POLLING.fetch_sub(1, Full);
    0
}

/// Counts how often somebody is to poll.
pub(super) struct Notified(pub(super) Atomic<u32>);

impl CqNotify for Notified {
    fn notify(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Completions that [`endless_poll`] has left.
static LEFT: Atomic<u32> = Atomic::new(0);
/// Completions that it has given to the test's own task.
static SEEN: Atomic<u32> = Atomic::new(0);
/// The address of that task.
static TASK: Atomic<usize> = Atomic::new(0);

/// Finds as many completions as are asked for, as if other queue pairs were busy all the time.
///
/// # Safety
///
/// Called by the core, with room for so many.
unsafe extern "C" fn endless_poll(
    cq: *mut bindings::ib_cq,
    room: c_int,
    wcs: *mut bindings::ib_wc,
) -> c_int {
    if cq.addr() != FLUSHED.load(Relaxed) {
        return 0;
    }
    let count = LEFT.load(Relaxed).min(room.unsigned_abs());
    LEFT.fetch_sub(count, Relaxed);
    for index in 0..count as usize {
        let wc = bindings::ib_wc {
            __bindgen_anon_1: bindings::ib_wc__bindgen_ty_1 {
                wr_cqe: (&raw const IGNORED.0).cast_mut(),
            },
            ..pin_init::zeroed()
        };
        // SAFETY: By the safety requirements there is room.
        unsafe { wcs.add(index).write(wc) };
    }
    if Task::current_raw().addr() == TASK.load(Relaxed) {
        SEEN.fetch_add(count, Relaxed);
    }
    // CAST: At most `room`.
    count as c_int
}

#[kernel::macros::kunit_tests(farblk_rdma_rival)]
mod tests {
    use super::*;

    #[test]
    fn leaves_to_a_failed_post_what_was_not_posted() -> Result {
        with_pair(CAPS, |pair| {
            let (qp, events) = (&pair.near.qp, &pair.near.events);
            let rival = Rival::new(Job::Drain(qp.clone()), events)?;
            *events.rival.lock() = Some(rival.clone());
            let broken = replaced!(pair.pd.device(), post_send, post_fails);
            for slot in 0..3 {
                let message = pair.message(slot.into(), 64, 1)?;
                posted(qp.send(slot, message, slot == 2))?;
            }
            let drained = rival.done.wait_timeout(TIMEOUT_MS);
            drop(broken);
            drained?;
            // All had come back when the drain returned, but by the task that had failed to post.
            check!(rival.early.load(Relaxed) == 0 && events.sends.len() == 3);
            for number in 0..3 {
                let (owner, result) = events.sends.take()?;
                check!(owner.number == number && result == Err(WcError::NotCompleted(EIO)));
            }
            Ok(())
        })
    }

    #[test]
    fn does_not_take_a_receive_that_is_being_posted() -> Result {
        with_pair(CAPS, |pair| {
            let (qp, events) = (&pair.near.qp, &pair.near.events);
            let rival = Rival::new(Job::Drain(qp.clone()), events)?;
            let mut landing = pair.landing(1, 64)?;
            landing.rival = Some(rival.clone());
            match qp.recv(landing) {
                // The drain waits until the receive is posted, and then for its completion.
                Ok(()) => {
                    check!(rival.early.load(Relaxed) == 0);
                    check!(rival.done.wait_timeout(TIMEOUT_MS) == Ok(()));
                    check!(events.recvs.len() == 1);
                }
                Err((error, landing)) => {
                    check!(error == ESHUTDOWN && landing.number == 1 && events.recvs.len() == 0);
                }
            }
            Ok(())
        })
    }

    #[test]
    fn flushes_what_is_there_and_not_what_comes() -> Result {
        with_device(|device, _| {
            for context in [PollContext::Direct, PollContext::Workqueue] {
                let is_direct = matches!(context, PollContext::Direct);
                let cq = AnyCq::alloc(device, 8, 0, context)?;
                TASK.store(Task::current_raw().addr(), Relaxed);
                FLUSHED.store(cq.as_raw().addr(), Relaxed);
                SEEN.store(0, Relaxed);
                LEFT.store(10_000, Relaxed);
                let broken = replaced!(device, poll_cq, endless_poll);
                cq.flush();
                let flushed = SEEN.xchg(0, Relaxed);
                let reaped = cq.reap();
                let polled = cq.poll(3);
                // What is left must not hold up the queue's own task.
                FLUSHED.store(0, Relaxed);
                drop(broken);
                check!(flushed == 8);
                check!(!is_direct || (reaped, polled) == (8, 3));
            }
            Ok(())
        })
    }

    #[test]
    fn is_told_when_another_one_is_done() -> Result {
        with_device(|device, _| {
            let notified = Arc::new(Notified(Atomic::new(0)), GFP_KERNEL)?;
            let cq = Cq::<Manual>::alloc(device, 8, 0, notified.clone())?;
            check!(!cq.arm() && !cq.arm_solicited() && cq.poll(1) == 0);
            let rival = Rival::new(Job::Reap(cq.clone().into()), &Events::new()?)?;
            let broken = replaced!(device, poll_cq, slow_poll);
            HELD.store(true, Relaxed);
            FLUSHED.store(cq.as_raw().addr(), Relaxed);
            let queued = rival.queue.enqueue(rival.clone()).is_ok();
            let entered = wait_until(|| POLLING.load(Relaxed) > 0);
            let reaped = cq.try_reap();
            FLUSHED.store(0, Relaxed);
            HELD.store(false, Relaxed);
            let done = rival.done.wait_timeout(TIMEOUT_MS);
            drop(broken);
            check!(queued);
            entered.and(done)?;
            check!(reaped.is_none() && notified.0.load(Relaxed) == 1);
            check!(cq.try_reap() == Some(0));
            Ok(())
        })
    }

    #[test]
    fn flushes_a_completion_queue_alone() -> Result {
        with_device(|device, _| {
            let cq = AnyCq::alloc(device, 8, 0, PollContext::Workqueue)?;
            let rival = Rival::new(Job::Flush(cq.clone()), &Events::new()?)?;
            let broken = replaced!(device, poll_cq, slow_poll);
            FLUSHED.store(cq.as_raw().addr(), Relaxed);
            check!(rival.queue.enqueue(rival.clone()).is_ok());
            cq.flush();
            let flushed = rival.done.wait_timeout(TIMEOUT_MS);
            drop(broken);
            flushed?;
            check!(OVERLAPS.load(Relaxed) == 0);
            Ok(())
        })
    }
}
