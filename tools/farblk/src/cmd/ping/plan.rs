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
/// The bytes of a message, of what an atomic operation changes, and of a WRITE without `--size`.
const SMALL: u64 = 8;
/// The messages that can be under way at once.
const MESSAGES: u64 = 4;

/// What to measure, and how.
pub struct Plan {
    /// In the order of [`OPS`].
    pub ops: Vec<Op>,
    /// The server makes memory for it.
    pub has_scratch: bool,
    /// The bytes of a READ or WRITE of that memory.
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
        let needs = |op: &Op| matches!(op, Op::Write | Op::Cas | Op::Faa);
        // Whether an export that wants a key is one of RAM is only told with the key.
        let is_told_by_key = arguments.op.is_empty()
            && arguments.key_file.is_some()
            && arguments.place.export.is_some();
        let has_scratch =
            arguments.size.is_some() || arguments.op.iter().any(needs) || is_told_by_key;
        let ops = match (arguments.op.as_slice(), &arguments.place.export) {
            (_, None) if has_scratch => {
                let why = "WRITE, CAS, FAA and --size need an export that admits this host";
                return Err(job
                    .error(Code::Usage, why)
                    .hint(format!("farblk ping {}/EXPORT", arguments.place.server)));
            }
            ([], None) => vec![Op::Send],
            ([], Some(_)) if has_scratch => vec![Op::Send, Op::Read],
            ([], Some(export)) => match has_reads(export)? {
                true => vec![Op::Send, Op::Read],
                false => vec![Op::Send],
            },
            (wanted, _) => OPS.into_iter().filter(|op| wanted.contains(op)).collect(),
        };
        Ok(Self {
            ops,
            has_scratch,
            size: arguments.size.unwrap_or(SMALL),
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
            Op::Send | Op::Cas | Op::Faa => SMALL,
            Op::Read | Op::Write if self.has_scratch => self.size,
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
        for op in [Op::Write, Op::Cas, Op::Faa] {
            if self.has(op) {
                settings.push((word(op), flag(true)));
            }
        }
        if let (Some(export), true) = (&arguments.place.export, self.has_scratch) {
            settings.push(("export", export.clone()));
            settings.push(("size", self.size.to_string()));
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
        times.chain(elapsed).collect()
    }

    /// Returns true if a device may not be able to do something of it.
    pub fn has_atomics(&self) -> bool {
        self.has(Op::Cas) || self.has(Op::Faa)
    }
}
