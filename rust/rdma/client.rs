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
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};

kernel::sync::global_lock! {
    // SAFETY: Initialised by `Registration::new`, and used only when `STATE` is `READY` or later.
    unsafe(uninit) static DEVICES: Mutex<KVec<Arc<Device>>> = KVec::new();
}

/// True if `DEVICES` is initialised, and whether a [`Registration`] exists.
static STATE: Atomic<u32> = Atomic::new(UNINIT);

const UNINIT: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;
const UNREGISTERED: u32 = 3;

/// Returns the device of `raw`, which is only compared. Fails with `ENODEV` if it is not there, or
/// is being removed. May sleep.
pub(super) fn lookup(raw: *mut bindings::ib_device) -> Result<Arc<Device>> {
    if STATE.load(Acquire) != READY {
        return Err(ENODEV);
    }
    let devices = DEVICES.lock();
    let device = devices.iter().find(|device| device.as_raw() == raw);
    device.cloned().ok_or(ENODEV)
}

/// The first device for which `what` gives something, and that.
#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
pub(super) fn find<T>(what: impl Fn(&Device) -> Option<T>) -> Option<(Arc<Device>, T)> {
    if STATE.load(Acquire) != READY {
        return None;
    }
    let devices = DEVICES.lock();
    let mut devices = devices.iter();
    devices.find_map(|device| Some((device.clone(), what(device)?)))
}

/// Receives an event when a device comes or goes.
pub(crate) trait Client: Send + Sync + 'static {
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
    client: C,
}

/// The [`Inner`] of the one [`Registration`], for `add()`, which is given no context.
static INNER: Atomic<*mut c_void> = Atomic::new(core::ptr::null_mut());

/// The module's registration as a client of the RDMA core.
///
/// There is one at a time: connections find their [`Device`] through it. Dropping it removes all
/// devices, and so waits for the last reference to each of them.
///
/// # Invariants
///
/// - `inner` comes from `KBox::into_raw()` and is owned by `self`; its `raw` is registered.
/// - `INNER` equals `inner`, and `STATE` is `READY`.
pub(crate) struct Registration<C: Client> {
    inner: NonNull<Inner<C>>,
}

// SAFETY: `ib_client` belongs to no thread, and `C` is `Send`.
unsafe impl<C: Client> Send for Registration<C> {}

// SAFETY: Through a shared reference only `client` is reachable, and `C` is `Sync`.
unsafe impl<C: Client> Sync for Registration<C> {}

impl<C: Client> Registration<C> {
    /// Registers the module. [`Client::add`] is called for each device before this returns.
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
                client,
            },
            GFP_KERNEL,
        )?;
        match STATE.cmpxchg(UNINIT, BUSY, Acquire) {
            // SAFETY: `STATE` was `UNINIT`, which it never becomes again, so this is the first
            // call. `lookup()` waits for `READY`.
            Ok(_) => unsafe { DEVICES.init() },
            Err(_) => {
                STATE
                    .cmpxchg(UNREGISTERED, BUSY, Acquire)
                    .map_err(|_| EBUSY)?;
            }
        }
        let inner = KBox::into_raw(inner);
        INNER.store(inner.cast(), Release);
        STATE.store(READY, Release);
        // SAFETY: `inner` stays in place until it has been unregistered, here by the core itself
        // on failure, or in `drop()`.
        let result = to_result(unsafe { bindings::ib_register_client((*inner).raw.get()) });
        // SAFETY: `KBox::into_raw()` gives no null pointer.
        let inner = unsafe { NonNull::new_unchecked(inner) };
        // INVARIANT: `inner` is owned, `INNER` and `STATE` were set above.
        let this = Self { inner };
        if let Err(error) = result {
            this.release();
            core::mem::forget(this);
            return Err(error);
        }
        Ok(this)
    }

    /// Frees what `new()` set up, the registration itself excepted.
    fn release(&self) {
        // Devices went one by one; this frees the memory of the list.
        *DEVICES.lock() = KVec::new();
        STATE.store(UNREGISTERED, Release);
        // SAFETY: By the type invariants the box is ours. It is not registered any more, so
        // no callback runs, and the caller does not use `self` again.
        drop(unsafe { KBox::from_raw(self.inner.as_ptr()) });
    }
}

impl<C: Client> Drop for Registration<C> {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the client is registered. After the call no callback
        // runs, nor will one.
        unsafe { bindings::ib_unregister_client((*self.inner.as_ptr()).raw.get()) };
        self.release();
    }
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of the one [`Registration<C>`].
unsafe extern "C" fn add<C: Client>(raw: *mut bindings::ib_device) -> c_int {
    let inner = INNER.load(Acquire).cast::<Inner<C>>();
    // SAFETY: The core calls this between registration and the end of unregistration, when `INNER`
    // is the registration's, which is of this `C`.
    let inner = unsafe { &*inner };
    let Some(raw) = NonNull::new(raw) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The core gives a registered device, which it keeps until `remove()` returns, and that
    // waits for the completion of `gone()`.
    let device = match unsafe { Device::new(raw) } {
        Ok(device) => device,
        Err(error) => return error.to_errno(),
    };
    if let Err(error) = DEVICES.lock().push(device.clone(), GFP_KERNEL) {
        return Error::from(error).to_errno();
    }
    inner.client.add(&device);
    // SAFETY: This is the client's own data, set while it is being added.
    unsafe {
        bindings::ib_set_client_data(
            raw.as_ptr(),
            inner.raw.get(),
            Arc::into_raw(device).cast_mut().cast(),
        )
    };
    0
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of the one [`Registration<C>`].
unsafe extern "C" fn remove<C: Client>(_raw: *mut bindings::ib_device, data: *mut c_void) {
    // SAFETY: As in `add()`.
    let inner = unsafe { &*INNER.load(Acquire).cast::<Inner<C>>() };
    // SAFETY: `add()` set the data to what `into_raw()` gave; `remove()` is called once.
    let device = unsafe { Arc::from_raw(data.cast_const().cast::<Device>()) };
    {
        let mut devices = DEVICES.lock();
        if let Some(index) = devices.iter().position(|d| Arc::ptr_eq(d, &device)) {
            let _ = devices.remove(index);
        }
    }
    inner.client.remove(&device);
    // The connection manager tells connections of the removal only after this has returned, as it
    // has registered as a client before us.
    device.tell_users();
    let gone = device.gone();
    drop(device);
    gone.wait_for_completion();
}
