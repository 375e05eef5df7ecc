/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * farblk: the wire protocol and its limits.
 *
 * All integers are little endian. Reserved fields are sent as zero and, but for those of a
 * response, ignored by the receiver. The exchange is described in the page protocol.rst.
 */
#ifndef _UAPI_LINUX_FARBLK_H
#define _UAPI_LINUX_FARBLK_H

#include <linux/types.h>

#define FARBLK_MAGIC			0x42524146	/* "FARB" */
#define FARBLK_VERSION_MIN		8
#define FARBLK_VERSION_MAX		8	/* 9 is retired */
#define FARBLK_PORT			7420

/* Room for private data in the messages of the RDMA CM, in bytes. */
#define FARBLK_CONNECT_REQUEST_MAX	56
#define FARBLK_CONNECT_REPLY_MAX	196
#define FARBLK_REJECT_MAX		148

#define FARBLK_MESSAGE_MAX		4080	/* a control message without its tag, in bytes */
#define FARBLK_TAG_SIZE			16	/* of a message or a connection request or reply */
#define FARBLK_NAME_SIZE		64	/* at least one NUL at the end */
#define FARBLK_TEXT_SIZE		96
#define FARBLK_GRANTS_MAX		247	/* in one reply */
#define FARBLK_LIST_ENTRIES_MAX		41	/* in one reply */
#define FARBLK_SLABS_MAX		1048576	/* of an export */
#define FARBLK_SLAB_SHIFT_MIN		16
#define FARBLK_SLAB_SHIFT_MAX		31
#define FARBLK_BLOCK_SIZE_MIN		512
#define FARBLK_BLOCK_SIZE_MAX		4096
#define FARBLK_PHYSICAL_BLOCK_SIZE_MAX	1048576
#define FARBLK_PATHS_MAX		8	/* of a map */
#define FARBLK_DEPTH_MAX		1024	/* commands in flight on an I/O connection */
#define FARBLK_INLINE_MAX		16384	/* data behind a command, or its answer, bytes */
#define FARBLK_IO_SIZE_MIN		65536	/* of max_io, in bytes */
#define FARBLK_IO_SIZE_MAX		1048576
#define FARBLK_IO_HINT_MAX		16777216	/* of io_min and io_opt, in bytes */

/* farblk_connect_request.kind */
#define FARBLK_CONNECTION_CONTROL	0
#define FARBLK_CONNECTION_IO		1

/* farblk_header.kind */
#define FARBLK_LOGIN			1
#define FARBLK_GRANT			2
#define FARBLK_LIST			3
#define FARBLK_LOGOUT			4	/* a header alone */
#define FARBLK_EXTENT			5
#define FARBLK_PING			6	/* a header alone */
#define FARBLK_FENCE			7
#define FARBLK_PONG			9	/* a header alone */
#define FARBLK_FENCED			10
#define FARBLK_FLUSHED			12
#define FARBLK_CHALLENGE		13
#define FARBLK_REPLY			0x8000	/* or'ed to the kind of the request */

/* .access */
#define FARBLK_ACCESS_RO		0
#define FARBLK_ACCESS_RW		1

/* .kind of an export */
#define FARBLK_KIND_BLOCK		0
#define FARBLK_KIND_RAM			1

/* farblk_login.protection */
#define FARBLK_PROTECTION_NONE		0
#define FARBLK_PROTECTION_CRC32C	1
#define FARBLK_PROTECTION_SEAL		2

/* farblk_login_reply.features */
#define FARBLK_FEATURE_WRITE_CACHE	1
#define FARBLK_FEATURE_FUA		2
#define FARBLK_FEATURE_ROTATIONAL	4

/* farblk_login.features */
#define FARBLK_LOGIN_REMOTE_INVALIDATE	1

/* farblk_login_reply.flags */
#define FARBLK_LOGIN_REMEMBERED		1

/* farblk_command.op */
#define FARBLK_OP_READ			1
#define FARBLK_OP_WRITE			2
#define FARBLK_OP_FLUSH			3
#define FARBLK_OP_DISCARD		4
#define FARBLK_OP_WRITE_ZEROES		5
#define FARBLK_OP_SECURE_ERASE		6
#define FARBLK_OP_RESERVE		7
#define FARBLK_OP_REPORT		8	/* answered with a farblk_report */

/* farblk_command.flags */
#define FARBLK_FLAG_FUA			1	/* of a write */
#define FARBLK_FLAG_INLINE		2	/* data follow a write, or answer a read */
#define FARBLK_FLAG_NO_UNMAP		4	/* of a write of zeroes */
#define FARBLK_FLAG_PRESSED		8
#define FARBLK_FLAG_ATOMIC		16	/* of a write */

/* farblk_command of FARBLK_OP_RESERVE: the first byte of len; the second is an enum pr_type */
#define FARBLK_RESERVE_REGISTER		1
#define FARBLK_RESERVE_RESERVE		2
#define FARBLK_RESERVE_RELEASE		3
#define FARBLK_RESERVE_PREEMPT		4
#define FARBLK_RESERVE_CLEAR		5
#define FARBLK_RESERVE_IGNORE_OLD	1	/* the third byte, of a registration */
#define FARBLK_REGISTRANTS_MAX		32	/* of an export */

/* farblk_response.status */
#define FARBLK_STATUS_OK		0
#define FARBLK_STATUS_IO_ERROR		1
#define FARBLK_STATUS_NOT_SUPPORTED	2
#define FARBLK_STATUS_INVALID		3
#define FARBLK_STATUS_OUT_OF_RANGE	4
#define FARBLK_STATUS_READ_ONLY		5
#define FARBLK_STATUS_NO_SPACE		6
#define FARBLK_STATUS_MEDIUM		7
#define FARBLK_STATUS_PROTECTION	8
#define FARBLK_STATUS_TARGET		9
#define FARBLK_STATUS_TIMEOUT		10
#define FARBLK_STATUS_TRANSPORT		11
#define FARBLK_STATUS_RESERVATION	12
#define FARBLK_STATUS_RESOURCE		13
#define FARBLK_STATUS_OFFLINE		14

/* farblk_status.code */
#define FARBLK_OK			0
#define FARBLK_REFUSED_VERSION		1
#define FARBLK_REFUSED_MALFORMED	2
#define FARBLK_REFUSED_NO_SUCH_EXPORT	3
#define FARBLK_REFUSED_EXPORT_DISABLED	4
#define FARBLK_REFUSED_NOT_ADMITTED	5
#define FARBLK_REFUSED_READ_ONLY	6
#define FARBLK_REFUSED_BUSY		7
#define FARBLK_REFUSED_NO_MEMORY	8
#define FARBLK_REFUSED_BAD_SESSION	9
#define FARBLK_REFUSED_BAD_QUEUE	10
#define FARBLK_REFUSED_NOT_ON_PORT	11
#define FARBLK_REFUSED_INTERNAL		12
#define FARBLK_REFUSED_BAD_STATE	13
#define FARBLK_REFUSED_EVICTED		14
#define FARBLK_REFUSED_SUPERSEDED	15
#define FARBLK_REFUSED_AUTH_REQUIRED	16
#define FARBLK_REFUSED_AUTH_FAILED	17
#define FARBLK_REFUSED_AGAIN		18
#define FARBLK_REFUSED_PROTECTION	19
#define FARBLK_REFUSED_UNREACHABLE	20
#define FARBLK_REFUSED_UNAVAILABLE	21

/* farblk_challenge.suites, farblk_challenge_reply.suite */
#define FARBLK_SUITE_X25519_SHA256	1

/* Outcome of a request, in code and words. */
struct farblk_status {
	__le16	code;
	__le16	text_len;
	__le32	reserved;
	__u8	text[FARBLK_TEXT_SIZE];		/* UTF-8, the rest zero */
};

/* Private data of the CM REQ. */
struct farblk_connect_request {
	__le32	magic;
	__le16	version_min;
	__le16	version_max;
	__u8	kind;
	__u8	reserved;
	__le16	queue;
	__le32	reserved2;
	__le64	session;
	__le64	epoch;
	__u8	ticket[FARBLK_TAG_SIZE];	/* of an I/O connection with a key; a cookie */
};

/* Private data of the CM REP. */
struct farblk_connect_reply {
	__le32	magic;
	__le16	version;
	__le16	reserved;
	__u8	ticket[FARBLK_TAG_SIZE];	/* of an I/O connection with a key */
};

/* Private data of the CM REJ. With FARBLK_REFUSED_AGAIN, a cookie of FARBLK_TAG_SIZE follows. */
struct farblk_reject {
	__le32	magic;
	__le16	version_min;
	__le16	version_max;
	struct farblk_status status;
};

/* Start of every control message. */
struct farblk_header {
	__le16	kind;
	__le16	length;				/* of the whole message */
	__le32	sequence;
};

/* Start of every reply; the whole of a refusal. */
struct farblk_reply {
	struct farblk_header header;
	struct farblk_status status;
};

struct farblk_challenge {
	struct farblk_header header;
	__le16	suites;				/* FARBLK_SUITE_* */
	__u8	reserved[6];
	__u8	key_id[8];
	__u8	nonce[32];
	__u8	point[32];
};

struct farblk_challenge_reply {
	struct farblk_reply reply;
	__le16	suite;				/* one FARBLK_SUITE_* */
	__u8	reserved[6];
	__u8	nonce[32];
	__u8	point[32];
	__u8	proof[FARBLK_TAG_SIZE];
};

struct farblk_login {
	struct farblk_header header;
	__u8	host_id[16];
	__u8	host_name[FARBLK_NAME_SIZE];
	__u8	map_uuid[16];
	__le64	epoch;
	__u8	export_name[FARBLK_NAME_SIZE];
	__u8	access;
	__u8	path;
	__le16	queues;
	__le16	depth;
	__u8	protection;			/* FARBLK_PROTECTION_* */
	__u8	features;			/* FARBLK_LOGIN_REMOTE_INVALIDATE */
	__le32	inline_size;
	__le32	heartbeat_ms;			/* 0 for none */
	__le64	boot;
	__le64	incarnation;
	__le64	resume;				/* a reservation key, or 0 */
	__le32	no_path_timeout_ms;		/* all ones for ever */
	__le32	reserved2;
};

struct farblk_login_reply {
	struct farblk_reply reply;
	__le64	session;
	__u8	export_uuid[16];
	__u8	instance[16];
	__le64	size;
	__u8	access;
	__u8	kind;
	__u8	slab_shift;			/* of ram */
	__u8	features;
	__le16	queues;
	__le16	depth;				/* of block */
	__le32	inline_size;			/* of block */
	__le32	logical_block_size;
	__le32	physical_block_size;
	__le32	io_min;
	__le32	io_opt;
	__le32	max_io;
	__le32	max_discard;
	__le32	discard_granularity;
	__le32	max_write_zeroes;
	__le16	credit;				/* of block */
	__le16	flags;				/* FARBLK_LOGIN_* */
	__le64	reservation_key;
	__u8	server_id[16];
	__le32	lease_ms;
	__le32	extent_number;
	__le32	atomic_max;			/* 0 for no atomic writes; of block */
	__le32	atomic_unit_min;
	__le32	atomic_unit_max;
	__le32	atomic_boundary;		/* 0 for none */
	__le32	max_secure_erase;		/* 0 for no secure erases; of block */
	__le32	secure_erase_granularity;
};

struct farblk_grant_request {
	struct farblk_header header;
	__le32	first;
	__le32	count;
};

struct farblk_grant {
	__le64	addr;
	__le32	length;
	__le32	rkey;
};

struct farblk_grant_reply {
	struct farblk_reply reply;
	__le32	first;
	__le32	count;
	struct farblk_grant grants[];
};

struct farblk_list_request {
	struct farblk_header header;
	__u8	host_id[16];
	__u8	host_name[FARBLK_NAME_SIZE];
	__le32	first;
	__le32	reserved;
};

struct farblk_list_entry {
	__u8	name[FARBLK_NAME_SIZE];
	__u8	uuid[16];
	__le64	size;
	__u8	kind;
	__u8	access;
	__le16	clients;
	__le16	max_clients;
	__le16	reserved;
};

struct farblk_list_reply {
	struct farblk_reply reply;
	__le32	first;
	__le32	count;
	__le32	total;
	__le32	reserved;
	struct farblk_list_entry entries[];
};

/* The extent of the export changed; unasked. */
struct farblk_extent {
	struct farblk_header header;
	__le64	size;
	__u8	access;
	__u8	reserved[3];
	__le32	number;				/* larger with each change */
};

/* The device of the export was flushed after all that was answered; unasked. */
struct farblk_flushed {
	struct farblk_header header;
	__u8	instance[16];
	__le32	number;				/* as of the extent */
	__le32	reserved;
};

/* FARBLK_FENCE and its answer, FARBLK_FENCED. */
struct farblk_fence {
	struct farblk_header header;
	__le64	epoch;
	__u8	path;
	__u8	reserved[7];
};

/* I/O of a block export, on an I/O connection. */
struct farblk_command {
	__u8	op;
	__u8	flags;
	__le16	tag;
	__le32	generation;
	__le32	len;
	__le32	rkey;
	__le64	offset;
	__le64	addr;
};

struct farblk_response {
	__le16	status;
	__le16	tag;
	__le32	generation;
	__le16	credit;
	__u8	reserved[6];
};

struct farblk_report {
	__le32	generation;
	__u8	kind;				/* enum pr_type, or 0 */
	__u8	count;
	__u8	reserved[2];
	__le64	holder;				/* its key; 0 for all */
	__le64	keys[FARBLK_REGISTRANTS_MAX];
};

/* Immediate data of a message that is the data of a read */
#define FARBLK_DELIVERY_TAG_SHIFT	22	/* 10 bits */
#define FARBLK_DELIVERY_CREDIT_SHIFT	12	/* 10 bits: the credit, less one */
#define FARBLK_DELIVERY_GENERATION	0xfff	/* the low bits of the generation */

#ifdef __cplusplus
#define __FARBLK_SIZE(type, size) static_assert(sizeof(struct type) == (size), #type)
#else
#define __FARBLK_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#endif
__FARBLK_SIZE(farblk_status, 104);
__FARBLK_SIZE(farblk_connect_request, 48);
__FARBLK_SIZE(farblk_connect_reply, 24);
__FARBLK_SIZE(farblk_reject, 112);
__FARBLK_SIZE(farblk_header, 8);
__FARBLK_SIZE(farblk_reply, 112);
__FARBLK_SIZE(farblk_challenge, 88);
__FARBLK_SIZE(farblk_challenge_reply, 200);
__FARBLK_SIZE(farblk_login, 224);
__FARBLK_SIZE(farblk_login_reply, 264);
__FARBLK_SIZE(farblk_grant_request, 16);
__FARBLK_SIZE(farblk_grant, 16);
__FARBLK_SIZE(farblk_grant_reply, 120);
__FARBLK_SIZE(farblk_list_request, 96);
__FARBLK_SIZE(farblk_list_entry, 96);
__FARBLK_SIZE(farblk_list_reply, 128);
__FARBLK_SIZE(farblk_extent, 24);
__FARBLK_SIZE(farblk_fence, 24);
__FARBLK_SIZE(farblk_command, 32);
__FARBLK_SIZE(farblk_response, 16);
__FARBLK_SIZE(farblk_report, 272);
#undef __FARBLK_SIZE

#endif /* _UAPI_LINUX_FARBLK_H */
