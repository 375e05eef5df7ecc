// SPDX-License-Identifier: GPL-2.0

//! The frame of a command on a connection with protection: what it keeps of the client's, how the
//! data behind it are opened, and the frame of its answer.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use super::{
    range,
    Command,
    Data, //
};
use crate::base::errno::EBADMSG;
use crate::link::keys::Forged;
use crate::proto::{
    frame,
    response,
    wire::TAG_SIZE,
    Operation,
    Response,
    Status, //
};
use crate::rdma::request::Reply;
use crate::server::block::{
    poller::Polled,
    protected::{
        Frame,
        Protected, //
    },
    recv::Recv, //
};

impl Command {
    /// Keeps what the check of the command's data needs of its opened frame.
    pub(super) fn keep_frame(&mut self, recv: &Recv) {
        // It was read before, when it was opened.
        if let Ok(frame) = Frame::read(recv) {
            self.framed = Some((frame.number, frame.command));
            let place = frame::data_check(frame::RESPONSE_SIZE).start;
            // Cannot fail: the buffer is as long as a frame.
            let _ = self.response.copy_in(place, &frame.check);
        }
    }

    /// Opens the data of a write that were read from the client's memory. Fails with `EBADMSG` if
    /// they are not those whose check the command had.
    pub(super) fn open_data(&mut self, protected: &Protected) -> Result {
        let ((number, command), Data::Piece(piece)) =
            (self.framed.as_ref().ok_or(EINVAL)?, &self.data)
        else {
            return Err(EINVAL);
        };
        let memory = piece.memory();
        let place = frame::data_check(frame::RESPONSE_SIZE);
        let check = self.response.contents(place.start, place.len())?;
        let data = memory.contents(memory.len())?;
        let opened = protected
            .cipher()?
            .open_data(*number, command, &data, &check);
        opened.map_err(|Forged| EBADMSG)
    }

    /// Returns the answer that is a frame, after the data of a read that succeeded or with them.
    pub(super) fn frame(&mut self, protected: &Protected, status: Status) -> Result<Reply> {
        let response = Response {
            status,
            tag: self.tag,
            generation: self.generation,
            credit: self.owner.connection.credit(),
        };
        let mut bytes = [0; response::SIZE];
        response.encode(&mut bytes).map_err(|_| EINVAL)?;
        let cipher = protected.cipher()?;
        let number = cipher.number()?;
        let remote = self.operation.remote();
        let write = match (self.operation, status) {
            (Operation::Read { .. }, Status::Ok) => remote.map(range),
            _ => None,
        };
        let append = status == Status::Ok && self.operation.answer_len() != 0;
        let fixed = self.response.contents(0, frame::RESPONSE_SIZE)?;
        let check = fixed.part(frame::data_check(frame::RESPONSE_SIZE))?;
        fixed
            .part(frame::BODY..frame::RESPONSE_SIZE)?
            .write(&bytes)?;
        check.write(&[0; TAG_SIZE])?;
        let data = match &self.data {
            Data::Piece(piece) if append || write.is_some() => {
                let memory = piece.memory();
                Some(memory.contents(memory.len())?)
            }
            _ => None,
        };
        match (write, data, &self.framed) {
            (Some(_), Some(data), Some((_, command))) => {
                cipher.seal_data(number, command, data, &check)?;
                cipher.seal(number, &fixed, None)?;
            }
            (Some(_), ..) => return Err(EINVAL),
            (None, data, _) => cipher.seal(number, &fixed, data)?,
        }
        Ok(Reply {
            immediate: None,
            append,
            write,
            invalidate: self.key_to_invalidate(),
        })
    }
}
