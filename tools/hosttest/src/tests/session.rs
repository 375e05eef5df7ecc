// SPDX-License-Identifier: GPL-2.0

//! Sessions: each machine alone, and both against each other.

mod check;
mod half_open;
mod map;
mod model;
mod persistent;
mod quota;
mod reservation;
mod timing;

#[test]
fn the_wire_has_as_many_paths() {
    assert_eq!(
        usize::from(crate::proto::wire::PATHS_MAX),
        crate::session::PATHS_MAX
    );
}
