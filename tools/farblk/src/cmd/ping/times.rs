// SPDX-License-Identifier: GPL-2.0
//! Round trips of one kind, summed up.

use schemars::JsonSchema;
use serde::Serialize;

/// Columns of the longest bar of a histogram.
const BAR: u64 = 40;

/// Round trips of one kind.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Times {
    count: usize,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    histogram: Vec<Bucket>,
    /// The bytes of each.
    size: u64,
    /// How many were under way at once.
    depth: u64,
    /// How many there were in a second; null if one was under way at a time.
    iops: Option<u64>,
}

/// The round trips that took less than a time, and not less than that of the bucket before.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Bucket {
    below_ns: u64,
    count: u64,
}

impl Times {
    /// Sums up round trips of `size` bytes, of which `depth` were under way at once and that took
    /// `elapsed_ns` together; `None` if there is none.
    pub fn new(mut times: Vec<u64>, size: u64, depth: u64, elapsed_ns: u64) -> Option<Self> {
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
            depth,
            iops: (depth > 1).then(|| rate(times.len(), elapsed_ns)),
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The lines for people.
    pub fn lines(&self, what: &str) -> Vec<String> {
        let [min, p50, p99, max] =
            [self.min_ns, self.p50_ns, self.p99_ns, self.max_ns].map(microseconds);
        let count = self.count;
        let rate = match self.iops {
            Some(iops) => format!("  depth {}  {iops}/s", self.depth),
            None => String::new(),
        };
        let mut lines = vec![format!(
            "{what}  {count} round trips  min {min}  p50 {p50}  p99 {p99}  max {max}{rate}"
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

/// How many of `count` there are in a second, if all of them took `elapsed_ns`.
fn rate(count: usize, elapsed_ns: u64) -> u64 {
    let count = u128::try_from(count).unwrap_or(0);
    let rate = count * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
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
        assert_eq!(Times::new(Vec::new(), 8, 1, 0), None);
        let times = (1..=200).rev().map(|n| n * 1000).collect();
        let times = Times::new(times, 8, 1, 0).unwrap();
        assert_eq!(
            [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns],
            [1000, 100_000, 198_000, 200_000]
        );
        assert_eq!(
            times.histogram.iter().map(|one| one.count).sum::<u64>(),
            200
        );
        let one = Times::new(vec![7], 8, 1, 0).unwrap();
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
        let lines = Times::new(vec![40_000; 8], 8, 1, 0).unwrap().lines("SEND");
        assert_eq!(
            lines[0],
            "SEND  8 round trips  min 40.0 us  p50 40.0 us  p99 40.0 us  max 40.0 us"
        );
        assert_eq!(lines[1].split_whitespace().last(), Some(&*"#".repeat(40)));
        assert_eq!(lines.len(), 2);
        // The module never says so, but its file might.
        assert!(bucket_end(u64::MAX / 4) > u64::MAX / 4);
    }

    #[test]
    fn rates() {
        let times = Times::new(vec![40_000; 8], 4096, 4, 100_000).unwrap();
        assert_eq!(
            (times.iops, times.size, times.depth),
            (Some(80_000), 4096, 4)
        );
        let lines = times.lines("READ");
        assert!(lines[0].ends_with("  depth 4  80000/s"), "{}", lines[0]);
        // One at a time has pauses in between.
        assert_eq!(Times::new(vec![7], 8, 1, 100).unwrap().iops, None);
        assert_eq!(rate(1, 0), 1_000_000_000);
        assert_eq!(rate(0, u64::MAX), 0);
    }
}
