// SPDX-License-Identifier: GPL-2.0

//! The context in which a completion queue calls the handlers of its completions, as a type.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    AnyCq,
    CqNotify,
    PollContext, //
};
use crate::rdma::{
    device::Device,
    remnant::ObjectRef, //
};
use core::{
    marker::PhantomData,
    ops::Deref, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

mod sealed {
    /// No other type is a context.
    pub(crate) trait Sealed {}
}

use sealed::Sealed;

/// The context of a [`Cq`].
///
/// See [`Cq`] for an example.
pub(crate) trait Context: Sealed {}

/// A context in which callers of [`Cq::poll`] and [`Cq::reap`] handle completions.
///
/// # Examples
///
/// ```
/// # use crate::rdma::cq::{Cq, Direct, Manual};
/// # fn example(direct: &Cq<Direct>, manual: &Cq<Manual>) {
/// // With a queue of another context this would not compile.
/// let handled = direct.poll(16) + manual.poll(16);
/// # }
/// ```
pub(crate) trait PolledContext: Context {}

/// Handlers are called in softirq, on the CPU that took the interrupt. They must not sleep.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Softirq}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps, number: u32) -> Result {
/// // Connections with other numbers have other interrupts, and so other CPUs.
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), number)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Softirq;

/// Handlers are called by the RDMA core's workqueue `ib-comp-wq`. They may sleep, but delay the
/// handlers of all other queues there.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Workqueue}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps) -> Result {
/// // For a connection of control messages, whose handler takes a mutex.
/// let cq = Cq::<Workqueue>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Workqueue;

/// Handlers are called by the caller of [`Cq::poll`] or [`Cq::reap`]; there are no interrupts. They
/// must not sleep.
///
/// A queue pair whose sends complete here and whose receives do so elsewhere reaps when it handles
/// a receive. See also [`Qp::answered`](crate::rdma::qp::Qp::answered).
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Direct}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// fn alloc(device: &Arc<Device>, caps: &QpCaps) -> Result<Cq<Direct>> {
///     Cq::<Direct>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)
/// }
///
/// /// Called over and over by a task that spins until its I/O is done.
/// fn poll(cq: &Cq<Direct>) -> u32 {
///     cq.reap()
/// }
/// ```
pub(crate) struct Direct;

/// Handlers are called by the caller of [`Cq::poll`] or [`Cq::reap`]. If callers may sleep,
/// handlers may sleep, too. [`Cq::arm`] requests one interrupt, which calls [`CqNotify::notify`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, CqNotify, Manual}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps, notify: Arc<dyn CqNotify>) -> Result {
/// let cq = Cq::<Manual>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0, notify)?;
/// cq.reap();
/// // One interrupt at the next completion. If one came in since `reap()`, there may be none.
/// if cq.arm() {
///     cq.reap();
/// }
/// # Ok(())
/// # }
/// ```
pub(crate) struct Manual;

impl Sealed for Softirq {}
impl Sealed for Workqueue {}
impl Sealed for Direct {}
impl Sealed for Manual {}
impl Context for Softirq {}
impl Context for Workqueue {}
impl Context for Direct {}
impl Context for Manual {}
impl PolledContext for Direct {}
impl PolledContext for Manual {}

/// A reference to a completion queue whose handlers are called in context `C`.
///
/// It handles one completion at a time.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cm::CmId,
/// #     cq::{Cq, Softirq},
/// #     pd::Pd,
/// #     qp::{Qp, QpCaps, QpHandler},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ulp = ()>>(
/// #     (first, second): (&Arc<CmId>, &Arc<CmId>),
/// #     pd: &Arc<Pd>,
/// #     caps: QpCaps,
/// #     handlers: (H, H),
/// # ) -> Result {
/// // A queue for two queue pairs: it has an entry for all that may complete there.
/// let entries = 2 * (caps.send_cqes() + caps.recv_cqes());
/// let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
/// // Each keeps it, as an `AnyCq`, which does not say who may poll.
/// let first = Qp::create(first, pd, &cq, &cq, caps, handlers.0)?;
/// let second = Qp::create(second, pd, &cq, &cq, caps, handlers.1)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Cq<C: Context> {
    queue: ObjectRef<AnyCq>,
    _context: PhantomData<C>,
}

impl<C: Context> Clone for Cq<C> {
    fn clone(&self) -> Self {
        Self::new(self.queue.clone())
    }
}

impl<C: Context> Deref for Cq<C> {
    type Target = ObjectRef<AnyCq>;

    #[inline]
    fn deref(&self) -> &ObjectRef<AnyCq> {
        &self.queue
    }
}

impl<C: Context> From<Cq<C>> for ObjectRef<AnyCq> {
    fn from(cq: Cq<C>) -> Self {
        cq.queue
    }
}

impl<C: Context> Cq<C> {
    fn new(queue: ObjectRef<AnyCq>) -> Self {
        Self {
            queue,
            _context: PhantomData,
        }
    }
}

impl Cq<Softirq> {
    /// Allocates a completion queue of `entries` entries whose interrupt is completion vector
    /// `vector`, modulo their number.
    ///
    /// The entries must suffice for all work requests of all its queue pairs: the sum of their
    /// [`send_cqes`](crate::rdma::qp::QpCaps::send_cqes) and
    /// [`recv_cqes`](crate::rdma::qp::QpCaps::recv_cqes), and the receives of shared receive
    /// queues. Fails with `EINVAL` if `entries` is 0 or more than the device can have, and with
    /// what the device says.
    ///
    /// # Context
    ///
    /// May sleep. Dropping the last reference may sleep, too, and must not happen in a completion.
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Softirq).map(Self::new)
    }
}

impl Cq<Workqueue> {
    /// As for [`Softirq`].
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Workqueue).map(Self::new)
    }
}

impl Cq<Direct> {
    /// As for [`Softirq`].
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Direct).map(Self::new)
    }
}

impl Cq<Manual> {
    /// As for [`Softirq`]; `notify` receives the interrupts.
    pub(crate) fn alloc(
        device: &Arc<Device>,
        entries: u32,
        vector: u32,
        notify: Arc<dyn CqNotify>,
    ) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Manual(notify)).map(Self::new)
    }

    /// Requests one interrupt at the next completion. Returns true if there may be a completion
    /// already, in which case there may be no interrupt.
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn arm(&self) -> bool {
        self.queue.arm()
    }

    /// Like [`Self::arm`], but requests the interrupt at the next completion that is solicited: a
    /// receive of what the peer has sent so, by
    /// [`Qp::send_solicited`](crate::rdma::qp::Qp::send_solicited) or by
    /// [`Announcement::solicited`](crate::rdma::wr::Announcement::solicited), or a receive that has
    /// failed.
    ///
    /// Also returns true if there may be a completion already that is not solicited. Does not undo
    /// [`Self::arm`]: if that was called since the last interrupt, the next completion of any kind
    /// raises one. A send that has succeeded is never solicited. Not every device tells of receives
    /// that are flushed
    /// ([`Quirks::flushes_unsolicited`](crate::rdma::quirks::Quirks::flushes_unsolicited)).
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn arm_solicited(&self) -> bool {
        self.queue.arm_solicited()
    }

    /// Like [`Self::reap`]. Returns `None` if another caller is handling completions, which then
    /// calls [`CqNotify::notify`]. A caller that wants to see the queue empty must not wait for
    /// that one: it may need this CPU.
    pub(crate) fn try_reap(&self) -> Option<u32> {
        self.queue.try_reap()
    }
}

impl<C: PolledContext> Cq<C> {
    /// Handles at most `budget` completions, and returns how many they were.
    ///
    /// If another caller is handling completions already, that one looks for completions once more,
    /// or has another task do so, and this returns 0.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep, if the handlers do not; those of a [`Direct`] queue
    /// are called with preemption disabled, or, with `PREEMPT_RT`, with softirqs disabled.
    pub(crate) fn poll(&self, budget: u32) -> u32 {
        self.queue.poll(budget)
    }

    /// Like [`Self::poll`], but handles all completions that are in the queue now: they are at most
    /// as many as it has entries. What comes in while it does so may be handled or not.
    #[inline]
    pub(crate) fn reap(&self) -> u32 {
        self.queue.reap()
    }
}
