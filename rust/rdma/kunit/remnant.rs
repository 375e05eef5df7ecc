// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of what a device refuses to destroy: nothing that the device may use is given back
//! or freed before it gives in.

use crate::base::errno::ESHUTDOWN;
use crate::rdma::{
    cq::CqNotify,
    kunit::{
        broken::replaced,
        *, //
    },
    srq::SrqEvents, //
};
use kernel::ffi::c_int;

const CAPS: RequestCaps = RequestCaps {
    qp: super::CAPS,
    regions: 4,
    region_pages: 4,
    large_regions: 0,
    large_region_pages: 0,
};

/// Refuses to destroy an object of C type `O`.
///
/// # Safety
///
/// None: it touches nothing.
unsafe extern "C" fn refuse<O>(_: *mut O, _: *mut bindings::ib_udata) -> c_int {
    EIO.to_errno()
}

/// Refuses to move a queue pair to another state.
///
/// # Safety
///
/// None: it touches nothing.
unsafe extern "C" fn stay(
    _: *mut bindings::ib_qp,
    _: *mut bindings::ib_qp_attr,
    _: c_int,
    _: *mut bindings::ib_udata,
) -> c_int {
    EIO.to_errno()
}

/// Has the device refuse to destroy a queue pair until what this returns is dropped.
macro_rules! refused_qp {
    ($device:expr) => {
        replaced!($device, destroy_qp, refuse::<bindings::ib_qp>)
    };
}

/// What draining a queue pair tells that is lost.
const LOST: Result<(), Undrained> = Err(Undrained {
    parked: 0,
    lost: true,
});

/// Returns how many references to this module there are.
fn module_refs() -> i32 {
    // SAFETY: It is this module, which is loaded.
    unsafe { bindings::module_refcount(&raw mut bindings::__this_module) }
}

/// Loses the near queue pair of `pair`: the device can neither fail nor destroy it.
fn lose(pair: &Pair) -> Result<(), Undrained> {
    let stays = replaced!(pair.pd.device(), modify_qp, stay);
    let refused = refused_qp!(pair.pd.device());
    let drained = pair.near.qp.drain();
    drop((stays, refused));
    drained
}

#[kernel::macros::kunit_tests(farblk_rdma_remnant)]
mod tests {
    use super::*;

    #[test]
    fn lost_queue_pair_keeps_what_was_posted() -> Result {
        for direct in [None, Some((true, false)), Some((true, true))] {
            with_pair_of(CAPS, Kind { direct, srq: None }, |pair| {
                let (device, alive) = (pair.pd.device().clone(), pair.alive.clone());
                for number in 0..3 {
                    posted(pair.near.qp.recv(pair.landing(number, 64)?))?;
                    // The far side has no receive.
                    // CAST: A small number.
                    let message = pair.message(number, 64, 1)?;
                    posted(pair.near.qp.send(number as u16, message, true))?;
                }
                check!(lose(&pair) == LOST);
                let refused = refused_qp!(&device);
                check!(pair.near.qp.drain() == LOST);
                check!(!pair.near.qp.revoke());
                // It can do nothing, and its id has none.
                let result = pair.near.qp.send(3, pair.message(9, 64, 1)?, true);
                check!(posted(result) == Err(ESHUTDOWN));
                check!(posted(pair.near.qp.recv(pair.landing(9, 64)?)) == Err(ESHUTDOWN));
                check!(pair.near.raw_qp().is_null());
                let events = pair.near.events.clone();
                check!(events.sends.len() == 0 && events.recvs.len() == 0);
                check!(alive.load(Relaxed) == 6);
                let refs = module_refs();
                check!(last(pair.near.qp));
                check!(device.remnants().count() == 1 && module_refs() == refs + 1);
                device.remnants().retry();
                check!(device.remnants().count() == 1 && module_refs() == refs + 1);
                check!(events.sends.len() == 0 && events.recvs.len() == 0);
                drop((pair.near.id, pair.near.send_cq, pair.near.recv_cq, pair.pd));
                check!(alive.load(Relaxed) == 6);
                drop(refused);
                device.remnants().retry();
                check!(device.remnants().count() == 0 && module_refs() == refs);
                check!(events.sends.len() == 3 && events.recvs.len() == 3);
                for _ in 0..3 {
                    check!(events.sends.take()?.1.is_err() && events.recvs.take()?.1.is_err());
                }
                check!(alive.load(Relaxed) == 0);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Who waits for the owners, and keeps a reference meanwhile, gets them.
    #[test]
    fn lost_queue_pair_is_drained_when_the_device_gives_in() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device().clone();
            for number in 0..3 {
                posted(pair.near.qp.recv(pair.landing(number, 64)?))?;
                // The far side has no receive.
                // CAST: A small number.
                let message = pair.message(number, 64, 1)?;
                posted(pair.near.qp.send(number as u16, message, true))?;
            }
            check!(lose(&pair) == LOST);
            let events = pair.near.events.clone();
            check!(events.sends.len() == 0 && events.recvs.len() == 0);
            for _ in 0..2 {
                check!(pair.near.qp.drain() == Ok(()));
                check!(events.sends.len() == 3 && events.recvs.len() == 3);
            }
            for _ in 0..3 {
                check!(events.sends.take()?.1.is_err() && events.recvs.take()?.1.is_err());
            }
            check!(pair.near.qp.revoke() && pair.alive.load(Relaxed) == 0);
            check!(last(pair.near.qp) && device.remnants().count() == 0);
            Ok(())
        })
    }

    /// The device goes on as if nothing was: what it completes comes back.
    #[test]
    fn lost_queue_pair_may_complete_what_was_posted() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device().clone();
            posted(pair.near.qp.recv(pair.landing(1, 64)?))?;
            posted(pair.near.qp.send(0, pair.message(2, 64, 1)?, true))?;
            check!(lose(&pair) == LOST);
            let events = pair.near.events.clone();
            let refused = refused_qp!(&device);
            check!(last(pair.near.qp));
            drop(refused);
            check!(device.remnants().count() == 1 && events.sends.len() == 0);
            // There is a receive at last, and a message.
            posted(pair.far.qp.recv(srq::landing(&device, &pair.alive, 3)?))?;
            check!(events.sends.take()?.1 == Ok(()));
            check!(pair.far.events.recvs.take()?.1 == Ok(64));
            let message = DmaBuffer::alloc(&device, 64, Direction::ToDevice)?;
            let owner = Owner {
                number: 4,
                block: None,
                piece: None,
                message: Some(message),
                mr: None,
                result: None,
                again: None,
                _alive: Alive::new(&pair.alive),
            };
            posted(pair.far.qp.send(0, owner, true))?;
            check!(pair.far.events.sends.take()?.1 == Ok(()));
            check!(events.recvs.take()?.1 == Ok(64));
            check!(pair.alive.load(Relaxed) == 0);
            device.remnants().retry();
            check!(device.remnants().count() == 0);
            check!(events.sends.len() == 0 && events.recvs.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn lost_queue_pair_keeps_what_the_peer_may_reach() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device().clone();
            let block = Block::new(1, PAGE_SIZE, 1)?;
            posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
            let range = pair.request(0, Carry::Access(RdmaOp::Write), &block, true)?;
            pair.requested()?;
            let reply = pair.reply(0, PAGE_SIZE, 9)?;
            let pd = pair.pd.clone();
            check!(lose(&pair) == LOST);
            let events = pair.near.events.clone();
            let refused = refused_qp!(&device);
            check!(last(pair.near.qp));
            drop((pair.near.id, pair.pd));
            // The peer writes to memory that is still the request's.
            posted(pair.far.qp.rdma(1, RdmaOp::Write, range, reply, true))?;
            check!(pair.far.events.sends.take()?.1 == Ok(()));
            check!(is_full_of(&block.memory, PAGE_SIZE, 9));
            check!(events.sends.len() == 0 && events.released.len() == 0);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0);
            check!(events.sends.take()?.1.is_err() && pair.alive.load(Relaxed) == 0);
            drop((pair.far, pair.listener));
            check!(last(pd));
            Ok(())
        })
    }

    /// It is kept, but uses nothing any more.
    #[test]
    fn drained_queue_pair_gives_all_back() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device().clone();
            posted(pair.near.qp.recv(pair.landing(0, 64)?))?;
            let refused = refused_qp!(&device);
            let events = pair.near.events.clone();
            check!(last(pair.near.qp));
            check!(device.remnants().count() == 1);
            check!(events.recvs.take()?.1.is_err() && pair.alive.load(Relaxed) == 0);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0 && events.recvs.len() == 0);
            Ok(())
        })
    }

    /// What keeps the device from going is destroyed when it goes.
    #[test]
    fn is_gone_with_the_device() -> Result {
        let mut left = None;
        with_pair(CAPS, |pair| {
            posted(pair.near.qp.recv(pair.landing(0, 64)?))?;
            check!(lose(&pair) == LOST);
            left = Some(pair.alive.clone());
            let refused = refused_qp!(pair.pd.device());
            check!(last(pair.near.qp));
            drop(refused);
            // `with_pair()` wants no owner to be left.
            pair.alive.fetch_sub(1, Relaxed);
            Ok(())
        })?;
        // `Events`, and what came back to it, went with the queue pair.
        check!(left.is_none_or(|alive| alive.load(Relaxed) == -1));
        Ok(())
    }

    #[test]
    fn lost_queue_pair_keeps_its_shared_queue() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = srq::create(device)?;
            for number in 0..4 {
                posted(srq.recv(srq::landing(device, &alive, number)?))?;
            }
            let pair = srq::pair(addr, &srq)?;
            let stays = replaced!(device, modify_qp, stay);
            let refused = refused_qp!(device);
            check!(pair.far.qp.drain() == LOST);
            drop(stays);
            check!(last(pair.far.qp));
            drop((
                pair.near,
                pair.far.id,
                pair.far.send_cq,
                pair.far.recv_cq,
                pair.pd,
            ));
            // The other queue pairs of the queue go on, with the same receives.
            let other = srq::pair(addr, &srq)?;
            posted(other.near.qp.send(0, other.message(1, 64, 1)?, true))?;
            check!(other.far.events.recvs.take()?.1 == Ok(64));
            check!(other.near.events.sends.take()?.1 == Ok(()));
            drop(other);
            // Those that were drained are kept, too.
            check!(device.remnants().count() == 4);
            check!(!last(srq) && alive.load(Relaxed) == 3);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0 && alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    /// A device removes what is in the completion queue when it destroys the queue pair: also a
    /// receive that completes after the first try.
    #[test]
    fn lost_queue_pair_loses_no_receive_of_its_shared_queue() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            // Its completions are handled only when something is drained, or polls.
            let srq = srq::create_in(device, PollContext::Direct, None)?;
            for number in 0..2 {
                posted(srq.recv(srq::landing(device, &alive, number)?))?;
            }
            let pair = srq::pair(addr, &srq)?;
            let stays = replaced!(device, modify_qp, stay);
            let refused = refused_qp!(device);
            check!(pair.far.qp.drain() == LOST);
            drop((stays, refused));
            posted(pair.near.qp.send(0, pair.message(1, 64, 1)?, true))?;
            check!(pair.near.events.sends.take()?.1 == Ok(()));
            check!(pair.far.qp.drain() == Ok(()));
            // What came was for nobody: its receive was posted again.
            check!(pair.far.events.recvs.len() == 0);
            drop(pair);
            let other = srq::pair(addr, &srq)?;
            for number in 0..2 {
                posted(other.near.qp.send(0, other.message(number, 64, 1)?, true))?;
                check!(other.near.events.sends.take()?.1 == Ok(()));
                srq.cq().poll(1);
                check!(other.far.events.recvs.take()?.1 == Ok(64));
            }
            drop(other);
            check!(last(srq) && alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn shared_queue_keeps_its_receives_and_tells_nobody() -> Result {
        struct Silent;

        impl SrqEvents for Silent {
            fn limit_reached(&self) {}
        }

        with_device(|device, _| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let events = Arc::new(Silent, GFP_KERNEL)?;
            let cq = AnyCq::alloc(device, 4, 0, PollContext::Workqueue)?;
            let srq = Srq::<Handler>::create(&Pd::alloc(device)?, &cq, 4, 1, Some(events.clone()))?;
            posted(srq.recv(srq::landing(device, &alive, 0)?))?;
            let refused = replaced!(device, destroy_srq, refuse::<bindings::ib_srq>);
            check!(last(srq) && last(events));
            check!(device.remnants().count() == 1 && alive.load(Relaxed) == 1);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0 && alive.load(Relaxed) == 0);
            check!(last(cq));
            Ok(())
        })
    }

    #[test]
    fn completion_queue_notifies_nobody() -> Result {
        struct Count(Atomic<u32>);

        impl CqNotify for Count {
            fn notify(&self) {
                self.0.fetch_add(1, Relaxed);
            }
        }

        with_device(|device, _| {
            let count = Arc::new(Count(Atomic::new(0)), GFP_KERNEL)?;
            let cq = AnyCq::alloc(device, 4, 0, PollContext::Manual(count.clone()))?;
            let raw = cq.as_raw();
            // What a device does when it raises an interrupt.
            // SAFETY: The queue is there, as long as the device has refused to destroy it.
            let interrupt = || unsafe {
                if let Some(handler) = (*raw).comp_handler {
                    handler(raw, (*raw).cq_context);
                }
            };
            interrupt();
            check!(count.0.load(Relaxed) == 1);
            let refused = replaced!(device, destroy_cq, refuse::<bindings::ib_cq>);
            check!(last(cq) && device.remnants().count() == 1);
            interrupt();
            check!(count.0.load(Relaxed) == 1);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0 && last(count));
            Ok(())
        })
    }

    #[test]
    fn protection_domain_is_kept() -> Result {
        with_device(|device, _| {
            let pd = Pd::alloc(device)?;
            let refused = replaced!(device, dealloc_pd, refuse::<bindings::ib_pd>);
            check!(last(pd) && device.remnants().count() == 1);
            drop(refused);
            device.remnants().retry();
            check!(device.remnants().count() == 0);
            Ok(())
        })
    }
}
