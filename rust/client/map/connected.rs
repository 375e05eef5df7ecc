// SPDX-License-Identifier: GPL-2.0

//! A path to a server: the control connection, the grants and the I/O connections.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    cpu::nr_cpu_ids,
    page::PAGE_SIZE,
    sync::Arc, //
};

use crate::base::errno::{
    ENOTCONN,
    EPROTO,
    ESTALE, //
};
use crate::client::{
    control::{
        Client,
        Deadline,
        Target,
        Watcher, //
    },
    io::{
        connection::{
            Connector,
            Most,
            Queue,
            Reach, //
        },
        ledger::{
            Io,
            Queues, //
        },
        slabs::Slabs, //
    },
    map::{
        connect::Wanted,
        owner::Params, //
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Backing,
    Event,
    Fence,
    Login,
    LoginReply,
    Logout,
    LogoutReply,
    Ping, //
};
use crate::rdma::device::Name as DeviceName;
use crate::session::{
    map::{
        self,
        Admission,
        Drained,
        Limits, //
    },
    Epoch,
    PathId, //
};

/// A path that is up.
pub(in crate::client) struct Path {
    // Fields drop in this order: I/O connections before the control connection, which ends the
    // session on the server.
    /// The I/O connections.
    pub(in crate::client) queues: Arc<Queues>,
    /// How many of them, at the end, are polled.
    pub(in crate::client) poll_queues: u16,
    /// Requests in flight per I/O connection.
    pub(in crate::client) depth: u16,
    control: Client,
    /// Its epoch.
    pub(in crate::client) epoch: Epoch,
    /// What the server told of the export.
    pub(in crate::client) login: LoginReply,
    /// How long the server took for its first answer, in ms.
    pub(in crate::client) answer_ms: u32,
}

/// An attempt to connect a path.
pub(in crate::client) struct Attempt<'a> {
    /// What the map is to be.
    pub(in crate::client) params: &'a Params,
    /// Where the server is.
    pub(in crate::client) target: &'a Target,
    /// The path.
    pub(in crate::client) id: PathId,
    /// What is wanted of it.
    pub(in crate::client) wanted: Wanted,
    /// Who hears of what happens to it.
    pub(in crate::client) watcher: Arc<dyn Watcher>,
    /// Where requests go when they are over.
    pub(in crate::client) io: &'a Arc<Io>,
    /// How long to wait for the server's first answer.
    pub(in crate::client) patience_ms: u32,
    /// Whether the path is not wanted any more.
    pub(in crate::client) given_up: &'a dyn Fn() -> bool,
}

impl Attempt<'_> {
    /// The deadline of the next step. An attempt that nobody waits for, because the map was up before, has
    /// as much time for each step: a message that got lost, or many connections, do not fail it as a whole.
    fn next(&self, deadline: Deadline) -> Result<Deadline, Failure> {
        self.go_on()?;
        Ok(match self.wanted.resume {
            Some(_) => Deadline::start(),
            None => deadline,
        })
    }

    /// An error if the path is not wanted any more.
    fn go_on(&self) -> Result<(), Failure> {
        match (self.given_up)() {
            true => Err(fail!(ENOTCONN, "the path is not wanted any more")),
            false => Ok(()),
        }
    }
}

impl Path {
    /// Connects, logs in, collects the grants, connects the queues. May sleep.
    pub(in crate::client) fn connect(attempt: &Attempt<'_>) -> Result<Self, Failure> {
        let &Attempt {
            params,
            target,
            id,
            wanted,
            ref watcher,
            io,
            patience_ms,
            ..
        } = attempt;
        let Wanted {
            epoch,
            resume,
            queues,
            ..
        } = wanted;
        let deadline = Deadline::start();
        let mut control = Client::connect(
            target,
            epoch,
            Some(watcher.clone()),
            deadline.sooner(patience_ms),
        )?;
        let answer_ms = deadline.spent();
        let limits = control.channel().pd().device().limits();
        let vectors = limits.num_comp_vectors;
        // A command and its data, which may begin anywhere in a page, are one work request.
        let inline_most = limits.max_send_sge.saturating_sub(2) * PAGE_SIZE as u32;
        let queues = match (queues, params.queues) {
            (Some(count), _) => count,
            (None, 0) => u16::try_from(nr_cpu_ids().min(vectors)).unwrap_or(u16::MAX),
            (None, count) => count,
        }
        .max(1);
        let identity = params.host.identity();
        let login = Login {
            host_id: identity.id,
            host_name: identity.name,
            boot: params.host.boot,
            map_uuid: params.uuid,
            incarnation: params.incarnation,
            path: id,
            epoch,
            resume,
            export: params.export,
            access: params.access,
            queues: queues.saturating_add(params.poll_queues),
            depth: params.depth,
            inline_size: params.inline_size.min(inline_most),
            no_path_timeout_ms: params.no_path_timeout_ms,
            heartbeat_ms: params.heartbeat_ms,
        };
        let login = control.call(
            attempt.next(deadline)?,
            |sequence, buf| login.encode(sequence, buf),
            |bytes, sequence| LoginReply::parse(bytes, sequence, &login),
        )?;
        control.set_granted(login.limits.logical_block_size, login.extent.access);
        // Of a map that was up before, its session compares the instance with that one.
        let expected = params.expect_instance.filter(|_| resume.is_none());
        if let Some(expected) = expected.filter(|id| *id != login.instance) {
            return Err(fail!(
                ESTALE,
                "instance {expected} is gone; the export is now {}",
                login.instance
            ));
        }
        let (reach, depth) = match (login.backing, login.geometry(), login.terms()) {
            (Backing::Block { depth, credit, .. }, _, Some(terms)) => {
                (Reach::Commands(terms, credit), depth)
            }
            (_, Some(geometry), _) => {
                let slabs = Slabs::collect(&mut control, geometry, &|| attempt.go_on())?;
                (Reach::Slabs(Arc::new(slabs, GFP_KERNEL)?), params.depth)
            }
            _ => return Err(fail!(EPROTO, "the slabs do not fit the size")),
        };
        io.reserve(usize::from(login.queues) * usize::from(depth))?;
        // The grants had time of their own.
        let deadline = match login.geometry() {
            Some(_) => Deadline::start(),
            None => deadline,
        };
        let mut common = Connector {
            target,
            pd: control.channel().pd(),
            session: login.session,
            epoch,
            depth,
            reach,
            watcher: watcher.clone(),
            io,
            deadline,
        };
        // If there are fewer than were asked for, it is those that are polled.
        let interrupted = queues.min(login.queues);
        let mut queues = Queues::new();
        for index in 0..login.queues {
            common.deadline = attempt.next(common.deadline)?;
            let queue = Queue::connect(&common, index, index >= interrupted)?;
            queues.push(queue, GFP_KERNEL)?;
        }
        Ok(Self {
            queues: Arc::new(queues, GFP_KERNEL)?,
            poll_queues: login.queues - interrupted,
            depth,
            control,
            epoch,
            login,
            answer_ms,
        })
    }

    /// What the server said of itself and the export, and what the path can do.
    pub(in crate::client) fn admission(&self) -> Admission {
        let login = &self.login;
        let shape = self.shape();
        let limits = &login.limits;
        Admission {
            server: u128::from_be_bytes(*login.server_id.as_bytes()),
            export: u128::from_be_bytes(*login.export_uuid.as_bytes()),
            instance: u128::from_be_bytes(*login.instance.as_bytes()),
            volatile: login.geometry().is_some(),
            tenure: login.tenure,
            lease_ms: login.lease_ms,
            remembered: login.remembered,
            extent: map::Extent {
                number: login.extent_number,
                size: login.extent.size,
                writable: login.extent.access.writes(),
            },
            limits: Limits {
                block_size: limits.logical_block_size.get(),
                slab: login.geometry().map(|geometry| geometry.shift().bytes()),
                queues: shape.queues,
                poll_queues: shape.poll_queues,
                depth: shape.depth,
                segments: shape.most.segments,
                segment_size: shape.max_segment_size,
                max_io: limits.max_io.min(shape.most.bytes),
                max_discard: limits.max_discard,
                max_write_zeroes: limits.max_write_zeroes,
                write_cache: limits.write_cache,
                fua: limits.fua,
            },
        }
    }

    /// What a disk has to keep to.
    pub(in crate::client) fn shape(&self) -> Shape {
        Shape {
            login: self.login,
            queues: self.login.queues,
            poll_queues: self.poll_queues,
            depth: self.depth,
            max_segment_size: self
                .control
                .channel()
                .pd()
                .device()
                .limits()
                .dma_max_seg_size,
            // There is one at least: the parser sees to that.
            most: self.queues.first().map_or(Most::NOTHING, Queue::most),
        }
    }

    /// The next thing that the server said by itself, if any. May sleep.
    pub(in crate::client) fn event(&mut self) -> Result<Option<Event>, Failure> {
        self.control.event()
    }

    /// Asks for a fence of another path. May sleep, but not for the answer.
    pub(in crate::client) fn fence(&mut self, path: PathId, epoch: Epoch) -> Result {
        let fence = Fence { path, epoch };
        self.control
            .say(|sequence, buf| fence.encode(sequence, buf))
    }

    /// Asks whether the server is there. May sleep, but not for the answer.
    pub(in crate::client) fn ping(&mut self) -> Result {
        self.control.say(|sequence, buf| Ping.encode(sequence, buf))
    }

    /// The RDMA device in use.
    pub(in crate::client) fn device(&self) -> DeviceName {
        self.control.channel().pd().device().name()
    }

    /// Tells the server that the map is gone, and waits until it has let go of it. First of all: a server
    /// that loses a connection before it has heard of that keeps the map's place. Returns true if the
    /// server has confirmed it. May sleep.
    pub(in crate::client) fn logout(&mut self) -> bool {
        let reply = self.control.call(
            Deadline::start(),
            |sequence, buf| Logout.encode(sequence, buf),
            LogoutReply::parse,
        );
        reply.is_ok()
    }

    /// Ends all requests with an error; when it returns, nobody touches their memory any more, if it is
    /// clean. What could not be ended comes back when the path is dropped. No other user of the queues is
    /// left. May sleep.
    pub(in crate::client) fn drain(&self) -> Drained {
        // All fail before any is waited for.
        self.queues.iter().for_each(Queue::fail);
        let drained = self.queues.iter().map(Queue::drain);
        match drained.fold(Ok(()), Result::and) {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Unclean,
        }
    }
}

/// What a disk has to keep to, by the path that it was made for.
#[derive(Clone, Copy)]
pub(in crate::client) struct Shape {
    /// What the server told of the export.
    pub(in crate::client) login: LoginReply,
    /// Hardware queues.
    pub(in crate::client) queues: u16,
    /// How many of them, at the end, are polled.
    pub(in crate::client) poll_queues: u16,
    /// Requests in flight per queue.
    pub(in crate::client) depth: u16,
    /// The longest run of memory that the device takes as one.
    pub(in crate::client) max_segment_size: u32,
    /// What a request may be at most.
    pub(in crate::client) most: Most,
}
