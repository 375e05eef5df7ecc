// SPDX-License-Identifier: GPL-2.0

//! Atomic operations on a peer's memory: on what, which one, and where its result goes.
//!
//! An atomic operation reads 8 bytes of the peer's memory, writes them anew, and returns what they
//! were. The peer's device does that; [`Device::atomics`](crate::rdma::device::Device::atomics) of
//! the *peer* says which other accesses cannot come in between. Plain RDMA READs and RDMA WRITEs
//! can: to read such a number, add 0 to it.
//!
//! # Byte order
//!
//! The operands and the result are numbers in the byte order of the CPU, and the memory has the
//! number in that of the peer's CPU: the devices convert, as the message has it in network order.
//! A device that would return results in network order has no such operations, as far as it says.
//! So hosts of different byte orders see the same number, but not the same bytes.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::{
    device::Device,
    dma::DmaBuffer,
    wr::RemoteRange, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic, //
    }, //
};

/// The bytes that an atomic operation reads and writes, and those of its result.
const LEN: usize = 8;

/// The 8 bytes of a peer's memory that an atomic operation is for.
///
/// A peer tells the address and the key as numbers, so that what they are is only seen when this is
/// made or used. [`Self::new`] checks that the address is a multiple of 8. Whether the key is that
/// of a region with [`Mr::with_atomics`](crate::rdma::mr::Mr::with_atomics) only the peer's device
/// knows: the operation fails with
/// [`WcStatus::REM_ACCESS_ERR`](crate::rdma::wc::WcStatus::REM_ACCESS_ERR) if not.
///
/// # Examples
///
/// ```
/// # use crate::rdma::wr::{atomic::RemoteAtomic, RemoteRange};
/// # use kernel::prelude::*;
/// # fn example(table: RemoteRange, index: u64) -> Result<RemoteAtomic> {
/// // The number at `index` of the peer's table; fails if that is not where a number can be.
/// let addr = table.addr.checked_add(8 * index).ok_or(EINVAL)?;
/// RemoteAtomic::new(RemoteRange { addr, ..table })
/// # }
/// ```
///
/// # Invariants
///
/// The address is a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAtomic(RemoteRange);

impl RemoteAtomic {
    /// Returns the 8 bytes at `range`. Fails with `EINVAL` if the address is no multiple of 8.
    pub(crate) fn new(range: RemoteRange) -> Result<Self> {
        // CAST: A small number.
        match range.addr % LEN as u64 {
            // INVARIANT: It was checked.
            0 => Ok(Self(range)),
            _ => Err(EINVAL),
        }
    }

    /// Returns where they are.
    #[inline]
    pub(in crate::rdma) fn range(&self) -> RemoteRange {
        self.0
    }
}

/// An atomic operation.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     qp::{Qp, QpHandler},
/// #     wr::atomic::{AtomicOp, AtomicResult, RemoteAtomic},
/// # };
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler<Send = AtomicResult>>(
/// #     qp: &Qp<H>,
/// #     (lock, counter): (RemoteAtomic, RemoteAtomic),
/// #     (first, second): (AtomicResult, AtomicResult),
/// #     me: u64,
/// # ) -> Result {
/// // Takes a lock that is 0 if nobody holds it: it is ours if the result is 0.
/// let take = AtomicOp::CompareSwap { compare: 0, swap: me };
/// qp.atomic(0, take, lock, first, false).map_err(|(error, _)| error)?;
/// // Reads a counter, as plain RDMA READs and atomic operations do not exclude each other.
/// let read = AtomicOp::FetchAdd(0);
/// qp.atomic(1, read, counter, second, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    /// Stores `swap` if the number is `compare`.
    CompareSwap {
        /// What the number must be.
        compare: u64,
        /// What it is then.
        swap: u64,
    },
    /// Adds to the number, modulo 2^64.
    FetchAdd(u64),
    /// Stores the bits of `swap` that are set in `swap_mask` if those of the number that are set in
    /// `compare_mask` are those of `compare`.
    ///
    /// Needs [`Device::masked_atomics`](crate::rdma::device::Device::masked_atomics).
    MaskedCompareSwap {
        /// What the number must be.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What it is then.
        swap: u64,
        /// The bits that are stored.
        swap_mask: u64,
    },
    /// Adds several numbers to as many fields. Each bit that is set in `highest` is the highest one
    /// of a field, out of which nothing is carried.
    ///
    /// Needs [`Device::masked_atomics`](crate::rdma::device::Device::masked_atomics).
    MaskedFetchAdd {
        /// What is added to each field.
        add: u64,
        /// The highest bit of each field.
        highest: u64,
    },
}

impl AtomicOp {
    /// Returns true if the device needs [`Device::masked_atomics`] for it.
    pub(in crate::rdma) fn is_masked(&self) -> bool {
        matches!(
            self,
            Self::MaskedCompareSwap { .. } | Self::MaskedFetchAdd { .. }
        )
    }

    /// Returns the operation of the work request that does this, and the one as which it completes.
    pub(in crate::rdma) fn opcodes(&self) -> (bindings::ib_wr_opcode, bindings::ib_wc_opcode) {
        match self {
            Self::CompareSwap { .. } => (
                bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
                bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
            ),
            Self::FetchAdd(_) => (
                bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
                bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
            ),
            Self::MaskedCompareSwap { .. } => (
                bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_CMP_AND_SWP,
                bindings::ib_wc_opcode_IB_WC_MASKED_COMP_SWAP,
            ),
            Self::MaskedFetchAdd { .. } => (
                bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_FETCH_AND_ADD,
                bindings::ib_wc_opcode_IB_WC_MASKED_FETCH_ADD,
            ),
        }
    }

    /// Returns the work request that does this at `remote`, but for what all have in common, which
    /// is that of `wr`.
    pub(in crate::rdma) fn wr(
        &self,
        remote: RemoteAtomic,
        wr: bindings::ib_send_wr,
    ) -> bindings::ib_atomic_wr {
        let RemoteRange { addr, rkey } = remote.range();
        let this = bindings::ib_atomic_wr {
            wr,
            remote_addr: addr,
            rkey,
            ..pin_init::zeroed()
        };
        match *self {
            Self::CompareSwap { compare, swap } => bindings::ib_atomic_wr {
                compare_add: compare,
                swap,
                ..this
            },
            Self::FetchAdd(add) => bindings::ib_atomic_wr {
                compare_add: add,
                ..this
            },
            Self::MaskedCompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => bindings::ib_atomic_wr {
                compare_add: compare,
                compare_add_mask: compare_mask,
                swap,
                swap_mask,
                ..this
            },
            Self::MaskedFetchAdd { add, highest } => bindings::ib_atomic_wr {
                compare_add: add,
                compare_add_mask: highest,
                ..this
            },
        }
    }
}

/// Room for the result of an atomic operation: what the number was before.
///
/// The result of an operation can be read once that has succeeded, and only then: before, and after
/// an error, there is none, whatever the device has written.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     device::Device,
/// #     dma::{Direction, DmaBuffer},
/// #     wr::atomic::AtomicResult,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result<AtomicResult> {
/// let result = AtomicResult::new(DmaBuffer::alloc(device, 8, Direction::FromDevice)?)?;
/// // Nothing was posted with it yet.
/// assert!(result.value().is_none());
/// # Ok(result)
/// # }
/// ```
///
/// # Invariants
///
/// - `buffer` has 8 bytes at a multiple of 8, which its device may write.
/// - `succeeded` is 1 only if the last operation that was to be posted with this room has
///   succeeded, so that the bytes are its result.
pub(crate) struct AtomicResult {
    buffer: DmaBuffer,
    succeeded: Atomic<u32>,
}

impl AtomicResult {
    /// Makes room of the first 8 bytes of `buffer`; the rest is not used. Fails with `EINVAL` if it
    /// has fewer, if they are not at a multiple of 8, or if the device may not write them.
    pub(crate) fn new(mut buffer: DmaBuffer) -> Result<Self> {
        buffer.truncate(LEN)?;
        // CAST: A small number.
        if buffer.addr() % LEN as u64 != 0 || !buffer.direction().device_writes() {
            return Err(EINVAL);
        }
        // INVARIANT: It was checked. Nothing was posted.
        Ok(Self {
            buffer,
            succeeded: Atomic::new(0),
        })
    }

    /// Returns the result of the last operation that was to be posted with this room; `None` if it
    /// has failed, was refused, or if there was none.
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn value(&self) -> Option<u64> {
        if self.succeeded.load(Acquire) == 0 {
            return None;
        }
        self.buffer.sync_for_cpu();
        let mut bytes = [0; LEN];
        self.buffer.copy_out(0, &mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Forgets the result, as another operation is to be posted with this room.
    #[inline]
    pub(in crate::rdma) fn clear(&mut self) {
        // INVARIANT: The result of an older operation is none of the next.
        self.succeeded = Atomic::new(0);
    }

    /// Prepares for another operation of `device`, after [`Self::clear`]: returns the segment of
    /// the result, and the flag to be set to 1 when the operation has succeeded, which is valid as
    /// long as `self`. Fails with `EINVAL` if the room is another device's.
    pub(in crate::rdma) fn prepare(
        &mut self,
        device: &Device,
        lkey: u32,
    ) -> Result<(bindings::ib_sge, &Atomic<u32>)> {
        if !self.buffer.is_for(device) {
            return Err(EINVAL);
        }
        self.buffer.sync_for_device();
        let sge = bindings::ib_sge {
            addr: self.buffer.addr(),
            // CAST: A small number.
            length: LEN as u32,
            lkey,
        };
        Ok((sge, &self.succeeded))
    }
}
