// SPDX-License-Identifier: GPL-2.0
//! Keys: secrets of 256 bits by which a client host and a server prove to each other who they are.
//!
//! The text of a key is `farblk1:` and the base64 of its bytes and of their CRC-32, so that one
//! that was not copied whole is noticed. The *key id* names a key without telling it. A key comes
//! from a file or from stdin, never from the command line or the environment, which others can
//! see. What holds it is overwritten when it is dropped, and has neither `Debug` nor `Display`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf, absolute};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::configfs::{Job, words};
use crate::durable;
use crate::error::{Code, Error};
use crate::quote;
use crate::saved::FOLDER;

/// The start of the text of a key.
pub const PREFIX: &str = "farblk1:";
/// The folder of the keys of this host, in [`FOLDER`].
pub const KEYS: &str = "keys";
/// What a key id is the HMAC of.
const ID_MESSAGE: &[u8] = b"farblk key id";
/// Bytes of a key.
const SIZE: usize = 32;
/// Bytes of a key and of its CRC-32.
const CHECKED_SIZE: usize = SIZE + 4;
/// Characters of the text of a key.
const TEXT_SIZE: usize = PREFIX.len() + CHECKED_SIZE.div_ceil(3) * 4;
/// The permissions that a file with a key must not give: all of those of the group and of others.
const OPEN_MODE: u32 = 0o077;

/// A key.
pub struct Secret {
    text: Zeroizing<[u8; TEXT_SIZE]>,
    id: String,
}

impl Secret {
    /// Makes a random key.
    pub fn random() -> io::Result<Self> {
        let mut key = Zeroizing::new([0; SIZE]);
        let mut filled = 0;
        while filled < SIZE {
            match getrandom(&mut key[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Self::of(&key))
    }

    /// The key with these bytes.
    fn of(key: &Zeroizing<[u8; SIZE]>) -> Self {
        let mut checked = Zeroizing::new([0; CHECKED_SIZE]);
        checked[..SIZE].copy_from_slice(&key[..]);
        checked[SIZE..].copy_from_slice(&crc32fast::hash(&key[..]).to_le_bytes());
        let mut text = Zeroizing::new([0; TEXT_SIZE]);
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        // Cannot fail: there is room for just these characters.
        let _ = STANDARD.encode_slice(&checked[..], &mut text[PREFIX.len()..]);
        // HMAC fills up a key that is shorter than a block with zeroes.
        let mut block = Zeroizing::new([0; 64]);
        block[..SIZE].copy_from_slice(&key[..]);
        let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new((&*block).into());
        mac.update(ID_MESSAGE);
        let hash = mac.finalize().into_bytes();
        let start = hash.iter().take(8);
        let id = start.fold(0u64, |id, byte| (id << 8) | u64::from(*byte));
        Self {
            text,
            id: format!("{id:016x}"),
        }
    }

    /// Takes the text of a key, with or without a newline behind it. The error does not repeat it.
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let Some(digits) = text.strip_prefix(PREFIX.as_bytes()) else {
            return Err("is no key: one begins with farblk1:");
        };
        if text.len() != TEXT_SIZE {
            return Err("is no whole key: one has 48 characters behind farblk1:");
        }
        let mut checked = Zeroizing::new([0; CHECKED_SIZE]);
        match STANDARD.decode_slice(digits, &mut checked[..]) {
            Ok(CHECKED_SIZE) => {}
            _ => return Err("is no key: what is behind farblk1: is not base64"),
        }
        let mut key = Zeroizing::new([0; SIZE]);
        key.copy_from_slice(&checked[..SIZE]);
        match checked[SIZE..] == crc32fast::hash(&key[..]).to_le_bytes() {
            true => Ok(Self::of(&key)),
            false => Err("is no key any more: a character of it is wrong"),
        }
    }

    /// The name of the key: 16 hexadecimal digits, which do not tell the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text of the key, without a newline.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text[..]).unwrap_or_default()
    }

    /// The text of the key as a line.
    pub fn line(&self) -> Zeroizing<Vec<u8>> {
        let mut line = Zeroizing::new(Vec::with_capacity(TEXT_SIZE + 1));
        line.extend_from_slice(&self.text[..]);
        line.push(b'\n');
        line
    }

    /// Writes the key to a new file that only its owner may read. A file that exists is an error of
    /// the kind `AlreadyExists`.
    pub fn store(&self, path: &Path) -> io::Result<()> {
        match durable::make(path, &self.line())? {
            true => Ok(()),
            false => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

/// The folder with the keys of the host below `root`.
pub fn folder(root: &Path) -> PathBuf {
    root.join(FOLDER).join(KEYS)
}

/// The path of a file that is `path` on the host below `root`.
pub fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// What a file on the host below `root` is called there, for a file of settings; `None` if it is no
/// file of that host, or one that does not last, such as a pipe.
pub fn name_on_host(root: &Path, path: &Path) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let (root, path) = (absolute(root).ok()?, absolute(path).ok()?);
    let name = path.strip_prefix(root).ok()?.to_str()?;
    (!name.contains(char::is_control)).then(|| format!("/{name}"))
}

/// The files in the folder of keys of the host below `root`, each by the id of its key. Those that
/// cannot be used are left out.
pub fn files_by_id(root: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder(root)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    // Of two with the same key, the first one counts.
    paths.sort();
    paths.reverse();
    let named = |path: &PathBuf| {
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let secret = (!is_hidden).then(|| load(path).ok())??;
        Some((secret.id().to_owned(), name_on_host(root, path)?))
    };
    paths.iter().filter_map(named).collect()
}

/// Makes the folder with the keys of the host below `root`, which only root may look into.
pub fn make_folder(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join(FOLDER))?;
    match fs::DirBuilder::new().mode(0o700).create(folder(root)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Why a key cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The name of the file, and what is wrong with it.
    pub why: String,
    /// The remedy, a line of shell.
    pub hint: String,
    /// True if this user may not look at the file: it may be as it should.
    pub is_hidden: bool,
}

impl Unusable {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            hint: hint.into(),
            is_hidden: false,
        }
    }

    /// The error of a job.
    pub fn error(self, job: &Job) -> Error {
        let code = match self.is_hidden {
            true => Code::Permission,
            false => Code::BadKey,
        };
        job.error(code, self.why).hint(self.hint)
    }
}

/// Says what is wrong with an argument that names a file, but is a key. It is not repeated.
pub fn is_key_itself(path: &Path) -> Option<Unusable> {
    let text = path.as_os_str().as_encoded_bytes();
    text.starts_with(PREFIX.as_bytes()).then(|| {
        Unusable::new(
            "a key was given in place of the name of a file",
            "# other users, logs or the history of the shell may have it now: do not use that key\n\
             farblk key new FILE  # makes another one",
        )
    })
}

/// Where a key comes from.
pub enum Source<'a> {
    /// stdin.
    Stdin,
    /// A file.
    File(&'a Path),
}

impl<'a> Source<'a> {
    /// What an argument means: "-" is stdin.
    pub fn of(argument: &'a Path) -> Self {
        match argument == Path::new("-") {
            true => Self::Stdin,
            false => Self::File(argument),
        }
    }

    /// Reads the key.
    pub fn read(&self) -> Result<Secret, Unusable> {
        match self {
            Self::File(path) => load(path),
            Self::Stdin => {
                // The buffer of std::io::Stdin would keep the key.
                let stdin = io::stdin().as_fd().try_clone_to_owned();
                let text = stdin.and_then(|stdin| read(&mut File::from(stdin)));
                let failed = |why: &str| Unusable::new(format!("stdin {why}"), NEW);
                let text = text.map_err(|e| failed(&format!("cannot be read: {}", words(&e))))?;
                Secret::parse(&text).map_err(failed)
            }
        }
    }

    /// The command that writes the key to `attribute`, as shell.
    pub fn copy(&self, attribute: &Path) -> String {
        let attribute = quote::path(attribute);
        match self {
            Self::File(path) => format!("cat {} > {attribute}", quote::path(path)),
            Self::Stdin => format!("cat > {attribute}"),
        }
    }
}

/// What makes a key.
const NEW: &str = "farblk key new FILE  # makes one";

/// Reads what is no longer than a key and a newline, and one more byte of what is longer.
fn read(file: &mut File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(vec![0; TEXT_SIZE + 2]);
    let mut length = 0;
    while length < text.len() {
        match file.read(&mut text[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    text.truncate(length);
    Ok(text)
}

/// Reads a key from a file. Refuses one that others may read or change, as ssh(1) does.
pub fn load(path: &Path) -> Result<Secret, Unusable> {
    if let Some(unusable) = is_key_itself(path) {
        return Err(unusable);
    }
    let shown = path.display();
    let quoted = quote::path(path);
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Unusable::new(
            format!("{shown} does not exist"),
            format!("farblk key new {quoted}  # makes a key; or copy the one of the other host"),
        ),
        io::ErrorKind::PermissionDenied => Unusable {
            is_hidden: true,
            ..Unusable::new(format!("{shown}: {}", words(&e)), "# run it as root")
        },
        _ => Unusable::new(format!("{shown}: {}", words(&e)), ""),
    };
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Unusable::new(format!("{shown} is a folder"), NEW));
    }
    if let Some(unusable) = exposure(path, &metadata) {
        return Err(unusable);
    }
    let text = read(&mut file).map_err(failed)?;
    Secret::parse(&text).map_err(|why| {
        let hint = format!(
            "# copy the key again, or make another one:\nmv {quoted} {quoted}.bad && farblk key new \
             {quoted}"
        );
        Unusable::new(format!("{shown} {why}"), hint)
    })
}

/// Says who may read or change a file with a key besides its owner, and what ends that.
pub fn exposure(path: &Path, metadata: &fs::Metadata) -> Option<Unusable> {
    let (shown, quoted) = (path.display(), quote::path(path));
    let mode = metadata.mode() & 0o7777;
    if mode & OPEN_MODE != 0 {
        return Some(Unusable::new(
            format!(
                "{shown} has the mode {mode:04o}: others than its owner have access to the key"
            ),
            format!(
                "chmod 600 {quoted}  # and make another key if somebody may have read this one"
            ),
        ));
    }
    let owner = metadata.uid();
    let own = [0, rustix::process::geteuid().as_raw()];
    (!own.contains(&owner)).then(|| {
        Unusable::new(
            format!("{shown} belongs to the user {owner}, not to root"),
            format!("chown root: {quoted}"),
        )
    })
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// The key with the bytes 0 to 31, and its id, as Python computes them.
    pub const TEXT: &str = "farblk1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR";
    /// Its id.
    pub const ID: &str = "13842382fdcc838d";
    /// Another key, of 32 bytes 0xff.
    pub const OTHER: &str = "farblk1://////////////////////////////////////////8Lq2z/";
    /// Its id.
    pub const OTHER_ID: &str = "ef99ab6921cd7314";

    /// The id of a key with this text.
    pub fn id(text: &str) -> Option<String> {
        Some(Secret::parse(text.as_bytes()).ok()?.id)
    }

    fn scratch(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farblk-key-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        path
    }

    #[test]
    fn texts_of_keys() {
        for (text, id) in [(TEXT, ID), (OTHER, OTHER_ID)] {
            for line in [text.to_owned(), format!("{text}\n")] {
                let key = Secret::parse(line.as_bytes()).expect("a key");
                assert_eq!((key.id(), key.text()), (id, text));
                assert_eq!(&key.line()[..], format!("{text}\n").as_bytes());
            }
        }
    }

    #[test]
    fn what_is_no_key() {
        let refused = |text: &[u8]| Secret::parse(text).err();
        for text in [
            "",
            "\n",
            "a passphrase",
            "farblk1:",
            "farblk2:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR",
            &TEXT[..TEXT.len() - 1],
            &TEXT[1..],
            &format!("{TEXT}="),
            &format!("{TEXT}A"),
            &format!("{TEXT}\n\n"),
            &format!("{TEXT} "),
            &format!("{TEXT}\r\n"),
            &format!(" {TEXT}"),
            &TEXT.replace('+', "-"),
            &TEXT.to_lowercase(),
            &format!("{}==", &TEXT[..TEXT.len() - 2]),
        ] {
            assert!(refused(text.as_bytes()).is_some(), "{text:?}");
        }
        // No character can be another one.
        for at in 0..TEXT.len() {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = if text[at] == b'A' { b'B' } else { b'A' };
            let why = refused(&text).unwrap_or_else(|| panic!("character {at}"));
            assert!(!why.contains("AAEC"), "{why}");
        }
    }

    #[test]
    fn random_keys_differ() {
        let keys: Vec<_> = (0..4)
            .map(|_| Secret::random().expect("random bytes"))
            .collect();
        for (index, key) in keys.iter().enumerate() {
            let again = Secret::parse(key.text().as_bytes()).expect("a key");
            assert_eq!(again.id(), key.id());
            assert_eq!(key.id().len(), 16);
            assert!(keys[..index].iter().all(|other| other.id() != key.id()));
        }
    }

    #[test]
    fn files_of_keys() {
        let root = scratch("files");
        let path = root.join("a.key");
        let key = Secret::parse(TEXT.as_bytes()).expect("a key");
        key.store(&path).expect("a file");
        let mode = |path: &Path| fs::metadata(path).expect("a file").mode() & 0o7777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_to_string(&path).expect("it"), format!("{TEXT}\n"));
        assert_eq!(load(&path).expect("a key").id(), ID);
        // It is never written over, not even what a link that leads nowhere names.
        let again = key.store(&path).expect_err("a file");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        symlink(root.join("none"), root.join("link")).expect("a link");
        let again = key.store(&root.join("link")).expect_err("a link");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(!root.join("none").exists());

        let fails = |path: &Path| load(path).err().expect("unusable");
        for open in [0o640, 0o604, 0o610, 0o601, 0o620, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).expect("a mode");
            let unusable = fails(&path);
            assert!(
                unusable.why.contains(&format!("mode {open:04o}")),
                "{unusable:?}"
            );
            assert!(unusable.hint.starts_with("chmod 600 /"), "{unusable:?}");
        }
        for closed in [0o400, 0o600, 0o700] {
            fs::set_permissions(&path, fs::Permissions::from_mode(closed)).expect("a mode");
            assert!(load(&path).is_ok(), "{closed:o}");
        }
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(4242), None).is_ok() {
            let unusable = fails(&path);
            assert!(unusable.why.contains("the user 4242"), "{unusable:?}");
            assert!(unusable.hint.starts_with("chown root: /"), "{unusable:?}");
        }
        let bad = root.join("bad.key");
        for text in ["", "hunter2\n", &TEXT[..40], &TEXT.repeat(9)] {
            fs::write(&bad, text).expect("a file");
            fs::set_permissions(&bad, fs::Permissions::from_mode(0o600)).expect("a mode");
            let unusable = fails(&bad);
            assert!(unusable.why.contains("bad.key is no "), "{unusable:?}");
            let all = format!("{unusable:?}");
            assert!(!all.contains("hunter2") && !all.contains("AAEC"), "{all}");
        }
        assert!(fails(&root).why.ends_with("is a folder"));
        let missing = fails(&root.join("none"));
        assert!(missing.why.ends_with("none does not exist"), "{missing:?}");
        assert!(missing.hint.starts_with("farblk key new /"), "{missing:?}");
        // A key that is taken for the name of a file is not repeated.
        let mistaken = fails(Path::new(TEXT));
        assert!(!format!("{mistaken:?}").contains("AAEC"), "{mistaken:?}");
        fs::remove_dir_all(&root).expect("to clean up");
    }

    #[test]
    fn the_folder_of_keys_is_closed() {
        let root = scratch("folder");
        make_folder(&root).expect("a folder");
        make_folder(&root).expect("the same");
        let mode = fs::metadata(folder(&root)).expect("a folder").mode();
        assert_eq!(mode & 0o7777, 0o700);
        fs::remove_dir_all(&root).expect("to clean up");
    }
}
