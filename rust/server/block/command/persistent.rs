// SPDX-License-Identifier: GPL-2.0

//! Commands about the persistent reservation of an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use super::{
    Command,
    Data, //
};
use crate::proto::{
    persistent::REPORT_SIZE,
    Operation,
    Report,
    Status, //
};

impl Command {
    /// Carries out the command, in a task that may wait: `nowait` tells that this is none.
    pub(super) fn reserve(self: KBox<Self>, nowait: bool) {
        let owner = self.owner.clone();
        let connection = &owner.connection;
        if nowait {
            return connection.submit_later(self);
        }
        let membership = &connection.membership;
        let status = match &self.operation {
            Operation::Reserve { reserve, token } => membership.change(reserve, *token),
            _ => membership.report().map(|report| match self.write(&report) {
                Ok(()) => Status::Ok,
                Err(_) => Status::IoError,
            }),
        };
        match status {
            Some(status) => self.answer(status),
            None => self.end(),
        }
    }

    /// Writes the report to the memory of the answer.
    fn write(&self, report: &Report) -> Result {
        let mut bytes = [0; REPORT_SIZE];
        report.encode(&mut bytes).map_err(|_| EINVAL)?;
        match &self.data {
            Data::Piece(piece) => {
                let memory = piece.memory();
                memory.contents(memory.len())?.write(&bytes)
            }
            _ => Err(EINVAL),
        }
    }
}
