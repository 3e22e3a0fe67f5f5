// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Shared receive queues: posted to without system calls. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vrdma.h"

struct vrdma_create_srq {
	struct ibv_create_xsrq ibv_cmd;
	struct virtio_rdma_ureq_srq drv;
};
static_assert(offsetof(struct vrdma_create_srq, drv) ==
		      sizeof(struct ibv_create_xsrq),
	      "the driver's part follows the core's at once");

struct vrdma_modify_srq {
	struct ibv_modify_srq ibv_cmd;
	struct virtio_rdma_ureq_srq drv;
};
static_assert(offsetof(struct vrdma_modify_srq, drv) ==
		      sizeof(struct ibv_modify_srq),
	      "the driver's part follows the core's at once");

static void vrdma_srq_use(struct vrdma_srq *srq, struct vrdma_buf buf,
			  const struct virtio_rdma_srq_layout *layout)
{
	srq->buf = buf;
	srq->entries = layout->entries;
	srq->stride = layout->stride;
	srq->ctrl = buf.addr + layout->ctrl_offset;
	srq->ring = buf.addr + layout->ring_offset;
}

static bool vrdma_has_srq_type(const struct vrdma_context *ctx,
			       const struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	const uint32_t any = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;

	switch (attr->srq_type) {
	case IBV_SRQT_BASIC:
		return attr->comp_mask == any;
	case IBV_SRQT_XRC:
		return attr->comp_mask == (any | xrc) &&
		       ctx->features & (1U << VIRTIO_RDMA_F_XRC);
	default:
		return false;
	}
}

struct ibv_srq *vrdma_create_srq_ex(struct ibv_context *ibv_ctx,
				    struct ibv_srq_init_attr_ex *attr)
{
	struct vrdma_context *ctx = to_vctx(ibv_ctx);
	struct ib_uverbs_create_srq_resp resp = {};
	struct vrdma_create_srq cmd = {};
	struct vrdma_srq *srq;
	struct vrdma_buf buf;
	int ret;

	if (!vrdma_has_srq_type(ctx, attr)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	srq = calloc(1, sizeof(*srq));
	if (!srq) {
		errno = ENOMEM;
		return NULL;
	}
	srq->max_sge = attr->attr.max_sge;
	ret = EINVAL;
	if (virtio_rdma_layout_srq(&ctx->limits, attr->attr.max_wr,
				   &srq->max_sge, &cmd.drv.layout))
		goto err_free;
	ret = pthread_spin_init(&srq->lock, PTHREAD_PROCESS_PRIVATE);
	if (ret)
		goto err_free;
	srq->parent = vrdma_parent(attr->pd);
	ret = vrdma_buf_alloc(&buf, srq->parent, VRDMA_RES_TYPE_SRQ,
			      cmd.drv.layout.length);
	if (ret)
		goto err_lock;
	vrdma_srq_use(srq, buf, &cmd.drv.layout);

	cmd.drv.buf_addr = (uintptr_t)buf.addr;
	/* Reports the real limits in attr->attr. */
	ret = ibv_cmd_create_srq_ex(ibv_ctx, &srq->vsrq, attr, &cmd.ibv_cmd,
				    sizeof(cmd), &resp, sizeof(resp));
	if (ret)
		goto err_buf;
	vrdma_parent_hold(srq->parent);
	return &srq->vsrq.srq;

err_buf:
	vrdma_buf_free(&srq->buf);
err_lock:
	pthread_spin_destroy(&srq->lock);
err_free:
	free(srq);
	errno = ret;
	return NULL;
}

struct ibv_srq *vrdma_create_srq(struct ibv_pd *pd,
				 struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex attr_ex = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};
	struct ibv_srq *srq;

	srq = vrdma_create_srq_ex(pd->context, &attr_ex);
	if (srq)
		attr->attr = attr_ex.attr;
	return srq;
}

static void *vrdma_srq_slot(const struct vrdma_srq *srq, uint32_t index)
{
	return srq->ring + (size_t)(index & (srq->entries - 1)) * srq->stride;
}

/*
 * The device goes on in another ring where it is in this one. What it has not
 * taken is copied first; it may take some meanwhile, for it copies as well.
 */
static int vrdma_srq_move(struct vrdma_srq *srq, struct ibv_srq_attr *attr,
			  int mask, struct vrdma_modify_srq *cmd,
			  struct vrdma_buf *buf)
{
	struct virtio_rdma_srq_layout *layout = &cmd->drv.layout;
	struct virtio_rdma_srq_ctrl *ctrl = buf->addr + layout->ctrl_offset;
	void *ring = buf->addr + layout->ring_offset;
	struct vrdma_buf old = srq->buf;
	uint32_t index;
	int ret;

	index = vrdma_load_acquire(&srq->ctrl->consumer);
	if (srq->producer - index > layout->entries)
		return EINVAL;
	for (; index != srq->producer; index++)
		memcpy(ring + (size_t)(index & (layout->entries - 1)) *
				      layout->stride,
		       vrdma_srq_slot(srq, index), layout->stride);
	vrdma_store_release(&ctrl->producer, srq->producer);

	ret = ibv_cmd_modify_srq(&srq->vsrq.srq, attr, mask, &cmd->ibv_cmd,
				 sizeof(*cmd));
	if (ret)
		return ret;
	vrdma_srq_use(srq, *buf, layout);
	srq->consumer = vrdma_load_acquire(&ctrl->consumer);
	*buf = old;
	return 0;
}

int vrdma_modify_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr,
		     int mask)
{
	struct vrdma_context *ctx = to_vctx(ibv_srq->context);
	struct vrdma_srq *srq = to_vsrq(ibv_srq);
	struct vrdma_modify_srq cmd = {};
	uint32_t max_sge = srq->max_sge;
	struct vrdma_buf buf;
	int ret;

	if (!(mask & IBV_SRQ_MAX_WR))
		return ibv_cmd_modify_srq(ibv_srq, attr, mask, &cmd.ibv_cmd,
					  sizeof(cmd.ibv_cmd));
	if (virtio_rdma_layout_srq(&ctx->limits, attr->max_wr, &max_sge,
				   &cmd.drv.layout))
		return EINVAL;
	ret = vrdma_buf_alloc(&buf, srq->parent, VRDMA_RES_TYPE_SRQ,
			      cmd.drv.layout.length);
	if (ret)
		return ret;
	cmd.drv.buf_addr = (uintptr_t)buf.addr;

	pthread_spin_lock(&srq->lock);
	ret = vrdma_srq_move(srq, attr, mask, &cmd, &buf);
	pthread_spin_unlock(&srq->lock);
	/* The one that is not used, whichever it is. */
	vrdma_buf_free(&buf);
	return ret;
}

int vrdma_query_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr)
{
	struct ibv_query_srq cmd = {};

	return ibv_cmd_query_srq(ibv_srq, attr, &cmd, sizeof(cmd));
}

int vrdma_destroy_srq(struct ibv_srq *ibv_srq)
{
	struct vrdma_srq *srq = to_vsrq(ibv_srq);
	int ret;

	ret = ibv_cmd_destroy_srq(ibv_srq);
	if (ret)
		return ret;
	if (srq->vsrq.xrcd)
		vrdma_cq_clean_srq(to_vcq(srq->vsrq.cq), srq->vsrq.srq_num);
	vrdma_buf_free(&srq->buf);
	vrdma_parent_release(srq->parent);
	pthread_spin_destroy(&srq->lock);
	free(srq);
	return 0;
}

/*
 * Completions come in any order and say nothing about slots: those before the
 * device's index are free, for it has copied them.
 */
static bool vrdma_srq_full(struct vrdma_srq *srq, uint32_t producer)
{
	if (producer - srq->consumer >= srq->entries)
		srq->consumer = vrdma_load_acquire(&srq->ctrl->consumer);
	return producer - srq->consumer >= srq->entries;
}

int vrdma_post_srq_recv(struct ibv_srq *ibv_srq, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr)
{
	struct vrdma_srq *srq = to_vsrq(ibv_srq);
	uint32_t producer;
	int ret = 0;

	pthread_spin_lock(&srq->lock);
	producer = srq->producer;
	for (; wr; wr = wr->next) {
		if (unlikely(wr->num_sge < 0 ||
			     (uint32_t)wr->num_sge > srq->max_sge))
			ret = EINVAL;
		else if (unlikely(vrdma_srq_full(srq, producer)))
			ret = ENOMEM;
		if (unlikely(ret)) {
			*bad_wr = wr;
			break;
		}
		vrdma_fill_recv(vrdma_srq_slot(srq, producer), wr);
		producer++;
	}
	/* No doorbell: the device looks when a message comes. */
	if (producer != srq->producer) {
		srq->producer = producer;
		vrdma_store_release(&srq->ctrl->producer, producer);
	}
	pthread_spin_unlock(&srq->lock);
	return ret;
}
