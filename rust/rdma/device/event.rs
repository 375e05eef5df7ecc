// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events of devices and their ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::{
    device::Device,
    might_sleep, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// An event of a device: C's `enum ib_event_type`, without those of queue pairs and queues. The
/// number is that of the port.
///
/// See [`DeviceEvents`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceEvent {
    /// The port can send and receive.
    PortActive(u32),
    /// The port cannot any more.
    PortError(u32),
    /// The GIDs of the port have changed.
    GidChange(u32),
    /// The partition keys of the port have changed.
    PkeyChange(u32),
    /// The subnet manager has given the port another address.
    LidChange(u32),
    /// The port has another subnet manager.
    SmChange(u32),
    /// The subnet manager asks for all subscriptions of the port again, such as those to multicast
    /// groups.
    ClientReregister(u32),
    /// The device has failed for good: nothing completes any more.
    Fatal,
    /// Another event, as C has it.
    Other(u32),
}

impl DeviceEvent {
    /// Returns what the core reports.
    fn of(event: bindings::ib_event_type, port: u32) -> Self {
        match event {
            bindings::ib_event_type_IB_EVENT_PORT_ACTIVE => Self::PortActive(port),
            bindings::ib_event_type_IB_EVENT_PORT_ERR => Self::PortError(port),
            bindings::ib_event_type_IB_EVENT_GID_CHANGE => Self::GidChange(port),
            bindings::ib_event_type_IB_EVENT_PKEY_CHANGE => Self::PkeyChange(port),
            bindings::ib_event_type_IB_EVENT_LID_CHANGE => Self::LidChange(port),
            bindings::ib_event_type_IB_EVENT_SM_CHANGE => Self::SmChange(port),
            bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER => Self::ClientReregister(port),
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => Self::Fatal,
            other => Self::Other(other),
        }
    }
}

/// Receives the events of a device.
///
/// # Examples
///
/// ```
/// # use crate::rdma::device::event::{DeviceEvent, DeviceEvents};
/// # use kernel::prelude::*;
/// struct Log;
///
/// impl DeviceEvents for Log {
///     fn event(&self, event: DeviceEvent) {
///         match event {
///             DeviceEvent::PortActive(port) => pr_info!("port {} is up\n", port),
///             DeviceEvent::PortError(port) => pr_warn!("port {} is down\n", port),
///             DeviceEvent::Fatal => pr_err!("the device has failed\n"),
///             _ => {}
///         }
///     }
/// }
/// ```
pub(crate) trait DeviceEvents: Send + Sync + 'static {
    /// Something has happened to the device or one of its ports.
    ///
    /// # Context
    ///
    /// A workqueue of the core's. May sleep, but holds up all other users of events. Must neither
    /// make nor drop a [`Subscription`] of the device.
    fn event(&self, event: DeviceEvent);
}

/// What the core keeps of a subscription.
///
/// # Invariants
///
/// `handler` is the first field, as [`device_event`] needs it.
#[repr(C)]
struct Subscriber {
    handler: Opaque<bindings::ib_event_handler>,
    events: Arc<dyn DeviceEvents>,
}

/// A subscription to the events of a device.
///
/// # Context
///
/// Dropping it sleeps until no event is being handled.
///
/// # Examples
///
/// ```
/// # use crate::rdma::device::{
/// #     event::{DeviceEvents, Subscription},
/// #     Device,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// /// A device that is in use, with its events.
/// struct Adapter {
///     // Dropped first: then no event comes any more.
///     _events: Subscription,
///     device: Arc<Device>,
/// }
///
/// impl Adapter {
///     fn new(device: Arc<Device>, events: Arc<dyn DeviceEvents>) -> Result<Self> {
///         Ok(Self {
///             _events: Subscription::new(&device, events)?,
///             device,
///         })
///     }
/// }
/// ```
///
/// # Invariants
///
/// `subscriber` is registered with `device`; `drop()` and nothing else undoes that.
pub(crate) struct Subscription {
    subscriber: KBox<Subscriber>,
    // Dropped after the subscriber.
    _device: Arc<Device>,
}

// SAFETY: The handler belongs to no thread, and the events are `Send` and `Sync`.
unsafe impl Send for Subscription {}

// SAFETY: There is nothing to be done with a reference.
unsafe impl Sync for Subscription {}

impl Subscription {
    /// Subscribes to the events of `device`. Fails with `ENOMEM`. May sleep.
    pub(crate) fn new(device: &Arc<Device>, events: Arc<dyn DeviceEvents>) -> Result<Self> {
        let handler = bindings::ib_event_handler {
            device: device.as_raw(),
            handler: Some(device_event),
            ..pin_init::zeroed()
        };
        let subscriber = Subscriber {
            handler: Opaque::new(handler),
            events,
        };
        let subscriber = KBox::new(subscriber, GFP_KERNEL)?;
        // SAFETY: The device is registered by its invariants. The handler is one for a
        // `Subscriber`, which stays in its place until it is unregistered.
        unsafe { bindings::ib_register_event_handler(subscriber.handler.get()) };
        // INVARIANT: It was just registered.
        Ok(Self {
            subscriber,
            _device: device.clone(),
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants it is registered. This waits for the handler.
        unsafe { bindings::ib_unregister_event_handler(self.subscriber.handler.get()) };
    }
}

/// Handles an event of a device.
///
/// # Safety
///
/// Must only be called by the RDMA core, for the handler of a [`Subscriber`] that is registered.
unsafe extern "C" fn device_event(
    handler: *mut bindings::ib_event_handler,
    event: *mut bindings::ib_event,
) {
    // SAFETY: The handler is the first field of a `Subscriber`, which stays until it is
    // unregistered, and that waits for this function. The core gives a valid event.
    let (subscriber, event) = unsafe { (&*handler.cast::<Subscriber>(), &*event) };
    // SAFETY: Events of devices hold the number of a port, or nothing that is used.
    let port = unsafe { event.element.port_num };
    subscriber.events.event(DeviceEvent::of(event.event, port));
}
