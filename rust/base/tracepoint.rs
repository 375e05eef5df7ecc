// SPDX-License-Identifier: GPL-2.0

//! Declarations of tracepoints.

// UPSTREAM: upstream/tree/base/tracepoint.rs takes the place of this file, with patches 0042 and
// 0043 of upstream/rust.

/// Declares functions for tracepoints that are in C.
///
/// For each it makes an unsafe function of that name, which traces if the tracepoint is enabled and
/// has the safety requirements of the C code, and `<name>_enabled`. A tracepoint that is not costs
/// a no-op instruction, which the kernel replaces by a jump when somebody enables it. The C
/// declarations are in the bindings that are named first.
macro_rules! declare_trace {
    (in $($bindings:ident)::+; $($traces:tt)*) => {
        $crate::base::tracepoint::declare_trace! { @in [$($bindings)::+] $($traces)* }
    };
    (
        @in $bindings:tt
        $($(#[$attr:meta])* $pub:vis unsafe fn $name:ident($($arg:tt)*);)*
    ) => {$(
        $crate::base::tracepoint::declare_trace! {
            @one $bindings $(#[$attr])* $pub unsafe fn $name($($arg)*);
        }
    )*};
    (
        @one [$($bindings:tt)+]
        $(#[$attr:meta])* $pub:vis unsafe fn $name:ident($($argname:ident : $argtyp:ty),* $(,)?);
    ) => {
        $(#[$attr])*
        #[inline(always)]
        $pub unsafe fn $name($($argname: $argtyp),*) {
            #[cfg(CONFIG_TRACEPOINTS)]
            kernel::macros::paste! {
                if [< $name _enabled >]() {
                    // SAFETY: The caller promises what C requires.
                    unsafe { $($bindings)+::[< rust_do_trace_ $name >]($($argname),*) };
                }
            }
            #[cfg(not(CONFIG_TRACEPOINTS))]
            $(let _ = $argname;)*
        }

        kernel::macros::paste! {
            #[doc = concat!("Returns true if the tracepoint `", stringify!($name), "` is enabled.")]
            #[inline(always)]
            $pub fn [< $name _enabled >]() -> bool {
                $crate::base::tracepoint::is_on!($($bindings)+::[< __tracepoint_ $name >])
            }
        }
    };
}
pub(crate) use declare_trace;

/// Returns true if the tracepoint is on.
#[cfg(all(CONFIG_TRACEPOINTS, farblk_static_branch))]
macro_rules! is_on {
    ($tracepoint:path) => {
        // SAFETY: C has defined the tracepoint, with its key.
        unsafe {
            kernel::jump_label::static_branch_unlikely!(
                $tracepoint,
                crate::bindings::tracepoint,
                key
            )
        }
    };
}

/// Returns true if the tracepoint is on. The architecture has no instructions that are replaced, or
/// the kernel was not prepared for them in Rust.
#[cfg(all(CONFIG_TRACEPOINTS, not(farblk_static_branch)))]
macro_rules! is_on {
    ($tracepoint:path) => {
        // SAFETY: C has defined the tracepoint. It may change the number meanwhile, thus the
        // volatile read.
        unsafe { (&raw const $tracepoint.key.key.enabled.counter).read_volatile() != 0 }
    };
}

/// Returns false: the kernel has no tracepoints.
#[cfg(not(CONFIG_TRACEPOINTS))]
macro_rules! is_on {
    ($tracepoint:path) => {
        false
    };
}
pub(crate) use is_on;
