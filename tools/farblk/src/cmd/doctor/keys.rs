// SPDX-License-Identifier: GPL-2.0
//! Checks of the files with keys, and of who else may use the RDMA devices of a host with keys.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Check, Files};
use crate::cmd::Context;
use crate::configfs::{KEY_ID, KEY_NEXT_ID};
use crate::error::Code;
use crate::quote;
use crate::saved::{self, Side};
use crate::secret;

/// What `farblk explain key` tells.
pub const EXPLAIN: &str = "\
The files with the keys of this host, which the files in /etc/farblk name or which are in \
/etc/farblk/keys, must be there and whole, belong to root, and give nobody else access: otherwise \
the tool does not use them. On a host with keys the check also looks at /dev/infiniband. If all \
users may open uverbs* and rdma_cm there, as is usual, any local user can open RDMA connections \
from the addresses of this host, and listen at its ports while the module does not. Such a user has \
no key, so no peer that wants one takes him for this host; but a peer that wants none cannot tell. \
He can also use up the queue pairs and the memory of the RDMA device, which no key prevents.";

/// The folder of the device nodes, below the root directory.
const NODES: &str = "dev/infiniband";
/// The permissions of a node with which all users can open it.
const OPEN_MODE: u32 = 0o006;

/// Runs the checks. Of a host without keys they say nothing.
pub fn check(context: &Context, files: &Files) -> Vec<Check> {
    let paths = key_files(&context.root);
    let mut checks = Vec::new();
    let mut good = 0;
    for path in &paths {
        match secret::load(path) {
            Ok(_) => good += 1,
            Err(unusable) if unusable.is_hidden => {
                let text = format!("{}: only root can look at it", path.display());
                checks.push(Check::info("key", text));
            }
            Err(unusable) => {
                let check = Check::fail("key", unusable.why).code(Code::BadKey);
                checks.push(check.cure(unusable.hint));
            }
        }
    }
    if good > 0 {
        let text = match good {
            1 => "1 file with a key, which only root can read".to_owned(),
            _ => format!("{good} files with keys, which only root can read"),
        };
        checks.push(Check::ok("key", text));
    }
    if !paths.is_empty() || has_keys(context) {
        checks.extend(nodes(files));
    }
    checks
}

/// The files with keys that the files of settings name, and those in the folder of keys.
fn key_files(root: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for side in Side::ALL {
        let saved = saved::load(root, side);
        let named = saved.objects.iter().flat_map(|object| object.key_files());
        paths.extend(named.map(|path| secret::below(root, path)));
    }
    let entries = fs::read_dir(secret::folder(root)).into_iter().flatten();
    let entries = entries.flatten().map(|entry| entry.path());
    paths.extend(entries.filter(|path| path.is_file()));
    paths
}

/// Returns true if a map, or a host of an export, has a key now.
fn has_keys(context: &Context) -> bool {
    let configfs = &context.configfs;
    let has = |object: &Path| {
        [KEY_ID, KEY_NEXT_ID]
            .iter()
            .any(|id| configfs.attr(object, id).is_some())
    };
    let maps = configfs.path(&["maps"]);
    let exports = configfs.path(&["exports"]);
    let any_host = |export: &String| {
        let hosts = exports.join(export).join("hosts");
        let names = configfs.names(&hosts);
        names.iter().any(|host| has(&hosts.join(host)))
    };
    let names = configfs.names(&maps);
    names.iter().any(|map| has(&maps.join(map))) || configfs.names(&exports).iter().any(any_host)
}

/// Warns of device nodes that all users can open.
fn nodes(files: &Files) -> Option<Check> {
    let is_node = |name: &String| name == "rdma_cm" || name.starts_with("uverbs");
    let names = files.names(NODES).into_iter().filter(is_node);
    let open: Vec<_> = names
        .filter(|name| {
            let metadata = fs::metadata(files.path(&format!("{NODES}/{name}")));
            metadata.is_ok_and(|metadata| metadata.mode() & OPEN_MODE == OPEN_MODE)
        })
        .collect();
    if open.is_empty() {
        return None;
    }
    let text = format!(
        "all users of this host can open {} in /{NODES}: they can use RDMA with its addresses, where \
         peers want no key",
        open.join(" and ")
    );
    let nodes = open
        .iter()
        .map(|name| files.path(&format!("{NODES}/{name}")));
    let nodes: Vec<_> = nodes.map(|path| quote::path(&path)).collect();
    let rules = quote::path(&files.path("etc/udev/rules.d/99-farblk-keys.rules"));
    Some(Check::warn("key", text).cure(format!(
        "chmod o= {}  # until the next boot; programs of other users cannot use RDMA then\n\
         echo 'SUBSYSTEM==\"infiniband_verbs|misc\", KERNEL==\"uverbs*|rdma_cm\", MODE=\"0660\"' > {rules}  \
         # and from then on",
        nodes.join(" ")
    )))
}
