// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The few functions of libibverbs that the provider calls, with the device's
 * part in them.
 */
#include <errno.h>

#include "test.h"

static uint32_t next_qpn = 0x1fff;

int ibv_dontfork_range(void *base, size_t size)
{
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	return 0;
}

int ibv_cmd_create_cq_ex(struct ibv_context *context,
			 const struct ibv_cq_init_attr_ex *attr,
			 struct verbs_cq *cq, struct ibv_create_cq_ex *cmd,
			 size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp,
			 size_t resp_size, uint32_t cmd_flags)
{
	cq->cq.context = context;
	return 0;
}

/* The device's part as well: what was not polled goes to the new ring. */
int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd,
		      size_t cmd_size, struct ib_uverbs_resize_cq_resp *resp,
		      size_t resp_size)
{
	const struct virtio_rdma_ureq_create_cq *drv = (void *)(cmd + 1);
	void *buf = (void *)(uintptr_t)drv->buf_addr;
	struct virtio_rdma_cqe *ring = buf + drv->layout.ring_offset;
	struct vrdma_cq *old = to_vcq(cq);
	uint32_t unread = 0, i;

	while (unread < old->entries &&
	       vrdma_cqe_valid(old, old->consumer + unread))
		unread++;
	if (unread > drv->layout.entries)
		return EINVAL;
	for (i = 0; i < unread; i++) {
		ring[i] = *vrdma_cqe(old, old->consumer + i);
		ring[i].phase = htole32(1);
	}
	cq->cqe = drv->layout.entries;
	return 0;
}

int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr,
		      struct ibv_modify_cq *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

/* The device's clock at some time, or why it cannot be read. */
int device_clock_error;

int ibv_cmd_query_device_any(struct ibv_context *context,
			     const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_size,
			     struct ib_uverbs_ex_query_device_resp *resp,
			     size_t *resp_size)
{
	struct virtio_rdma_uresp_query_device *drv = (void *)(resp + 1);

	drv->clock = 5000;
	return device_clock_error;
}

int ibv_cmd_destroy_cq(struct ibv_cq *cq)
{
	return 0;
}

int ibv_cmd_create_qp_ex(struct ibv_context *context, struct verbs_qp *vqp,
			 struct ibv_qp_init_attr_ex *attr,
			 struct ibv_create_qp *cmd, size_t cmd_size,
			 struct ib_uverbs_create_qp_resp *resp,
			 size_t resp_size)
{
	struct ibv_qp *qp = &vqp->qp;

	qp->context = context;
	qp->qp_num = next_qpn++;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->qp_type = attr->qp_type;
	qp->state = IBV_QPS_RESET;
	vqp->comp_mask = 0;
	return 0;
}

int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		      struct ibv_modify_qp *cmd, size_t cmd_size)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		     struct ibv_qp_init_attr *init_attr,
		     struct ibv_query_qp *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type,
		     struct ibv_mw *mw, struct ibv_alloc_mw *cmd,
		     size_t cmd_size, struct ib_uverbs_alloc_mw_resp *resp,
		     size_t resp_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_dealloc_mw(struct ibv_mw *mw)
{
	return EOPNOTSUPP;
}

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	return 0;
}

int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *new_pd,
		     struct ibv_alloc_pd *cmd, size_t cmd_size,
		     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_dealloc_pd(struct ibv_pd *old_pd)
{
	return 0;
}

int ibv_cmd_create_srq_ex(struct ibv_context *context, struct verbs_srq *srq,
			  struct ibv_srq_init_attr_ex *attr,
			  struct ibv_create_xsrq *cmd, size_t cmd_size,
			  struct ib_uverbs_create_srq_resp *resp,
			  size_t resp_size)
{
	srq->srq.context = context;
	if (attr->srq_type == IBV_SRQT_XRC) {
		srq->xrcd = container_of(attr->xrcd, struct verbs_xrcd, xrcd);
		srq->srq_num = 0x77;
		srq->cq = attr->cq;
	}
	return 0;
}

int ibv_cmd_open_xrcd(struct ibv_context *context, struct verbs_xrcd *xrcd,
		      int vxrcd_size, struct ibv_xrcd_init_attr *attr,
		      struct ibv_open_xrcd *cmd, size_t cmd_size,
		      struct ib_uverbs_open_xrcd_resp *resp, size_t resp_size)
{
	xrcd->xrcd.context = context;
	return 0;
}

int ibv_cmd_close_xrcd(struct verbs_xrcd *xrcd)
{
	return 0;
}

int ibv_cmd_open_qp(struct ibv_context *context, struct verbs_qp *vqp,
		    int vqp_sz, struct ibv_qp_open_attr *attr,
		    struct ibv_open_qp *cmd, size_t cmd_size,
		    struct ib_uverbs_create_qp_resp *resp, size_t resp_size)
{
	vqp->qp.context = context;
	vqp->qp.qp_num = attr->qp_num;
	vqp->qp.qp_type = attr->qp_type;
	vqp->qp.state = IBV_QPS_RTS;
	return 0;
}

/* What the device does with a new ring of the test's SRQ: it goes on there. */
uint32_t device_srq_taken;

int ibv_cmd_modify_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr,
		       int mask, struct ibv_modify_srq *cmd, size_t cmd_size)
{
	struct virtio_rdma_ureq_srq *drv = (void *)(cmd + 1);
	struct virtio_rdma_srq_ctrl *ctrl;

	if (cmd_size == sizeof(*cmd))
		return 0;
	ctrl = (void *)(uintptr_t)(drv->buf_addr + drv->layout.ctrl_offset);
	vrdma_store_release(&ctrl->consumer, device_srq_taken);
	return 0;
}

int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr,
		      struct ibv_query_srq *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_destroy_srq(struct ibv_srq *srq)
{
	return 0;
}
