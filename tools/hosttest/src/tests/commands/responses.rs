// SPDX-License-Identifier: GPL-2.0

//! The answers to commands.

use super::*;

#[test]
fn response_golden() {
    for (code, status) in Status::ALL.into_iter().enumerate() {
        let sample = Response {
            status,
            tag: TAG,
            generation: GENERATION,
            credit: 0x0807,
        };
        let mut bytes = vec![code as u8, 0, 2, 1, 6, 5, 4, 3, 7, 8];
        bytes.resize(response::SIZE, 0);
        assert_eq!(encoded(|buf| sample.encode(buf)), bytes);
        assert_eq!(Response::parse(&bytes), Ok(sample));
        assert_eq!(usize::from(status.code()), code);
        assert_eq!(Status::try_from(status.code()), Ok(status));
        for len in 0..16 {
            assert!(Response::parse(&bytes[..len]).is_err());
        }
        assert!(Response::parse(&[&bytes[..], &[0]].concat()).is_err());
        for at in 10..16 {
            assert!(Response::parse(&patched(&bytes, at, &[1])).is_err());
        }
        assert!(
            Response::parse(&patched(&bytes, 8, &[0, 0])).is_err(),
            "no credit"
        );
        for unknown in [15u16, 0x0100, u16::MAX] {
            let unknown = patched(&bytes, 0, &unknown.to_le_bytes());
            assert!(Response::parse(&unknown).is_err());
        }
    }
}

#[test]
fn deliveries() {
    let delivery = Delivery {
        tag: 0x201,
        generation: 0xabc,
        credit: 0x400,
    };
    assert_eq!(delivery.encode(), Some(0x807f_fabc));
    assert_eq!(Delivery::parse(0x807f_fabc), delivery);
    let with_tag = |tag| Delivery { tag, ..delivery }.encode();
    assert!(with_tag(1023).is_some() && with_tag(1024).is_none());
    let with_credit = |credit| Delivery { credit, ..delivery }.encode();
    assert!(with_credit(1).is_some() && with_credit(0).is_none() && with_credit(1025).is_none());
    let long = Delivery {
        generation: 0xffff_fabc,
        ..delivery
    };
    assert_eq!(long.encode(), delivery.encode());
}
