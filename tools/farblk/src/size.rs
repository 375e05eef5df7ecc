// SPDX-License-Identifier: GPL-2.0
//! Sizes in bytes and durations, as people write and read them.

use std::time::Duration;

use crate::device;

const UNITS: &str = "KMGTPE";

/// The largest `inline_size`, in bytes.
const INLINE_MAX: u64 = 16 << 10;
/// The largest read or write, in bytes.
const IO_MAX: u64 = device::IO_MAX as u64;
/// The longest time that I/O waits for a path, in ms.
const NO_PATH_MAX_MS: u64 = 86_400_000;

/// The parser of the kernel module: what one takes the other takes, too.
#[path = "../../../rust/config/parse.rs"]
#[expect(dead_code, reason = "the tool reads other values by itself")]
mod parse;

/// Parses a number within the limits that the module has for it.
pub fn number<const MIN: u64, const MAX: u64>(text: &str) -> Result<u64, String> {
    parse::unsigned(text, MIN, MAX)
        .map_err(|why| format!("{text:?} is {why}: {MIN} to {MAX} are accepted"))
}

/// Parses a logical block size.
pub fn parse_block(text: &str) -> Result<u64, String> {
    match parse(text)? {
        size @ (512 | 1024 | 2048 | 4096) => Ok(size),
        size => Err(format!("{size} is not 512, 1024, 2048 or 4096")),
    }
}

/// Parses the size up to which data travels with a command.
pub fn parse_inline(text: &str) -> Result<u64, String> {
    match parse(text)? {
        size @ ..=INLINE_MAX => Ok(size),
        _ => Err(format!("{text:?} is more than {}", human(INLINE_MAX))),
    }
}

/// Parses the size of a read or write that is measured.
pub fn parse_io(text: &str) -> Result<u64, String> {
    match parse(text)? {
        size @ 512..=IO_MAX if size % 512 == 0 => Ok(size),
        _ => Err(format!("{text:?} is not 512 to 1M bytes in blocks of 512")),
    }
}

/// Parses the size of an export to try: of whole MiB.
pub fn parse_demo(text: &str) -> Result<u64, String> {
    match parse(text)? {
        size if size >= 1 << 20 && size % (1 << 20) == 0 => Ok(size),
        _ => Err(format!("{text:?} is no whole number of MiB")),
    }
}

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
    let number = parse::unsigned(digits, 0, u64::MAX).map_err(|_| bad())?;
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

/// Parses a duration within the limits that the module has for it, in ms.
pub fn duration<const MIN: u64, const MAX: u64>(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    match u64::try_from(time.as_millis()) {
        Ok(ms) if (MIN..=MAX).contains(&ms) => Ok(time),
        _ => Err(format!(
            "{text:?} is out of range: {} to {} are accepted",
            human_setting(MIN),
            human_setting(MAX)
        )),
    }
}

/// Parses how long I/O waits for a path: a duration or "forever", in milliseconds, -1 for ever.
pub fn parse_patience(text: &str) -> Result<i64, String> {
    if ["forever", "infinity", "-1"].contains(&text) {
        return Ok(-1);
    }
    let time = duration::<0, NO_PATH_MAX_MS>(text).map_err(|why| why + ", or forever")?;
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
    fn numbers() {
        assert_eq!(number::<1, 1024>("1024"), Ok(1024));
        for bad in ["", " ", "0", "1025", "+1", "-1", "1.5", "0x10", "1 2", "٣"] {
            assert!(number::<1, 1024>(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [parse_block("4K"), parse_inline("16K")],
            [Ok(4096), Ok(16384)]
        );
        for bad in ["0", "256", "513", "8192"] {
            assert!(parse_block(bad).is_err(), "{bad}");
        }
        assert!(parse_inline("16385").is_err());
        assert_eq!([parse_io("512"), parse_io("1M")], [Ok(512), Ok(1 << 20)]);
        for bad in ["0", "8", "1000", "1025K"] {
            assert!(parse_io(bad).is_err(), "{bad}");
        }
    }

    /// Those that the command line names are there in the same words.
    #[test]
    fn the_limits_are_those_of_the_module() {
        let maps = include_str!("../../../rust/config/map.rs");
        for limits in [
            "QUEUES: (u64, u64) = (0, 64);",
            "DEPTH: (u64, u64) = (1, DEPTH_MAX as u64);",
            "TOS: (u64, u64) = (0, u8::MAX as u64);",
            "IO_TIMEOUT_MS: (u64, u64) = (100, 3_600_000);",
            "HEARTBEAT_MS: (u64, u64) = (0, HEARTBEAT_MAX_MS as u64);",
            "RECONNECT_MAX_MS: (u64, u64) = (100, 3_600_000);",
            "NO_PATH_TIMEOUT_MS: (u64, u64) = (0, 86_400_000);",
        ] {
            assert!(maps.contains(&format!("const {limits}")), "{limits}");
        }
        let clock = include_str!("../../../rust/session/clock.rs");
        assert!(clock.contains("pub const HEARTBEAT_MAX_MS: u32 = 60_000;"));
        let wire = include_str!("../../../rust/proto/wire.rs");
        assert!(wire.contains("pub const DEPTH_MAX: u16 = 1024;"));
        assert!(wire.contains("pub const INLINE_MAX: u32 = 16 << 10;"));
        let ports = include_str!("../../../rust/server/ports.rs");
        assert!(ports.contains("    const MAX: usize = 8;"));
        let session = include_str!("../../../rust/session.rs");
        assert!(session.contains("pub const PATHS_MAX: usize = 8;"));
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
            "+1",
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
        assert_eq!(parse_patience("24h"), Ok(86_400_000));
        for bad in ["ever", "86400001ms", "25h"] {
            assert!(parse_patience(bad).is_err(), "{bad}");
        }
        let ms = |text| duration::<100, 3_600_000>(text).map(|time| time.as_millis());
        assert_eq!([ms("100ms"), ms("1h")], [Ok(100), Ok(3_600_000)]);
        for bad in ["99ms", "0", "3601s"] {
            assert!(ms(bad).is_err(), "{bad}");
        }
        assert_eq!(human_patience(-1), "forever");
        assert_eq!(human_patience(60_000), "60 s");
        assert_eq!(human_patience(0), "0 s");
        assert_eq!(human_setting(1500), "1500 ms");
    }
}
