// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the chain of work requests, on a device that completes a part of it early.

use crate::rdma::kunit::{
    broken::replaced,
    *, //
};
use kernel::{
    ffi::c_int,
    time::{
        delay::udelay,
        Delta, //
    }, //
};

/// An operation that posts to the send queue of a queue pair.
type PostSend = Option<
    unsafe extern "C" fn(
        *mut bindings::ib_qp,
        *const bindings::ib_send_wr,
        *mut *const bindings::ib_send_wr,
    ) -> c_int,
>;

/// A queue pair to which [`post_slowly`] posts.
struct SlowPost {
    qp: *mut bindings::ib_qp,
    post: PostSend,
    events: Arc<Events>,
    /// A send came back before the chain that it is in was posted.
    early: Atomic<u32>,
}

/// The only one, for as long as the operation is replaced.
static SLOW: Atomic<*mut SlowPost> = Atomic::new(core::ptr::null_mut());

/// Posts the first work request of a chain, waits for its completion for a while, and only then
/// reads its link and posts the rest. Other queue pairs are left alone.
///
/// # Safety
///
/// As for the operation of the device, and [`SLOW`] must be set. The chain must be one of plain
/// sends.
unsafe extern "C" fn post_slowly(
    qp: *mut bindings::ib_qp,
    wr: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: By the safety requirements.
    let slow = unsafe { &*SLOW.load(Relaxed) };
    let Some(post) = slow.post else {
        return EIO.to_errno();
    };
    if qp != slow.qp {
        // SAFETY: By the safety requirements.
        return unsafe { post(qp, wr, bad) };
    }
    // SAFETY: By the safety requirements; likewise below. The device copies the work request.
    let ret = unsafe {
        let mut first = wr.read();
        first.next = core::ptr::null_mut();
        post(qp, &first, bad)
    };
    for _ in 0..50 {
        udelay(Delta::from_millis(1));
        if slow.events.sends.len() != 0 {
            slow.early.store(1, Relaxed);
            break;
        }
    }
    // SAFETY: As above.
    let next = unsafe { (*wr).next };
    match ret != 0 || next.is_null() {
        true => ret,
        // SAFETY: As above.
        false => unsafe { post(qp, next, bad) },
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_chain)]
mod tests {
    use super::*;

    /// A device may complete a send before it reads its link: another CPU may handle the
    /// completion meanwhile. On one CPU none does, and this cannot fail.
    #[test]
    fn send_that_completes_before_its_link_was_read_keeps_its_slot() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device();
            for number in 0..2 {
                posted(pair.far.qp.recv(pair.landing(number, 64)?))?;
            }
            let mut slow = SlowPost {
                qp: pair.near.raw_qp(),
                // SAFETY: The device is registered by its invariants.
                post: unsafe { (*device.as_raw()).ops.post_send },
                events: pair.near.events.clone(),
                early: Atomic::new(0),
            };
            SLOW.store(&mut slow, Relaxed);
            let messages = [pair.message(0, 64, 1)?, pair.message(1, 64, 1)?];
            let broken = replaced!(device, post_send, post_slowly);
            let mut results = [Ok(()); 2];
            for (slot, message) in messages.into_iter().enumerate() {
                // CAST: A small number.
                results[slot] = posted(pair.near.qp.send(slot as u16, message, slot == 1));
            }
            drop(broken);
            check!(results == [Ok(()); 2]);
            // Its slot was not free for another send while the device could read it.
            check!(slow.early.load(Relaxed) == 0);
            for number in 0..2 {
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == number && result == Ok(()));
                check!(pair.far.events.recvs.take()?.1 == Ok(64));
            }
            Ok(())
        })
    }
}
