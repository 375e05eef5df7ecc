// SPDX-License-Identifier: GPL-2.0

//! Tracepoints.
//!
//! A tracepoint that is off costs a no-op instruction, which the kernel replaces by a jump when
//! somebody turns it on. So each function takes a closure, which makes the fields of the event only
//! then. `declare_trace!` of the kernel crate knows only the tracepoints of the kernel itself.
//!
//! Any context but NMI. The events are in `include/trace/events/farblk.h`.

// UPSTREAM: `declare_trace!` needs tracepoints that are a module's. Then this file keeps the
// events.

#[cfg(CONFIG_TRACEPOINTS)]
use crate::bindings;

/// Returns true if the tracepoint is on.
#[cfg(all(CONFIG_TRACEPOINTS, farblk_static_branch))]
macro_rules! is_on {
    ($tracepoint:ident) => {
        // SAFETY: C has defined the tracepoint, with its key.
        unsafe {
            kernel::jump_label::static_branch_unlikely!(
                bindings::$tracepoint,
                bindings::tracepoint,
                key
            )
        }
    };
}

/// Returns true if the tracepoint is on. The architecture has no instructions that are replaced, or
/// the kernel was not prepared for them in Rust.
#[cfg(all(CONFIG_TRACEPOINTS, not(farblk_static_branch)))]
macro_rules! is_on {
    ($tracepoint:ident) => {
        // SAFETY: C has defined the tracepoint. It may change the number meanwhile, thus the
        // volatile read.
        unsafe { (&raw const bindings::$tracepoint.key.key.enabled.counter).read_volatile() != 0 }
    };
}

/// A request of a disk: the device number of the disk, as the kernel has it, the hardware queue,
/// and the tag.
#[derive(Clone, Copy)]
#[cfg_attr(not(CONFIG_TRACEPOINTS), expect(dead_code))]
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
    #[cfg(CONFIG_TRACEPOINTS)]
    if is_on!(__tracepoint_farblk_submit) {
        let (RequestId { dev, hw_queue, tag }, op, sector, bytes) = fields();
        // SAFETY: It takes any numbers.
        unsafe { bindings::rust_do_trace_farblk_submit(dev, hw_queue, tag, op, sector, bytes) };
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = fields;
}

/// Traces that a request is about to be posted: which one, and on which path.
#[inline(always)]
pub(crate) fn post(fields: impl FnOnce() -> (RequestId, u8)) {
    #[cfg(CONFIG_TRACEPOINTS)]
    if is_on!(__tracepoint_farblk_post) {
        let (RequestId { dev, hw_queue, tag }, path) = fields();
        // SAFETY: It takes any numbers.
        unsafe { bindings::rust_do_trace_farblk_post(dev, hw_queue, tag, path) };
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = fields;
}

/// Traces that a connection has given a request back: which one, the operation, and the status.
#[inline(always)]
pub(crate) fn answer(fields: impl FnOnce() -> (RequestId, u8, u8)) {
    #[cfg(CONFIG_TRACEPOINTS)]
    if is_on!(__tracepoint_farblk_answer) {
        let (RequestId { dev, hw_queue, tag }, op, status) = fields();
        // SAFETY: It takes any numbers.
        unsafe { bindings::rust_do_trace_farblk_answer(dev, hw_queue, tag, op, status) };
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = fields;
}

/// Traces that the I/O of a map is treated in another way: the name of the map, and the number of
/// the mode.
#[inline(always)]
pub(crate) fn mode<'a>(fields: impl FnOnce() -> (&'a str, u8)) {
    #[cfg(CONFIG_TRACEPOINTS)]
    if is_on!(__tracepoint_farblk_mode) {
        let (map, mode) = fields();
        let (name, len) = text(map);
        // SAFETY: `name` is valid for reads of `len` bytes, which are copied.
        unsafe { bindings::rust_do_trace_farblk_mode(name, len, mode) };
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = fields;
}

/// Traces that a map has asked for a fence: the name of the map, the path on which it asked, the
/// path to be fenced, the epoch, and the error if it could not ask.
#[inline(always)]
pub(crate) fn fence<'a>(fields: impl FnOnce() -> (&'a str, u8, u8, u64, i32)) {
    #[cfg(CONFIG_TRACEPOINTS)]
    if is_on!(__tracepoint_farblk_fence) {
        let (map, via, path, epoch, error) = fields();
        let (name, len) = text(map);
        // SAFETY: `name` is valid for reads of `len` bytes, which are copied.
        unsafe { bindings::rust_do_trace_farblk_fence(name, len, via, path, epoch, error) };
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    let _ = fields;
}

/// Returns a string as C takes it, without a NUL behind it.
#[cfg(CONFIG_TRACEPOINTS)]
fn text(text: &str) -> (*const kernel::ffi::c_char, u32) {
    // CAST: A name is short.
    (text.as_ptr().cast(), text.len() as u32)
}
