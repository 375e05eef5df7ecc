// SPDX-License-Identifier: GPL-2.0
//! The keys of the files, each with its attribute in configfs, the form of its value and its
//! default. Values are kept as configfs has them.
//!
//! A secret key is never such a value: the name of the file that has it is.

use toml::de::DeValue;

use super::{Group, Kind};
use crate::addr::{self, Endpoint};
use crate::configfs::{KEY_ID, KEY_NEXT_ID};
use crate::{name, secret, size};

/// A key of an object, a host or a path.
pub struct Key {
    /// The key in a file.
    pub name: &'static str,
    /// The attribute in configfs.
    pub attr: &'static str,
    /// The form of the value.
    pub form: Form,
    /// The default as configfs has it. Empty if there is none, or if the kernel chooses it.
    pub default: &'static str,
}

/// The form of a value.
#[derive(Clone, Copy)]
pub enum Form {
    /// true or false.
    Flag,
    /// true for reading only; configfs has "ro" and "rw".
    ReadOnly,
    /// A number within limits.
    Number(i64, i64),
    /// A size in bytes, as the function parses it.
    Size(fn(&str) -> Result<u64, String>),
    /// A duration within limits in ms.
    Duration(u64, u64),
    /// A duration, or "forever".
    Patience,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A UUID.
    Uuid,
    /// An address to listen on.
    Local,
    /// An address of a server; a name is allowed in a file.
    Remote,
    /// An IP address.
    Ip,
    /// An absolute path.
    Path,
    /// An absolute path of a file that has a secret key. The attribute can only be written; the
    /// other one tells the key id.
    KeyFile(&'static str),
    /// A list of ports.
    Ports,
    /// A name of an object.
    Name,
}

const fn key(name: &'static str, attr: &'static str, form: Form, default: &'static str) -> Key {
    Key {
        name,
        attr,
        form,
        default,
    }
}

/// The key that says whether the object is enabled.
pub const ENABLED: &str = "enabled";
const ENABLED_KEY: Key = key(ENABLED, "enable", Form::Flag, "1");

/// The key that says how commands and data are protected on their way.
pub const PROTECTION: &str = "protection";
const PROTECTIONS: &[&str] = &["none", "crc32c", "seal"];

const PORT: &[Key] = &[key("addr", "addr", Form::Local, ""), ENABLED_KEY];

const EXPORT: &[Key] = &[
    // One of the first three is the backing. A file has no attribute of its own.
    key("ram", "size", Form::Size(size::parse), ""),
    key("device", "device_path", Form::Path, ""),
    key("file", "", Form::Path, ""),
    key("uuid", "uuid", Form::Uuid, ""),
    key("read_only", "read_only", Form::Flag, "0"),
    key(
        BLOCK_SIZE,
        BLOCK_SIZE,
        Form::Size(size::parse_block),
        BLOCK_SIZE_OF_RAM,
    ),
    key("numa_node", "numa_node", Form::Number(-1, 65535), "-1"),
    key("ram_reserve", "ram_reserve", Form::Size(size::parse), ""),
    key("ports", "ports", Form::Ports, "all"),
    key("allow_any_host", "allow_any_host", Form::Flag, "0"),
    key("scrub", "scrub", Form::Flag, "1"),
    key("max_clients", "max_clients", Form::Number(1, 65535), "1"),
    key(PROTECTION, PROTECTION, Form::Word(PROTECTIONS), "none"),
    key(
        "lease_max",
        "lease_max_ms",
        Form::Duration(10_000, u32::MAX as u64),
        "3600000",
    ),
    ENABLED_KEY,
];

const HOST: &[Key] = &[
    key("access", "access", Form::Word(&["rw", "ro", "none"]), ""),
    key("host_id", "host_id", Form::Uuid, ""),
    key("key_file", "key", Form::KeyFile(KEY_ID), ""),
    key("next_key_file", "key_next", Form::KeyFile(KEY_NEXT_ID), ""),
];

const MAP: &[Key] = &[
    // The default is the name of the map.
    key("export", "export", Form::Name, ""),
    key("read_only", "access", Form::ReadOnly, "rw"),
    key("queues", "queues", Form::Number(0, 64), "0"),
    key("poll_queues", "poll_queues", Form::Number(0, 64), "0"),
    key("depth", "depth", Form::Number(1, 1024), "128"),
    key(
        "inline_size",
        "inline_size",
        Form::Size(size::parse_inline),
        "4096",
    ),
    key(
        "io_timeout",
        "io_timeout_ms",
        Form::Duration(100, 3_600_000),
        "30000",
    ),
    key(
        "no_path_timeout",
        "no_path_timeout_ms",
        Form::Patience,
        "60000",
    ),
    key(
        "heartbeat",
        "heartbeat_ms",
        Form::Duration(0, 60_000),
        "1000",
    ),
    key(
        "reconnect_max",
        "reconnect_max_ms",
        Form::Duration(100, 3_600_000),
        "10000",
    ),
    key(
        "policy",
        "policy",
        Form::Word(&["min-inflight", "round-robin"]),
        "min-inflight",
    ),
    key(PROTECTION, PROTECTION, Form::Word(PROTECTIONS), "none"),
    key("tos", "tos", Form::Number(0, 255), "0"),
    key("expect_instance", "expect_instance", Form::Uuid, ""),
    key("key_file", "key", Form::KeyFile(KEY_ID), ""),
    ENABLED_KEY,
];

const PATH: &[Key] = &[
    key("addr", "addr", Form::Remote, ""),
    key("source", "source", Form::Ip, ""),
    ENABLED_KEY,
];

/// The start of the value, in place of a path, for a key that runs and of which no file is known;
/// the key id follows.
const UNNAMED: &str = "key_id:";

/// The value for a key that runs.
pub fn unnamed(id: &str) -> String {
    format!("{UNNAMED}{id}")
}

/// The key id in such a value.
pub fn unnamed_id(value: &str) -> Option<&str> {
    value.strip_prefix(UNNAMED)
}

/// The keys that only a RAM export has as attributes.
pub const RAM_ONLY: [&str; 3] = [BLOCK_SIZE, "numa_node", "ram_reserve"];
/// The one of these that the loop device of a file has, too: without it that chooses.
pub const BLOCK_SIZE: &str = "block_size";
/// Its default with RAM.
pub const BLOCK_SIZE_OF_RAM: &str = "4096";
/// The keys of which an export has exactly one.
pub const BACKINGS: [&str; 3] = ["ram", "device", "file"];

impl Kind {
    /// The keys of an object of this kind.
    pub fn keys(self) -> &'static [Key] {
        match self {
            Self::Port => PORT,
            Self::Export => EXPORT,
            Self::Map => MAP,
        }
    }
}

impl Group {
    /// The keys of a member of the group.
    pub fn keys(self) -> &'static [Key] {
        match self {
            Self::Hosts => HOST,
            Self::Paths => PATH,
        }
    }
}

impl Form {
    /// Parses the value of a key in a file.
    pub fn parse(&self, value: &DeValue<'_>) -> Result<String, String> {
        match (self, value) {
            (Self::Flag, DeValue::Boolean(flag)) => Ok(u8::from(*flag).to_string()),
            (Self::ReadOnly, DeValue::Boolean(true)) => Ok("ro".into()),
            (Self::ReadOnly, DeValue::Boolean(false)) => Ok("rw".into()),
            (Self::Number(min, max), DeValue::Integer(number)) => {
                let digits = number.as_str().replace('_', "");
                match i64::from_str_radix(&digits, number.radix()) {
                    Ok(number) if (*min..=*max).contains(&number) => Ok(number.to_string()),
                    _ => Err(format!(
                        "{digits} is out of range: {min} to {max} are accepted"
                    )),
                }
            }
            (Self::Size(_) | Self::Duration(..) | Self::Patience, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                self.parse_text(&number.as_str().replace('_', ""))
            }
            (Self::Ports, DeValue::Array(array)) => {
                let mut ports = Vec::new();
                for port in array.iter() {
                    let text = port.get_ref().as_str();
                    let text = text.ok_or("expected names of ports, such as [\"1\", \"2\"]")?;
                    ports.push(name::parse(text)?);
                }
                match ports.len() {
                    1..=8 => Ok(ports.join(" ")),
                    count => Err(format!("an export has 1 to 8 ports, not {count}")),
                }
            }
            (Self::Flag | Self::ReadOnly | Self::Number(..) | Self::Ports, DeValue::String(_)) => {
                Err(self.expected("a string"))
            }
            (_, DeValue::String(text)) => self.parse_text(text),
            (_, value) => Err(self.expected(value.type_str())),
        }
    }

    fn expected(&self, found: &str) -> String {
        let what = match self {
            Self::Flag | Self::ReadOnly => "true or false",
            Self::Number(..) => "a number",
            Self::Size(_) => "a size such as \"4G\"",
            Self::Duration(..) => "a duration such as \"30s\"",
            Self::Patience => "a duration such as \"30s\", or \"forever\"",
            Self::Ports => "a list of ports such as [\"1\", \"2\"]",
            _ => "a string",
        };
        format!("expected {what}, not {found}")
    }

    /// Parses a value that is a string.
    fn parse_text(&self, text: &str) -> Result<String, String> {
        Ok(match self {
            Self::Size(parse) => parse(text)?.to_string(),
            Self::Duration(min, max) => {
                let ms = size::parse_duration(text)?.as_millis();
                let limits = u128::from(*min)..=u128::from(*max);
                if !limits.contains(&ms) {
                    let [min, max] = [*min, *max].map(size::human_setting);
                    return Err(format!(
                        "{text:?} is out of range: {min} to {max} are accepted"
                    ));
                }
                ms.to_string()
            }
            Self::Patience => size::parse_patience(text)?.to_string(),
            Self::Word(words) if words.contains(&text) => text.to_owned(),
            Self::Word(words) => {
                return Err(format!("{text:?} is none of {}", words.join(", ")));
            }
            Self::Uuid => name::parse_uuid(text)?,
            Self::Local => {
                addr::parse_local(text).map_err(|e| e.to_string())?;
                Endpoint::parse(text)
                    .map_err(|e| e.to_string())?
                    .to_string()
            }
            Self::Remote => Endpoint::parse(text)
                .map_err(|e| e.to_string())?
                .to_string(),
            Self::Ip => addr::parse_ip(text)?.to_string(),
            Self::Name => name::parse(text)?,
            Self::Path if !text.starts_with('/') => {
                return Err(format!("{text:?} does not start with /"));
            }
            // What stands there may be a secret by mistake, and errors go to logs.
            Self::KeyFile(_) if text.starts_with(secret::PREFIX) => {
                let why = "is a key itself; write that to a file of its own, and the path of that \
                    file here";
                return Err(why.into());
            }
            Self::KeyFile(_) if !text.starts_with('/') => {
                return Err("is not the path of a file: it does not start with /".into());
            }
            Self::Path | Self::KeyFile(_) if text.contains(char::is_control) => {
                return Err(format!("{text:?} is not one line"));
            }
            _ => text.to_owned(),
        })
    }

    /// The value that an attribute in configfs has, in the spelling of [`Form::parse`].
    pub fn of_configfs(&self, text: &str) -> String {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match self {
            Self::Local | Self::Remote | Self::Uuid | Self::Ip => {
                self.parse_text(&text).unwrap_or(text)
            }
            _ => text,
        }
    }

    /// Writes a value as a file has it.
    pub fn render(&self, value: &str) -> String {
        let exact = |units: &[(u64, &str)]| {
            let number: u64 = value.parse().ok().filter(|number| *number != 0)?;
            let (factor, unit) = units.iter().find(|(factor, _)| number % factor == 0)?;
            Some(quoted(&format!("{}{unit}", number / factor)))
        };
        match self {
            Self::Flag => (value == "1").to_string(),
            Self::ReadOnly => (value == "ro").to_string(),
            Self::Number(..) => value.to_owned(),
            Self::Size(_) => exact(&[
                (1 << 60, "E"),
                (1 << 50, "P"),
                (1 << 40, "T"),
                (1 << 30, "G"),
                (1 << 20, "M"),
                (1 << 10, "K"),
            ])
            .unwrap_or_else(|| value.to_owned()),
            Self::Patience if value == "-1" => quoted("forever"),
            Self::Duration(..) | Self::Patience => {
                exact(&[(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")])
                    .unwrap_or_else(|| quoted("0"))
            }
            Self::Ports => {
                let ports: Vec<_> = value.split_whitespace().map(quoted).collect();
                format!("[{}]", ports.join(", "))
            }
            Self::KeyFile(_) => match unnamed_id(value) {
                Some(id) => format!("the key {id}, of which no file is known"),
                None => quoted(value),
            },
            _ => quoted(value),
        }
    }
}

/// A string of TOML.
pub fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// A key of TOML.
pub fn key_text(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    match !text.is_empty() && text.chars().all(bare) {
        true => text.to_owned(),
        false => quoted(text),
    }
}
