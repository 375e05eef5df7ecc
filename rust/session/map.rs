// SPDX-License-Identifier: GPL-2.0

//! The client's side of a session: what becomes of the I/O of a map while its paths come and go.
//!
//! [`Machine`] owns all that is decided on the client: which path is connected when, how I/O is
//! treated, what ends the map, which timers run, and what is still being drained. The code around
//! it reports what happened, one [`Event`] after the other, performs the [`Action`]s that follow in
//! their order, and keeps no state of its own that a decision depends on.
//!
//! Words that are used in this sense only:
//!
//! - *admission*: what the server says of itself and of the export when it lets a path in.
//! - *requeued*: a request that was in flight on a path that was lost, and has come back. *Replay*
//!   sends the requeued requests again.
//! - *proven*: a path on which something was answered since it came up. A server that lets the
//!   client in and breaks the connection again and again never proves a path, so I/O does not wait
//!   for ever.

#![forbid(unsafe_code)]

mod action;
mod admission;
mod event;
mod fences;
mod lifecycle;
mod limits;
mod machine;
mod mode;
mod path;
mod rejection;
mod timers;

pub use action::{Action, End, Farewell, Fault, Mode};
pub use admission::{Admission, Extent};
pub use event::{Drained, Event, Failure, Told};
pub use limits::Limits;
pub use machine::{Config, Machine};
