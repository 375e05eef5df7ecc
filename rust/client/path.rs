// SPDX-License-Identifier: GPL-2.0

//! A path to a server: the control connection, the grants and the I/O connections.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    cpu::nr_cpu_ids,
    page::PAGE_SIZE,
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
        Grants,
        Queue, //
    },
    session::Params, //
};
use crate::errno::{
    EOPNOTSUPP,
    ESTALE, //
};
use crate::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    wire::GRANTS_MAX,
    Geometry,
    GrantReply,
    GrantRequest,
    Login,
    LoginReply,
    Logout,
    LogoutReply,
    Malformed, //
};
use crate::rdma::{
    device::Name as DeviceName,
    dma::{
        Direction,
        DmaBuffer, //
    },
    wr::RemoteRange, //
};

/// Data to ask for in the message of a command to a block export, in bytes.
const INLINE_SIZE: u32 = 4096;
/// Zeroes that a work request repeats: 32 SGEs of them cover a request of 1 MiB.
const ZEROES: usize = 16 * PAGE_SIZE;

/// A path that is up.
pub(super) struct Path {
    // Fields drop in this order: I/O connections before the control connection, which ends the
    // session on the server.
    /// The I/O connections.
    pub(super) queues: KVec<Arc<HwQueue>>,
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
        };
        let identity = params.host.identity();
        let login = Login {
            host_id: identity.id,
            host_name: identity.name,
            map_uuid: params.uuid,
            epoch,
            export: params.export,
            access: params.access,
            queues: queues.max(1),
            depth: params.depth,
            inline_size: INLINE_SIZE,
        };
        let login = control.call(
            deadline,
            |sequence, buf| login.encode(sequence, buf),
            |bytes, sequence| LoginReply::parse(bytes, sequence, &login),
        )?;
        let Some(geometry) = login.geometry() else {
            return Err(fail!(
                EOPNOTSUPP,
                "{} is a block export; this version maps ram exports only",
                params.export
            ));
        };
        if let Some(expected) = params.expect_instance.filter(|id| *id != login.instance) {
            return Err(fail!(
                ESTALE,
                "instance {expected} is gone; the export is now {}",
                login.instance
            ));
        }
        let grants = Arc::new(collect(&mut control, geometry, deadline)?, GFP_KERNEL)?;
        let common = Connector {
            target,
            pd: control.channel().pd(),
            session: login.session,
            epoch,
            depth: params.depth,
            grants,
            watcher: watcher.clone(),
            deadline,
        };
        let mut queues = KVec::new();
        for index in 0..login.queues {
            let queue = HwQueue::new(Queue::connect(&common, index)?)?;
            queues.push(queue, GFP_KERNEL)?;
        }
        Ok(Self {
            queues,
            control,
            login,
        })
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

/// Asks for the memory of all slabs.
fn collect(
    control: &mut Client,
    geometry: Geometry,
    deadline: Deadline,
) -> Result<Grants, Failure> {
    let malformed = |Malformed(why)| fail!(EINVAL, "{why}");
    let count = geometry.slabs();
    let mut slabs = KVec::with_capacity(usize::try_from(count).map_err(Error::from)?, GFP_KERNEL)?;
    while let Some(left @ 1..) = u32::try_from(slabs.len())
        .ok()
        .and_then(|first| count.checked_sub(first))
    {
        let batch = left.min(u32::try_from(GRANTS_MAX).unwrap_or(1));
        let request = GrantRequest::new(count - left, batch).map_err(malformed)?;
        control.call(
            deadline,
            |sequence, buf| request.encode(sequence, buf),
            |bytes, sequence| {
                let reply = GrantReply::parse(bytes, sequence, &request, &geometry)?;
                Ok(reply.iter().try_for_each(|(_, grant)| {
                    let range = RemoteRange {
                        addr: grant.addr,
                        rkey: grant.rkey,
                    };
                    slabs.push(range, GFP_KERNEL)
                }))
            },
        )??;
    }
    let device = control.channel().pd().device();
    let zeroes = DmaBuffer::alloc(device, ZEROES, Direction::ToDevice)?;
    Ok(Grants {
        geometry,
        slabs,
        zeroes: Arc::new(zeroes, GFP_KERNEL)?,
    })
}
