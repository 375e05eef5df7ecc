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

/// Takes a UUID and gives it in lower case.
pub fn parse_uuid(text: &str) -> Result<String, String> {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    if lengths == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!(
            "{text:?} is not a UUID such as 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "vol1", "node-b.example:7", "_x", &"a".repeat(63)] {
            assert_eq!(parse(good).as_deref(), Ok(good));
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
            assert!(parse(bad).is_err(), "{bad:?}");
        }
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
        ] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
    }
}
