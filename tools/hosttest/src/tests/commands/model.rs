// SPDX-License-Identifier: GPL-2.0

//! Commands against a model in other words.

use super::*;
use proptest::prelude::*;

/// True if these are a change of the reservation in the field of the length, and have another key
/// only where there is one.
fn is_change(code: u128, other: u128) -> bool {
    let [action, kind, flags, rest] = (code as u32).to_le_bytes();
    let typed = (1..=6).contains(&kind);
    let known = match action {
        1 => kind == 0 && flags <= 1,
        2 | 3 => typed && flags == 0 && other == 0,
        4 => typed && flags == 0,
        5 => kind == 0 && flags == 0 && other == 0,
        _ => false,
    };
    known && rest == 0
}

/// What has to become of a command, from the words of Documentation/protocol.rst; `Err(None)` is
/// malformed.
fn model(bytes: &[u8], received: u64, terms: &Terms, extent: Extent) -> Result<(), Option<Status>> {
    let field = |at: usize, len: usize| {
        let mut wide = [0; 16];
        wide[..len].copy_from_slice(&bytes[at..at + len]);
        u128::from_le_bytes(wide)
    };
    let (op, flags, tag) = (field(0, 1), field(1, 1), field(2, 2));
    let (len, rkey, offset, addr) = (field(8, 4), field(12, 4), field(16, 8), field(24, 8));
    let allowed_flags = match op {
        1 => 8 + 2,
        3 | 4 | 6 | 7 | 8 => 8,
        2 => 8 + 16 + 3,
        5 => 8 + 4,
        _ => return Err(None),
    };
    let inline = flags & 2 != 0;
    let data = if inline && op == 2 { len } else { 0 };
    let answer = match op {
        1 if inline => len,
        8 => 272,
        _ => 0,
    };
    let change = op == 7;
    let remote = op <= 2 && !inline;
    if flags & !allowed_flags != 0
        || tag >= terms.depth.into()
        || u128::from(received) != 32 + data
        || data.max(answer) > terms.inline_size.into()
        || (op == 3 || op == 8) && (len, offset) != (0, 0)
        || !change && !remote && (rkey, addr) != (0, 0)
        || !change && addr + len >= 1 << 64
        || change && !is_change(len, addr)
    {
        return Err(None);
    }
    let limits = &terms.limits;
    let max = match op {
        3 | 8 => return Ok(()),
        7 if extent.access == Access::ReadOnly => return Err(Some(Status::ReadOnly)),
        7 => return Ok(()),
        4 => limits.max_discard,
        5 => limits.max_write_zeroes,
        6 => limits.max_secure_erase,
        _ if flags & 16 != 0 => limits.atomic.max,
        _ => limits.max_io,
    };
    let atomic = limits.atomic;
    let (unit, boundary): (u128, u128) = (atomic.unit_min.into(), atomic.boundary.into());
    let block: u128 = limits.logical_block_size.get().into();
    if max == 0 {
        Err(Some(Status::NotSupported))
    } else if len == 0 || len > max.into() || len % block != 0 || offset % block != 0 {
        Err(Some(Status::Invalid))
    } else if offset + len > extent.size.into() {
        Err(Some(Status::OutOfRange))
    } else if flags & 16 != 0
        && (len % unit != 0
            || offset % unit != 0
            || boundary != 0 && offset / boundary != (offset + len - 1) / boundary)
    {
        Err(Some(Status::Invalid))
    } else if op != 1 && extent.access == Access::ReadOnly {
        Err(Some(Status::ReadOnly))
    } else {
        Ok(())
    }
}

/// A number that is more often than not at an edge of something.
fn edge() -> impl Strategy<Value = u64> {
    let near = |middle: u64| (0u64..5).prop_map(move |d| (middle + d).wrapping_sub(2));
    prop_oneof![
        any::<u64>(),
        (0u32..64).prop_flat_map(move |shift| near(1 << shift)),
        (0u64..32).prop_map(|blocks| blocks * 512),
        (0u64..32).prop_map(|blocks| (blocks * 512).wrapping_neg()),
        Just(0),
    ]
}

fn sometimes<T: Clone + std::fmt::Debug + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
    mostly: T,
) -> impl Strategy<Value = T> {
    prop_oneof![3 => Just(mostly), 2 => strategy]
}

prop_compose! {
    fn any_terms()(
        shift in 9u32..=12,
        depth in 1u16..300,
        inline_size in prop::sample::select(&[0u32, 512, 4096, 16384][..]),
        sizes: [u32; 4],
        atomic_logs in prop::array::uniform4(9u32..24),
        small in 0u32..24,
        can: bool,
    ) -> Terms {
        let sizes = sizes.map(|size| size >> small);
        let [max_io, max_discard, max_write_zeroes, max_secure_erase] = sizes;
        let limits = BlockLimits {
            max_io,
            max_discard: if can { max_discard } else { 0 },
            max_write_zeroes: if can { max_write_zeroes } else { 0 },
            max_secure_erase: if can { max_secure_erase } else { 0 },
            atomic: AtomicLimits {
                max: 1 << atomic_logs[0],
                unit_min: 1 << atomic_logs[1],
                unit_max: 1 << atomic_logs[2],
                boundary: if can { 1 << atomic_logs[3] } else { 0 },
            },
            ..BlockLimits::plain((1 << shift).try_into().unwrap())
        };
        Terms { depth, inline_size, limits: limits.fitted() }
    }
}

prop_compose! {
    fn any_extent()(size in edge(), writes: bool) -> Extent {
        let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
        Extent { size: (size >> 1) & !4095, access }
    }
}

prop_compose! {
    /// The bytes of a command, sound or nearly so.
    fn any_bytes()(
        op in 0u8..10,
        flags in prop_oneof![Just(0u8), Just(16), 0u8..32, any::<u8>()],
        tag in sometimes(edge(), 0),
        generation: u32,
        len in prop_oneof![
            3 => edge(),
            1 => (0u64..7, 0u64..8, 0u64..2).prop_map(|(a, k, f)| a | (k << 8) | (f << 16)),
        ],
        rkey in sometimes(edge(), 0),
        offset in edge(),
        addr in sometimes(edge(), 0),
    ) -> Vec<u8> {
        [
            &[op, flags][..],
            &(tag as u16).to_le_bytes(),
            &generation.to_le_bytes(),
            &(len as u32).to_le_bytes(),
            &(rkey as u32).to_le_bytes(),
            &offset.to_le_bytes(),
            &addr.to_le_bytes(),
        ]
        .concat()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn any_delivery(immediate: u32) {
        prop_assert_eq!(Delivery::parse(immediate).encode(), Some(immediate));
    }

    /// Nothing gets through that should not, and nothing is kept out that should not be.
    #[test]
    fn as_documented(
        bytes in any_bytes(),
        terms in any_terms(),
        extent in any_extent(),
        fits in prop::bool::weighted(0.9),
        other: u32,
    ) {
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let received = match (fits, bytes[0], bytes[1] & 2) {
            (true, 2, 2) => len.saturating_add(32),
            (true, ..) => 32,
            (false, ..) => other,
        };
        let result = command::parse(&bytes, received, &terms, extent);
        let expected = model(&bytes, received.into(), &terms, extent);
        match result {
            Ok(command) => {
                prop_assert_eq!(expected, Ok(()));
                // What was understood is all there was.
                prop_assert_eq!(&bytes_of(&command), &bytes);
            }
            Err(CommandError::Malformed(_)) => prop_assert_eq!(expected, Err(None)),
            Err(CommandError::Refused(response, _)) => {
                prop_assert_eq!(expected, Err(Some(response.status)));
                prop_assert_eq!(&response.tag.to_le_bytes(), &bytes[2..4]);
                prop_assert_eq!(&response.generation.to_le_bytes(), &bytes[4..8]);
            }
        }
    }

    #[test]
    fn arbitrary_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        received: u32,
        terms in any_terms(),
        extent in any_extent(),
    ) {
        let result = command::parse(&bytes, received, &terms, extent);
        prop_assert!(bytes.len() >= 32 || is_malformed(result));
        if let Ok(response) = Response::parse(&bytes) {
            prop_assert_eq!(encoded(|buf| response.encode(buf)), bytes);
        }
    }
}
