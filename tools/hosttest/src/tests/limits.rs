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
        atomic: AtomicLimits::NONE,
        max_secure_erase: 0,
        secure_erase_granularity: 0,
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
        atomic: AtomicLimits {
            max: u32::MAX,
            unit_min: 512,
            unit_max: 1 << 31,
            boundary: 1 << 31,
        },
        max_secure_erase: u32::MAX,
        secure_erase_granularity: u32::MAX,
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
        atomic: AtomicLimits {
            max: IO_SIZE_MAX,
            unit_min: 512,
            unit_max: IO_SIZE_MAX,
            boundary: 1 << 31,
        },
        max_secure_erase: 0xffff_fe00,
        secure_erase_granularity: 0xffff_fe00,
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
    let erases = fit(|limits| limits.max_secure_erase = 8192);
    assert_eq!(erases.secure_erase_granularity, 4096);
}

#[test]
fn atomic_writes_are_fitted() {
    let within = |[max, unit_min, unit_max, boundary]: [u32; 4], max_io| {
        let limits = AtomicLimits {
            max,
            unit_min,
            unit_max,
            boundary,
        };
        let fitted = limits.within(BlockSize::MIN, max_io);
        [
            fitted.max,
            fitted.unit_min,
            fitted.unit_max,
            fitted.boundary,
        ]
    };
    const K: u32 = 1 << 10;
    const NONE: [u32; 4] = [0; 4];
    let all = [64 * K, K, 64 * K, 0];
    assert_eq!(within(all, 1 << 20), all);
    // A path that takes less makes the unit smaller, and the most need not be a power of two.
    assert_eq!(within(all, 48 * K), [48 * K, K, 32 * K, 0]);
    assert_eq!(within(all, 48 * K + 512), [48 * K, K, 32 * K, 0]);
    assert_eq!(within(all, K), [K, K, K, 0]);
    assert_eq!(within(all, K - 512), NONE);
    let bounded = |boundary| within([64 * K, K, 64 * K, boundary], 1 << 20);
    assert_eq!(bounded(128 * K), [64 * K, K, 64 * K, 128 * K]);
    assert_eq!(bounded(16 * K), [16 * K, K, 16 * K, 16 * K]);
    assert_eq!(bounded(512), NONE);
    for odd in [
        [64 * K, 0, 64 * K, 0],
        [64 * K, 256, 64 * K, 0],
        [64 * K, 3 * K, 64 * K, 0],
        [64 * K, K, 0, 0],
        [64 * K, K, 48 * K, 0],
        [64 * K, 32 * K, 16 * K, 0],
        [64 * K, K, 64 * K, 192 * K],
        [0, K, 64 * K, 0],
        [0, 0, 0, 64 * K],
    ] {
        assert_eq!(within(odd, 1 << 20), NONE, "{odd:?}");
    }
}

/// Limits of atomic writes that are sound more often than not.
fn any_atomic() -> impl Strategy<Value = AtomicLimits> {
    let size = || {
        prop_oneof![
            4 => (9u32..32).prop_map(|log| 1 << log),
            1 => any::<u32>(),
            1 => Just(0),
        ]
    };
    (size(), size(), size(), size()).prop_map(|(max, unit_min, unit_max, boundary)| AtomicLimits {
        max,
        unit_min,
        unit_max,
        boundary,
    })
}

proptest! {
    #[test]
    fn what_is_fitted_is_sound(
        shift in 9u32..=12,
        sizes: [u32; 9],
        atomic in any_atomic(),
        small in 0u32..24,
        write_cache: bool,
        fua: bool,
        rotational: bool,
    ) {
        let [a, b, c, d, e, f, g, h, i] = sizes.map(|size| size >> small);
        let raw = BlockLimits {
            logical_block_size: (1 << shift).try_into().unwrap(),
            physical_block_size: a,
            io_min: b,
            io_opt: c,
            max_io: d,
            max_discard: e,
            discard_granularity: f,
            max_write_zeroes: g,
            atomic,
            max_secure_erase: h,
            secure_erase_granularity: i,
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
        prop_assert!(fitted.max_secure_erase <= h);
        let found = fitted.atomic;
        prop_assert!(found.max <= atomic.max && found.unit_max <= atomic.unit_max);
        if found.is_some() {
            prop_assert_eq!(found.unit_min, atomic.unit_min);
            prop_assert_eq!(found.boundary, atomic.boundary);
            prop_assert!(found.max <= fitted.max_io && found.unit_max <= found.max);
        }
        prop_assert!(fitted.fua <= fua && fitted.write_cache == write_cache);
    }
}
