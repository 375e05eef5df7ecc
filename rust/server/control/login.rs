// SPDX-License-Identifier: GPL-2.0

//! How a client is let in: it has the server prove a key, and logs in to an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use super::{
    no_memory,
    Attachment,
    Control,
    DataPath, //
};
use crate::link::{
    channel::{
        Linked,
        Side, //
    },
    keys::Transcript, //
};
use crate::proto::{
    Access,
    Backing,
    Challenge,
    Extent,
    Login,
    LoginReply,
    Refusal,
    Refused, //
};
use crate::server::{
    backend::Backend,
    block::connections::{
        depth_max,
        Connections, //
    },
    export::{
        not_admitted,
        Applicant, //
    },
    proof::Proof,
    ram::Slabs,
    session::{
        Session,
        QUEUES_MAX, //
    }, //
};
use crate::session::PATHS_MAX;

impl Control {
    /// Proves that the server has the key that the client names, and has each later message show
    /// that its sender has it.
    pub(super) fn challenge(
        &mut self,
        session: &Session,
        sequence: u32,
        (challenge, bytes): (&Challenge, &[u8]),
        transcript: Transcript,
    ) -> Result<Result, Refused> {
        let key = self.exports.key(challenge.key_id);
        let proof = Proof::new(key.as_deref(), sequence, (challenge, bytes), transcript)?;
        let sent = self.send(|buf| proof.encode(buf));
        if let Some(key) = key {
            session.set_proven(key);
        }
        if let Some(channel) = &mut self.channel {
            channel.authenticate(Side::Server, proof.keys);
        }
        Ok(sent)
    }

    /// Returns what a client is told that may not use an export. One that is admitted to no export
    /// does not learn what there is; on a server that has keys, neither does one that has proved
    /// none of its own for this export, unless it is one that was `evicted` from there.
    pub(super) fn disguise(
        &self,
        session: &Session,
        applicant: &Applicant<'_>,
        evicted: impl FnOnce() -> bool,
        refused: Refused,
    ) -> Refused {
        let tells = matches!(
            refused.refusal,
            Refusal::NoSuchExport
                | Refusal::ExportDisabled
                | Refusal::NotAdmitted
                | Refusal::NotOnPort
        );
        match session.proven() {
            _ if !tells => refused,
            // Who is admitted to nothing does not learn what there is.
            _ if !self.exports.have_keys() => match self.exports.refuse(applicant) {
                true => not_admitted(applicant.host.0, applicant.export),
                false => refused,
            },
            // It has been let in before, and knows.
            _ if evicted() => Refusal::Evicted.into(),
            None => Refusal::AuthRequired.into(),
            Some(key) if self.exports.has_proved(applicant, &key) => refused,
            Some(_) => Refusal::AuthFailed.into(),
        }
    }

    /// Lets the session of a client that is admitted run on a workqueue of its own, where `request`
    /// is answered: that may wait for a device, and must not be in the way of strangers.
    pub(super) fn admit(
        &mut self,
        session: &Arc<Session>,
        request: &[u8],
    ) -> Result<Result, Refused> {
        let mut copy = KVec::new();
        let copied = copy.extend_from_slice(request, GFP_KERNEL);
        copied.map_err(|_| Refused::from(Refusal::NoMemory))?;
        session.admit().map_err(no_memory)?;
        self.is_admitted = true;
        self.admitted_request = Some(copy);
        Session::notify(session);
        Ok(Ok(()))
    }

    /// Lets a client use the export that it asks for. The first time it only finds out whether the
    /// client may; the rest follows on the session's own workqueue.
    pub(super) fn log_in(
        &mut self,
        session: &Arc<Session>,
        (sequence, bytes): (u32, &[u8]),
        login: &Login,
    ) -> Result<Result, Refused> {
        if self.attachment.is_some() {
            return Err(Refusal::BadState.into());
        }
        // Nothing is allocated for a client that is not admitted.
        let found = self.exports.find(&login.export).and_then(|export| {
            let writes = export.check(&self.port, login, session.proven().as_deref())?;
            Ok((export, writes))
        });
        let (export, writes) = found.map_err(|refused| {
            let applicant = Applicant {
                export: &login.export,
                host: (&login.host_name, &login.host_id),
            };
            let evicted = || {
                let export = self.exports.find(&login.export);
                export.is_ok_and(|export| export.has_evicted(login))
            };
            self.disguise(session, &applicant, evicted, refused)
        })?;
        if !session.is_admitted() {
            return self.admit(session, bytes);
        }
        let channel = self.channel.as_ref().ok_or(Refusal::BadState)?;
        let device = channel.pd().device();
        let access = match writes {
            true => Access::ReadWrite,
            false => Access::ReadOnly,
        };
        let host = (&login.host_name, &login.host_id);
        let client = export.client_id(session, host);
        let depth = match &export.backend {
            // The client needs no memory of the server for its requests.
            Backend::Ram(_) => 0,
            Backend::Block(_) => login.depth.min(depth_max(device)),
        };
        let account = export.account(session, &client);
        let queues = login.queues.min(QUEUES_MAX);
        let quota = &self.exports.quota;
        let (charge, depth) = quota.charge(session.id(), account, login, (queues, depth))?;
        let mut limits = export.backend.limits();
        let (data_path, backing) = match &export.backend {
            Backend::Ram(ram) => {
                let slabs = Slabs::new(device, ram, access, queues).map_err(not_cut)?;
                let shift = slabs.geometry().shift();
                (DataPath::OneSided(slabs), Backing::Ram(shift))
            }
            Backend::Block(block) => {
                let adapters = &self.exports.adapters;
                let user = adapters.get(device, (&login.export, login.protection), &client);
                let user = user.map_err(no_memory)?;
                let joined = export.join(session, login, account);
                let joined = joined.map_err(no_memory)?;
                let connections =
                    Connections::new((user, joined), block, access, login, (queues, depth))
                        .map_err(no_memory)?;
                limits = connections.limits();
                let backing = connections.backing();
                (DataPath::Commands(connections), backing)
            }
        };
        let granted = export.attach(session, &self.port, login, writes)?;
        // The number is read first, so that the extent is no older than it.
        let number = export.backend.extent_number();
        let extent = Extent {
            size: export.backend.extent().size,
            access: login.access,
        };
        let answer = LoginReply {
            session: session.id(),
            export_uuid: export.spec.uuid,
            instance: export.backend.instance(),
            extent,
            limits,
            backing,
            queues,
            reservation_key: granted.key,
            remembered: granted.remembered,
            server_id: export.server_id,
            lease_ms: granted.lease_ms,
            extent_number: number,
        };
        if export.backend.extent().access.min(access) < login.access {
            // The reply has the access that was asked for. The true one follows as an event, whose
            // number is newer.
            export.backend.renumber();
        }
        session.note_login();
        self.exports.stats.logins.count();
        self.attachment = Some(Attachment {
            host: login.host_name,
            epoch: login.epoch,
            data_path,
            export,
            access,
            remembered: granted.remembered,
            told: (number, extent),
            fences: [None; PATHS_MAX],
            _charge: charge,
        });
        Ok(self.send(|buf| answer.encode(sequence, buf)))
    }
}

/// The refusal of a login to an export of RAM.
fn not_cut(error: Error) -> Refused {
    match error {
        EINVAL => Refused::new(
            Refusal::Unreachable,
            format_args!("the server's device would need too many memory regions"),
        ),
        error => no_memory(error),
    }
}
