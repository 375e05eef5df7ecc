// SPDX-License-Identifier: GPL-2.0
//! What `farblk ping` is to measure, and how.

use std::time::Duration;

use super::{OPS, word};
use crate::cli::{Op, Ping};
use crate::configfs::Job;
use crate::error::{Code, Error};

/// The shortest and the longest pause that the module makes between two round trips.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The bytes of what an atomic operation changes, and of all else without `--size`.
const SMALL: u64 = 8;
/// The most bytes of a message without its tag.
const MESSAGE_MAX: u64 = 4080;
/// The most bytes of a datagram: no port has a larger MTU.
const DATAGRAM_MAX: u64 = 4096;
/// The bytes that a datagram may have on any port.
const EVERYWHERE: u64 = 256;
/// The messages that can be under way at once: a control connection has that many receives.
const MESSAGES: u64 = 4;

/// What to measure, and how.
pub struct Plan {
    /// In the order of [`OPS`].
    pub ops: Vec<Op>,
    /// The server makes memory for it.
    pub has_scratch: bool,
    /// The bytes of a message, of a datagram, and of a READ or WRITE of that memory.
    size: u64,
    /// How many are to be under way at once.
    pub depth: u64,
}

impl Plan {
    /// Finds out what `arguments` ask for. `has_reads` tells whether READs belong to an export.
    pub fn new(
        arguments: &Ping,
        job: &Job,
        has_reads: impl FnOnce(&str) -> Result<bool, Error>,
    ) -> Result<Self, Error> {
        let size = arguments.size.unwrap_or(SMALL);
        if arguments.size.is_some() {
            check_size(arguments, size, job)?;
        }
        let needs = |op: &Op| matches!(op, Op::Write | Op::Cas | Op::Faa | Op::SendUd);
        // Whether an export that wants a key is one of RAM is only told with the key.
        let is_told_by_key = arguments.op.is_empty()
            && arguments.key_file.is_some()
            && arguments.place.export.is_some();
        // A READ of no bytes has no size. Without a list READ is measured of an export.
        let has_size = |op: &Op| arguments.size.is_some() && *op == Op::Read;
        let is_read = arguments.op.is_empty() && arguments.place.export.is_some();
        let has_scratch = arguments.op.iter().any(|op| needs(op) || has_size(op))
            || (is_read && arguments.size.is_some())
            || is_told_by_key;
        let ops = match (arguments.op.as_slice(), &arguments.place.export) {
            (_, None) if has_scratch => {
                let why = "WRITE, CAS, FAA, SEND UD and a READ with --size need an export that \
                           admits this host";
                return Err(job
                    .error(Code::Usage, why)
                    .hint(format!("farblk ping {}/EXPORT", arguments.place.server)));
            }
            ([], None) => vec![Op::Send],
            ([], Some(_)) if has_scratch && size > MESSAGE_MAX => vec![Op::Read],
            ([], Some(_)) if has_scratch => vec![Op::Send, Op::Read],
            ([], Some(export)) => match has_reads(export)? {
                true => vec![Op::Send, Op::Read],
                false => vec![Op::Send],
            },
            (wanted, _) => OPS.into_iter().filter(|op| wanted.contains(op)).collect(),
        };
        if ops.contains(&Op::Send) && size > MESSAGE_MAX {
            let why = format!("a SEND is one message: it has {MESSAGE_MAX} bytes at most");
            let hint = in_region(arguments, "read,write", size);
            return Err(job.error(Code::Usage, why).hint(hint));
        }
        if ops.contains(&Op::SendUd) && size > DATAGRAM_MAX {
            let why = format!("a datagram is one packet: it has {DATAGRAM_MAX} bytes at most");
            let hint = "# measure it with a smaller --size, and what else there is by itself";
            return Err(job.error(Code::Usage, why).hint(hint));
        }
        Ok(Self {
            ops,
            has_scratch,
            size,
            depth: arguments.depth,
        })
    }

    /// Returns true if that is to be measured.
    pub fn has(&self, op: Op) -> bool {
        self.ops.contains(&op)
    }

    /// Returns the bytes of each round trip.
    pub fn size_of(&self, op: Op) -> u64 {
        match op {
            Op::Cas | Op::Faa => SMALL,
            Op::Read | Op::Write if self.has_scratch => self.size,
            Op::Send | Op::SendUd => self.size,
            Op::Read | Op::Write => 0,
        }
    }

    /// Returns how many are under way at once.
    pub fn depth_of(&self, op: Op) -> u64 {
        match op {
            Op::Send => self.depth.min(MESSAGES),
            _ if self.has_scratch => self.depth,
            // The module does READs of no bytes one at a time.
            _ => 1,
        }
    }

    /// Returns the settings of the module beside the address. An older module has only some.
    pub fn settings(&self, arguments: &Ping, batch: u64) -> Vec<(&'static str, String)> {
        let pause = match self.depth {
            1 => arguments.interval.min(PAUSE_MAX),
            _ => PAUSE_MIN,
        };
        let flag = |value: bool| u8::from(value).to_string();
        let mut settings = vec![
            ("count", batch.to_string()),
            ("interval_us", pause.as_micros().to_string()),
            ("read", flag(self.has(Op::Read))),
        ];
        if !self.has(Op::Send) {
            settings.push(("send", flag(false)));
        }
        for op in [Op::Write, Op::Cas, Op::Faa, Op::SendUd] {
            if self.has(op) {
                settings.push((word(op), flag(true)));
            }
        }
        if let (Some(export), true) = (&arguments.place.export, self.has_scratch) {
            settings.push(("export", export.clone()));
            settings.push(("size", self.size.to_string()));
        }
        if self.has(Op::Send) && self.size != SMALL {
            settings.push(("send_size", self.size.to_string()));
        }
        if self.depth > 1 {
            settings.push(("depth", self.depth.to_string()));
        }
        if arguments.polled {
            settings.push(("polled", flag(true)));
        }
        settings
    }

    /// Returns the files that have what was measured.
    pub fn files(&self) -> Vec<String> {
        let times = self.ops.iter().map(|op| format!("{}_ns", word(*op)));
        let elapsed = (self.depth > 1).then(|| "elapsed_ns".to_owned());
        let lost = self.has(Op::SendUd).then(|| "lost".to_owned());
        times.chain(lost).chain(elapsed).collect()
    }

    /// Returns the line for people of how many datagrams are `lost`, where `answered` were not.
    pub fn loss(&self, lost: u64, answered: usize) -> String {
        let sent = u64::try_from(answered)
            .unwrap_or(u64::MAX)
            .saturating_add(lost);
        let percent = u128::from(lost) * 100 / u128::from(sent.max(1));
        format!("SEND UD  {lost} of {sent} lost, {percent}%")
    }

    /// Returns the error of the module with what helps, if it is one of datagrams.
    pub fn explain(&self, arguments: &Ping, error: Error) -> Error {
        match error.code {
            Code::BadValue if self.has(Op::SendUd) && self.size > EVERYWHERE => {
                let place = &arguments.place;
                error.hint(format!(
                    "farblk ping {place} --op send-ud --size {EVERYWHERE}  # any port takes that"
                ))
            }
            _ => error,
        }
    }

    /// Returns true if a device may not be able to do something of it.
    pub fn may_be_unavailable(&self) -> bool {
        self.ops
            .iter()
            .any(|op| !matches!(op, Op::Send | Op::Write))
    }
}

/// Fails if nothing that is to be measured can have `size` bytes: they would be ignored.
fn check_size(arguments: &Ping, size: u64, job: &Job) -> Result<(), Error> {
    let has_size = |op: &Op| !matches!(op, Op::Cas | Op::Faa);
    // Without a list it is that of SEND and READ.
    if arguments.op.is_empty() || arguments.op.iter().any(has_size) {
        return Ok(());
    }
    let why = format!("--size is that of what moves data: CAS and FAA change {SMALL} bytes");
    Err(job
        .error(Code::Usage, why)
        .hint(in_region(arguments, "write", size)))
}

/// Returns the command that measures `ops` of `size` bytes in memory of the server.
fn in_region(arguments: &Ping, ops: &str, size: u64) -> String {
    let place = match arguments.place.export {
        Some(_) => arguments.place.to_string(),
        None => format!("{}/EXPORT", arguments.place.server),
    };
    format!("farblk ping {place} --op {ops} --size {size}")
}
