// SPDX-License-Identifier: GPL-2.0

//! The I/O connections of a session to an export of a block device: made one by one, drained and
//! closed together.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::sync::Completion;
use crate::link::{
    channel::Side,
    cipher::Cipher,
    keys::Tickets,
    may_invalidate, //
};
use crate::proto::{
    handshake::Ticket,
    wire::DEPTH_MAX,
    Access,
    Backing,
    BlockLimits,
    Login,
    Protection,
    Terms, //
};
use crate::rdma::{
    cm::CmId,
    cq::{
        Cq,
        CqNotify,
        Manual, //
    },
    device::Device,
    qp::{
        Qp,
        QpCaps, //
    },
    remnant::ObjectRef,
    request::RequestCaps,
};
use crate::server::{
    backend::Block,
    block::{
        adapter::User,
        queue::{
            credit_max,
            IoQueue,
            Label,
            Poller,
            QueueConfig,
            QueuePair,
            ReceiveCredit,
            ReceiveQueue,
            CREDIT_FIRST, //
        },
    },
    none,
    persistent::Joined,
    session::Session, //
};

/// How long commands are waited for that a device keeps before it is asked again to destroy their
/// queue pair.
const LOST_RETRY_MS: u32 = 500;

/// Wakes a poller that waits for the completion of a send.
struct Wake(Arc<Poller>);

impl CqNotify for Wake {
    fn notify(&self) {
        self.0.attend();
    }
}

/// An I/O connection with its queue pair, as its owner has it.
struct OpenQueue {
    queue: Arc<IoQueue>,
    qp: ObjectRef<QueuePair>,
}

impl OpenQueue {
    /// Makes the queue pair on a bound `id`, ready to receive commands. [`OpenQueue::close`] must
    /// be its end. May sleep.
    fn new(id: &Arc<CmId>, credit: ReceiveCredit, config: &QueueConfig<'_>) -> Result<Self> {
        let device = id.device()?;
        let poller = credit.poller().clone();
        let depth = config.terms.depth;
        let caps = QpCaps {
            slots: depth,
            // The data of a read and its answer. The READ of a write is done before its answer.
            send_wr: 2 * u32::from(credit_max(depth)),
            recv_wr: 0,
            // The data of a command are one piece of the pool. They may follow a framed answer.
            sges: 1 + u32::from(config.protection.is_on()),
            ..QpCaps::default()
        };
        let caps = match device.reads_need_regions() {
            false => RequestCaps::from(caps),
            // For the data of writes.
            true => RequestCaps::with_regions(caps, &device, config.terms.limits.max_io),
        };
        let wake = Arc::new(Wake(poller.clone()), GFP_KERNEL)?;
        let cq = Cq::<Manual>::alloc(&device, caps.send_cqes(), poller.vector(), wake)?;
        let queue = IoQueue::new(config, &credit, cq)?;
        let qp = poller.add(credit, &queue, |receives| {
            let handler = queue.clone();
            match receives {
                ReceiveQueue::Shared(srq) => Qp::create_on(id, srq, queue.cq(), caps, handler),
                ReceiveQueue::Own(pd, cq, recv_wr) => {
                    let qp = QpCaps { recv_wr, ..caps.qp };
                    let caps = RequestCaps { qp, ..caps };
                    Qp::create(id, pd, queue.cq(), cq, caps, handler)
                }
            }
        })?;
        let this = Self { queue, qp };
        match this.queue.prepare(&this.qp) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.close();
                Err(error)
            }
        }
    }

    /// Lets the HCA begin nothing more. May sleep.
    fn cut(&self) {
        self.queue.shut();
        self.qp.fail();
    }

    /// Ends all commands, and waits until the backing device and the HCA are done with them: a
    /// command that was not answered has been done by then, or never will be. May sleep, as long as
    /// the backing device takes.
    fn close(&self) {
        self.queue.close(&self.qp, |idle| self.wait_idle(idle));
        self.queue.poller().remove(&self.queue);
    }

    /// Waits until neither the HCA nor the backing device has a command any more. May sleep.
    fn wait_idle(&self, idle: &Completion) {
        // A drain returns the commands that the queue pair had. Memory to which a peer may still
        // have access, as with iWARP, stays with its domain, and is not waited for. A queue pair
        // that the device refuses to destroy keeps its commands, and each of them refers to it. So
        // nothing but this asks the device again. A device that never gives in is waited for
        // without end.
        while self.qp.drain().is_err_and(|undrained| undrained.lost) {
            if idle.wait_timeout(LOST_RETRY_MS).is_ok() {
                return;
            }
        }
        // This waits for the commands that the backing device has.
        idle.wait_io();
    }
}

/// A session's I/O connections. The drop closes them, and waits until no command is under way any
/// more.
pub(in crate::server) struct Connections {
    /// The connections that are up, by their index.
    queues: KVec<Option<OpenQueue>>,
    block: Arc<Block>,
    access: Access,
    terms: Terms,
    protection: Protection,
    /// The client's device takes answers that invalidate keys.
    invalidates: bool,
    label: Label,
    user: User,
    // Last: the connections are closed by then.
    joined: Joined,
}

impl Connections {
    /// Makes no connections yet, and later up to `queues` of them with `depth` commands each, on
    /// the terms of `login`. May sleep.
    pub(in crate::server) fn new(
        (user, joined): (User, Joined),
        block: &Arc<Block>,
        access: Access,
        login: &Login,
        (queues, depth): (u16, u16),
    ) -> Result<Self> {
        let adapter = &user.adapter;
        Ok(Self {
            queues: none(usize::from(queues))?,
            block: block.clone(),
            access,
            terms: Terms {
                depth,
                inline_size: login.inline_size.min(adapter.inline_size),
                limits: BlockLimits {
                    max_io: block.limits().max_io.min(io_max(adapter.pd.device())),
                    ..*block.limits()
                }
                .fitted(),
            },
            protection: login.protection,
            invalidates: login.remote_invalidate && may_invalidate(adapter.pd.device()),
            label: Label {
                export: login.export,
                host: login.host_name,
                index: 0,
            },
            user,
            joined,
        })
    }

    /// Returns the limits of a read or write, as the login's reply has them.
    pub(in crate::server) fn limits(&self) -> BlockLimits {
        self.terms.limits
    }

    /// Returns what the reply to the login says of the connections.
    pub(in crate::server) fn backing(&self) -> Backing {
        Backing::Block {
            depth: self.terms.depth,
            credit: credit_max(self.terms.depth).min(CREDIT_FIRST),
            inline_size: self.terms.inline_size,
        }
    }

    /// Returns true if there may be an I/O connection `queue`, and there is none.
    pub(in crate::server) fn is_free(&self, queue: u16) -> bool {
        matches!(self.queues.get(usize::from(queue)), Some(None))
    }

    /// Makes I/O connection `queue`, ready to receive, on which `fetches_max` RDMA READs may be
    /// under way. May sleep.
    pub(in crate::server) fn connect(
        &mut self,
        id: &Arc<CmId>,
        (queue, fetches_max): (u16, u8),
        session: &Arc<Session>,
    ) -> Result {
        self.user.reserve_memory()?;
        let adapter = &self.user.adapter;
        let max = credit_max(self.terms.depth);
        let index = usize::from(queue);
        let place = self.queues.get_mut(index).ok_or(EINVAL)?;
        // The connections of different sessions are spread, too.
        let vector = index.wrapping_add(session.spread());
        let connection = OpenQueue::new(
            id,
            adapter.reserve(vector, max.min(CREDIT_FIRST), max)?,
            &QueueConfig {
                session,
                label: Label {
                    index: queue,
                    ..self.label
                },
                block: &self.block,
                client: &self.user.client,
                access: self.access,
                terms: self.terms,
                later: &adapter.maker,
                worker: &adapter.worker,
                protection: self.protection,
                invalidates: self.invalidates,
                fetches_max,
                membership: self.joined.membership(),
            },
        )?;
        *place = Some(connection);
        Ok(())
    }

    /// Sets the cipher of I/O connection `queue`, if it has a protection: `tickets` are those of
    /// its request and of the reply that is about to be sent, if the session has a key. May sleep.
    pub(in crate::server) fn set_cipher(
        &self,
        queue: u16,
        tickets: Option<(&Tickets, &Ticket, &Ticket)>,
    ) -> Result {
        let place = self.queues.get(usize::from(queue));
        let open = place.and_then(Option::as_ref).ok_or(EINVAL)?;
        let cipher = Cipher::new(self.protection, Side::Server, tickets)?;
        if let (Some(protected), Some(cipher)) = (&open.queue.protected, cipher) {
            protected.set_cipher(cipher);
        }
        Ok(())
    }

    /// Returns true if what is sent on the connections has a protection.
    pub(in crate::server) fn is_protected(&self) -> bool {
        self.protection.is_on()
    }

    /// Lets no more commands begin. Returns true if all that have begun are answered. May sleep.
    pub(in crate::server) fn drain(&self) -> bool {
        let up = self.queues.iter().flatten();
        up.fold(true, |drained, open| open.queue.drain(&open.qp) && drained)
    }

    /// Handles the completions of answers, and looks whether the HCA is overdue. Nothing else does
    /// on a connection on which no command comes in, so that the end of one whose client does not
    /// acknowledge would go unnoticed. May sleep.
    pub(in crate::server) fn look(&self) {
        for OpenQueue { queue, qp } in self.queues.iter().flatten() {
            queue.reap();
            queue.look(qp);
        }
    }

    /// Closes I/O connection `queue`. May sleep, as long as the backing device takes.
    pub(in crate::server) fn disconnect(&mut self, queue: u16) {
        let place = self.queues.get_mut(usize::from(queue));
        if let Some(connection) = place.and_then(Option::take) {
            connection.close();
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        // All are cut before the first is waited for, so that the HCA has one time to drain all of
        // them; and none has to wait for the backing device meanwhile.
        for connection in self.queues.iter().flatten() {
            connection.cut();
        }
        for connection in self.queues.iter().flatten() {
            // Neither what waits nor what slots keep is held up by the disk of another queue.
            let _ = connection.queue.drain(&connection.qp);
            // As in `close()`, which finds it drained.
            let _ = connection.qp.drain();
        }
        for connection in self.queues.iter().flatten() {
            connection.close();
        }
    }
}

/// Returns the bytes of the largest write whose data a device can read.
fn io_max(device: &Device) -> u32 {
    match device.reads_need_regions() {
        false => u32::MAX,
        true => {
            let pages = device.limits().max_fast_reg_page_list_len;
            pages.saturating_mul(device.region_page_size())
        }
    }
}

/// Returns the most commands in flight on a connection of a device: each takes two sends, and where
/// the data of writes are read into regions, one more to invalidate its region. The client has a
/// region for each, and one more send to find out whether the connection is there.
pub(in crate::server) fn depth_max(device: &Device) -> u16 {
    let sends = device.limits().max_qp_wr.saturating_sub(2);
    u16::try_from(sends / 3)
        .unwrap_or(u16::MAX)
        .clamp(1, DEPTH_MAX)
}
