// SPDX-License-Identifier: GPL-2.0
//! Sizes in bytes and durations, as people write and read them.

use std::time::Duration;

const UNITS: &str = "KMGTPE";

/// The parser of the kernel module: what one takes the other takes, too.
#[path = "../../../rust/config/parse.rs"]
#[expect(dead_code, reason = "the tool reads other values by itself")]
mod parse;

/// Parses "4096", "512M", "1.5G" or "4GiB" (powers of 1024) into bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    parse::size(text).map_err(|why| format!("{text:?} is {why}"))
}

/// Bytes as "4.0 GiB"; below 1 KiB as "512 B".
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.chars();
    let mut unit = units.next();
    while value >= 1023.95 {
        value /= 1024.0;
        unit = units.next();
    }
    format!("{value:.1} {}iB", unit.unwrap_or('E'))
}

/// Parses "500ms", "30s", "2m", "1h" or a number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as 500ms, 30s, 2m or 1h");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let millis = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err(bad()),
    };
    number
        .checked_mul(millis)
        .filter(|&millis| millis <= 365 * 24 * 3_600_000)
        .map(Duration::from_millis)
        .ok_or_else(bad)
}

/// Parses a duration or "forever" into milliseconds, -1 for ever.
pub fn parse_patience(text: &str) -> Result<i64, String> {
    if text == "forever" {
        return Ok(-1);
    }
    let time = parse_duration(text).map_err(|why| why + ", or forever")?;
    i64::try_from(time.as_millis()).map_err(|why| why.to_string())
}

/// Formats a time that [`parse_patience`] has parsed: "60 s", or "forever".
pub fn human_patience(ms: i64) -> String {
    match u64::try_from(ms) {
        Ok(ms) => human_setting(ms),
        Err(_) => "forever".into(),
    }
}

/// A setting in milliseconds, exactly: "1500 ms" or "60 s".
pub fn human_setting(ms: u64) -> String {
    match ms % 1000 {
        0 => format!("{} s", ms / 1000),
        _ => format!("{ms} ms"),
    }
}

/// A time that has passed: "3.1 us", "41 ms" or "1.2 s".
pub fn human_duration(time: Duration) -> String {
    if time.as_secs() >= 1 {
        format!("{:.1} s", time.as_secs_f64())
    } else if time.as_millis() == 0 {
        format!("{:.1} us", time.as_secs_f64() * 1e6)
    } else {
        format!("{} ms", time.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("4g"), Ok(4 << 30));
        assert_eq!(parse("4GiB"), Ok(4 << 30));
        assert_eq!(parse("1T"), Ok(1 << 40));
        assert_eq!(parse("15E"), Ok(15 << 60));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        for bad in [
            "",
            "G",
            "-1",
            "4GB",
            "4 G",
            "1.5",
            "4X",
            "16E",
            "99999999999999999999",
            "4KM",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let why = |bad| parse(bad).unwrap_err();
        assert_eq!(why("16E"), "\"16E\" is larger than 2^64 - 1 bytes");
        assert_eq!(why("0.3K"), "\"0.3K\" is not a whole number of bytes");
        assert_eq!(why("4X"), "\"4X\" is not a size such as 4096, 512M or 1.5G");
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1.0 KiB");
        assert_eq!(human(4 << 30), "4.0 GiB");
        assert_eq!(human((1 << 30) - 1), "1.0 GiB");
        assert_eq!(human(2_000_398_934_016), "1.8 TiB");
        assert_eq!(human(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in [
            "",
            "s",
            "-1s",
            "1d",
            "999999999999h",
            "99999999999999999999",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(human_duration(Duration::from_nanos(3100)), "3.1 us");
        assert_eq!(human_duration(Duration::from_millis(41)), "41 ms");
        assert_eq!(human_duration(Duration::from_millis(1240)), "1.2 s");
        assert_eq!(parse_patience("forever"), Ok(-1));
        assert_eq!(parse_patience("0"), Ok(0));
        assert_eq!(parse_patience("2m"), Ok(120_000));
        assert!(parse_patience("ever").is_err());
        assert_eq!(human_patience(-1), "forever");
        assert_eq!(human_patience(60_000), "60 s");
        assert_eq!(human_patience(0), "0 s");
        assert_eq!(human_setting(1500), "1500 ms");
    }
}
