// SPDX-License-Identifier: GPL-2.0
//! Replaces what names a host or gives access to it: UUIDs, IP addresses, MAC addresses, host names
//! and keys. The same value becomes the same token wherever and however it is written, and no token
//! tells the value: it is a part of a salted hash, and the salt is not kept.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

use crate::secret;

/// A value that is replaced wherever it is a word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// In small letters.
    text: String,
    kind: &'static str,
    /// What the token is made of.
    canonical: String,
}

/// Replaces secrets by tokens.
pub struct Redactor {
    salt: [u8; 32],
    /// The longest first.
    known: Vec<Known>,
    seen: BTreeSet<String>,
}

/// Words before a value that is a key.
const KEY_WORDS: [&str; 7] = [
    "key",
    "rkey",
    "lkey",
    "registration",
    "password",
    "secret",
    "token",
];

impl Redactor {
    /// A redactor with the salt, which must be random.
    pub fn new(salt: [u8; 32]) -> Self {
        Self {
            salt,
            known: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    /// The number of values that were replaced.
    pub fn count(&self) -> usize {
        self.seen.len()
    }

    fn know(&mut self, kind: &'static str, text: &str, canonical: &str) {
        let known = Known {
            text: text.to_lowercase(),
            kind,
            canonical: canonical.to_lowercase(),
        };
        if text.is_empty() || self.known.contains(&known) {
            return;
        }
        self.known.push(known);
        self.known
            .sort_by_key(|known| usize::MAX - known.text.len());
    }

    /// Makes it replace the name of a host, also with its domain or without it.
    pub fn host(&mut self, name: &str) {
        let name = name.trim().trim_end_matches('.');
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
        if name.is_empty() || name == "localhost" || !name.chars().all(is_name) {
            return;
        }
        if let Ok(ip) = name.parse() {
            return self.address(ip);
        }
        let short = name.split('.').next().unwrap_or(name);
        self.know("host", name, short);
        self.know("host", short, short);
        if let Some((_, domain)) = name.split_once('.') {
            self.know("domain", domain, domain);
        }
    }

    /// Makes it replace a key.
    pub fn key(&mut self, key: &str) {
        let key = key.trim();
        // A short one would be found in any number.
        if key.len() >= 4 {
            self.know("key", key, key);
            if let Ok(number) = key.parse::<u64>() {
                self.know("key", &format!("{number:x}"), key);
                self.know("key", &format!("{number:016x}"), key);
                self.know("key", &format!("0x{number:x}"), key);
            }
        }
    }

    /// Makes it also replace the forms of an address that have no dots or colons.
    pub fn address(&mut self, ip: IpAddr) {
        let IpAddr::V4(ip) = ip else {
            return;
        };
        if is_public_knowledge(ip.into()) {
            return;
        }
        let canonical = ip.to_string();
        let [a, b, c, d] = ip.octets();
        self.know("ip", &format!("{a:02x}{b:02x}{c:02x}{d:02x}"), &canonical);
        self.know("ip", &format!("{d:02x}{c:02x}{b:02x}{a:02x}"), &canonical);
        self.know("ip", &format!("{a:02x}{b:02x}:{c:02x}{d:02x}"), &canonical);
    }

    fn token(&mut self, kind: &str, canonical: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.salt);
        hash.update(kind);
        hash.update([0u8]);
        hash.update(canonical);
        let digest = hash.finalize();
        let token = format!(
            "{kind}-{:02x}{:02x}{:02x}{:02x}",
            digest[0], digest[1], digest[2], digest[3]
        );
        self.seen.insert(token.clone());
        token
    }

    /// Returns the text with tokens.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut before = None;
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let done = &text[..text.len() - rest.len()];
            // The digits of an escape are no part of the value behind it.
            let is_code = before == Some('%') && is_hex(rest.get(..2));
            let is_inside = is_code || before.is_some_and(is_word) && !ends_in_escape(done);
            let found = match is_inside {
                true => None,
                false => self.secret_at(rest, &out),
            };
            let length = match found {
                Some((length, token)) => {
                    out += &token;
                    length
                }
                None => {
                    out.push(first);
                    first.len_utf8()
                }
            };
            before = rest[..length].chars().next_back();
            rest = &rest[length..];
        }
        out
    }

    /// Finds a secret at the start of `rest`: the length of its text, and its token.
    fn secret_at(&mut self, rest: &str, before: &str) -> Option<(usize, String)> {
        // Where a key is by mistake: no file of a report should have one.
        if let Some(length) = secret_key(rest) {
            return Some((length, self.token("key", &rest[..length])));
        }
        if let Some((length, canonical)) = uuid(rest) {
            return Some((length, self.token("uuid", &canonical)));
        }
        if let Some((length, canonical)) = hardware(rest) {
            return Some((length, self.token("mac", &canonical)));
        }
        if let Some((length, ip)) = ipv6(rest).or_else(|| ipv4(rest)) {
            return match is_public_knowledge(ip) {
                true => Some((length, rest[..length].to_owned())),
                false => Some((length, self.token("ip", &ip.to_string()))),
            };
        }
        let known = self.known.iter().find(|known| {
            let length = known.text.len();
            rest.get(..length)
                .is_some_and(|start| start.eq_ignore_ascii_case(&known.text))
                && ends(rest, length)
        });
        if let Some(Known {
            text,
            kind,
            canonical,
        }) = known.cloned()
        {
            return Some((text.len(), self.token(kind, &canonical)));
        }
        let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if length > 0 && is_value_of_key(before) {
            return Some((length, self.token("key", &rest[..length])));
        }
        None
    }
}

/// Finds a key of a host, whole or not: the length of its text.
fn secret_key(rest: &str) -> Option<usize> {
    let digits = rest
        .get(..secret::PREFIX.len())
        .filter(|start| start.eq_ignore_ascii_case(secret::PREFIX))
        .map(|start| &rest[start.len()..])?;
    let is_digit = |c: char| c.is_ascii_alphanumeric() || "+/=-_".contains(c);
    let length = digits.find(|c: char| !is_digit(c)).unwrap_or(digits.len());
    (length > 0).then_some(secret::PREFIX.len() + length)
}

/// Returns true if the text ends with the name of a key and what stands between it and its value:
/// `rkey: 0x`, `"key":"`, `registration = `.
fn is_value_of_key(before: &str) -> bool {
    let text = before.trim_end_matches(['"', '\'', ' ', '\t']);
    let Some(text) = text.strip_suffix(['=', ':']) else {
        return false;
    };
    let text = text.trim_end_matches(['"', '\'', ' ', '\t']);
    let word = text
        .rsplit(|c: char| !c.is_ascii_alphanumeric())
        .next()
        .unwrap_or_default();
    KEY_WORDS.contains(&word.to_ascii_lowercase().as_str())
}

/// Returns true for addresses that every host has.
fn is_public_knowledge(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Returns true if the text ends in a character as URLs or systemd escape it, behind which a word
/// begins.
fn ends_in_escape(text: &str) -> bool {
    let escape = text.len().checked_sub(3).and_then(|at| text.get(at..));
    is_hex(escape.and_then(|escape| escape.strip_prefix('%'))) || text.ends_with("\\x2d")
}

fn is_hex(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.bytes().all(|c| c.is_ascii_hexdigit()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric()
}

/// Returns true if no word goes on after `length` bytes.
fn ends(rest: &str, length: usize) -> bool {
    !rest[length..].chars().next().is_some_and(is_word)
}

/// Finds a UUID, with dashes or without. systemd and URLs write dashes in their own way.
fn uuid(rest: &str) -> Option<(usize, String)> {
    const DASHES: [&str; 4] = ["-", "\\x2d", "%2d", "%2D"];
    // Of 0x..., the digits are the UUID.
    let start = if rest.starts_with("0x") { 2 } else { 0 };
    let hex = |from: usize, count: usize| {
        rest.get(from..from + count)
            .filter(|text| is_hex(Some(text)))
    };
    if let Some(digits) = hex(start, 32).filter(|_| ends(rest, start + 32)) {
        return Some((start + 32, digits.to_lowercase()));
    }
    let mut digits = String::new();
    let mut at = start;
    for (index, count) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            let after = rest.get(at..)?;
            at += DASHES.iter().find(|dash| after.starts_with(**dash))?.len();
        }
        digits += hex(at, count)?;
        at += count;
    }
    ends(rest, at).then(|| (at, digits.to_lowercase()))
}

/// Finds a MAC address (six bytes) or a GUID of a device (eight), with colons or dashes.
fn hardware(rest: &str) -> Option<(usize, String)> {
    let groups = |count: usize, width: usize, separator: u8| {
        let length = count * (width + 1) - 1;
        let text = rest.get(..length)?;
        let fits = text
            .bytes()
            .enumerate()
            .all(|(at, c)| match (at + 1) % (width + 1) {
                0 => c == separator,
                _ => c.is_ascii_hexdigit(),
            });
        // A port after it has another width than one more group.
        let after = &rest[length..];
        let next = after
            .strip_prefix(char::from(separator))
            .unwrap_or_default();
        let next = next
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(next.len());
        (fits && ends(after, 0) && next != width)
            .then(|| (length, text.replace([':', '-'], "").to_lowercase()))
    };
    groups(6, 2, b':')
        .or_else(|| groups(6, 2, b'-'))
        .or_else(|| groups(8, 2, b':'))
        .or_else(|| groups(4, 4, b':'))
        .or_else(|| groups(20, 2, b':'))
}

/// Finds an IPv4 address.
fn ipv4(rest: &str) -> Option<(usize, IpAddr)> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
    let text = rest[..length].trim_end_matches('.');
    // Leading zeroes are valid in some texts.
    let parts: Vec<_> = text.split('.').collect();
    let octets: Vec<u8> = parts
        .iter()
        .filter(|part| part.len() <= 3)
        .filter_map(|part| part.parse().ok())
        .collect();
    let octets: [u8; 4] = octets.try_into().ok()?;
    (parts.len() == 4 && ends(rest, text.len()))
        .then(|| (text.len(), Ipv4Addr::from(octets).into()))
}

/// Finds an IPv6 address, also one whose colons are written as %3A. One that holds an IPv4 address
/// is that.
fn ipv6(rest: &str) -> Option<(usize, IpAddr)> {
    let mut text = String::new();
    let mut length = 0;
    // The length and the address of the longest start that is one.
    let mut found = None;
    let mut colons = 0;
    while let Some(c) = rest[length..].chars().next() {
        let escaped = rest[length..]
            .get(..3)
            .is_some_and(|three| three.eq_ignore_ascii_case("%3a"));
        match c {
            '%' if escaped => {
                text.push(':');
                length += 3;
            }
            ':' | '.' => {
                text.push(c);
                length += 1;
            }
            c if c.is_ascii_hexdigit() => {
                text.push(c);
                length += 1;
            }
            _ => break,
        }
        colons += usize::from(text.ends_with(':'));
        if text.len() > 45 {
            break;
        }
        if colons >= 2 && ends(rest, length) {
            if let Ok(ip) = text.parse::<Ipv6Addr>() {
                let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
                found = Some((length, ip));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let mut redactor = Redactor::new([7; 32]);
        redactor.host("node-b.example.org");
        redactor.address([10, 9, 0, 1].into());
        redactor.key("1311768467294899695");
        redactor
    }

    /// All these spellings become one token, and nothing of them is left.
    #[test]
    fn one_token_for_all_forms() {
        for forms in [
            &[
                "2b1f0f4c-9a55-4d3a-8f0e-6f9d52f1c003",
                "2B1F0F4C-9A55-4D3A-8F0E-6F9D52F1C003",
                "2b1f0f4c9a554d3a8f0e6f9d52f1c003",
                "0x2b1f0f4c9a554d3a8f0e6f9d52f1c003",
                "2b1f0f4c\\x2d9a55\\x2d4d3a\\x2d8f0e\\x2d6f9d52f1c003",
                "2b1f0f4c%2D9a55%2d4d3a%2D8f0e%2D6f9d52f1c003",
            ][..],
            &[
                "10.9.0.1",
                "0a090001",
                "0000:0000:0000:0000:0000:ffff:0a09:0001",
                "::ffff:10.9.0.1",
                "%3A%3Affff%3A10.9.0.1",
                "0100090a",
            ],
            &[
                "fd00::1",
                "FD00:0:0:0:0:0:0:1",
                "fd00%3a%3A1",
                "fd00:0000:0000:0000:0000:0000:0000:0001",
            ],
            &["52:54:00:12:34:01", "52-54-00-12-34-01"],
            &["node-b", "NODE-B", "node-b.example.org"],
            &[
                "1311768467294899695",
                "0x1234567890abcdef",
                "1234567890ABCDEF",
            ],
        ] {
            let mut redactor = redactor();
            let mut tokens = BTreeSet::new();
            for form in forms {
                for (before, after) in [
                    ("", ""),
                    ("http://", ":7420/vol1"),
                    ("rdma://[", "]:7420"),
                    ("{\"x\":\"", "\"}"),
                    ("farblk-", " is there."),
                    ("a=", ","),
                    ("id_", "_x"),
                    ("%5B", "%5D%3A7420"),
                    ("dev-farblk\\x2d", "\\x2dx.device"),
                ] {
                    // An IPv6 address and a port without brackets are another address.
                    if form.to_lowercase().contains("fd00") && after.starts_with(':') {
                        continue;
                    }
                    let is_ip6 = form.contains("ffff") && after.starts_with(':');
                    if is_ip6 {
                        continue;
                    }
                    let text = redactor.text(&format!("{before}{form}{after}"));
                    let token = text
                        .strip_prefix(before)
                        .and_then(|text| text.strip_suffix(after));
                    tokens.insert(token.unwrap_or_else(|| panic!("{form}: {text}")).to_owned());
                }
            }
            assert_eq!(tokens.len(), 1, "{tokens:?}");
            let token = tokens.first().expect("a token");
            assert!(!forms.contains(&token.as_str()), "{token}");
            assert_eq!(redactor.count(), 1);
        }
    }

    #[test]
    fn the_salt_decides() {
        let token = |salt| Redactor::new([salt; 32]).text("10.0.0.1");
        assert_ne!(token(1), token(2));
        assert_eq!(token(1), token(1));
        assert!(token(1).starts_with("ip-"));
    }

    #[test]
    fn keys() {
        for (before, key, after) in [
            ("rkey: ", "0x1f00ab", ""),
            ("\"key\":\"", "abcdef", "\"}"),
            ("registration = ", "17", "\n"),
            ("password=", "geheim", ""),
            ("farblk.rkey=", "77", " x"),
        ] {
            let text = redactor().text(&format!("{before}{key}{after}"));
            let token = text
                .strip_prefix(before)
                .and_then(|text| text.strip_suffix(after));
            let token = token.unwrap_or_else(|| panic!("{key}: {text}"));
            assert!(token.starts_with("key-") && token.len() == 12, "{text}");
        }
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "12:34:56 0000:01:00.0 7.3.4+deb13-amd64 core::fmt::Display 1.2.3 0x10 farblk0",
            "127.0.0.1 ::1 0.0.0.0 localhost nodes-b xnode-b",
            "size = 4294967296, [ 12.345678] rxe0: é € ok",
            "",
        ] {
            assert_eq!(redactor().text(text), text);
        }
        assert_eq!(redactor().text("10.9.0.1:").matches("ip-").count(), 1);
        assert_eq!(
            redactor()
                .text("10.9.0.1/24 10.9.0.1.")
                .matches("ip-")
                .count(),
            2
        );
    }
}
