// SPDX-License-Identifier: GPL-2.0

//! The C header says what the Rust structs say: a C compiler is asked to assert it.

use crate::proto::auth::SUITE_X25519_SHA256;
use crate::proto::wire::{self, *};
use crate::proto::{response, Access, BlockSize, Delivery, Kind, Protection, Refusal, SlabShift};
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

/// Where a field lies, or a whole struct if `field` is empty.
struct Layout {
    c_struct: &'static str,
    field: &'static str,
    offset: usize,
    size: usize,
}

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The layout of a struct; its fields have to be all there are.
macro_rules! layout {
    ($layouts:ident, $c_struct:literal, $rust:ty { $($field:ident),+ }) => {
        let mut end = 0;
        $(
            let size = size_of_field(|s: &$rust| &s.$field);
            assert_eq!(end, offset_of!($rust, $field), "a field is missing before {}", stringify!($field));
            end += size;
            $layouts.push(Layout {
                c_struct: $c_struct,
                field: stringify!($field),
                offset: offset_of!($rust, $field),
                size,
            });
        )+
        assert_eq!(end, size_of::<$rust>(), "a field is missing at the end");
        $layouts.push(Layout { c_struct: $c_struct, field: "", offset: 0, size: end });
    };
}

fn layouts() -> Vec<Layout> {
    let mut all = Vec::new();
    layout!(
        all,
        "farblk_status",
        Status {
            code,
            text_len,
            reserved,
            text
        }
    );
    layout!(
        all,
        "farblk_connect_request",
        ConnectRequest {
            magic,
            version_min,
            version_max,
            kind,
            reserved,
            queue,
            reserved2,
            session,
            epoch,
            ticket
        }
    );
    layout!(
        all,
        "farblk_connect_reply",
        ConnectReply {
            magic,
            version,
            reserved,
            ticket
        }
    );
    layout!(
        all,
        "farblk_reject",
        Reject {
            magic,
            version_min,
            version_max,
            status
        }
    );
    layout!(
        all,
        "farblk_header",
        Header {
            kind,
            length,
            sequence
        }
    );
    layout!(all, "farblk_reply", Reply { header, status });
    layout!(
        all,
        "farblk_challenge",
        Challenge {
            header,
            suites,
            reserved,
            key_id,
            nonce,
            point
        }
    );
    layout!(
        all,
        "farblk_challenge_reply",
        ChallengeReply {
            reply,
            suite,
            reserved,
            nonce,
            point,
            proof
        }
    );
    layout!(
        all,
        "farblk_login",
        Login {
            header,
            host_id,
            host_name,
            map_uuid,
            epoch,
            export_name,
            access,
            path,
            queues,
            depth,
            protection,
            features,
            inline_size,
            heartbeat_ms,
            boot,
            incarnation,
            resume,
            no_path_timeout_ms,
            reserved2
        }
    );
    layout!(
        all,
        "farblk_login_reply",
        LoginReply {
            reply,
            session,
            export_uuid,
            instance,
            size,
            access,
            kind,
            slab_shift,
            features,
            queues,
            depth,
            inline_size,
            logical_block_size,
            physical_block_size,
            io_min,
            io_opt,
            max_io,
            max_discard,
            discard_granularity,
            max_write_zeroes,
            credit,
            flags,
            reservation_key,
            server_id,
            lease_ms,
            extent_number,
            atomic_max,
            atomic_unit_min,
            atomic_unit_max,
            atomic_boundary,
            max_secure_erase,
            secure_erase_granularity
        }
    );
    layout!(
        all,
        "farblk_grant_request",
        GrantRequest {
            header,
            first,
            count
        }
    );
    layout!(all, "farblk_grant", Grant { addr, length, rkey });
    layout!(
        all,
        "farblk_grant_reply",
        GrantReply {
            reply,
            first,
            count
        }
    );
    layout!(
        all,
        "farblk_list_request",
        ListRequest {
            header,
            host_id,
            host_name,
            first,
            reserved
        }
    );
    layout!(
        all,
        "farblk_list_entry",
        ListEntry {
            name,
            uuid,
            size,
            kind,
            access,
            clients,
            max_clients,
            reserved
        }
    );
    layout!(
        all,
        "farblk_list_reply",
        ListReply {
            reply,
            first,
            count,
            total,
            reserved
        }
    );
    layout!(
        all,
        "farblk_extent",
        Extent {
            header,
            size,
            access,
            reserved,
            number
        }
    );
    layout!(
        all,
        "farblk_flushed",
        Flushed {
            header,
            instance,
            number,
            reserved
        }
    );
    layout!(
        all,
        "farblk_fence",
        Fence {
            header,
            epoch,
            path,
            reserved
        }
    );
    layout!(
        all,
        "farblk_command",
        wire::Command {
            op,
            flags,
            tag,
            generation,
            len,
            rkey,
            offset,
            addr
        }
    );
    layout!(
        all,
        "farblk_response",
        Response {
            status,
            tag,
            generation,
            credit,
            reserved
        }
    );
    layout!(
        all,
        "farblk_report",
        Report {
            generation,
            kind,
            count,
            reserved,
            holder,
            keys
        }
    );
    all
}

fn constants() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = [
        ("MAGIC", u64::from(MAGIC)),
        ("VERSION_MIN", VERSION_MIN.into()),
        ("VERSION_MAX", VERSION_MAX.into()),
        ("PORT", PORT.into()),
        ("CONNECT_REQUEST_MAX", CONNECT_REQUEST_MAX as u64),
        ("CONNECT_REPLY_MAX", CONNECT_REPLY_MAX as u64),
        ("REJECT_MAX", REJECT_MAX as u64),
        ("MESSAGE_MAX", MESSAGE_MAX as u64),
        ("TAG_SIZE", TAG_SIZE as u64),
        ("NAME_SIZE", NAME_SIZE as u64),
        ("TEXT_SIZE", TEXT_SIZE as u64),
        ("GRANTS_MAX", GRANTS_MAX as u64),
        ("LIST_ENTRIES_MAX", LIST_ENTRIES_MAX as u64),
        ("SLABS_MAX", SLABS_MAX.into()),
        ("IO_HINT_MAX", IO_HINT_MAX.into()),
        ("SLAB_SHIFT_MIN", SlabShift::MIN.into()),
        ("SLAB_SHIFT_MAX", SlabShift::MAX.into()),
        ("BLOCK_SIZE_MIN", BlockSize::MIN.get().into()),
        ("BLOCK_SIZE_MAX", BlockSize::MAX.get().into()),
        ("CONNECTION_CONTROL", CONNECTION_CONTROL.into()),
        ("CONNECTION_IO", CONNECTION_IO.into()),
        ("CHALLENGE", CHALLENGE.into()),
        ("SUITE_X25519_SHA256", SUITE_X25519_SHA256.into()),
        ("LOGIN", LOGIN.into()),
        ("GRANT", GRANT.into()),
        ("LIST", LIST.into()),
        ("LOGOUT", LOGOUT.into()),
        ("EXTENT", EXTENT.into()),
        ("PING", PING.into()),
        ("FENCE", FENCE.into()),
        ("PONG", PONG.into()),
        ("FENCED", FENCED.into()),
        ("FLUSHED", FLUSHED.into()),
        ("REPLY", REPLY.into()),
        ("ACCESS_RO", Access::ReadOnly as u64),
        ("ACCESS_RW", Access::ReadWrite as u64),
        ("KIND_BLOCK", Kind::Block as u64),
        ("KIND_RAM", Kind::Ram as u64),
        ("PROTECTION_NONE", Protection::None as u64),
        ("PROTECTION_CRC32C", Protection::Digest as u64),
        ("PROTECTION_SEAL", Protection::Seal as u64),
        ("OK", STATUS_OK.into()),
        ("PATHS_MAX", PATHS_MAX.into()),
        ("DEPTH_MAX", DEPTH_MAX.into()),
        ("INLINE_MAX", INLINE_MAX.into()),
        ("IO_SIZE_MIN", IO_SIZE_MIN.into()),
        ("IO_SIZE_MAX", IO_SIZE_MAX.into()),
        ("PHYSICAL_BLOCK_SIZE_MAX", PHYSICAL_BLOCK_SIZE_MAX.into()),
        ("FEATURE_WRITE_CACHE", FEATURE_WRITE_CACHE.into()),
        ("FEATURE_FUA", FEATURE_FUA.into()),
        ("FEATURE_ROTATIONAL", FEATURE_ROTATIONAL.into()),
        ("LOGIN_REMEMBERED", LOGIN_REMEMBERED.into()),
        ("LOGIN_REMOTE_INVALIDATE", LOGIN_REMOTE_INVALIDATE.into()),
        ("OP_READ", OP_READ.into()),
        ("OP_WRITE", OP_WRITE.into()),
        ("OP_FLUSH", OP_FLUSH.into()),
        ("OP_DISCARD", OP_DISCARD.into()),
        ("OP_WRITE_ZEROES", OP_WRITE_ZEROES.into()),
        ("OP_SECURE_ERASE", OP_SECURE_ERASE.into()),
        ("OP_RESERVE", OP_RESERVE.into()),
        ("OP_REPORT", OP_REPORT.into()),
        ("RESERVE_REGISTER", RESERVE_REGISTER.into()),
        ("RESERVE_RESERVE", RESERVE_RESERVE.into()),
        ("RESERVE_RELEASE", RESERVE_RELEASE.into()),
        ("RESERVE_PREEMPT", RESERVE_PREEMPT.into()),
        ("RESERVE_CLEAR", RESERVE_CLEAR.into()),
        ("RESERVE_IGNORE_OLD", RESERVE_IGNORE_OLD.into()),
        ("REGISTRANTS_MAX", REGISTRANTS_MAX as u64),
        ("FLAG_FUA", FLAG_FUA.into()),
        ("FLAG_INLINE", FLAG_INLINE.into()),
        ("FLAG_NO_UNMAP", FLAG_NO_UNMAP.into()),
        ("FLAG_PRESSED", FLAG_PRESSED.into()),
        ("FLAG_ATOMIC", FLAG_ATOMIC.into()),
        ("DELIVERY_TAG_SHIFT", Delivery::TAG_SHIFT.into()),
        ("DELIVERY_CREDIT_SHIFT", Delivery::CREDIT_SHIFT.into()),
        ("DELIVERY_GENERATION", Delivery::GENERATION.into()),
    ]
    .map(|(name, value)| (format!("FARBLK_{name}"), value))
    .into();
    for refusal in Refusal::ALL {
        all.push((c_name("REFUSED", &refusal), refusal.code().into()));
    }
    for status in response::Status::ALL {
        all.push((c_name("STATUS", &status), status.code().into()));
    }
    all
}

/// The C name of a code: `NoSuchExport` is FARBLK_REFUSED_NO_SUCH_EXPORT.
fn c_name(kind: &str, code: &dyn std::fmt::Debug) -> String {
    let mut name = format!("FARBLK_{kind}");
    for c in format!("{code:?}").chars() {
        if c.is_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

/// The header followed by the assertions, every value in them `off` too large.
fn program(off: u64) -> String {
    let header = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../include/uapi/linux/farblk.h"
    );
    let mut program = std::fs::read_to_string(header).unwrap();
    program += "#include <stddef.h>\n";
    let mut assert = |what: &str, value: u64| {
        let value = value + off;
        program += &format!("_Static_assert({what} == {value}, \"{what} is not {value}\");\n");
    };
    for (name, value) in constants() {
        assert(&name, value);
    }
    for Layout {
        c_struct,
        field,
        offset,
        size,
    } in layouts()
    {
        if field.is_empty() {
            assert(&format!("sizeof(struct {c_struct})"), size as u64);
        } else {
            assert(
                &format!("offsetof(struct {c_struct}, {field})"),
                offset as u64,
            );
            assert(
                &format!("sizeof(((struct {c_struct} *)0)->{field})"),
                size as u64,
            );
        }
    }
    program
}

/// What the compiler has to say about `program`; nothing if it is sound.
fn complaints(program: &str) -> String {
    let mut cc = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
        ])
        .args(["-fmax-errors=0", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cc");
    cc.stdin
        .take()
        .unwrap()
        .write_all(program.as_bytes())
        .unwrap();
    let output = cc.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), stderr.is_empty(), "{stderr}");
    stderr
}

#[test]
fn header_agrees() {
    assert_eq!(complaints(&program(0)), "");
}

#[test]
fn each_assertion_can_fail() {
    let program = program(1);
    let asserted = program.matches("_Static_assert(").count();
    // The header has one in its own macro.
    assert_eq!(
        complaints(&program)
            .matches("static assertion failed")
            .count(),
        asserted - 1
    );
}
