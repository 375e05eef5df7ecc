// SPDX-License-Identifier: GPL-2.0

//! Module parameters of types that `module!` does not take: addresses and short texts.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

#![allow(unsafe_code)]

use crate::bindings;
use core::net::SocketAddr;
use kernel::{
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*,
    sync::SetOnce, //
};

/// The type of a parameter. It is `Copy`, so that nothing has to be dropped when the module goes.
pub(crate) trait Value: Copy + Send + Sync + 'static {
    /// Returns the value that `text` stands for, if it stands for one.
    fn parse(text: &str) -> Option<Self>;
}

/// An IPv4 or IPv6 address with a port: `10.0.0.1:4711`, `[fd00::1]:4711`.
impl Value for SocketAddr {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A text of less than 128 bytes, such as the path of a file.
///
/// # Invariants
///
/// The first `len` bytes of `bytes` are UTF-8 without a NUL, and the rest are zeroes.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    bytes: [u8; 128],
    len: usize,
}

impl Text {
    /// Returns the text as a C string.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // By the type invariants there is a NUL.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl Value for Text {
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 128];
        if text.len() >= bytes.len() {
            return None;
        }
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        // INVARIANT: The text comes from a C string, and is shorter than `bytes`.
        Some(Self {
            bytes,
            len: text.len(),
        })
    }
}

/// A parameter, which the macro [`param`] declares.
pub(crate) struct Param<T>(SetOnce<T>);

impl<T: Value> Param<T> {
    /// Makes a parameter that was not given.
    pub(crate) const fn new() -> Self {
        Self(SetOnce::new())
    }

    /// Returns the value, or `None` if the parameter was not given.
    pub(crate) fn get(&self) -> Option<T> {
        self.0.copy()
    }

    /// C's functions for the parameter. It has none to show it, so it is not in sysfs.
    pub(crate) const OPS: &'static bindings::kernel_param_ops = &bindings::kernel_param_ops {
        flags: 0,
        set: Some(Self::set),
        get: None,
        free: None,
    };

    /// # Safety
    ///
    /// Called by C only, when the module is being loaded. `param` is one of the macro [`param`] for
    /// this type, `text` null or a C string.
    unsafe extern "C" fn set(text: *const c_char, param: *const bindings::kernel_param) -> c_int {
        if text.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: By the safety requirements.
        let text = unsafe { CStr::from_char_ptr(text) };
        // SAFETY: As above; the macro sets `arg` to a static of this type.
        let this = unsafe { &*(*param).__bindgen_anon_1.arg.cast::<Self>() };
        match text.to_str().ok().and_then(T::parse) {
            Some(value) if this.0.populate(value) => 0,
            // It was given twice.
            Some(_) => EEXIST.to_errno(),
            None => EINVAL.to_errno(),
        }
    }
}

/// Declares a parameter of the module: `param!(PEER: SocketAddr, "peer", "Where to connect to");`
/// makes a static `PEER`, a [`Param`], that `insmod MODULE peer=10.0.0.1:4711` sets.
///
/// The module is not loaded if the value is none of the type.
macro_rules! param {
    ($static:ident: $type:ty, $name:literal, $description:literal) => {
        #[doc = $description]
        pub(crate) static $static: $crate::base::param::Param<$type> =
            $crate::base::param::Param::new();

        #[allow(unsafe_code)]
        const _: () = {
            use ::kernel::module_param::KernelParam;
            use $crate::bindings;

            #[link_section = "__param"]
            #[used]
            static PARAM: KernelParam = KernelParam::new(bindings::kernel_param {
                name: concat!($name, "\0").as_ptr().cast(),
                mod_: &raw mut bindings::__this_module,
                ops: $crate::base::param::Param::<$type>::OPS,
                perm: 0,
                level: -1,
                flags: 0,
                __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
                    arg: (&raw const $static).cast_mut().cast(),
                },
            });

            // What modinfo shows.
            const TEXT: &str = concat!("parm=", $name, ":", $description, "\0");
            #[link_section = ".modinfo"]
            #[used]
            static INFO: [u8; TEXT.len()] = {
                let mut info = [0; TEXT.len()];
                let mut at = 0;
                while at < info.len() {
                    info[at] = TEXT.as_bytes()[at];
                    at += 1;
                }
                info
            };
        };
    };
}
pub(crate) use param;
