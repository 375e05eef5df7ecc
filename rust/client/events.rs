// SPDX-License-Identifier: GPL-2.0

//! The mailbox of a map: what callbacks tell its work item.
//!
//! The state of a map changes in its work item only. Completion handlers, the connection manager,
//! the block layer and the tasks that connect paths post events here instead, which schedules the
//! work item. The mailbox knows nothing of the map, so that connections and requests need not
//! either.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::base::sync::{
    new_irqsave_spinlock,
    IrqSaveSpinLock, //
};
use crate::proto::Malformed;
use crate::rdma::cm::CmEvents;
use crate::session::{
    Epoch,
    PathId,
    PATHS_MAX, //
};

/// Number of hardware queues with a late request that are remembered. The block layer reports the
/// requests of the other queues again.
pub(in crate::client) const LATE_MAX: usize = 8;

/// Schedules the work item of a map.
pub(in crate::client) trait Schedule: Send + Sync {
    /// Makes the work item run, and run once more if it is running. Any context.
    fn schedule(&self);
}

/// The events that the work item has not taken yet.
struct Posted {
    /// The latest epoch of each path that was lost; 0 for none.
    lost: [Epoch; PATHS_MAX],
    /// A violation of the protocol, with the path and the epoch in which it was seen.
    violation: Option<(PathId, Epoch, Malformed)>,
    /// Bit mask of the paths on which the server may allow more commands in flight.
    credited: u32,
    /// Hardware queues with late requests.
    late: [Option<u16>; LATE_MAX],
}

/// The mailbox of a map.
///
/// Each `take` method returns what was posted since it was called last.
#[pin_data]
pub(in crate::client) struct Events {
    #[pin]
    posted: IrqSaveSpinLock<Posted>,
    /// The number of answers and data whose check was wrong.
    forged: Atomic<u64>,
    work: Arc<dyn Schedule>,
}

impl Events {
    /// Makes an empty mailbox. Each event schedules `work`. May sleep.
    pub(in crate::client) fn new(work: Arc<dyn Schedule>) -> Result<Arc<Self>> {
        let posted = Posted {
            lost: [0; PATHS_MAX],
            violation: None,
            credited: 0,
            late: [None; LATE_MAX],
        };
        Arc::pin_init(
            pin_init!(Self {
                posted <- new_irqsave_spinlock!(posted, "Events::posted"),
                forged: Atomic::new(0),
                work,
            }),
            GFP_KERNEL,
        )
    }

    /// Schedules the work item, which then looks at all that posts no event of its own. Any
    /// context.
    pub(in crate::client) fn wake(&self) {
        self.work.schedule();
    }

    /// Posts that a request of a hardware queue is in flight for longer than the I/O timeout. Any
    /// context.
    pub(in crate::client) fn late(&self, hw_queue: u16) {
        {
            let late = &mut self.posted.lock().late;
            if !late.contains(&Some(hw_queue)) {
                if let Some(free) = late.iter_mut().find(|queue| queue.is_none()) {
                    *free = Some(hw_queue);
                }
            }
        }
        self.wake();
    }

    /// Takes the latest epoch of each path that was lost; 0 for none.
    pub(in crate::client) fn take_lost(&self) -> [Epoch; PATHS_MAX] {
        core::mem::take(&mut self.posted.lock().lost)
    }

    /// Takes the last violation of the protocol, with the path and the epoch in which it was seen.
    pub(in crate::client) fn take_violation(&self) -> Option<(PathId, Epoch, Malformed)> {
        self.posted.lock().violation.take()
    }

    /// Takes the bit mask of the paths on which the server may allow more commands in flight.
    pub(in crate::client) fn take_credited(&self) -> u32 {
        core::mem::take(&mut self.posted.lock().credited)
    }

    /// Returns how often [`PathEvents::forged`] was posted. Any context.
    pub(in crate::client) fn forged(&self) -> u64 {
        self.forged.load(Relaxed)
    }

    /// Takes the hardware queues with late requests.
    pub(in crate::client) fn take_late(&self) -> [Option<u16>; LATE_MAX] {
        core::mem::take(&mut self.posted.lock().late)
    }
}

/// Posts the events of the connections that one epoch of a path has.
#[derive(Clone)]
pub(in crate::client) struct PathEvents {
    events: Arc<Events>,
    path: PathId,
    epoch: Epoch,
}

impl PathEvents {
    /// Makes one for `epoch` of `path`.
    pub(in crate::client) fn new(events: &Arc<Events>, path: PathId, epoch: Epoch) -> Self {
        Self {
            events: events.clone(),
            path,
            epoch,
        }
    }

    /// Posts that a connection was lost. Any context.
    #[cold]
    pub(in crate::client) fn lost(&self) {
        if let Some(lost) = self
            .events
            .posted
            .lock()
            .lost
            .get_mut(usize::from(self.path))
        {
            *lost = (*lost).max(self.epoch);
        }
        self.events.wake();
    }

    /// Posts that the server broke the protocol; its connections have to go. Any context.
    #[cold]
    pub(in crate::client) fn violated(&self, what: Malformed) {
        self.events.posted.lock().violation = Some((self.path, self.epoch, what));
        // A later violation replaces this one, but the path must be closed nevertheless.
        self.lost();
    }

    /// Posts that an answer, or data, have another check than theirs: somebody has changed or made
    /// them. The connections have to go. Any context.
    #[cold]
    pub(in crate::client) fn forged(&self) {
        self.events.forged.fetch_add(1, Relaxed);
        self.violated(Malformed("the check of an answer or of its data is wrong"));
    }

    /// Posts that the control connection may have received a message. Any context.
    pub(in crate::client) fn received(&self) {
        self.events.wake();
    }

    /// Posts that the server allows more commands in flight on a connection than the connection has
    /// receives for. Any context.
    #[cold]
    pub(in crate::client) fn credited(&self) {
        self.events.posted.lock().credited |= 1 << self.path;
        self.events.wake();
    }
}

/// For the I/O connections.
impl CmEvents for PathEvents {
    fn disconnected(&self) {
        self.lost();
    }
}
