// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Shared receive queues: posting, and a ring that moves. */
#include <errno.h>

#include "test.h"

static uint64_t srq_wr_id(struct vrdma_srq *srq, uint32_t index)
{
	struct virtio_rdma_recv_wqe *wqe =
		srq->ring + (size_t)(index & (srq->entries - 1)) * srq->stride;

	return le64toh(wqe->wr_id);
}

static int srq_post(struct vrdma_srq *srq, uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;

	return vrdma_post_srq_recv(&srq->vsrq.srq, &wr, &bad);
}

void test_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 3,
						    .max_sge = 2 } };
	struct ibv_srq *ibv_srq = vrdma_create_srq(&test_pd.ibv_pd, &init);
	struct ibv_sge sges[4] = { { .addr = 0x1000, .length = 7, .lkey = 9 } };
	struct ibv_recv_wr more[3] = {
		{ .wr_id = 1, .next = &more[1], .sg_list = sges, .num_sge = 3 },
		{ .wr_id = 2, .next = &more[2], .sg_list = sges, .num_sge = 4 },
		{ .wr_id = 3 },
	};
	struct vrdma_cq *cq = new_cq(4);
	struct ibv_qp_init_attr sharer = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = &cq->ibv_cq,
		.srq = ibv_srq,
		.cap = { 4, 4, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_srq_attr size = { .max_wr = 8 };
	struct virtio_rdma_sge *sge;
	struct vrdma_srq *srq;
	struct ibv_qp *qp;
	struct ibv_recv_wr *bad;
	uint32_t i;

	CHECK(ibv_srq);
	srq = to_vsrq(ibv_srq);
	CHECK(srq->entries == 4 && srq->max_sge == 3 && srq->stride == 64);
	/* More SGEs than it has: what is before that is posted. */
	CHECK(vrdma_post_srq_recv(ibv_srq, more, &bad) == EINVAL);
	CHECK(bad == &more[1] && le32toh(srq->ctrl->producer) == 1);
	sge = (void *)((struct virtio_rdma_recv_wqe *)srq->ring + 1);
	CHECK(le64toh(sge->addr) == 0x1000 && le32toh(sge->lkey) == 9);

	/* A slot is free when the device has taken it, whatever completes. */
	for (i = 2; i <= 4; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 5) == ENOMEM);
	vrdma_store_release(&srq->ctrl->consumer, 3);
	for (i = 5; i <= 7; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 8) == ENOMEM);
	CHECK(le32toh(srq->ctrl->producer) == 7);

	/* What waits goes along into a larger ring and a smaller one. */
	device_srq_taken = 3;
	CHECK(!vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR));
	CHECK(srq->entries == 8 && le32toh(srq->ctrl->producer) == 7);
	for (i = 3; i < 7; i++)
		CHECK(srq_wr_id(srq, i) == i + 1);
	for (i = 8; i <= 11; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 12) == ENOMEM);
	size.max_wr = 2;
	CHECK(vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(srq->entries == 8);
	device_srq_taken = 9;
	vrdma_store_release(&srq->ctrl->consumer, 9);
	CHECK(!vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR));
	CHECK(srq->entries == 2 && srq_post(srq, 12) == ENOMEM);
	CHECK(srq_wr_id(srq, 9) == 10 && srq_wr_id(srq, 10) == 11);
	size.max_wr = 1025;
	CHECK(vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR) == EINVAL);
	/* Whose receives are shared has none of its own. */
	qp = vrdma_create_qp(&test_pd.ibv_pd, &sharer);
	CHECK(qp);
	qp->state = IBV_QPS_INIT;
	CHECK(vrdma_post_recv(qp, &more[2], &bad) == EINVAL);
	CHECK(bad == &more[2]);
	CHECK(!vrdma_destroy_qp(qp));
	CHECK(!vrdma_destroy_srq(ibv_srq));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));

	init.attr.max_sge = 17;
	CHECK(!vrdma_create_srq(&test_pd.ibv_pd, &init) && errno == EINVAL);
}
