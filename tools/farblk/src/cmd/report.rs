// SPDX-License-Identifier: GPL-2.0
//! `farblk report`: an archive for those who are asked for help, without secrets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use schemars::JsonSchema;
use serde::Serialize;
use tar::{Builder, EntryType, Header};

use self::collect::Item;
use self::redact::Redactor;
use super::Context;
use crate::configfs::words;
use crate::error::{Code, Error};
use crate::output::table;
use crate::size;

mod collect;
mod redact;

/// An archive, schema `farblk.report/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    path: String,
    /// Of the archive.
    size_bytes: u64,
    /// How many different values were replaced by tokens.
    redacted: usize,
    files: Vec<Entry>,
}

/// A file of the archive.
#[derive(JsonSchema, Serialize)]
struct Entry {
    name: String,
    size_bytes: usize,
    /// Why something is missing in it.
    why: Option<String>,
}

/// The first file of the archive.
const README: &str = "\
What `farblk report` found on a host. Host names, IP and MAC addresses, UUIDs, host IDs and keys are
replaced by tokens such as ip-1a2b3c4d: the same value has the same token in all files of this
archive, and another one in any other archive. Names of exports, maps and ports are kept, and so are
paths of devices and files. Look through the files before you give them away.
";

/// Runs `farblk report`.
pub fn run(context: &Context, output: Option<&Path>) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Err(
            Error::usage("report only looks: it has no dry run").hint("farblk report --file FILE")
        );
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let path = output.map_or_else(
        || PathBuf::from(format!("farblk-report-{now}.tar.gz")),
        Path::to_owned,
    );
    let failed = |e: &io::Error| {
        Error::new(
            Code::Io,
            format!("cannot write {}", path.display()),
            words(e),
        )
    };
    let mut redactor = Redactor::new(salt().map_err(|e| failed(&e))?);
    let mut items = collect::all(context);
    collect::secrets(context, &items, &mut redactor);
    for item in &mut items {
        item.text = redactor.text(&item.text);
        item.name = redacted_name(&mut redactor, &item.name);
        item.why = item.why.take().map(|why| redactor.text(&why));
    }
    let readme = Item {
        name: "README".into(),
        text: README.into(),
        why: None,
    };
    items.insert(0, readme);
    // Never over a file that exists: it may be a link that somebody has put there.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let file = file.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            let what = format!("cannot write {}", path.display());
            Error::new(Code::Differs, what, "the file exists already")
                .hint("farblk report --file FILE  # another one")
        }
        _ => failed(&e),
    })?;
    if let Err(e) = write(file, &items, now) {
        let _ = fs::remove_file(&path);
        return Err(failed(&e));
    }
    let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    print(context, &path, size, redactor.count(), items)
}

/// Only the names of files that users choose may hold a secret.
fn redacted_name(redactor: &mut Redactor, name: &str) -> String {
    match name.rsplit_once('/') {
        Some((folder, file)) => match file.rsplit_once('.') {
            Some((stem, end)) if folder.ends_with(".d") => {
                format!("{folder}/{}.{end}", redactor.text(stem))
            }
            _ => name.to_owned(),
        },
        None => name.to_owned(),
    }
}

/// Random bytes, which are kept nowhere.
fn salt() -> io::Result<[u8; 32]> {
    let mut salt = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut salt)?;
    Ok(salt)
}

fn write(file: File, items: &[Item], now: u64) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for item in items {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(now);
        header.set_size(item.text.len() as u64);
        let name = format!("farblk-report/{}", item.name);
        archive.append_data(&mut header, name, item.text.as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}

fn print(
    context: &Context,
    path: &Path,
    size: u64,
    redacted: usize,
    items: Vec<Item>,
) -> Result<(), Error> {
    if context.output.is_json() {
        let entry = |item: Item| Entry {
            name: item.name,
            size_bytes: item.text.len(),
            why: item.why,
        };
        return context.output.document(&Document {
            schema: "farblk.report/1",
            path: path.display().to_string(),
            size_bytes: size,
            redacted,
            files: items.into_iter().map(entry).collect(),
        });
    }
    let row = |item: &Item| {
        let missing = item
            .why
            .as_ref()
            .map_or(String::new(), |why| format!("incomplete: {why}"));
        vec![
            item.name.clone(),
            size::human(item.text.len() as u64),
            missing,
        ]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    for line in table(&["FILE", "SIZE", "NOTE"], &rows) {
        context.output.line(&line)?;
    }
    context.output.line(&format!(
        "wrote {} ({}); {redacted} names, addresses, UUIDs and keys were replaced by tokens",
        path.display(),
        size::human(size)
    ))
}
