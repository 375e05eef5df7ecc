// SPDX-License-Identifier: GPL-2.0

//! Commands about persistent reservations.

use super::*;

#[test]
fn reservations() {
    let kind = ReservationType::ExclusiveAccessRegistrants;
    let (key, other) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    for (reserve, code, second) in [
        (
            Reserve::Register {
                old: key,
                new: other,
                ignore_old: false,
            },
            [1, 0, 0, 0],
            other,
        ),
        (
            Reserve::Register {
                old: key,
                new: other,
                ignore_old: true,
            },
            [1, 0, 1, 0],
            other,
        ),
        (Reserve::Reserve { key, kind }, [2, 4, 0, 0], 0),
        (Reserve::Release { key, kind }, [3, 4, 0, 0], 0),
        (
            Reserve::Preempt {
                key,
                victim: other,
                kind,
            },
            [4, 4, 0, 0],
            other,
        ),
        (Reserve::Clear { key }, [5, 0, 0, 0], 0),
    ] {
        let token = 0x2122_2324;
        let sample = command(Operation::Reserve { reserve, token });
        let bytes = [
            &[7, 0, 2, 1, 6, 5, 4, 3][..],
            &code,
            &token.to_le_bytes(),
            &key.to_le_bytes(),
            &second.to_le_bytes(),
        ]
        .concat();
        assert_eq!(bytes_of(&sample), bytes);
        assert_eq!(parse(&bytes, 32), Ok(sample));
        let read_only = Extent {
            access: Access::ReadOnly,
            ..extent()
        };
        let result = command::parse(&bytes, 32, &terms(), read_only);
        assert_eq!(refused(result), Some(Status::ReadOnly));
        for (at, wrong) in [(8, 0), (8, 6), (9, 7), (10, 2), (11, 1), (1, 1), (1, 2)] {
            assert!(is_malformed(parse(&patched(&bytes, at, &[wrong]), 32)));
        }
        if second == 0 {
            assert!(is_malformed(parse(&patched(&bytes, 24, &[1]), 32)));
        }
        assert!(is_malformed(parse(&bytes, 33)));
    }
    // The answer to a report has to fit.
    let report = bytes_of(&command(Operation::Report));
    for (inline_size, fits) in [(272, true), (271, false), (0, false)] {
        let terms = Terms {
            inline_size,
            ..terms()
        };
        let result = command::parse(&report, 32, &terms, extent());
        assert_eq!(result.is_ok(), fits);
    }
}

#[test]
fn reports() {
    let mut keys = [0; wire::REGISTRANTS_MAX];
    keys[..2].copy_from_slice(&[0x0102_0304_0506_0708, 9]);
    let report = Report {
        generation: 0x1112_1314,
        reservation: Some((9, ReservationType::WriteExclusiveAll)),
        keys,
        count: 2,
    };
    let bytes = encoded(|buf| report.encode(buf));
    let mut expected = vec![0x14, 0x13, 0x12, 0x11, 5, 2, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([8, 7, 6, 5, 4, 3, 2, 1, 9]);
    expected.resize(272, 0);
    assert_eq!(bytes, expected);
    assert_eq!(Report::parse(&bytes), Ok(report));
    for len in (0..272).chain([273]) {
        let mut other = bytes.clone();
        other.resize(len, 0);
        assert!(Report::parse(&other).is_err(), "{len} bytes");
    }
    assert!(Report::parse(&patched(&bytes, 4, &[7])).is_err(), "a type");
    assert!(Report::parse(&patched(&bytes, 5, &[33])).is_err(), "count");
    assert!(Report::parse(&patched(&bytes, 5, &[1])).is_err(), "a key");
    let none = Report {
        reservation: None,
        ..report
    };
    assert_eq!(encoded(|buf| none.encode(buf))[4], 0);
}
