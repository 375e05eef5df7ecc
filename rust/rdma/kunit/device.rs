// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the events of devices.

use super::*;
use crate::rdma::device::event::{
    DeviceEvent,
    DeviceEvents,
    Subscription, //
};

/// Notes the events of a device that tests make up.
#[pin_data]
struct Log {
    #[pin]
    events: Inbox<DeviceEvent>,
}

impl DeviceEvents for Log {
    fn event(&self, event: DeviceEvent) {
        // Others come when they like: the addresses of the host may change.
        if matches!(
            event,
            DeviceEvent::ClientReregister(_) | DeviceEvent::Other(_)
        ) {
            self.events.put(event);
        }
    }
}

/// Has the core tell of an event of port 1 that changes nothing.
fn tell(device: &Device, event: bindings::ib_event_type) {
    let event = bindings::ib_event {
        device: device.as_raw(),
        element: bindings::ib_event__bindgen_ty_1 { port_num: 1 },
        event,
    };
    // SAFETY: The device is registered by its invariants; the event is valid for the call.
    unsafe { bindings::ib_dispatch_event(&event) };
}

#[kernel::macros::kunit_tests(farblk_rdma_device)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_the_client_s() -> Result {
        with_device(|device, _| {
            let pd = Pd::alloc(device)?;
            let called = AnyCq::alloc(device, 4, 0, PollContext::Workqueue)?;
            let polled = AnyCq::alloc(device, 4, 0, PollContext::Direct)?;
            // SAFETY: All of them are valid, and their names are static.
            let names = unsafe {
                [
                    (*pd.as_raw()).res.kern_name,
                    (*called.as_raw()).res.kern_name,
                    (*polled.as_raw()).res.kern_name,
                ]
                .map(|name| CStr::from_char_ptr(name))
            };
            check!(names == [TestsModule::NAME; 3]);
            Ok(())
        })
    }

    #[test]
    fn events_are_told_until_the_subscription_ends() -> Result {
        with_device(|device, _| {
            let reregister = bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER;
            let log = || -> Result<Arc<Log>> {
                let events = Inbox::new()?;
                Arc::pin_init(pin_init!(Log { events <- events }), GFP_KERNEL)
            };
            let (first, second) = (log()?, log()?);
            let one = Subscription::new(device, first.clone())?;
            let two = Subscription::new(device, second.clone())?;
            tell(device, reregister);
            check!(first.events.take()? == DeviceEvent::ClientReregister(1));
            check!(second.events.take()? == DeviceEvent::ClientReregister(1));
            drop(one);
            tell(device, bindings::ib_event_type_IB_EVENT_WQ_FATAL);
            let other = DeviceEvent::Other(bindings::ib_event_type_IB_EVENT_WQ_FATAL);
            check!(second.events.take()? == other);
            drop(two);
            tell(device, reregister);
            a_while();
            check!(first.events.len() == 0 && second.events.len() == 0);
            check!(last(first) && last(second));
            Ok(())
        })
    }
}
