// SPDX-License-Identifier: GPL-2.0

//! Measures round trips of datagrams, which a queue pair of the server echoes.
//!
//! Each datagram has a number of its own, by which its answer is known, and behind that what no
//! other program sends. The number is random, so that a server which has not received it cannot
//! answer it. A datagram is lost if its answer is not there in time: late answers are nobody's. So
//! nothing waits for one that is lost but the count of those that are.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic,
        Msecs, //
    },
};

use super::trips::{
    nanos_since,
    pattern,
    Measured,
    PingRequest, //
};
use crate::base::{
    errno::{
        EBADMSG,
        EMSGSIZE,
        ENOTCONN,
        EPROTO,
        EPROTONOSUPPORT, //
    },
    sync::{
        self,
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
};
use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    host::Host, //
};
use crate::link::{
    failure::{
        fail,
        Failure, //
    },
    letter::{
        random_qkey,
        Letter, //
    },
};
use crate::proto::{
    wire::{
        ECHO_SIZE_MAX,
        VERSION_SCRATCH, //
    },
    EchoReply,
    EchoRequest,
    Malformed,
    Name,
    QueuePair,
    Refusal,
    ReplyError, //
};
use crate::rdma::{
    ah::Destination,
    cm::{
        CmEvents,
        CmId, //
    },
    cq::{
        Cq,
        Direct, //
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
use crate::session::stranger::may_look_at_datagram;

/// After so long an answer does not count any more, in ms.
const LOST_AFTER_MS: Msecs = 1000;
/// How many receives there are for each datagram that is under way: an answer may come late.
const RECVS: u16 = 2;
/// The bytes of the number at the beginning of a datagram.
const NUMBER: usize = 8;

/// Why no more answers come in.
#[derive(Clone, Copy)]
enum Stop {
    /// The queue pair has failed, or its device goes.
    Failed,
    /// More datagrams have come in than there can be answers.
    Flooded,
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Failed => fail!(ENOTCONN, "the queue pair for datagrams has failed"),
            Stop::Flooded => fail!(EPROTO, "more datagrams came in than were sent"),
        }
    }
}

/// The results of completions.
struct Inbox {
    /// Answers of the server, oldest first, and their lengths.
    received: KVec<(KBox<Letter>, usize)>,
    /// Letters that are not under way.
    free: KVec<KBox<Letter>>,
    stop: Option<Stop>,
}

impl Inbox {
    /// Takes the oldest answer.
    fn oldest(&mut self) -> Option<(KBox<Letter>, usize)> {
        self.received.remove(0).ok()
    }
}

/// What completion handlers and the task that measures share.
#[pin_data]
struct Post {
    #[pin]
    inbox: IrqSaveSpinLock<Inbox>,
    /// Signalled when there is something new in the inbox.
    #[pin]
    changed: Completion,
}

impl Post {
    fn stop(&self, why: Stop) {
        self.inbox.lock().stop.get_or_insert(why);
        self.changed.complete();
    }
}

impl CmEvents for Post {
    /// The device goes.
    fn disconnected(&self) {
        self.stop(Stop::Failed);
    }
}

/// Handles completions. Any context: neither sleeps nor allocates.
struct Handler {
    post: Arc<Post>,
    /// The datagrams that have come in.
    count: Atomic<u32>,
}

impl QpHandler<Ud> for Handler {
    type Send = KBox<Letter>;
    type Recv = KBox<Letter>;
    type Ulp = ();

    fn send_done(
        &self,
        _: &Qp<Self, Ud>,
        letter: KBox<Letter>,
        _: Result<Unacknowledged, WcError>,
    ) {
        // There is room for all letters.
        let _ = self.post.inbox.lock().free.push_within_capacity(letter);
        self.post.changed.complete();
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
            // The letter goes, and so do the others that are left.
            (false, _) => self.post.stop(Stop::Flooded),
            (true, None) => drop(qp.recv(letter)),
            (true, Some(len)) => {
                {
                    // There is room for all letters.
                    let answers = &mut self.post.inbox.lock().received;
                    let _ = answers.push_within_capacity((letter, len));
                }
                self.post.changed.complete();
            }
        }
    }

    fn error(&self) {
        self.post.stop(Stop::Failed);
    }
}

/// A datagram that is under way: its number, and since when.
type Started = (u64, Instant<Monotonic>);

/// Measures round trips of datagrams. The drop sleeps.
pub(super) struct Datagrams {
    qp: ObjectRef<Qp<Handler, Ud>>,
    post: Arc<Post>,
    /// The completion queue, if the task that waits polls it.
    polled: Option<Cq<Direct>>,
    /// What follows the number in each datagram.
    contents: KVec<u8>,
    /// Room for an answer.
    answer: KVec<u8>,
    /// Those that are under way, in the order in which they were sent. There is room for all.
    started: KVec<Started>,
    depth: usize,
}

impl Datagrams {
    /// Makes a queue pair beside that of `connection`, and has the server make one that echoes what
    /// it sends, as `export` admits this host. Fails with `EOPNOTSUPP` if there are no datagrams,
    /// with `EMSGSIZE` if one cannot be as long as `request` says, and with `EPROTONOSUPPORT` if
    /// the server is older. May sleep.
    pub(super) fn new(
        host: &Host,
        connection: &mut ControlConnection,
        (export, request): (Name, &PingRequest),
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let count = request.depth.max(1);
        let recvs = count.saturating_mul(RECVS);
        let inbox = Inbox {
            received: KVec::with_capacity(recvs.into(), GFP_KERNEL)?,
            free: KVec::with_capacity(count.into(), GFP_KERNEL)?,
            stop: None,
        };
        let post = Arc::pin_init(
            pin_init!(Post {
                inbox <- new_irqsave_spinlock!(inbox, "Post::inbox"),
                changed <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let pd = connection.channel().pd().clone();
        let id = CmId::<Ud>::beside(&**connection.channel().id(), post.clone())?;
        let caps = Letter::caps((count, recvs));
        let entries = caps.send_cqes() + caps.recv_cqes();
        let (cq, polled) = request.completions().queue(pd.device(), entries)?;
        let handler = Handler {
            post: post.clone(),
            count: Atomic::new(0),
        };
        let qp = Qp::create(&id, &pd, &cq, &cq, caps, handler)?;
        let qkey = random_qkey();
        qp.set_qkey(qkey)?;
        let own =
            QueuePair::new(qp.number(), qkey).map_err(|Malformed(why)| fail!(EPROTO, "{why}"))?;
        if request.size > ECHO_SIZE_MAX.into() {
            return Err(too_long(ECHO_SIZE_MAX.into()));
        }
        let size = u16::try_from(request.size).map_err(|_| EINVAL)?;
        let reply = ask(host, connection, (export, own), (size, count), deadline)?;
        let server = (reply.server.number(), reply.server.qkey());
        let to = Destination::beside(connection.channel().id(), &pd, server)?;
        let mtu = to.mtu().min(reply.mtu);
        if request.size > mtu {
            return Err(too_long(mtu));
        }
        let contents = pattern(sync::random_u64(), request.size)?;
        for mut letter in Letter::alloc(pd.device(), &to, (size, count))? {
            letter.body_mut().copy_in(0, &contents)?;
            let _ = post.inbox.lock().free.push_within_capacity(letter);
        }
        // An answer that is longer than its receive might end the queue pair.
        for letter in Letter::alloc(pd.device(), &to, (ECHO_SIZE_MAX, recvs))? {
            qp.recv(letter).map_err(|(error, _)| error)?;
        }
        Ok(Self {
            qp,
            post,
            polled,
            answer: KVec::from_elem(0, contents.len(), GFP_KERNEL)?,
            contents,
            started: KVec::with_capacity(count.into(), GFP_KERNEL)?,
            depth: count.into(),
        })
    }

    /// Measures up to `count` round trips, as many at once as there may be, and adds them to
    /// `measured`, or to those of it that are lost. Begins none when `goes_on` returns false. May
    /// sleep.
    pub(super) fn run(
        &mut self,
        count: usize,
        goes_on: &dyn Fn() -> bool,
        measured: &mut Measured,
    ) -> Result<(), Failure> {
        let begin = Instant::<Monotonic>::now();
        let mut begun = 0;
        loop {
            while begun < count && self.started.len() < self.depth && goes_on() {
                self.start()?;
                begun += 1;
            }
            let Some((number, since)) = self.started.first().copied() else {
                break;
            };
            let spent = Msecs::try_from(since.elapsed().as_millis()).unwrap_or(Msecs::MAX);
            if spent < LOST_AFTER_MS {
                if let Some(answer) = self.wait(LOST_AFTER_MS - spent, Inbox::oldest)? {
                    self.finish(answer, measured)?;
                }
                continue;
            }
            // What came in time while this task had no CPU counts, but no more answers than there
            // can have been: a server may send others.
            for _ in 0..self.qp_letters() {
                match self.wait(0, Inbox::oldest)? {
                    Some(answer) => self.finish(answer, measured)?,
                    None => break,
                }
            }
            let oldest = self.started.first().copied();
            if oldest.is_some_and(|(oldest, _)| oldest == number) {
                let _ = self.started.remove(0);
                measured.lost = measured.lost.saturating_add(1);
            }
        }
        measured.elapsed = measured.elapsed.saturating_add(nanos_since(begin));
        Ok(())
    }

    /// Returns how many letters there are to receive into.
    fn qp_letters(&self) -> usize {
        self.depth * usize::from(RECVS)
    }

    /// Sends a datagram. May sleep.
    fn start(&mut self) -> Result<(), Failure> {
        let free = self.wait(LOST_AFTER_MS, |inbox| inbox.free.pop())?;
        let mut letter =
            free.ok_or_else(|| fail!(ETIMEDOUT, "this host's device sends no datagrams"))?;
        let number = sync::random_u64();
        letter.body_mut().copy_in(0, &number.to_le_bytes())?;
        let at = Instant::now();
        let sent = self.qp.send_to(letter.slot(), None, letter, true);
        sent.map_err(|(error, _)| fail!(error, "a datagram cannot be sent"))?;
        // There is room for as many as there are letters.
        let _ = self.started.push_within_capacity((number, at));
        Ok(())
    }

    /// Checks an answer, and counts it if it is in time. May sleep.
    fn finish(
        &mut self,
        (letter, len): (KBox<Letter>, usize),
        measured: &mut Measured,
    ) -> Result<(), Failure> {
        let is_whole = len == self.answer.len();
        if is_whole {
            letter.body().copy_out(0, &mut self.answer)?;
        }
        let (number, rest) = self.answer.split_first_chunk::<NUMBER>().ok_or(EINVAL)?;
        let number = u64::from_le_bytes(*number);
        if !is_whole || Some(rest) != self.contents.get(NUMBER..) {
            return Err(fail!(
                EBADMSG,
                "an answer is not the datagram that was sent"
            ));
        }
        // It may be late, or come for the second time.
        let place = self.started.iter().position(|(sent, _)| *sent == number);
        if let Some(place) = place {
            let (_, at) = self.started.remove(place).map_err(|_| EINVAL)?;
            measured.times.push(nanos_since(at), GFP_KERNEL)?;
        }
        self.qp
            .recv(letter)
            .map_err(|(error, _)| fail!(error, "an answer cannot be received"))
    }

    /// Waits until `take` returns a value, or `timeout` ms have passed: then it returns `None`.
    /// Fails with `ENOTCONN` if the queue pair has failed, and with `EPROTO` if more has come than
    /// can be answers, from the server or from others. May sleep.
    fn wait<T>(
        &self,
        timeout: Msecs,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let start = Instant::<Monotonic>::now();
        loop {
            // This comes before the look, so that what comes after the look signals again.
            self.post.changed.reinit();
            if let Some(cq) = &self.polled {
                cq.reap();
            }
            {
                let mut inbox = self.post.inbox.lock();
                if let Some(found) = take(&mut inbox) {
                    return Ok(Some(found));
                }
                if let Some(stop) = inbox.stop {
                    return Err(stop.into());
                }
            }
            let spent = Msecs::try_from(start.elapsed().as_millis()).unwrap_or(Msecs::MAX);
            match (timeout.saturating_sub(spent), &self.polled) {
                (0, _) => return Ok(None),
                (left, None) => {
                    // Whatever it returns, there is another look.
                    let _ = self.post.changed.wait_timeout(left);
                }
                (_, Some(_)) => sync::yield_cpu(),
            }
        }
    }
}

/// Has the server make a queue pair that echoes what `own` sends. May sleep.
fn ask(
    host: &Host,
    connection: &mut ControlConnection,
    (export, own): (Name, QueuePair),
    (size, count): (u16, u16),
    deadline: Deadline,
) -> Result<EchoReply, Failure> {
    let older = || {
        fail!(
            EPROTONOSUPPORT,
            "the server is older: it echoes no datagrams"
        )
    };
    if connection.version() < VERSION_SCRATCH {
        return Err(older());
    }
    let identity = host.identity();
    let request = EchoRequest::new(
        (identity.id, identity.name),
        export,
        own,
        (size.into(), count.into()),
    )
    .map_err(|Malformed(why)| fail!(EINVAL, "{why}"))?;
    let reply = connection.call(
        deadline,
        |sequence, buf| request.encode(sequence, buf),
        |bytes, sequence| match EchoReply::parse(bytes, sequence) {
            Ok(reply) => Ok(Some(reply)),
            // So says one of this version that does not know the request.
            Err(ReplyError::Refused(why)) if why.refusal == Refusal::Malformed => Ok(None),
            Err(error) => Err(error),
        },
    );
    reply?.ok_or_else(older)
}

/// The failure if datagrams have `most` bytes.
fn too_long(most: u32) -> Failure {
    fail!(
        EMSGSIZE,
        "a datagram is one packet: it has {most} bytes at most between these two ports"
    )
}
