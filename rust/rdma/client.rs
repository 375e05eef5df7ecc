// SPDX-License-Identifier: GPL-2.0

//! Registration with the RDMA core: the devices that are there, and that come and go.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Device,
    might_sleep, //
};
use crate::base::{
    errno::EOPNOTSUPP,
    module::{
        self,
        ModuleRef, //
    },
    sync::without_io,
    workqueue::ReleaseHandle, //
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
            Full,
            Release, //
        },
        Arc,
        Mutex, //
    },
    types::Opaque,
    ModuleMetadata, //
};

/// How long a device that is being removed is waited for before what it has refused to destroy is
/// tried to be destroyed once more.
const RETRY_MS: u32 = 500;

/// The module of a client: it owns what is created on the client's devices.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    name: &'static CStr,
    try_get: fn() -> Option<ModuleRef>,
}

impl Owner {
    fn of<M: ModuleMetadata>() -> Self {
        Self {
            name: M::NAME,
            try_get: module::try_get::<M>,
        }
    }

    /// Returns its name: what C passes as `KBUILD_MODNAME`.
    pub(super) fn name(&self) -> &'static CStr {
        self.name
    }

    /// Takes a reference to it, unless it is being unloaded. Any context.
    pub(super) fn try_get(&self) -> Option<ModuleRef> {
        (self.try_get)()
    }
}

/// The devices that are there.
///
/// See [`Registration`] for an example.
#[pin_data]
pub(crate) struct Devices {
    owner: Owner,
    release: ReleaseHandle,
    #[pin]
    list: Mutex<KVec<Arc<Device>>>,
}

impl Devices {
    /// Makes an empty list, for a client of `owner` that was registered with `release`. May sleep.
    fn new(owner: Owner, release: &ReleaseHandle) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                owner,
                release: release.clone(),
                list <- new_mutex!(KVec::new(), "Devices::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the module of the client.
    pub(super) fn owner(&self) -> Owner {
        self.owner
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

/// Has a static for its [`Registration`], which the macro [`rdma_client`] makes: the core says of a
/// new device only that it is there, not which client is to hear of it.
///
/// See [`Client`] for an example.
///
/// # Safety
///
/// [`Self::slot`] must return the same static each time.
pub(crate) unsafe trait Registered: Sized + 'static {
    /// Returns the static.
    fn slot() -> &'static Slot<Self>;
}

/// Makes the static that the registration of a client is noted in.
macro_rules! rdma_client {
    ($client:ty) => {
        #[allow(unsafe_code)]
        const _: () = {
            static SLOT: $crate::rdma::client::Slot<$client> = $crate::rdma::client::Slot::new();

            // SAFETY: There is this one static.
            unsafe impl $crate::rdma::client::Registered for $client {
                fn slot() -> &'static $crate::rdma::client::Slot<Self> {
                    &SLOT
                }
            }
        };
    };
}
pub(crate) use rdma_client;

/// A client of the RDMA core: receives an event when a device comes or goes.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     client::{rdma_client, Client},
/// #     device::Device,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// struct Driver;
///
/// rdma_client!(Driver);
///
/// impl Client for Driver {
///     type OwnerModule = crate::LocalModule;
///
///     fn add(&self, device: &Arc<Device>) {
///         pr_info!("{} has come\n", device.name());
///     }
///
///     fn remove(&self, device: &Arc<Device>) {
///         // Connections on it end by events of their own.
///         pr_info!("{} goes\n", device.name());
///     }
/// }
/// ```
pub(crate) trait Client: Registered + Send + Sync {
    /// The module of the client: `crate::LocalModule`. The core shows its name as that of the
    /// client, and as that of the owner of all that is created on the client's devices.
    type OwnerModule: ModuleMetadata;

    /// Returns true if the client wants to use the device. If not, it is not among [`Devices`]: no
    /// connection is made or accepted on it.
    ///
    /// # Context
    ///
    /// That of [`Self::add`].
    fn accepts(&self, _device: &Device) -> bool {
        true
    }

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
    /// the listeners at its addresses [`removed`](super::cm::Listen::removed), so the driver only
    /// has to drop here what depends on none of these. A listener at all addresses is not told. No
    /// new connection can be made on the device.
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

/// Where the [`Registration`] of a client is noted.
///
/// # Invariants
///
/// - `inner` is null, or comes from `KBox::into_raw()` of the `Inner<C>` of a client that is
///   registered, or is being registered or unregistered, and is valid until it was replaced by
///   null.
pub(crate) struct Slot<C> {
    inner: Atomic<*mut c_void>,
    _client: PhantomData<fn() -> C>,
}

impl<C> Slot<C> {
    /// Makes one without a registration.
    pub(crate) const fn new() -> Self {
        // INVARIANT: There is none.
        Self {
            inner: Atomic::new(core::ptr::null_mut()),
            _client: PhantomData,
        }
    }

    /// Returns the devices of the registration, if there is one. May sleep.
    ///
    /// # Safety
    ///
    /// The registration must not go meanwhile.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) unsafe fn devices(&self) -> Option<Arc<Devices>> {
        let inner = self.inner.load(Acquire).cast::<Inner<C>>();
        // SAFETY: By the type invariants it is null or valid, and the caller promises that it stays
        // so.
        let inner = unsafe { inner.as_ref() };
        inner.map(|inner| inner.devices.clone())
    }
}

/// What the core keeps for a device and a client.
///
/// # Invariants
///
/// `inner` is that of the client, and valid until it is unregistered.
struct Added<C> {
    device: Arc<Device>,
    inner: NonNull<Inner<C>>,
}

/// The registration of a client of the RDMA core.
///
/// There is one for each client at a time. Dropping it removes all devices, and so waits for the
/// last reference to each of them.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::{net::Net, workqueue::ReleaseQueue},
/// #     rdma::{
/// #         client::{Client, Registration},
/// #         cm::{CmEvents, CmId},
/// #     },
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<C: Client>(client: C, events: Arc<dyn CmEvents>) -> Result {
/// // Both are fields of the module. The first one drops after all that uses devices, and the
/// // second one after that.
/// let release = ReleaseQueue::new(c"driver_release")?;
/// let registration = Registration::new(client, release.handle())?;
/// // Connections are made on the devices that are there then.
/// let id: Arc<CmId> = CmId::new(registration.devices(), &Net::current(), events)?;
/// # Ok(())
/// # }
/// ```
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
    /// Registers `client`. [`Client::add`] is called for each device before this returns. The queue
    /// of `release` drops what belongs to a device and may not be dropped where it is.
    ///
    /// Fails with `EBUSY` if there is a registration already, and with the core's error.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(client: C, release: &ReleaseHandle) -> Result<Self> {
        let owner = Owner::of::<C::OwnerModule>();
        let inner = KBox::new(
            Inner {
                raw: Opaque::new(bindings::ib_client {
                    name: owner.name().as_char_ptr(),
                    add: Some(add::<C>),
                    remove: Some(remove::<C>),
                    ..pin_init::zeroed()
                }),
                devices: Devices::new(owner, release)?,
                client,
            },
            GFP_KERNEL,
        )?;
        let slot = C::slot();
        let inner = KBox::into_raw(inner);
        // INVARIANT: It comes from a box, and is being registered.
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
            slot.inner.store(core::ptr::null_mut(), Release);
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
        self.slot.inner.store(core::ptr::null_mut(), Release);
        // SAFETY: By the type invariants the box is ours. No callback runs, and `slot` does not
        // have it any more.
        drop(unsafe { KBox::from_raw(self.inner.as_ptr()) });
    }
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of a [`Registration<C>`].
unsafe extern "C" fn add<C: Client>(raw: *mut bindings::ib_device) -> c_int {
    let (Some(raw), Some(inner)) = (
        NonNull::new(raw),
        NonNull::new(C::slot().inner.load(Acquire).cast::<Inner<C>>()),
    ) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The core calls this between the registration of the client, before which it was
    // noted in the one static that `C` has, and the end of its unregistration, until which it is
    // valid. It gives a registered device, which it keeps until `remove()` returns.
    match unsafe { added(raw, inner) } {
        Ok(()) => 0,
        Err(EOPNOTSUPP) => EOPNOTSUPP.to_errno(),
        Err(error) => {
            pr_err!("a device cannot be used: {}\n", error.to_errno());
            error.to_errno()
        }
    }
}

/// Tells a client of a device. Fails with `EOPNOTSUPP` if it does not want that.
///
/// # Safety
///
/// `inner` must be that of a client that is registered, and be called for `raw` by the core.
unsafe fn added<C: Client>(raw: NonNull<bindings::ib_device>, inner: NonNull<Inner<C>>) -> Result {
    let data = KBox::new_uninit(GFP_KERNEL)?;
    // SAFETY: The caller promises that it is valid.
    let client = unsafe { inner.as_ref() };
    // SAFETY: The caller promises that the device is registered. It is until `remove()` returns,
    // and that waits for the completion of `gone()`.
    let device = unsafe { Device::new(raw, client.devices.owner(), &client.devices.release) }?;
    if !client.client.accepts(&device) {
        return Err(EOPNOTSUPP);
    }
    // Who looks up a device may be in the way of I/O.
    without_io(|| client.devices.list.lock().push(device.clone(), GFP_KERNEL))?;
    client.client.add(&device);
    // INVARIANT: It is that of the client that is told of the device.
    let data = KBox::write(data, Added { device, inner });
    // SAFETY: This is the client's own data, set while it is being added.
    unsafe {
        bindings::ib_set_client_data(
            raw.as_ptr(),
            client.raw.get(),
            KBox::into_raw(data).cast::<c_void>(),
        )
    };
    Ok(())
}

/// # Safety
///
/// Must only be called by the RDMA core, for the client of a [`Registration<C>`].
unsafe extern "C" fn remove<C: Client>(_raw: *mut bindings::ib_device, data: *mut c_void) {
    // SAFETY: `added()` has set the data to what `into_raw()` gave, or else the core does not call
    // this; it does so once.
    let data = unsafe { KBox::from_raw(data.cast::<Added<C>>()) };
    let Added { device, inner } = KBox::into_inner(data);
    // SAFETY: By the type invariants it is valid: the client is registered until this returns.
    let inner = unsafe { inner.as_ref() };
    inner.devices.remove(&device);
    inner.client.remove(&device);
    // The connection manager tells connections of the removal only after this has returned, as it
    // has registered as a client before us.
    device.tell_users();
    let (gone, remnants) = (device.gone(), device.remnants().clone());
    drop(device);
    loop {
        // Each of them has a reference to the device.
        remnants.retry();
        if gone.wait_timeout(RETRY_MS).is_ok() {
            break;
        }
    }
}
