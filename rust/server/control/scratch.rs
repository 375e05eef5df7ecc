// SPDX-License-Identifier: GPL-2.0

//! How a client is given what it measures round trips with: a scratch region, and a queue pair that
//! echoes datagrams.

#![forbid(unsafe_code)]

use core::ops::ControlFlow;

use kernel::prelude::*;
use kernel::sync::Arc;

use super::{
    not_registered,
    Control, //
};
use crate::base::errno::EOPNOTSUPP;
use crate::proto::{
    EchoRequest,
    Refusal,
    Refused,
    ScratchRequest, //
};
use crate::server::{
    echo::Echo,
    export::Applicant,
    scratch::{
        Charge,
        Scratch, //
    },
    session::Session, //
};

impl Control {
    /// Makes a scratch region for a client which an export admits.
    pub(super) fn make_scratch(
        &mut self,
        session: &Arc<Session>,
        (sequence, bytes): (u32, &[u8]),
        request: &ScratchRequest,
    ) -> Result<Result, Refused> {
        if self.scratch.is_some() {
            return Err(Refusal::BadState.into());
        }
        let applicant = Applicant {
            export: &request.export,
            host: (&request.host_name, &request.host_id),
        };
        let size = Scratch::footprint(request);
        let charge = match self.charge(session, bytes, &applicant, size)? {
            ControlFlow::Continue(charge) => charge,
            ControlFlow::Break(begun) => return Ok(begun),
        };
        let channel = self.channel.as_mut().ok_or(Refusal::BadState)?;
        let scratch = Scratch::new(channel, charge).map_err(not_registered)?;
        let reply = scratch.reply().map_err(not_registered)?;
        self.scratch = Some(scratch);
        Ok(self.send(|buf| reply.encode(sequence, request, buf)))
    }

    /// Makes a queue pair that echoes the datagrams of a client which an export admits.
    pub(super) fn make_echo(
        &mut self,
        session: &Arc<Session>,
        (sequence, bytes): (u32, &[u8]),
        request: &EchoRequest,
    ) -> Result<Result, Refused> {
        if self.echo.is_some() {
            return Err(Refusal::BadState.into());
        }
        let applicant = Applicant {
            export: &request.export,
            host: (&request.host_name, &request.host_id),
        };
        let size = Echo::footprint(request);
        let charge = match self.charge(session, bytes, &applicant, size)? {
            ControlFlow::Continue(charge) => charge,
            ControlFlow::Break(begun) => return Ok(begun),
        };
        let channel = self.channel.as_ref().ok_or(Refusal::BadState)?;
        let echo = Echo::new(channel, charge, request).map_err(no_echo)?;
        let reply = echo.reply().map_err(no_echo)?;
        self.echo = Some(echo);
        Ok(self.send(|buf| reply.encode(sequence, buf)))
    }

    /// Counts `size` bytes for a client that wants to measure, and which an export admits. As with
    /// a login, the first time it only finds out whether the client may have them: then the request
    /// comes again, and nothing is to be sent.
    fn charge(
        &mut self,
        session: &Arc<Session>,
        bytes: &[u8],
        applicant: &Applicant<'_>,
        size: u32,
    ) -> Result<ControlFlow<Result, Charge>, Refused> {
        if self.attachment.is_some() || self.logged_out.is_some() {
            return Err(Refusal::BadState.into());
        }
        // Nothing is allocated for a client that is not admitted.
        let found = self.exports.find(applicant.export).and_then(|export| {
            export.check_host(&self.port, applicant.host, session.proven().as_deref())?;
            Ok(export)
        });
        let export =
            found.map_err(|refused| self.disguise(session, applicant, || false, refused))?;
        if !session.is_admitted() {
            return self.admit(session, bytes).map(ControlFlow::Break);
        }
        let owner = export.account_owner(session, applicant.host);
        // Nobody waits for this session when the export is disabled.
        drop(export);
        let charged = self.exports.scratch.charge(owner, size);
        let charge = charged.map_err(|_| {
            Refused::new(
                Refusal::NoMemory,
                format_args!("those who measure have as much memory as they may"),
            )
        })?;
        Ok(ControlFlow::Continue(charge))
    }
}

/// The refusal of a queue pair that could not be made.
fn no_echo(error: Error) -> Refused {
    match error {
        EOPNOTSUPP => Refused::new(
            Refusal::Unreachable,
            format_args!("there are no datagrams on the server's port"),
        ),
        ENOMEM | ENOSPC => Refusal::NoMemory.into(),
        _ => Refusal::Internal.into(),
    }
}
