// SPDX-License-Identifier: GPL-2.0

//! A path to a server: the control connection, the grants and the I/O connections.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    cpu::nr_cpu_ids,
    sync::Arc, //
};

use crate::client::{
    control::{
        Client,
        Deadline,
        Target,
        Watcher, //
    },
    disk::HwQueue,
    queue::{
        Connector,
        Queue,
        Reach, //
    },
    session::Params,
    slabs::Slabs, //
};
use crate::errno::{
    EPROTO,
    ESTALE, //
};
use crate::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Backing,
    Event,
    Extent,
    Login,
    LoginReply,
    Logout,
    LogoutReply, //
};
use crate::rdma::device::Name as DeviceName;

/// A path that is up.
pub(super) struct Path {
    // Fields drop in this order: I/O connections before the control connection, which ends the
    // session on the server.
    /// The I/O connections.
    pub(super) queues: KVec<Arc<HwQueue>>,
    /// How many of them, at the end, are polled.
    pub(super) poll_queues: u16,
    /// Requests in flight per I/O connection.
    pub(super) depth: u16,
    control: Client,
    /// What the server told of the export.
    pub(super) login: LoginReply,
}

impl Path {
    /// Connects, logs in, collects the grants, connects the queues. May sleep.
    pub(super) fn connect(
        params: &Params,
        target: &Target,
        epoch: u64,
        watcher: &Arc<dyn Watcher>,
    ) -> Result<Self, Failure> {
        let deadline = Deadline::start();
        let mut control = Client::connect(target, epoch, Some(watcher.clone()), deadline)?;
        let vectors = control.channel().pd().device().limits().num_comp_vectors;
        let queues = match params.queues {
            0 => u16::try_from(nr_cpu_ids().min(vectors)).unwrap_or(u16::MAX),
            count => count,
        }
        .max(1);
        let identity = params.host.identity();
        let login = Login {
            host_id: identity.id,
            host_name: identity.name,
            map_uuid: params.uuid,
            epoch,
            export: params.export,
            access: params.access,
            queues: queues.saturating_add(params.poll_queues),
            depth: params.depth,
            inline_size: params.inline_size,
            path: 0,
            heartbeat_ms: 0,
            boot: 1,
            incarnation: crate::sync::random_u64() | 1,
            resume: None,
            no_path_timeout_ms: Some(0),
        };
        let login = control.call(
            deadline,
            |sequence, buf| login.encode(sequence, buf),
            |bytes, sequence| LoginReply::parse(bytes, sequence, &login),
        )?;
        if let Some(expected) = params.expect_instance.filter(|id| *id != login.instance) {
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
                let slabs = Slabs::collect(&mut control, geometry, deadline)?;
                (Reach::Slabs(Arc::new(slabs, GFP_KERNEL)?), params.depth)
            }
            _ => return Err(fail!(EPROTO, "the slabs do not fit the size")),
        };
        let common = Connector {
            target,
            pd: control.channel().pd(),
            session: login.session,
            epoch,
            depth,
            reach,
            watcher: watcher.clone(),
            deadline,
        };
        // If there are fewer than were asked for, it is those that are polled.
        let interrupted = queues.min(login.queues);
        let mut queues = KVec::new();
        for index in 0..login.queues {
            let queue = Queue::connect(&common, index, index >= interrupted)?;
            queues.push(HwQueue::new(queue)?, GFP_KERNEL)?;
        }
        Ok(Self {
            queues,
            poll_queues: login.queues - interrupted,
            depth,
            control,
            login,
        })
    }

    /// What has become of the export, if the server has said something of it. May sleep.
    pub(super) fn news(&mut self) -> Result<Option<Extent>, Failure> {
        let Some(event) = self.control.event()? else {
            return Ok(None);
        };
        let event = Event::parse(&event, self.login.limits.logical_block_size)
            .map_err(|malformed| fail!(EPROTO, "malformed event: {malformed}"))?;
        let Event::Extent(extent) = event else {
            return Err(fail!(EPROTO, "an answer to nothing"));
        };
        self.login.extent = extent;
        Ok(Some(extent))
    }

    /// The RDMA device in use.
    pub(super) fn device(&self) -> DeviceName {
        self.control.channel().pd().device().name()
    }

    /// The longest run of memory that the device takes as one.
    pub(super) fn max_segment_size(&self) -> u32 {
        self.control
            .channel()
            .pd()
            .device()
            .limits()
            .dma_max_seg_size
    }

    /// Tells the server that the session is over and waits until it has let go of it; a server that
    /// does not answer notices by itself. The disk must be gone. May sleep.
    pub(super) fn logout(&mut self) {
        let _ = self.control.call(
            Deadline::start(),
            |sequence, buf| Logout.encode(sequence, buf),
            LogoutReply::parse,
        );
    }

    /// Ends all requests with an error and closes the I/O connections. May sleep.
    pub(super) fn close(&self) {
        for queue in &self.queues {
            queue.close();
        }
    }
}
