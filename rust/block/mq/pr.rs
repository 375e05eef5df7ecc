// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations of a disk: its `pr_ops`, as requests of the driver.
//!
//! C header: [`include/linux/pr.h`](srctree/include/linux/pr.h)
//!
//! A task that calls one of them waits for its request as for any I/O. There is one change at a
//! time of each disk, so that the driver may send a change again, with its token, without another
//! one in between.

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use crate::block::{
    mq::{
        gen_disk::DiskData,
        operations::Operations,
        request::Pdu, //
    },
    status::from_blk_status,
    BlkError, //
};
use core::marker::PhantomData;
use kernel::{
    error::{
        from_err_ptr,
        to_result,
        Error, //
    },
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*, //
};

/// A macro with a shift, which bindgen does not take.
const PR_FL_IGNORE_KEY: u32 = 1 << 0;

/// The most keys of a [`PrReport`].
pub(crate) const PR_KEYS_MAX: usize = 32;

/// A change of the persistent reservation. `kind` is an `enum pr_type`.
///
/// # Examples
///
/// ```
/// # use crate::block::{mq::PrChange, BlkError, BlkResult};
/// /// Changes the one key that a device keeps.
/// fn change(key: &mut u64, change: PrChange) -> BlkResult {
///     match change {
///         PrChange::Register { old, new, ignore_old } if ignore_old || old == *key => {
///             *key = new;
///             Ok(())
///         }
///         PrChange::Register { .. } => Err(BlkError::ReservationConflict),
///         _ => Err(BlkError::NotSupported),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrChange {
    /// There is none: the request is another one.
    None,
    /// Registers a key.
    Register {
        /// The key that is registered now.
        old: u64,
        /// The key to register; 0 for none.
        new: u64,
        /// The old key does not matter.
        ignore_old: bool,
    },
    /// Reserves the disk.
    Reserve {
        /// The own key.
        key: u64,
        /// The type.
        kind: u32,
    },
    /// Gives the reservation back.
    Release {
        /// The own key.
        key: u64,
        /// The type.
        kind: u32,
    },
    /// Removes another key, and takes its reservation over.
    Preempt {
        /// The own key.
        key: u64,
        /// The other key.
        victim: u64,
        /// The type.
        kind: u32,
        /// What the other key has sent must have ended when this ends.
        abort: bool,
    },
    /// Removes all keys and the reservation.
    Clear {
        /// The own key.
        key: u64,
    },
}

/// A persistent reservation, and who has registered.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{PrReport, PR_KEYS_MAX};
/// /// Returns what a device reports that keeps one key: how often that has changed, and the key.
/// fn parse(bytes: &[u8]) -> Option<PrReport> {
///     let (generation, key) = bytes.split_first_chunk()?;
///     let mut keys = [0; PR_KEYS_MAX];
///     keys[0] = u64::from_le_bytes(key.try_into().ok()?);
///     Some(PrReport {
///         generation: u32::from_le_bytes(*generation),
///         reservation: None,
///         keys,
///         count: 1,
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrReport {
    /// How often the registrations have changed.
    pub(crate) generation: u32,
    /// The key of the holder and the type of the reservation.
    pub(crate) reservation: Option<(u64, u32)>,
    /// The keys of the registrants.
    pub(crate) keys: [u64; PR_KEYS_MAX],
    /// The number of registrants, at most [`PR_KEYS_MAX`].
    pub(crate) count: usize,
}

/// The result of an operation: C wants conflicts as the status of SCSI, and else an error.
fn to_c(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) if error == Error::from(BlkError::ReservationConflict) => {
            // CAST: A small number.
            bindings::pr_status_PR_STS_RESERVATION_CONFLICT as c_int
        }
        Err(error) => error.to_errno(),
    }
}

/// C's table of the operations.
pub(super) struct PrVTable<T: Operations>(PhantomData<T>);

impl<T: Operations> PrVTable<T> {
    /// # Safety
    ///
    /// `bdev` is the block device of a disk that `GenDiskBuilder::build_numbered` added, or of a
    /// partition of it, and is open.
    unsafe fn change(bdev: *mut bindings::block_device, change: PrChange) -> c_int {
        // SAFETY: By the safety requirements; the data lives until `free_disk`.
        let (queue, data) = unsafe {
            let disk = (*bdev).bd_disk;
            ((*disk).queue, &*(*disk).private_data.cast::<DiskData<T>>())
        };
        let mut token = data.pr_token().lock();
        *token = token.wrapping_add(1);
        // SAFETY: An open disk has a queue.
        let rq =
            unsafe { bindings::blk_mq_alloc_request(queue, bindings::req_op_REQ_OP_DRV_OUT, 0) };
        to_c(from_err_ptr(rq).and_then(|rq| {
            // SAFETY: The request is new and ours, and has a PDU. It is freed once, after it has
            // ended.
            let status = unsafe {
                Pdu::<T>::set_pr(rq, change, *token);
                let status = bindings::blk_execute_rq(rq, false);
                bindings::blk_mq_free_request(rq);
                status
            };
            from_blk_status(status).map_err(Error::from)
        }))
    }

    /// # Safety
    ///
    /// As for [`Self::change`].
    unsafe fn report(bdev: *mut bindings::block_device) -> Result<PrReport> {
        // SAFETY: By the safety requirements; an open disk has a queue.
        let queue = unsafe { (*(*bdev).bd_disk).queue };
        let mut bytes = KVec::from_elem(0_u8, T::PR_REPORT_SIZE, GFP_KERNEL)?;
        // CAST: It is small.
        let len = T::PR_REPORT_SIZE as u32;
        // SAFETY: As above. The request is new and ours; it is freed once, when it has ended or
        // before it was executed. The memory stays until then: it is not used after the request
        // has ended, which unmaps it, and has the size that is said.
        let status = unsafe {
            let rq = bindings::blk_mq_alloc_request(queue, bindings::req_op_REQ_OP_DRV_IN, 0);
            let rq = from_err_ptr(rq)?;
            let memory = bytes.as_mut_ptr().cast::<c_void>();
            let mapped = bindings::blk_rq_map_kern(rq, memory, len, bindings::GFP_KERNEL);
            if let Err(error) = to_result(mapped) {
                bindings::blk_mq_free_request(rq);
                return Err(error);
            }
            let status = bindings::blk_execute_rq(rq, false);
            bindings::blk_mq_free_request(rq);
            status
        };
        from_blk_status(status)?;
        T::parse_pr_report(&bytes)
            .filter(|report| report.count <= PR_KEYS_MAX)
            .ok_or(EIO)
    }

    /// # Safety
    ///
    /// Called by the block layer only, for an open device of `GenDiskBuilder::build_numbered`'s. It
    /// may sleep.
    unsafe extern "C" fn register(
        bdev: *mut bindings::block_device,
        old: u64,
        new: u64,
        flags: u32,
    ) -> c_int {
        let change = PrChange::Register {
            old,
            new,
            ignore_old: flags & PR_FL_IGNORE_KEY != 0,
        };
        // SAFETY: By the safety requirements.
        unsafe { Self::change(bdev, change) }
    }

    /// # Safety
    ///
    /// As for [`Self::register`].
    unsafe extern "C" fn reserve(
        bdev: *mut bindings::block_device,
        key: u64,
        kind: bindings::pr_type,
        flags: u32,
    ) -> c_int {
        if flags != 0 {
            return EOPNOTSUPP.to_errno();
        }
        // SAFETY: By the safety requirements.
        unsafe { Self::change(bdev, PrChange::Reserve { key, kind }) }
    }

    /// # Safety
    ///
    /// As for [`Self::register`].
    unsafe extern "C" fn release(
        bdev: *mut bindings::block_device,
        key: u64,
        kind: bindings::pr_type,
    ) -> c_int {
        // SAFETY: By the safety requirements.
        unsafe { Self::change(bdev, PrChange::Release { key, kind }) }
    }

    /// # Safety
    ///
    /// As for [`Self::register`].
    unsafe extern "C" fn preempt(
        bdev: *mut bindings::block_device,
        old: u64,
        new: u64,
        kind: bindings::pr_type,
        abort: bool,
    ) -> c_int {
        let change = PrChange::Preempt {
            key: old,
            victim: new,
            kind,
            abort,
        };
        // SAFETY: By the safety requirements.
        unsafe { Self::change(bdev, change) }
    }

    /// # Safety
    ///
    /// As for [`Self::register`].
    unsafe extern "C" fn clear(bdev: *mut bindings::block_device, key: u64) -> c_int {
        // SAFETY: By the safety requirements.
        unsafe { Self::change(bdev, PrChange::Clear { key }) }
    }

    /// # Safety
    ///
    /// As for [`Self::register`]; `info` has room for as many keys as it says.
    unsafe extern "C" fn read_keys(
        bdev: *mut bindings::block_device,
        info: *mut bindings::pr_keys,
    ) -> c_int {
        // SAFETY: By the safety requirements.
        match unsafe { Self::report(bdev) } {
            Ok(report) => {
                // SAFETY: By the safety requirements; no more keys are written than there is room
                // for. The keys are aligned as the struct is.
                unsafe {
                    let room = (*info).num_keys as usize;
                    let keys = (&raw mut (*info).keys).cast::<u64>();
                    let known = report.keys.iter().take(report.count);
                    for (index, key) in known.take(room).enumerate() {
                        keys.add(index).write(*key);
                    }
                    (*info).generation = report.generation;
                    // CAST: At most 32.
                    (*info).num_keys = report.count as u32;
                }
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    /// # Safety
    ///
    /// As for [`Self::register`]; `held` is valid for writes.
    unsafe extern "C" fn read_reservation(
        bdev: *mut bindings::block_device,
        held: *mut bindings::pr_held_reservation,
    ) -> c_int {
        // SAFETY: By the safety requirements.
        match unsafe { Self::report(bdev) } {
            Ok(report) => {
                let (key, kind) = report.reservation.unwrap_or((0, 0));
                // SAFETY: By the safety requirements.
                unsafe {
                    (*held).key = key;
                    (*held).generation = report.generation;
                    (*held).type_ = kind;
                }
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    const VTABLE: bindings::pr_ops = bindings::pr_ops {
        pr_register: Some(Self::register),
        pr_reserve: Some(Self::reserve),
        pr_release: Some(Self::release),
        pr_preempt: Some(Self::preempt),
        pr_clear: Some(Self::clear),
        pr_read_keys: Some(Self::read_keys),
        pr_read_reservation: Some(Self::read_reservation),
    };

    /// Returns the table of a driver that has persistent reservations; otherwise null.
    pub(super) const fn build() -> *const bindings::pr_ops {
        match T::PR_REPORT_SIZE {
            0 => core::ptr::null(),
            _ => &Self::VTABLE,
        }
    }
}
