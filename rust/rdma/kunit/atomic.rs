// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of atomic operations.

use crate::base::errno::EOPNOTSUPP;
use crate::rdma::kunit::{
    broken::{
        Replaced,
        IGNORED, //
    },
    qp::refusal,
    *, //
};

const CAPS: QpCaps = QpCaps {
    slots: 8,
    send_wr: 8,
    recv_wr: 1,
    ..super::CAPS
};

/// Where in its page the number is that is operated on.
const AT: usize = 16;

/// A number in the memory of the far side.
struct Number {
    block: Block,
    _mr: Mr,
    remote: RemoteRange,
}

impl Number {
    /// A number in a region that allows atomic operations, or one without that right.
    fn new(pair: &Pair, value: u64, atomics: bool) -> Result<Self> {
        let block = Block::new(1, PAGE_SIZE, 0)?;
        let access = match atomics {
            true => Access::RemoteRead,
            false => Access::RemoteReadWrite,
        };
        let mut mr = pair.region(&block, access)?;
        if atomics {
            mr = mr.with_atomics()?;
        }
        let mr = pair.register(mr)?;
        let RemoteRange { addr, rkey } = mr.remote().ok_or(EIO)?;
        let addr = addr + AT as u64;
        let this = Self {
            block,
            _mr: mr,
            remote: RemoteRange { addr, rkey },
        };
        this.set(value);
        Ok(this)
    }

    /// Where the near side finds it.
    fn remote(&self) -> Result<RemoteAtomic> {
        RemoteAtomic::new(self.remote)
    }

    fn set(&self, value: u64) {
        let places = bytes(&self.block.memory, AT + 8).skip(AT);
        for (place, byte) in places.zip(value.to_ne_bytes()) {
            // SAFETY: The place is in the memory, to which there are no references.
            unsafe { place.write_volatile(byte) };
        }
    }

    /// The number, if nothing else of its memory has changed.
    fn get(&self) -> Result<u64> {
        let mut number = [0; 8];
        for (at, place) in bytes(&self.block.memory, PAGE_SIZE).enumerate() {
            // SAFETY: As above.
            let byte = unsafe { place.read_volatile() };
            match at.checked_sub(AT).and_then(|at| number.get_mut(at)) {
                Some(to) => *to = byte,
                None => check!(byte == 0),
            }
        }
        Ok(u64::from_ne_bytes(number))
    }
}

/// An owner of room for a result.
fn room(pair: &Pair, number: u32) -> Result<Owner> {
    let buffer = DmaBuffer::alloc(pair.pd.device(), 8, Direction::FromDevice)?;
    Ok(Owner {
        result: Some(AtomicResult::new(buffer)?),
        ..pair.owner(number)
    })
}

/// The result that an owner has.
fn value(owner: &Owner) -> Option<u64> {
    owner.result.as_ref().and_then(AtomicResult::value)
}

/// Does an operation from the near side, alone. Returns its owner and how it ended.
fn run(pair: &Pair, op: AtomicOp, remote: RemoteAtomic) -> Result<(Owner, Result<(), WcError>)> {
    posted(pair.near.qp.atomic(0, op, remote, room(pair, 0)?, true))?;
    pair.near.events.sends.take()
}

/// The result of an operation that has to succeed.
fn result(pair: &Pair, op: AtomicOp, remote: RemoteAtomic) -> Result<u64> {
    let (owner, result) = run(pair, op, remote)?;
    result.map_err(|error| error.to_error())?;
    value(&owner).ok_or(EIO)
}

/// Lets a device report another capability until what this returns is dropped.
macro_rules! reports {
    ($device:expr, $attribute:ident, $cap:expr) => {
        Replaced::new(
            $device,
            // SAFETY: The device is registered by its invariants.
            |_| unsafe { &raw mut (*$device.as_raw()).attrs.$attribute },
            $cap,
        )
    };
}

#[kernel::macros::kunit_tests(farblk_rdma_atomic)]
mod tests {
    use super::*;

    #[test]
    fn returns_what_was_there_before() -> Result {
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 5, true)?;
            let remote = number.remote()?;
            let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
            check!(result(&pair, swap(5, 0x0102_0304_0506_0708), remote)? == 5);
            check!(number.get()? == 0x0102_0304_0506_0708);
            // It is another number already.
            check!(result(&pair, swap(5, 9), remote)? == 0x0102_0304_0506_0708);
            check!(number.get()? == 0x0102_0304_0506_0708);
            number.set(u64::MAX - 1);
            check!(result(&pair, AtomicOp::FetchAdd(3), remote)? == u64::MAX - 1);
            check!(number.get()? == 1);
            check!(result(&pair, AtomicOp::FetchAdd(0), remote)? == 1);
            check!(result(&pair, AtomicOp::FetchAdd(u64::MAX), remote)? == 1);
            check!(number.get()? == 0);
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn is_for_a_multiple_of_8() -> Result {
        let at = |addr| RemoteAtomic::new(RemoteRange { addr, rkey: 1 });
        for addr in 1..8 {
            check!(at(addr) == Err(EINVAL) && at(addr + 0x1000).is_err());
        }
        check!(at(0).is_ok() && at(8).is_ok() && at(u64::MAX - 7).is_ok());
        Ok(())
    }

    #[test]
    fn result_needs_room_that_the_device_can_write() -> Result {
        with_device(|device, _| {
            let room = |len, direction| {
                AtomicResult::new(DmaBuffer::alloc(device, len, direction)?).map(drop)
            };
            check!(room(8, Direction::FromDevice) == Ok(()));
            check!(room(64, Direction::Bidirectional) == Ok(()));
            check!(room(7, Direction::FromDevice) == Err(EINVAL));
            check!(room(8, Direction::ToDevice) == Err(EINVAL));
            let all = DmaBuffer::alloc(device, 48, Direction::FromDevice)?;
            for (index, piece) in all.split(12).enumerate() {
                check!(AtomicResult::new(piece).is_ok() == (index % 2 == 0));
            }
            Ok(())
        })
    }

    #[test]
    fn is_refused_before_anything_is_posted() -> Result {
        with_pair(CAPS, |pair| {
            let (qp, device) = (&pair.near.qp, pair.pd.device());
            let remote = RemoteAtomic::new(RemoteRange { addr: 0, rkey: 0 })?;
            let add = AtomicOp::FetchAdd(1);
            check!(refusal(qp.atomic(0, add, remote, pair.owner(1), true)) == Some((EINVAL, 1)));
            check!(refusal(qp.atomic(8, add, remote, room(&pair, 2)?, true)) == Some((EINVAL, 2)));

            let none = bindings::ib_atomic_cap_IB_ATOMIC_NONE;
            let without = reports!(device, atomic_cap, none);
            let refused = refusal(qp.atomic(0, add, remote, room(&pair, 3)?, true));
            let atomics = device.atomics();
            drop(without);
            check!(refused == Some((EOPNOTSUPP, 3)) && atomics.is_none());
            check!(device.atomics().is_some());

            let masked = AtomicOp::MaskedFetchAdd { add: 1, highest: 0 };
            let without = reports!(device, masked_atomic_cap, none);
            let refused = refusal(qp.atomic(0, masked, remote, room(&pair, 4)?, true));
            drop(without);
            check!(refused == Some((EOPNOTSUPP, 4)));

            check!(qp.posted() == 0 && pair.alive.load(Relaxed) == 0);
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn needs_the_right_to_the_region() -> Result {
        // With RDMA WRITEs only; another key; behind the end.
        for (atomics, key, offset) in [(false, 0, 0), (true, 1, 0), (true, 0, PAGE_SIZE - AT)] {
            with_pair(CAPS, |pair| {
                let number = Number::new(&pair, 5, atomics)?;
                let remote = RemoteAtomic::new(RemoteRange {
                    addr: number.remote.addr + offset as u64,
                    rkey: number.remote.rkey ^ key,
                })?;
                let (owner, result) = run(&pair, AtomicOp::FetchAdd(1), remote)?;
                check!(result.err().map(WcError::to_error) == Some(EACCES));
                check!(value(&owner).is_none() && number.get()? == 5);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// No type of this module lets that be posted.
    #[test]
    fn at_another_address_changes_nothing() -> Result {
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 0, true)?;
            let result = DmaBuffer::alloc(pair.pd.device(), 8, Direction::FromDevice)?;
            let mut sge = bindings::ib_sge {
                addr: result.addr(),
                length: 8,
                lkey: pair.pd.local_dma_lkey(),
            };
            let wr = bindings::ib_atomic_wr {
                wr: bindings::ib_send_wr {
                    __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                        wr_cqe: (&raw const IGNORED.0).cast_mut(),
                    },
                    sg_list: &mut sge,
                    num_sge: 1,
                    opcode: bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
                    ..pin_init::zeroed()
                },
                remote_addr: number.remote.addr + 4,
                compare_add: 1,
                rkey: number.remote.rkey,
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: The queue pair is valid; the device copies the work request. The buffer is
            // dropped after the queue pair was drained.
            let ret = unsafe { bindings::ib_post_send(pair.near.raw_qp(), &wr.wr, &mut bad) };
            if ret == 0 {
                // The device has the peer refuse it, whose queue pair fails, too.
                wait_until(|| pair.far.events.errors.load(Relaxed) == 1)?;
            }
            check!(number.get()? == 0);
            check!(pair.near.qp.drain() == Ok(()) && number.get()? == 0);
            drop(result);
            Ok(())
        })
    }

    #[test]
    fn result_of_a_success_is_not_read_after_an_error() -> Result {
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 5, true)?;
            let qp = &pair.near.qp;
            let add = AtomicOp::FetchAdd(1);
            posted(qp.atomic(0, add, number.remote()?, room(&pair, 1)?, true))?;
            let (owner, result) = pair.near.events.sends.take()?;
            check!(result == Ok(()) && value(&owner) == Some(5) && value(&owner) == Some(5));

            // One that is not posted.
            let none = bindings::ib_atomic_cap_IB_ATOMIC_NONE;
            let without = reports!(pair.pd.device(), atomic_cap, none);
            let refused = qp.atomic(0, add, number.remote()?, owner, true);
            drop(without);
            let Err((error, owner)) = refused else {
                return Err(EIO);
            };
            check!(error == EOPNOTSUPP);

            // One that fails.
            let other = RemoteAtomic::new(RemoteRange { addr: 0, rkey: 0 })?;
            posted(qp.atomic(0, add, other, owner, true))?;
            let (owner, result) = pair.near.events.sends.take()?;
            check!(result.is_err() && value(&owner).is_none());

            // One that is flushed, as the queue pair has failed.
            let refused = qp.atomic(0, add, number.remote()?, room(&pair, 2)?, true);
            let (owner, result) = match refused {
                Ok(()) => pair.near.events.sends.take()?,
                Err((error, owner)) => (owner, Err(WcError::NotCompleted(error))),
            };
            check!(result.is_err() && value(&owner).is_none());
            check!(number.get()? == 6);
            Ok(())
        })
    }

    #[test]
    fn result_of_a_success_is_not_read_after_a_refusal() -> Result {
        with_pair(CAPS, |pair| {
            let (qp, device) = (&pair.near.qp, pair.pd.device());
            let number = Number::new(&pair, 5, true)?;
            let (remote, add) = (number.remote()?, AtomicOp::FetchAdd(0));
            // The device has none, there is no such slot, and the slot is in use.
            for (slot, error) in [(0, EOPNOTSUPP), (CAPS.slots, EINVAL), (1, EBUSY)] {
                let (owner, result) = run(&pair, add, remote)?;
                check!(result == Ok(()) && value(&owner) == Some(5));
                if error == EBUSY {
                    posted(qp.atomic(slot, add, remote, room(&pair, 2)?, false))?;
                }
                let none = bindings::ib_atomic_cap_IB_ATOMIC_NONE;
                let without = (error == EOPNOTSUPP).then(|| reports!(device, atomic_cap, none));
                let refused = qp.atomic(slot, add, remote, owner, true);
                drop(without);
                let Err((found, owner)) = refused else {
                    return Err(EIO);
                };
                check!(found == error && value(&owner).is_none());
            }
            qp.ring();
            check!(value(&pair.near.events.sends.take()?.0) == Some(5));
            Ok(())
        })
    }

    #[test]
    fn operations_of_two_queue_pairs_add_up() -> Result {
        const ROUNDS: u16 = 8;
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 0, true)?;
            let remote = number.remote()?;
            let sides = [&pair.near, &pair.far];
            let mut seen = KVec::new();
            for _ in 0..ROUNDS {
                for slot in 0..CAPS.slots {
                    for side in sides {
                        let owner = room(&pair, slot.into())?;
                        let last = slot + 1 == CAPS.slots;
                        let add = AtomicOp::FetchAdd(1);
                        posted(side.qp.atomic(slot, add, remote, owner, last))?;
                    }
                }
                for side in sides {
                    for slot in 0..CAPS.slots {
                        let (owner, result) = side.events.sends.take()?;
                        check!(owner.number == slot.into() && result == Ok(()));
                        seen.push(value(&owner).ok_or(EIO)?, GFP_KERNEL)?;
                    }
                }
            }
            let all = u64::from(2 * ROUNDS * CAPS.slots);
            check!(number.get()? == all && seen.len() as u64 == all);
            // Each has found another number.
            for number in 0..all {
                check!(seen.contains(&number));
            }
            Ok(())
        })
    }

    #[test]
    fn one_of_two_queue_pairs_gets_the_lock() -> Result {
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 0, true)?;
            let remote = number.remote()?;
            for round in 1..=8 {
                number.set(0);
                let lock = |swap| AtomicOp::CompareSwap { compare: 0, swap };
                for (side, owner) in [(&pair.near, 2 * round), (&pair.far, 2 * round + 1)] {
                    let room = room(&pair, 0)?;
                    posted(side.qp.atomic(0, lock(owner), remote, room, true))?;
                }
                let mut results = [0; 2];
                for (side, found) in [&pair.near, &pair.far].into_iter().zip(&mut results) {
                    let (owner, result) = side.events.sends.take()?;
                    check!(result == Ok(()));
                    *found = value(&owner).ok_or(EIO)?;
                }
                let holder = number.get()?;
                check!(holder / 2 == round);
                // The one that has it found nothing; the other one found that.
                let (mine, other) = match holder % 2 {
                    0 => (results[0], results[1]),
                    _ => (results[1], results[0]),
                };
                check!(mine == 0 && other == holder);
            }
            Ok(())
        })
    }

    #[test]
    fn masked_ones_leave_the_other_bits_alone() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device();
            let number = Number::new(&pair, 0x11_22_33, true)?;
            let remote = number.remote()?;
            let swap = |compare| AtomicOp::MaskedCompareSwap {
                compare,
                compare_mask: 0xff_00,
                swap: 0xaa_bb_cc,
                swap_mask: 0xff_00_00,
            };
            if !device.posts_atomics(true) {
                let refused = pair
                    .near
                    .qp
                    .atomic(0, swap(0), remote, room(&pair, 1)?, true);
                check!(refusal(refused) == Some((EOPNOTSUPP, 1)));
                skip(c"the device has no masked atomic operations");
                return Ok(());
            }
            // These bits are others.
            check!(result(&pair, swap(0x11_00_33), remote)? == 0x11_22_33);
            check!(number.get()? == 0x11_22_33);
            // All others do not matter, and are not stored.
            check!(result(&pair, swap(0x22_00), remote)? == 0x11_22_33);
            check!(number.get()? == 0xaa_22_33);
            let add = AtomicOp::MaskedFetchAdd {
                add: 0x60_01_ce,
                highest: 0x80_80_80,
            };
            check!(result(&pair, add, remote)? == 0xaa_22_33);
            check!(number.get()? == 0x0a_23_01);
            Ok(())
        })
    }

    #[test]
    fn region_allows_them_only_when_asked_to() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device();
            let block = Block::new(1, PAGE_SIZE, 0)?;
            let map = |direction| SgMapping::map(device, &block.memory, 0, PAGE_SIZE, direction);
            let mr = Mr::alloc(&pair.pd, &map(Direction::ToDevice)?, Access::RemoteRead)?;
            check!(mr.with_atomics().err() == Some(EINVAL));
            // It is registered without.
            let (mr, _) = pair.target(&block)?;
            check!(mr.with_atomics().err() == Some(EINVAL));
            let none = bindings::ib_atomic_cap_IB_ATOMIC_NONE;
            let mr = pair.region(&block, Access::RemoteReadWrite)?;
            let without = reports!(device, atomic_cap, none);
            let refused = mr.with_atomics().err();
            drop(without);
            check!(refused == Some(EOPNOTSUPP));

            let flags = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC
                | bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
            let mr = pair.region(&block, Access::RemoteRead)?;
            // CAST: Flags fit.
            check!(mr.access() & flags as i32 == 0);
            check!(mr.with_atomics()?.access() & flags as i32 == flags as i32);
            Ok(())
        })
    }

    /// As with RDMA READs: see the quirk.
    #[test]
    fn is_an_error_if_the_result_has_not_come() -> Result {
        for (change, how) in [(0, Err(WcError::Unfinished)), (1, Ok(()))] {
            with_pair(CAPS, |pair| {
                if !pair.pd.device().quirks().unfinished_reads() {
                    skip(c"the device finishes what it reads");
                    return Ok(());
                }
                let number = Number::new(&pair, 0, true)?;
                let buffer = DmaBuffer::alloc(pair.pd.device(), 8, Direction::FromDevice)?;
                // CAST: A virtual address.
                let place = buffer.addr() as usize;
                let owner = Owner {
                    result: Some(AtomicResult::new(buffer)?),
                    ..pair.owner(1)
                };
                let (qp, add) = (&pair.near.qp, AtomicOp::FetchAdd(0));
                posted(qp.atomic(0, add, number.remote()?, owner, false))?;
                // What comes is what is there already, or all but: the mark stays, or not.
                let place: *const u64 = core::ptr::with_exposed_provenance(place);
                // SAFETY: The buffer is in the slot until the operation completes.
                let mark = unsafe { place.read_volatile() };
                number.set(mark ^ change);
                qp.ring();
                let (owner, result) = pair.near.events.sends.take()?;
                check!(result == how);
                check!(value(&owner) == how.is_ok().then_some(mark ^ change));
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn comes_back_when_the_queue_pair_goes() -> Result {
        with_pair(CAPS, |pair| {
            let number = Number::new(&pair, 5, true)?;
            let add = AtomicOp::FetchAdd(1);
            let qp = &pair.near.qp;
            posted(qp.atomic(0, add, number.remote()?, room(&pair, 1)?, false))?;
            posted(qp.atomic(1, add, number.remote()?, room(&pair, 2)?, false))?;
            qp.fail();
            for wanted in 1..=2 {
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == wanted && result.is_err() && value(&owner).is_none());
            }
            check!(qp.posted() == 0 && number.get()? == 5);
            Ok(())
        })
    }
}
