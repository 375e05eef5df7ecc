// SPDX-License-Identifier: GPL-2.0

//! Sessions: the states of a map, and both machines against each other.

mod check;
mod map;
mod model;
mod state;
mod timing;
