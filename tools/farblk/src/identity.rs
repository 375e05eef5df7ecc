// SPDX-License-Identifier: GPL-2.0
//! The lasting identity of this host.
//!
//! The module makes a random `host_id` each time it is loaded. Servers tell it to their clients,
//! and a map goes on after a reboot of its server only if the server has the same `host_id` as
//! before. A client that has rebooted gets its exports back at once only with the same `host_id`.
//! So the tool keeps one in a file, and writes it to the module before it makes the first object.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cmd::Context;
use crate::configfs::{Job, words};
use crate::durable;
use crate::error::{Error, Hints};
use crate::name;
use crate::quote;
use crate::saved::{FOLDER, Place, Problem};

/// The application ID of farblk. `systemd-id128 machine-id --app-specific` with this ID prints the
/// same `host_id`.
const APP_ID: u128 = 0x94760d73_a328_42a9_9379_57eec23b2229;

/// The file with the machine ID, below the root directory.
const MACHINE_ID: &str = "etc/machine-id";

/// The second line of a file whose identity is derived from the machine ID.
const DERIVED: &str = "# derived from /etc/machine-id; another machine ID makes another identity";

/// The file with the identity of the host below `root`.
pub fn file(root: &Path) -> PathBuf {
    root.join(FOLDER).join("host_id")
}

/// What the file says.
enum Stored {
    /// There is no file.
    None,
    /// The file has this identity.
    Is(String),
    /// The identity is derived from another machine ID than this host has: this host is a copy of
    /// another one, which may still use it.
    Copied,
}

fn stored(root: &Path) -> Result<Stored, String> {
    let text = match fs::read_to_string(file(root)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Stored::None),
        result => result.map_err(|e| words(&e))?,
    };
    let mut lines = text.lines();
    let id = name::parse_uuid(lines.next().unwrap_or_default().trim())?;
    let is_derived = lines.next() == Some(DERIVED);
    let own = machine_id(root).map(|machine| uuid(&derive(machine)));
    match is_derived && own.is_some_and(|own| own != id) {
        true => Ok(Stored::Copied),
        false => Ok(Stored::Is(id)),
    }
}

/// The text of the file for an identity.
fn text_for(root: &Path, id: &str) -> String {
    let own = machine_id(root).map(|machine| uuid(&derive(machine)));
    match own.as_deref() == Some(id) {
        true => format!("{id}\n{DERIVED}\n"),
        false => format!("{id}\n"),
    }
}

/// Returns true if this user may not look at the file: it may be as it should.
fn is_hidden(file: &Path) -> bool {
    let opened = fs::File::open(file);
    opened.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Finds what is wrong with the file, without the module.
pub fn problem(root: &Path) -> Option<Problem> {
    let file = file(root);
    let hint = format!("rm {}  # the tool makes another one", quote::path(&file));
    let text = match stored(root) {
        Ok(Stored::Copied) => {
            "is derived from the machine ID of another host: the next command makes another one"
        }
        Ok(_) => return None,
        Err(why) if is_hidden(&file) => {
            let problem = Problem::new(Some(Place { file, line: 1 }), why);
            return Some(problem.hint("# run it as root").warning());
        }
        Err(why) => return Some(Problem::new(Some(Place { file, line: 1 }), why).hint(hint)),
    };
    Some(Problem::new(Some(Place { file, line: 1 }), text).warning())
}

/// Returns true if the module has made its `host_id` itself.
fn is_random(context: &Context) -> bool {
    let configfs = &context.configfs;
    let root = configfs.path(&[]);
    match configfs.attr(&root, "host_id_source").as_deref() {
        Some(source) => source == "random",
        // A dry run for a module that is not loaded yet.
        None => !configfs.exists(&root),
    }
}

/// Gives this host its lasting `host_id`, which is that of the file.
///
/// If there is no file, one is made: with the `host_id` that somebody has written, else with one
/// that is derived from the machine ID, else with the random one of the module. Does not change the
/// `host_id` if somebody has written it, or if this host has a port, an export or a map: another
/// identity would then make it a stranger to its peers.
pub fn settle(context: &Context, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    if !is_random(context) {
        return match configfs.is_dry_run() {
            true => Ok(()),
            false => keep(context, job),
        };
    }
    if has_objects(context) {
        return Ok(());
    }
    let root = &context.root;
    let id = match stored(root) {
        Ok(Stored::Is(id)) => id,
        Err(why) => return Err(unusable(context, job, &why)),
        Ok(found) => {
            let machine = machine_id(root);
            let has = || configfs.attr(&configfs.path(&[]), "host_id");
            let Some(id) = machine.map(|id| uuid(&derive(id))).or_else(has) else {
                return Ok(());
            };
            if matches!(found, Stored::Copied) {
                let file = file(root);
                let text = format!(
                    "{} was copied from another host: this host gets another identity",
                    file.display()
                );
                context.output.warn(&text);
                if !configfs.record(|| format!("rm {}", quote::path(&file))) {
                    durable::remove(&file, job)?;
                }
            }
            store(context, &id, machine.is_some());
            // Another command may have made the file meanwhile.
            match stored(root) {
                Ok(Stored::Is(first)) => first,
                _ => id,
            }
        }
    };
    if let Some(own) = unusable_name(context) {
        context.output.warn_with(&no_name(&own), &name_cure());
    }
    configfs.set(&configfs.path(&[]), "host_id", &id, job)
}

/// Returns the name of this node if the module cannot use it as the name of the host.
pub fn unusable_name(context: &Context) -> Option<String> {
    let own = fs::read_to_string(context.root.join("proc/sys/kernel/hostname")).ok()?;
    let own = own.trim();
    let is_taken = context.host_name().as_deref() != Some("localhost");
    (!is_taken && name::parse(own).is_err()).then(|| own.to_owned())
}

/// Says by which name servers know this host instead.
pub fn no_name(own: &str) -> String {
    format!(
        "servers know this host as localhost: its name {own} is not a name of 1 to 63 letters, \
         digits and . _ : -"
    )
}

/// What gives the host another name.
pub fn name_cure() -> Hints {
    Hints::new("echo NAME > /sys/kernel/config/farblk/host_name".into())
}

/// Makes the file with the `host_id` that the module has, if there is no file.
fn keep(context: &Context, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let Some(id) = configfs.attr(&configfs.path(&[]), "host_id") else {
        return Ok(());
    };
    match stored(&context.root) {
        Ok(Stored::None) => store(context, &id, true),
        Ok(_) => {}
        Err(why) => return Err(unusable(context, job, &why)),
    }
    Ok(())
}

/// Lets the file have the `host_id` under which this host is known to others. The caller holds the
/// lock.
pub fn save(context: &Context, job: &Job) -> Result<(), Error> {
    settle(context, job)?;
    let Some((have, want)) = difference(context) else {
        return match context.configfs.is_dry_run() {
            true => Ok(()),
            false => keep(context, job),
        };
    };
    let file = file(&context.root);
    context.output.warn(&format!(
        "{}: {have} is replaced by {want}, the host_id that this host has now",
        file.display()
    ));
    let text = text_for(&context.root, &want);
    if !context.configfs.is_dry_run() {
        durable::replace(&file, &text, job, |_| Ok(()))?;
    }
    Ok(())
}

/// Returns the `host_id` of the file and that of the module, if they differ and this host is known
/// to others by the latter: after a reboot it would be another host.
pub fn difference(context: &Context) -> Option<(String, String)> {
    let configfs = &context.configfs;
    if is_random(context) && !has_objects(context) {
        return None;
    }
    let id = configfs.attr(&configfs.path(&[]), "host_id")?;
    match stored(&context.root) {
        Ok(Stored::Is(have)) if !have.eq_ignore_ascii_case(&id) => Some((have, id)),
        _ => None,
    }
}

fn has_objects(context: &Context) -> bool {
    let configfs = &context.configfs;
    let mut kinds = ["ports", "exports", "maps"].iter();
    kinds.any(|kind| !configfs.names(&configfs.path(&[kind])).is_empty())
}

fn unusable(context: &Context, job: &Job, why: &str) -> Error {
    let file = file(&context.root);
    let text = format!("{}: {why}", file.display());
    if is_hidden(&file) {
        return job.error(crate::error::Code::Permission, text);
    }
    let hint = format!(
        "rm {}  # makes this host another one for its peers",
        quote::path(&file)
    );
    job.error(crate::error::Code::BadFile, text).hint(hint)
}

/// Makes the file. Warns if that fails, unless the identity lasts without it.
fn store(context: &Context, id: &str, lasts: bool) {
    let file = file(&context.root);
    let text = text_for(&context.root, id);
    if context.configfs.record(|| {
        let folder = file.parent().unwrap_or(&file);
        let (folder, file) = (quote::path(folder), quote::path(&file));
        let lines: Vec<_> = text.lines().map(quote::word).collect();
        let lines = lines.join(" ");
        format!("mkdir -p {folder} && (set -C && printf '%s\\n' {lines} > {file})")
    }) {
        return;
    }
    let Err(e) = durable::make_once(&file, &text) else {
        return;
    };
    if !lasts {
        let text = format!(
            "{}: {}, and /{MACHINE_ID} has no machine ID: the host_id of this host is random and \
             changes when the farblk module is loaded again",
            file.display(),
            words(&e)
        );
        let hint = format!(
            "systemd-machine-id-setup\necho UUID > {}",
            quote::path(&file)
        );
        context.output.warn_with(&text, &Hints::new(hint));
    }
}

/// Reads the machine ID: 32 hexadecimal digits that are not all zero.
fn machine_id(root: &Path) -> Option<[u8; 16]> {
    let text = fs::read_to_string(root.join(MACHINE_ID)).ok()?;
    let digits = text.trim_end();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let id = u128::from_str_radix(digits, 16).ok()?;
    (id != 0).then(|| id.to_be_bytes())
}

/// Derives an identity from the machine ID, which is confidential: HMAC-SHA256 of [`APP_ID`] with
/// the machine ID as its key, made a UUID of version 4. `sd_id128_get_machine_app_specific()` does
/// the same.
fn derive(machine: [u8; 16]) -> [u8; 16] {
    let keyed = |pad: u8, message: &[u8]| {
        let mut block = [pad; 64];
        for (byte, key) in block.iter_mut().zip(machine) {
            *byte ^= key;
        }
        Sha256::new()
            .chain_update(block)
            .chain_update(message)
            .finalize()
    };
    let hash = keyed(0x5c, &keyed(0x36, &APP_ID.to_be_bytes()));
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Formats a UUID.
fn uuid(id: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*id));
    [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `systemd-id128 machine-id -u -a 94760d73a32842a9937957eec23b2229` prints it.
    #[test]
    fn as_systemd_derives_it() {
        let machine = 0x0123456789abcdef0123456789abcdefu128.to_be_bytes();
        assert_eq!(
            uuid(&derive(machine)),
            "4f2950c6-d248-4765-99a1-e02573ae740d"
        );
    }

    #[test]
    fn machine_ids() {
        let root = std::env::temp_dir().join(format!("farblk-machine-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).expect("a directory");
        let read = |text: &str| {
            fs::write(root.join(MACHINE_ID), text).expect("a file");
            machine_id(&root)
        };
        let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        assert_eq!(read("0123456789abcdef0123456789ABCDEF\n"), Some(id));
        for bad in [
            "",
            "uninitialized\n",
            "0123456789abcdef0123456789abcde\n",
            "+123456789abcdef0123456789abcdef\n",
            "00000000000000000000000000000000\n",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        fs::remove_dir_all(&root).expect("to clean up");
        assert_eq!(machine_id(&root), None);
    }
}
