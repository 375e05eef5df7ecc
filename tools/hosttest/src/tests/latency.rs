// SPDX-License-Identifier: GPL-2.0

//! Histograms of latencies.

use crate::stats::latency::{bucket, Histogram, BUCKETS, FIRST_SHIFT};
use proptest::prelude::*;

#[test]
fn buckets_begin_and_end_where_the_files_say() {
    assert_eq!(bucket(0), 0);
    assert_eq!(bucket(1023), 0);
    assert_eq!(bucket(1024), 1);
    assert_eq!(bucket(2047), 1);
    assert_eq!(bucket(2048), 2);
    // 20 ms.
    assert_eq!(bucket(20_000_000), 15);
    for i in 1..BUCKETS {
        let first = 1_u64 << (FIRST_SHIFT as usize + i - 1);
        assert_eq!((bucket(first - 1), bucket(first)), (i - 1, i));
    }
    assert_eq!(bucket(1 << 41), BUCKETS - 1);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
}

proptest! {
    #[test]
    fn a_bucket_holds_its_range(ns: u64) {
        let i = bucket(ns);
        prop_assert!(i < BUCKETS);
        prop_assert!(i == BUCKETS - 1 || ns < 1 << (FIRST_SHIFT as usize + i));
        prop_assert!(i == 0 || ns >= 1 << (FIRST_SHIFT as usize + i - 1));
    }

    #[test]
    fn a_sum_has_all_counts(a: [u32; BUCKETS], b: [u32; BUCKETS]) {
        let mut sum = Histogram::new();
        for counts in [a, b] {
            sum.add(counts.into_iter().map(u64::from));
        }
        let all = a.iter().chain(&b).map(|&count| u64::from(count));
        prop_assert_eq!(sum.total(), all.sum::<u64>());
        let text = sum.to_string();
        let shown: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        prop_assert_eq!(shown.len(), BUCKETS);
        for (i, count) in shown.into_iter().enumerate() {
            prop_assert_eq!(count, u64::from(a[i]) + u64::from(b[i]));
        }
    }
}

#[test]
fn more_counts_than_buckets_are_left_out() {
    let mut sum = Histogram::default();
    sum.add([1; BUCKETS + 3].into_iter());
    assert_eq!(sum.total(), BUCKETS as u64);
}
