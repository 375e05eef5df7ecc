// SPDX-License-Identifier: GPL-2.0
//! Reads and writes of a map's disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::times::{Times, microseconds};
use super::{BATCH_TIME, Document};
use crate::cli::Ping;
use crate::cmd::list::Map;
use crate::cmd::{Context, map};
use crate::configfs::{Job, words};
use crate::device::Buffer;
use crate::error::{Code, Error, fill_in};
use crate::holders;
use crate::interrupt::Interrupt;

/// The size of a read or write by default, in bytes.
const SIZE: u64 = 4096;
/// 2^64 divided by the golden ratio: the multiples of it modulo 2^64 are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Measures the disk of the map `name`.
pub fn run(context: &Context, arguments: &Ping, name: &str) -> Result<(), Error> {
    let job = Job::new(format!("cannot ping {}", arguments.target)).variable("map", name);
    let disk = live_disk(context, name, &job)?;
    let (size, blocks) = io_size(context, arguments, &disk, &job)?;
    if arguments.write {
        require_writable(context, name, &disk, &job)?;
    }
    let configfs = &context.configfs;
    if configfs.record(|| script(arguments, &disk, size, blocks)) {
        return Ok(());
    }
    let interrupt = Interrupt::take().map_err(|e| job.error(Code::Io, e.to_string()))?;
    let file = context.devices.open(&disk, arguments.write);
    let file = file.map_err(|e| match e.kind() {
        io::ErrorKind::ResourceBusy => in_use(context, name, &disk),
        _ => job.error(Code::Io, format!("/dev/{disk}: {}", words(&e))),
    })?;
    if arguments.write {
        // A process that has opened the disk since the last look may write to it: O_EXCL keeps only
        // those out that claim it.
        require_unused(context, name, &disk, &job)?;
    }
    let mut buffer = Buffer::new();
    let data = buffer.get(usize::try_from(size).unwrap_or(0));
    let mut measured = Measured::default();
    let mut result = Ok(());
    for n in 0..arguments.count {
        if n > 0 {
            interrupt.sleep(arguments.interval);
        }
        if interrupt.came() {
            break;
        }
        let done = measured.measure(&file, data, place(n, blocks) * size, arguments.write);
        if let Err(e) = done {
            // What the map has to say is better.
            let why = format!("/dev/{disk}: {}", words(&e));
            result = live_disk(context, name, &job).and(Err(job.error(Code::Io, why)));
            break;
        }
        if arguments.interval > BATCH_TIME / 2 {
            context.output.note(&measured.latest());
        }
    }
    drop(file);
    if arguments.write {
        map::wait_for_udev(context);
    }
    let document = Document {
        map: Some(name.to_owned()),
        device: Some(format!("/dev/{disk}")),
        complete: result.is_ok() && !interrupt.came(),
        read: Times::new(measured.read, Some(size)),
        write: Times::new(measured.write, Some(size)),
        ..Document::new(arguments)
    };
    document.finish(context, result)
}

/// The disk of a map whose I/O is answered now: of another one it would fail, or wait.
fn live_disk(context: &Context, name: &str, job: &Job) -> Result<String, Error> {
    let map = Map::read(context, name);
    let code = match (map.state.as_deref(), map.disk()) {
        (Some("live"), Some(disk)) => return Ok(disk.to_owned()),
        (Some("stale"), _) => Code::Stale,
        (Some("evicted"), _) => Code::Evicted,
        (Some("closing"), _) => Code::Busy,
        _ => Code::NoPath,
    };
    let error = job.error(code, map.condition());
    Err(match map.state.as_deref() {
        Some("disabled") => error.hint(fill_in("farblk remap {map}", &[("map", name)])),
        _ => error,
    })
}

/// The bytes of each read and write, and the blocks of that size that the disk has: at least one.
fn io_size(
    context: &Context,
    arguments: &Ping,
    disk: &str,
    job: &Job,
) -> Result<(u64, u64), Error> {
    let block = context.devices.block_size(disk).unwrap_or(512);
    let size = arguments.size.unwrap_or(SIZE.max(block));
    let why = match context.devices.size(disk) {
        None | Some(0) => return Err(job.error(Code::NoPath, format!("/dev/{disk} is gone"))),
        Some(all) if size > all => format!("{size} bytes are more than /dev/{disk} has"),
        Some(all) if size % block == 0 => return Ok((size, all / size)),
        Some(_) => format!("{size} bytes are not whole blocks of /dev/{disk}, which have {block}"),
    };
    Err(job.error(Code::Usage, why).hint("farblk ping --help"))
}

/// Fails if the disk is read-only, or in use.
fn require_writable(context: &Context, name: &str, disk: &str, job: &Job) -> Result<(), Error> {
    if context.devices.is_read_only(disk) {
        let why = format!("/dev/{disk} is read-only");
        let hint = fill_in("farblk ping {map}  # without --write", &[("map", name)]);
        return Err(job.error(Code::WriteProtected, why).hint(hint));
    }
    require_unused(context, name, disk, job)
}

/// Fails if anybody on this host uses the disk: what they write between a read and the write of the
/// same block would be lost. The kernel lets nobody mount the disk while it is open exclusively.
fn require_unused(context: &Context, name: &str, disk: &str, job: &Job) -> Result<(), Error> {
    require_only_map(context, name, job)?;
    // udev reads a disk that is new or was written.
    map::wait_for_udev(context);
    let holders = holders::find(&context.root, disk);
    match holders.is_empty() && holders::processes(&context.root, disk, &holders).is_empty() {
        true => Ok(()),
        false => Err(in_use(context, name, disk)),
    }
}

/// Fails if this host has another map of the same export: its disk is another one, with users of
/// its own.
fn require_only_map(context: &Context, name: &str, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let uuid_of = |map: &str| configfs.attr(&configfs.path(&["maps", map]), "uuid");
    let uuid = uuid_of(name);
    let maps = configfs.names(&configfs.path(&["maps"]));
    let is_same = |map: &&String| *map != name && uuid.is_some() && uuid_of(map) == uuid;
    match maps.iter().find(is_same) {
        None => Ok(()),
        Some(map) => Err(job
            .error(Code::Busy, format!("map {map} has the same export"))
            .hint(fill_in("farblk unmap {map}", &[("map", map)]))),
    }
}

fn in_use(context: &Context, name: &str, disk: &str) -> Error {
    let holders = holders::find(&context.root, disk);
    let (error, mut steps) = map::in_use(context, name, "written to", disk, &holders);
    steps.push(fill_in(
        "farblk ping {map}  # or measure reads only",
        &[("map", name)],
    ));
    error.hint(steps.join("\n"))
}

/// The block of the `n`th read, of `blocks`: in any order, and all over the disk.
fn place(n: u64, blocks: u64) -> u64 {
    let place = (u128::from(n.wrapping_mul(GOLDEN)) * u128::from(blocks)) >> 64;
    u64::try_from(place).unwrap_or(0)
}

/// The commands of a dry run.
fn script(arguments: &Ping, disk: &str, size: u64, blocks: u64) -> String {
    let (count, last) = (arguments.count, blocks - 1);
    let write = match arguments.write {
        true => format!("of=/dev/{disk} seek=$block oflag=direct conv=notrunc"),
        false => "of=/dev/null".to_owned(),
    };
    let pause = arguments.interval.as_secs_f64();
    format!(
        "for block in $(shuf -r -n {count} -i 0-{last}); do \
         dd if=/dev/{disk} skip=$block bs={size} count=1 iflag=direct {write}; sleep {pause}; done"
    )
}

/// The times that were measured so far, in ns.
#[derive(Default)]
struct Measured {
    read: Vec<u64>,
    write: Vec<u64>,
}

impl Measured {
    /// Reads `data` from the disk, and writes them back if `write` says so.
    fn measure(&mut self, file: &File, data: &mut [u8], at: u64, write: bool) -> io::Result<()> {
        let start = Instant::now();
        file.read_exact_at(data, at)?;
        self.read.push(nanos(start.elapsed()));
        if write {
            let start = Instant::now();
            file.write_all_at(data, at)?;
            self.write.push(nanos(start.elapsed()));
        }
        Ok(())
    }

    /// "read 41.3 us  write 52.0 us".
    fn latest(&self) -> String {
        let latest = [("read", &self.read), ("write", &self.write)];
        let words = latest.iter().filter_map(|(what, times)| {
            let ns = times.last()?;
            Some(format!("{what} {}", microseconds(*ns)))
        });
        words.collect::<Vec<_>>().join("  ")
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_spread_over_the_disk() {
        let quarter = |n| place(n, 1 << 20) >> 18;
        let counts = [0, 1, 2, 3].map(|wanted| (0..100).filter(|&n| quarter(n) == wanted).count());
        assert!(
            counts.iter().all(|count| (24..=27).contains(count)),
            "{counts:?}"
        );
        assert_eq!([place(0, 1), place(1_000_000, 1)], [0, 0]);
        assert!((0..1000).all(|n| place(n, 3) < 3 && place(n, u64::MAX / 512) < u64::MAX / 512));
    }
}
