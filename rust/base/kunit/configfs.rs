// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of configfs: a subsystem of its own, used through the file system.

use crate::base::{
    configfs::{
        Attribute,
        Dependent,
        Group,
        GroupOperations,
        NewGroup,
        NoChild,
        PageWriter,
        Subsystem, //
    },
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};
use crate::kunit::{
    check,
    shell,
    skip, //
};
use core::fmt::Write;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// What happened to the directories, in numbers.
struct Log {
    made: Atomic<u32>,
    dropped: Atomic<u32>,
    freed: Atomic<u32>,
    /// `mkdir never` got as far as here.
    never: Atomic<u32>,
}

impl Log {
    fn new() -> Result<Arc<Self>> {
        let log = Self {
            made: Atomic::new(0),
            dropped: Atomic::new(0),
            freed: Atomic::new(0),
            never: Atomic::new(0),
        };
        Ok(Arc::new(log, GFP_KERNEL)?)
    }
}

/// The topmost directory.
#[pin_data]
struct Top {
    log: Arc<Log>,
    /// What was stored last.
    #[pin]
    value: IrqSaveSpinLock<KVec<u8>>,
    dependents: Arc<Dependents>,
}

/// A directory that `mkdir(2)` made.
struct Item {
    log: Arc<Log>,
    dependents: Arc<Dependents>,
}

/// A default group of an [`Item`].
struct Sub(Arc<Log>);

/// What keeps the directories of items.
#[pin_data]
struct Dependents {
    #[pin]
    list: IrqSaveSpinLock<KVec<Dependent>>,
}

impl Dependents {
    fn take(&self, dependent: Dependent) -> Result {
        // Room for some was made.
        self.list.lock().push_within_capacity(dependent)?;
        Ok(())
    }

    fn drop_one(&self) -> Result {
        let dependent = self.list.lock().pop();
        dependent.map(drop).ok_or(ENOENT)
    }
}

#[vtable]
impl GroupOperations for Top {
    type Child = Item;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"value", Self::show_value, Self::store_value),
        Attribute::ro(c"full", |_, page| Self::show_long(page, 4096)),
        Attribute::ro(c"too_long", |_, page| Self::show_long(page, 4097)),
        Attribute::rw(c"depend", |_, _| Err(EIO), Self::store_depend),
    ];

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<Item>> {
        if name == "never" {
            group.log.never.store(1, Relaxed);
        }
        let log = group.log.clone();
        let item = Item {
            log: log.clone(),
            dependents: group.dependents.clone(),
        };
        let new = NewGroup::new(Arc::new(item, GFP_KERNEL)?)?;
        let sub = NewGroup::new(Arc::new(Sub(log.clone()), GFP_KERNEL)?)?;
        let new = new.with_default(c"sub", sub)?;
        if name == "bad" {
            return Err(EINVAL);
        }
        log.made.fetch_add(1, Relaxed);
        Ok(new)
    }

    fn drop_item(group: &Group<Self>, item: &Item) {
        // It is not freed yet.
        let same = core::ptr::eq(&*group.log, &*item.log);
        group.log.dropped.fetch_add(u32::from(same), Relaxed);
    }
}

impl Top {
    fn show_value(&self, page: &mut PageWriter<'_>) -> Result {
        for byte in self.value.lock().iter() {
            write!(page, "{byte:02x}")?;
        }
        Ok(())
    }

    fn store_value(group: &Group<Self>, value: &str) -> Result {
        if value == "busy" {
            return Err(EBUSY);
        }
        let mut bytes = KVec::new();
        bytes.extend_from_slice(value.as_bytes(), GFP_KERNEL)?;
        let old = core::mem::replace(&mut *group.value.lock(), bytes);
        drop(old);
        Ok(())
    }

    fn show_long(page: &mut PageWriter<'_>, len: usize) -> Result {
        for _ in 0..len {
            page.write_str("x")?;
        }
        Ok(())
    }

    fn store_depend(group: &Group<Self>, _value: &str) -> Result {
        group.dependents.take(group.depend()?)
    }
}

#[vtable]
impl GroupOperations for Item {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] =
        &[Attribute::rw(c"depend", |_, _| Ok(()), Self::store_depend)];
}

impl Item {
    fn store_depend(group: &Group<Self>, value: &str) -> Result {
        match value {
            "1" => group.dependents.take(group.depend()?),
            _ => group.dependents.drop_one(),
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.log.freed.fetch_add(1, Relaxed);
    }
}

#[vtable]
impl GroupOperations for Sub {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] =
        &[Attribute::rw(c"depend", |_, _| Ok(()), Self::store_depend)];
}

impl Sub {
    fn store_depend(group: &Group<Self>, _value: &str) -> Result {
        group.depend().map(drop)
    }
}

impl Drop for Sub {
    fn drop(&mut self) {
        self.0.freed.fetch_add(100, Relaxed);
    }
}

const NAME: &CStr = c"farblk_kunit";

/// A line of shell in the subsystem's directory. `refused ERROR COMMAND...` is true if the command
/// fails with that error; `put FILE TEXT` is one write of what `printf` makes of the text.
macro_rules! there {
    ($line:literal) => {
        shell(::kernel::c_str!(concat!(
            "export LC_ALL=C
            refused() {
                error=$1; shift
                ! text=$(\"$@\" 2>&1 >/dev/null) && [ \"${text##*: }\" = \"$error\" ]
            }
            put() { printf \"$2\" | dd of=$1 bs=8192 iflag=fullblock conv=notrunc status=none; }
            cd /sys/kernel/config/farblk_kunit && { ",
            $line,
            "\n}"
        )))
        .is_ok()
    };
}

fn top(log: &Arc<Log>) -> Result<Arc<Top>> {
    let list = KVec::with_capacity(8, GFP_KERNEL)?;
    let dependents = Arc::pin_init(
        pin_init!(Dependents {
            list <- new_irqsave_spinlock!(list),
        }),
        GFP_KERNEL,
    )?;
    let log = log.clone();
    Arc::pin_init(
        pin_init!(Top {
            log,
            value <- new_irqsave_spinlock!(KVec::new()),
            dependents,
        }),
        GFP_KERNEL,
    )
}

/// Runs a test with a subsystem, and checks that its data goes with it.
fn with_subsystem(test: impl FnOnce(&Log) -> Result) -> Result {
    if shell(c"grep -q ' /sys/kernel/config configfs ' /proc/mounts").is_err() {
        skip(c"configfs is not mounted");
        return Ok(());
    }
    let log = Log::new()?;
    let top = top(&log)?;
    let subsystem = Subsystem::register(NAME, NewGroup::new(top.clone())?)?;
    let result = test(&log);
    if result.is_err() {
        // The subsystem would wait for what was left.
        while top.dependents.drop_one().is_ok() {}
        let _ = there!("rmdir */");
    }
    drop(subsystem);
    result?;
    check!(Arc::into_unique_or_drop(top).is_some());
    check!(shell(c"[ ! -e /sys/kernel/config/farblk_kunit ]").is_ok());
    check!(log.made.load(Relaxed) == log.dropped.load(Relaxed));
    check!(log.never.load(Relaxed) == 0);
    Ok(())
}

#[kernel::macros::kunit_tests(farblk_configfs)]
mod tests {
    use super::*;

    #[test]
    fn attribute_shows_and_stores() -> Result {
        with_subsystem(|_| {
            check!(there!("[ \"$(stat -c %a value full)\" = '644\n444' ]"));
            check!(there!("put value ab && [ $(cat value) = 6162 ]"));
            // One newline at the end is not part of the value.
            check!(there!("put value 'ab\\n' && [ $(cat value) = 6162 ]"));
            check!(there!("put value 'a\\n\\n' && [ $(cat value) = 610a ]"));
            check!(there!("put value '\\n' && [ -z \"$(cat value)\" ]"));
            check!(there!("put value '\\303\\244' && [ $(cat value) = c3a4 ]"));
            Ok(())
        })
    }

    #[test]
    fn attribute_refuses_what_is_no_text() -> Result {
        with_subsystem(|_| {
            check!(there!("put value old"));
            check!(there!("refused 'Invalid argument' put value 'a\\0b'"));
            check!(there!("refused 'Invalid argument' put value '\\377'"));
            check!(there!(
                "refused 'Invalid argument' put value $(printf %04095d)"
            ));
            check!(there!("refused 'Device or resource busy' put value busy"));
            check!(there!("[ $(cat value) = 6f6c64 ]"));
            check!(there!("put value $(printf %04094d)"));
            check!(!there!("put full 1"));
            Ok(())
        })
    }

    #[test]
    fn attribute_shows_a_page_or_an_error() -> Result {
        with_subsystem(|_| {
            check!(there!("[ $(wc -c <full) = 4096 ]"));
            check!(there!(
                "refused 'Value too large for defined data type' cat too_long"
            ));
            check!(there!("refused 'Input/output error' cat depend"));
            Ok(())
        })
    }

    #[test]
    fn directory_is_made_and_dropped_once() -> Result {
        with_subsystem(|log| {
            check!(there!("mkdir a b && [ -d a ] && [ -d b/sub ]"));
            check!(there!("refused 'File exists' mkdir a"));
            check!(log.made.load(Relaxed) == 2 && log.freed.load(Relaxed) == 0);
            // It is freed, with its default group, but was never there.
            check!(there!(
                "refused 'Invalid argument' mkdir bad && [ ! -e bad ]"
            ));
            check!(log.made.load(Relaxed) == 2 && log.freed.load(Relaxed) == 101);
            check!(log.dropped.load(Relaxed) == 0);
            check!(there!("rmdir a && [ ! -e a ]"));
            check!(log.dropped.load(Relaxed) == 1 && log.freed.load(Relaxed) == 202);
            check!(there!("rmdir b"));
            check!(log.dropped.load(Relaxed) == 2 && log.freed.load(Relaxed) == 303);
            Ok(())
        })
    }

    #[test]
    fn default_group_goes_with_its_directory() -> Result {
        with_subsystem(|log| {
            check!(there!("mkdir a && [ -f a/sub/depend ]"));
            check!(there!("refused 'Operation not permitted' rmdir a/sub"));
            check!(there!("refused 'Operation not permitted' mkdir a/b"));
            check!(there!("refused 'Operation not permitted' mkdir a/sub/b"));
            check!(there!("rmdir a"));
            check!(log.freed.load(Relaxed) == 101);
            Ok(())
        })
    }

    #[test]
    fn directory_that_is_depended_on_is_not_removed() -> Result {
        with_subsystem(|log| {
            check!(there!("mkdir a && put a/depend 1 && put a/depend 1"));
            check!(there!("refused 'Device or resource busy' rmdir a"));
            check!(there!("put a/depend 0"));
            check!(there!("refused 'Device or resource busy' rmdir a"));
            check!(log.dropped.load(Relaxed) == 0);
            check!(there!("put a/depend 0 && rmdir a"));
            check!(log.dropped.load(Relaxed) == 1);
            Ok(())
        })
    }

    #[test]
    fn what_mkdir_did_not_make_is_not_depended_on() -> Result {
        with_subsystem(|_| {
            check!(there!("refused 'Invalid argument' put depend 1"));
            check!(there!(
                "mkdir a && refused 'Invalid argument' put a/sub/depend 1"
            ));
            check!(there!("rmdir a"));
            Ok(())
        })
    }

    #[test]
    fn open_file_of_a_removed_directory_is_dead() -> Result {
        with_subsystem(|log| {
            check!(there!(
                "mkdir a && exec 5<a/depend 6>a/depend && rmdir a && ! cat <&5 && ! echo 1 >&6"
            ));
            check!(log.freed.load(Relaxed) == 101);
            Ok(())
        })
    }

    #[test]
    fn name_is_taken_once() -> Result {
        with_subsystem(|log| {
            let second = top(&Log::new()?)?;
            let result = Subsystem::register(NAME, NewGroup::new(second.clone())?);
            check!(result.err() == Some(EEXIST));
            check!(Arc::into_unique_or_drop(second).is_some());
            check!(there!("mkdir a && rmdir a"));
            check!(log.made.load(Relaxed) == 1);
            Ok(())
        })
    }

    #[test]
    fn subsystem_waits_for_its_directories() -> Result {
        with_subsystem(|_| {
            // Removes the directory only when no other can be made: the subsystem is going.
            check!(there!(
                "mkdir a || exit
                {
                    for i in $(seq 100); do
                        mkdir b || break
                        rmdir b
                        sleep 0.1
                    done
                    mkdir never && rmdir never
                    rmdir a
                } >/dev/null 2>&1 &"
            ));
            Ok(())
        })
    }
}
