// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations: the commands for what the block layer asks a disk.

#![forbid(unsafe_code)]

use crate::block::{
    mq::{
        Operations,
        PrChange,
        PrReport,
        Request,
        PR_KEYS_MAX, //
    },
    BlkError,
    BlkResult, //
};
use crate::proto::{
    persistent::REPORT_SIZE,
    wire::REGISTRANTS_MAX,
    Operation,
    Report,
    ReservationType,
    Reserve, //
};

const _: () = assert!(PR_KEYS_MAX == REGISTRANTS_MAX);

/// Returns the operation that carries out the change which a request is for.
pub(super) fn operation<T: Operations>(request: &Request<T>) -> BlkResult<Operation> {
    let (change, token) = request.pr_change();
    let kind = |number: u32| {
        let number = u8::try_from(number).map_err(|_| BlkError::Invalid)?;
        ReservationType::try_from(number).map_err(|_| BlkError::Invalid)
    };
    let reserve = match change {
        // The request of a program (`SG_IO`) or of a driver that we know nothing of.
        PrChange::None => return Err(BlkError::NotSupported),
        PrChange::Register {
            old,
            new,
            ignore_old,
        } => Reserve::Register {
            old,
            new,
            ignore_old,
        },
        PrChange::Reserve { key, kind: number } => Reserve::Reserve {
            key,
            kind: kind(number)?,
        },
        PrChange::Release { key, kind: number } => Reserve::Release {
            key,
            kind: kind(number)?,
        },
        PrChange::Preempt {
            key,
            victim,
            kind: number,
            // The server ends what the victim has sent in any case.
            abort: _,
        } => Reserve::Preempt {
            key,
            victim,
            kind: kind(number)?,
        },
        PrChange::Clear { key } => Reserve::Clear { key },
    };
    Ok(Operation::Reserve { reserve, token })
}

/// Returns the operation that reads the reservation, if the connection takes answers of
/// `inline_read` bytes of data.
pub(super) fn report(inline_read: u32) -> BlkResult<Operation> {
    // CAST: 272.
    match inline_read >= REPORT_SIZE as u32 {
        true => Ok(Operation::Report),
        false => Err(BlkError::NotSupported),
    }
}

/// Returns the report that was read.
pub(super) fn parse(bytes: &[u8]) -> Option<PrReport> {
    let report = Report::parse(bytes).ok()?;
    let reservation = report.reservation;
    Some(PrReport {
        generation: report.generation,
        reservation: reservation.map(|(key, kind)| (key, u32::from(kind as u8))),
        keys: report.keys,
        count: report.count.into(),
    })
}
