// SPDX-License-Identifier: GPL-2.0
//! Points in time, and commands that look again and again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time as "2026-11-23T22:40:01.123Z".
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.unwrap_or_default())
}

/// The time of day in "2026-11-23T22:40:01.123Z": "22:40:01".
pub fn time_of_day(time: &str) -> &str {
    time.get(11..19).unwrap_or(time)
}

fn utc(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// The date of a day, counted from 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    // 400 years have always the same number of days.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// A timer that elapses once per interval. It is monotonic, and does not drift.
pub struct IntervalTimer {
    next: Instant,
    interval: Duration,
}

impl IntervalTimer {
    /// A timer that begins now.
    pub fn new(interval: Duration) -> Self {
        Self {
            next: Instant::now(),
            interval,
        }
    }

    /// Returns the time until it elapses next. What nobody waited for is left out.
    pub fn left(&mut self) -> Duration {
        let now = Instant::now();
        self.next += self.interval;
        if self.next < now {
            self.next = now;
        }
        self.next - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (second, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_795_473_601, "2026-11-23T22:40:01.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (13_569_465_600, "2400-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(second)), text);
        }
        assert_eq!(time_of_day("2026-11-23T22:40:01.123Z"), "22:40:01");
    }

    #[test]
    fn a_late_timer_does_not_hurry() {
        let mut timer = IntervalTimer::new(Duration::from_secs(1));
        assert!(timer.left() <= Duration::from_secs(1));
        timer.next -= Duration::from_secs(10);
        assert_eq!(timer.left(), Duration::ZERO);
        assert!(timer.left() > Duration::from_millis(900));
    }
}
