// SPDX-License-Identifier: GPL-2.0
/*
 * How the device reaches memory: by DMA address, as hardware does. With an IOMMU it does not reach
 * what was not mapped for it, or no longer is. What was bounced it finds in the bounce buffer
 * alone.
 */
#include <linux/dma-direct.h>
#include <linux/mm.h>
#include "testhca.h"

#define REMOTE_ACCESS (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)

/* What translates the addresses of a device; NULL if they are physical ones. */
struct iommu_domain *thca_domain(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain && domain->type != IOMMU_DOMAIN_IDENTITY ? domain : NULL;
}

/* Where the CPU finds a DMA address, and how much is there in one piece; NULL if nothing is. */
void *thca_dma_to_virt(struct thca_dev *dev, u64 addr, size_t *len)
{
	phys_addr_t phys;

	if (dev->domain) {
		phys = iommu_iova_to_phys(dev->domain, addr);
		*len = min_t(size_t, *len, PAGE_SIZE - offset_in_page(addr));
	} else {
		phys = dma_to_phys(dev->ib.dma_device, addr);
	}
	if (!phys || !pfn_valid(PHYS_PFN(phys)) || !pfn_valid(PHYS_PFN(phys + *len - 1))) {
		thca_count(dev, THCA_DMA_FAULTS, 1);
		dev_warn_ratelimited(&dev->ib.dev, "DMA fault at %#llx\n", addr);
		return NULL;
	}
	return phys_to_virt(phys);
}

/* Begins a walk through segments of that queue pair. Their keys must allow all of access. */
void thca_cursor_sges(struct thca_cursor *c, struct thca_qp *qp, const struct ib_sge *sge,
		      u32 num_sge, int access)
{
	*c = (struct thca_cursor) {
		.dev = to_dev(qp->ib.device),
		.pd = qp->ib.pd,
		.sge = sge,
		.num_sge = num_sge,
		.access = access,
	};
}

/* The same through what a work request sends, or through what it reads into. */
void thca_send_cursor(struct thca_cursor *c, struct thca_qp *qp, struct thca_swqe *wqe, int access)
{
	thca_cursor_sges(c, qp, wqe->sge, wqe->num_sge, access);
	if (wqe->is_inline) {
		c->data = wqe->data;
		c->data_left = wqe->length;
	}
}

void thca_cursor_close(struct thca_cursor *c)
{
	if (c->mr)
		thca_mr_put(c->mr);
	c->mr = NULL;
	c->open = false;
}

/* Begins the next segment that is not empty. 0 at the end, or an error. */
static int cursor_open(struct thca_cursor *c)
{
	while (c->num_sge && !c->sge->length) {
		c->sge++;
		c->num_sge--;
	}
	if (!c->num_sge)
		return 0;
	c->offset = 0;
	if (c->sge->lkey != THCA_DMA_LKEY || (c->access & REMOTE_ACCESS)) {
		c->mr = thca_mr_get(c->dev, c->pd, c->sge->lkey, c->sge->addr, c->sge->length,
				    c->access);
		if (!c->mr)
			return -EACCES;
	}
	c->open = true;
	return 1;
}

static void cursor_advance(struct thca_cursor *c, u32 bytes)
{
	if (c->data) {
		c->data += bytes;
		c->data_left -= bytes;
		return;
	}
	c->offset += bytes;
	if (c->offset == c->sge->length) {
		thca_cursor_close(c);
		c->sge++;
		c->num_sge--;
	}
}

/* Walks over so many bytes. Fails as thca_cursor_next() does. */
int thca_cursor_skip(struct thca_cursor *c, u32 bytes)
{
	while (bytes) {
		u32 n = c->data_left;
		int ret;

		if (!c->data) {
			ret = c->open ? 1 : cursor_open(c);
			if (ret <= 0)
				return ret ?: -EMSGSIZE;
			n = c->sge->length - c->offset;
		}
		n = min(n, bytes);
		cursor_advance(c, n);
		bytes -= n;
	}
	return 0;
}

/*
 * The next piece of memory: 1, or 0 at the end, or -EACCES for a key that does not allow it, and
 * -EFAULT where there is no memory.
 */
int thca_cursor_next(struct thca_cursor *c, void **p, size_t *len)
{
	u64 addr;
	int ret;

	if (c->data) {
		*p = (void *)c->data;
		*len = c->data_left;
		return !!*len;
	}
	ret = c->open ? 1 : cursor_open(c);
	if (ret <= 0)
		return ret;
	addr = c->sge->addr + c->offset;
	*len = c->sge->length - c->offset;
	if (c->mr && c->mr->state == THCA_MR_VALID) {
		u64 page = 1ULL << c->mr->page_shift;
		u64 at = addr - c->mr->iova + (c->mr->iova & (page - 1));

		*len = min_t(u64, *len, page - (at & (page - 1)));
		addr = c->mr->table[at >> c->mr->page_shift] + (at & (page - 1));
	}
	*p = thca_dma_to_virt(c->dev, addr, len);
	return *p ? 1 : -EFAULT;
}

/* Moves so many bytes on. Closes neither walk. */
enum thca_copied thca_copy(struct thca_cursor *to, struct thca_cursor *from, u32 bytes)
{
	while (bytes) {
		size_t from_len, to_len, n;
		void *src, *dst;

		if (thca_cursor_next(from, &src, &from_len) <= 0)
			return THCA_BAD_FROM;
		if (thca_cursor_next(to, &dst, &to_len) <= 0)
			return THCA_BAD_TO;
		n = min3(from_len, to_len, (size_t)bytes);
		memmove(dst, src, n);
		cursor_advance(from, n);
		cursor_advance(to, n);
		bytes -= n;
	}
	return THCA_COPIED;
}
