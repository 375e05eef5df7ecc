// SPDX-License-Identifier: GPL-2.0
//! The state over a reboot: what the files in /etc/farblk describe, and what runs, in one form.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

pub mod keys;
mod load;
mod render;
pub mod running;

pub use load::{load, parse};
pub use render::{object, render};

/// The folder of the files, below the root directory.
pub const FOLDER: &str = "etc/farblk";

/// The side of the connection that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Ports and exports.
    Server,
    /// Maps.
    Client,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// "server" or "client".
    pub fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// The kinds of objects, in the order in which they are restored: who can connect to a port
    /// finds the exports.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Server => &[Kind::Export, Kind::Port],
            Self::Client => &[Kind::Map],
        }
    }

    /// The file that `config save` writes.
    pub fn file(self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(format!("{}.toml", self.word()))
    }

    /// The folder of further files.
    pub fn folder(self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(format!("{}.d", self.word()))
    }
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A port.
    Port,
    /// An export.
    Export,
    /// A map.
    Map,
}

impl Kind {
    /// The word for it, also in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Export => "export",
            Self::Map => "map",
        }
    }

    /// The directory of such objects in configfs.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Port => "ports",
            Self::Export => "exports",
            Self::Map => "maps",
        }
    }

    /// The side whose files have such objects.
    pub fn side(self) -> Side {
        match self {
            Self::Port | Self::Export => Side::Server,
            Self::Map => Side::Client,
        }
    }

    /// What such an object consists of.
    pub fn group(self) -> Option<Group> {
        match self {
            Self::Port => None,
            Self::Export => Some(Group::Hosts),
            Self::Map => Some(Group::Paths),
        }
    }
}

/// The members of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The hosts of an export.
    Hosts,
    /// The paths of a map.
    Paths,
}

impl Group {
    /// The word for it, in files and in configfs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Paths => "paths",
        }
    }

    /// The word for one member.
    pub fn one(self) -> &'static str {
        match self {
            Self::Hosts => "host",
            Self::Paths => "path",
        }
    }
}

/// The values that differ from their defaults, by the name of their key.
pub type Values = BTreeMap<&'static str, String>;

/// A host of an export, or a path of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Values,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A port, export or map.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Values,
    /// Its hosts or paths, in the order of their names.
    pub members: Vec<Member>,
    /// Where it was read; `None` if it runs.
    pub place: Option<Place>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

impl Object {
    /// Returns true if both say the same.
    pub fn says_as(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.name == other.name
            && self.values == other.values
            && self.members == other.members
    }

    /// The value of a key, or its default; "" if there is neither.
    pub fn value(&self, key: &str) -> &str {
        let default = || {
            let key = self.kind.keys().iter().find(|have| have.name == key);
            key.map_or("", |key| key.default)
        };
        match self.values.get(key) {
            Some(value) => value,
            None if key == "export" => &self.name,
            None => default(),
        }
    }

    /// Returns true if the object shall be enabled, or is.
    pub fn is_enabled(&self) -> bool {
        self.value(keys::ENABLED) == "1"
    }

    /// The files with secret keys that the object and its members name.
    pub fn key_files(&self) -> impl Iterator<Item = &str> {
        let members = self.members.iter().map(|member| &member.values);
        let is_key_file = |name: &str| ["key_file", "next_key_file"].contains(&name);
        let all = members.chain([&self.values]).flatten();
        all.filter(move |(name, _)| is_key_file(name))
            .map(|(_, value)| value.as_str())
    }

    /// "export vol1"
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.word(), self.name)
    }

    /// "/etc/farblk/server.toml:3"; "" of one that runs.
    pub fn origin(&self) -> String {
        let place = self.place.as_ref();
        place.map_or(String::new(), Place::to_string)
    }
}

/// Something that is wrong with a file, or with what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The place of the error.
    pub place: Option<Place>,
    /// True if the object cannot be restored.
    pub is_error: bool,
    /// What is wrong.
    pub text: String,
    /// The remedy, a line of shell; or empty.
    pub hint: String,
}

impl Problem {
    /// An error.
    pub fn new(place: Option<Place>, text: impl Into<String>) -> Self {
        Self {
            place,
            is_error: true,
            text: text.into(),
            hint: String::new(),
        }
    }

    /// Says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// It is only a warning.
    pub fn warning(mut self) -> Self {
        self.is_error = false;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// What the files say.
#[derive(Debug, Default)]
pub struct Saved {
    /// The objects, those with problems too.
    pub objects: Vec<Object>,
    /// What is wrong with the files besides.
    pub problems: Vec<Problem>,
    /// The name that this host shows to servers, if a file says it.
    pub host_name: Option<String>,
}

impl Saved {
    /// The object of this kind and name.
    pub fn find(&self, kind: Kind, name: &str) -> Option<&Object> {
        let mut objects = self.objects.iter();
        objects.find(|object| object.kind == kind && object.name == name)
    }

    /// All problems, in the order of files and lines.
    pub fn all_problems(&self) -> Vec<&Problem> {
        let objects = self.objects.iter().flat_map(|object| &object.problems);
        let mut all: Vec<_> = self.problems.iter().chain(objects).collect();
        let order = |problem: &&Problem| {
            let place = problem.place.as_ref();
            place.map(|place| (place.file.clone(), place.line))
        };
        all.sort_by_key(order);
        all
    }
}
