// SPDX-License-Identifier: GPL-2.0

//! The requests of a driver, by tag.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use super::{
    operations::{
        Operations,
        OperationsVTable, //
    },
    request::Pdu, //
};
use crate::base::memory::NumaNode;
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    time::msecs_to_jiffies,
    types::Opaque, //
};

/// Makes a [`TagSet`].
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{Operations, TagSet, TagSetBuilder};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<T: Operations>() -> Result<Arc<TagSet<T>>> {
/// // 4 hardware queues with 128 requests each, which are late after 10 seconds.
/// let tag_set = TagSetBuilder::new(4, 128).timeout_ms(10_000).build();
/// # Arc::pin_init(tag_set, GFP_KERNEL)
/// # }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct TagSetBuilder {
    nr_hw_queues: u32,
    poll_queues: u32,
    queue_depth: u32,
    numa_node: NumaNode,
    timeout_ms: u32,
    flags: u32,
}

impl TagSetBuilder {
    /// Returns a builder of `nr_hw_queues` hardware queues of `queue_depth` requests each, with
    /// memory from any node.
    pub(crate) fn new(nr_hw_queues: u32, queue_depth: u32) -> Self {
        Self {
            nr_hw_queues,
            poll_queues: 0,
            queue_depth,
            numa_node: NumaNode::NO_NODE,
            timeout_ms: 0,
            flags: 0,
        }
    }

    /// Sets the number of hardware queues for I/O that is polled for ([`Operations::poll`]). They
    /// come behind the others.
    pub(crate) fn poll_queues(mut self, poll_queues: u32) -> Self {
        self.poll_queues = poll_queues;
        self
    }

    /// Sets the node that memory is from.
    pub(crate) fn numa_node(mut self, numa_node: NumaNode) -> Self {
        self.numa_node = numa_node;
        self
    }

    /// Sets after what time a request is late, see [`Operations::timeout`]; 0 for 30 s.
    pub(crate) fn timeout_ms(mut self, timeout_ms: u32) -> Self {
        self.timeout_ms = timeout_ms;
        self
    }

    /// Lets disks begin without an I/O scheduler.
    pub(crate) fn no_sched_by_default(mut self) -> Self {
        self.flags |= bindings::BLK_MQ_F_NO_SCHED_BY_DEFAULT;
        self
    }

    /// Makes the tag set.
    ///
    /// There may be fewer queues than requested: no more than CPUs if none is polled, and in a
    /// crash kernel only one, which is not polled. There may be fewer requests if memory is short.
    /// Fails with `EINVAL` if all queues are polled, if some are but the driver has no
    /// [`Operations::poll`], or if there is no such node, and with `ENOMEM`. May sleep.
    pub(crate) fn build<T: Operations>(self) -> impl PinInit<TagSet<T>, Error> {
        let Self {
            nr_hw_queues,
            poll_queues,
            queue_depth,
            numa_node,
            timeout_ms,
            flags,
        } = self;
        // INVARIANT: By the C function's success.
        try_pin_init!(TagSet {
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::blk_mq_tag_set| {
                if poll_queues > 0 && !T::HAS_POLL {
                    return Err(EINVAL);
                }
                // Allocators index arrays by the node without checking it.
                if nr_hw_queues == 0 || !numa_node.is_online() {
                    return Err(EINVAL);
                }
                let tag_set = bindings::blk_mq_tag_set {
                    ops: OperationsVTable::<T>::build(),
                    nr_hw_queues: nr_hw_queues.checked_add(poll_queues).ok_or(EINVAL)?,
                    queue_depth,
                    numa_node: numa_node.as_raw(),
                    timeout: u32::try_from(msecs_to_jiffies(timeout_ms))?,
                    cmd_size: u32::try_from(size_of::<Pdu<T>>())?,
                    // A disk of three maps lets its I/O be polled for.
                    nr_maps: match poll_queues {
                        0 => 1,
                        _ => bindings::hctx_type_HCTX_MAX_TYPES,
                    },
                    driver_data: core::ptr::without_provenance_mut(poll_queues as usize),
                    flags,
                    ..pin_init::zeroed()
                };
                // SAFETY: `slot` is valid for writes, as `try_ffi_init` promises.
                unsafe { slot.write(tag_set) };
                // SAFETY: It is filled in, and stays where it is.
                to_result(unsafe { bindings::blk_mq_alloc_tag_set(slot) })
            }),
            _p: PhantomData,
        }? Error)
    }
}

/// What [`TagSet::in_flight`] counts.
struct Count {
    queue: *mut bindings::request_queue,
    requests: usize,
}

/// The hardware queues and their requests, shared by the disks of one device; C's
/// `struct blk_mq_tag_set`. A [`TagSetBuilder`] makes it.
///
/// Dropping it may sleep.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{DiskNames, GenDisk, GenDiskBuilder, Operations, TagSet};
/// # use kernel::{prelude::*, sync::Arc};
/// /// Adds another disk of the same device: its disks share the hardware queues and requests.
/// fn add<T: Operations>(
///     names: &Arc<DiskNames>,
///     tag_set: &Arc<TagSet<T>>,
///     data: T::QueueData,
/// ) -> Result<GenDisk<T>> {
///     GenDiskBuilder::new()
///         .capacity_sectors((1 << 30) / 512)
///         .build_numbered(names.clone(), tag_set.clone(), data)
/// }
/// ```
///
/// # Invariants
///
/// `inner` went through `blk_mq_alloc_tag_set` with success, for requests of `T`.
#[pin_data(PinnedDrop)]
pub(crate) struct TagSet<T: Operations> {
    #[pin]
    inner: Opaque<bindings::blk_mq_tag_set>,
    _p: PhantomData<T>,
}

// SAFETY: C locks what changes after `blk_mq_alloc_tag_set`; the `RequestData` that it holds is
// `Send`.
unsafe impl<T: Operations> Send for TagSet<T> {}
// SAFETY: As above; no reference to `RequestData` can be had from it.
unsafe impl<T: Operations> Sync for TagSet<T> {}

impl<T: Operations> TagSet<T> {
    /// Returns the number of requests of this queue that are started and have not ended, which may
    /// be out of date at once. May sleep.
    pub(super) fn in_flight(&self, queue: *mut bindings::request_queue) -> usize {
        let mut count = Count { queue, requests: 0 };
        // SAFETY: By the type invariants. The function is called for each started request, with
        // `count`, which outlives this call, and by this thread alone.
        unsafe {
            bindings::blk_mq_tagset_busy_iter(
                self.as_raw(),
                Some(Self::count_callback),
                (&raw mut count).cast(),
            );
        }
        count.requests
    }

    /// # Safety
    ///
    /// `count` points to a [`Count`] that nobody else uses during this call; `rq` is valid.
    unsafe extern "C" fn count_callback(rq: *mut bindings::request, count: *mut c_void) -> bool {
        // SAFETY: By the safety requirements.
        let (count, queue) = unsafe { (&mut *count.cast::<Count>(), (*rq).q) };
        if queue == count.queue {
            count.requests = count.requests.wrapping_add(1);
        }
        true
    }

    /// Returns the C tag set, which is valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::blk_mq_tag_set {
        self.inner.get()
    }
}

#[pinned_drop]
impl<T: Operations> PinnedDrop for TagSet<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants. Every disk that was added holds a reference until its
        // requests are over, so that no queue uses it.
        unsafe { bindings::blk_mq_free_tag_set(self.inner.get()) };
    }
}
