// SPDX-License-Identifier: GPL-2.0
//! Reading the files. An object with an error does not hide the others.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::keys::{self, Key};
use super::{Group, Kind, Member, Object, Place, Problem, Saved, Side, Values};
use crate::addr::PathSpec;
use crate::configfs::words;
use crate::name;

/// The largest file that is read. One with 10,000 exports has less.
const SIZE_MAX: u64 = 4 << 20;
/// The key of a client's file that is no object.
const HOST_NAME: &str = "host_name";

/// Reads the files of one side below `root`: the one that `config save` writes, then those of the
/// folder beside it in the order of their names.
pub fn load(root: &Path, side: Side) -> Saved {
    let mut saved = Saved::default();
    let folder = side.folder(root);
    let mut files = vec![side.file(root)];
    match fs::read_dir(&folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            let text = format!("{}: {}", folder.display(), words(&e));
            saved.problems.push(Problem::new(None, text));
        }
        entries => {
            let entries = entries.into_iter().flatten().flatten();
            let mut more: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            more.retain(|path| is_file_of_ours(path));
            more.sort();
            files.append(&mut more);
        }
    }
    for file in files {
        match read(&file) {
            Ok(Some(text)) => parse(side, &file, &text, &mut saved),
            Ok(None) => {}
            Err(text) => {
                let place = Place { file, line: 1 };
                saved.problems.push(Problem::new(Some(place), text));
            }
        }
    }
    saved
}

fn is_file_of_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".toml") && !name.starts_with('.')
}

/// Reads a file that need not exist.
fn read(file: &Path) -> Result<Option<String>, String> {
    let metadata = match fs::metadata(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(|e| words(&e))?,
    };
    if !metadata.is_file() {
        return Err("is not a file".into());
    }
    if metadata.len() > SIZE_MAX {
        return Err(format!("has {} bytes, which is too much", metadata.len()));
    }
    let bytes = fs::read(file).map_err(|e| words(&e))?;
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    Ok(Some(text))
}

/// Parses one file, and adds what it says.
pub fn parse(side: Side, file: &Path, text: &str, saved: &mut Saved) {
    let source = Source { file, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let place = source.place(error.span().unwrap_or_default());
        let mut text = error.message().trim_end().replace('\n', ", ");
        if text.is_empty() {
            text = "is not TOML".into();
        }
        saved.problems.push(Problem::new(Some(place), text));
    }
    if !errors.is_empty() {
        return;
    }
    for (key, value) in table.get_ref().iter() {
        let problem = match (side, key.get_ref().as_ref()) {
            (Side::Client, HOST_NAME) => {
                let text = value.get_ref().as_str().unwrap_or_default();
                match name::parse(text) {
                    Ok(name) => saved.host_name = Some(name),
                    Err(why) => saved.problems.push(source.problem(key, why)),
                }
                continue;
            }
            (_, word) => match kind_of(word) {
                Some(kind) if kind.side() == side => {
                    let Some(table) = value.get_ref().as_table() else {
                        let text = format!("write [{word}.NAME]");
                        saved.problems.push(source.problem(key, text));
                        continue;
                    };
                    for (name, value) in table.iter() {
                        let object = source.object(kind, name, value);
                        add(saved, object);
                    }
                    continue;
                }
                Some(kind) => format!("{word} belongs in {}.toml", kind.side().word()),
                None => {
                    let mut known: Vec<_> = side.kinds().iter().map(|kind| kind.word()).collect();
                    known.extend((side == Side::Client).then_some(HOST_NAME));
                    unknown(word, &known)
                }
            },
        };
        saved.problems.push(source.problem(key, problem));
    }
}

fn kind_of(word: &str) -> Option<Kind> {
    let mut kinds = [Kind::Port, Kind::Export, Kind::Map].into_iter();
    kinds.find(|kind| kind.word() == word)
}

/// Adds an object. What two places describe is none of both, as nobody can tell which is meant.
fn add(saved: &mut Saved, mut object: Object) {
    let other = saved
        .objects
        .iter_mut()
        .find(|other| other.kind == object.kind && other.name == object.name);
    if let Some(other) = other {
        let text = |origin: String| format!("{} is in {origin}, too", other.title());
        let (first, second) = (text(object.origin()), text(other.origin()));
        other
            .problems
            .push(Problem::new(other.place.clone(), first));
        object
            .problems
            .push(Problem::new(object.place.clone(), second));
    }
    let uuid = object.values.get("uuid").cloned();
    let twin = saved.objects.iter_mut().find(|other| {
        uuid.is_some() && other.values.get("uuid") == uuid.as_ref() && other.name != object.name
    });
    if let Some(twin) = twin {
        let text = format!("{} in {} has this uuid, too", twin.title(), twin.origin());
        object
            .problems
            .push(Problem::new(object.place.clone(), text));
    }
    saved.objects.push(object);
}

fn unknown(word: &str, known: &[&str]) -> String {
    let names: Vec<_> = known.iter().map(|&name| name.to_owned()).collect();
    match name::nearest(word, &names) {
        Some(meant) => format!("{word} is not known; did you mean {meant}?"),
        None => format!("{word} is not known: there are {}", known.join(", ")),
    }
}

type SpannedKey<'a> = Spanned<DeString<'a>>;
type SpannedValue<'a> = Spanned<DeValue<'a>>;

/// A file that is parsed.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn place(&self, span: Range<usize>) -> Place {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        Place {
            file: self.file.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
        }
    }

    fn problem(&self, key: &SpannedKey<'_>, text: impl Into<String>) -> Problem {
        Problem::new(Some(self.place(key.span())), text)
    }

    fn object(&self, kind: Kind, key: &SpannedKey<'_>, value: &SpannedValue<'_>) -> Object {
        let mut object = Object {
            kind,
            name: key.get_ref().to_string(),
            values: Values::new(),
            members: Vec::new(),
            place: Some(self.place(key.span())),
            problems: Vec::new(),
        };
        if let Err(why) = name::parse(&object.name) {
            object.problems.push(self.problem(key, why));
        }
        let Some(table) = value.get_ref().as_table() else {
            let text = format!("write [{}.{}]", kind.word(), keys::key_text(&object.name));
            object.problems.push(self.problem(key, text));
            return object;
        };
        let group = kind.group();
        for (key, value) in table.iter() {
            match group.filter(|group| key.get_ref() == group.word()) {
                Some(group) => self.members(group, key, value, &mut object),
                None => {
                    let extra = group.map(Group::word);
                    let values = &mut object.values;
                    let result = self.value(kind.keys(), extra, key, value, values);
                    object.problems.extend(result.err());
                }
            }
        }
        if object.values.get("export") == Some(&object.name) {
            object.values.remove("export");
        }
        self.judge(&mut object);
        object
    }

    /// Takes the value of a key, unless it is the default.
    fn value(
        &self,
        keys: &'static [Key],
        extra: Option<&'static str>,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
        values: &mut Values,
    ) -> Result<(), Problem> {
        let word = key.get_ref();
        let Some(known) = keys.iter().find(|known| known.name == word) else {
            let mut names: Vec<_> = keys.iter().map(|key| key.name).collect();
            names.extend(extra);
            return Err(self.problem(key, unknown(word, &names)));
        };
        let parsed = known.form.parse(value.get_ref());
        let parsed = parsed.map_err(|why| self.problem(key, format!("{word}: {why}")))?;
        // A file has another default than RAM.
        if known.default.is_empty() || parsed != known.default || known.name == keys::BLOCK_SIZE {
            values.insert(known.name, parsed);
        }
        Ok(())
    }

    fn members(
        &self,
        group: Group,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
        object: &mut Object,
    ) {
        let Some(table) = value.get_ref().as_table() else {
            let example = match group {
                Group::Hosts => "{ NAME = \"rw\" }",
                Group::Paths => "{ 0 = \"HOST\" }",
            };
            let text = format!("write {} = {example}", group.word());
            return object.problems.push(self.problem(key, text));
        };
        for (key, value) in table.iter() {
            match self.member(group, key, value) {
                Ok(member) => object.members.push(member),
                Err(problems) => object.problems.extend(problems),
            }
        }
        object.members.sort_by(|a, b| a.name.cmp(&b.name));
    }

    fn member(
        &self,
        group: Group,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
    ) -> Result<Member, Vec<Problem>> {
        let title = format!("{} {}", group.one(), key.get_ref());
        let wrong = |why: String| vec![self.problem(key, format!("{title}: {why}"))];
        let name = name::parse(key.get_ref()).map_err(wrong)?;
        let mut values = Values::new();
        match (value.get_ref(), group) {
            (DeValue::String(text), Group::Paths) => {
                let path = PathSpec::parse(text).map_err(|why| wrong(why.to_string()))?;
                values.insert("addr", path.destination.to_string());
                if let Some(source) = path.source {
                    values.insert("source", source.to_string());
                }
            }
            (value @ DeValue::String(_), Group::Hosts) => {
                let access = &group.keys()[0];
                let parsed = access.form.parse(value).map_err(wrong)?;
                values.insert(access.name, parsed);
            }
            (DeValue::Table(table), _) => {
                let parse = |(key, value)| self.value(group.keys(), None, key, value, &mut values);
                let problems: Vec<_> = table.iter().map(parse).flat_map(Result::err).collect();
                if !problems.is_empty() {
                    return Err(problems);
                }
            }
            _ => return Err(wrong("expected a string or a table".into())),
        }
        let required = group.keys()[0].name;
        if !values.contains_key(required) {
            return Err(wrong(format!("{required} is missing")));
        }
        Ok(Member { name, values })
    }

    /// Finds what is wrong with an object as a whole.
    fn judge(&self, object: &mut Object) {
        let block_size = object.value(keys::BLOCK_SIZE);
        if block_size == keys::BLOCK_SIZE_OF_RAM && !object.values.contains_key("file") {
            object.values.remove(keys::BLOCK_SIZE);
        }
        let has = |key: &&str| object.values.contains_key(*key);
        let mut texts = Vec::new();
        match object.kind {
            Kind::Port if !has(&"addr") => texts.push("addr is missing".to_owned()),
            Kind::Port => {}
            Kind::Export => {
                let backings: Vec<_> = keys::BACKINGS.into_iter().filter(has).collect();
                match backings.as_slice() {
                    [] => texts.push("one of ram, device and file is missing".into()),
                    ["ram"] if !matches!(object.value(keys::PROTECTION), "" | "none") => {
                        texts.push("protection is not for ram, but for device and file".into());
                    }
                    ["ram"] => texts.extend(ram_size_error(object)),
                    [one] => {
                        let mut only = keys::RAM_ONLY.into_iter().filter(has);
                        let only = only.find(|key| (*one, *key) != ("file", keys::BLOCK_SIZE));
                        texts.extend(only.map(|key| format!("{key} is for ram, not for {one}")));
                    }
                    several => {
                        texts.push(format!("has {}, but can have one", several.join(" and ")))
                    }
                }
                let device = object.value("device");
                if ["/dev/loop", "/dev/block/7:"]
                    .iter()
                    .any(|start| device.starts_with(start))
                {
                    texts.push(format!(
                        "{device} may be another file after a reboot: write file = \"PATH\""
                    ));
                }
            }
            Kind::Map => match object.members.len() {
                0 => texts.push("has no path: write paths = { 0 = \"HOST\" }".into()),
                1..=8 => {}
                count => texts.push(format!("{count} paths are more than 8")),
            },
        }
        // What is wrong with a value hides what is wrong with the whole.
        if object.problems.is_empty() {
            let title = object.title();
            let problem = |text| Problem::new(object.place.clone(), format!("{title}: {text}"));
            object.problems = texts.into_iter().map(problem).collect();
        }
    }
}

/// Says why a RAM export cannot have its size.
fn ram_size_error(object: &Object) -> Option<String> {
    let number = |key: &str| object.value(key).parse().unwrap_or(0u64);
    let (ram, block) = (number("ram"), number("block_size").max(1));
    if ram == 0 {
        return Some("a disk cannot have 0 bytes".into());
    }
    let text = format!("{ram} is not a multiple of the block size {block}");
    (ram % block != 0).then_some(text)
}
