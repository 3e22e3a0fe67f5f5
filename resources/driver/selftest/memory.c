// SPDX-License-Identifier: GPL-2.0
/* Fast registration, what a peer does with its key, and its end, on RC and UC. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "selftest.h"

/* A region of the second queue pair's side: ST_BYTES within a page. */
struct st_region {
	struct ib_mr *mr;
	struct scatterlist sg;
	u8 *bytes;
};

static bool st_expect(bool is, const char *what)
{
	if (!is)
		pr_err("memory: %s\n", what);
	return is;
}

/* Posts one work request and waits for its completion; its status. */
static int st_do(struct st_rig *rig, struct st_end *end, struct ib_send_wr *wr)
{
	struct st_op *op = &end->sends[0];

	memset(op, 0, sizeof(*op));
	end->num_sends = 0;
	wr->send_flags |= IB_SEND_SIGNALED;
	return st_post(end, wr) ?: st_wait(rig->cq, op) ?: (int)op->status;
}

static int st_register(struct st_rig *rig, struct st_region *region)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR,
		.mr = region->mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			  ST_ACCESS_FLUSH(rig->dev),
	};

	ib_update_fast_reg_key(region->mr, ib_inc_rkey(region->mr->rkey));
	wr.key = region->mr->rkey;
	if (ib_map_mr_sg(region->mr, &region->sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	return st_do(rig, &rig->b, &wr.wr);
}

static int st_invalidate(struct st_rig *rig, struct st_region *region)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = region->mr->rkey,
	};

	return st_do(rig, &rig->b, &wr);
}

/* WRITEs the rig's buffer, filled with a value, over the region. */
static int st_write(struct st_rig *rig, struct st_region *region, u8 value)
{
	struct ib_sge sge = {
		.addr = rig->dma, .length = ST_BYTES,
		.lkey = rig->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = { .opcode = IB_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = region->mr->iova,
		.rkey = region->mr->rkey,
	};

	memset(rig->buf, value, ST_BYTES);
	ib_dma_sync_single_for_device(rig->dev, rig->dma, ST_BYTES,
				      DMA_BIDIRECTIONAL);
	return st_do(rig, &rig->a, &wr.wr);
}

/* What was sent before this has arrived, or never will: UC does not tell. */
static int st_follow(struct st_rig *rig)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND };
	struct st_op *op = &rig->b.recvs[0];

	memset(op, 0, sizeof(*op));
	rig->b.num_recvs = 0;
	return st_post_recvs(rig, &rig->b, 1) ?: st_do(rig, &rig->a, &wr) ?:
	       st_wait(rig->cq, op) ?: (int)op->status;
}

static bool st_holds(struct st_region *region, u8 value)
{
	return !memchr_inv(region->bytes, value, ST_BYTES);
}

#ifdef ST_ATOMIC_WRITE
static bool st_atomic_write(struct st_rig *rig, struct st_region *region)
{
	u64 value = 0x0102030405060708ULL;
	struct ib_sge sge = { .addr = (uintptr_t)&value, .length = 8 };
	struct ib_rdma_wr wr = {
		.wr = { .opcode = IB_WR_ATOMIC_WRITE, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = region->mr->iova,
		.rkey = region->mr->rkey,
	};

	if (!(rig->dev->attrs.device_cap_flags & IB_DEVICE_ATOMIC_WRITE))
		return true;
	/* The value is in the caller's memory, not in a region. */
	if (!st_expect(st_do(rig, &rig->a, &wr.wr) == -EINVAL,
		       "an atomic write that is not inline"))
		return false;
	wr.wr.send_flags = IB_SEND_INLINE;
	sge.length = 4;
	if (!st_expect(st_do(rig, &rig->a, &wr.wr) == -EINVAL,
		       "an atomic write of 4 bytes"))
		return false;
	sge.length = 8;
	return st_expect(!st_do(rig, &rig->a, &wr.wr), "no atomic write") &&
	       st_expect(!memcmp(region->bytes, &value, 8),
			 "an atomic write that did not arrive");
}
#else
static bool st_atomic_write(struct st_rig *rig, struct st_region *region)
{
	return true;
}
#endif

static bool st_keys(struct st_rig *rig, struct st_region *region, bool rc)
{
	int status, round;

	for (round = 1; round < 4; round++)
		if (!st_expect(!st_register(rig, region), "no registration") ||
		    !st_expect(!st_write(rig, region, round), "no WRITE") ||
		    !st_expect(!st_follow(rig), "no SEND behind a WRITE") ||
		    !st_expect(st_holds(region, round), "other bytes") ||
		    !st_expect(!st_invalidate(rig, region), "no invalidation"))
			return false;
	if (rc && (!st_expect(!st_register(rig, region), "no registration") ||
		   !st_atomic_write(rig, region) ||
		   !st_expect(!st_write(rig, region, round), "no WRITE") ||
		   !st_expect(!st_invalidate(rig, region), "no invalidation")))
		return false;
	/* With what came last, the region says that nothing came after. */
	round -= !rc;
	status = st_write(rig, region, 0xee);
	if (rc)
		return st_expect(status == IB_WC_REM_ACCESS_ERR,
				 "a WRITE to a key that is gone") &&
		       st_expect(st_holds(region, round), "it was placed");
	return st_expect(!status && !st_follow(rig),
			 "UC does not go on after a key that is gone") &&
	       st_expect(st_holds(region, round), "it was placed");
}

static bool st_memory_of(struct st_rig *rig, enum ib_qp_type type)
{
	struct st_region region = {};
	bool ok = false;

	memset(&rig->a, 0, sizeof(rig->a));
	memset(&rig->b, 0, sizeof(rig->b));
	region.bytes = kzalloc(ST_BYTES, GFP_KERNEL);
	region.mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 1);
	rig->a.qp = st_create_qp(rig, type, NULL);
	rig->b.qp = st_create_qp(rig, type, NULL);
	if (!st_expect(region.bytes && !IS_ERR(region.mr) &&
		       !IS_ERR(rig->a.qp) && !IS_ERR(rig->b.qp) &&
		       !st_raise(rig, rig->a.qp, rig->b.qp->qp_num, IB_QPS_RTS) &&
		       !st_raise(rig, rig->b.qp, rig->a.qp->qp_num, IB_QPS_RTS),
		       "no queue pairs"))
		goto out;
	sg_init_one(&region.sg, region.bytes, ST_BYTES);
	if (!st_expect(ib_dma_map_sg(rig->dev, &region.sg, 1,
				     DMA_BIDIRECTIONAL) == 1, "no mapping"))
		goto out;
	ok = st_keys(rig, &region, type == IB_QPT_RC);
	ib_dma_unmap_sg(rig->dev, &region.sg, 1, DMA_BIDIRECTIONAL);
out:
	if (!IS_ERR(rig->a.qp))
		ib_destroy_qp(rig->a.qp);
	if (!IS_ERR(rig->b.qp))
		ib_destroy_qp(rig->b.qp);
	if (!IS_ERR(region.mr))
		ib_dereg_mr(region.mr);
	kfree(region.bytes);
	return ok;
}

int st_memory(struct st_rig *rig)
{
	bool ok;

	rig->cq = ib_alloc_cq(rig->dev, NULL, 4 * ST_WR, 0, IB_POLL_DIRECT);
	if (IS_ERR(rig->cq))
		return PTR_ERR(rig->cq);
	ok = st_memory_of(rig, IB_QPT_RC) && st_memory_of(rig, IB_QPT_UC);
	ib_free_cq(rig->cq);
	return ok ? 0 : -EINVAL;
}
