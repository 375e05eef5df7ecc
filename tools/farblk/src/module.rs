// SPDX-License-Identifier: GPL-2.0
//! The kernel module: why its tree in configfs is missing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error};
use crate::quote;

/// The end of a module file that is signed.
const SIGNATURE: &[u8] = b"~Module signature appended~\n";

/// The key with which DKMS signs, below the root directory.
const DKMS_KEY: &str = "var/lib/dkms/mok.pub";

/// Makes the error for a host below `root` on which `/sys/kernel/config/farblk` does not exist.
pub fn missing(root: &Path) -> Error {
    let error = |code: Code, why: String| Error::new(code, code.entry().meaning, why);
    if root.join("sys/module/farblk").is_dir() {
        let why = format!(
            "farblk is loaded, but {} does not exist",
            tree(root).display()
        );
        return error(Code::NoConfigfs, why);
    }
    let unloaded = || {
        let why = format!("{} does not exist", tree(root).display());
        error(Code::NoModule, why)
    };
    let release = text(root, "proc/sys/kernel/osrelease");
    if release.is_empty() {
        return unloaded();
    }
    let Some(file) = find(root, &release) else {
        if let Some(why) = unfit(root, &release) {
            return error(Code::NotInstalled, why).hint(
                "apt install -t trixie-backports linux-image-amd64  # or another kernel that fits, \
                 and boot it",
            );
        }
        let why = format!("the modules of kernel {release} have no farblk");
        return error(Code::NotInstalled, why).variables(&[("release", release)]);
    };
    if !requires_signature(root) {
        return unloaded();
    }
    match is_signed(&file) {
        Some(false) => {
            let program = root.join(format!("lib/modules/{release}/build/scripts/sign-file"));
            let (program, file_word) = (quote::path(&program), quote::path(&file));
            error(Code::Unsigned, format!("{} is not signed", file.display())).hint(format!(
                "{program} sha256 KEY.priv KEY.der {file_word}\n\
                 mokutil --import KEY.der  # and reboot, unless this host knows the key"
            ))
        }
        // Whether the kernel knows the key of the signature shows when it is loaded.
        _ => {
            let mok = root.join(DKMS_KEY);
            let key =
                match file.components().any(|part| part.as_os_str() == "dkms") && mok.is_file() {
                    true => quote::path(&mok),
                    false => "KEY.der".into(),
                };
            unloaded().hint(format!(
                "modprobe farblk\n\
                 mokutil --import {key}  # or, if modprobe says that the key was rejected: then \
                 reboot"
            ))
        }
    }
}

fn tree(root: &Path) -> PathBuf {
    root.join("sys/kernel/config/farblk")
}

fn text(root: &Path, path: &str) -> String {
    let text = fs::read_to_string(root.join(path)).unwrap_or_default();
    text.trim().to_owned()
}

/// The oldest kernel that the module can be built for.
const OLDEST: (u32, u32) = (7, 2);

/// Says why there can be no module for the kernel `release`.
fn unfit(root: &Path, release: &str) -> Option<String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let (major, minor) = OLDEST;
    if (number()?, number()?) < OLDEST {
        return Some(format!(
            "kernel {release} cannot run farblk: it is older than {major}.{minor}"
        ));
    }
    let config = text(root, &format!("boot/config-{release}"));
    let has_rust = config.is_empty() || config.lines().any(|line| line == "CONFIG_RUST=y");
    (!has_rust)
        .then(|| format!("kernel {release} cannot run farblk: it was built without CONFIG_RUST"))
}

/// Returns the file of the module for the kernel `release`, if depmod(8) knows it.
fn find(root: &Path, release: &str) -> Option<PathBuf> {
    let modules = root.join("lib/modules").join(release);
    let known = fs::read_to_string(modules.join("modules.dep")).unwrap_or_default();
    let mut files = known.lines().filter_map(|line| line.split_once(':'));
    let is_farblk = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name == "farblk.ko" || name.starts_with("farblk.ko.")
    };
    let (file, _) = files.find(|(path, _)| is_farblk(path))?;
    Some(modules.join(file))
}

/// Returns true if the kernel loads signed modules only, as it does with Secure Boot.
fn requires_signature(root: &Path) -> bool {
    let lockdown = text(root, "sys/kernel/security/lockdown");
    text(root, "sys/module/module/parameters/sig_enforce") == "Y"
        || ["[integrity]", "[confidentiality]"]
            .iter()
            .any(|mode| lockdown.contains(mode))
}

/// Returns true if the module file is signed; `None` if that cannot be seen, as in a compressed
/// one.
fn is_signed(file: &Path) -> Option<bool> {
    if file.extension()? != "ko" {
        return None;
    }
    Some(fs::read(file).ok()?.ends_with(SIGNATURE))
}
