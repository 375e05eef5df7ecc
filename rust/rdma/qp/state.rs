// SPDX-License-Identifier: GPL-2.0

//! The states of queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::{
    EPROTO,
    ESHUTDOWN, //
};
use crate::bindings;
use crate::rdma::qp::{
    Qp,
    QpHandler,
    Transport, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The state of a queue pair: C's `enum ib_qp_state`.
///
/// The connection manager takes a queue pair from one to the next; with
/// [`Qp::fail`] it goes to [`Self::Error`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::qp::{Qp, QpHandler, QpState};
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler>(qp: &Qp<H>) -> Result {
/// match qp.state()? {
///     QpState::ReadyToSend => pr_info!("connected\n"),
///     QpState::Error => pr_info!("failed, or being drained\n"),
///     other => pr_info!("on the way: {:?}\n", other),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    /// It was created, and does nothing.
    Reset,
    /// Receives may be posted.
    Init,
    /// It receives (ready to receive).
    ReadyToReceive,
    /// It receives and sends (ready to send).
    ReadyToSend,
    /// It finishes the sends that have begun, and begins no others.
    SqDrained,
    /// Its sends have failed; it still receives.
    SqError,
    /// All that is posted comes back with an error.
    Error,
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Asks the device for the state of the queue pair. Fails with `ESHUTDOWN` once it was
    /// destroyed, with `EPROTO` if the device gives no such state, and with the device's error.
    ///
    /// # Context
    ///
    /// Sleeps. Not in a method of the handler.
    pub(crate) fn state(&self) -> Result<QpState> {
        let _stage = self.stage.lock();
        if self.as_raw().is_null() {
            return Err(ESHUTDOWN);
        }
        let mut attr: bindings::ib_qp_attr = pin_init::zeroed();
        let mut init_attr: bindings::ib_qp_init_attr = pin_init::zeroed();
        // SAFETY: `stage` is locked and there is a C object. Both attributes are valid for a write.
        to_result(unsafe {
            bindings::ib_query_qp(
                self.as_raw(),
                &mut attr,
                bindings::ib_qp_attr_mask_IB_QP_STATE as i32,
                &mut init_attr,
            )
        })?;
        match attr.qp_state {
            bindings::ib_qp_state_IB_QPS_RESET => Ok(QpState::Reset),
            bindings::ib_qp_state_IB_QPS_INIT => Ok(QpState::Init),
            bindings::ib_qp_state_IB_QPS_RTR => Ok(QpState::ReadyToReceive),
            bindings::ib_qp_state_IB_QPS_RTS => Ok(QpState::ReadyToSend),
            bindings::ib_qp_state_IB_QPS_SQD => Ok(QpState::SqDrained),
            bindings::ib_qp_state_IB_QPS_SQE => Ok(QpState::SqError),
            bindings::ib_qp_state_IB_QPS_ERR => Ok(QpState::Error),
            _ => Err(EPROTO),
        }
    }
}
