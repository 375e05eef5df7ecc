// SPDX-License-Identifier: GPL-2.0

//! What a peer may send: anything.

use super::*;
use crate::proto::wire::{VERSION_MAX, VERSION_MIN};
use proptest::prelude::*;
use proptest::sample::Index;

/// Hands `bytes` to every parser. What is taken has to survive being encoded and read again.
fn parse_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok((request, version)) = ConnectRequest::parse(bytes) {
        let again = encoded(|buf| request.encode((VERSION_MIN, VERSION_MAX), buf));
        prop_assert_eq!(ConnectRequest::parse(&again), Ok((request, version)));
    }
    if let Ok(reply) = ConnectReply::parse(bytes) {
        prop_assert_eq!(
            ConnectReply::parse(&encoded(|buf| reply.encode(buf))),
            Ok(reply)
        );
    }
    if let Ok(reject) = Reject::parse(bytes) {
        prop_assert_eq!(
            Reject::parse(&encoded(|buf| reject.encode(buf))),
            Ok(reject)
        );
    }
    let Ok(message) = Message::parse(bytes) else {
        return Ok(());
    };
    let sequence = message.sequence();
    match message.request() {
        Ok(sound) => {
            let again = encoded(|buf| match sound {
                Request::Challenge(challenge) => challenge.encode(sequence, buf),
                Request::Login(login) => login.encode(sequence, buf),
                Request::Grant(grant) => grant.encode(sequence, buf),
                Request::List(list) => list.encode(sequence, buf),
                Request::Logout => Logout.encode(sequence, buf),
                Request::Ping => Ping.encode(sequence, buf),
                Request::Fence(fence) => fence.encode(sequence, buf),
            });
            prop_assert_eq!(request(&again), Ok(sound));
        }
        Err(fault) => {
            let refusal = encoded(|buf| message.refuse(&fault.into(), buf));
            prop_assert!(Message::parse(&refusal).is_ok());
        }
    }
    if let Ok(event) = Event::parse(bytes, BlockSize::MIN, Access::ReadWrite) {
        let again = encoded(|buf| event.encode(buf));
        prop_assert_eq!(
            Event::parse(&again, BlockSize::MIN, Access::ReadWrite),
            Ok(event)
        );
        prop_assert!(message.is_event() && bytes.len() <= Event::SIZE_MAX);
    }
    if let Ok(reply) = LoginReply::parse(bytes, sequence, &super::login()) {
        let block = reply.limits.logical_block_size.get();
        prop_assert!(reply.extent.size >= u64::from(block));
        prop_assert_eq!(reply.limits.fitted(), reply.limits);
        prop_assert_eq!(reply.geometry().is_some(), reply.kind() == Kind::Ram);
        prop_assert_eq!(reply.terms().is_some(), reply.kind() == Kind::Block);
        let again = encoded(|buf| reply.encode(sequence, buf));
        prop_assert_eq!(
            LoginReply::parse(&again, sequence, &super::login()),
            Ok(reply)
        );
    }
    if let Ok((reply, unproven)) = ChallengeReply::parse(bytes, sequence) {
        let again =
            encoded(|buf| ChallengeReply::encode(&reply.public, sequence, buf, |_| reply.proof));
        prop_assert_eq!(unproven.len() + reply.proof.len(), bytes.len());
        prop_assert_eq!(ChallengeReply::parse(&again, sequence).unwrap().0, reply);
    }
    if let Ok(pong) = Pong::parse(bytes, sequence) {
        prop_assert_eq!(encoded(|buf| pong.encode(buf)).len(), bytes.len());
        let event = Event::parse(bytes, BlockSize::MIN, Access::ReadOnly);
        prop_assert_eq!(event, Ok(Event::Pong));
    }
    let asked = GrantRequest::new(0, 3).unwrap();
    if let Ok(reply) = GrantReply::parse(bytes, sequence, &asked, &three_slabs()) {
        let grants: Vec<_> = reply.iter().map(|(_, grant)| grant).collect();
        prop_assert_eq!(grants.len(), reply.count() as usize);
        for (slab, grant) in reply.iter() {
            prop_assert_eq!(three_slabs().slab_len(slab), Some(grant.length));
            prop_assert!(grant.addr.checked_add(u64::from(grant.length)).is_some());
        }
        let again = grant_reply(sequence, 0, &grants);
        prop_assert_eq!(&again[112..], &bytes[112..]);
    }
    if let Ok(reply) = ListReply::parse(bytes, sequence, &list_request()) {
        let entries: Vec<_> = reply.iter().collect();
        prop_assert_eq!(entries.len(), reply.count() as usize);
        prop_assert!(reply.count() <= reply.total());
    }
    Ok(())
}

/// One sound message of every kind.
fn samples() -> Vec<Vec<u8>> {
    let io = ConnectRequest {
        connection: Connection::Io {
            session: 1,
            queue: 2,
        },
        epoch: 3,
    };
    let busy = Refused::from(Refusal::Busy);
    let grant = GrantRequest::new(0, 3).unwrap();
    let login = encoded(|buf| login().encode(1, buf));
    let refusal = encoded(|buf| Message::parse(&login).unwrap().refuse(&busy, buf));
    let fence = Fence { path: 1, epoch: 2 };
    let mut all = vec![
        encoded(|buf| io.encode((VERSION_MIN, VERSION_MAX), buf)),
        encoded(|buf| {
            ConnectReply {
                version: VERSION_MAX,
            }
            .encode(buf)
        }),
        encoded(|buf| Reject::from(busy).encode(buf)),
        login,
        refusal,
        encoded(|buf| ram_reply().encode(1, buf)),
        encoded(|buf| block_reply().encode(1, buf)),
        encoded(|buf| challenge().encode(1, buf)),
        challenge_reply(1),
        encoded(|buf| Ping.encode(1, buf)),
        encoded(|buf| fence.encode(1, buf)),
        encoded(|buf| grant.encode(1, buf)),
        grant_reply(1, 0, &grants()),
        encoded(|buf| list_request().encode(1, buf)),
        list_reply(
            1,
            list_request().first,
            u32::MAX,
            &[list_entry("a"), list_entry("b")],
        ),
    ];
    all.extend(events().map(|event| encoded(|buf| event.encode(buf))));
    all
}

/// A byte, more often than not one at an edge.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        prop::sample::select(&[0u8, 1, 2, 0x7f, 0x80, 0xff][..])
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        parse_all(&bytes)?;
    }

    #[test]
    fn arbitrary_message(kind in 0u8..15, reply: bool, tail in prop::collection::vec(byte(), 6..400)) {
        let bytes = [&[kind, if reply { 0x80 } else { 0 }], &tail[..]].concat();
        parse_all(&sized(bytes))?;
    }

    #[test]
    fn mutated_message(
        sample: Index,
        changes in prop::collection::vec((any::<Index>(), byte()), 0..6),
        cut: Option<Index>,
        fix: bool,
    ) {
        let mut bytes = sample.get(&samples()).clone();
        for (at, new) in changes {
            *at.get_mut(&mut bytes) = new;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        parse_all(&bytes)?;
        if fix {
            parse_all(&sized(bytes))?;
        }
    }

    #[test]
    fn login_roundtrip(
        host in "[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}",
        export in "[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}",
        ids: [u8; 32],
        epoch in 1u64..,
        path in 0..wire::PATHS_MAX,
        queues in 1u16..,
        depth in 1u16..=1024,
        inline_size in 0..=wire::INLINE_MAX,
        heartbeat_ms: u32,
        boot in 1u64..,
        incarnation in 1u64..,
        resume in 0u64..,
        no_path_timeout_ms: u32,
        sequence: u32,
        writes: bool,
        protection in prop::sample::select(&Protection::ALL[..]),
        remote_invalidate: bool,
    ) {
        let (host_id, map_uuid) = ids.split_at(16);
        let login = Login {
            host_id: Uuid::from_random(host_id.try_into().unwrap()),
            host_name: name(&host),
            map_uuid: Uuid::from_random(map_uuid.try_into().unwrap()),
            epoch,
            export: name(&export),
            access: if writes { Access::ReadWrite } else { Access::ReadOnly },
            queues,
            depth,
            inline_size,
            protection,
            remote_invalidate,
            path,
            heartbeat_ms,
            boot,
            incarnation,
            resume: (resume != 0).then_some(resume),
            no_path_timeout_ms: (no_path_timeout_ms != u32::MAX).then_some(no_path_timeout_ms),
        };
        let bytes = encoded(|buf| login.encode(sequence, buf));
        prop_assert_eq!(request(&bytes), Ok(Request::Login(login)));
        prop_assert_eq!(Message::parse(&bytes).unwrap().sequence(), sequence);
    }

    #[test]
    fn text_takes_anything(parts in prop::collection::vec("\\PC{0,60}|[\\x00-\\x20]{0,5}", 0..6)) {
        let mut text = Text::new();
        for part in &parts {
            std::fmt::Write::write_str(&mut text, part).unwrap();
        }
        let whole = parts.concat();
        let (shown, all) = (text.as_str(), whole.chars().count());
        // A `?` stands for what must not be shown. Any other character is the one that was written.
        for (shown, written) in shown.chars().zip(whole.chars()) {
            prop_assert!(shown == written || shown == '?');
            prop_assert!(!shown.is_control());
        }
        let cut = all > shown.chars().count();
        prop_assert!(!cut || shown.len() + 3 >= wire::TEXT_SIZE - 1);
        prop_assert!(shown.len() <= wire::TEXT_SIZE);
    }

    #[test]
    fn uuid_roundtrip(bytes: [u8; 16]) {
        let uuid = Uuid::from_bytes(bytes);
        prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
    }
}
