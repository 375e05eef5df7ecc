// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events of queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::qp::{
    Qp,
    QpHandler,
    Transport, //
};
use core::ffi::c_void;
use kernel::sync::atomic::Relaxed;

/// Handles an asynchronous event of a queue pair.
///
/// # Safety
///
/// Must only be called by the RDMA core, with the address of a [`Qp<H, T>`] as context.
pub(super) unsafe extern "C" fn event<H: QpHandler<T>, T: Transport>(
    event: *mut bindings::ib_event,
    context: *mut c_void,
) {
    // SAFETY: The context is a `Qp` that is in place until the queue pair is destroyed, after which
    // there are no events.
    let (event, qp) = unsafe { ((*event).event, &*context.cast::<Qp<H, T>>()) };
    match event {
        // The id may have another queue pair by now, which this is not about: the device has
        // refused to destroy this one.
        bindings::ib_event_type_IB_EVENT_COMM_EST if qp.detached.load(Relaxed) != 0 => {}
        // The peer's first message has overtaken its confirmation of the connection.
        bindings::ib_event_type_IB_EVENT_COMM_EST => {
            // SAFETY: The id is valid, as the queue pair holds a reference.
            unsafe { bindings::rdma_notify(qp.id.as_raw(), event) };
        }
        bindings::ib_event_type_IB_EVENT_QP_FATAL
        | bindings::ib_event_type_IB_EVENT_QP_REQ_ERR
        | bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR => qp.note_error(),
        bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED => qp.last_wqe.complete_all(),
        _ => {}
    }
}
