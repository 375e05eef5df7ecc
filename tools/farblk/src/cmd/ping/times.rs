// SPDX-License-Identifier: GPL-2.0
//! What was measured of one kind, summed up.

use schemars::JsonSchema;
use serde::Serialize;

use crate::size;

/// Columns of the longest bar of a histogram.
const BAR: u64 = 40;

/// How long round trips, reads or writes took.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Times {
    count: usize,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    histogram: Vec<Bucket>,
    /// The bytes of each read or write; null of round trips.
    size: Option<u64>,
}

/// Those that took less than a time, and not less than that of the bucket before.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Bucket {
    below_ns: u64,
    count: u64,
}

impl Times {
    /// Sums up what took `times` in ns; `None` if there is none.
    pub fn new(mut times: Vec<u64>, size: Option<u64>) -> Option<Self> {
        times.sort_unstable();
        let (&min_ns, &max_ns) = (times.first()?, times.last()?);
        // The least time that so many of them do not exceed.
        let percentile = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times[rank.clamp(1, times.len()) - 1]
        };
        Some(Self {
            count: times.len(),
            min_ns,
            p50_ns: percentile(50),
            p99_ns: percentile(99),
            max_ns,
            histogram: histogram(&times),
            size,
        })
    }

    /// The lines for people; each is a `what`.
    pub fn lines(&self, what: &str) -> Vec<String> {
        let [min, p50, p99, max] =
            [self.min_ns, self.p50_ns, self.p99_ns, self.max_ns].map(microseconds);
        let count = self.count;
        let plural = if count == 1 { "" } else { "s" };
        let of = self.size.map(|size| format!(" of {}", size::human(size)));
        let of = of.unwrap_or_default();
        let mut lines = vec![format!(
            "{count} {what}{plural}{of}  min {min}  p50 {p50}  p99 {p99}  max {max}"
        )];
        let most = self.histogram.iter().map(|bucket| bucket.count).max();
        let most = most.unwrap_or(1).max(1);
        lines.extend(self.histogram.iter().map(|bucket| {
            let columns = (bucket.count * BAR).div_ceil(most);
            let bar = "#".repeat(usize::try_from(columns).unwrap_or(0));
            let below = format!("< {}", microseconds(bucket.below_ns));
            format!("{below:>16}  {:>7}  {bar}", bucket.count)
                .trim_end()
                .to_owned()
        }));
        lines
    }
}

/// The end of the first bucket that ends after `ns`: 1, 1.5, 2, 3, 4, 6, 8 us and so on.
fn bucket_end(ns: u64) -> u64 {
    let mut octave = 1000;
    loop {
        if ns < octave {
            return octave;
        }
        if ns < octave / 2 * 3 {
            return octave / 2 * 3;
        }
        octave *= 2;
    }
}

/// The buckets from the first to the last that has anything, of times in ascending order.
fn histogram(times: &[u64]) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for &ns in times {
        let end = bucket_end(ns);
        while buckets.last().is_none_or(|last| last.below_ns < end) {
            let below_ns = buckets.last().map_or(end, |last| bucket_end(last.below_ns));
            buckets.push(Bucket { below_ns, count: 0 });
        }
        if let Some(last) = buckets.last_mut() {
            last.count += 1;
        }
    }
    buckets
}

/// A time as "41.3 us" or "12.1 ms".
pub fn microseconds(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        assert_eq!(Times::new(Vec::new(), None), None);
        let times = (1..=200).rev().map(|n| n * 1000).collect();
        let times = Times::new(times, None).unwrap();
        assert_eq!(
            [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns],
            [1000, 100_000, 198_000, 200_000]
        );
        assert_eq!(
            times.histogram.iter().map(|one| one.count).sum::<u64>(),
            200
        );
        let one = Times::new(vec![7], None).unwrap();
        assert_eq!([one.min_ns, one.p50_ns, one.p99_ns, one.max_ns], [7; 4]);
    }

    #[test]
    fn histograms() {
        let ends: Vec<_> = [0, 999, 1000, 1499, 1500, 2000, 3000, 4000]
            .map(bucket_end)
            .into();
        assert_eq!(ends, [1000, 1000, 1500, 1500, 2000, 3000, 4000, 6000]);
        // Those between are there, too.
        let buckets = histogram(&[1200, 5000, 5999]);
        let list: Vec<_> = buckets
            .iter()
            .map(|one| (one.below_ns, one.count))
            .collect();
        assert_eq!(
            list,
            [(1500, 1), (2000, 0), (3000, 0), (4000, 0), (6000, 2)]
        );
        let lines = Times::new(vec![40_000; 8], None).unwrap();
        let lines = lines.lines("round trip");
        assert_eq!(
            lines[0],
            "8 round trips  min 40.0 us  p50 40.0 us  p99 40.0 us  max 40.0 us"
        );
        assert_eq!(lines[1].split_whitespace().last(), Some(&*"#".repeat(40)));
        assert_eq!(lines.len(), 2);
        // The module never says so, but its file might.
        assert!(bucket_end(u64::MAX / 4) > u64::MAX / 4);
        let one = Times::new(vec![7], Some(4096)).unwrap().lines("read");
        assert!(one[0].starts_with("1 read of 4.0 KiB  min "), "{}", one[0]);
    }
}
