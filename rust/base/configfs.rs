// SPDX-License-Identifier: GPL-2.0

//! configfs: kernel objects that user space creates with `mkdir(2)` and configures through files.
//!
//! A directory is a [`Group`], which holds the driver's data as an [`Arc`]. The [`GroupOperations`]
//! of that data define it: its files are [`Attribute`]s, `mkdir(2)` in it calls
//! [`GroupOperations::make_group`]. The driver builds directories as [`NewGroup`]s and hands the
//! topmost one to [`Subsystem::register`]. Everything sleeps unless it says otherwise.
//!
//! # Locking
//!
//! - [`GroupOperations::make_group`] and [`GroupOperations::drop_item`] run under the subsystem's
//!   mutex, one at a time.
//! - A show or store holds, for reading, a lock of the directory that `mkdir(2)` made (which that
//!   directory shares with its default groups). `rmdir(2)` takes it for writing before anything is
//!   torn down, so it waits for a store that runs, and a later one gives [`ENOENT`] before it gets
//!   here, even on a file that was opened before.
//! - Shows and stores run in parallel with each other, also those of the same attribute.
//!
//! C header: [`include/linux/configfs.h`](srctree/include/linux/configfs.h)

// UPSTREAM: upstream/tree/base/configfs.rs takes the place of this file and of the folder, with
// patches 0050 to 0052 of upstream/rust.

#![allow(unsafe_code)]

mod attribute;
mod registration;

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    container_of,
    error::{
        to_result,
        VTABLE_DEFAULT_ERROR, //
    },
    ffi::c_char,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use crate::bindings;

pub(crate) use attribute::{
    Attribute,
    PageWriter, //
};
use registration::{
    Registration,
    User, //
};

/// The most attributes of one type of directory.
const MAX_ATTRIBUTES: usize = 32;

/// Defines the directories that hold a `Self`: their files, and what `mkdir(2)` in them does.
///
/// # Examples
///
/// ```
/// # use crate::base::configfs::{Attribute, Group, GroupOperations, NewGroup, NoChild};
/// # use core::fmt::Write;
/// # use kernel::{prelude::*, sync::{atomic::{Atomic, Relaxed}, Arc}};
/// /// The directory of a disk.
/// struct Disk {
///     depth: Atomic<u32>,
/// }
///
/// #[vtable]
/// impl GroupOperations for Disk {
///     type Child = NoChild;
///
///     const ATTRIBUTES: &'static [Attribute<Self>] = &[Attribute::rw(
///         c"depth",
///         |disk: &Disk, page| Ok(writeln!(page, "{}", disk.depth.load(Relaxed))?),
///         |disk: &Group<Disk>, text: &str| {
///             disk.depth.store(text.parse().map_err(|_| EINVAL)?, Relaxed);
///             Ok(())
///         },
///     )];
/// }
///
/// /// The directory in which mkdir makes disks.
/// struct Disks;
///
/// #[vtable]
/// impl GroupOperations for Disks {
///     type Child = Disk;
///
///     fn make_group(_disks: &Group<Self>, _name: &str) -> Result<NewGroup<Disk>> {
///         NewGroup::new(Arc::new(Disk { depth: Atomic::new(128) }, GFP_KERNEL)?)
///     }
/// }
/// ```
#[vtable]
pub(crate) trait GroupOperations: Send + Sync + Sized + 'static {
    /// The data of the directories that `mkdir(2)` creates here; [`NoChild`] if it creates none.
    type Child: GroupOperations;

    /// The files of the directory; at most 32.
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];

    /// `mkdir(2)`: builds the directory `name` in `group`, and the default groups below it.
    ///
    /// Without this function `mkdir(2)` fails with [`EPERM`]. The name is new in this directory; it
    /// is 1 to 255 bytes long. One that is not UTF-8 fails with [`EINVAL`] before this is called.
    /// Called under the subsystem's mutex.
    fn make_group(_group: &Group<Self>, _name: &str) -> Result<NewGroup<Self::Child>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Called when `item`, a directory that [`GroupOperations::make_group`] made in `group`, is
    /// gone.
    ///
    /// It is called once for each, after `rmdir(2)` or when `mkdir(2)` failed later; its shows and
    /// stores have ended. It is not called for default groups. Called under the subsystem's mutex.
    fn drop_item(_group: &Group<Self>, _item: &Self::Child) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// The [`GroupOperations::Child`] of directories in which `mkdir(2)` is not allowed.
///
/// See [`GroupOperations`] for an example.
pub(crate) enum NoChild {}

#[vtable]
impl GroupOperations for NoChild {
    type Child = NoChild;
}

/// A directory that is lent to a callback: it is attached, and stays so until the callback returns.
///
/// See [`GroupOperations`] for an example.
///
/// # Invariants
///
/// - It is in an allocation of its own, of a [`KBox`], and `head.subsystem.su_group` is initialised
///   with the item type of `T`; the reference count in there owns the allocation.
/// - A `&Group<T>` outside of this module is lent to a callback of configfs for an attached group.
#[repr(C)]
pub(crate) struct Group<T: GroupOperations> {
    head: Head,
    data: Arc<T>,
}

/// The part of a [`Group`] that does not depend on the type of its data.
#[repr(C)]
struct Head {
    /// Only the root of a subsystem uses more than `su_group`.
    subsystem: Opaque<bindings::configfs_subsystem>,
    /// Written only before the group is attached.
    role: Role,
    /// Counts the group for its subsystem until it is freed. Written only when `role` is.
    _user: Option<User>,
}

enum Role {
    /// A default group of the group above it, or not attached.
    Default,
    /// Created by `mkdir(2)`.
    Made,
    /// The top of a subsystem.
    Root(Arc<Registration>),
}

impl Head {
    /// Lets a group, its default groups, theirs, and so on count for a subsystem.
    ///
    /// # Safety
    ///
    /// `this` and all of these must be valid, and nobody else must know them.
    unsafe fn count(this: *mut Self, user: &User) {
        let group = this.cast::<bindings::config_group>();
        // SAFETY: By the safety requirements. A `Head` begins with its group, and the list has the
        // groups that `NewGroup::with_default` added to it, by their `group_entry`.
        unsafe {
            (*this)._user = Some(user.clone());
            let list = &raw mut (*group).default_groups;
            let mut entry = (*list).next;
            while entry != list {
                let below = container_of!(entry, bindings::config_group, group_entry);
                Self::count(below.cast(), user);
                entry = (*entry).next;
            }
        }
    }
}

impl<T: GroupOperations> Group<T> {
    /// # Safety
    ///
    /// `item` must be the one in a `Group<T>`, which must stay valid during `'a`.
    unsafe fn from_item<'a>(item: *mut bindings::config_item) -> &'a Self {
        // SAFETY: The item is at the start of the `config_group`, that of the `configfs_subsystem`,
        // that of the `Head`, that of the `Group`, all of which are `repr(C)`. The rest is promised
        // by the caller.
        unsafe { &*item.cast() }
    }

    fn as_group(&self) -> *mut bindings::config_group {
        self.head.subsystem.get().cast()
    }

    /// Makes `rmdir(2)` of this directory fail with [`EBUSY`] as long as the result exists.
    ///
    /// Fails with [`ENOENT`] if `rmdir(2)` has begun, and with [`EINVAL`] if `mkdir(2)` did not
    /// create this directory. Does not sleep.
    pub(crate) fn depend(&self) -> Result<Dependent> {
        // configfs looks at the dependents of what is removed, not of default groups below.
        if !matches!(self.head.role, Role::Made) {
            return Err(EINVAL);
        }
        let group = self.as_group();
        // SAFETY: By the type invariants `self` is lent to a callback of configfs for this attached
        // group, so its links, also those up to the root, are valid and do not change; and the call
        // is made from that callback, for the callback's own subsystem.
        to_result(unsafe {
            bindings::configfs_depend_item_unlocked((*group).cg_subsys, &raw mut (*group).cg_item)
        })?;
        // INVARIANT: The dependent was just counted, for a group made by `mkdir(2)`.
        Ok(Dependent(NonNull::from(&self.head.subsystem).cast()))
    }

    /// Returns the registration of the subsystem that this group is attached to.
    ///
    /// # Safety
    ///
    /// `self` must be lent to a callback of configfs, so that it is attached until that returns.
    unsafe fn registration(&self) -> Result<&Arc<Registration>> {
        // SAFETY: `cg_subsys` is only written before a group is attached and after it was detached,
        // which the safety requirements exclude.
        let subsystem = unsafe { (*self.as_group()).cg_subsys };
        // SAFETY: If not null, it points at the `Head` that `Subsystem::register` was given, which
        // stays as long as groups are attached to it.
        match unsafe { subsystem.cast::<Head>().as_ref() } {
            Some(Head {
                role: Role::Root(registration),
                ..
            }) => Ok(registration),
            _ => Err(ENODEV),
        }
    }
}

impl<T: GroupOperations> Deref for Group<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

/// Keeps a directory from being removed.
///
/// It may be dropped in any process context, also in a show or store, and does not sleep; not in an
/// interrupt or softirq.
///
/// # Examples
///
/// ```
/// # use crate::base::configfs::{Dependent, Group, GroupOperations};
/// # use kernel::prelude::*;
/// /// A connection as a directory says: as long as it is there, rmdir of that fails with `EBUSY`.
/// struct Connection {
///     _config: Dependent,
/// }
///
/// fn connect<T: GroupOperations>(config: &Group<T>) -> Result<Connection> {
///     Ok(Connection {
///         _config: config.depend()?,
///     })
/// }
/// ```
///
/// # Invariants
///
/// The pointer is the item of a group made by `mkdir(2)`, and one of that group's dependents is
/// this value. So the group is attached: `rmdir(2)` is refused, and unregistering the subsystem
/// waits for the group.
pub(crate) struct Dependent(NonNull<bindings::config_item>);

// SAFETY: A dependent may be taken back by any task.
unsafe impl Send for Dependent {}
// SAFETY: `&Dependent` gives access to nothing.
unsafe impl Sync for Dependent {}

impl Drop for Dependent {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the group is attached, and this value is one of its
        // dependents.
        unsafe { bindings::configfs_undepend_item(self.0.as_ptr()) }
    }
}

/// A directory that is not attached yet.
///
/// # Examples
///
/// ```
/// # use crate::base::configfs::{GroupOperations, NewGroup};
/// # use kernel::{prelude::*, sync::Arc};
/// /// A directory with one in it, `stats`, which rmdir removes together with it.
/// fn with_stats<T, S>(disk: Arc<T>, stats: Arc<S>) -> Result<NewGroup<T>>
/// where
///     T: GroupOperations,
///     S: GroupOperations,
/// {
///     NewGroup::new(disk)?.with_default(c"stats", NewGroup::new(stats)?)
/// }
/// ```
///
/// # Invariants
///
/// The pointer is a valid group, not attached, and this value owns its only reference.
pub(crate) struct NewGroup<T: GroupOperations>(NonNull<Group<T>>);

impl<T: GroupOperations> NewGroup<T> {
    /// Creates a directory that holds `data`, without default groups. Fails with `ENOMEM`.
    pub(crate) fn new(data: Arc<T>) -> Result<Self> {
        let group = KBox::into_raw(KBox::new(
            Group {
                head: Head {
                    subsystem: Opaque::zeroed(),
                    role: Role::Default,
                    _user: None,
                },
                data,
            },
            GFP_KERNEL,
        )?);
        let raw = group.cast::<bindings::config_group>();
        // SAFETY: The group is at the start of the allocation, zeroed, and nobody else knows it.
        unsafe {
            bindings::config_group_init(raw);
            (*raw).cg_item.ci_type = VTable::<T>::ITEM_TYPE;
        }
        // INVARIANT: The group was just initialised with the item type of `T`, in an allocation of
        // its own; its first reference is ours. SAFETY: A `KBox` is not null.
        Ok(Self(unsafe { NonNull::new_unchecked(group) }))
    }

    /// Adds a default group: a directory that exists as long as this one. Its name must be new in
    /// this directory, which is not checked. Fails with `ENOMEM`.
    pub(crate) fn with_default<U>(self, name: &CStr, group: NewGroup<U>) -> Result<Self>
    where
        U: GroupOperations,
    {
        group.set_name(name)?;
        // SAFETY: Both groups are valid and known to nobody else. The list takes over the reference
        // to `group`, which `VTable::release` of this group drops.
        unsafe {
            bindings::configfs_add_default_group(group.into_raw().cast(), self.0.as_ptr().cast())
        };
        Ok(self)
    }

    fn data(&self) -> &T {
        // SAFETY: By the type invariants the group is valid.
        unsafe { &(*self.0.as_ptr()).data }
    }

    fn set_name(&self, name: &CStr) -> Result {
        // SAFETY: By the type invariants the group is valid and nobody else knows it; the format
        // takes one C string.
        to_result(unsafe {
            bindings::config_item_set_name(
                self.0.as_ptr().cast(),
                c"%s".as_char_ptr(),
                name.as_char_ptr(),
            )
        })
    }

    fn set_role(&mut self, role: Role) {
        // SAFETY: By the type invariants the group is valid and nobody else knows it.
        unsafe { (*self.0.as_ptr()).head.role = role };
    }

    /// Lets this directory and its default groups count for a subsystem.
    fn count(&mut self, user: &User) {
        // SAFETY: By the type invariants the group is valid, as are those that it has taken over,
        // and nobody else knows them.
        unsafe { Head::count(self.0.as_ptr().cast(), user) };
    }

    fn into_raw(self) -> *mut Group<T> {
        let this = core::mem::ManuallyDrop::new(self);
        this.0.as_ptr()
    }
}

impl<T: GroupOperations> Drop for NewGroup<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants this value owns a reference.
        unsafe { bindings::config_item_put(self.0.as_ptr().cast()) }
    }
}

/// The callbacks of the groups that hold a `T`.
struct VTable<T>(PhantomData<T>);

impl<T: GroupOperations> VTable<T> {
    const ITEM_TYPE: &'static bindings::config_item_type = &bindings::config_item_type {
        ct_owner: &raw mut bindings::__this_module,
        ct_item_ops: &raw const *Self::ITEM_OPERATIONS,
        ct_group_ops: if T::HAS_MAKE_GROUP {
            &raw const *Self::GROUP_OPERATIONS
        } else {
            core::ptr::null()
        },
        ct_attrs: (&raw const *Self::ATTRIBUTES).cast_mut().cast(),
        ct_bin_attrs: core::ptr::null_mut(),
    };

    const ITEM_OPERATIONS: &'static bindings::configfs_item_operations =
        &bindings::configfs_item_operations {
            release: Some(Self::release),
            ..pin_init::zeroed()
        };

    const GROUP_OPERATIONS: &'static bindings::configfs_group_operations =
        &bindings::configfs_group_operations {
            make_group: Some(Self::make_group),
            drop_item: Some(Self::drop_item),
            ..pin_init::zeroed()
        };

    /// Ends with a null pointer. C never writes to an attribute.
    const ATTRIBUTES: &'static [*mut bindings::configfs_attribute; MAX_ATTRIBUTES + 1] = &{
        assert!(T::ATTRIBUTES.len() <= MAX_ATTRIBUTES);
        let mut pointers = [core::ptr::null_mut(); MAX_ATTRIBUTES + 1];
        let mut i = 0;
        while i < T::ATTRIBUTES.len() {
            pointers[i] = T::ATTRIBUTES[i].as_raw();
            i += 1;
        }
        pointers
    };

    /// # Safety
    ///
    /// `group` is that of an attached `Group<T>`; `name` is a C string; the subsystem's mutex is
    /// held.
    unsafe extern "C" fn make_group(
        group: *mut bindings::config_group,
        name: *const c_char,
    ) -> *mut bindings::config_group {
        // SAFETY: By the safety requirements.
        let parent = unsafe { Group::<T>::from_item(group.cast()) };
        // SAFETY: By the safety requirements.
        let name = unsafe { CStr::from_char_ptr(name) };
        let make = || {
            // SAFETY: By the safety requirements the parent is attached. It stays so until this
            // returns: mkdir holds the lock of its inode, which detaching it takes.
            let user = unsafe { parent.registration() }?.join()?;
            let mut child = T::make_group(parent, name.to_str()?)?;
            if let Err(error) = child.set_name(name) {
                Self::item_dropped(parent, child.data());
                return Err(error);
            }
            child.set_role(Role::Made);
            child.count(&user);
            Ok(child)
        };
        match make() {
            // configfs takes over the reference; `drop_item` gives it up.
            Ok(child) => child.into_raw().cast(),
            Err(error) => error.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// `group` is that of an attached `Group<T>`; `item` is one that [`Self::make_group`] returned
    /// for it, and the reference that it had then is given up; the subsystem's mutex is held.
    unsafe extern "C" fn drop_item(
        group: *mut bindings::config_group,
        item: *mut bindings::config_item,
    ) {
        // SAFETY: By the safety requirements.
        let parent = unsafe { Group::<T>::from_item(group.cast()) };
        // SAFETY: By the safety requirements.
        Self::item_dropped(parent, unsafe { Group::<T::Child>::from_item(item) });
        // SAFETY: By the safety requirements the reference is ours.
        unsafe { bindings::config_item_put(item) };
    }

    fn item_dropped(group: &Group<T>, item: &T::Child) {
        if T::HAS_DROP_ITEM {
            T::drop_item(group, item);
        }
    }

    /// # Safety
    ///
    /// `item` is that of a `Group<T>` which is not attached, and there are no references to it.
    unsafe extern "C" fn release(item: *mut bindings::config_item) {
        // SAFETY: By the safety requirements. Each default group in the list has a reference that
        // `NewGroup::with_default` left to it.
        unsafe { bindings::configfs_remove_default_groups(item.cast()) };
        // SAFETY: By the type invariants of `Group` its reference count, which is zero, owned the
        // allocation.
        let Group::<T> { head, data } = KBox::into_inner(unsafe { KBox::from_raw(item.cast()) });
        drop(data);
        // Last: the subsystem may go with it, and the owner of that.
        drop(head);
    }
}

/// A directory in the root of configfs.
///
/// Callbacks may run before [`Subsystem::register`] returns, and directories that `mkdir(2)` made
/// hold the module, which counts for nothing if its `init` fails: nothing that may fail can follow
/// in `init`. Put it first in the module struct.
///
/// Dropping it makes `mkdir(2)` fail with [`ESHUTDOWN`], waits until all directories that it made
/// are removed, and removes the rest. So it must not be a part of the data of its directories, nor
/// be dropped by their callbacks: it would wait for itself.
///
/// # Examples
///
/// ```
/// # use crate::base::configfs::{GroupOperations, NewGroup, Subsystem};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<T: GroupOperations>(disks: Arc<T>) -> Result {
/// // /sys/kernel/config/driver, until it drops.
/// let subsystem = Subsystem::register(c"driver", NewGroup::new(disks)?)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The pointer is the [`Head`] of a group that is registered and whose first reference this value
/// owns.
pub(crate) struct Subsystem {
    root: NonNull<Head>,
    registration: Arc<Registration>,
}

// SAFETY: A subsystem may be unregistered by any task; its data is `Send`.
unsafe impl Send for Subsystem {}
// SAFETY: `&Subsystem` gives access to nothing.
unsafe impl Sync for Subsystem {}

impl Subsystem {
    /// Registers `root` as a subsystem, with a directory in the root of configfs. Fails with
    /// [`EEXIST`] if the name is in use.
    pub(crate) fn register<T: GroupOperations>(name: &CStr, mut root: NewGroup<T>) -> Result<Self> {
        let registration = Registration::new()?;
        root.set_name(name)?;
        root.set_role(Role::Root(registration.clone()));
        root.count(&registration.join()?);
        registration.keep_users();
        let subsystem = root.0.as_ptr().cast::<bindings::configfs_subsystem>();
        // SAFETY: The group is valid, nobody else knows it, and it starts with a
        // `configfs_subsystem`.
        unsafe { bindings::mutex_init(&raw mut (*subsystem).su_mutex) };
        // SAFETY: As above, and its group, name and mutex are initialised.
        if let Err(error) = to_result(unsafe { bindings::configfs_register_subsystem(subsystem) }) {
            // It may have been there for a moment, so that somebody holds it: see `drop()`.
            registration.close();
            drop(root);
            registration.wait();
            return Err(error);
        }
        // INVARIANT: The group is registered, and its first reference is taken over. SAFETY: It
        // comes from a `NonNull`.
        let root = unsafe { NonNull::new_unchecked(root.into_raw().cast()) };
        Ok(Self { root, registration })
    }
}

impl Drop for Subsystem {
    fn drop(&mut self) {
        self.registration.close();
        // SAFETY: By the type invariants it is registered. No group made by `mkdir(2)` is left, and
        // none can be made. What runs in its directories holds their inodes' locks, or the lock of
        // a show or store, which this takes.
        unsafe { bindings::configfs_unregister_subsystem(self.root.as_ptr().cast()) };
        // SAFETY: By the type invariants the first reference is ours.
        unsafe { bindings::config_item_put(self.root.as_ptr().cast()) };
        // It may not have been the last one: `symlink(2)` in the directory of another driver holds
        // one of what it is to point at, which it looks at again only after that driver's answer.
        self.registration.wait();
    }
}
