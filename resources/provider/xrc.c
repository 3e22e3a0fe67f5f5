// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * XRC domains, and the targets in them. What a process has of a target is a
 * handle: it has no queues, and its receives are those of the shared receive
 * queues in its domain.
 */
#include <errno.h>
#include <stdlib.h>

#include "vrdma.h"

struct ibv_xrcd *vrdma_open_xrcd(struct ibv_context *ibv_ctx,
				 struct ibv_xrcd_init_attr *attr)
{
	struct ib_uverbs_open_xrcd_resp resp = {};
	struct ibv_open_xrcd cmd = {};
	struct verbs_xrcd *xrcd;
	int ret;

	xrcd = calloc(1, sizeof(*xrcd));
	if (!xrcd) {
		errno = ENOMEM;
		return NULL;
	}
	ret = ibv_cmd_open_xrcd(ibv_ctx, xrcd, sizeof(*xrcd), attr, &cmd,
				sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		free(xrcd);
		errno = ret;
		return NULL;
	}
	return &xrcd->xrcd;
}

int vrdma_close_xrcd(struct ibv_xrcd *ibv_xrcd)
{
	struct verbs_xrcd *xrcd =
		container_of(ibv_xrcd, struct verbs_xrcd, xrcd);
	int ret;

	ret = ibv_cmd_close_xrcd(xrcd);
	if (ret)
		return ret;
	free(xrcd);
	return 0;
}

static struct vrdma_qp *vrdma_alloc_target(void)
{
	struct vrdma_qp *qp;

	qp = calloc(1, sizeof(*qp));
	if (!qp) {
		errno = ENOMEM;
		return NULL;
	}
	/* Its rings of no slots are always full; they have no locks either. */
	qp->sq.single_threaded = true;
	qp->rq.single_threaded = true;
	return qp;
}

struct vrdma_qp *vrdma_new_target(struct ibv_context *ibv_ctx,
				  struct ibv_qp_init_attr_ex *attr)
{
	struct ib_uverbs_create_qp_resp resp = {};
	struct ibv_create_qp cmd = {};
	struct vrdma_qp *qp;
	int ret;

	/* It sends nothing. */
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
	    attr->send_ops_flags) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = vrdma_alloc_target();
	if (!qp)
		return NULL;
	ret = ibv_cmd_create_qp_ex(ibv_ctx, &qp->verbs_qp, attr, &cmd,
				   sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		free(qp);
		errno = ret;
		return NULL;
	}
	return qp;
}

/* One that exists in a domain, whoever made it. */
struct ibv_qp *vrdma_open_qp(struct ibv_context *ibv_ctx,
			     struct ibv_qp_open_attr *attr)
{
	struct ib_uverbs_create_qp_resp resp = {};
	struct ibv_open_qp cmd = {};
	struct vrdma_qp *qp;
	int ret;

	qp = vrdma_alloc_target();
	if (!qp)
		return NULL;
	ret = ibv_cmd_open_qp(ibv_ctx, &qp->verbs_qp, sizeof(qp->verbs_qp),
			      attr, &cmd, sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		free(qp);
		errno = ret;
		return NULL;
	}
	return &qp->ibv_qp;
}

int vrdma_get_srq_num(struct ibv_srq *ibv_srq, uint32_t *srq_num)
{
	struct vrdma_srq *srq = to_vsrq(ibv_srq);

	if (!srq->vsrq.xrcd)
		return EOPNOTSUPP;
	*srq_num = srq->vsrq.srq_num;
	return 0;
}
