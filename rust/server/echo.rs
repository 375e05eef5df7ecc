// SPDX-License-Identifier: GPL-2.0

//! Echoes: a queue pair that sends the datagrams of a client back to it, so that the client can
//! measure round trips. It is no part of an export.
//!
//! A control connection without a login has one at most, and it ends with the connection. It has a
//! Q_Key of its own, which only the client is told, and answers what comes from the client's queue
//! pair, to the client's address, and nothing else. A datagram that finds no receive is lost, so
//! there is no more work under way than letters; and after so many datagrams there is none.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc,
};

use crate::base::errno::{
    ENOTCONN,
    EPROTO, //
};
use crate::link::{
    channel::Channel,
    letter::{
        random_qkey,
        Letter, //
    },
};
use crate::proto::{
    wire::{
        ECHO_MTU_MIN,
        ECHO_SIZE_MAX, //
    },
    EchoReply,
    EchoRequest,
    QueuePair, //
};
use crate::rdma::{
    ah::Destination,
    cm::{
        CmEvents,
        CmId, //
    },
    cq::{
        Cq,
        Softirq, //
    },
    qp::{
        Qp,
        QpHandler,
        Ud,
        Unacknowledged, //
    },
    remnant::ObjectRef,
    wc::{
        datagram::Datagram,
        WcError, //
    },
};
use crate::server::{
    scratch::Charge,
    session::Session, //
};
use crate::session::stranger::{
    echo_letters,
    may_look_at_datagram, //
};

/// Sends back what the client sends. In softirq: neither sleeps nor allocates.
struct Handler {
    /// The datagrams that have come in.
    count: Atomic<u32>,
}

impl Handler {
    /// Makes a letter ready to be received into. It goes if the queue pair does.
    fn receive(qp: &Qp<Self, Ud>, letter: KBox<Letter>) {
        let _ = qp.recv(letter);
    }
}

impl QpHandler<Ud> for Handler {
    type Send = KBox<Letter>;
    type Recv = KBox<Letter>;
    type Ulp = ();

    fn send_done(
        &self,
        qp: &Qp<Self, Ud>,
        letter: KBox<Letter>,
        _: Result<Unacknowledged, WcError>,
    ) {
        Self::receive(qp, letter);
    }

    fn recv_done(
        &self,
        qp: &Qp<Self, Ud>,
        mut letter: KBox<Letter>,
        result: Result<Datagram<'_>, WcError>,
    ) {
        let Ok(received) = letter.received(result) else {
            return;
        };
        // One completion is handled at a time.
        let count = self.count.load(Relaxed);
        self.count.store(count.saturating_add(1), Relaxed);
        match (may_look_at_datagram(count), received) {
            (false, _) => {}
            (true, None) => Self::receive(qp, letter),
            (true, Some(_)) => {
                if let Err((_, letter)) = qp.send_to(letter.slot(), None, letter, true) {
                    Self::receive(qp, letter);
                }
            }
        }
    }

    /// Here is nothing to do: the client sees that there are no more answers.
    fn error(&self) {}
}

/// Receives the events of an id which has no connection. If the device goes, so does the control
/// connection, which has an id of its own.
struct NoEvents;

impl CmEvents for NoEvents {
    fn disconnected(&self) {}
}

/// A queue pair that echoes the datagrams of a client. The drop sleeps.
pub(super) struct Echo {
    // Fields drop in this order: the memory is counted as long as it is there.
    qp: ObjectRef<Qp<Handler, Ud>>,
    qkey: u32,
    mtu: u32,
    _charge: Charge,
}

impl Echo {
    /// Returns the bytes of the pages that an echo takes.
    pub(super) fn footprint(request: &EchoRequest) -> u32 {
        Letter::footprint((request.size(), echo_letters(request.count())))
    }

    /// Makes one for the client of `channel`, on the port of that connection. Fails with
    /// `EOPNOTSUPP` if there are no datagrams, or none on that port, with `ENOMEM`, and with the
    /// device's error. May sleep.
    pub(super) fn new(
        channel: &Channel<Session>,
        charge: Charge,
        request: &EchoRequest,
    ) -> Result<Self> {
        let (connection, pd) = (channel.id(), channel.pd());
        let client = (request.client.number(), request.client.qkey());
        let to = Destination::beside(connection, pd, client)?;
        let id = CmId::<Ud>::beside(connection, Arc::new(NoEvents, GFP_KERNEL)?)?;
        let count = echo_letters(request.count());
        let caps = Letter::caps((count, count));
        let entries = caps.send_cqes() + caps.recv_cqes();
        let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
        let handler = Handler {
            count: Atomic::new(0),
        };
        let qp = Qp::create(&id, pd, &cq, &cq, caps, handler)?;
        let qkey = random_qkey();
        qp.set_qkey(qkey)?;
        for letter in Letter::alloc(pd.device(), &to, (request.size(), count))? {
            qp.recv(letter).map_err(|(error, _)| error)?;
        }
        Ok(Self {
            qp,
            qkey,
            mtu: to.mtu(),
            _charge: charge,
        })
    }

    /// Returns what the client needs to know to send there. Fails with `ENOTCONN` if it cannot.
    pub(super) fn reply(&self) -> Result<EchoReply> {
        let server = match self.qp.number() {
            0 => return Err(ENOTCONN),
            number => QueuePair::new(number, self.qkey).map_err(|_| EPROTO)?,
        };
        let (least, most) = (ECHO_MTU_MIN.into(), ECHO_SIZE_MAX.into());
        Ok(EchoReply {
            server,
            mtu: self.mtu.clamp(least, most),
        })
    }
}
