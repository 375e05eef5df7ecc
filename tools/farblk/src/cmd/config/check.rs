// SPDX-License-Identifier: GPL-2.0
//! `farblk config check`.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Fault, is_valid, load_all, print};
use crate::cmd::Context;
use crate::error::{Error, exit};
use crate::identity;
use crate::name;
use crate::saved::keys::PROTECTION;
use crate::saved::running::{is_kernel_name, lasting, loop_name, no_lasting_name};
use crate::saved::{Kind, Member, Object, Problem, Saved};
use crate::secret;

/// The problems of the files in /etc/farblk, schema `farblk.config-check/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    /// True if there is no error; there may be warnings.
    valid: bool,
    objects: usize,
    problems: Vec<Fault>,
}

/// Runs `farblk config check`. It needs no module.
pub fn run(context: &Context) -> Result<(), Error> {
    let mut saved = load_all(context);
    let mut more: Vec<Problem> = identity::problem(&context.root).into_iter().collect();
    for object in saved.objects.iter().filter(|object| is_valid(object)) {
        more.extend(look(context, object, &saved));
    }
    saved.problems.append(&mut more);
    let problems = saved.all_problems();
    let valid = !problems.iter().any(|problem| problem.is_error);
    if !valid {
        context.exit.set(exit::OTHER);
    }
    let objects = saved.objects.len();
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.config-check/1",
            valid,
            objects,
            problems: problems.into_iter().map(Fault::from).collect(),
        });
    }
    print(context, &problems)?;
    if problems.is_empty() {
        context
            .output
            .note(&format!("{objects} objects, no problem"));
    }
    Ok(())
}

/// Finds what may be wrong with an object on this host, or with others beside it.
fn look(context: &Context, object: &Object, saved: &Saved) -> Vec<Problem> {
    let title = object.title();
    let problem =
        |text: String| Problem::new(object.place.clone(), format!("{title}: {text}")).warning();
    let parse = match object.kind {
        Kind::Map => name::parse_new_map,
        _ => name::parse_new,
    };
    let mut problems: Vec<_> = parse(&object.name)
        .err()
        .into_iter()
        .map(&problem)
        .collect();
    problems.extend(look_at_keys(context, object));
    problems.extend(look_at_seal(object));
    if object.kind == Kind::Export {
        if object.value("allow_any_host") == "1" && object.key_files().next().is_some() {
            let text = "admits any host, so that one without a key shows another name: remove \
                allow_any_host";
            problems.push(problem(text.into()));
        }
        if !object.values.contains_key("uuid") {
            let text = "has no uuid, so its maps are stale after each restart of this server";
            problems.push(problem(text.into()).hint("farblk config save  # once the export runs"));
        }
        for port in object.value("ports").split_whitespace() {
            if port != "all" && saved.find(Kind::Port, port).is_none() {
                problems.push(problem(format!("no file has port {port}")));
            }
        }
        if object.members.is_empty() && object.value("allow_any_host") != "1" {
            let text = "admits no host: write hosts = { NAME = \"rw\" }";
            problems.push(problem(text.into()));
        }
        problems.extend(look_at_backing(context, object).map(problem));
    }
    if object.kind == Kind::Port {
        let addr = object.value("addr");
        let is_twin = |other: &&Object| {
            let is_port = other.kind == Kind::Port && other.name != object.name;
            is_port && other.value("addr") == addr && other.name < object.name
        };
        if let Some(twin) = saved.objects.iter().find(is_twin) {
            problems.push(problem(format!("{} has this address, too", twin.title())));
        }
    }
    problems
}

/// Finds which files with keys cannot be used: the object would not be restored.
fn look_at_keys(context: &Context, object: &Object) -> Vec<Problem> {
    let problem = |file: &str| {
        let unusable = secret::load(&secret::below(&context.root, file)).err()?;
        let text = format!("{}: {}", object.title(), unusable.why);
        let problem = Problem::new(object.place.clone(), text).hint(unusable.hint);
        Some(match unusable.is_hidden {
            true => problem.warning(),
            false => problem,
        })
    };
    object.key_files().filter_map(problem).collect()
}

/// Finds who has no key that needs one: of what is sealed, a map without a key is not restored, and
/// a host without a key is refused.
fn look_at_seal(object: &Object) -> Vec<Problem> {
    if object.value(PROTECTION) != "seal" {
        return Vec::new();
    }
    let problem = |text: String| {
        let text = format!("{}: {text}", object.title());
        Problem::new(object.place.clone(), text)
    };
    if object.kind == Kind::Map {
        let has_key = object.key_files().next().is_some();
        let text = "protection = \"seal\" needs a key: write key_file".to_owned();
        return (!has_key).then(|| problem(text)).into_iter().collect();
    }
    let keyless = |member: &&Member| {
        let keys = ["key_file", "next_key_file"];
        !keys.iter().any(|key| member.values.contains_key(key))
    };
    let text = |member: &Member| {
        let name = &member.name;
        problem(format!(
            "host {name} has no key, and protection = \"seal\" needs one: write key_file"
        ))
        .warning()
    };
    object.members.iter().filter(keyless).map(text).collect()
}

fn look_at_backing(context: &Context, object: &Object) -> Option<String> {
    let (device, file) = (object.value("device"), object.value("file"));
    if !file.is_empty() {
        let missing = !Path::new(file).is_file();
        return missing.then(|| format!("{file} does not exist now, or is no file"));
    }
    if device.is_empty() {
        return None;
    }
    match context.devices.number(Path::new(device)) {
        Err(_) => Some(format!("{device} does not exist now")),
        Ok(None) => Some(format!("{device} is not a block device")),
        Ok(Some(_)) => match loop_name(context, device) {
            Some(name) => Some(match lasting(context, device) {
                Ok(_) => format!("{device} is {name}: write file = \"PATH\""),
                Err(why) => why,
            }),
            None => is_kernel_name(device).then(|| no_lasting_name(device)),
        },
    }
}
