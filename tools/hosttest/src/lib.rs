// SPDX-License-Identifier: GPL-2.0

//! The module's pure parts, compiled for the host so that they can be tested without a kernel.

#![warn(missing_docs)]

// The path of an inline module is a directory; files are then found below it as in the module's crate.
#[path = "../../../rust"]
mod module {
    pub mod buddy;
    pub mod parse;
    pub mod proto;
    pub mod receives;
    pub mod session;
    mod status;
    pub mod tag;
}

mod block;
pub use module::{buddy, parse, proto, receives, session, tag};

#[cfg(test)]
mod tests;
