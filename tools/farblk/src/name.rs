// SPDX-License-Identifier: GPL-2.0
//! Names and UUIDs, by the kernel's rules. The kernel is the judge; checking here gives a better
//! message.

/// Takes a name of a port, export, map or host: 1 to 63 of `A-Z a-z 0-9 . _ : -`, the first not a
/// dot.
pub fn parse(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    if text.is_empty() || text.len() > 63 {
        Err(format!("{text:?}: a name has 1 to 63 characters"))
    } else if text.starts_with('.') {
        Err(format!("{text:?}: a name does not start with a dot"))
    } else if let Some(c) = text.chars().find(|&c| !allowed(c)) {
        Err(format!(
            "{text:?}: {c:?} cannot be in a name; letters, digits and . _ : - can"
        ))
    } else {
        Ok(text.to_owned())
    }
}

/// Takes a name for a new object. The kernel accepts one that begins with "-", but each command
/// takes that for an option.
pub fn parse_new(text: &str) -> Result<String, String> {
    match text.starts_with('-') {
        true => Err(format!("{text:?}: a new name does not begin with \"-\"")),
        false => parse(text),
    }
}

/// Takes a name for a new map. One that ends as that of a partition would have the link in
/// /dev/farblk/by-name that a partition of another map has.
pub fn parse_new_map(text: &str) -> Result<String, String> {
    match is_like_partition(text) {
        true => Err(format!(
            "{text:?}: a new map is not named like a partition of another one"
        )),
        false => parse_new(text),
    }
}

/// Returns true if `name` ends in "-part" and a number.
fn is_like_partition(name: &str) -> bool {
    let number = name.rsplit_once("-part").map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
}

/// Takes a UUID and gives it in lower case.
pub fn parse_uuid(text: &str) -> Result<String, String> {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let digits = text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    if lengths == [8, 4, 4, 4, 12] && digits && text.contains(|c| !"0-".contains(c)) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!(
            "{text:?} is not a UUID such as 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10"
        ))
    }
}

/// A part of a name by which names are sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A number.
    Number(u64),
    /// What is between numbers, or a number that is too large.
    Text(String),
}

/// The parts of a name in their order: e2 comes before e10, and numbers come first.
pub fn natural(name: &str) -> Vec<Part> {
    let is_digit = |c: u8| c.is_ascii_digit();
    let chunks = name
        .as_bytes()
        .chunk_by(|a, b| is_digit(*a) == is_digit(*b));
    let parts = chunks.map(|chunk| {
        let text = String::from_utf8_lossy(chunk).into_owned();
        text.parse().map_or(Part::Text(text), Part::Number)
    });
    parts.collect()
}

/// Returns the name that somebody may have meant who wrote `wrong`: few letters differ.
pub fn nearest<'a>(wrong: &str, names: &'a [String]) -> Option<&'a str> {
    let most = (wrong.chars().count() / 3).max(1);
    let near = |name: &&String| distance(&wrong.to_lowercase(), &name.to_lowercase()) <= most;
    let names = names.iter().filter(near);
    let name = names.min_by_key(|name| distance(wrong, name))?;
    Some(name)
}

/// Counts the letters to add, remove, replace, or swap with their neighbour that make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<_>, Vec<_>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j - 1] + differs)
                .min(rows[i - 1][j] + 1)
                .min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "vol1", "node-b.example:7", "_x", &"a".repeat(63)] {
            assert_eq!(parse(good).as_deref(), Ok(good));
            assert_eq!(parse_new(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a b",
            "é",
            "a\n",
            &"a".repeat(64),
        ] {
            assert!(parse(bad).is_err() && parse_new(bad).is_err(), "{bad:?}");
        }
        // A shell may have made it.
        assert_eq!(parse("-a").as_deref(), Ok("-a"));
        assert!(parse_new("-a").is_err());
    }

    #[test]
    fn maps_and_partitions() {
        for bad in ["vol1-part1", "a-part1-part20", "-part0", "-a", ".a"] {
            assert!(parse_new_map(bad).is_err(), "{bad}");
        }
        for good in ["vol1", "vol1-part", "vol1-part1a", "vol1part1", "a-part1-x"] {
            assert_eq!(parse_new_map(good).as_deref(), Ok(good));
        }
        // Of exports and ports there are no links.
        assert_eq!(parse_new("vol1-part1").as_deref(), Ok("vol1-part1"));
    }

    #[test]
    fn near_misses() {
        let names = ["scratch", "vol1", "vol2", "completions"].map(str::to_owned);
        let meant = |wrong| nearest(wrong, &names);
        assert_eq!(meant("scrach"), Some("scratch"));
        assert_eq!(meant("SCRATCH"), Some("scratch"));
        assert_eq!(meant("scartch"), Some("scratch"));
        assert_eq!(meant("vol3"), Some("vol1"));
        for far in ["metrics", "v", "", "volume"] {
            assert_eq!(meant(far), None, "{far}");
        }
        assert_eq!(distance("exprot", "export"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn uuids() {
        let uuid = "6F0E8D52-0c7d-4a3b-9b0e-2f6f5d1c7a10";
        assert_eq!(parse_uuid(uuid), Ok(uuid.to_ascii_lowercase()));
        for bad in [
            "",
            "6f0e8d52",
            "6f0e8d520c7d-4a3b-9b0e-2f6f-5d1c7a10",
            "gf0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
    }
}
