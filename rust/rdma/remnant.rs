// SPDX-License-Identifier: GPL-2.0

//! What is left of an object that a device, or its driver, has refused to destroy.
//!
//! The device may go on to use such an object: write to the memory that was posted to it, complete
//! what was posted, and tell of events. So the object stays whole, with all that it refers to, and
//! so does the code of the module. All of it is a *remnant* of the device, which is tried to be
//! destroyed once more when the device is being removed: a driver whose device has gone has nothing
//! to refuse. The removal waits until that has succeeded.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::client::Owner;
use crate::base::module::ModuleRef;
use core::{
    mem::ManuallyDrop,
    ops::Deref, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// An object of a device, which the device may refuse to destroy.
///
/// See [`ObjectRef`] for an example.
///
/// # Safety
///
/// Once [`Self::release`] has succeeded, neither the device nor a function that it may call uses
/// the object any more.
pub(crate) unsafe trait DeviceObject: Send + Sync + 'static {
    /// Returns what it is, for a message.
    fn kind(&self) -> &'static str;

    /// Returns the remnants of its device.
    fn remnants(&self) -> &Arc<Remnants>;

    /// Destroys the C object, and gives back what it has used. Fails with the error of the device
    /// if that refuses; then this may be called again.
    ///
    /// # Safety
    ///
    /// There must be one reference to the object, which the caller has. After a failure the object
    /// must stay in place. After a success it must only be dropped.
    ///
    /// # Context
    ///
    /// May sleep.
    unsafe fn release(&self) -> Result;
}

/// A counted reference to an object of a device. With the last one the object is destroyed, where
/// that is dropped, or becomes a remnant if the device refuses.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::AnyCq, remnant::ObjectRef};
/// /// Two connections, which may have one completion queue.
/// struct Pair {
///     cqs: [ObjectRef<AnyCq>; 2],
/// }
///
/// impl Pair {
///     fn shared(cq: &ObjectRef<AnyCq>) -> Self {
///         Self { cqs: [cq.clone(), cq.clone()] }
///     }
///
///     fn is_shared(&self) -> bool {
///         ObjectRef::ptr_eq(&self.cqs[0], &self.cqs[1])
///     }
/// }
/// ```
pub(crate) struct ObjectRef<T: DeviceObject>(ManuallyDrop<Arc<T>>);

impl<T: DeviceObject> ObjectRef<T> {
    /// Makes the first reference to an object. There must be no other `Arc` of it.
    pub(super) fn new(object: Arc<T>) -> Self {
        Self(ManuallyDrop::new(object))
    }

    /// Returns true if both are references to the same object. Any context.
    #[inline]
    pub(crate) fn ptr_eq(this: &Self, other: &Self) -> bool {
        Arc::ptr_eq(&this.0, &other.0)
    }

    /// Ends the reference. Returns true if it was the last.
    ///
    /// # Safety
    ///
    /// It must not be used again, nor be dropped but by the caller's `drop()`.
    #[inline]
    unsafe fn end(&mut self) -> bool {
        // SAFETY: The caller promises that it is not used again.
        let object = unsafe { ManuallyDrop::take(&mut self.0) };
        match Arc::into_unique_or_drop(object) {
            Some(object) => {
                release(object.into());
                true
            }
            None => false,
        }
    }

    /// Drops the reference. Returns true if it was the last.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) fn drop_last(this: Self) -> bool {
        // SAFETY: It is not used again.
        unsafe { ManuallyDrop::new(this).end() }
    }
}

impl<T: DeviceObject> Clone for ObjectRef<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: DeviceObject> Deref for ObjectRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeviceObject> Drop for ObjectRef<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: It is being dropped.
        unsafe { self.end() };
    }
}

/// Destroys an object, to which this is the last reference, or makes a remnant of it.
fn release<T: DeviceObject>(object: Arc<T>) {
    // SAFETY: It is the only reference. After a failure the object is kept.
    if let Err(error) = unsafe { object.release() } {
        let remnants = object.remnants().clone();
        remnants.keep(object, error);
    }
}

/// An object that could not be destroyed.
///
/// # Invariants
///
/// `object` is the only reference to the object. It is dropped only once the object was destroyed.
struct Remnant {
    object: Arc<dyn DeviceObject>,
    /// For the functions that the device may call. None if the module is being unloaded: that waits
    /// for the removal of all devices.
    _module: Option<ModuleRef>,
}

/// The remnants of a device.
#[pin_data]
pub(crate) struct Remnants {
    owner: Owner,
    #[pin]
    list: Mutex<KVec<Remnant>>,
}

impl Remnants {
    /// Makes an empty list, of objects of `owner`. May sleep.
    pub(super) fn new(owner: Owner) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                owner,
                list <- new_mutex!(KVec::new(), "Remnants::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Keeps an object that could not be destroyed, for this reason. There must be no other
    /// reference to it. May sleep.
    #[cold]
    pub(super) fn keep(&self, object: Arc<dyn DeviceObject>, error: Error) {
        let kind = object.kind();
        // INVARIANT: The caller promises that it is the only reference.
        let remnant = Remnant {
            object,
            _module: self.owner.try_get(),
        };
        let mut list = self.list.lock();
        if list.is_empty() {
            // The others are only counted: a device that refuses one is likely to refuse many.
            pr_err!(
                "a device refuses to destroy a {}: {}; it and the memory that it may use stay, as \
                 does this module, until the device goes\n",
                kind,
                error.to_errno()
            );
        }
        Self::add(&mut list, remnant);
    }

    /// Adds a remnant.
    fn add(list: &mut KVec<Remnant>, remnant: Remnant) {
        // This may be in the way of memory that is being freed, so it must not wait for memory.
        // Without room the remnant stays for ever, and the device with it: that is better than
        // memory that a device writes after it was freed.
        if list.reserve(1, GFP_NOWAIT).is_err() {
            return core::mem::forget(remnant);
        }
        if let Err(error) = list.push_within_capacity(remnant) {
            core::mem::forget(error);
        }
    }

    /// Returns how many objects could not be destroyed. May sleep.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) fn count(&self) -> usize {
        self.list.lock().len()
    }

    /// Tries once more to destroy what could not be destroyed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn retry(&self) {
        let mut kept = core::mem::take(&mut *self.list.lock());
        let before = kept.len();
        // What is dropped may leave other remnants, so nothing is locked.
        // SAFETY: By the type invariants it is the only reference, which stays after a failure and
        // is dropped after a success.
        kept.retain(|remnant| unsafe { remnant.object.release() }.is_err());
        if before != kept.len() {
            pr_info!("{} remnants of a device are gone\n", before - kept.len());
        }
        let mut list = self.list.lock();
        let newer = core::mem::replace(&mut *list, kept);
        for remnant in newer {
            Self::add(&mut list, remnant);
        }
    }
}
