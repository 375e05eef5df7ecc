// SPDX-License-Identifier: GPL-2.0
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/device.h>
#include <linux/idr.h>
#include <linux/sysfs.h>

/* bindgen cannot read macros with a __force cast: rust/block/ spells out these values. */
#define FARBLK_ASSERT(c, value) static_assert((__force unsigned int)(c) == (value))
FARBLK_ASSERT(BLK_STS_NOTSUPP, 1);
FARBLK_ASSERT(BLK_STS_TIMEOUT, 2);
FARBLK_ASSERT(BLK_STS_NOSPC, 3);
FARBLK_ASSERT(BLK_STS_TRANSPORT, 4);
FARBLK_ASSERT(BLK_STS_TARGET, 5);
FARBLK_ASSERT(BLK_STS_RESV_CONFLICT, 6);
FARBLK_ASSERT(BLK_STS_MEDIUM, 7);
FARBLK_ASSERT(BLK_STS_PROTECTION, 8);
FARBLK_ASSERT(BLK_STS_RESOURCE, 9);
FARBLK_ASSERT(BLK_STS_IOERR, 10);
FARBLK_ASSERT(BLK_STS_AGAIN, 12);
FARBLK_ASSERT(BLK_STS_DEV_RESOURCE, 13);
FARBLK_ASSERT(BLK_STS_ZONE_OPEN_RESOURCE, 14);
FARBLK_ASSERT(BLK_STS_ZONE_ACTIVE_RESOURCE, 15);
FARBLK_ASSERT(BLK_STS_OFFLINE, 16);
FARBLK_ASSERT(BLK_STS_DURATION_LIMIT, 17);
FARBLK_ASSERT(BLK_STS_INVAL, 19);
FARBLK_ASSERT(BLK_FEAT_WRITE_CACHE, 1u << 0);
FARBLK_ASSERT(BLK_FEAT_FUA, 1u << 1);
FARBLK_ASSERT(BLK_FEAT_ROTATIONAL, 1u << 2);
FARBLK_ASSERT(BLK_FEAT_SYNCHRONOUS, 1u << 6);
FARBLK_ASSERT(BLK_FEAT_ATOMIC_WRITES, 1u << 14);
FARBLK_ASSERT(BLK_OPEN_READ, 1u << 0);
FARBLK_ASSERT(BLK_OPEN_WRITE, 1u << 1);
FARBLK_ASSERT(REQ_OP_MASK, 0xff);
FARBLK_ASSERT(REQ_SYNC, 1u << __REQ_SYNC);
FARBLK_ASSERT(REQ_IDLE, 1u << __REQ_IDLE);
FARBLK_ASSERT(REQ_FUA, 1u << __REQ_FUA);
FARBLK_ASSERT(REQ_PREFLUSH, 1u << __REQ_PREFLUSH);
FARBLK_ASSERT(REQ_NOWAIT, 1u << __REQ_NOWAIT);
FARBLK_ASSERT(REQ_POLLED, 1u << __REQ_POLLED);
FARBLK_ASSERT(REQ_NOUNMAP, 1u << __REQ_NOUNMAP);
FARBLK_ASSERT(REQ_ATOMIC, 1u << __REQ_ATOMIC);
FARBLK_ASSERT(BLK_UID_EUI64, 2);
#undef FARBLK_ASSERT

/* The type of a UUID in the standard whose types enum blk_unique_id has. */
#define FARBLK_UID_UUID ((enum blk_unique_id)10)
static_assert(FARBLK_UID_UUID > BLK_UID_NAA);

static ssize_t wwid_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct gendisk *disk = dev_to_disk(dev);
	u8 id[16];
	int len = disk->fops->get_unique_id(disk, id, FARBLK_UID_UUID);

	if (len != sizeof(id))
		return len < 0 ? len : -EINVAL;
	return sysfs_emit(buf, "uuid.%pUb\n", id);
}
static DEVICE_ATTR_RO(wwid);

static struct attribute *farblk_disk_attrs[] = {
	&dev_attr_wwid.attr,
	NULL
};
ATTRIBUTE_GROUPS(farblk_disk);

/* The sysfs files of a disk, for device_add_disk(). Its get_unique_id() knows FARBLK_UID_UUID. */
__rust_helper const struct attribute_group **rust_helper_farblk_disk_groups(void)
{
	return farblk_disk_groups;
}

__rust_helper void rust_helper_farblk_suppress_partition_scan(struct gendisk *disk, bool suppress)
{
	assign_bit(GD_SUPPRESS_PART_SCAN, &disk->state, suppress);
}

__rust_helper void rust_helper_ida_init(struct ida *ida)
{
	ida_init(ida);
}

__rust_helper void rust_helper_queue_limits_start_update(struct request_queue *q,
							 struct queue_limits *lim)
{
	*lim = queue_limits_start_update(q);
}

__rust_helper sector_t rust_helper_bdev_nr_sectors(struct block_device *bdev)
{
	return bdev_nr_sectors(bdev);
}

__rust_helper bool rust_helper_bdev_read_only(struct block_device *bdev)
{
	return bdev_read_only(bdev);
}

__rust_helper bool rust_helper_bdev_write_cache(struct block_device *bdev)
{
	return bdev_write_cache(bdev);
}

__rust_helper bool rust_helper_bdev_can_atomic_write(struct block_device *bdev)
{
	return bdev_can_atomic_write(bdev);
}

__rust_helper bool rust_helper_bdev_is_zoned(struct block_device *bdev)
{
	return bdev_is_zoned(bdev);
}

/* No lock is taken, as for all readers of limits in C. */
__rust_helper void rust_helper_farblk_bdev_limits(struct block_device *bdev,
						  struct queue_limits *lim)
{
	*lim = bdev_get_queue(bdev)->limits;
}

__rust_helper bool rust_helper_bdev_stable_writes(struct block_device *bdev)
{
	return bdev_stable_writes(bdev);
}

__rust_helper bool rust_helper_bdev_nowait(struct block_device *bdev)
{
	return bdev_nowait(bdev);
}

__rust_helper unsigned int rust_helper_bdev_logical_block_size(struct block_device *bdev)
{
	return bdev_logical_block_size(bdev);
}

__rust_helper bool rust_helper_farblk_bdev_is_bio_based(struct block_device *bdev)
{
	return bdev_test_flag(bdev, BD_HAS_SUBMIT_BIO);
}
