// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory of rings; queue pairs by number. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vrdma.h"

static int vrdma_buf_map(struct vrdma_buf *buf)
{
	buf->addr = mmap(NULL, buf->length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return buf->addr == MAP_FAILED ? ENOMEM : 0;
}

static void vrdma_buf_release(struct vrdma_buf *buf)
{
	if (!buf->pd) {
		munmap(buf->addr, buf->length);
		return;
	}
	buf->pd->free(&buf->pd->ibv_pd, buf->pd->context, buf->addr,
		      VRDMA_RES_TYPE(buf->type));
}

/* From the allocator of a parent domain. It may ask for the usual memory. */
static int vrdma_buf_ask(struct vrdma_buf *buf, struct vrdma_pd *pd)
{
	buf->addr = pd->alloc(&pd->ibv_pd, pd->context, buf->length,
			      VIRTIO_RDMA_PAGE_SIZE, VRDMA_RES_TYPE(buf->type));
	if (buf->addr == IBV_ALLOCATOR_USE_DEFAULT)
		return vrdma_buf_map(buf);
	if (!buf->addr)
		return ENOMEM;
	buf->pd = pd;
	if ((uintptr_t)buf->addr % VIRTIO_RDMA_PAGE_SIZE) {
		vrdma_buf_release(buf);
		return EINVAL;
	}
	memset(buf->addr, 0, buf->length);
	return 0;
}

/*
 * Zeroed whole pages of their own: the driver pins them, and a child of a fork
 * must not take them from under the device. pd may be NULL.
 */
int vrdma_buf_alloc(struct vrdma_buf *buf, struct vrdma_pd *pd,
		    enum vrdma_res_type type, size_t length)
{
	int ret;

	buf->length = length;
	buf->type = type;
	buf->pd = NULL;
	ret = pd && pd->alloc ? vrdma_buf_ask(buf, pd) : vrdma_buf_map(buf);
	if (ret)
		return ret;
	ret = ibv_dontfork_range(buf->addr, length);
	if (ret)
		vrdma_buf_release(buf);
	return ret;
}

void vrdma_buf_free(struct vrdma_buf *buf)
{
	ibv_dofork_range(buf->addr, buf->length);
	vrdma_buf_release(buf);
}

int vrdma_qp_table_add(struct vrdma_context *ctx, struct vrdma_qp *qp)
{
	uint32_t qpn = qp->ibv_qp.qp_num;
	struct vrdma_qp_table *table;
	int ret = 0;

	pthread_mutex_lock(&ctx->qp_lock);
	table = &ctx->qp_table[(qpn >> VRDMA_QP_TABLE_BITS) &
			       VRDMA_QP_TABLE_MASK];
	if (!table->qps)
		table->qps = calloc(VRDMA_QP_TABLE_SIZE, sizeof(*table->qps));
	if (table->qps) {
		table->qps[qpn & VRDMA_QP_TABLE_MASK] = qp;
		table->used++;
	} else {
		ret = ENOMEM;
	}
	pthread_mutex_unlock(&ctx->qp_lock);
	return ret;
}

/* After its CQs have been cleaned: nobody will look for it again. */
void vrdma_qp_table_remove(struct vrdma_context *ctx, uint32_t qpn)
{
	struct vrdma_qp_table *table;

	pthread_mutex_lock(&ctx->qp_lock);
	table = &ctx->qp_table[(qpn >> VRDMA_QP_TABLE_BITS) &
			       VRDMA_QP_TABLE_MASK];
	table->qps[qpn & VRDMA_QP_TABLE_MASK] = NULL;
	if (!--table->used) {
		free(table->qps);
		table->qps = NULL;
	}
	pthread_mutex_unlock(&ctx->qp_lock);
}

/* Without the lock: who asks holds a CQE of it, so it and its table stay. */
struct vrdma_qp *vrdma_qp_table_find(struct vrdma_context *ctx, uint32_t qpn)
{
	struct vrdma_qp_table *table;

	table = &ctx->qp_table[(qpn >> VRDMA_QP_TABLE_BITS) &
			       VRDMA_QP_TABLE_MASK];
	return table->qps ? table->qps[qpn & VRDMA_QP_TABLE_MASK] : NULL;
}
