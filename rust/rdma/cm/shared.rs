// SPDX-License-Identifier: GPL-2.0

//! The data that the owner of an id and the id's handler share.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use crate::base::{
    errno::{
        EADDRNOTAVAIL,
        ECONNRESET, //
    },
    sync::{
        without_io,
        Completion, //
    }, //
};
use crate::bindings;
use crate::rdma::{
    client::Devices,
    cm::{
        service::Found,
        CmError,
        CmEvents,
        PrivateData, //
    },
    device::{
        Device,
        DeviceUser, //
    },
    qp::{
        Transport,
        Ud, //
    },
};
use kernel::{
    ffi::c_int,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow,
        Mutex, //
    },
    task::Task, //
};

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is under way, or an attempt has failed.
    Idle,
    /// `resolve()` waits for the address.
    Addr,
    /// `resolve()` waits for the route.
    Route,
    /// `connect()` or `find()` waits for the peer.
    Connect,
    /// [`Group::join`](super::group::Group::join) waits for the network.
    Join,
    /// A peer's request, not confirmed yet.
    Passive,
    /// Both sides are ready, or the service was found.
    Connected,
}

/// What the handler reports to the owner, and what the owner waits for.
struct Progress {
    phase: Phase,
    /// The result that the owner waits for in `phase`.
    outcome: Option<Result<PrivateData, CmError>>,
    /// For the private data of the peer that is connected to, once.
    room: PrivateData,
    /// The device. Once it is set, the addresses are known, too, and nothing of it changes any
    /// more.
    device: Option<Arc<Device>>,
    removed: bool,
    /// What was found of a service that the owner looks for.
    found: Option<Found>,
    /// The network has ended the membership in a multicast group.
    left: bool,
    /// The route is known, and the core does not write it any more.
    routed: bool,
    /// `disconnected()` was called.
    lost: bool,
}

/// The data of an id's handler; C's `context`.
#[pin_data]
pub(super) struct Shared {
    #[pin]
    progress: Mutex<Progress>,
    #[pin]
    changed: Completion,
    /// Where the device is looked up.
    devices: Arc<Devices>,
    events: Arc<dyn CmEvents>,
    /// The address of the task that is in the handler, or 0.
    task: Atomic<usize>,
    /// The number of the peer's queue pair, once it is known; 0 with iWARP.
    peer_qp: Atomic<u32>,
    /// Not 0 if that task has dropped the id: then the handler returns the value that makes the
    /// core destroy the id, and drops the reference that the owner had.
    abandoned: Atomic<u32>,
}

impl Shared {
    /// Makes the object for an id in `phase` that may already have a `device`.
    pub(super) fn new(
        devices: &Arc<Devices>,
        events: Arc<dyn CmEvents>,
        phase: Phase,
        device: Option<Arc<Device>>,
    ) -> Result<Arc<Self>> {
        let room = match phase {
            Phase::Idle => PrivateData::with_room()?,
            _ => PrivateData::default(),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                progress <- new_mutex!(Progress {
                    phase,
                    outcome: None,
                    room,
                    device,
                    removed: false,
                    found: None,
                    left: false,
                    routed: phase == Phase::Passive,
                    lost: false,
                }),
                changed <- Completion::new(),
                devices: devices.clone(),
                events,
                task: Atomic::new(0),
                peer_qp: Atomic::new(0),
                abandoned: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the devices that the id may be one of.
    pub(super) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Returns the number of the peer's queue pair, once it is known; 0 before, and with iWARP.
    pub(super) fn peer_qp(&self) -> u32 {
        self.peer_qp.load(Relaxed)
    }

    /// Notes the number of the peer's queue pair, as an event has it.
    ///
    /// # Safety
    ///
    /// `event` must be a valid event of the core's that carries connection parameters.
    pub(super) unsafe fn note_peer_qp(&self, event: *const bindings::rdma_cm_event) {
        // SAFETY: The caller promises that the union holds `conn`.
        let number = unsafe { (*event).param.conn.qp_num };
        self.peer_qp.store(number, Relaxed);
    }

    /// Returns true if the current task runs the handler.
    pub(super) fn in_handler(&self) -> bool {
        // Only the task that stored it can find itself, so no order is needed.
        self.task.load(Relaxed) == Task::current_raw().addr()
    }

    /// Notes that the current task runs the handler.
    pub(super) fn enter_handler(&self) {
        self.task.store(Task::current_raw().addr(), Relaxed);
    }

    /// Makes the handler, which the current task runs, destroy the id when it returns.
    pub(super) fn abandon(&self) {
        self.abandoned.store(1, Relaxed);
    }

    /// Returns true if the network has ended the membership in a multicast group.
    pub(super) fn has_left(&self) -> bool {
        self.progress.lock().left
    }

    /// Notes that the network has ended the membership in a multicast group.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(super) fn leave(&self) {
        self.progress.lock().left = true;
    }

    /// Returns true if the route is known, and does not change any more.
    pub(super) fn is_routed(&self) -> bool {
        self.progress.lock().routed
    }

    /// Takes out what was found of a service.
    pub(super) fn take_found(&self) -> Option<Found> {
        self.progress.lock().found.take()
    }

    /// Returns the device. Fails with `ENODEV` if it is not known yet, or is being removed.
    pub(super) fn device(&self) -> Result<Arc<Device>> {
        let progress = self.progress.lock();
        match &progress.device {
            Some(device) if !progress.removed => Ok(device.clone()),
            _ => Err(ENODEV),
        }
    }

    /// Takes the device out, so that the caller can end its use.
    pub(super) fn take_device(&self) -> Option<Arc<Device>> {
        self.progress.lock().device.take()
    }

    /// Prepares to wait for the end of `phase`. Fails with [`CmError::DeviceRemoved`], and with
    /// `EBUSY` if another call waits.
    pub(super) fn start(&self, phase: Phase) -> Result<(), CmError> {
        let mut progress = self.progress.lock();
        if progress.removed {
            return Err(CmError::DeviceRemoved);
        }
        if progress.phase != Phase::Idle {
            return Err(CmError::Errno(EBUSY));
        }
        progress.phase = phase;
        progress.outcome = None;
        self.changed.reinit();
        Ok(())
    }

    /// Ends the phase that [`Self::start`] began, for which there is no event.
    pub(super) fn end(&self) {
        self.progress.lock().phase = Phase::Idle;
    }

    /// Waits for the end of the phase after [`Self::start`]; `started` is what the core's function
    /// returned.
    pub(super) fn finish(&self, started: Result, timeout_ms: u32) -> Result<PrivateData, CmError> {
        let finished = self.finish_or_retry(started, timeout_ms, |_| false)?;
        Ok(finished.unwrap_or_default())
    }

    /// As [`Self::finish`], but returns `None`, and the phase goes on for another try, if
    /// `is_retried` returns true for the error, and the device is still there.
    pub(super) fn finish_or_retry(
        &self,
        started: Result,
        timeout_ms: u32,
        is_retried: impl FnOnce(&CmError) -> bool,
    ) -> Result<Option<PrivateData>, CmError> {
        if started.is_ok() {
            // A timeout shows in that there is no outcome.
            let _ = self.changed.wait_timeout(timeout_ms);
        }
        let mut progress = self.progress.lock();
        let outcome = progress.outcome.take();
        let result = match (started, outcome) {
            (Err(error), _) => Err(CmError::Errno(error)),
            (Ok(()), Some(outcome)) => outcome,
            (Ok(()), None) => Err(CmError::Timeout),
        };
        match &result {
            Err(error) if !progress.removed && is_retried(error) => {
                self.changed.reinit();
                return Ok(None);
            }
            _ => {}
        }
        if progress.phase != Phase::Connected {
            progress.phase = Phase::Idle;
        }
        result.map(Some)
    }

    /// Notes the device that the address was resolved to, or that the id was bound to.
    ///
    /// # Safety
    ///
    /// `id` must be a valid id that has a device.
    pub(super) unsafe fn bind(this: ArcBorrow<'_, Self>, id: *mut bindings::rdma_cm_id) -> Result {
        // SAFETY: The caller gives a valid id.
        let device = this.devices.lookup(unsafe { (*id).device })?;
        device.add_user(Arc::<Self>::from(this))?;
        let mut progress = this.progress.lock();
        if progress.device.is_none() {
            progress.device = Some(device);
            return Ok(());
        }
        drop(progress);
        // The id was bound before its address was resolved.
        device.remove_user(&Arc::<Self>::from(this));
        Ok(())
    }

    /// Handles an event of a connection.
    ///
    /// # Safety
    ///
    /// `id` and `event` must be what the core called the handler with.
    unsafe fn handle(
        this: ArcBorrow<'_, Self>,
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) {
        // SAFETY: The caller got both from the core.
        let (kind, status) = unsafe { ((*event).event, (*event).status) };
        // SAFETY: As above.
        let for_datagrams = unsafe { (*id).qp_type } == Ud::QP_TYPE;
        let bound = match kind {
            // SAFETY: The caller got it from the core.
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => unsafe {
                Self::bind(this, id)
            },
            _ => Ok(()),
        };
        let mut established = false;
        let mut lost = false;
        {
            let mut progress = this.progress.lock();
            let phase = progress.phase;
            let outcome = match (kind, phase) {
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED, Phase::Addr) => {
                    let resolved = bound.map(|()| PrivateData::default());
                    Some(resolved.map_err(CmError::Errno))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR, Phase::Addr) => {
                    Some(Err(CmError::AddrError(status)))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED, Phase::Route) => {
                    progress.routed = true;
                    Some(Ok(PrivateData::default()))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR, Phase::Route) => {
                    Some(Err(CmError::RouteError(status)))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED, Phase::Connect) => {
                    progress.phase = Phase::Connected;
                    if for_datagrams {
                        let device = progress.device.clone();
                        // SAFETY: The event is one of datagrams, of an id with this device.
                        progress.found = device.map(|device| unsafe { Found::new(event, device) });
                    } else {
                        // SAFETY: The event carries connection parameters.
                        unsafe { this.note_peer_qp(event) };
                    }
                    // SAFETY: The event carries one or the other.
                    let data = unsafe { private_data(event) };
                    Some(Ok(core::mem::take(&mut progress.room).fill(data)))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE, Phase::Connect)
                    if for_datagrams && status > 0 =>
                {
                    // SAFETY: The event is one of datagrams.
                    let data = unsafe { private_data(event) };
                    let room = core::mem::take(&mut progress.room);
                    Some(Err(CmError::refused(status, room.fill(data))))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED, Phase::Passive) => {
                    progress.phase = Phase::Connected;
                    established = true;
                    None
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_MULTICAST_JOIN, Phase::Join) => {
                    progress.phase = Phase::Connected;
                    let device = progress.device.clone();
                    // SAFETY: The event is one of datagrams, of an id with this device.
                    progress.found = device.map(|device| unsafe { Found::new(event, device) });
                    Some(Ok(PrivateData::default()))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_MULTICAST_ERROR, Phase::Join) => {
                    Some(Err(CmError::Unreachable(status)))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_MULTICAST_ERROR, Phase::Connected) => {
                    // The owner is not called: he might drop the id, and after this event the core
                    // does not destroy an id whose handler asks for it.
                    progress.left = true;
                    None
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE, Phase::Connected) => {
                    // The peer has another link layer address. The owner is not called, for the
                    // same reason: he finds out himself that nothing gets there any more.
                    None
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL, _) => {
                    // An id that is bound to a device is none of its users before its address was
                    // resolved. For others this is done already.
                    progress.removed = true;
                    lost = true;
                    Some(Err(CmError::DeviceRemoved))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE, Phase::Join) => {
                    Some(Err(CmError::Errno(EADDRNOTAVAIL)))
                }
                // The core does not like the Q_Key of the answer.
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR, Phase::Connect)
                    if for_datagrams =>
                {
                    Some(Err(CmError::Unreachable(status)))
                }
                (bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED, Phase::Connect) => {
                    // SAFETY: `id` and `event` are what the core gave.
                    Some(Err(unsafe {
                        CmError::rejected(id, event, core::mem::take(&mut progress.room))
                    }))
                }
                (
                    bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR,
                    Phase::Connect,
                ) => Some(Err(CmError::Unreachable(status))),
                (
                    bindings::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT,
                    Phase::Connect,
                ) => Some(Err(CmError::Errno(ECONNRESET))),
                (
                    bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT
                    | bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE,
                    Phase::Passive | Phase::Connected,
                ) => {
                    lost = true;
                    None
                }
                _ => None,
            };
            if let Some(outcome) = outcome {
                progress.outcome.get_or_insert(outcome);
                this.changed.complete_all();
            }
        }
        if established {
            this.events.established();
        }
        if lost {
            this.lose();
        }
    }

    /// Reports, once, that the connection is lost.
    fn lose(&self) {
        let told = core::mem::replace(&mut self.progress.lock().lost, true);
        if !told {
            self.events.disconnected();
        }
    }
}

impl DeviceUser for Shared {
    fn device_removed(&self) {
        {
            let mut progress = self.progress.lock();
            progress.removed = true;
            progress.outcome.get_or_insert(Err(CmError::DeviceRemoved));
        }
        self.changed.complete_all();
        self.lose();
    }
}

/// The private data of an event.
///
/// # Safety
///
/// `event` must be a valid event of the core's that carries connection parameters, or those of
/// datagrams. The data is valid as long as the handler runs.
pub(super) unsafe fn private_data<'a>(event: *const bindings::rdma_cm_event) -> &'a [u8] {
    const {
        use bindings::{rdma_conn_param, rdma_ud_param};
        use core::mem::offset_of;
        let data = offset_of!(rdma_ud_param, private_data);
        let len = offset_of!(rdma_ud_param, private_data_len);
        assert!(offset_of!(rdma_conn_param, private_data) == data);
        assert!(offset_of!(rdma_conn_param, private_data_len) == len);
    }
    // SAFETY: The caller promises that the union holds `conn`, or `ud`, which has the same fields
    // in the same places, as was just checked. Its other fields are plain numbers.
    let conn = unsafe { &(*event).param.conn };
    if conn.private_data.is_null() {
        return &[];
    }
    // SAFETY: The core gives a pointer and a length that belong together, and does not change the
    // data while the handler runs.
    unsafe {
        core::slice::from_raw_parts(conn.private_data.cast(), usize::from(conn.private_data_len))
    }
}

/// The handler of connections.
///
/// # Safety
///
/// Must only be called by the RDMA core, for an id whose `context` is a [`Shared`].
pub(super) unsafe extern "C" fn handler(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: The context of an id with this handler is a `Shared` whose owner keeps a reference
    // until the id has been destroyed, which waits for the handler, or leaves it to
    // `leave_handler()`.
    let this = unsafe { ArcBorrow::from_raw((*id).context.cast::<Shared>().cast_const()) };
    this.enter_handler();
    // Memory that is freed by I/O may wait for the connections that wait for this handler.
    // SAFETY: This is what the core called with.
    without_io(|| unsafe { Shared::handle(this, id, event) });
    // SAFETY: This is the handler that `task` was set for.
    unsafe { leave_handler(this) }
}

/// Ends what [`Shared::enter_handler`] began; returns what the handler returns.
///
/// # Safety
///
/// Must be called at the end of the handler of `this`'s id, which must not use `this` again.
pub(super) unsafe fn leave_handler(this: ArcBorrow<'_, Shared>) -> c_int {
    this.task.store(0, Relaxed);
    // Only the current task could have set it.
    if this.abandoned.load(Relaxed) == 0 {
        return 0;
    }
    let this = Arc::as_ptr(&Arc::from(this));
    // SAFETY: The owner has left its reference to us, and neither it nor the core uses it again:
    // no handler is called any more after one has returned other than 0.
    drop(unsafe { Arc::from_raw(this) });
    1
}
