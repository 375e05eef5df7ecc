// SPDX-License-Identifier: GPL-2.0

//! Discovery: the client asks a server for its exports.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    host::Host,
    target::Target, //
};
use crate::link::failure::Failure;
use crate::proto::{
    ListEntry,
    ListReply,
    ListRequest, //
};

/// Asks a server for the exports that `host` may use, from index `first` on. Returns as many as one
/// reply holds, and their total number. May sleep.
pub(crate) fn discover(
    host: &Host,
    target: &Target,
    first: u32,
) -> Result<(KVec<ListEntry>, u32), Failure> {
    let deadline = Deadline::start();
    let identity = host.identity();
    let request = ListRequest {
        host_id: identity.id,
        host_name: identity.name,
        first,
    };
    let mut entries = KVec::new();
    let total = ControlConnection::connect(target, 0, None, None, deadline)?.call(
        deadline,
        |sequence, buf| request.encode(sequence, buf),
        |bytes, sequence| {
            let reply = ListReply::parse(bytes, sequence, &request)?;
            let pushed = reply
                .iter()
                .try_for_each(|entry| entries.push(entry, GFP_KERNEL));
            Ok(pushed.map(|()| reply.total()))
        },
    )??;
    Ok((entries, total))
}
