// SPDX-License-Identifier: GPL-2.0
//! The lasting identity of this host.
//!
//! The module makes a random `host_id` each time it is loaded. Servers tell it to their clients,
//! and a map goes on after a reboot of its server only if the server has the same `host_id` as
//! before. So the tool writes one that lasts, before it makes the first object.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::cmd::Context;
use crate::configfs::Job;
use crate::error::{Error, Hints};
use crate::quote;

/// The application ID of farblk. `systemd-id128 machine-id --app-specific` with this ID prints the
/// same `host_id`.
const APP_ID: u128 = 0x94760d73_a328_42a9_9379_57eec23b2229;

/// The file with the machine ID, below the root directory.
const MACHINE_ID: &str = "etc/machine-id";

/// Writes a lasting `host_id` that is derived from the machine ID.
///
/// Does nothing if somebody has written a `host_id` already, or if this host has a port, an export
/// or a map: another identity would then make it a stranger to its peers. Warns if there is no
/// machine ID.
pub fn settle(context: &Context, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let root = configfs.path(&[]);
    let is_random = match configfs.attr(&root, "host_id_source").as_deref() {
        Some(source) => source == "random",
        // A dry run for a module that is not loaded yet.
        None => !configfs.exists(&root),
    };
    let has_objects = ["ports", "exports", "maps"]
        .iter()
        .any(|kind| !configfs.names(&configfs.path(&[kind])).is_empty());
    if !is_random || has_objects {
        return Ok(());
    }
    match machine_id(&context.root) {
        Some(machine) => configfs.set(&root, "host_id", &uuid(&derive(machine)), job),
        None => {
            if !configfs.is_dry_run() {
                let text = format!(
                    "/{MACHINE_ID} has no machine ID, so the host_id of this host is random and \
                     changes when the farblk module is loaded again"
                );
                let hint = format!(
                    "systemd-machine-id-setup\necho UUID > {}  # or an identity of your own",
                    quote::path(&root.join("host_id"))
                );
                context.output.warn_with(&text, &Hints::new(hint));
            }
            Ok(())
        }
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
