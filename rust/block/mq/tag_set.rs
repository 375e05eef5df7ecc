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
use crate::base::scatterlist::node_online;
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    time::msecs_to_jiffies,
    types::Opaque, //
};

/// The hardware queues and their requests, shared by the disks of one device; C's
/// `struct blk_mq_tag_set`.
///
/// Dropping it may sleep.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{Operations, TagSet};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<T: Operations>() -> Result {
/// // 4 hardware queues with interrupts and 2 that are polled, each of 128 requests, which are late
/// // after 30 seconds.
/// let tag_set = Arc::pin_init(TagSet::<T>::new(4, 2, 128, -1, 30_000), GFP_KERNEL)?;
/// # Ok(())
/// # }
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
    /// Makes `nr_hw_queues` hardware queues, and behind them `poll_queues` for I/O that is polled
    /// for ([`Operations::poll`]), of `queue_depth` requests each, with memory from `numa_node` (-1
    /// for any). A request that takes longer than `timeout_ms` (0 for 30 s) is reported to
    /// [`Operations::timeout`].
    ///
    /// There may be fewer queues than requested: no more than CPUs if none is polled, and in a
    /// crash kernel only one, which is not polled. There may be fewer requests if memory is short.
    /// Fails with `EINVAL` if all queues are polled or there is no such node, and with `ENOMEM`.
    /// May sleep.
    pub(crate) fn new(
        nr_hw_queues: u32,
        poll_queues: u32,
        queue_depth: u32,
        numa_node: i32,
        timeout_ms: u32,
    ) -> impl PinInit<Self, Error> {
        // INVARIANT: By the C function's success.
        try_pin_init!(Self {
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::blk_mq_tag_set| {
                // Allocators index arrays by the node without checking it.
                if nr_hw_queues == 0 || !node_online(numa_node) {
                    return Err(EINVAL);
                }
                let tag_set = bindings::blk_mq_tag_set {
                    ops: OperationsVTable::<T>::build(),
                    nr_hw_queues: nr_hw_queues.checked_add(poll_queues).ok_or(EINVAL)?,
                    queue_depth,
                    numa_node,
                    timeout: u32::try_from(msecs_to_jiffies(timeout_ms))?,
                    cmd_size: u32::try_from(size_of::<Pdu<T>>())?,
                    // A disk of three maps lets its I/O be polled for.
                    nr_maps: match poll_queues {
                        0 => 1,
                        _ => bindings::hctx_type_HCTX_MAX_TYPES,
                    },
                    driver_data: core::ptr::without_provenance_mut(poll_queues as usize),
                    // Queues are short and the device has its own idea of order.
                    flags: bindings::BLK_MQ_F_NO_SCHED_BY_DEFAULT,
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

    /// Returns the number of requests that are started and have not ended, which may be out of date
    /// at once. May sleep.
    pub(super) fn in_flight(&self) -> usize {
        let mut count = 0_usize;
        // SAFETY: By the type invariants. The function is called for each started request, with
        // `count`, which outlives this call, and by this thread alone.
        unsafe {
            bindings::blk_mq_tagset_busy_iter(
                self.as_raw(),
                Some(Self::count_callback),
                (&raw mut count).cast(),
            );
        }
        count
    }

    /// # Safety
    ///
    /// `count` points to a `usize` that nobody else uses during this call.
    unsafe extern "C" fn count_callback(_rq: *mut bindings::request, count: *mut c_void) -> bool {
        // SAFETY: By the safety requirements.
        let count = unsafe { &mut *count.cast::<usize>() };
        *count = count.wrapping_add(1);
        true
    }

    /// Returns the C tag set.
    pub(in crate::block) fn as_raw(&self) -> *mut bindings::blk_mq_tag_set {
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
