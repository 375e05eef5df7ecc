// SPDX-License-Identifier: GPL-2.0
//! Words and paths as the shell reads them.

use std::path::Path;

/// Quotes a word for the shell, if it needs it. The result is one line.
pub fn word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:/@%+,-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.contains(char::is_control) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    let escape = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_ascii_control() => format!("\\{:03o}", u32::from(c)),
        c => c.to_string(),
    };
    format!("$'{}'", word.chars().map(escape).collect::<String>())
}

/// Quotes a path for the shell, if it needs it.
pub fn path(path: &Path) -> String {
    word(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (plain, quoted) in [
            ("10.0.0.1:7420", "10.0.0.1:7420"),
            ("", "''"),
            ("[fd00::1]:1", "'[fd00::1]:1'"),
            ("it's", "'it'\\''s'"),
            ("/my data;reboot", "'/my data;reboot'"),
            ("/a\nb\\\x1b'", "$'/a\\012b\\\\\\033\\''"),
        ] {
            assert_eq!(word(plain), quoted);
        }
    }
}
