// SPDX-License-Identifier: GPL-2.0

//! The outcome of work requests.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

pub(crate) mod datagram;

use crate::base::errno::EPROTO;
use crate::bindings::{
    self,
    ib_wc_opcode,
    ib_wc_status, //
};
use core::marker::PhantomData;
use kernel::{
    fmt,
    prelude::*,
    str::CStr, //
};

/// The reason why a work request did not succeed. There is no variant for success.
///
/// # Examples
///
/// ```
/// # use crate::rdma::wc::{WcError, WcStatus};
/// # use kernel::prelude::*;
/// # fn example(result: Result<(), WcError>) -> Result {
/// match result {
///     // There is no other way to learn of a success.
///     Ok(()) => Ok(()),
///     Err(error @ WcError::Failed { status, .. }) if status == WcStatus::REM_ACCESS_ERR => {
///         pr_warn!("the peer does not let us: {}\n", error);
///         Err(EACCES)
///     }
///     Err(error) => Err(error.to_error()),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WcError {
    /// The device reports an error; the queue pair is in its error state.
    Failed {
        /// The error.
        status: WcStatus,
        /// The vendor's own code for it.
        vendor_err: u32,
    },
    /// The device reports success of another operation than the one that was posted.
    ///
    /// For a receive this means that the peer violates the protocol: it has used up the receive by
    /// an RDMA WRITE with immediate data, which is no message, and which the handler does not take
    /// ([`QpHandler::write_received`](super::qp::QpHandler::write_received)). The queue pair was
    /// closed.
    Unexpected {
        /// The operation that has completed: an `enum ib_wc_opcode`.
        opcode: u32,
    },
    /// The device reports success, but an RDMA READ has not written all data, or an atomic
    /// operation not its result.
    ///
    /// The queue pair does not access the request's memory any more.
    Unfinished,
    /// The request never got to the device, or its completion never came back.
    ///
    /// The queue pair does not access the request's memory any more. It is unknown whether the peer
    /// has received the request.
    NotCompleted(Error),
}

/// A message that was received. The peer can also use up a receive by an RDMA WRITE with immediate
/// data: that is no `Received`, but a [`Written`], or else [`WcError::Unexpected`].
///
/// It can be used only while the handler of its completion runs. It is also the proof that a key
/// was invalidated, and good for one answer: a key comes again after 256 registrations of a region.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaBuffer, wc::{Received, WcError}};
/// # use kernel::prelude::*;
/// # fn example(buffer: &DmaBuffer, result: Result<Received<'_>, WcError>) -> Result {
/// let message = result.map_err(|error| error.to_error())?;
/// // A peer may send anything: a message of another length is none of ours.
/// let mut number = [0; 4];
/// if message.len() as usize != number.len() {
///     return Err(EINVAL);
/// }
/// buffer.copy_out(0, &mut number)?;
/// pr_info!("{} came in\n", u32::from_be_bytes(number));
/// # Ok(())
/// # }
/// ```
pub(crate) struct Received<'a> {
    len: u32,
    immediate: Option<u32>,
    invalidated: Option<u32>,
    qp: *const bindings::ib_qp,
    _completion: PhantomData<&'a bindings::ib_wc>,
}

impl<'a> Received<'a> {
    /// Returns the message that `wc` reports, or its error.
    #[inline]
    pub(super) fn new(wc: &'a bindings::ib_wc) -> Result<Self, WcError> {
        let len = WcError::check(wc, bindings::ib_wc_opcode_IB_WC_RECV)?;
        let with_inv = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as i32;
        // SAFETY: Both variants are plain numbers.
        let rkey = unsafe { wc.ex.invalidate_rkey };
        let with_imm = bindings::ib_wc_flags_IB_WC_WITH_IMM as i32;
        // SAFETY: Both variants are plain numbers.
        let immediate = u32::from_be(unsafe { wc.ex.imm_data });
        Ok(Self {
            len,
            immediate: (wc.wc_flags & with_imm != 0).then_some(immediate),
            invalidated: (wc.wc_flags & with_inv != 0).then_some(rkey),
            qp: wc.qp,
            _completion: PhantomData,
        })
    }

    /// Returns the length of the message, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the immediate data of the message, if it has some.
    #[inline]
    pub(crate) fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Returns the remote key of this side that the message has invalidated, if the peer sent it
    /// with one.
    #[inline]
    pub(crate) fn invalidated(&self) -> Option<u32> {
        self.invalidated
    }

    /// Returns true if the message came in on `qp`: the device of another queue pair may have the
    /// same key.
    #[inline]
    pub(super) fn is_of(&self, qp: *const bindings::ib_qp) -> bool {
        core::ptr::eq(self.qp, qp)
    }
}

/// An RDMA WRITE of the peer with immediate data, which has used up a receive. The data are where
/// the peer wrote them; there is no message, and the receive's buffers are as they were.
///
/// It can be used only while the handler of its completion runs.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::SgMapping, wc::Written};
/// # use kernel::prelude::*;
/// # fn example(memory: &SgMapping, written: Written<'_>) -> Result {
/// // The peer has written a block of memory that it may write to, and says which one.
/// let block = written.immediate() as usize;
/// let mut bytes = [0; 64];
/// memory.read(block.checked_mul(bytes.len()).ok_or(EINVAL)?, &mut bytes)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Written<'a> {
    len: u32,
    immediate: u32,
    _completion: PhantomData<&'a bindings::ib_wc>,
}

impl<'a> Written<'a> {
    /// Returns the RDMA WRITE that `wc`, the completion of a receive, reports, if it is one that
    /// has succeeded.
    pub(super) fn new(wc: &'a bindings::ib_wc) -> Option<Self> {
        let opcode = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM;
        let len = WcError::check(wc, opcode).ok()?;
        Some(Self {
            len,
            // SAFETY: Both variants are plain numbers.
            immediate: u32::from_be(unsafe { wc.ex.imm_data }),
            _completion: PhantomData,
        })
    }

    /// Returns how many bytes the peer has written, according to the device. Where they are only
    /// the peer knows.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the immediate data.
    pub(crate) fn immediate(&self) -> u32 {
        self.immediate
    }
}

/// A status of a completion other than success.
///
/// See [`WcError`] for an example.
///
/// # Invariants
///
/// The value is not `IB_WC_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WcStatus(ib_wc_status);

impl WcStatus {
    /// The peer did not let the request access its memory.
    pub(crate) const REM_ACCESS_ERR: Self = Self(bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR);
    /// The peer does not answer.
    pub(crate) const RETRY_EXC_ERR: Self = Self(bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR);

    /// The status as text.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: The function takes any value and returns a static string.
        let name = unsafe { CStr::from_char_ptr(bindings::ib_wc_status_msg(self.0)) };
        name.to_str().unwrap_or("?")
    }
}

impl WcError {
    /// Checks the completion `wc` of a work request that completes as `opcode`: returns the number
    /// of bytes that were received, or the error.
    #[inline]
    pub(super) fn check(wc: &bindings::ib_wc, opcode: ib_wc_opcode) -> Result<u32, WcError> {
        if wc.status == bindings::ib_wc_status_IB_WC_SUCCESS {
            return match wc.opcode == opcode {
                true => Ok(wc.byte_len),
                false => Err(Self::Unexpected { opcode: wc.opcode }),
            };
        }
        Err(Self::Failed {
            // INVARIANT: The status is not success.
            status: WcStatus(wc.status),
            vendor_err: wc.vendor_err,
        })
    }

    /// Returns the error as an error code.
    pub(crate) fn to_error(self) -> Error {
        match self {
            Self::Failed { status, .. } if status == WcStatus::RETRY_EXC_ERR => ETIMEDOUT,
            Self::Failed { status, .. } if status == WcStatus::REM_ACCESS_ERR => EACCES,
            Self::Failed { .. } | Self::Unfinished => EIO,
            Self::Unexpected { .. } => EPROTO,
            Self::NotCompleted(error) => error,
        }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { status, vendor_err } => {
                write!(f, "{} (vendor error {:#x})", status.name(), vendor_err)
            }
            Self::Unexpected { opcode } => write!(f, "completed as operation {opcode}"),
            Self::Unfinished => f.write_str("data of an RDMA READ are missing"),
            Self::NotCompleted(error) => write!(f, "not completed ({})", error.to_errno()),
        }
    }
}
