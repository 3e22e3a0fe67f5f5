// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Completion queues, but for polling: made, resized, armed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vrdma.h"

struct vrdma_create_cq {
	struct ibv_create_cq_ex ibv_cmd;
	struct virtio_rdma_ureq_create_cq drv;
};
static_assert(offsetof(struct vrdma_create_cq, drv) ==
		      sizeof(struct ibv_create_cq_ex),
	      "the driver's part follows the core's at once");

struct vrdma_create_cq_resp {
	struct ib_uverbs_ex_create_cq_resp ibv_resp;
	struct virtio_rdma_uresp_create_cq drv;
};
static_assert(offsetof(struct vrdma_create_cq_resp, drv) ==
		      sizeof(struct ib_uverbs_ex_create_cq_resp),
	      "the driver's part follows the core's at once");

struct vrdma_resize_cq {
	struct ibv_resize_cq ibv_cmd;
	struct virtio_rdma_ureq_create_cq drv;
};
static_assert(offsetof(struct vrdma_resize_cq, drv) ==
		      sizeof(struct ibv_resize_cq),
	      "the driver's part follows the core's at once");

/* Of what a completion may be asked for, there is no tag, VLAN or tag matching. */
#define VRDMA_WC_FLAGS                                                         \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |         \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

/* Memory for as many entries; its layout is for the kernel's eyes. */
static int vrdma_cq_memory(struct vrdma_context *ctx, struct vrdma_pd *parent,
			   uint32_t cqe, struct vrdma_buf *buf,
			   struct virtio_rdma_ureq_create_cq *req)
{
	int ret;

	if (virtio_rdma_layout_cq(&ctx->limits, cqe, &req->layout))
		return EINVAL;
	ret = vrdma_buf_alloc(buf, parent, VRDMA_RES_TYPE_CQ,
			      req->layout.length);
	if (ret)
		return ret;
	req->buf_addr = (uintptr_t)buf->addr;
	return 0;
}

static void vrdma_cq_place(struct vrdma_cq *cq, const struct vrdma_buf *buf,
			   const struct virtio_rdma_cq_layout *layout)
{
	cq->buf = *buf;
	cq->entries = layout->entries;
	cq->ctrl = buf->addr + layout->ctrl_offset;
	cq->ring = buf->addr + layout->ring_offset;
}

static struct vrdma_cq *vrdma_new_cq(struct ibv_context *ibv_ctx,
				     struct ibv_cq_init_attr_ex *attr)
{
	struct vrdma_context *ctx = to_vctx(ibv_ctx);
	struct vrdma_create_cq_resp resp = {};
	struct vrdma_create_cq cmd = {};
	struct vrdma_buf buf;
	struct vrdma_cq *cq;
	int ret;

	cq = calloc(1, sizeof(*cq));
	if (!cq) {
		errno = ENOMEM;
		return NULL;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
		cq->parent = vrdma_parent(attr->parent_domain);
	cq->single_threaded = vrdma_single_threaded(cq->parent);
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS)
		cq->single_threaded |= attr->flags &
				       IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	ret = pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
	if (ret)
		goto err_free;
	ret = vrdma_cq_memory(ctx, cq->parent, attr->cqe, &buf, &cmd.drv);
	if (ret)
		goto err_lock;
	vrdma_cq_place(cq, &buf, &cmd.drv.layout);

	/* Every completion has its time, so the kernel need not be asked. */
	ret = ibv_cmd_create_cq_ex(ibv_ctx, attr, &cq->verbs_cq, &cmd.ibv_cmd,
				   sizeof(cmd), &resp.ibv_resp, sizeof(resp),
				   CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX);
	if (ret)
		goto err_buf;
	cq->cqn = resp.drv.cqn;
	vrdma_parent_hold(cq->parent);
	return cq;

err_buf:
	vrdma_buf_free(&cq->buf);
err_lock:
	pthread_spin_destroy(&cq->lock);
err_free:
	free(cq);
	errno = ret;
	return NULL;
}

struct ibv_cq *vrdma_create_cq(struct ibv_context *ibv_ctx, int cqe,
			       struct ibv_comp_channel *channel,
			       int comp_vector)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.channel = channel,
		.comp_vector = comp_vector,
	};
	struct vrdma_cq *cq;

	cq = vrdma_new_cq(ibv_ctx, &attr);
	return cq ? &cq->ibv_cq : NULL;
}

struct ibv_cq_ex *vrdma_create_cq_ex(struct ibv_context *ibv_ctx,
				     struct ibv_cq_init_attr_ex *attr)
{
	struct vrdma_cq *cq;
	int ret;

	if (!check_comp_mask(attr->comp_mask, IBV_CQ_INIT_ATTR_MASK_FLAGS |
						      IBV_CQ_INIT_ATTR_MASK_PD) ||
	    !check_comp_mask(attr->wc_flags, VRDMA_WC_FLAGS)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	    !check_comp_mask(attr->flags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) &&
	    !vrdma_parent(attr->parent_domain)) {
		errno = EINVAL;
		return NULL;
	}
	cq = vrdma_new_cq(ibv_ctx, attr);
	if (!cq)
		return NULL;
	vrdma_cq_ex_init(cq, attr);
	/* Polling has no way to say that it is not known. */
	ret = cq->wallclock ? vrdma_check_wallclock(cq) : 0;
	if (ret) {
		vrdma_destroy_cq(&cq->ibv_cq);
		errno = ret;
		return NULL;
	}
	return &cq->verbs_cq.cq_ex;
}

int vrdma_destroy_cq(struct ibv_cq *ibv_cq)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	int ret;

	ret = ibv_cmd_destroy_cq(ibv_cq);
	if (ret)
		return ret;
	vrdma_buf_free(&cq->buf);
	vrdma_parent_release(cq->parent);
	pthread_spin_destroy(&cq->lock);
	free(cq);
	return 0;
}

/*
 * The device moves what has not been polled to the new ring, from its index 0
 * on. Nobody polls or arms meanwhile.
 */
int vrdma_resize_cq(struct ibv_cq *ibv_cq, int cqe)
{
	struct vrdma_context *ctx = to_vctx(ibv_cq->context);
	struct ib_uverbs_resize_cq_resp resp = {};
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	struct vrdma_resize_cq cmd = {};
	struct virtio_rdma_cq_ctrl *ctrl;
	struct vrdma_buf buf;
	int ret;

	if (!(ctx->features & (1U << VIRTIO_RDMA_F_CQ_RESIZE)))
		return EOPNOTSUPP;
	if (cqe < 1)
		return EINVAL;
	ret = vrdma_cq_memory(ctx, cq->parent, cqe, &buf, &cmd.drv);
	if (ret)
		return ret;

	vrdma_cq_lock(cq);
	ctrl = buf.addr + cmd.drv.layout.ctrl_offset;
	vrdma_store(&ctrl->arm, vrdma_load(&cq->ctrl->arm));
	ret = ibv_cmd_resize_cq(ibv_cq, cqe, &cmd.ibv_cmd, sizeof(cmd), &resp,
				sizeof(resp));
	if (!ret) {
		struct vrdma_buf old = cq->buf;

		vrdma_cq_place(cq, &buf, &cmd.drv.layout);
		cq->consumer = 0;
		buf = old;
	}
	vrdma_cq_unlock(cq);
	vrdma_buf_free(&buf);
	return ret;
}

int vrdma_modify_cq(struct ibv_cq *ibv_cq, struct ibv_modify_cq_attr *attr)
{
	struct ibv_modify_cq cmd = {};

	return ibv_cmd_modify_cq(ibv_cq, attr, &cmd, sizeof(cmd));
}

int vrdma_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	uint32_t kind = solicited_only ? VIRTIO_RDMA_ARM_SOLICITED :
					 VIRTIO_RDMA_ARM_ANY;

	vrdma_cq_lock(cq);
	/* Under one sequence the stronger kind stays. */
	if (cq->armed < kind)
		cq->armed = kind;
	vrdma_store_release(&cq->ctrl->arm,
			    cq->sequence << VIRTIO_RDMA_ARM_SEQ_SHIFT |
				    cq->armed);
	/* Armed before the ring is looked at; the device does the reverse. */
	vrdma_fence();
	vrdma_cq_unlock(cq);
	return 0;
}

/* An event was taken from the channel: the next arming is a new one. */
void vrdma_cq_event(struct ibv_cq *ibv_cq)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);

	vrdma_cq_lock(cq);
	cq->sequence = (cq->sequence + 1) & VIRTIO_RDMA_ARM_SEQ_MASK;
	cq->armed = 0;
	vrdma_cq_unlock(cq);
}

/* Of this queue pair, or with the flag XRC of this shared receive queue. */
static bool vrdma_cqe_is_of(const struct virtio_rdma_cqe *cqe, uint16_t xrc,
			    uint32_t number)
{
	if ((le16toh(cqe->flags) & VIRTIO_RDMA_CQE_XRC) != xrc)
		return false;
	return le32toh(xrc ? cqe->srqn : cqe->qpn) == number;
}

/*
 * Takes CQEs out: those that stay move up to the producer's end, each under
 * the phase of its new place.
 */
static void vrdma_cq_take_out(struct vrdma_cq *cq, uint16_t xrc,
			      uint32_t number)
{
	struct virtio_rdma_cqe *from, *to;
	uint32_t producer, i, freed = 0;

	vrdma_cq_lock(cq);
	producer = cq->consumer;
	while (producer - cq->consumer < cq->entries &&
	       vrdma_cqe_valid(cq, producer))
		producer++;

	for (i = producer; i != cq->consumer;) {
		from = vrdma_cqe(cq, --i);
		if (vrdma_cqe_is_of(from, xrc, number)) {
			freed++;
		} else if (freed) {
			to = vrdma_cqe(cq, i + freed);
			memcpy(to, from,
			       offsetof(struct virtio_rdma_cqe, phase));
		}
	}
	if (freed) {
		cq->consumer += freed;
		vrdma_store_release(&cq->ctrl->consumer, cq->consumer);
	}
	vrdma_cq_unlock(cq);
}

/* Those of a queue pair. */
void vrdma_cq_clean(struct vrdma_cq *cq, uint32_t qpn)
{
	vrdma_cq_take_out(cq, 0, qpn);
}

/* Those of an XRC shared receive queue, whatever queue pair they came by. */
void vrdma_cq_clean_srq(struct vrdma_cq *cq, uint32_t srqn)
{
	vrdma_cq_take_out(cq, VIRTIO_RDMA_CQE_XRC, srqn);
}
