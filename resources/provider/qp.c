// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Queue pairs. */
#include <errno.h>
#include <stdlib.h>

#include "vrdma.h"

struct vrdma_create_qp {
	struct ibv_create_qp ibv_cmd;
	struct virtio_rdma_ureq_create_qp drv;
};
static_assert(offsetof(struct vrdma_create_qp, drv) ==
		      sizeof(struct ibv_create_qp),
	      "the driver's part follows the core's at once");

static int vrdma_init_queues(struct vrdma_qp *qp,
			     const struct virtio_rdma_qp_layout *layout,
			     const struct virtio_rdma_qp_caps *caps)
{
	bool single = vrdma_single_threaded(qp->parent);
	int ret;

	qp->ctrl = qp->buf.addr + layout->ctrl_offset;
	qp->max_inline = caps->inline_data;
	ret = vrdma_wq_init(&qp->sq, qp->buf.addr + layout->sq_offset,
			    layout->sq_entries, layout->sq_stride,
			    caps->send_sge, single);
	if (ret)
		return ret;
	ret = vrdma_wq_init(&qp->rq, qp->buf.addr + layout->rq_offset,
			    layout->rq_entries, layout->rq_stride,
			    caps->recv_sge, single);
	if (ret)
		vrdma_wq_destroy(&qp->sq);
	return ret;
}

static bool vrdma_has_type(const struct vrdma_context *ctx,
			   enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return true;
	case IBV_QPT_UC:
		return ctx->features & (1U << VIRTIO_RDMA_F_UC);
	case IBV_QPT_UD:
		return ctx->features & (1U << VIRTIO_RDMA_F_UD);
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		return ctx->features & (1U << VIRTIO_RDMA_F_XRC);
	default:
		return false;
	}
}

static struct vrdma_qp *vrdma_new_qp(struct ibv_context *ibv_ctx,
				     struct ibv_qp_init_attr_ex *attr)
{
	struct vrdma_context *ctx = to_vctx(ibv_ctx);
	struct ib_uverbs_create_qp_resp resp = {};
	struct vrdma_create_qp cmd = {};
	struct virtio_rdma_qp_caps caps = {
		.send_wr = attr->cap.max_send_wr,
		.send_sge = attr->cap.max_send_sge,
		.inline_data = attr->cap.max_inline_data,
	};
	struct vrdma_qp *qp;
	bool receives;
	int ret;

	if (!vrdma_has_type(ctx, attr->qp_type)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return vrdma_new_target(ibv_ctx, attr);
	/* With a shared receive queue it has no receives of its own. */
	receives = !attr->srq && attr->qp_type != IBV_QPT_XRC_SEND;
	if (receives) {
		caps.recv_wr = attr->cap.max_recv_wr;
		caps.recv_sge = attr->cap.max_recv_sge;
	}
	if (virtio_rdma_layout_qp(&ctx->limits, &caps, &cmd.drv.layout)) {
		errno = EINVAL;
		return NULL;
	}

	qp = calloc(1, sizeof(*qp));
	if (!qp) {
		errno = ENOMEM;
		return NULL;
	}
	qp->parent = vrdma_parent(attr->pd);
	qp->doorbell = ctx->doorbell;
	qp->receives = receives;
	qp->atomics = ctx->features & (1U << VIRTIO_RDMA_F_ATOMICS);
	qp->windows = ctx->features & (1U << VIRTIO_RDMA_F_MW);
	qp->writes_words = ctx->features & (1U << VIRTIO_RDMA_F_ATOMIC_WRITE);
	qp->flushes = ctx->features & (1U << VIRTIO_RDMA_F_FLUSH);
	qp->invalidates = qp->windows ||
			  ctx->features & (1U << VIRTIO_RDMA_F_FRWR);
	ret = vrdma_buf_alloc(&qp->buf, qp->parent, VRDMA_RES_TYPE_QP,
			      cmd.drv.layout.length);
	if (ret)
		goto err_free;
	ret = vrdma_init_queues(qp, &cmd.drv.layout, &caps);
	if (ret)
		goto err_buf;

	cmd.drv.buf_addr = (uintptr_t)qp->buf.addr;
	/* Reports the real limits in attr->cap, as caps has them here. */
	ret = ibv_cmd_create_qp_ex(ibv_ctx, &qp->verbs_qp, attr, &cmd.ibv_cmd,
				   sizeof(cmd), &resp, sizeof(resp));
	if (ret)
		goto err_queues;
	/* After the core has filled in the type. */
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		ret = vrdma_wr_init(qp, attr->send_ops_flags);
	if (!ret)
		ret = vrdma_qp_table_add(ctx, qp);
	if (ret)
		goto err_destroy;
	vrdma_parent_hold(qp->parent);
	return qp;

err_destroy:
	/* While it exists the device may touch its memory. */
	if (ibv_cmd_destroy_qp(&qp->ibv_qp)) {
		errno = ret;
		return NULL;
	}
err_queues:
	vrdma_wq_destroy(&qp->rq);
	vrdma_wq_destroy(&qp->sq);
err_buf:
	vrdma_buf_free(&qp->buf);
err_free:
	free(qp);
	errno = ret;
	return NULL;
}

struct ibv_qp *vrdma_create_qp(struct ibv_pd *pd,
			       struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex attr_ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct vrdma_qp *qp;

	qp = vrdma_new_qp(pd->context, &attr_ex);
	if (!qp)
		return NULL;
	attr->cap = attr_ex.cap;
	return &qp->ibv_qp;
}

struct ibv_qp *vrdma_create_qp_ex(struct ibv_context *ibv_ctx,
				  struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t comp_mask = attr->comp_mask;
	struct vrdma_qp *qp;

	/* There are no flags, but none may be asked for. */
	if (!check_comp_mask(comp_mask, IBV_QP_INIT_ATTR_PD |
						IBV_QP_INIT_ATTR_XRCD |
						IBV_QP_INIT_ATTR_CREATE_FLAGS |
						IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ||
	    ((comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
	     attr->create_flags)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	attr->comp_mask &= ~IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qp = vrdma_new_qp(ibv_ctx, attr);
	attr->comp_mask = comp_mask;
	return qp ? &qp->ibv_qp : NULL;
}

static void vrdma_wq_restart(struct vrdma_wq *wq, __le32 *index)
{
	vrdma_wq_lock(wq);
	wq->producer = 0;
	atomic_store_explicit(&wq->consumer, 0, memory_order_relaxed);
	vrdma_store_release(index, 0);
	vrdma_wq_unlock(wq);
}

static void vrdma_clean_cqs(struct vrdma_qp *qp)
{
	vrdma_cq_clean(to_vcq(qp->ibv_qp.send_cq), qp->ibv_qp.qp_num);
	/* An XRC initiator has none. */
	if (qp->ibv_qp.recv_cq && qp->ibv_qp.recv_cq != qp->ibv_qp.send_cq)
		vrdma_cq_clean(to_vcq(qp->ibv_qp.recv_cq), qp->ibv_qp.qp_num);
}

int vrdma_modify_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask)
{
	struct vrdma_qp *qp = to_vqp(ibv_qp);
	struct ibv_modify_qp cmd = {};
	int ret;

	ret = ibv_cmd_modify_qp(ibv_qp, attr, mask, &cmd, sizeof(cmd));
	if (ret)
		return ret;
	if ((mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET &&
	    qp->ctrl) {
		/* The device's indices are 0 again, and it writes no more. */
		vrdma_clean_cqs(qp);
		vrdma_wq_restart(&qp->sq, &qp->ctrl->sq_producer);
		vrdma_wq_restart(&qp->rq, &qp->ctrl->rq_producer);
	}
	return 0;
}

int vrdma_query_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask,
		   struct ibv_qp_init_attr *init_attr)
{
	struct ibv_query_qp cmd = {};

	return ibv_cmd_query_qp(ibv_qp, attr, mask, init_attr, &cmd,
				sizeof(cmd));
}

int vrdma_destroy_qp(struct ibv_qp *ibv_qp)
{
	struct vrdma_qp *qp = to_vqp(ibv_qp);
	int ret;

	ret = ibv_cmd_destroy_qp(ibv_qp);
	if (ret)
		return ret;
	if (qp->ctrl) {
		vrdma_clean_cqs(qp);
		vrdma_qp_table_remove(to_vctx(ibv_qp->context),
				      ibv_qp->qp_num);
		vrdma_wq_destroy(&qp->rq);
		vrdma_wq_destroy(&qp->sq);
		vrdma_buf_free(&qp->buf);
		vrdma_parent_release(qp->parent);
	}
	free(qp);
	return 0;
}
