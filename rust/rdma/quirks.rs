// SPDX-License-Identifier: GPL-2.0

//! What devices do against the specification or otherwise than most, and how the module copes. No
//! other file of the module names a device or its driver: it says what some devices do, or asks
//! [`Quirks`], and a section here says which ones these are.
//!
//! # Unfinished READs
//!
//! `rdma_rxe` may complete an RDMA READ with success before all data have come. `check_ack()` in
//! `rxe_comp.c` gives up on a response that it does not expect without setting `wqe->status`, so
//! that `rxe_completer()` warns, once, completes the work request as it is, and moves the queue
//! pair to its error state. It need only happen that, between two responses to a READ, the
//! acknowledgment of something earlier comes, late or once more: `COMPST_UPDATE_COMP` then forgets
//! that rxe is within the READ, and the next response is one that cannot begin it. A peer that
//! acknowledges the READ, rather than answer it, ends it as well, and then the queue pair does not
//! even fail.
//!
//! So the end of the memory of each work request gets a [`Mark`] before the READ is posted.
//! `copy_data()` fills the memory from its beginning to its end: what was overwritten at the end
//! was overwritten everywhere. The result of an atomic operation gets one for the same reason.
//!
//! # Registrations that run again
//!
//! When `rdma_rxe` goes back to a message that was not acknowledged (`req_retry()` in `rxe_req.c`),
//! it runs the `REG_MR`s behind it in the send queue again. `rxe_reg_fast_mr()` fails, and so does
//! the queue pair, if the region is valid: so requests are sent again only after a long
//! [`Quirks::ack_timeout`]. If the peer has invalidated the region meanwhile, it becomes valid
//! again, with the same key.
//!
//! So an answer that invalidates counts only once the request's own message has completed, and its
//! registration with it. If the answer was first, the region is invalidated once more, by a
//! `LOCAL_INV` behind the message.
//!
//! A message that finds no receive is sent again in the same way. So a server posts a receive for
//! each message that its clients may send.
//!
//! # Sends that complete while they are posted
//!
//! `rdma_rxe` may complete a work request while `ib_post_send()` still takes the rest of its chain:
//! `rxe_post_send_kernel()` in `rxe_verbs.c` reads the link to the next one only after the task
//! that sends could see this one. So a slot is not free before its whole chain was posted, whatever
//! the device.
//!
//! # Retries without a limit
//!
//! To the specification a retry count of 7 is one as any other, but for messages that find no
//! receive. `rdma_rxe` takes it to mean without a limit.
//!
//! # Queues that do not drain
//!
//! If `rdma_rxe` has no memory to connect a queue pair that serves READs, `rxe_qp_from_attr()` in
//! `rxe_qp.c` leaves the task of its receive queue disabled, and what is posted there never
//! completes. So only a queue that something was posted to is drained.
//!
//! # Address handles
//!
//! `rdma_destroy_ah()` with flags may be called where nothing may sleep. `rdma_rxe` takes a lock
//! then (`__rxe_cleanup()` in `rxe_pool.c`) that tasks take with softirqs enabled. So with all
//! devices a task destroys them.
//!
//! # An entry that stays empty
//!
//! A queue of `rdma_rxe` has a power of two of entries, of which one stays empty
//! (`rxe_queue_init()` in `rxe_queue.c`). Sizes that are chosen here are one less than a power of
//! two.
//!
//! # Unreliable queue pairs
//!
//! `rdma_rxe` does these things otherwise than the specification wants, which the documentation
//! warns of and the suites allow for:
//!
//! - A message that is longer than its receive fails the receive and the queue pair
//!   ([`Quirks::long_message_fails`]), rather than be lost.
//! - A send that fails ends the receives of the queue pair as well
//!   ([`Quirks::send_error_ends_receives`]): it goes to `IB_QPS_ERR`, not to `IB_QPS_SQE`.
//! - A message that invalidates a key of the peer is posted to an unreliable connection
//!   ([`Quirks::posts_any_invalidation`]), and fails later, as `next_opcode_uc()` in `rxe_req.c`
//!   does not know it.
//!
//! It registers no memory on such queue pairs, which the specification leaves to the device.
//!
//! # Lost receives
//!
//! A shared receive queue of `rdma_rxe` loses a receive if the queue pair that has taken it fails
//! while it receives a message of several packets into it. Such a receive stays in the
//! [`Srq`](super::srq::Srq) until that is dropped, and nobody can tell which one it was.
//!
//! # Flushes that are not solicited
//!
//! A completion with an error counts as solicited, so that a queue that is armed for solicited ones
//! tells of it. With `rdma_rxe` that is not so for the receives of a queue pair that has failed
//! (`flush_recv_wqe()` in `rxe_resp.c`), nor for sends (`rxe_comp.c`). A task that waits for such a
//! queue has to be woken by [`QpHandler::error`](super::qp::QpHandler::error) as well, or when the
//! connection ends.
//!
//! # No event of the last receive
//!
//! `siw`, `irdma` and `qedr` do not report `IB_EVENT_QP_LAST_WQE_REACHED`. There a queue pair with
//! a shared receive queue is destroyed without it, and a receive that the device had taken for it
//! may be lost. A device that is not known to be one of them is given some time, once; see
//! [`Device::tells_last_receive`](super::device::Device::tells_last_receive).
//!
//! # Pages of any size
//!
//! `siw` says in `page_size_cap` that a memory region has pages of `PAGE_SIZE` only, of which it
//! takes 256. But `siw_map_mr_sg()` does not look at pages: it keeps the address and the length of
//! each entry of the list, and what 256 is the limit of are these. So larger pages are used as with
//! a device that has them, or a region would be no larger than 1 MiB.
//!
//! # Data that are sent by reference
//!
//! `siw_qp_prepare_tx()` in `siw_qp_tx.c` has TCP send the pages of an unsignaled work request,
//! rather than copies, and takes it for complete once TCP has them. So when the last work request
//! of a slot completes, the data of those before it may still have to be sent: what is written to
//! their memory then is what the peer gets. Signaled ones are copied, so all that send data are.
//!
//! # READs of no bytes
//!
//! Where `siw` cannot answer an RDMA READ at once, `siw_activate_tx()` in `siw_qp.c` leaves the
//! segment of the work request before it in place if there are no bytes to send, and
//! `siw_qp_sq_proc_tx()` sends that segment. So where others are under way at the same time, a byte
//! is read. It may go to memory that has no region of its own: `siw` does not want one. A READ that
//! has nothing of the peer's to read is not posted ([`rdma_nothing`](super::qp::Qp::rdma_nothing)):
//! it would fail if the peer has just answered a message.
//!
//! # Access that is not checked
//!
//! `siw_proc_rreq()` in `siw_qp_rx.c` answers an RDMA READ of a peer from whatever memory the key
//! names, which need not let peers read; and where a READ of no bytes was asked for, the key of all
//! memory may be on its way to the peer (see above). A peer can read any page of the host. So the
//! driver takes no such device, unless the module's parameter `unsafe_devices` says so.
//!
//! # Rejections that look like resets
//!
//! When the peer has rejected a connection, `siw_proc_mpareply()` in `siw_cm.c` says `-ECONNRESET`,
//! as of one that was reset, and not `-ECONNREFUSED`, by which the core knows that the private data
//! are those of the peer's program. So with iWARP such data are taken as that in both cases.
//!
//! # First messages that are not noticed
//!
//! `siw_accept()` in `siw_cm.c` sends the reply to a connection first, and then has the queue pair
//! take what TCP receives (`siw_qp_socket_assoc()`). In between `siw_cm_llp_data_ready()` ignores
//! it. So if the client's first message is quick, it stays with the server's TCP until something
//! else comes: one of about a hundred does. A client that gets no answer sends an RDMA WRITE of no
//! bytes.
//!
//! # Atomic operations that cannot be posted
//!
//! `mlx5` does atomic operations for peers, and says so in `atomic_cap`, but `ib_post_send()` of a
//! kernel user refuses them (`handle_qpt_rc()` in `wr.c`: "not supported yet"). `ionic`, `irdma`
//! and `bnxt_re` report masked ones in `masked_atomic_cap` that they refuse, and `vmw_pvrdma` some
//! that it posts without their operands. A work request that is refused would end the queue pair.
//!
//! Where the hardware of `mlx5` would return results in network order only, it reports none
//! (`get_atomic_caps()` in `main.c`), so that nobody need convert them.
//!
//! # Shared receive queues that are not there
//!
//! `irdma` reports sizes of them on an E810 (`max_srq_wr`), which has none. So
//! [`Device::has_srq`](super::device::Device::has_srq) looks for the functions as well.

use crate::base::sync::random_u64;
use crate::bindings;

/// What a device does against the specification.
///
/// # Examples
///
/// ```
/// # use crate::rdma::device::Device;
/// # use kernel::prelude::*;
/// # fn example(device: &Device) {
/// if device.quirks().misses_first_message() {
///     pr_info!("{}: the first message may have to be sent again\n", device.name());
/// }
/// # }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Quirks {
    rxe: bool,
    siw: bool,
    virt_dma: bool,
    hides_last_receive: bool,
    posts_no_atomics: bool,
    posts_no_masked_atomics: bool,
}

impl Quirks {
    /// Returns the quirks of `device`.
    ///
    /// # Safety
    ///
    /// The device must be registered.
    pub(super) unsafe fn of(device: *mut bindings::ib_device) -> Self {
        // SAFETY: By the safety requirements; what is read does not change.
        let (driver, virt_dma) =
            unsafe { ((*device).ops.driver_id, bindings::ib_uses_virt_dma(device)) };
        Self {
            rxe: driver == bindings::rdma_driver_id_RDMA_DRIVER_RXE,
            siw: driver == bindings::rdma_driver_id_RDMA_DRIVER_SIW,
            virt_dma,
            hides_last_receive: [
                bindings::rdma_driver_id_RDMA_DRIVER_SIW,
                bindings::rdma_driver_id_RDMA_DRIVER_IRDMA,
                bindings::rdma_driver_id_RDMA_DRIVER_QEDR,
            ]
            .contains(&driver),
            posts_no_atomics: driver == bindings::rdma_driver_id_RDMA_DRIVER_MLX5,
            posts_no_masked_atomics: [
                bindings::rdma_driver_id_RDMA_DRIVER_MLX5,
                bindings::rdma_driver_id_RDMA_DRIVER_IONIC,
                bindings::rdma_driver_id_RDMA_DRIVER_IRDMA,
                bindings::rdma_driver_id_RDMA_DRIVER_BNXT_RE,
                bindings::rdma_driver_id_RDMA_DRIVER_VMW_PVRDMA,
            ]
            .contains(&driver),
        }
    }

    /// Returns true if data are sent from where they are after their work request has completed,
    /// unless that has asked for a completion.
    pub(super) fn sends_by_reference(&self) -> bool {
        self.siw
    }

    /// Returns true if the device of a peer may answer an RDMA READ of no bytes with some.
    pub(super) fn no_empty_reads(&self) -> bool {
        self.siw
    }

    /// Returns true if the device of a peer that has accepted a connection may not notice the first
    /// message until something else comes.
    pub(crate) fn misses_first_message(&self) -> bool {
        self.siw
    }

    /// Returns true if peers can access memory that was not granted to them.
    pub(crate) fn exposes_memory(&self) -> bool {
        self.siw
    }

    /// Returns true if memory regions can have pages of any size, whatever the device says.
    pub(super) fn any_page_size(&self) -> bool {
        self.siw
    }

    /// Returns true if an RDMA READ that has succeeded may be unfinished. The addresses of its
    /// segments are then virtual ones.
    pub(super) fn unfinished_reads(&self) -> bool {
        self.rxe && self.virt_dma
    }

    /// Returns true if a completion queue that is armed for solicited completions may not tell of
    /// the receives of a queue pair that has failed.
    pub(crate) fn flushes_unsolicited(&self) -> bool {
        self.rxe
    }

    /// Returns true if a `REG_MR` may run again until the message behind it has completed.
    pub(super) fn registers_again(&self) -> bool {
        self.rxe
    }

    /// Returns true if a shared receive queue may lose a receive with a queue pair that fails.
    pub(crate) fn loses_receives(&self) -> bool {
        self.rxe || self.hides_last_receive
    }

    /// Returns true if the device is known not to tell of the last receive of a queue pair.
    pub(super) fn hides_last_receive(&self) -> bool {
        self.hides_last_receive
    }

    /// Returns true if the device does atomic operations for peers, but its driver posts none.
    pub(super) fn posts_no_atomics(&self) -> bool {
        self.posts_no_atomics
    }

    /// Returns true if the driver posts no masked atomic operations, whatever it reports.
    pub(super) fn posts_no_masked_atomics(&self) -> bool {
        self.posts_no_masked_atomics
    }

    /// Returns true if a message that is longer than its receive fails that, and the queue pair,
    /// where the connection is unreliable and it should be lost.
    pub(super) fn long_message_fails(&self) -> bool {
        self.rxe
    }

    /// Returns true if a send that fails ends the receives of its queue pair, too, where the
    /// service is unreliable and only the sends should end.
    pub(super) fn send_error_ends_receives(&self) -> bool {
        self.rxe
    }

    /// Returns true if a message that invalidates a key of the peer can be posted to an unreliable
    /// connection, where it fails once it is to be sent.
    pub(super) fn posts_any_invalidation(&self) -> bool {
        self.rxe
    }

    /// Returns the timeout for acknowledgments that a connection needs if its requests register
    /// memory, in the unit of [`CmId::set_ack_timeout`](super::cm::CmId::set_ack_timeout); `None`
    /// if any will do.
    pub(crate) fn ack_timeout(&self) -> Option<u8> {
        // 4.096 us x 2^18 = 1.07 s.
        self.rxe.then_some(18)
    }
}

/// A random number for the last 8 bytes of memory, or for all that it has.
///
/// It differs from what will be read, but for one chance in 2^64. Were it the same, a success would
/// be taken for an error, and what was read be read again.
#[derive(Clone, Copy)]
pub(super) struct Mark([u8; 8]);

impl Mark {
    /// Another number each time. Any context.
    #[inline]
    pub(super) fn new() -> Self {
        Self(random_u64().to_ne_bytes())
    }

    /// Puts the mark at the end of `segment`.
    ///
    /// # Safety
    ///
    /// The address is that of memory in the direct map, which the CPU may write, and to which there
    /// are no references.
    #[inline]
    pub(super) unsafe fn put(&self, segment: &bindings::ib_sge) {
        for (place, byte) in self.bytes(segment) {
            // SAFETY: By the safety requirements; the place is in the segment.
            unsafe { place.write_volatile(byte) };
        }
    }

    /// Returns true if the mark is at the end of `segment`.
    ///
    /// # Safety
    ///
    /// As for [`Self::put`].
    #[inline]
    pub(super) unsafe fn is_at(&self, segment: &bindings::ib_sge) -> bool {
        self.bytes(segment)
            // SAFETY: By the safety requirements; the place is in the segment.
            .all(|(place, byte)| unsafe { place.read_volatile() } == byte)
    }

    /// The bytes of the mark, and their places.
    #[inline]
    fn bytes(&self, segment: &bindings::ib_sge) -> impl Iterator<Item = (*mut u8, u8)> + '_ {
        let len = self.0.len().min(segment.length as usize);
        // CAST: A virtual address.
        let start = segment.addr as usize + segment.length as usize - len;
        let places = (start..start + len).map(core::ptr::with_exposed_provenance_mut);
        places.zip(self.0)
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_rdma_mark)]
mod tests {
    use super::*;
    use crate::kunit::check;
    use kernel::prelude::*;

    #[test]
    fn is_there_until_it_is_overwritten() -> Result {
        const END: usize = 24;
        for len in 1..=END {
            let mut memory = KVec::from_elem(0u8, 32, GFP_KERNEL)?;
            let start = memory.as_mut_ptr();
            let segment = bindings::ib_sge {
                addr: start.wrapping_add(END - len).expose_provenance() as u64,
                // CAST: A small number.
                length: len as u32,
                lkey: 0,
            };
            let mark = Mark::new();
            // SAFETY: `memory` has the segment.
            check!(unsafe { !mark.is_at(&segment) });
            // SAFETY: As above.
            unsafe { mark.put(&segment) };
            // SAFETY: As above.
            check!(unsafe { mark.is_at(&segment) });
            let marked = END - len.min(8)..END;
            let outside = (0..32).filter(|at| !marked.contains(at));
            for at in outside {
                // SAFETY: All these are in `memory`.
                unsafe {
                    check!(start.add(at).read_volatile() == 0);
                    start.add(at).write_volatile(1);
                    check!(mark.is_at(&segment));
                }
            }
            for at in marked {
                // SAFETY: As above.
                unsafe {
                    let byte = start.add(at).read_volatile();
                    start.add(at).write_volatile(!byte);
                    check!(!mark.is_at(&segment));
                    start.add(at).write_volatile(byte);
                    check!(mark.is_at(&segment));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn is_another_one_each_time() -> Result {
        let mut memory = [0u8; 8];
        let segment = bindings::ib_sge {
            addr: memory.as_mut_ptr().expose_provenance() as u64,
            length: 8,
            lkey: 0,
        };
        let (first, second) = (Mark::new(), Mark::new());
        // SAFETY: `memory` is the segment.
        unsafe {
            first.put(&segment);
            check!(first.is_at(&segment) && !second.is_at(&segment));
        }
        Ok(())
    }
}
