// SPDX-License-Identifier: GPL-2.0

//! Registration with the RDMA core: the devices that are there, and that come and go.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Device,
    might_sleep,
    MODULE_NAME, //
};
use crate::bindings;
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi::c_int,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// The devices that are there.
#[pin_data]
pub(crate) struct Devices {
    #[pin]
    list: Mutex<KVec<Arc<Device>>>,
}

impl Devices {
    /// Makes an empty list. May sleep.
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(KVec::new(), "Devices::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the device of `raw`, which is only compared. Fails with `ENODEV` if it is not there,
    /// or is being removed. May sleep.
    pub(super) fn lookup(&self, raw: *mut bindings::ib_device) -> Result<Arc<Device>> {
        let list = self.list.lock();
        let device = list.iter().find(|device| device.as_raw() == raw);
        device.cloned().ok_or(ENODEV)
    }

    /// The first device for which `what` gives something, and that.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) fn find<T>(&self, what: impl Fn(&Device) -> Option<T>) -> Option<(Arc<Device>, T)> {
        let list = self.list.lock();
        let mut devices = list.iter();
        devices.find_map(|device| Some((device.clone(), what(device)?)))
    }

    fn remove(&self, device: &Arc<Device>) {
        let mut list = self.list.lock();
        if let Some(index) = list.iter().position(|other| Arc::ptr_eq(other, device)) {
            let _ = list.remove(index);
        }
    }
}

/// A client of the RDMA core: receives an event when a device comes or goes.
pub(crate) trait Client: Send + Sync + Sized + 'static {
    /// Returns where the [`Registration`] of this client is noted: always the same static, as the
    /// core says of a new device only that it is there.
    fn slot() -> &'static Slot<Self>;

    /// Called for each device that is there when the module registers, and for each new one.
    ///
    /// # Context
    ///
    /// May sleep. The RDMA core's locks are held: no device may be looked up.
    fn add(&self, _device: &Arc<Device>) {}

    /// Called when a device is being removed, or this module unregisters.
    ///
    /// The driver must drop all that holds a reference to the device, here or later in another
    /// task: the removal waits for the last reference, without a limit. After this returns, the
    /// connections on the device receive [`disconnected`](super::cm::CmEvents::disconnected), and
    /// the listeners [`removed`](super::cm::Listen::removed), so the driver only has to drop here
    /// what depends on none of these. No new connection can be made on the device.
    ///
    /// # Context
    ///
    /// May sleep.
    fn remove(&self, device: &Arc<Device>);
}

/// The data of the RDMA core's callbacks.
struct Inner<C> {
    raw: Opaque<bindings::ib_client>,
    devices: Arc<Devices>,
    client: C,
}

/// Where the [`Registration`] of a client is noted: to be in a static.
///
/// # Invariants
///
/// - `inner` is null, or comes from `KBox::into_raw()` of an `Inner<C>`. It is freed only after it
///   was replaced by null, when `users` has been 0 since.
pub(crate) struct Slot<C> {
    inner: Atomic<*mut c_void>,
    /// The calls of [`Self::with`] that run.
    users: Atomic<u32>,
    _client: PhantomData<fn() -> C>,
}

impl<C: Client> Slot<C> {
    /// Makes one without a registration.
    pub(crate) const fn new() -> Self {
        // INVARIANT: There is none.
        Self {
            inner: Atomic::new(core::ptr::null_mut()),
            users: Atomic::new(0),
            _client: PhantomData,
        }
    }

    /// Returns the devices of the registration, if there is one. May sleep.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) fn devices(&self) -> Option<Arc<Devices>> {
        self.with(|inner| inner.devices.clone())
    }

    /// Calls `what` for the registration, if there is one. What it does may sleep.
    fn with<R>(&self, what: impl FnOnce(&Inner<C>) -> R) -> Option<R> {
        self.users.fetch_add(1, Full);
        let inner = self.inner.load(Acquire).cast::<Inner<C>>();
        // SAFETY: By the type invariants it is null or valid, and stays so while this is a user.
        let result = unsafe { inner.as_ref() }.map(what);
        self.users.fetch_sub(1, Full);
        result
    }

    /// Takes the registration away, and waits until nobody uses it. May sleep.
    fn clear(&self) {
        self.inner.xchg(core::ptr::null_mut(), Full);
        while self.users.load(Acquire) != 0 {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
    }
}

/// The registration of a client of the RDMA core.
///
/// There is one for each client at a time. Dropping it removes all devices, and so waits for the
/// last reference to each of them.
///
/// # Invariants
///
/// - `inner` comes from `KBox::into_raw()`, and is freed by `drop()` and nothing else; its `raw` is
///   registered.
/// - `slot` has `inner`.
pub(crate) struct Registration<C: Client> {
    inner: NonNull<Inner<C>>,
    slot: &'static Slot<C>,
}

// SAFETY: `ib_client` belongs to no thread, and `C` is `Send`.
unsafe impl<C: Client> Send for Registration<C> {}

// SAFETY: Through a shared reference only `devices` is reachable, which is `Sync`.
unsafe impl<C: Client> Sync for Registration<C> {}

impl<C: Client> Registration<C> {
    /// Registers `client`. [`Client::add`] is called for each device before this returns.
    ///
    /// Fails with `EBUSY` if there is a registration already, and with the core's error.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(client: C) -> Result<Self> {
        let inner = KBox::new(
            Inner {
                raw: Opaque::new(bindings::ib_client {
                    name: MODULE_NAME.as_char_ptr(),
                    add: Some(add::<C>),
                    remove: Some(remove::<C>),
                    ..pin_init::zeroed()
                }),
                devices: Devices::new()?,
                client,
            },
            GFP_KERNEL,
        )?;
        let slot = C::slot();
        let inner = KBox::into_raw(inner);
        // INVARIANT: It comes from a box, and nobody else has it.
        let taken = slot
            .inner
            .cmpxchg(core::ptr::null_mut(), inner.cast(), Full);
        if taken.is_err() {
            // SAFETY: It was just made, and was not noted.
            drop(unsafe { KBox::from_raw(inner) });
            return Err(EBUSY);
        }
        // SAFETY: `inner` stays in place until it has been unregistered, here by the core itself
        // on failure, or in `drop()`.
        let result = to_result(unsafe { bindings::ib_register_client((*inner).raw.get()) });
        if let Err(error) = result {
            slot.clear();
            // SAFETY: It is not registered, so no callback runs, and `slot` does not have it.
            drop(unsafe { KBox::from_raw(inner) });
            return Err(error);
        }
        // INVARIANT: `inner` was registered and noted above.
        Ok(Self {
            // SAFETY: `KBox::into_raw()` gives no null pointer.
            inner: unsafe { NonNull::new_unchecked(inner) },
            slot,
        })
    }

    /// Returns the devices that are there, for those who connect.
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        // SAFETY: By the type invariants it is valid.
        unsafe { &self.inner.as_ref().devices }
    }
}

impl<C: Client> Drop for Registration<C> {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the client is registered. After the call no callback
        // runs, nor will one.
        unsafe { bindings::ib_unregister_client((*self.inner.as_ptr()).raw.get()) };
        self.slot.clear();
        // SAFETY: By the type invariants the box is ours. No callback runs, and `slot` does not
        // have it any more.
        drop(unsafe { KBox::from_raw(self.inner.as_ptr()) });
    }
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of a [`Registration<C>`].
unsafe extern "C" fn add<C: Client>(raw: *mut bindings::ib_device) -> c_int {
    let Some(raw) = NonNull::new(raw) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The core gives a registered device, which it keeps until `remove()` returns, and that
    // waits for the completion of `gone()`.
    let device = match unsafe { Device::new(raw) } {
        Ok(device) => device,
        Err(error) => return error.to_errno(),
    };
    let added = C::slot().with(|inner| {
        let mut list = inner.devices.list.lock();
        list.push(device.clone(), GFP_KERNEL)?;
        drop(list);
        inner.client.add(&device);
        // SAFETY: This is the client's own data, set while it is being added.
        unsafe {
            bindings::ib_set_client_data(
                raw.as_ptr(),
                inner.raw.get(),
                Arc::into_raw(device).cast_mut().cast(),
            )
        };
        Ok(())
    });
    match added {
        Some(Ok(())) => 0,
        Some(Err(error)) => Error::to_errno(error),
        // The static was not the same one each time.
        None => ENODEV.to_errno(),
    }
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of a [`Registration<C>`].
unsafe extern "C" fn remove<C: Client>(_raw: *mut bindings::ib_device, data: *mut c_void) {
    if data.is_null() {
        return;
    }
    // SAFETY: `add()` set the data to what `into_raw()` gave; `remove()` is called once.
    let device = unsafe { Arc::from_raw(data.cast_const().cast::<Device>()) };
    C::slot().with(|inner| {
        inner.devices.remove(&device);
        inner.client.remove(&device);
    });
    // The connection manager tells connections of the removal only after this has returned, as it
    // has registered as a client before us.
    device.tell_users();
    let gone = device.gone();
    drop(device);
    gone.wait_for_completion();
}
