// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory of rings; queue pairs by number. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "vrdma.h"

/*
 * Zeroed whole pages of their own: the driver pins them, and a child of a fork
 * must not take them from under the device.
 */
int vrdma_buf_alloc(struct vrdma_buf *buf, size_t length)
{
	int ret;

	buf->length = length;
	buf->addr = mmap(NULL, length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf->addr == MAP_FAILED)
		return ENOMEM;
	ret = ibv_dontfork_range(buf->addr, length);
	if (ret)
		munmap(buf->addr, length);
	return ret;
}

void vrdma_buf_free(struct vrdma_buf *buf)
{
	ibv_dofork_range(buf->addr, buf->length);
	munmap(buf->addr, buf->length);
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
