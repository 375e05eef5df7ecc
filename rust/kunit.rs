// SPDX-License-Identifier: GPL-2.0

//! Helpers of the KUnit suites.
//!
//! The suites are built if the kernel has `CONFIG_KUNIT=y` and `CONFIG_FARBLK_KUNIT_TEST=y` is set.
//! They run when the module is loaded.
//!
//! The `assert!` of KUnit ends the thread of a test without dropping its values. The RDMA objects
//! would then stay, and the module could not be unloaded. So tests return a `Result` and use
//! [`check!`].

#![allow(unsafe_code)]

use crate::bindings;
use kernel::{
    ffi::c_char,
    prelude::*, //
};

/// Fails the test, by returning from it, if the condition is false.
macro_rules! check {
    ($condition:expr $(,)?) => {
        if !$condition {
            return Err($crate::kunit::failed(
                ::kernel::c_str!(::core::file!()),
                ::core::line!(),
                ::kernel::c_str!(::core::stringify!($condition)),
            ));
        }
    };
}
pub(crate) use check;

/// Reports a condition that is false. Returns the value that the test must return.
pub(crate) fn failed(file: &CStr, line: u32, condition: &CStr) -> Error {
    // SAFETY: The function has no requirements.
    let test = unsafe { bindings::kunit_get_current_test() };
    if test.is_null() {
        pr_err!("{}:{}: not true: {}\n", file, line, condition);
        return EINVAL;
    }
    let location = bindings::kunit_loc {
        // CAST: No file has so many lines.
        line: line as i32,
        file: file.as_char_ptr(),
    };
    let assert = bindings::kunit_unary_assert {
        assert: bindings::kunit_assert {},
        condition: condition.as_char_ptr(),
        expected_true: true,
    };
    // SAFETY: The test is the one that runs in this thread. The rest is valid for the call and
    // belongs together; there may be no message.
    unsafe {
        bindings::__kunit_do_failed_assertion(
            test,
            &location,
            bindings::kunit_assert_type_KUNIT_EXPECTATION,
            &assert.assert,
            Some(bindings::kunit_unary_assert_format),
            core::ptr::null(),
        )
    };
    EINVAL
}

/// Marks the running test as skipped. The test must then return `Ok`.
pub(crate) fn skip(why: &CStr) {
    // SAFETY: The function has no requirements.
    let test = unsafe { bindings::kunit_get_current_test() };
    // SAFETY: If not null, it is the test that runs in this thread, which alone writes these.
    if let Some(test) = unsafe { test.as_mut() } {
        test.status = bindings::kunit_status_KUNIT_SKIPPED;
        // The last byte stays NUL.
        let (_, comment) = test
            .status_comment
            .split_last_mut()
            .unwrap_or((&mut 0, &mut []));
        for (to, from) in comment.iter_mut().zip(why.to_bytes_with_nul()) {
            *to = *from;
        }
    }
}

/// Runs a line of shell in user space, as root. Gives `EIO` if it exits with another code than 0.
///
/// # Context
///
/// Sleeps until the process has ended.
pub(crate) fn shell(line: &CStr) -> Result {
    let raw = |text: &CStr| text.as_char_ptr().cast_mut();
    let mut argv: [*mut c_char; 4] = [
        raw(c"/bin/sh"),
        raw(c"-c"),
        raw(line),
        core::ptr::null_mut(),
    ];
    let mut envp: [*mut c_char; 2] = [
        raw(c"PATH=/usr/sbin:/usr/bin:/sbin:/bin"),
        core::ptr::null_mut(),
    ];
    // SAFETY: The strings are only read, and the arrays end with null. All are valid until the
    // function returns, after the process has ended.
    let ret = unsafe {
        bindings::call_usermodehelper(
            c"/bin/sh".as_char_ptr(),
            argv.as_mut_ptr(),
            envp.as_mut_ptr(),
            bindings::UMH_WAIT_PROC as i32,
        )
    };
    match ret {
        0 => Ok(()),
        _ => Err(EIO),
    }
}
