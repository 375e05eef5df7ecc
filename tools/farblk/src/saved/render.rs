// SPDX-License-Identifier: GPL-2.0
//! Writing objects as TOML.

use super::keys::{self, Form, Key, quoted};
use super::{Group, Kind, Member, Object, Values};

/// The text of a file with these objects.
pub fn render(heading: &str, host_name: Option<&str>, objects: &[&Object]) -> String {
    let mut text = heading.to_owned();
    if let Some(name) = host_name {
        text += &format!("\nhost_name = {}\n", quoted(name));
    }
    for kind in [Kind::Port, Kind::Export, Kind::Map] {
        for object in objects.iter().filter(|object| object.kind == kind) {
            text += "\n";
            text += &self::object(object);
        }
    }
    text
}

/// One object.
pub fn object(object: &Object) -> String {
    let title = format!("{}.{}", object.kind.word(), keys::key_text(&object.name));
    let mut text = format!("[{title}]\n");
    for (key, value) in pairs(object.kind.keys(), &object.values) {
        text += &format!("{key} = {value}\n");
    }
    let Some(group) = object.kind.group().filter(|_| !object.members.is_empty()) else {
        return text;
    };
    text += &format!("[{title}.{}]\n", group.word());
    for member in &object.members {
        let key = keys::key_text(&member.name);
        text += &format!("{key} = {}\n", self::member(group, member));
    }
    text
}

/// A host as `rw` and a path as `[SRC@]DST`, if that says all of it.
fn member(group: Group, member: &Member) -> String {
    let value = |key: &str| member.values.get(key).cloned().unwrap_or_default();
    let names: Vec<_> = member.values.keys().copied().collect();
    match (group, names.as_slice()) {
        (Group::Hosts, ["access"]) => quoted(&value("access")),
        (Group::Paths, ["addr"]) => quoted(&value("addr")),
        (Group::Paths, ["addr", "source"]) => {
            quoted(&format!("{}@{}", value("source"), value("addr")))
        }
        _ => {
            let pairs = pairs(group.keys(), &member.values);
            let pairs: Vec<_> = pairs
                .map(|(key, value)| format!("{key} = {value}"))
                .collect();
            format!("{{ {} }}", pairs.join(", "))
        }
    }
}

fn pairs(known: &'static [Key], values: &Values) -> impl Iterator<Item = (&'static str, String)> {
    known.iter().filter_map(|key| {
        let value = values.get(key.name)?;
        // There is nothing to write down of a key without a file.
        if matches!(key.form, Form::KeyFile(_)) && keys::unnamed_id(value).is_some() {
            return None;
        }
        Some((key.name, key.form.render(value)))
    })
}
