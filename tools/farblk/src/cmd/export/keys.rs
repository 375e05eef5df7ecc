// SPDX-License-Identifier: GPL-2.0
//! `farblk export key`: the keys of a host of an export.
//!
//! A host that has a key has to prove that it has that one, or the next key. So a key is replaced
//! while maps are connected: the new key becomes the next key, the maps of the host get it one
//! after the other, and then it is promoted, after which the old key admits nobody any more.

use super::{Host, clients_of, read};
use crate::cmd::{Context, key};
use crate::configfs::Job;
use crate::error::{Code, Error, Hints, fill_in};
use crate::saved::{self, Kind, Side};
use crate::secret::{self, Secret, Source};

/// A change of the keys of a host.
pub enum Change<'a> {
    /// Gives it a key in place of the one that it has.
    Key(Source<'a>),
    /// Gives it a next key.
    Next(Source<'a>),
    /// Makes the next key its only one.
    Promote,
    /// Removes the next key.
    RemoveNext,
    /// Removes both keys.
    Remove,
}

/// Runs `farblk export key`.
pub fn change(
    context: &Context,
    name: &str,
    host: &str,
    change: &Change<'_>,
    force: bool,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot change the key of {host} for {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    let entry = object.join("hosts").join(host);
    let export = read(context, name);
    let Some(before) = export.hosts.iter().find(|entry| entry.name == host) else {
        let why = "the export has no entry for this host";
        let hint = fill_in(
            "farblk export allow {name} {host} --key-file FILE",
            &[("name", name), ("host", host)],
        );
        return Err(job.error(Code::NotFound, why).hint(hint));
    };
    configfs.require_keys(&entry, &job)?;
    let (have, next) = (before.key_id.as_deref(), before.key_next_id.as_deref());
    let changed = match change {
        Change::Key(source) => {
            let secret = key::read(source, &job)?;
            let id = Some(secret.id());
            // Who has proved the next key may stay.
            if have != id && next != id {
                require_no_map(context, name, before, force, &job)?;
            }
            if have != id {
                configfs.set_key(&entry, "key", Some((&secret, source)), &job)?;
            }
            have != id
        }
        Change::Next(source) => {
            let secret = key::read(source, &job)?;
            if have.is_none() {
                let why = "it has no key yet that could be followed by another one";
                let hint = fill_in(
                    "farblk export key {name} {host} --key-file FILE",
                    &[("name", name), ("host", host)],
                );
                return Err(job.error(Code::Usage, why).hint(hint));
            }
            if have == Some(secret.id()) {
                let why = "the file has the key that the host has already";
                let hint = "farblk key new FILE  # makes another one";
                return Err(job.error(Code::Usage, why).hint(hint));
            }
            let differs = next != Some(secret.id());
            if differs && next.is_some() {
                require_no_map(context, name, before, force, &job)?;
            }
            if differs {
                configfs.set_key(&entry, "key_next", Some((&secret, source)), &job)?;
            }
            differs
        }
        Change::Promote => {
            let Some(next) = next else {
                let why = "it has no next key";
                let hint = fill_in(
                    "farblk export key {name} {host} --next-key-file FILE",
                    &[("name", name), ("host", host)],
                );
                return Err(job.error(Code::NotFound, why).hint(hint));
            };
            // The kernel gives no key away, so its file is needed once more.
            let (secret, path) = find(context, name, host, next, &job)?;
            let source = Source::File(&path);
            // In this order, one of the two is the new key all the time.
            configfs.set_key(&entry, "key", Some((&secret, &source)), &job)?;
            configfs.set_key(&entry, "key_next", None, &job)?;
            true
        }
        Change::RemoveNext => {
            if next.is_some() && next != have {
                require_no_map(context, name, before, force, &job)?;
            }
            if next.is_some() {
                configfs.set_key(&entry, "key_next", None, &job)?;
            }
            next.is_some()
        }
        Change::Remove => {
            if before.has_key() {
                require_no_map(context, name, before, force, &job)?;
            }
            for (attribute, id) in [("key_next", next), ("key", have)] {
                if id.is_some() {
                    configfs.set_key(&entry, attribute, None, &job)?;
                }
            }
            before.has_key()
        }
    };
    if configfs.is_dry_run() {
        return Ok(());
    }
    report(context, name, host, changed)
}

fn report(context: &Context, name: &str, host: &str, changed: bool) -> Result<(), Error> {
    let export = read(context, name);
    let entry = export.hosts.iter().find(|entry| entry.name == host);
    let text = match entry.map(|entry| (entry.key_id.as_deref(), entry.key_next_id.as_deref())) {
        Some((Some(key), None)) => format!("the key {key}"),
        Some((Some(key), Some(next))) => format!("the key {key}, and {next} as the next one"),
        Some((None, Some(next))) => format!("the next key {next}"),
        _ => "no key: any host that shows this name is admitted".to_owned(),
    };
    let document = super::ExportDocument {
        schema: "farblk.export/1",
        changed,
        export: &export,
    };
    let text = format!("export {name}: {host} has {text}");
    context.output.result(&text, &document)?;
    warn_of_any_host(context, name, host);
    Ok(())
}

/// Fails if the host may have maps that cannot continue without the key that they have proved,
/// unless that is forced. The module does not tell which of two keys a map has proved.
fn require_no_map(
    context: &Context,
    name: &str,
    host: &Host,
    force: bool,
    job: &Job,
) -> Result<(), Error> {
    let export = read(context, name);
    let Some(why) = clients_of(&export, &host.name).filter(|_| !force) else {
        return Ok(());
    };
    let first = match host.has_key() {
        true => {
            "farblk export key {name} {host} --next-key-file FILE  # replaces the key while maps use it"
        }
        false => "farblk unmap MAP  # on {host}; then map it again, with --key-file",
    };
    let hint = format!(
        "{first}\n# or repeat the command with --force: I/O of maps without the right key waits, and then \
         fails"
    );
    Err(job
        .error(Code::Busy, why)
        .hint(fill_in(&hint, &[("name", name), ("host", &host.name)])))
}

/// Fails if the host has another key than that: `export allow` does not change it.
pub fn require_same(
    context: &Context,
    name: &str,
    host: &str,
    secret: &Secret,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let entry = configfs.path(&["exports", name, "hosts", host]);
    configfs.require_keys(&entry, job)?;
    let wanted = [(crate::configfs::KEY_ID, secret.id().to_owned())];
    let differences = configfs.differences(&entry, &wanted);
    if differences.is_empty() {
        return Ok(());
    }
    let why = "the host has an entry already, with another key or none";
    let mut error = job.error(Code::Differs, why).hint(fill_in(
        "farblk export key {name} {host} --next-key-file FILE  # replaces the key while maps use it\n\
         farblk export key {name} {host} --key-file FILE  # or at once",
        &[("name", name), ("host", host)],
    ));
    error.details = differences;
    Err(error)
}

/// Finds the file that has the key with this id: the one that the files of this host name for the
/// next key of the host, or one in the folder of keys.
fn find(
    context: &Context,
    name: &str,
    host: &str,
    id: &str,
    job: &Job,
) -> Result<(Secret, std::path::PathBuf), Error> {
    let root = &context.root;
    let saved = saved::load(root, Side::Server);
    let members = saved.find(Kind::Export, name).map(|export| &export.members);
    let member = members.and_then(|members| members.iter().find(|member| member.name == host));
    let named = member.into_iter().flat_map(|member| {
        ["next_key_file", "key_file"]
            .iter()
            .filter_map(|key| member.values.get(key))
            .cloned()
    });
    let mut paths = named.chain(secret::files_by_id(root).remove(id));
    let found = paths.find_map(|path| {
        let path = secret::below(root, &path);
        let secret = secret::load(&path).ok()?;
        (secret.id() == id).then_some((secret, path))
    });
    found.ok_or_else(|| {
        let folder = secret::folder(root);
        let why = format!(
            "no file in {} has the next key, {id}, and the kernel gives no key away",
            folder.display()
        );
        job.error(Code::BadKey, why).hint(fill_in(
            "farblk export key {name} {host} --key-file FILE  # the file with that key\n\
             farblk export key {name} {host} --remove-next  # then",
            &[("name", name), ("host", host)],
        ))
    })
}

/// Warns if the host has a key, and the export also admits any other host.
pub fn warn_of_any_host(context: &Context, name: &str, host: &str) {
    let export = read(context, name);
    let has_key = |entry: &&Host| entry.name == host && entry.has_key();
    if context.configfs.is_dry_run()
        || !export.allow_any_host
        || !export.hosts.iter().any(|entry| has_key(&entry))
    {
        return;
    }
    let text = format!(
        "export {name} admits any host: one without the key of {host} shows another name, and is admitted"
    );
    let hint = "# make the export anew without --allow-any-host".to_owned();
    context.output.warn_with(&text, &Hints::new(hint));
}
