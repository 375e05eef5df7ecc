// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions. A key is the region's index and eight bits that are the user's. What a key allows
 * is checked at each burst: the engine holds the region meanwhile, and an invalidation waits for
 * it, so that nothing is moved by a key once its invalidation has completed.
 */
#include <linux/slab.h>
#include "testhca.h"

static struct thca_mr *mr_add(struct ib_pd *pd, enum thca_mr_state state, int access, u32 pages)
{
	struct thca_dev *dev = to_dev(pd->device);
	struct thca_mr *mr;
	u32 index;
	int ret;

	if (thca_refuses(dev))
		return ERR_PTR(-EIO);
	mr = kzalloc_obj(*mr);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->state = state;
	mr->access = access;
	mr->max_pages = pages;
	if (pages) {
		mr->pages = kvcalloc(pages, sizeof(u64), GFP_KERNEL);
		mr->table = kvcalloc(pages, sizeof(u64), GFP_KERNEL);
		if (!mr->pages || !mr->table) {
			ret = -ENOMEM;
			goto fail;
		}
	}
	mr->ib.device = pd->device;
	mr->ib.pd = pd;
	/* What is not complete yet cannot be found. */
	ret = xa_alloc_cyclic_bh(&dev->mrs, &index, NULL, XA_LIMIT(1, THCA_MAX_MR - 1),
				 &dev->next_mr, GFP_KERNEL);
	if (ret < 0)
		goto fail;
	mr->key = index << 8;
	mr->ib.lkey = mr->key;
	mr->ib.rkey = mr->key;
	xa_store_bh(&dev->mrs, index, mr, GFP_KERNEL);
	return mr;
fail:
	kvfree(mr->pages);
	kvfree(mr->table);
	kfree(mr);
	return ERR_PTR(ret);
}

struct ib_mr *thca_get_dma_mr(struct ib_pd *pd, int access)
{
	struct thca_mr *mr = mr_add(pd, THCA_MR_DMA, access, 0);

	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ib;
}

/* There are no users in user space; but a provider without this is none for the kernel either. */
struct ib_mr *thca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
			       struct ib_dmah *dmah, struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

struct ib_mr *thca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg)
{
	struct thca_mr *mr;

	if (type != IB_MR_TYPE_MEM_REG || !to_dev(pd->device)->mem_mgt)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg || max_num_sg > pd->device->attrs.max_fast_reg_page_list_len)
		return ERR_PTR(-EINVAL);
	mr = mr_add(pd, THCA_MR_FREE, 0, max_num_sg);
	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ib;
}

static int set_page(struct ib_mr *ib, u64 addr)
{
	struct thca_mr *mr = to_mr(ib);

	if (mr->mapped == mr->max_pages)
		return -ENOMEM;
	mr->pages[mr->mapped++] = addr;
	return 0;
}

int thca_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int nents, unsigned int *offset)
{
	to_mr(ib)->mapped = 0;
	return ib_sg_to_pages(ib, sg, nents, offset, set_page);
}

int thca_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct thca_mr *mr = to_mr(ib);

	xa_erase_bh(&to_dev(ib->device)->mrs, mr->key >> 8);
	/* The engine holds it for a burst at the most. */
	while (atomic_read_acquire(&mr->users))
		cpu_relax();
	kvfree(mr->pages);
	kvfree(mr->table);
	kfree(mr);
	return 0;
}

/*
 * The region of a key if that allows access to all of the range, held till thca_mr_put(); else
 * NULL.
 */
struct thca_mr *thca_mr_get(struct thca_dev *dev, struct ib_pd *pd, u32 key, u64 addr, u64 length,
			    int access)
{
	struct thca_mr *mr;

	xa_lock_bh(&dev->mrs);
	mr = xa_load(&dev->mrs, key >> 8);
	if (mr && (mr->key != key || mr->ib.pd != pd || mr->state == THCA_MR_FREE ||
		   ((mr->access & access) != access && !thca_ignores_rights())))
		mr = NULL;
	if (mr && mr->state == THCA_MR_VALID &&
	    (addr < mr->iova || length > mr->length || addr - mr->iova > mr->length - length))
		mr = NULL;
	if (mr)
		atomic_inc(&mr->users);
	xa_unlock_bh(&dev->mrs);
	return mr;
}

void thca_mr_put(struct thca_mr *mr)
{
	atomic_dec_return_release(&mr->users);
}

/* REG_MR: the region must be free. */
bool thca_mr_register(struct thca_qp *qp, const struct thca_swqe *wqe)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	u32 pages = wqe->reg.num_pages;
	bool done = false;
	struct thca_mr *mr;
	u64 offset;

	if (!is_power_of_2(wqe->reg.page_size) || !(wqe->reg.page_size & dev->page_sizes))
		return false;
	/* The specification allows no remote write to what its owner may not write. */
	if ((wqe->reg.access & (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)) &&
	    !(wqe->reg.access & IB_ACCESS_LOCAL_WRITE))
		return false;
	offset = wqe->reg.iova & (wqe->reg.page_size - 1);
	xa_lock_bh(&dev->mrs);
	mr = xa_load(&dev->mrs, wqe->reg.index);
	if (mr && mr->state == THCA_MR_FREE && mr->ib.pd == qp->ib.pd && pages <= mr->max_pages &&
	    wqe->reg.key >> 8 == wqe->reg.index && !atomic_read(&mr->users) &&
	    wqe->reg.length <= (u64)pages * wqe->reg.page_size - (pages ? offset : 0)) {
		memcpy(mr->table, mr->pages, pages * sizeof(u64));
		mr->key = wqe->reg.key;
		mr->access = wqe->reg.access;
		mr->iova = wqe->reg.iova;
		mr->length = wqe->reg.length;
		mr->page_shift = ilog2(wqe->reg.page_size);
		mr->num_pages = pages;
		mr->state = THCA_MR_VALID;
		done = true;
	}
	xa_unlock_bh(&dev->mrs);
	return done;
}

/* Regions that a peer may write to now. */
u32 thca_mr_writable(struct thca_dev *dev)
{
	struct thca_mr *mr;
	unsigned long index;
	u32 n = 0;

	xa_lock_bh(&dev->mrs);
	xa_for_each(&dev->mrs, index, mr)
		n += mr->state == THCA_MR_VALID && (mr->access & IB_ACCESS_REMOTE_WRITE);
	xa_unlock_bh(&dev->mrs);
	return n;
}

/* LOCAL_INV, or what a message asks for. The key must be one of a valid region. */
bool thca_mr_invalidate(struct thca_qp *qp, u32 key)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	struct thca_mr *mr;

	xa_lock_bh(&dev->mrs);
	mr = xa_load(&dev->mrs, key >> 8);
	if (mr && (mr->key != key || mr->ib.pd != qp->ib.pd || mr->state != THCA_MR_VALID))
		mr = NULL;
	if (mr) {
		mr->state = THCA_MR_FREE;
		atomic_inc(&mr->users);
	}
	xa_unlock_bh(&dev->mrs);
	if (!mr)
		return false;
	while (atomic_read_acquire(&mr->users) != 1)
		cpu_relax();
	thca_mr_put(mr);
	return true;
}
