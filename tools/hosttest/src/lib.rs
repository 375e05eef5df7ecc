// SPDX-License-Identifier: GPL-2.0

//! The module's pure parts, compiled for the host so that they can be tested without a kernel.

#![warn(missing_docs)]

// The path of an inline module is a directory; files are then found below it as in the module's
// crate.
#[path = "../../../rust"]
#[allow(missing_docs)]
mod module {
    pub mod config {
        pub mod parse;
    }
    pub mod link {
        mod status;
    }
    pub mod proto;
    pub mod server {
        pub mod memory {
            pub mod overdue;
            pub mod receives;
        }
    }
    pub mod session;
    pub mod stats {
        pub mod latency;
    }
}

mod block;
pub use module::{config, link, proto, server, session, stats};

#[cfg(test)]
mod tests;
