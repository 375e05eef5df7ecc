// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of devices and peers that do not do what they should: what was posted comes back,
//! and what a peer may still reach does not.
//!
//! An operation of the device is replaced for as long as it is to fail. Nobody but the test uses
//! the device meanwhile.

use crate::base::errno::{
    EOPNOTSUPP,
    EPROTO,
    ESHUTDOWN, //
};
use crate::rdma::{
    cm::CmError,
    kunit::*, //
};
use kernel::ffi::{
    c_int,
    c_void, //
};

const CAPS: RequestCaps = RequestCaps {
    qp: QpCaps {
        large: 1,
        ..super::CAPS
    },
    regions: 4,
    region_pages: 4,
    large_regions: 0,
    large_region_pages: 0,
};

// CAST: A small number.
const MINUS_EIO: c_int = -(bindings::EIO as c_int);

/// An operation or attribute of a device that was replaced until this drops.
///
/// # Invariants
///
/// `place` is a field of the operations or attributes of `_device`, and only the test uses it.
pub(super) struct Replaced<T: Copy> {
    place: *mut T,
    old: T,
    _device: Arc<Device>,
}

impl<T: Copy> Replaced<T> {
    /// Replaces what `field` finds.
    pub(super) fn new(
        device: &Arc<Device>,
        field: impl FnOnce(*mut bindings::ib_device_ops) -> *mut T,
        new: T,
    ) -> Self {
        // SAFETY: The device is registered by its invariants, and has a table of its own.
        let place = field(unsafe { &raw mut (*device.as_raw()).ops });
        // SAFETY: As above; the core reads such a field at once, and so it is written.
        let old = unsafe {
            let old = place.read_volatile();
            place.write_volatile(new);
            old
        };
        // INVARIANT: It is what `field` gave.
        Self {
            place,
            old,
            _device: device.clone(),
        }
    }
}

impl<T: Copy> Drop for Replaced<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { self.place.write_volatile(self.old) };
    }
}

/// Replaces an operation of a device by a function, until what this returns is dropped.
macro_rules! replaced {
    ($device:expr, $operation:ident, $function:expr) => {{
        #[expect(clippy::as_underscore, reason = "it is the type of the operation")]
        let function = Some($function as _);
        $crate::rdma::kunit::broken::Replaced::new(
            $device,
            // SAFETY: It is a table of operations.
            |ops| unsafe { &raw mut (*ops).$operation },
            function,
        )
    }};
}
pub(super) use replaced;

/// The memory region that [`dereg_fails`] has left.
static STUCK: Atomic<*mut bindings::ib_mr> = Atomic::new(core::ptr::null_mut());

/// # Safety
///
/// None: it touches nothing.
unsafe extern "C" fn dereg_fails(mr: *mut bindings::ib_mr, _: *mut bindings::ib_udata) -> c_int {
    STUCK.store(mr, Relaxed);
    EIO.to_errno()
}

/// Moves no queue pair to another state, and returns `RET`.
///
/// # Safety
///
/// None: it touches nothing.
unsafe extern "C" fn modify<const RET: c_int>(
    _: *mut bindings::ib_qp,
    _: *mut bindings::ib_qp_attr,
    _: c_int,
    _: *mut bindings::ib_udata,
) -> c_int {
    RET
}

/// # Safety
///
/// Called by the core, with a place for the work request that was not posted.
pub(super) unsafe extern "C" fn post_fails(
    _: *mut bindings::ib_qp,
    wr: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: By the safety requirements.
    unsafe { *bad = wr };
    EIO.to_errno()
}

/// Frees what stayed when a region of the domain `pd` could not be deregistered.
fn free_stuck(pd: *mut bindings::ib_pd) -> Result {
    let mr = STUCK.xchg(core::ptr::null_mut(), kernel::sync::atomic::Full);
    check!(!mr.is_null());
    // SAFETY: The region and its domain were given up, and nobody else knows them; nor their name,
    // which `Pd::alloc` has allocated.
    let ret = unsafe {
        let name = (*pd).res.kern_name;
        bindings::ib_dereg_mr_user(mr, core::ptr::null_mut());
        let ret = bindings::ib_dealloc_pd_user(pd, core::ptr::null_mut());
        bindings::kfree(name.cast::<c_void>());
        ret
    };
    check!(ret == 0);
    Ok(())
}

/// The completion entry of what completes without anybody's interest.
pub(super) struct Ignored(pub(super) bindings::ib_cqe);

// SAFETY: It is never written.
unsafe impl Sync for Ignored {}

pub(super) static IGNORED: Ignored = Ignored(bindings::ib_cqe { done: Some(ignore) });

/// # Safety
///
/// None: it touches nothing.
unsafe extern "C" fn ignore(_: *mut bindings::ib_cq, _: *mut bindings::ib_wc) {}

#[kernel::macros::kunit_tests(farblk_rdma_broken_device)]
mod device {
    use super::*;

    #[test]
    fn that_cannot_fail_a_queue_pair_gives_all_back() -> Result {
        for direct in [None, Some((true, false)), Some((true, true))] {
            with_pair_of(CAPS, Kind { direct, srq: None }, |pair| {
                for number in 0..4 {
                    posted(pair.near.qp.recv(pair.landing(number, 64)?))?;
                    // The far side has no receive.
                    // CAST: A small number.
                    let message = pair.message(number, 64, 1)?;
                    posted(pair.near.qp.send(number as u16, message, true))?;
                }
                let broken = replaced!(pair.pd.device(), modify_qp, modify::<MINUS_EIO>);
                let drained = pair.near.qp.drain();
                drop(broken);
                check!(drained == Ok(()));
                let events = &pair.near.events;
                check!(events.sends.len() == 4 && events.recvs.len() == 4);
                for _ in 0..4 {
                    check!(events.sends.take()?.1.is_err() && events.recvs.take()?.1.is_err());
                }
                check!(pair.alive.load(Relaxed) == 0);
                // Again, and nothing comes back twice.
                check!(pair.near.qp.drain() == Ok(()));
                pair.near.qp.fail();
                let result = pair.near.qp.send(0, pair.message(9, 64, 1)?, true);
                check!(posted(result) == Err(ESHUTDOWN));
                check!(posted(pair.near.qp.recv(pair.landing(9, 64)?)) == Err(ESHUTDOWN));
                check!(events.sends.len() == 0 && events.recvs.len() == 0);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Queue pairs that fail together have one time to drain.
    #[test]
    fn that_does_not_flush_delays_two_queue_pairs_no_longer_than_one() -> Result {
        for direct in [None, Some((true, true))] {
            with_pair_of(CAPS, Kind { direct, srq: None }, |pair| {
                // Nobody sends, so that only a flush would give them back.
                posted(pair.near.qp.recv(pair.landing(0, 64)?))?;
                posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
                let broken = replaced!(pair.pd.device(), modify_qp, modify::<0>);
                let start = Instant::<Monotonic>::now();
                pair.near.qp.fail();
                pair.far.qp.fail();
                let near = (pair.near.qp.drain(), start.elapsed().as_millis());
                let far = (pair.far.qp.drain(), start.elapsed().as_millis());
                drop(broken);
                check!(near.0 == Ok(()) && far.0 == Ok(()));
                // The first has all the time that there is, and the second what is left.
                check!(near.1 >= 4_000 && far.1 < near.1 + 4_000);
                for side in [&pair.near, &pair.far] {
                    check!(side.raw_qp().is_null());
                    check!(side.events.recvs.len() == 1);
                    check!(side.events.recvs.take()?.1.is_err());
                }
                check!(pair.alive.load(Relaxed) == 0);
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn that_cannot_fail_a_queue_pair_of_a_shared_queue_gives_all_back() -> Result {
        with_device(|device, _| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = srq::create(device)?;
            for number in 0..4 {
                posted(srq.recv(srq::landing(device, &alive, number)?))?;
            }
            let (_, addr) = some_device()?;
            let pair = srq::pair(addr, &srq)?;
            // The near side has no receive.
            posted(pair.far.qp.send(0, pair.message(1, 64, 1)?, true))?;
            let broken = replaced!(device, modify_qp, modify::<MINUS_EIO>);
            let drained = pair.far.qp.drain();
            drop(broken);
            check!(drained == Ok(()));
            check!(pair.far.events.sends.take()?.1.is_err());
            // The receives are the queue's.
            check!(alive.load(Relaxed) == 4 && pair.alive.load(Relaxed) == 0);
            let other = srq::pair(addr, &srq)?;
            posted(other.near.qp.send(0, other.message(1, 64, 1)?, true))?;
            check!(other.far.events.recvs.take()?.1 == Ok(64));
            drop((pair, other));
            check!(last(srq));
            check!(alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    /// It may keep what was posted until the queue pair is connected. Nothing was posted here: the
    /// queue pair is moved to its error state, or destroyed, so that it cannot be connected.
    #[test]
    fn that_cannot_fail_an_unconnected_queue_pair_has_it_destroyed() -> Result {
        with_device(|device, addr| {
            let (id, qp) = srq::join(addr, &srq::create(device)?, srq::CAPS)?;
            // SAFETY: The id is valid by its invariants.
            let exists = || unsafe { !(*id.as_raw()).qp.is_null() };
            check!(exists());
            let broken = replaced!(device, modify_qp, modify::<MINUS_EIO>);
            let drained = qp.drain();
            drop(broken);
            check!(drained == Ok(()) && !exists());
            Ok(())
        })
    }

    #[test]
    fn that_keeps_a_region_keeps_what_the_peer_may_reach() -> Result {
        keeps_what_the_peer_may_reach(false)
    }

    #[test]
    fn that_keeps_a_region_and_does_not_drain_keeps_what_the_peer_may_reach() -> Result {
        keeps_what_the_peer_may_reach(true)
    }

    /// With `destroyed`, the queue pair cannot be drained either.
    fn keeps_what_the_peer_may_reach(destroyed: bool) -> Result {
        let mut stuck = core::ptr::null_mut();
        with_pair(CAPS, |pair| {
            stuck = pair.pd.as_raw();
            let alive = pair.alive.clone();
            let block = Block::new(1, PAGE_SIZE, 1)?;
            for segment in block.memory.segments(0, block.len) {
                // The page stays mapped for ever, so nobody else may get it: to DMA_API_DEBUG a
                // part of a page that is mapped twice is not mapped.
                // SAFETY: The page is one of the memory's.
                unsafe { bindings::farblk_get_page(segment.page().as_ptr()) };
            }
            posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
            pair.request(0, Carry::Access(RdmaOp::Write), &block, true)?;
            pair.requested()?;
            let broken = replaced!(pair.pd.device(), dereg_mr, dereg_fails);
            let undrained =
                destroyed.then(|| replaced!(pair.pd.device(), modify_qp, modify::<MINUS_EIO>));
            let drained = pair.near.qp.drain();
            drop((broken, undrained));
            check!(pair.near.raw_qp().is_null() == destroyed);
            check!(
                drained
                    == Err(Undrained {
                        parked: 1,
                        lost: false
                    })
            );
            check!(pair.near.qp.drain() == drained);
            let events = pair.near.events.clone();
            check!(last(pair.near.qp));
            // It did not come back, and its memory is there.
            check!(events.sends.len() == 0 && events.released.len() == 0);
            check!(alive.load(Relaxed) == 1);
            drop((pair.far, pair.near.id, pair.near.send_cq, pair.listener));
            check!(events.released.len() == 0 && alive.load(Relaxed) == 1);
            // No queue pair of the domain is left, nor is the domain.
            check!(last(pair.pd));
            check!(events.sends.len() == 0 && events.released.len() == 1);
            check!(events.released.take()?.number == 0);
            check!(alive.load(Relaxed) == 0);
            Ok(())
        })?;
        match stuck.is_null() {
            true => Ok(()),
            false => free_stuck(stuck),
        }
    }

    #[test]
    fn that_keeps_a_region_keeps_its_memory_until_the_domain_goes() -> Result {
        with_device(|device, _| {
            let pd = Pd::alloc(device)?;
            let stuck = pd.as_raw();
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let memory = block.memory.clone();
            let direction = Direction::Bidirectional;
            let mapping = SgMapping::map(device, &memory, 0, PAGE_SIZE, direction)?;
            let mr = Mr::alloc(&pd, &mapping, Access::RemoteRead)?;
            drop((block, mapping));
            let broken = replaced!(device, dereg_mr, dereg_fails);
            drop(mr);
            drop(broken);
            check!(last(pd));
            check!(last(memory));
            free_stuck(stuck)
        })
    }

    #[test]
    fn that_does_not_post_tells_so_once() -> Result {
        with_pair(CAPS, |pair| {
            let broken = replaced!(pair.pd.device(), post_send, post_fails);
            for slot in 0..2 {
                let message = pair.message(slot.into(), 64, 1)?;
                posted(pair.near.qp.send(slot, message, slot == 1))?;
            }
            drop(broken);
            let events = &pair.near.events;
            check!(events.errors.load(Relaxed) == 1 && events.sends.len() == 2);
            for number in 0..2 {
                let (owner, result) = events.sends.take()?;
                check!(owner.number == number && result == Err(WcError::NotCompleted(EIO)));
            }
            let result = pair.near.qp.send(0, pair.message(9, 64, 1)?, true);
            check!(posted(result) == Err(ESHUTDOWN));
            check!(pair.near.qp.drain() == Ok(()));
            check!(events.errors.load(Relaxed) == 1 && events.sends.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn without_shared_queues_has_none() -> Result {
        with_device(|device, _| {
            let broken = Replaced::new(
                device,
                // SAFETY: It is a table of operations.
                |ops| unsafe { &raw mut (*ops).create_srq },
                None,
            );
            let (has_srq, srq) = (device.has_srq(), srq::create(device));
            drop(broken);
            check!(!has_srq && srq.err() == Some(EOPNOTSUPP));
            check!(device.has_srq() && srq::create(device).is_ok());
            Ok(())
        })
    }

    /// What some devices do when they send a message again, after the peer has invalidated the
    /// region: the region is valid all the same.
    #[test]
    fn that_registers_again_is_told_to_invalidate() -> Result {
        let direct = Some((true, false));
        with_pair_of(CAPS, Kind { direct, srq: None }, |pair| {
            if !pair.pd.device().quirks().registers_again() {
                skip(c"the device registers memory once");
                return Ok(());
            }
            let block = Block::new(1, PAGE_SIZE, 1)?;
            posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
            let range = pair.request(0, Carry::Access(RdmaOp::Write), &block, true)?;
            pair.requested()?;
            // That the message has completed was not noticed yet: nobody has reaped.
            check!(pair.near.answered(0, Some(range.rkey)) == Ok(()));
            wait_until(|| {
                pair.near.send_cq.reap();
                pair.near.events.sends.len() == 1
            })?;
            check!(pair.near.events.sends.take()?.1.is_ok());
            let (_, done) = pair.far_rdma(RdmaOp::Write, range, pair.reply(0, PAGE_SIZE, 9)?)?;
            check!(!done && is_full_of(&block.memory, PAGE_SIZE, 1));
            let qp = &pair.near.qp;
            check!(qp.invalidations() == 1 && qp.posted() == 3 && qp.in_flight() == 0);
            Ok(())
        })
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_broken_peer)]
mod peer {
    use super::*;

    #[test]
    fn that_writes_with_immediate_data_sends_no_message() -> Result {
        with_pair(CAPS, |pair| {
            posted(pair.near.qp.recv(pair.landing(3, 64)?))?;
            let wr = bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                        wr_cqe: (&raw const IGNORED.0).cast_mut(),
                    },
                    opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
                    ..pin_init::zeroed()
                },
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: The queue pair is valid; the device copies the work request.
            let ret = unsafe { bindings::ib_post_send(pair.far.raw_qp(), &wr.wr, &mut bad) };
            check!(ret == 0);
            let (landing, result) = pair.near.events.recvs.take()?;
            let opcode = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM;
            check!(landing.number == 3 && result == Err(WcError::Unexpected { opcode }));
            check!(result.err().map(WcError::to_error) == Some(EPROTO));
            wait_until(|| pair.near.events.errors.load(Relaxed) == 1)?;
            check!(posted(pair.near.qp.recv(pair.landing(4, 64)?)) == Err(ESHUTDOWN));
            Ok(())
        })
    }

    #[test]
    fn completion_of_something_else_is_no_success() -> Result {
        let kinds = [
            bindings::ib_wc_opcode_IB_WC_SEND,
            bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
            bindings::ib_wc_opcode_IB_WC_RDMA_READ,
            bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
            bindings::ib_wc_opcode_IB_WC_REG_MR,
            bindings::ib_wc_opcode_IB_WC_RECV,
            bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
        ];
        for posted in kinds {
            for opcode in kinds {
                let mut wc = bindings::ib_wc {
                    opcode,
                    byte_len: 7,
                    ..pin_init::zeroed()
                };
                let wanted = match opcode == posted {
                    true => Ok(7),
                    false => Err(WcError::Unexpected { opcode }),
                };
                check!(WcError::check(&wc, posted) == wanted);
                // After an error the operation is not told.
                wc.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
                let result = WcError::check(&wc, posted);
                check!(matches!(result, Err(WcError::Failed { .. })));
            }
        }
        Ok(())
    }

    #[test]
    fn id_has_a_queue_pair_only_when_that_was_created() -> Result {
        with_device(|_, addr| {
            let id: Arc<CmId> = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
            id.resolve(None, addr, TIMEOUT_MS)
                .map_err(|error| error.to_error())?;
            id.claim_qp()?;
            let error = id.connect(&PARAM, TIMEOUT_MS).err();
            let refused = matches!(error, Some(CmError::Errno(error)) if error == EINVAL);
            id.release_qp();
            check!(refused);
            Ok(())
        })
    }
}
