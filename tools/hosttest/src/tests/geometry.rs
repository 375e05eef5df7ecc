// SPDX-License-Identifier: GPL-2.0

//! Slabs.

use super::geometry;
use crate::proto::wire::SLABS_MAX;
use crate::proto::{Geometry, Place, SlabShift};
use proptest::prelude::*;

fn new(size: u64, shift: u8) -> Option<Geometry> {
    Geometry::new(size, SlabShift::try_from(shift).unwrap()).ok()
}

#[test]
fn limits() {
    assert_eq!(new(0, 16), None);
    assert_eq!(new(u64::MAX, 31), None);
    let most = u64::from(SLABS_MAX) << 16;
    assert_eq!(new(most, 16).unwrap().slabs(), SLABS_MAX);
    assert_eq!(new(most + 1, 16), None);
    assert_eq!(new(most + 1, 17).unwrap().slabs(), SLABS_MAX / 2 + 1);
    // A file offset reaches beyond the largest export.
    let largest = u64::from(SLABS_MAX) << 31;
    assert_eq!(new(largest, 31).unwrap().slabs(), SLABS_MAX);
    assert!(i64::try_from(largest).is_ok());
    assert_eq!(new(largest + 1, 31), None);
}

#[test]
fn slabs() {
    for (size, slabs, last) in [
        (1, 1, 1),
        (0xffff, 1, 0xffff),
        (0x1_0000, 1, 0x1_0000),
        (0x1_0001, 2, 1),
        (0x2_0000, 2, 0x1_0000),
        (0x2_1000, 3, 0x1000),
    ] {
        let geometry = geometry(size, 16);
        assert_eq!(geometry.size(), size);
        assert_eq!(geometry.shift().get(), 16);
        assert_eq!(geometry.slabs(), slabs);
        assert_eq!(geometry.slab_len(slabs - 1), Some(last));
        assert_eq!(geometry.slab_len(slabs), None);
        assert_eq!(geometry.slab_len(u32::MAX), None);
        assert_eq!(geometry.slab_of(size - 1), Some(slabs - 1));
        assert_eq!(geometry.slab_of(size), None);
        assert_eq!(geometry.slab_of(u64::MAX), None);
    }
}

#[test]
fn locate() {
    let geometry = geometry(0x2_1000, 16);
    let place = |slab, offset| Some(Place { slab, offset });
    assert_eq!(geometry.locate(0, 1), place(0, 0));
    assert_eq!(geometry.locate(0, 0x1_0000), place(0, 0));
    assert_eq!(geometry.locate(0x1_fe00, 0x200), place(1, 0xfe00));
    assert_eq!(geometry.locate(0x2_0000, 0x1000), place(2, 0));
    assert_eq!(geometry.locate(0x2_0fff, 1), place(2, 0xfff));
    for (offset, len) in [
        (0, 0),
        (0, 0x1_0001),
        (0, u32::MAX),
        (0xffff, 2),
        (0xffff, u32::MAX),
        (0x1_fe00, 0x201),
        (0x2_0000, 0x1001),
        (0x2_0fff, 2),
        (0x2_1000, 0),
        (0x2_1000, 1),
        (u64::MAX, 1),
        (u64::MAX, u32::MAX),
    ] {
        assert_eq!(geometry.locate(offset, len), None, "{offset}, {len}");
    }
}

proptest! {
    #[test]
    fn slabs_add_up(size in 1u64..0x200_0000, shift in 16u8..=24) {
        let geometry = geometry(size, shift);
        let sum: u64 = (0..geometry.slabs())
            .map(|slab| u64::from(geometry.slab_len(slab).unwrap()))
            .sum();
        prop_assert_eq!(sum, size);
    }

    #[test]
    fn locate_is_exact(
        size in 1u64..=i64::MAX as u64,
        shift in 16u8..=31,
        offset: u64,
        len: u32,
        near in any::<bool>(),
    ) {
        let Some(geometry) = new(size, shift) else { return Ok(()) };
        let offset = if near { offset % size } else { offset };
        let len = if near { len >> (32 - shift) } else { len };
        let (start, end) = (u128::from(offset), u128::from(offset) + u128::from(len));
        let fits = len > 0 && end <= u128::from(size) && start >> shift == (end - 1) >> shift;
        match geometry.locate(offset, len) {
            Some(Place { slab, offset: within }) => {
                prop_assert!(fits);
                prop_assert_eq!((u64::from(slab) << shift) + u64::from(within), offset);
                prop_assert!(u64::from(within) + u64::from(len) <= u64::from(geometry.slab_len(slab).unwrap()));
            }
            None => prop_assert!(!fits),
        }
    }
}
