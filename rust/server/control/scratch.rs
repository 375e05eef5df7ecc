// SPDX-License-Identifier: GPL-2.0

//! How a client is given a scratch region.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use super::{
    not_registered,
    Control, //
};
use crate::proto::{
    Refusal,
    Refused,
    ScratchRequest, //
};
use crate::server::{
    export::Applicant,
    scratch::Scratch,
    session::Session, //
};

impl Control {
    /// Makes a scratch region for a client which an export admits. As with a login, the first time
    /// it only finds out whether the client may have one.
    pub(super) fn make_scratch(
        &mut self,
        session: &Arc<Session>,
        (sequence, bytes): (u32, &[u8]),
        request: &ScratchRequest,
    ) -> Result<Result, Refused> {
        if self.attachment.is_some() || self.logged_out.is_some() || self.scratch.is_some() {
            return Err(Refusal::BadState.into());
        }
        let applicant = Applicant {
            export: &request.export,
            host: (&request.host_name, &request.host_id),
        };
        // Nothing is allocated for a client that is not admitted.
        let found = self.exports.find(&request.export).and_then(|export| {
            export.check_host(&self.port, applicant.host, session.proven().as_deref())?;
            Ok(export)
        });
        let export =
            found.map_err(|refused| self.disguise(session, &applicant, || false, refused))?;
        if !session.is_admitted() {
            return self.admit(session, bytes);
        }
        let owner = export.account_owner(session, applicant.host);
        // Nobody waits for this session when the export is disabled.
        drop(export);
        let charged = self.exports.scratch.charge(owner, request.size());
        let charge = charged.map_err(|_| {
            Refused::new(
                Refusal::NoMemory,
                format_args!("the scratch regions have as much memory as they may"),
            )
        })?;
        let channel = self.channel.as_mut().ok_or(Refusal::BadState)?;
        let scratch = Scratch::new(channel, charge).map_err(not_registered)?;
        let reply = scratch.reply().map_err(not_registered)?;
        self.scratch = Some(scratch);
        Ok(self.send(|buf| reply.encode(sequence, request, buf)))
    }
}
