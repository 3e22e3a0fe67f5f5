// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory windows and local invalidation: what is posted, by which kinds of
 * queue pairs, and the key of a window of type 1.
 */
#include <errno.h>
#include <string.h>

#include "test.h"

static const struct ibv_mw_bind_info part = {
	.addr = 0x99aabbccddee,
	.length = 0x112233445566,
	.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED,
};

static void check_bind(const struct virtio_rdma_send_wqe *wqe, uint32_t key)
{
	const uint8_t *bytes = (const uint8_t *)wqe;

	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_BIND_MW && !wqe->num_sge);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(le32toh(wqe->inv_key) == key && le32toh(wqe->rkey) == 0x77);
	CHECK(!memcmp(bytes + 24, "\xee\xdd\xcc\xbb\xaa\x99\0\0", 8));
	CHECK(!memcmp(bytes + 32, "\x66\x55\x44\x33\x22\x11\0\0", 8));
	CHECK(!memcmp(bytes + 40, "\x22\0\0\0\0\0\0\0", 8));
}

static void check_invalidate(const struct virtio_rdma_send_wqe *wqe,
			     uint32_t key)
{
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_LOCAL_INV && !wqe->num_sge);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(le32toh(wqe->inv_key) == key);
}

static struct vrdma_qp *new_local_qp(struct vrdma_cq *cq, enum ibv_qp_type type)
{
	struct vrdma_qp *qp = new_qp_ex(cq, type,
					(struct ibv_qp_cap){ 8, 1, 1, 1, 0 },
					IBV_QP_EX_WITH_BIND_MW |
						IBV_QP_EX_WITH_LOCAL_INV);

	if (qp)
		qp->ibv_qp.state = IBV_QPS_RTS;
	return qp;
}

/* Both ways of posting, on a queue pair whose peers may have windows. */
static void test_posts(struct vrdma_cq *cq, enum ibv_qp_type type)
{
	struct vrdma_qp *qp = new_local_qp(cq, type);
	struct ibv_mr mr = { .lkey = 0x77 };
	struct ibv_mw one = { .rkey = 0x1ff, .type = IBV_MW_TYPE_1 };
	struct ibv_mw_bind bind = { .wr_id = 5,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = part };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_ex *ex;

	CHECK(qp);
	ex = &qp->verbs_qp.qp_ex;
	bind.bind_info.mr = &mr;
	wr.bind_mw.rkey = 0x202;
	wr.bind_mw.bind_info = bind.bind_info;

	/* Type 1: the tag is the next, and wraps within itself. */
	CHECK(!vrdma_bind_mw(&qp->ibv_qp, &one, &bind));
	CHECK(one.rkey == 0x100);
	check_bind(send_slot(qp, 0), 0x100);
	CHECK(le64toh(send_slot(qp, 0)->wr_id) == 5);

	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	check_bind(send_slot(qp, 1), 0x202);
	wr.opcode = IBV_WR_LOCAL_INV;
	wr.invalidate_rkey = 0x202;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	check_invalidate(send_slot(qp, 2), 0x202);

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(ex, &one, 0x303, &bind.bind_info);
	ibv_wr_local_inv(ex, 0x303);
	CHECK(!ibv_wr_complete(ex));
	check_bind(send_slot(qp, 3), 0x303);
	check_invalidate(send_slot(qp, 4), 0x303);
	CHECK(le32toh(qp->ctrl->sq_producer) == 5);

	/* One of no bytes unbinds and names no region; any other has one. */
	bind.bind_info.mr = NULL;
	CHECK(vrdma_bind_mw(&qp->ibv_qp, &one, &bind) == EINVAL);
	CHECK(one.rkey == 0x100);
	bind.bind_info.length = 0;
	CHECK(!vrdma_bind_mw(&qp->ibv_qp, &one, &bind));
	CHECK(!send_slot(qp, 5)->rkey && one.rkey == 0x101);

	/* Without the feature there is nothing of that. */
	qp->windows = qp->invalidates = false;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	CHECK(vrdma_bind_mw(&qp->ibv_qp, &one, &bind) == EINVAL);
	CHECK(le32toh(qp->ctrl->sq_producer) == 6 && one.rkey == 0x101);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
}

void test_windows(void)
{
	struct vrdma_context *ctx = to_vctx(test_pd.ibv_pd.context);
	const uint32_t without = ctx->features;
	struct vrdma_cq *cq = new_cq(8);

	CHECK(!new_local_qp(cq, IBV_QPT_UC) && errno == EOPNOTSUPP);
	ctx->features |= 1U << VIRTIO_RDMA_F_MW;
	test_posts(cq, IBV_QPT_RC);
	test_posts(cq, IBV_QPT_UC);
	/* A datagram has no peer for which a window could be. */
	CHECK(!new_local_qp(cq, IBV_QPT_UD) && errno == EOPNOTSUPP);
	ctx->features = without;
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}
