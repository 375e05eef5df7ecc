// SPDX-License-Identifier: GPL-2.0

//! Limits of a block device.

use super::*;
use crate::proto::wire::{IO_HINT_MAX, IO_SIZE_MAX, IO_SIZE_MIN, PHYSICAL_BLOCK_SIZE_MAX};
use proptest::prelude::*;

/// The limits after a way over the wire.
fn carried(limits: BlockLimits) -> Result<BlockLimits, ReplyError> {
    let mut reply = block_reply();
    reply.extent.size = 1 << 20;
    reply.limits = limits;
    let bytes = encoded(|buf| reply.encode(1, buf));
    LoginReply::parse(&bytes, 1, &login()).map(|reply| reply.limits)
}

#[test]
fn fitted_keeps_what_is_sound() {
    assert_eq!(block_limits().fitted(), block_limits());
    for size in [512, 1024, 2048, 4096] {
        let plain = BlockLimits::plain(size.try_into().unwrap());
        assert_eq!(plain.fitted(), plain);
    }
}

#[test]
fn fitted_is_the_nearest() {
    let nothing = BlockLimits {
        logical_block_size: BlockSize::MAX,
        physical_block_size: 0,
        io_min: 0,
        io_opt: 0,
        max_io: 0,
        max_discard: 0,
        discard_granularity: 0,
        max_write_zeroes: 0,
        write_cache: false,
        fua: false,
        rotational: false,
    };
    let least = BlockLimits {
        physical_block_size: 4096,
        io_min: 4096,
        max_io: IO_SIZE_MIN,
        ..nothing
    };
    assert_eq!(nothing.fitted(), least);
    let everything = BlockLimits {
        logical_block_size: BlockSize::MIN,
        physical_block_size: u32::MAX,
        io_min: u32::MAX,
        io_opt: u32::MAX,
        max_io: u32::MAX,
        max_discard: u32::MAX,
        discard_granularity: u32::MAX,
        max_write_zeroes: u32::MAX,
        write_cache: true,
        fua: true,
        rotational: true,
    };
    let most = BlockLimits {
        physical_block_size: PHYSICAL_BLOCK_SIZE_MAX,
        io_min: IO_HINT_MAX,
        // As part of a stripe it would be worse than none.
        io_opt: 0,
        max_io: IO_SIZE_MAX,
        max_discard: 0xffff_fe00,
        discard_granularity: 0xffff_fe00,
        max_write_zeroes: 0xffff_fe00,
        ..everything
    };
    assert_eq!(everything.fitted(), most);
    let fit = |change: fn(&mut BlockLimits)| {
        let mut limits = nothing;
        change(&mut limits);
        limits.fitted()
    };
    assert!(!fit(|limits| limits.fua = true).fua, "without a cache");
    assert_eq!(
        fit(|limits| limits.physical_block_size = 4097).physical_block_size,
        8192
    );
    let no_discards = fit(|limits| limits.discard_granularity = 8192);
    assert_eq!(no_discards.discard_granularity, 0);
    let discards = fit(|limits| limits.max_discard = 8192);
    assert_eq!(discards.discard_granularity, 4096);
}

proptest! {
    #[test]
    fn what_is_fitted_is_sound(
        shift in 9u32..=12,
        sizes: [u32; 7],
        small in 0u32..24,
        write_cache: bool,
        fua: bool,
        rotational: bool,
    ) {
        let [a, b, c, d, e, f, g] = sizes.map(|size| size >> small);
        let raw = BlockLimits {
            logical_block_size: (1 << shift).try_into().unwrap(),
            physical_block_size: a,
            io_min: b,
            io_opt: c,
            max_io: d,
            max_discard: e,
            discard_granularity: f,
            max_write_zeroes: g,
            write_cache,
            fua,
            rotational,
        };
        let fitted = raw.fitted();
        prop_assert_eq!(fitted.fitted(), fitted);
        prop_assert_eq!(carried(fitted), Ok(fitted));
        // And nothing else is.
        prop_assert_eq!(carried(raw).is_ok(), raw == fitted);
        // Nothing is promised that the backing does not have.
        prop_assert!(fitted.max_discard <= e && fitted.max_write_zeroes <= g);
        prop_assert!(fitted.fua <= fua && fitted.write_cache == write_cache);
    }
}
