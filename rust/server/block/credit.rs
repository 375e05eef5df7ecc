// SPDX-License-Identifier: GPL-2.0

//! Credit: how many commands the client of a connection may have in flight, and the receives that
//! the server keeps for them.
//!
//! There is a receive for every command that a client may send: the receive queue must never run
//! dry, as the connections of some devices do not survive that.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use crate::proto::wire::INLINE_MAX;
use crate::rdma::{
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    qp::Qp,
    remnant::ObjectRef, //
};
use crate::server::{
    block::{
        poller::{
            spare,
            Entry,
            Hca,
            Polled,
            Poller,
            CONNECTIONS_MAX, //
        },
        recv::Recv, //
    },
    memory::buddy::CHUNK,
};

/// The credit that a busy client gets however much memory receives have.
const CREDIT_SURE: u16 = 16;
/// Receives that are allocated together.
const RECVS_AT_ONCE: usize = 32;
const _: () = assert!(RECVS_AT_ONCE * INLINE_MAX as usize <= CHUNK);
/// Bytes of a cache line: no two commands share one.
const CACHE_LINE: usize = 64;

/// The credit of a connection, and the promise of its poller to have receives for it. The promise
/// ends with the drop, in any context.
pub(in crate::server) struct ReceiveCredit<C: Polled> {
    poller: Arc<Poller<C>>,
    /// The bit by which the poller knows the connection.
    bit: u64,
    /// Commands that the client may have in flight.
    credit: u16,
    /// Promised receives: as many as `credit`, or, in a receive queue of the connection's own, as
    /// many as the credit may ever become.
    pub(super) promised: u16,
    /// The connection has ended, and may have taken a receive with it.
    pub(super) lost: bool,
}

impl<C: Polled> ReceiveCredit<C> {
    /// Returns the poller that keeps the receives.
    pub(in crate::server) fn poller(&self) -> &Arc<Poller<C>> {
        &self.poller
    }

    /// Returns the bit by which the poller knows the connection.
    #[inline]
    pub(in crate::server) fn bit(&self) -> u64 {
        self.bit
    }

    /// Returns the number of commands that there are receives for.
    pub(in crate::server) fn credit(&self) -> u16 {
        self.credit
    }
}

impl<C: Polled> Drop for ReceiveCredit<C> {
    fn drop(&mut self) {
        let poller = &self.poller;
        let mut shared = poller.shared.lock();
        shared.receives.withdraw(self.promised.into());
        let lost = self.lost || poller.device.quirks().loses_receives();
        if poller.has_srq && self.credit > 0 && lost {
            shared.receives.miss();
        }
        shared.users &= !self.bit;
    }
}

impl<C: Polled> Poller<C> {
    /// Returns the most credit that a connection can have on `device`.
    pub(in crate::server) fn credit_max(device: &Device) -> u16 {
        let limits = device.limits();
        let receives = match device.has_srq() {
            true => limits.max_srq_wr.saturating_sub(spare(device)),
            // Draining takes one.
            false => limits.max_qp_wr.saturating_sub(1),
        };
        u16::try_from(receives).unwrap_or(u16::MAX)
    }

    /// Reserves `credit` for a new connection. Fails with `ENOSPC` if the poller has too many
    /// connections, or too few receives for one that would have `max` commands in flight. May
    /// sleep.
    pub(in crate::server) fn reserve(
        self: &Arc<Self>,
        credit: u16,
        max: u16,
    ) -> Result<ReceiveCredit<C>> {
        let bit = {
            let mut shared = self.shared.lock();
            let bit = 1_u64.checked_shl(shared.users.trailing_ones());
            let bit = bit.filter(|_| shared.receives.available() >= max.into());
            let bit = bit.ok_or(ENOSPC)?;
            shared.users |= bit;
            bit
        };
        let mut reserved = ReceiveCredit {
            poller: self.clone(),
            bit,
            credit: 0,
            promised: 0,
            lost: false,
        };
        match self.has_srq {
            true => {
                self.promise(credit, true)?;
                reserved.promised = credit;
            }
            false => {
                let mut shared = self.shared.lock();
                shared.receives.promise(max.into()).ok_or(ENOSPC)?;
                reserved.promised = max;
            }
        }
        reserved.credit = credit;
        Ok(reserved)
    }

    /// Posts the first receives of a connection that has a receive queue of its own. May sleep.
    pub(in crate::server) fn post_first_recvs(
        &self,
        qp: &ObjectRef<Qp<C::Handler>>,
        credit: u16,
    ) -> Result {
        match self.has_srq {
            true => Ok(()),
            false => self.make_recvs(&mut credit.into(), true, |recv| qp.recv(recv)),
        }
    }

    /// Makes sure that the shared receive queue has receives for `count` more commands, `first` if
    /// they are the first ones of a connection. Once this returns, a client may rely on them. Fails
    /// with `ENOSPC` if the queue has too few entries. May sleep.
    fn promise(&self, count: u16, first: bool) -> Result {
        let missing = self.shared.lock().receives.promise(count.into());
        let mut missing = missing.ok_or(ENOSPC)?;
        let post = |recv| self.shared.lock().post_recv(recv);
        let made = self.make_recvs(&mut missing, first, post);
        if made.is_err() {
            let mut shared = self.shared.lock();
            shared.receives.lose(missing);
            shared.receives.withdraw(count.into());
        }
        made
    }

    /// Makes `missing` receives, posts each with `post`, and counts `missing` down. `first` if they
    /// are the first ones of a connection, which it has in any case. May sleep.
    fn make_recvs(
        &self,
        missing: &mut u32,
        first: bool,
        mut post: impl FnMut(KBox<Recv>) -> Result<(), (Error, KBox<Recv>)>,
    ) -> Result {
        let size = usize::try_from(self.inline_size)?;
        while *missing > 0 {
            let count = RECVS_AT_ONCE.min(usize::try_from(*missing)?);
            let stride = self.header.next_multiple_of(CACHE_LINE);
            let headers = DmaBuffer::alloc(&self.device, count * stride, Direction::FromDevice)?;
            let memory = Arc::new(self.pool.get_lasting(count * size, first)?, GFP_KERNEL)?;
            for (index, mut header) in headers.split(stride).take(count).enumerate() {
                // The bytes that follow the command go to the inline data.
                header.truncate(self.header)?;
                let recv = Recv {
                    header,
                    data: memory.piece(index * size, size)?,
                    _memory: memory.clone(),
                };
                let recv = KBox::new(recv, GFP_KERNEL)?;
                post(recv).map_err(|(error, _)| error)?;
                *missing -= 1;
            }
        }
        Ok(())
    }

    /// Gives the connection at `index` more credit, if it wants some and there is memory for it.
    /// Returns false if there is no such connection. May sleep.
    fn extend_credit_of(&self, index: usize) -> bool {
        let (connection, qp, own) = {
            let hca = self.hca.lock();
            let hca: &Option<Hca<C>> = &hca;
            match hca.as_ref().and_then(|hca| hca.connections.get(index)) {
                Some(Entry {
                    connection,
                    qp,
                    credit,
                }) => (
                    connection.clone(),
                    qp.clone(),
                    credit.promised - credit.credit,
                ),
                None => return false,
            }
        };
        let available = match self.has_srq {
            true => self.shared.lock().receives.available(),
            false => own.into(),
        };
        let more = connection.credit_wanted();
        let more = more.min(u16::try_from(available).unwrap_or(u16::MAX));
        if more == 0 {
            return true;
        }
        let all = connection.credit() + more;
        let first = all <= CREDIT_SURE;
        let made = connection.make_commands(all);
        let made = made.and_then(|()| match self.has_srq {
            true => self.promise(more, first),
            false => self.make_recvs(&mut more.into(), first, |recv| qp.recv(recv)),
        });
        // The owner of the connection may wait for this reference to go.
        drop(qp);
        if made.is_err() {
            // The pool asks for another attempt later.
            return true;
        }
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca<C>> = &mut hca;
        let mut entries = hca.iter_mut().flat_map(|hca| &mut hca.connections);
        match entries.find(|entry| Arc::ptr_eq(&entry.connection, &connection)) {
            Some(entry) => {
                entry.credit.credit += more;
                if self.has_srq {
                    entry.credit.promised += more;
                }
                connection.grant_credit(more);
            }
            None if self.has_srq => self.shared.lock().receives.withdraw(more.into()),
            None => {}
        }
        true
    }
}

impl<C: Polled> WorkItem<1> for Poller<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for index in 0..CONNECTIONS_MAX {
            if !this.extend_credit_of(index) {
                return;
            }
        }
    }
}
