// SPDX-License-Identifier: GPL-2.0

//! Tracepoints.
//!
//! Each function takes a closure, which makes the fields of the event if somebody has enabled the
//! tracepoint. Else it costs no more than a no-op instruction.
//!
//! Any context but NMI. The events are in `include/trace/events/farblk.h`.

use kernel::ffi::c_char;

use super::tracepoint::declare_trace;

declare_trace! {
    in crate::bindings;

    /// # Safety
    ///
    /// Always safe to call.
    unsafe fn farblk_submit(dev: u32, queue: u16, tag: u16, op: u8, sector: u64, bytes: u32);

    /// # Safety
    ///
    /// Always safe to call.
    unsafe fn farblk_post(dev: u32, queue: u16, tag: u16, path: u8);

    /// # Safety
    ///
    /// Always safe to call.
    unsafe fn farblk_answer(dev: u32, queue: u16, tag: u16, op: u8, status: u8);

    /// # Safety
    ///
    /// `map` must be valid for reads of `len` bytes.
    unsafe fn farblk_mode(map: *const c_char, len: u32, mode: u8);

    /// # Safety
    ///
    /// `map` must be valid for reads of `len` bytes.
    unsafe fn farblk_fence(map: *const c_char, len: u32, via: u8, path: u8, epoch: u64, error: i32);
}

/// A request of a disk: the device number of the disk, as the kernel has it, the hardware queue,
/// and the tag.
///
/// # Examples
///
/// ```
/// # use crate::base::trace::{self, RequestId};
/// # fn example(dev: u32, hw_queue: u16, tag: u16, sector: u64) {
/// // Nothing of this is calculated unless the tracepoint is enabled.
/// trace::submit(|| (RequestId { dev, hw_queue, tag }, 0, sector, 4096));
/// # }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct RequestId {
    /// The device number.
    pub(crate) dev: u32,
    /// The hardware queue.
    pub(crate) hw_queue: u16,
    /// The tag.
    pub(crate) tag: u16,
}

/// Traces that a request was given to the driver: which one, the operation, the sector, and the
/// number of bytes.
#[inline(always)]
pub(crate) fn submit(fields: impl FnOnce() -> (RequestId, u8, u64, u32)) {
    if farblk_submit_enabled() {
        let (RequestId { dev, hw_queue, tag }, op, sector, bytes) = fields();
        // SAFETY: Always safe to call.
        unsafe { farblk_submit(dev, hw_queue, tag, op, sector, bytes) };
    }
}

/// Traces that a request is about to be posted: which one, and on which path.
#[inline(always)]
pub(crate) fn post(fields: impl FnOnce() -> (RequestId, u8)) {
    if farblk_post_enabled() {
        let (RequestId { dev, hw_queue, tag }, path) = fields();
        // SAFETY: Always safe to call.
        unsafe { farblk_post(dev, hw_queue, tag, path) };
    }
}

/// Traces that a connection has given a request back: which one, the operation, and the status.
#[inline(always)]
pub(crate) fn answer(fields: impl FnOnce() -> (RequestId, u8, u8)) {
    if farblk_answer_enabled() {
        let (RequestId { dev, hw_queue, tag }, op, status) = fields();
        // SAFETY: Always safe to call.
        unsafe { farblk_answer(dev, hw_queue, tag, op, status) };
    }
}

/// Traces that the I/O of a map is treated in another way: the name of the map, and the number of
/// the mode.
#[inline(always)]
pub(crate) fn mode<'a>(fields: impl FnOnce() -> (&'a str, u8)) {
    if farblk_mode_enabled() {
        let (map, mode) = fields();
        let (name, len) = text(map);
        // SAFETY: `name` is valid for reads of `len` bytes, which are copied.
        unsafe { farblk_mode(name, len, mode) };
    }
}

/// Traces that a map has asked for a fence: the name of the map, the path on which it asked, the
/// path to be fenced, the epoch, and the error if it could not ask.
#[inline(always)]
pub(crate) fn fence<'a>(fields: impl FnOnce() -> (&'a str, u8, u8, u64, i32)) {
    if farblk_fence_enabled() {
        let (map, via, path, epoch, error) = fields();
        let (name, len) = text(map);
        // SAFETY: `name` is valid for reads of `len` bytes, which are copied.
        unsafe { farblk_fence(name, len, via, path, epoch, error) };
    }
}

/// Returns a string as C takes it, without a NUL behind it.
fn text(text: &str) -> (*const c_char, u32) {
    // CAST: A name is short.
    (text.as_ptr().cast(), text.len() as u32)
}
