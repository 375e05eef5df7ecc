// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Device,
    might_sleep,
    remnant::{
        DeviceObject,
        Remnants, //
    }, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        UniqueArc, //
    }, //
};

/// Room to park a value with a protection domain; see [`Pd::park`].
///
/// It is allocated before it can be needed: parking must not fail, and I/O may have to end before
/// memory is free.
pub(super) struct Parking<T: ?Sized> {
    next: Option<KBox<Parking<dyn Send>>>,
    /// The value.
    pub(super) value: T,
}

impl<T> Parking<T> {
    /// Makes room for `value`. May sleep.
    pub(super) fn new(value: T) -> Result<KBox<Self>> {
        Ok(KBox::new(Self { next: None, value }, GFP_KERNEL)?)
    }
}

/// A protection domain: a key gives access only through a queue pair of the same domain.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cm::CmId, pd::Pd};
/// # use kernel::prelude::*;
/// # fn example(first: &CmId, second: &CmId) -> Result {
/// // A domain for each client: so neither can use a key of the other.
/// let ours = Pd::alloc(&first.device()?)?;
/// let theirs = Pd::alloc(&second.device()?)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is a protection domain of `device` that is freed by `drop()` and by nothing else.
/// - Every queue pair of the domain belongs to an object that holds a reference to `self`.
/// - `kept` is not 0 if a C object of the domain could not be destroyed.
/// - `name` is what the core shows of the domain, and of the memory regions in it.
#[pin_data(PinnedDrop)]
pub(crate) struct Pd {
    raw: NonNull<bindings::ib_pd>,
    name: Option<CString>,
    kept: Atomic<u32>,
    #[pin]
    parked: Mutex<Option<KBox<Parking<dyn Send>>>>,
    device: Arc<Device>,
}

// SAFETY: `ib_pd` belongs to no thread.
unsafe impl Send for Pd {}

// SAFETY: What changes is atomic or locked.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain, without a global remote key. Fails with `ENOMEM`, and with
    /// the device's error.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping the last reference.
    pub(crate) fn alloc(device: &Arc<Device>) -> Result<Arc<Self>> {
        let place = UniqueArc::<Self>::new_uninit(GFP_KERNEL)?;
        // A copy: the core keeps the pointer, and a domain that is lost outlives the module.
        let name = CString::try_from(device.owner().name())?;
        // SAFETY: The device is registered by its invariants. The name stays as long as the domain.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_alloc_pd(device.as_raw(), 0, name.as_char_ptr())
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // INVARIANT: The domain was just allocated on `device`, and there is nothing in it. Nothing
        // can fail from here on.
        let Ok(this) = place.pin_init_with(pin_init!(Self {
            raw,
            name: Some(name),
            kept: Atomic::new(0),
            parked <- new_mutex!(None, "Pd::parked"),
            device: device.clone(),
        }));
        Ok(this.into())
    }

    /// The C object, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// Returns the local key of all memory that is mapped for the device.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariants the domain is valid; the key does not change.
        unsafe { (*self.as_raw()).local_dma_lkey }
    }

    /// Notes that a C object of the domain could not be destroyed: then the domain cannot be freed
    /// either.
    #[cold]
    pub(super) fn keep(&self) {
        self.kept.store(1, Relaxed);
    }

    /// Keeps a value that owns memory to which a peer may have access, until the last reference to
    /// the domain is dropped: then there is no queue pair left by which the peer could use that
    /// access. The value should hold no reference to the domain, or neither is ever dropped.
    ///
    /// # Context
    ///
    /// May sleep. Does not allocate. The value is dropped where the last reference is.
    #[cold]
    pub(super) fn park<T: Send + 'static>(&self, mut parking: KBox<Parking<T>>) {
        let mut parked = self.parked.lock();
        parking.next = parked.take();
        *parked = Some(parking);
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

#[pinned_drop]
impl PinnedDrop for Pd {
    fn drop(self: Pin<&mut Self>) {
        might_sleep();
        // One by one: as a list they would be dropped by as many nested calls.
        let mut parked = self.parked.lock().take();
        while let Some(mut parking) = parked {
            parked = parking.next.take();
        }
        if self.kept.load(Relaxed) != 0 {
            pr_warn!("a protection domain is lost with a memory region that is stuck\n");
            return core::mem::forget(self.project().name.take());
        }
        // SAFETY: By the type invariants the domain is ours. What was created in it holds a
        // reference to `self`, so that it is gone. Kernel users give no `udata`.
        let ret = unsafe { bindings::ib_dealloc_pd_user(self.as_raw(), core::ptr::null_mut()) };
        if let Err(error) = to_result(ret) {
            let this = self.project();
            let name = this.name.take();
            // Nothing of ours is in it, so it may be lost if there is no memory.
            match UniqueArc::new_uninit(GFP_NOWAIT) {
                Ok(place) => {
                    let left = place.write(LeftPd {
                        raw: *this.raw,
                        _name: name,
                        device: this.device.clone(),
                    });
                    this.device.remnants().keep(Arc::from(left), error);
                }
                Err(_) => {
                    pr_err!("a protection domain is lost: {}\n", error.to_errno());
                    core::mem::forget(name);
                }
            }
        }
    }
}

/// A protection domain that the device has refused to free.
///
/// # Invariants
///
/// `raw` is a protection domain of `device` in which there is nothing, and which
/// [`release`](DeviceObject::release) frees and nothing else, once. `_name` is what the core shows.
struct LeftPd {
    raw: NonNull<bindings::ib_pd>,
    _name: Option<CString>,
    device: Arc<Device>,
}

// SAFETY: `ib_pd` belongs to no thread.
unsafe impl Send for LeftPd {}

// SAFETY: It does not change.
unsafe impl Sync for LeftPd {}

// SAFETY: The device does not know the object.
unsafe impl DeviceObject for LeftPd {
    fn kind(&self) -> &'static str {
        "protection domain"
    }

    fn remnants(&self) -> &Arc<Remnants> {
        self.device.remnants()
    }

    unsafe fn release(&self) -> Result {
        // SAFETY: By the type invariants the domain is ours; the caller does not call this again
        // once that has freed it. Kernel users give no `udata`.
        to_result(unsafe { bindings::ib_dealloc_pd_user(self.raw.as_ptr(), core::ptr::null_mut()) })
    }
}
