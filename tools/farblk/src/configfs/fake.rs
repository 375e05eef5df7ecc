// SPDX-License-Identifier: GPL-2.0
//! A model of the kernel module for tests: the tree of the ABI, refusals on request, and a log of
//! what was asked of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{Fault, Files};
use crate::secret;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;

/// A refusal: the next `times` writes of `value` to attributes whose path ends in `attribute` fail.
struct Refusal {
    attribute: String,
    value: String,
    errno: i32,
    words: String,
    times: u32,
}

#[derive(Default)]
struct State {
    /// Objects by path below the base, each with its attributes.
    objects: BTreeMap<PathBuf, BTreeMap<String, String>>,
    refusals: Vec<Refusal>,
    /// Attributes that new objects do not have.
    unknown: Vec<String>,
    /// Objects that another process makes just before the tool does.
    races: Vec<PathBuf>,
    log: Vec<String>,
    /// The number of directories made so far, and that of the last one.
    inodes: u64,
}

/// The model; clones are the same model.
#[derive(Clone, Default)]
pub struct Fake {
    base: PathBuf,
    state: Rc<RefCell<State>>,
}

impl Fake {
    /// A loaded module below `root`, without objects.
    pub fn new(root: &Path) -> Self {
        let fake = Self {
            base: root.join("sys/kernel/config/farblk"),
            ..Self::default()
        };
        for directory in ["", "ports", "exports", "maps", "discover"] {
            fake.state
                .borrow_mut()
                .objects
                .insert(directory.into(), BTreeMap::new());
        }
        fake.put("", "host_name", "node-b");
        fake.put("", "host_id", "33333333-3333-4333-8333-333333333333");
        fake.put("", "host_id_source", "written");
        fake
    }

    /// Sets an attribute behind the tool's back.
    pub fn put(&self, object: &str, name: &str, value: &str) {
        let mut state = self.state.borrow_mut();
        let attributes = state.objects.get_mut(Path::new(object)).expect("object");
        attributes.insert(name.into(), value.into());
    }

    /// Lets the next `times` writes of `value` to `attribute` fail, for the reason `words`.
    pub fn refuse(&self, attribute: &str, value: &str, errno: i32, words: &str, times: u32) {
        self.state.borrow_mut().refusals.push(Refusal {
            attribute: attribute.into(),
            value: value.into(),
            errno,
            words: words.into(),
            times,
        });
    }

    /// Makes it a module that does not know the attribute.
    pub fn forget(&self, attribute: &str) {
        self.state.borrow_mut().unknown.push(attribute.into());
    }

    /// Lets another process make an object, by its path below the base, just before the tool does.
    pub fn race(&self, object: &str) {
        self.state.borrow_mut().races.push(object.into());
    }

    /// The value of an attribute.
    pub fn get(&self, object: &str, name: &str) -> Option<String> {
        self.state
            .borrow()
            .objects
            .get(Path::new(object))?
            .get(name)
            .cloned()
    }

    /// The objects made, in order of their paths; without the fixed directories.
    pub fn objects(&self) -> Vec<String> {
        let state = self.state.borrow();
        let made = state
            .objects
            .iter()
            .filter(|(_, attributes)| attributes.contains_key("made"));
        made.map(|(path, _)| path.display().to_string()).collect()
    }

    /// Takes the log of the requests since the last call.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().log)
    }

    fn relative(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.base).ok().map(Path::to_owned)
    }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The attributes of a new object, or `None` where no object can be made.
fn defaults(path: &Path) -> Option<&'static [(&'static str, &'static str)]> {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    Some(match parts.as_slice() {
        ["ports", _] => &[
            ("addr", ""),
            ("enable", "0"),
            ("state", "disabled"),
            ("device", ""),
            ("last_error", ""),
            ("refusal", ""),
        ],
        ["exports", _] => &[
            ("kind", "ram"),
            ("device_path", ""),
            ("size", "0"),
            ("uuid", ""),
            ("read_only", "0"),
            ("block_size", "4096"),
            ("numa_node", "-1"),
            ("ports", "all"),
            ("allow_any_host", "0"),
            ("scrub", "1"),
            ("max_clients", "1"),
            ("lease_max_ms", "3600000"),
            ("protection", "none"),
            ("registration", ""),
            ("evict", ""),
            ("pr_clear", ""),
            ("pr_registrants", ""),
            ("enable", "0"),
            ("state", "disabled"),
            ("instance", ""),
            ("clients", "0"),
            ("clients_away", "0"),
            ("last_error", ""),
            ("refusal", ""),
        ],
        ["exports", _, "hosts", _] => &[
            ("host_id", ""),
            ("access", "none"),
            ("connected", "0"),
            ("key", ""),
            ("key_id", ""),
            ("key_next", ""),
            ("key_next_id", ""),
        ],
        ["maps", _] => &[
            ("export", ""),
            ("access", "rw"),
            ("queues", "0"),
            ("poll_queues", "0"),
            ("depth", "128"),
            ("inline_size", "4096"),
            ("io_timeout_ms", "30000"),
            ("no_path_timeout_ms", "60000"),
            ("heartbeat_ms", "1000"),
            ("reconnect_max_ms", "10000"),
            ("policy", "min-inflight"),
            ("protection", "none"),
            ("tos", "0"),
            ("expect_instance", ""),
            ("key", ""),
            ("key_id", ""),
            ("enable", "0"),
            ("state", "disabled"),
            ("device", ""),
            ("uuid", ""),
            ("instance", ""),
            ("mode", "one_sided"),
            ("size", "0"),
            ("last_error", ""),
            ("refusal", ""),
        ],
        ["maps", _, "paths", _] => &[
            ("addr", ""),
            ("source", ""),
            ("enable", "0"),
            ("state", "disabled"),
            ("device", ""),
            ("rtt_ns", "0"),
            ("reconnects", "0"),
            ("next_try_ms", ""),
            ("last_error", ""),
            ("refusal", ""),
        ],
        ["discover", _] => &[
            ("addr", ""),
            ("source", ""),
            ("first", "0"),
            ("pings", "0"),
            ("interval_us", "10000"),
            ("enable", "0"),
            ("exports", ""),
            ("rtt_ns", ""),
            ("last_error", ""),
            ("refusal", ""),
        ],
        _ => return None,
    })
}

impl State {
    /// Returns true if this is the only enabled path of an enabled map.
    fn is_last_path(&self, path: &Path) -> bool {
        let enabled = |path: &Path| {
            let object = self.objects.get(path);
            object
                .is_some_and(|attributes| attributes.get("enable").is_some_and(|text| text == "1"))
        };
        let (Some(paths), true) = (path.parent(), path.starts_with("maps")) else {
            return false;
        };
        let siblings = self
            .objects
            .keys()
            .filter(|key| key.parent() == Some(paths));
        paths.ends_with("paths")
            && paths.parent().is_some_and(enabled)
            && enabled(path)
            && siblings.filter(|key| enabled(key)).count() == 1
    }

    /// Sets the attributes that only the kernel writes, as enabling does.
    fn enable(&mut self, path: &Path) {
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        let changes: &[(&str, &str)] = match parts.as_slice() {
            ["ports", _] => &[("state", "listening"), ("device", "rxe0")],
            ["exports", _] => &[
                ("state", "online"),
                ("instance", "22222222-2222-2222-2222-222222222222"),
            ],
            ["maps", _] => &[
                ("state", "live"),
                ("device", "farblk0"),
                ("size", "4294967296"),
                ("uuid", "11111111-1111-1111-1111-111111111111"),
            ],
            ["maps", _, "paths", _] => &[("state", "live"), ("device", "rxe0")],
            _ => &[],
        };
        let attributes = self.objects.entry(path.to_owned()).or_default();
        attributes.insert("last_error".into(), String::new());
        for (name, value) in changes {
            attributes.insert((*name).into(), (*value).into());
        }
        if attributes.get("kind").is_some_and(|kind| kind == "block") {
            attributes.insert("size".into(), (1u64 << 30).to_string());
        }
        if let ["discover", _] = parts.as_slice() {
            // Three exports, two to a page.
            let first: usize = attributes["first"].parse().unwrap_or(0);
            let page = (first..3)
                .take(2)
                .map(|n| format!("e{n} ram {} rw 0 1 u{n}\n", 4096 << n));
            attributes.insert(
                "exports".into(),
                format!("total 3\n{}", page.collect::<String>()),
            );
            // 40 us, 41 us and so on.
            let pings: u64 = attributes
                .get("pings")
                .map_or(0, |text| text.parse().unwrap_or(0));
            let lines = (0..pings).map(|n| format!("{}\n", 40_000 + 1000 * n));
            attributes.insert("rtt_ns".into(), lines.collect());
            attributes.insert("enable".into(), "0".into());
        }
    }
}

impl Files for Fake {
    fn is_dir(&self, path: &Path) -> bool {
        self.relative(path)
            .is_some_and(|path| self.state.borrow().objects.contains_key(&path))
    }

    fn dirs(&self, path: &Path) -> Vec<String> {
        let state = self.state.borrow();
        let Some(path) = self.relative(path) else {
            return Vec::new();
        };
        let inside = state
            .objects
            .keys()
            .filter_map(|key| key.strip_prefix(&path).ok());
        inside
            .filter(|key| key.iter().count() == 1)
            .map(|key| key.display().to_string())
            .collect()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let path = self.relative(path).ok_or_else(|| error(ENOENT))?;
        let object = path
            .parent()
            .map(|path| path.display().to_string())
            .unwrap_or_default();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ["key", "key_next"].contains(&&*name) && self.get(&object, &name).is_some() {
            return Err(error(EACCES));
        }
        self.get(&object, &name)
            .map(|text| text + "\n")
            .ok_or_else(|| error(ENOENT))
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), Fault> {
        let path = self
            .relative(path)
            .ok_or_else(|| Fault::Open(error(ENOENT)))?;
        let mut state = self.state.borrow_mut();
        state.log.push(format!("{} = {value}", path.display()));
        let object = path.parent().unwrap_or(Path::new("")).to_owned();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !state
            .objects
            .get(&object)
            .is_some_and(|attributes| attributes.contains_key(&name))
        {
            return Err(Fault::Open(error(ENOENT)));
        }
        let text = path.display().to_string();
        let refusal = state.refusals.iter_mut().find(|refusal| {
            refusal.times > 0 && text.ends_with(&refusal.attribute) && refusal.value == value
        });
        if let Some(refusal) = refusal {
            refusal.times -= 1;
            let (errno, words) = (refusal.errno, refusal.words.clone());
            let attributes = state.objects.entry(object).or_default();
            if (name.as_str(), value) == ("enable", "1") {
                attributes.insert("last_error".into(), words.clone());
            }
            if let Some(refusal) = attributes.get_mut("refusal") {
                *refusal = words;
            }
            return Err(Fault::Store(error(errno)));
        }
        if (name.as_str(), value) == ("enable", "0") && state.is_last_path(&object) {
            let words = "EBUSY the last path of a map that is enabled";
            let attributes = state.objects.entry(object).or_default();
            attributes.insert("refusal".into(), words.into());
            return Err(Fault::Store(error(EBUSY)));
        }
        let attributes = state.objects.entry(object.clone()).or_default();
        let enabled = attributes.get("enable").is_some_and(|value| value == "1");
        match (name.as_str(), value) {
            ("enable", "1") => {
                attributes.insert(name, value.into());
                state.enable(&object);
            }
            ("enable", _) => {
                attributes.insert(name, "0".into());
                attributes.insert("state".into(), "disabled".into());
                attributes.insert("device".into(), String::new());
            }
            ("evict", _) => {
                attributes.insert(name, value.into());
            }
            ("pr_clear", "1" | "force") => {
                let lines = attributes.get("pr_registrants");
                let mut lines = lines.map_or("", String::as_str).lines();
                // The third word of a line is the reservation.
                if value == "1" && lines.any(|line| line.split(' ').nth(2).is_some()) {
                    let words = "EBUSY pr_clear: the export is reserved; force clears it";
                    attributes.insert("refusal".into(), words.into());
                    return Err(Fault::Store(error(EBUSY)));
                }
                attributes.insert("pr_registrants".into(), String::new());
            }
            ("pr_clear", _) => return Err(Fault::Store(error(EINVAL))),
            ("key" | "key_next", _) => {
                let id = match value {
                    "" => String::new(),
                    text => match secret::tests::id(text) {
                        Some(id) => id,
                        None => return Err(Fault::Store(error(EINVAL))),
                    },
                };
                // The kernel gives no key away.
                attributes.insert(name + "_id", id);
            }
            _ if enabled => return Err(Fault::Store(error(EBUSY))),
            ("host_id", _) => {
                attributes.insert(name, value.into());
                attributes.insert("host_id_source".into(), "written".into());
            }
            _ => {
                attributes.insert(name, value.into());
            }
        }
        let accepted = state.objects.get_mut(&object);
        if let Some(refusal) = accepted.and_then(|attributes| attributes.get_mut("refusal")) {
            refusal.clear();
        }
        Ok(())
    }

    fn mkdir(&self, path: &Path) -> io::Result<()> {
        let path = self.relative(path).ok_or_else(|| error(ENOENT))?;
        let mut state = self.state.borrow_mut();
        if let Some(index) = state.races.iter().position(|other| *other == path) {
            state.races.remove(index);
            drop(state);
            self.mkdir(&self.base.join(&path))?;
            return Err(error(EEXIST));
        }
        state.log.push(format!("mkdir {}", path.display()));
        if state.objects.contains_key(&path) {
            return Err(error(EEXIST));
        }
        if !path
            .parent()
            .is_some_and(|parent| state.objects.contains_key(parent))
        {
            return Err(error(ENOENT));
        }
        let defaults = defaults(&path).ok_or_else(|| error(EPERM))?;
        let mut attributes: BTreeMap<_, _> = defaults
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        attributes.retain(|name: &String, _| !state.unknown.contains(name));
        state.inodes += 1;
        attributes.insert("made".into(), state.inodes.to_string());
        if path.starts_with("exports") && attributes.contains_key("uuid") {
            let uuid = format!("11111111-1111-4111-8111-{:012}", state.inodes);
            attributes.insert("uuid".into(), uuid);
        }
        let group = match path.iter().next().and_then(|part| part.to_str()) {
            Some("exports") => Some("hosts"),
            Some("maps") => Some("paths"),
            _ => None,
        };
        if let Some(group) = group.filter(|_| path.iter().count() == 2) {
            state.objects.insert(path.join(group), BTreeMap::new());
        }
        state.objects.insert(path, attributes);
        Ok(())
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        let path = self.relative(path).ok_or_else(|| error(ENOENT))?;
        let mut state = self.state.borrow_mut();
        state.log.push(format!("rmdir {}", path.display()));
        let attributes = state.objects.get(&path).ok_or_else(|| error(ENOENT))?;
        if attributes.get("enable").is_some_and(|value| value == "1") {
            return Err(error(EBUSY));
        }
        let made = |key: &PathBuf, attributes: &BTreeMap<_, _>| {
            key.starts_with(&path) && *key != path && attributes.contains_key("made")
        };
        if state
            .objects
            .iter()
            .any(|(key, attributes)| made(key, attributes))
        {
            return Err(error(ENOTEMPTY));
        }
        state.objects.retain(|key, _| !key.starts_with(&path));
        Ok(())
    }

    fn inode(&self, path: &Path) -> Option<u64> {
        let path = self.relative(path)?;
        let state = self.state.borrow();
        let made = state.objects.get(&path)?.get("made")?;
        made.parse().ok()
    }
}
