/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM farblk

#if !defined(_TRACE_FARBLK_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_FARBLK_H

#include <linux/blk_types.h>
#include <linux/kdev_t.h>
#include <linux/tracepoint.h>

#define farblk_show_op(op)				\
	__print_symbolic(op,				\
		{ REQ_OP_READ, "read" },		\
		{ REQ_OP_WRITE, "write" },		\
		{ REQ_OP_FLUSH, "flush" },		\
		{ REQ_OP_DISCARD, "discard" },		\
		{ REQ_OP_SECURE_ERASE, "secure_erase" }, \
		{ REQ_OP_WRITE_ZEROES, "write_zeroes" })

/* As session::map::Mode of the module has them. */
#define farblk_show_mode(mode)				\
	__print_symbolic(mode,				\
		{ 0, "hold" },				\
		{ 1, "replay" },			\
		{ 2, "flow" },				\
		{ 3, "fail" })

/* The block layer has given a request to a map. */
TRACE_EVENT(farblk_submit,
	TP_PROTO(u32 dev, u16 queue, u16 tag, u8 op, u64 sector, u32 bytes),
	TP_ARGS(dev, queue, tag, op, sector, bytes),
	TP_STRUCT__entry(
		__field(u32, dev)
		__field(u16, queue)
		__field(u16, tag)
		__field(u8, op)
		__field(u64, sector)
		__field(u32, bytes)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->queue = queue;
		__entry->tag = tag;
		__entry->op = op;
		__entry->sector = sector;
		__entry->bytes = bytes;
	),
	TP_printk("dev=%u,%u queue=%u tag=%u op=%s sector=%llu bytes=%u",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->queue, __entry->tag,
		  farblk_show_op(__entry->op), __entry->sector, __entry->bytes)
);

/* A request is about to be posted on a connection of a path, which may have no room for it. */
TRACE_EVENT(farblk_post,
	TP_PROTO(u32 dev, u16 queue, u16 tag, u8 path),
	TP_ARGS(dev, queue, tag, path),
	TP_STRUCT__entry(
		__field(u32, dev)
		__field(u16, queue)
		__field(u16, tag)
		__field(u8, path)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->queue = queue;
		__entry->tag = tag;
		__entry->path = path;
	),
	TP_printk("dev=%u,%u queue=%u tag=%u path=%u",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->queue, __entry->tag,
		  __entry->path)
);

/*
 * A connection has given a request back. The status is a blk_status_t: BLK_STS_TRANSPORT if the
 * request was not answered because its path was lost.
 */
TRACE_EVENT(farblk_answer,
	TP_PROTO(u32 dev, u16 queue, u16 tag, u8 op, u8 status),
	TP_ARGS(dev, queue, tag, op, status),
	TP_STRUCT__entry(
		__field(u32, dev)
		__field(u16, queue)
		__field(u16, tag)
		__field(u8, op)
		__field(u8, status)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->queue = queue;
		__entry->tag = tag;
		__entry->op = op;
		__entry->status = status;
	),
	TP_printk("dev=%u,%u queue=%u tag=%u op=%s status=%u",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->queue, __entry->tag,
		  farblk_show_op(__entry->op), __entry->status)
);

/* The I/O of a map is treated in another way from now on. */
TRACE_EVENT(farblk_mode,
	TP_PROTO(const char *map, u32 len, u8 mode),
	TP_ARGS(map, len, mode),
	TP_STRUCT__entry(
		__string_len(map, map, len)
		__field(u8, mode)
	),
	TP_fast_assign(
		__assign_str(map);
		__entry->mode = mode;
	),
	TP_printk("map=%s mode=%s", __get_str(map), farblk_show_mode(__entry->mode))
);

/* A map asks its server, on the path "via", to fence another path up to an epoch. */
TRACE_EVENT(farblk_fence,
	TP_PROTO(const char *map, u32 len, u8 via, u8 path, u64 epoch, int error),
	TP_ARGS(map, len, via, path, epoch, error),
	TP_STRUCT__entry(
		__string_len(map, map, len)
		__field(u8, via)
		__field(u8, path)
		__field(u64, epoch)
		__field(int, error)
	),
	TP_fast_assign(
		__assign_str(map);
		__entry->via = via;
		__entry->path = path;
		__entry->epoch = epoch;
		__entry->error = error;
	),
	TP_printk("map=%s via=%u path=%u epoch=%llu error=%d",
		  __get_str(map), __entry->via, __entry->path, __entry->epoch, __entry->error)
);

#endif /* _TRACE_FARBLK_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
