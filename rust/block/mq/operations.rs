// SPDX-License-Identifier: GPL-2.0

//! The operations of a driver of a multi-queue block device.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use super::pr::PrReport;
use super::request::{
    IdleRequest,
    Owned,
    Pdu,
    Refused, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    types::ForeignOwnable, //
};

/// The borrowed form of data that C owns, which a callback gets: of an `Arc`, an `ArcBorrow`.
pub(crate) type Borrowed<'a, T> = <T as ForeignOwnable>::Borrowed<'a>;

/// The driver of a block device; C's `struct blk_mq_ops`.
///
/// Unless it says otherwise, a callback must not sleep.
///
/// # Examples
///
/// ```
/// # use crate::block::{
/// #     mq::{Command, IdleRequest, Operations, Owned, Refused},
/// #     BlkError,
/// # };
/// # use kernel::prelude::*;
/// /// A disk that keeps nothing, and has nothing.
/// struct Null;
///
/// #[vtable]
/// impl Operations for Null {
///     type QueueData = ();
///     type HwData = ();
///     type RequestData = ();
///
///     fn new_request_data() -> impl PinInit<(), Error> {
///         Ok::<(), Error>(())
///     }
///
///     fn init_hctx(_data: (), _index: u32) -> Result {
///         Ok(())
///     }
///
///     fn queue_rq(
///         _hw: (),
///         _data: (),
///         rq: Owned<IdleRequest<Self>>,
///         _last: bool,
///     ) -> Result<(), Refused<Self>> {
///         let rq = rq.start();
///         let result = match rq.command() {
///             Command::Write | Command::Flush => Ok(()),
///             _ => Err(BlkError::NotSupported),
///         };
///         rq.complete(result);
///         Ok(())
///     }
///
///     fn commit_rqs(_hw: (), _data: ()) {}
/// }
/// ```
#[vtable]
pub(crate) trait Operations: Sized + 'static {
    /// The data of a disk; C's `queuedata`. Dropped, in a context that may sleep, when the last
    /// reference to the disk goes, which may be long after its [`GenDisk`] is dropped.
    ///
    /// [`GenDisk`]: super::GenDisk
    type QueueData: ForeignOwnable + Send + Sync + 'static;

    /// The data of a hardware queue of a disk; C's `driver_data`. Dropped with the [`GenDisk`],
    /// after the last request, in a context that may sleep.
    ///
    /// [`GenDisk`]: super::GenDisk
    type HwData: ForeignOwnable + Send + Sync + 'static;

    /// The driver's part of each request. It is placed behind C's `struct request` and lives from
    /// one use of the request to the next; dropped in a context that may sleep.
    type RequestData: Send + 'static;

    /// Makes the driver's part of a request. Called for every request when the tag set, a disk or
    /// an I/O scheduler comes up. May sleep, but must not start I/O to get memory (`GFP_NOIO`).
    fn new_request_data() -> impl PinInit<Self::RequestData, Error>;

    /// Makes the data of hardware queue `index` of a disk: those from the `nr_hw_queues` of
    /// [`TagSetBuilder::new`] on are polled. May sleep, but must not start I/O to get memory
    /// (`GFP_NOIO`).
    ///
    /// [`TagSetBuilder::new`]: super::TagSetBuilder::new
    fn init_hctx(data: Borrowed<'_, Self::QueueData>, index: u32) -> Result<Self::HwData>;

    /// Takes a request, and ends it now or later.
    ///
    /// With `last == false` more requests follow at once for the same hardware queue, so that the
    /// driver may delay notifying the hardware: a call with `last == true`, or of
    /// [`Operations::commit_rqs`], follows. [`Refused`] describes the errors.
    fn queue_rq(
        hw: Borrowed<'_, Self::HwData>,
        data: Borrowed<'_, Self::QueueData>,
        rq: Owned<IdleRequest<Self>>,
        last: bool,
    ) -> core::result::Result<(), Refused<Self>>;

    /// The number of bytes that [`Command::Report`] reads; 0 if the driver has no persistent
    /// reservations.
    ///
    /// [`Command::Report`]: super::Command::Report
    const PR_REPORT_SIZE: usize = 0;

    /// Returns what [`Command::Report`] has read; `None` if it makes no sense, for which, as for a
    /// count above [`PR_KEYS_MAX`], the caller gets `EIO`. May sleep.
    ///
    /// [`Command::Report`]: super::Command::Report
    /// [`PR_KEYS_MAX`]: super::PR_KEYS_MAX
    fn parse_pr_report(_bytes: &[u8]) -> Option<PrReport> {
        None
    }

    /// Notifies the hardware of what [`Operations::queue_rq`] has taken so far: a request that was
    /// announced to follow does not.
    fn commit_rqs(hw: Borrowed<'_, Self::HwData>, data: Borrowed<'_, Self::QueueData>);

    /// The request with this tag has been in flight on this hardware queue for longer than the
    /// timeout of the tag set.
    ///
    /// The request may end while this runs, and in theory its tag be used again: a driver must be
    /// fine with acting on a request that is not late. May sleep, but not until I/O of the same
    /// disk ends.
    ///
    /// Without this method the timer of a request that is late starts anew.
    fn timeout(
        _hw: Borrowed<'_, Self::HwData>,
        _data: Borrowed<'_, Self::QueueData>,
        _tag: u16,
    ) -> Timeout {
        build_error!("a driver without this has no such callback")
    }

    /// Ends the requests of a polled hardware queue that are done, and returns how many these were.
    ///
    /// Called by tasks that wait for a request of that queue ([`Request::polled`]), over and over
    /// until the request has ended, and maybe by several at once. Nothing else needs to end it.
    ///
    /// [`Request::polled`]: super::Request::polled
    fn poll(_hw: Borrowed<'_, Self::HwData>, _data: Borrowed<'_, Self::QueueData>) -> u32 {
        build_error!("a driver without this has no such callback")
    }

    /// The last opener has closed the disk: neither the whole of it nor a partition is open, which
    /// includes mounts, swap and devices that are stacked on it. The page cache of the last opener
    /// was written before, but no flush was sent.
    ///
    /// # Context
    ///
    /// A task. The disk's `open_mutex` is held, so that the disk is not opened meanwhile. May
    /// sleep, but must neither open, close nor remove a disk, nor wait for a task that does. May be
    /// called after the [`GenDisk`](super::GenDisk) is gone.
    fn last_close(_data: Borrowed<'_, Self::QueueData>) {}
}

/// What blk-mq does with the timer of a request that is late; C's `enum blk_eh_timer_return`.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::Timeout;
/// /// What `Operations::timeout` may do that asks the hardware whether it has the request.
/// fn timeout(hardware_has_it: bool, fail: impl FnOnce()) -> Timeout {
///     if hardware_has_it {
///         return Timeout::Reset;
///     }
///     fail();
///     Timeout::Done
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// The timer starts anew, unless the request has ended.
    Reset,
    /// The timer is not started any more: the driver has ended the request, or is about to.
    Done,
}

/// C's table of the callbacks of `T`.
pub(super) struct OperationsVTable<T: Operations>(PhantomData<T>);

impl<T: Operations> OperationsVTable<T> {
    /// The data of a hardware queue, and that of its disk.
    ///
    /// # Safety
    ///
    /// `hctx` has gone through [`Self::init_hctx_callback`], and does not go through
    /// [`Self::exit_hctx_callback`] within `'a`.
    #[inline(always)]
    unsafe fn borrow<'a>(
        hctx: *mut bindings::blk_mq_hw_ctx,
    ) -> (Borrowed<'a, T::HwData>, Borrowed<'a, T::QueueData>) {
        // SAFETY: By the safety requirements, `hctx` is valid, and so is its queue.
        let (hw, data) = unsafe { ((*hctx).driver_data, (*(*hctx).queue).queuedata) };
        // SAFETY: `init_hctx_callback` got `hw` from `into_foreign`, and only `exit_hctx_callback`
        // takes it back. `GenDiskBuilder::build_numbered` got `data` from `into_foreign`; it is
        // taken back when the disk is freed, which is after `exit_hctx_callback`.
        unsafe { (T::HwData::borrow(hw), T::QueueData::borrow(data)) }
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `hctx` is set up, and `(*bd).rq` has gone through
    /// [`Self::init_request_callback`], is idle, and is the driver's until it ends.
    unsafe extern "C" fn queue_rq_callback(
        hctx: *mut bindings::blk_mq_hw_ctx,
        bd: *const bindings::blk_mq_queue_data,
    ) -> bindings::blk_status_t {
        // SAFETY: By the safety requirements, `bd` is valid for this call.
        let (rq, last) = unsafe { ((*bd).rq, (*bd).last) };
        // SAFETY: By the safety requirements, the queue is set up; blk-mq tears it down only when
        // no request is left.
        let (hw, data) = unsafe { Self::borrow(hctx) };
        // SAFETY: By the safety requirements.
        let (rq, turn) = unsafe { IdleRequest::<T>::receive(rq) };

        match T::queue_rq(hw, data, rq, last) {
            Ok(()) => bindings::BLK_STS_OK as bindings::blk_status_t,
            Err(refused) => refused.hand_back(turn),
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `hctx` is set up.
    unsafe extern "C" fn commit_rqs_callback(hctx: *mut bindings::blk_mq_hw_ctx) {
        // SAFETY: By the safety requirements; blk-mq tears the queue down only when no more
        // requests are dispatched.
        let (hw, data) = unsafe { Self::borrow(hctx) };
        T::commit_rqs(hw, data);
    }

    /// # Safety
    ///
    /// Called by blk-mq only, in softirq: `rq` was given to it by [`Owned::complete`].
    unsafe extern "C" fn complete_callback(rq: *mut bindings::request) {
        // SAFETY: By the safety requirements, `rq` has been through `Self::init_request_callback`,
        // and `Owned::complete` passed the exclusive right to end it on to this call.
        unsafe { Pdu::<T>::end(rq) };
    }

    /// # Safety
    ///
    /// Called by blk-mq only, from a worker: a reference to `rq` is held, so that it is not freed
    /// within this call even if it ends.
    unsafe extern "C" fn timeout_callback(
        rq: *mut bindings::request,
    ) -> bindings::blk_eh_timer_return {
        // SAFETY: `rq` is valid. Its hardware queue is set until it is freed. The tag can go away
        // at any time if `queue_rq` refuses the request just now, thus the volatile read.
        let (hctx, tag) = unsafe { ((*rq).mq_hctx, (&raw const (*rq).tag).read_volatile()) };
        let timeout = match u16::try_from(tag) {
            Ok(tag) => {
                // SAFETY: The request is of this queue, which blk-mq tears down only when it has no
                // requests and the timeout work is cancelled.
                let (hw, data) = unsafe { Self::borrow(hctx) };
                T::timeout(hw, data, tag)
            }
            Err(_) => Timeout::Reset,
        };
        // SAFETY: `rq` is valid.
        let state = unsafe { (&raw const (*rq).state).read_volatile() };
        if timeout == Timeout::Reset && state == bindings::mq_rq_state_MQ_RQ_IN_FLIGHT {
            bindings::blk_eh_timer_return_BLK_EH_RESET_TIMER
        } else {
            bindings::blk_eh_timer_return_BLK_EH_DONE
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `hctx` is set up.
    unsafe extern "C" fn poll_callback(
        hctx: *mut bindings::blk_mq_hw_ctx,
        _batch: *mut bindings::io_comp_batch,
    ) -> c_int {
        // SAFETY: By the safety requirements; a task that polls keeps the queue from being torn
        // down.
        let (hw, data) = unsafe { Self::borrow(hctx) };
        c_int::try_from(T::poll(hw, data)).unwrap_or(c_int::MAX)
    }

    /// Spreads the queues over the CPUs: those that are not polled, then those that are.
    ///
    /// # Safety
    ///
    /// Called by blk-mq only: `set` is one of `TagSetBuilder::build`, and has memory for its maps.
    unsafe extern "C" fn map_queues_callback(set: *mut bindings::blk_mq_tag_set) {
        // SAFETY: By the safety requirements.
        let set = unsafe { &mut *set };
        // In a crash kernel blk-mq takes less than it was given.
        let polled = match set.nr_maps {
            bindings::hctx_type_HCTX_MAX_TYPES => set.driver_data.addr() as c_uint,
            _ => 0,
        };
        let polled = polled.min(set.nr_hw_queues.saturating_sub(1));
        let not_polled = set.nr_hw_queues - polled;
        let maps = [
            (bindings::hctx_type_HCTX_TYPE_DEFAULT, 0, not_polled),
            // None of its own: reads use the queues of all else.
            (bindings::hctx_type_HCTX_TYPE_READ, 0, 0),
            (bindings::hctx_type_HCTX_TYPE_POLL, not_polled, polled),
        ];
        for (kind, queue_offset, nr_queues) in maps {
            let map = &mut set.map[kind as usize];
            map.queue_offset = queue_offset;
            map.nr_queues = nr_queues;
            if nr_queues > 0 {
                // SAFETY: By the safety requirements, the map has memory: only one of more than no
                // queues is used, and without polled ones there is only the first.
                unsafe { bindings::blk_mq_map_queues(map) };
            }
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `hctx` is allocated, and belongs to a queue that
    /// `GenDiskBuilder::build_numbered` makes.
    unsafe extern "C" fn init_hctx_callback(
        hctx: *mut bindings::blk_mq_hw_ctx,
        _tag_set_data: *mut c_void,
        index: c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the safety requirements; blk-mq sets the queue and its data up before.
            let data = unsafe { (*(*hctx).queue).queuedata };
            // SAFETY: `GenDiskBuilder::build_numbered` got it from `into_foreign`, and keeps it at
            // least until the disk is freed.
            let data = unsafe { T::QueueData::borrow(data) };
            let hw = T::init_hctx(data, index)?;
            // SAFETY: By the safety requirements; the field is the driver's.
            unsafe { (*hctx).driver_data = hw.into_foreign() };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `hctx` went through [`Self::init_hctx_callback`] with success, and
    /// has no more requests.
    unsafe extern "C" fn exit_hctx_callback(hctx: *mut bindings::blk_mq_hw_ctx, _index: c_uint) {
        // SAFETY: By the safety requirements.
        let hw = unsafe { core::mem::replace(&mut (*hctx).driver_data, core::ptr::null_mut()) };
        // SAFETY: `init_hctx_callback` got it from `into_foreign`; what borrowed it were callbacks
        // on behalf of requests, and those are over.
        drop(unsafe { T::HwData::from_foreign(hw) });
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `rq` is zeroed memory of a tag set made by `TagSetBuilder::build`.
    unsafe extern "C" fn init_request_callback(
        _set: *mut bindings::blk_mq_tag_set,
        rq: *mut bindings::request,
        _index: c_uint,
        _numa_node: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the safety requirements, there is room for a `Pdu<T>` behind `rq`, and
            // blk-mq does not move it.
            unsafe { Pdu::<T>::init(rq) }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by blk-mq only: `rq` went through [`Self::init_request_callback`] with success, and
    /// is not used again.
    unsafe extern "C" fn exit_request_callback(
        _set: *mut bindings::blk_mq_tag_set,
        rq: *mut bindings::request,
        _index: c_uint,
    ) {
        // SAFETY: By the safety requirements.
        unsafe { Pdu::<T>::drop_in_place(rq) };
    }

    const VTABLE: bindings::blk_mq_ops = bindings::blk_mq_ops {
        queue_rq: Some(Self::queue_rq_callback),
        commit_rqs: Some(Self::commit_rqs_callback),
        complete: Some(Self::complete_callback),
        timeout: if T::HAS_TIMEOUT {
            Some(Self::timeout_callback)
        } else {
            None
        },
        poll: if T::HAS_POLL {
            Some(Self::poll_callback)
        } else {
            None
        },
        map_queues: Some(Self::map_queues_callback),
        init_hctx: Some(Self::init_hctx_callback),
        exit_hctx: Some(Self::exit_hctx_callback),
        init_request: Some(Self::init_request_callback),
        exit_request: Some(Self::exit_request_callback),
        ..pin_init::zeroed()
    };

    /// The table.
    pub(super) const fn build() -> &'static bindings::blk_mq_ops {
        &Self::VTABLE
    }
}
