// SPDX-License-Identifier: GPL-2.0

//! The slots of a queue pair, and the functions that its completions call.

use super::{
    ulp::UlpSlot,
    Qp,
    QpHandler,
    Rc,
    Transport, //
};
use crate::{
    bindings,
    rdma::{
        dma::{
            Direction,
            DmaBuffer, //
        },
        quirks::Mark,
        wc::WcError, //
    }, //
};
use core::cell::UnsafeCell;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// Any work request for the send queue. All begin with an `ib_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Wr {
    pub(in crate::rdma) send: bindings::ib_send_wr,
    pub(in crate::rdma) rdma: bindings::ib_rdma_wr,
    pub(in crate::rdma) reg: bindings::ib_reg_wr,
}

/// The slot is free.
const FREE: u32 = 0;
/// A function has claimed it, to post or to give back.
const TAKEN: u32 = 1;
/// Its work requests are chained or posted.
const POSTED: u32 = 2;
/// Its owner was taken out of it by the ULP: it is not used again.
const LOST: u32 = 3;

/// The work requests that a slot has of its own: a registration or RDMA WRITE, and a send or RDMA
/// READ.
pub(super) const OWN_WRS: usize = 2;

/// The data of a slot's work requests, in addition to the owner.
///
/// # Invariants
///
/// - `sges` has room for the segments of one work request, or for `Qp::MAX_SEGMENTS` if `large` is
///   given, and for one more; the first `nr_sge` are initialised.
/// - `wrs` has room for [`OWN_WRS`], or, if `large` is given, for work requests for so many
///   segments and one more.
pub(crate) struct Body {
    pub(in crate::rdma) sges: *mut bindings::ib_sge,
    pub(in crate::rdma) wrs: *mut Wr,
    pub(in crate::rdma) nr_sge: u32,
    pub(in crate::rdma) nr_wr: u32,
    /// The operation as which the last work request completes.
    pub(in crate::rdma) opcode: bindings::ib_wc_opcode,
    /// The segments were mapped, one by one, and must be unmapped, but for the first so many.
    pub(in crate::rdma) mapped: Option<Direction>,
    pub(in crate::rdma) premapped: u32,
    /// The device writes the owner's piece.
    pub(in crate::rdma) reads_piece: bool,
    /// The large arrays that are used.
    pub(in crate::rdma) large: Option<u32>,
    /// The buffer that the segments are in, if it is not the owner's.
    pub(in crate::rdma) buffer: Option<Arc<DmaBuffer>>,
    /// The mark of an RDMA READ, at the end of each of its work requests.
    pub(in crate::rdma) mark: Option<Mark>,
    /// What to set to 1 on success: a flag of the owner's memory region that is being registered,
    /// or of its room for a result; or null.
    pub(in crate::rdma) success: *const Atomic<u32>,
    /// The first error of a work request other than the last, or of what is no completion of it.
    pub(in crate::rdma) error: Option<WcError>,
}

impl Body {
    /// Prepares for new work requests, with the slot's own arrays.
    #[inline]
    pub(in crate::rdma) fn reset(&mut self, sges: *mut bindings::ib_sge, wrs: *mut Wr) {
        // INVARIANT: The slot's own arrays have just this room; nothing is initialised.
        self.sges = sges;
        self.wrs = wrs;
        self.nr_sge = 0;
        self.premapped = 0;
        self.reads_piece = false;
        self.nr_wr = 0;
        self.opcode = bindings::ib_wc_opcode_IB_WC_SEND;
        self.mark = None;
        self.success = core::ptr::null();
        self.error = None;
    }

    /// Adds a segment.
    ///
    /// # Safety
    ///
    /// There must be room.
    #[inline]
    pub(in crate::rdma) unsafe fn push_sge(&mut self, addr: u64, length: u32, lkey: u32) {
        let sge = bindings::ib_sge { addr, length, lkey };
        // SAFETY: The caller has made room.
        unsafe { self.sges.add(self.nr_sge as usize).write(sge) };
        // INVARIANT: One more is initialised.
        self.nr_sge += 1;
    }

    /// The last segment of each work request of an RDMA operation, which has `per_wr` segments or,
    /// if it is the last, what is left.
    #[inline]
    pub(in crate::rdma) fn ends(
        &self,
        per_wr: u32,
    ) -> impl Iterator<Item = &bindings::ib_sge> + '_ {
        (1..=self.nr_wr).filter_map(move |wrs| {
            let last = wrs.saturating_mul(per_wr).min(self.nr_sge).checked_sub(1)?;
            // SAFETY: By the type invariants the first `nr_sge` are initialised.
            Some(unsafe { &*self.sges.add(last as usize) })
        })
    }
}

/// A slot of the send queue.
///
/// The type invariants of [`Qp`] say which function may use it.
///
/// # Invariants
///
/// - `cqe` is the first field, as [`send_done`] needs it.
#[repr(C)]
pub(crate) struct SendSlot<H: QpHandler<T>, T: Transport = Rc> {
    /// For the last work request.
    cqe: Opaque<bindings::ib_cqe>,
    /// For all others.
    error_cqe: Opaque<bindings::ib_cqe>,
    qp: UnsafeCell<*const Qp<H, T>>,
    state: Atomic<u32>,
    pub(in crate::rdma) owner: UnsafeCell<Option<H::Send>>,
    pub(in crate::rdma) body: UnsafeCell<Body>,
    /// What the ULP has in it.
    pub(in crate::rdma) ulp: UlpSlot<H, T>,
    wrs: UnsafeCell<[Wr; OWN_WRS]>,
    inline_sges: KVec<UnsafeCell<bindings::ib_sge>>,
}

impl<H: QpHandler<T>, T: Transport> SendSlot<H, T> {
    /// Makes a slot with arrays of its own, for work requests of `sges` segments.
    pub(in crate::rdma) fn new(sges: u32, ulp: UlpSlot<H, T>) -> Result<Self> {
        let mut inline_sges = KVec::with_capacity(sges as usize + 1, GFP_KERNEL)?;
        for _ in 0..=sges {
            inline_sges.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        // INVARIANT: `nr_sge` is 0; `reset()` sets `sges` and `wrs`.
        let body = Body {
            sges: core::ptr::null_mut(),
            wrs: core::ptr::null_mut(),
            nr_sge: 0,
            nr_wr: 0,
            opcode: bindings::ib_wc_opcode_IB_WC_SEND,
            mapped: None,
            premapped: 0,
            reads_piece: false,
            large: None,
            buffer: None,
            mark: None,
            success: core::ptr::null(),
            error: None,
        };
        Ok(Self {
            cqe: Opaque::new(bindings::ib_cqe {
                done: Some(send_done::<H, T>),
            }),
            error_cqe: Opaque::new(bindings::ib_cqe {
                done: Some(send_error::<H, T>),
            }),
            qp: UnsafeCell::new(core::ptr::null()),
            state: Atomic::new(FREE),
            owner: UnsafeCell::new(None),
            body: UnsafeCell::new(body),
            ulp,
            wrs: UnsafeCell::new(
                [Wr {
                    send: pin_init::zeroed(),
                }; OWN_WRS],
            ),
            inline_sges,
        })
    }

    /// Sets the queue pair.
    ///
    /// # Safety
    ///
    /// Nobody else may use the slot yet, and it must be one of `qp`'s.
    pub(in crate::rdma) unsafe fn init(&self, qp: &Qp<H, T>) {
        // SAFETY: The caller promises that nobody else uses it.
        unsafe { *self.qp.get() = qp };
    }

    /// The slot's own array of segments.
    #[inline]
    pub(in crate::rdma) fn inline_sges(&self) -> *mut bindings::ib_sge {
        UnsafeCell::raw_get(self.inline_sges.as_ptr())
    }

    /// The slot's own array of work requests.
    #[inline]
    pub(in crate::rdma) fn own_wrs(&self) -> *mut Wr {
        self.wrs.get().cast()
    }

    /// Returns the queue pair.
    ///
    /// # Safety
    ///
    /// The slot must be posted, and the caller handle a completion of it.
    #[inline]
    pub(in crate::rdma) unsafe fn qp<'a>(&self) -> &'a Qp<H, T> {
        // SAFETY: By the invariants of `Qp` it is in place as long as a completion may come.
        unsafe { &**self.qp.get() }
    }

    /// Takes the slot, if it is free.
    #[inline]
    pub(in crate::rdma) fn claim(&self) -> bool {
        self.state.cmpxchg(FREE, TAKEN, Acquire).is_ok()
    }

    /// Frees the slot.
    #[inline]
    pub(in crate::rdma) fn release(&self) {
        self.state.store(FREE, Release);
    }

    /// Notes that the work requests of the slot, which was claimed, are being chained. With the
    /// lock of the send queue held.
    #[inline]
    pub(in crate::rdma) fn set_posted(&self) {
        self.state.store(POSTED, Relaxed);
    }

    /// Notes that the slot, which was chained, is claimed again: its work requests will not be
    /// posted, or have completed. With the lock of the send queue held, or by the function of the
    /// ULP that ends the slot.
    #[inline]
    pub(in crate::rdma) fn set_unposted(&self) {
        self.state.store(TAKEN, Relaxed);
    }

    /// Returns true if its work requests are chained or posted, and its owner did not come back.
    #[inline]
    pub(in crate::rdma) fn is_posted(&self) -> bool {
        self.state.load(Acquire) == POSTED
    }

    /// Notes that the ULP has taken the owner out of the slot, which is never used again.
    pub(in crate::rdma) fn lose(&self) {
        self.state.store(LOST, Relaxed);
    }

    /// Returns a work request with the fields that the last one of a slot has, whatever its kind.
    #[inline]
    pub(in crate::rdma) fn last_wr(&self) -> bindings::ib_send_wr {
        let slot = core::ptr::from_ref(self).cast_mut();
        bindings::ib_send_wr {
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                // The first field; the completion needs the whole slot.
                wr_cqe: slot.cast(),
            },
            send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
            ..pin_init::zeroed()
        }
    }

    /// Returns a work request with the fields that all but the last one of a slot have.
    #[inline]
    pub(in crate::rdma) fn chained_wr(
        &self,
        next: *mut bindings::ib_send_wr,
    ) -> bindings::ib_send_wr {
        let slot = core::ptr::from_ref(self).cast_mut();
        bindings::ib_send_wr {
            next,
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                // SAFETY: The field is in the slot.
                wr_cqe: unsafe { core::ptr::addr_of_mut!((*slot).error_cqe) }.cast(),
            },
            ..pin_init::zeroed()
        }
    }
}

/// A bitmap of at most 64 things, and which of them are free.
///
/// # Invariants
///
/// - Bit `n` is set if thing `n` is free.
pub(in crate::rdma) struct Free(Atomic<u64>);

impl Free {
    /// Returns a bitmap of `count` things that are all free. Fails with `EINVAL` if they are more
    /// than 64.
    pub(in crate::rdma) fn new(count: u16) -> Result<Self> {
        if count > 64 {
            return Err(EINVAL);
        }
        // INVARIANT: One bit for each. There may be 64, or none.
        let all = u64::MAX.checked_shr(64 - u32::from(count)).unwrap_or(0);
        Ok(Self(Atomic::new(all)))
    }

    /// Takes a thing and returns its number, if one is free.
    pub(in crate::rdma) fn take(&self) -> Option<u32> {
        let mut free = self.0.load(Relaxed);
        loop {
            if free == 0 {
                return None;
            }
            // INVARIANT: The bit was set, so nobody uses the thing but the caller.
            match self.0.cmpxchg(free, free & (free - 1), Acquire) {
                Ok(_) => return Some(free.trailing_zeros()),
                Err(now) => free = now,
            }
        }
    }

    /// Gives back a thing that [`Self::take`] has returned, and that the caller does not use any
    /// more.
    pub(in crate::rdma) fn put(&self, index: u32) {
        // INVARIANT: The bit was clear, so that adding it sets it.
        self.0.fetch_add(1 << index, Release);
    }
}

/// Arrays for memory that takes more work requests than a slot has.
///
/// # Invariants
///
/// - There are so many pairs of arrays, one after the other in `sges` and `wrs`, as `free` has
///   things.
pub(super) struct Large {
    sges: KVVec<UnsafeCell<bindings::ib_sge>>,
    wrs: KVVec<UnsafeCell<Wr>>,
    sges_each: usize,
    wrs_each: usize,
    free: Free,
}

impl Large {
    /// Makes `count` pairs of arrays, each for `sges` segments, at least `per_wr` of which go into
    /// a work request.
    pub(super) fn new(count: u16, sges: u32, per_wr: u32) -> Result<Self> {
        let free = Free::new(count)?;
        let count = usize::from(count);
        // One more of each for a message.
        let sges_each = sges as usize + 1;
        let wrs_each = sges.div_ceil(per_wr.max(1)) as usize + 1;
        let mut all_sges = KVVec::with_capacity(count * sges_each, GFP_KERNEL)?;
        for _ in 0..count * sges_each {
            all_sges.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        let mut all_wrs = KVVec::with_capacity(count * wrs_each, GFP_KERNEL)?;
        for _ in 0..count * wrs_each {
            let wr = Wr {
                send: pin_init::zeroed(),
            };
            all_wrs.push(UnsafeCell::new(wr), GFP_KERNEL)?;
        }
        Ok(Self {
            sges: all_sges,
            wrs: all_wrs,
            sges_each,
            wrs_each,
            free,
        })
    }

    /// Returns true if there are no such arrays at all.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sges.is_empty()
    }

    /// Takes a pair, if one is free. Returns its number, its segments and its work requests.
    pub(super) fn take(&self) -> Option<(u32, *mut bindings::ib_sge, *mut Wr)> {
        let index = self.free.take()?;
        let sges = self.sges.get(index as usize * self.sges_each..)?.as_ptr();
        let wrs = self.wrs.get(index as usize * self.wrs_each..)?.as_ptr();
        Some((index, UnsafeCell::raw_get(sges), UnsafeCell::raw_get(wrs)))
    }

    /// Gives back a pair that [`Self::take`] has returned, and that the caller does not use any
    /// more.
    pub(super) fn put(&self, index: u32) {
        self.free.put(index);
    }
}

/// Handles the completion of a slot's last work request.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `cqe` of a [`SendSlot<H, T>`] that was posted.
unsafe extern "C" fn send_done<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion of a slot that exists until all completions of it
    // were handled, and no other can come.
    let (wc, slot) = unsafe {
        (
            &*wc,
            &*(*wc).__bindgen_anon_1.wr_cqe.cast::<SendSlot<H, T>>(),
        )
    };
    // Never true, unless a device completes a work request twice.
    if !slot.is_posted() {
        return;
    }
    // SAFETY: The slot is posted, and this is the handler of its completion.
    unsafe { slot.qp().send_completed(slot, wc) };
}

/// Handles the completion of another of a slot's work requests.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `error_cqe` of a [`SendSlot<H, T>`] that was posted.
unsafe extern "C" fn send_error<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: It is that of a work request with this field of a slot, which exists until all
    // completions of it were handled, and no other can come.
    let slot = unsafe {
        let cqe = wc
            .__bindgen_anon_1
            .wr_cqe
            .cast::<Opaque<bindings::ib_cqe>>();
        &*kernel::container_of!(cqe, SendSlot<H, T>, error_cqe)
    };
    if !slot.is_posted() {
        return;
    }
    // SAFETY: As in `send_done()`.
    unsafe { slot.qp().send_failed(slot, wc) };
}
