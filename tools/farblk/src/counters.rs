// SPDX-License-Identifier: GPL-2.0
//! The counters and latency histograms that the module shows in debugfs.
//!
//! Nothing here trusts a file: what cannot be read is unknown, and the reader is told why.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Hints;

pub use latency::BUCKETS;
use latency::FIRST_SHIFT;

/// The buckets as the kernel module has them.
#[path = "../../../rust/stats/latency.rs"]
#[expect(dead_code, reason = "the tool does not count by itself")]
mod latency;

/// No file of the module is longer.
const MAX_FILE: u64 = 64 * 1024;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a map or export. One that is unknown is `None`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Option<u64>,)*
        }

        impl Counters {
            fn field(&mut self, name: &str) -> Option<&mut Option<u64>> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            /// All counters with their names.
            pub fn list(&self) -> Vec<(&'static str, Option<u64>)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The counts since `base`.
            fn since(&self, base: &Self) -> Self {
                Self { $($name: self.$name.zip(base.$name).map(|(now, then)| now.saturating_sub(then)),)* }
            }
        }
    };
}

counters! {
    /// Reads that were completed.
    reads,
    /// Writes that were completed.
    writes,
    /// Flushes that were completed.
    flushes,
    /// Discards that were completed.
    discards,
    /// Requests to write zeroes that were completed.
    write_zeroes,
    /// Bytes that were read.
    read_bytes,
    /// Bytes that were written.
    write_bytes,
    /// I/Os that failed.
    errors,
    /// I/Os that were sent again because their path was lost.
    retries,
    /// I/Os without a command to the server, by RDMA READ and WRITE alone.
    one_sided,
    /// How often a path was up again.
    reconnects,
    /// How often a path was lost while another one was up.
    failovers,
}

impl Counters {
    /// Returns counters that are zero where `self` is known.
    fn zero(&self) -> Self {
        self.since(self)
    }

    /// Returns true if a counter is less than in `base`: the object was made anew since.
    fn is_before(&self, base: &Self) -> bool {
        let pairs = self.list().into_iter().zip(base.list());
        pairs
            .filter_map(|((_, now), (_, then))| now.zip(then))
            .any(|(now, then)| now < then)
    }
}

/// How many I/Os took how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram(pub [u64; BUCKETS]);

impl Histogram {
    /// The end of a bucket in nanoseconds; the last one has none.
    pub fn end_ns(bucket: usize) -> Option<u64> {
        let shift = u32::try_from(bucket).ok()?.checked_add(FIRST_SHIFT)?;
        // Each bucket reaches twice as far as the one before.
        (bucket + 1 < BUCKETS).then(|| 1 << shift)
    }

    /// The beginning of a bucket in nanoseconds.
    pub fn begin_ns(bucket: usize) -> u64 {
        let before = bucket.checked_sub(1);
        before.and_then(Self::end_ns).unwrap_or(0)
    }

    /// The number of I/Os.
    pub fn count(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// The time in nanoseconds that a share `q` of the I/Os did not exceed; `None` without I/O.
    /// Within a bucket the I/Os are taken as evenly spread, as histogram_quantile() of Prometheus
    /// does; in the last bucket it is the beginning.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let mut before = 0.0;
        for (bucket, &count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = count as f64;
            let begin = Self::begin_ns(bucket) as f64;
            let Some(end) = Self::end_ns(bucket) else {
                return Some(begin);
            };
            if before + count >= rank {
                return Some(begin + (end as f64 - begin) * (rank - before) / count);
            }
            before += count;
        }
        None
    }

    /// An estimate of the sum of all times in nanoseconds: each I/O counts as the middle of its
    /// bucket.
    pub fn sum_ns(&self) -> f64 {
        let sums = self.0.iter().enumerate().map(|(bucket, &count)| {
            let begin = Self::begin_ns(bucket);
            let end = Self::end_ns(bucket).unwrap_or(begin);
            count as f64 * (begin as f64 + end as f64) / 2.0
        });
        sums.sum()
    }

    fn since(&self, base: &Self) -> Self {
        let mut buckets = self.0;
        for (count, before) in buckets.iter_mut().zip(base.0) {
            *count = count.saturating_sub(before);
        }
        Self(buckets)
    }

    fn is_before(&self, base: &Self) -> bool {
        self.0.iter().zip(base.0).any(|(now, then)| *now < then)
    }

    fn parse(words: &mut dyn Iterator<Item = &str>) -> Result<Self, String> {
        let counts = words.map(number).collect::<Result<Vec<_>, _>>()?;
        let have = counts.len();
        let buckets = counts.try_into();
        buckets
            .map(Self)
            .map_err(|_| format!("{have} buckets, not {BUCKETS}"))
    }
}

/// The latency histograms of a map or export. One that is unknown is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Of reads.
    pub read: Option<Histogram>,
    /// Of writes.
    pub write: Option<Histogram>,
    /// Of flushes.
    pub flush: Option<Histogram>,
}

impl Latency {
    /// The histograms with their names.
    pub fn list(&self) -> [(&'static str, Option<Histogram>); 3] {
        [
            ("read", self.read),
            ("write", self.write),
            ("flush", self.flush),
        ]
    }

    fn field(&mut self, name: &str) -> Option<&mut Option<Histogram>> {
        match name {
            "read" => Some(&mut self.read),
            "write" => Some(&mut self.write),
            "flush" => Some(&mut self.flush),
            _ => None,
        }
    }

    fn since(&self, base: &Self) -> Self {
        let since = |now: Option<Histogram>, then: Option<Histogram>| {
            now.zip(then).map(|(now, then)| now.since(&then))
        };
        Self {
            read: since(self.read, base.read),
            write: since(self.write, base.write),
            flush: since(self.flush, base.flush),
        }
    }

    fn is_before(&self, base: &Self) -> bool {
        let pairs = self.list().into_iter().zip(base.list());
        pairs
            .filter_map(|((_, now), (_, then))| now.zip(then))
            .any(|(now, then)| now.is_before(&then))
    }
}

/// What is known of the I/O of a map or export, since it was enabled or in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The counters.
    pub counters: Counters,
    /// The I/Os that are on their way.
    pub in_flight: Option<u64>,
    /// The histograms.
    pub latency: Latency,
}

impl Stats {
    /// What came to `self` since `base`. If anything went backwards, the object was made anew
    /// meanwhile, and all of `self` is new.
    pub fn since(&self, base: &Self) -> Self {
        let is_new =
            self.counters.is_before(&base.counters) || self.latency.is_before(&base.latency);
        if is_new {
            return *self;
        }
        Self {
            counters: self.counters.since(&base.counters),
            in_flight: self.in_flight,
            latency: self.latency.since(&base.latency),
        }
    }

    /// The same with all that is known at zero: what an object had when it was made.
    pub fn zero(&self) -> Self {
        Self {
            counters: self.counters.zero(),
            in_flight: self.in_flight,
            latency: self.latency.since(&self.latency),
        }
    }
}

fn number(word: &str) -> Result<u64, String> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match word.parse() {
        Ok(number) if digits => Ok(number),
        _ if digits => Err(format!("{word} is too large")),
        _ => Err(format!("{word:?} is no number")),
    }
}

/// Reads lines of `NAME VALUE...` and gives each to `take`, which says what is wrong with it. Names
/// that it does not know are those of a newer module.
fn parse(
    text: &str,
    complaints: &mut Vec<String>,
    path: &Path,
    mut take: impl FnMut(&str, &mut dyn Iterator<Item = &str>) -> Result<(), String>,
) {
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        if let Err(why) = take(name, &mut words) {
            let why = why.replace(char::is_control, "?");
            complaints.push(format!("{}:{}: {why}", path.display(), index + 1));
        }
    }
}

fn parse_stats(text: &str, path: &Path, stats: &mut Stats, complaints: &mut Vec<String>) {
    parse(text, complaints, path, |name, words| {
        let field = match name {
            "in_flight" => Some(&mut stats.in_flight),
            _ => stats.counters.field(name),
        };
        let Some(field) = field else { return Ok(()) };
        *field = None;
        let value = words.next().ok_or_else(|| format!("{name} has no value"))?;
        if words.next().is_some() {
            return Err(format!("{name} has more than one value"));
        }
        *field = Some(number(value)?);
        Ok(())
    });
}

fn parse_latency(text: &str, path: &Path, latency: &mut Latency, complaints: &mut Vec<String>) {
    parse(text, complaints, path, |name, words| {
        if let Some(field) = latency.field(name) {
            *field = None;
            *field = Some(Histogram::parse(words)?);
        }
        Ok(())
    });
}

/// Why there are no counters, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The reason.
    pub why: String,
    /// The remedies.
    pub hints: Hints,
}

impl Lack {
    fn new(why: impl Display, hint: &str) -> Self {
        Self {
            why: format!("the counters cannot be read: {why}"),
            hints: Hints::new(hint.to_owned()),
        }
    }
}

/// The files of the module in debugfs.
pub struct Debugfs {
    root: PathBuf,
}

impl Debugfs {
    /// Those of the host below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn mount_point(&self) -> PathBuf {
        self.root.join("sys/kernel/debug")
    }

    fn base(&self) -> PathBuf {
        self.mount_point().join("farblk")
    }

    /// Returns why no counter can be read on this host, if that is so.
    pub fn lack(&self) -> Option<Lack> {
        let base = self.base();
        let error = ["maps", "exports"]
            .iter()
            .find_map(|kind| fs::read_dir(base.join(kind)).err())?;
        let place = self.mount_point();
        let mount = "mount -t debugfs none /sys/kernel/debug";
        Some(match error.raw_os_error() {
            Some(13) => Lack::new(
                format_args!("only root may use {}", place.display()),
                "# run it as root",
            ),
            Some(1) => Lack::new(
                format_args!("the kernel does not permit to use {}", place.display()),
                "cat /sys/kernel/security/lockdown  # the mode confidentiality forbids debugfs",
            ),
            _ if base.is_dir() => Lack::new(
                "the loaded kernel module has none",
                "farblk version  # do the tool and the module come from the same release?",
            ),
            _ if !place.is_dir() => Lack::new(
                format_args!("{} does not exist", place.display()),
                "# the kernel has no debugfs (CONFIG_DEBUG_FS)",
            ),
            _ if is_empty(&place) => Lack::new("debugfs is not mounted", mount),
            _ => Lack::new(
                format_args!("{} does not exist", base.display()),
                "farblk version  # do the tool and the module come from the same release?",
            ),
        })
    }

    /// Reads what there is of an object, for example of `["maps", "scratch"]`, and adds to
    /// `complaints` what is wrong with it. `None` if there is nothing: the object is disabled, or
    /// the module cannot count its I/O.
    pub fn read(&self, object: [&str; 2], complaints: &mut Vec<String>) -> Option<Stats> {
        let folder = self.base().join(object[0]).join(object[1]);
        let mut stats = Stats::default();
        let mut found = false;
        for name in ["stats", "latency"] {
            let path = folder.join(name);
            let text = match text(&path) {
                Ok(text) => text,
                Err(e) => {
                    // Objects come and go; whether the files may be read at all is `lack`'s
                    // business.
                    if !matches!(e.raw_os_error(), Some(1 | 2 | 13 | 19)) {
                        complaints.push(format!("{}: {e}", path.display()));
                    }
                    continue;
                }
            };
            found = true;
            match name {
                "stats" => parse_stats(&text, &path, &mut stats, complaints),
                _ => parse_latency(&text, &path, &mut stats.latency, complaints),
            }
        }
        found.then_some(stats)
    }

    /// The counters of the server as a whole: names and values.
    pub fn server(&self) -> Vec<(String, u64)> {
        let text = text(&self.base().join("server/counters")).unwrap_or_default();
        let counters = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), number(value.trim()).ok()?))
        });
        counters.collect()
    }

    /// What the block layer knows of the I/O of a disk; anybody may read that.
    pub fn of_disk(&self, disk: &str) -> Option<Stats> {
        let text = text(&self.root.join("sys/block").join(disk).join("stat")).ok()?;
        let fields: Vec<_> = text
            .split_whitespace()
            .map(|word| number(word).ok())
            .collect();
        let field = |index: usize| fields.get(index).copied().flatten();
        let bytes = |index| field(index).map(|sectors| sectors.saturating_mul(512));
        Some(Stats {
            counters: Counters {
                reads: field(0),
                read_bytes: bytes(2),
                writes: field(4),
                write_bytes: bytes(6),
                discards: field(11),
                flushes: field(15),
                ..Counters::default()
            },
            in_flight: field(8),
            latency: Latency::default(),
        })
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_FILE)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(text: &str) -> (Stats, Vec<String>) {
        let (mut stats, mut complaints) = (Stats::default(), Vec::new());
        parse_stats(text, Path::new("s"), &mut stats, &mut complaints);
        (stats, complaints)
    }

    fn histogram(counts: &[(usize, u64)]) -> Histogram {
        let mut buckets = [0; BUCKETS];
        for (bucket, count) in counts {
            buckets[*bucket] = *count;
        }
        Histogram(buckets)
    }

    #[test]
    fn counters_of_a_file() {
        let (all, complaints) = stats("reads 5\n\nin_flight 2\nnewer 7 8\nwrite_bytes 4096\n");
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(all.counters.reads, Some(5));
        assert_eq!(all.counters.write_bytes, Some(4096));
        assert_eq!(all.in_flight, Some(2));
        assert_eq!(all.counters.writes, None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_and_the_rest_is_read() {
        let text = "reads\nwrites -1\nflushes 18446744073709551616\nerrors 1 2\nretries +3\n\
                    discards 0x10\none_sided 18446744073709551615\nreconn";
        let (all, complaints) = stats(text);
        assert_eq!(
            complaints,
            [
                "s:1: reads has no value",
                "s:2: \"-1\" is no number",
                "s:3: 18446744073709551616 is too large",
                "s:4: errors has more than one value",
                "s:5: \"+3\" is no number",
                "s:6: \"0x10\" is no number",
            ]
        );
        let known = all.counters.list();
        let known = known.iter().filter(|(_, value)| value.is_some());
        assert_eq!(known.collect::<Vec<_>>(), [&("one_sided", Some(u64::MAX))]);
    }

    #[test]
    fn histograms_of_a_file() {
        let ones = vec!["1"; BUCKETS].join(" ");
        let text = format!("read {ones}\nwrite 1 2 3\nflush {ones} 1\nother\n");
        let (mut latency, mut complaints) = (Latency::default(), Vec::new());
        parse_latency(&text, Path::new("l"), &mut latency, &mut complaints);
        assert_eq!(latency.read, Some(Histogram([1; BUCKETS])));
        assert_eq!((latency.write, latency.flush), (None, None));
        assert_eq!(
            complaints,
            ["l:2: 3 buckets, not 32", "l:3: 33 buckets, not 32"]
        );
    }

    #[test]
    fn the_buckets_end_where_the_module_says() {
        assert_eq!(Histogram::end_ns(0), Some(1024));
        assert_eq!(Histogram::begin_ns(0), 0);
        assert_eq!(Histogram::begin_ns(1), 1024);
        assert_eq!(Histogram::end_ns(30), Some(1 << 40));
        assert_eq!(Histogram::begin_ns(31), 1 << 40);
        assert_eq!(Histogram::end_ns(31), None);
    }

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(histogram(&[]).quantile_ns(0.5), None);
        // All between 2048 and 4096 ns.
        let one = histogram(&[(2, 100)]);
        assert_eq!(one.quantile_ns(0.5), Some(3072.0));
        assert_eq!(one.quantile_ns(1.0), Some(4096.0));
        // Half of them below 1024 ns.
        let two = histogram(&[(0, 50), (4, 50)]);
        assert_eq!(two.quantile_ns(0.5), Some(1024.0));
        assert_eq!(two.quantile_ns(0.75), Some(8192.0 + 4096.0));
        // The last bucket has no end.
        assert_eq!(
            histogram(&[(31, 1)]).quantile_ns(0.5),
            Some((1u64 << 40) as f64)
        );
        // Nothing overflows.
        let full = Histogram([u64::MAX; BUCKETS]);
        assert!(full.quantile_ns(0.999).is_some_and(f64::is_finite));
        assert!(full.sum_ns().is_finite());
    }

    #[test]
    fn intervals() {
        let (base, _) = stats("reads 10\nwrites 5\nin_flight 3\n");
        let (next, _) = stats("reads 15\nwrites 5\nin_flight 1\nerrors 2\n");
        let since = next.since(&base);
        assert_eq!(since.counters.reads, Some(5));
        assert_eq!(since.counters.writes, Some(0));
        assert_eq!(since.in_flight, Some(1));
        assert_eq!(since.counters.errors, None, "it was not known before");
        assert_eq!(next.since(&next.zero()), next);
    }

    #[test]
    fn counters_that_went_backwards_are_new() {
        let (base, _) = stats("reads 10\nwrites 5\n");
        let (next, _) = stats("reads 4\nwrites 50\n");
        let since = next.since(&base);
        assert_eq!(since.counters.reads, Some(4));
        assert_eq!(since.counters.writes, Some(50));
        let mut old = Stats::default();
        old.latency.read = Some(histogram(&[(3, 2)]));
        let mut new = old;
        new.latency.read = Some(histogram(&[(2, 9), (3, 1)]));
        assert_eq!(new.since(&old), new);
    }
}
