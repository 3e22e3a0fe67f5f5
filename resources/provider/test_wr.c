// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Posting with ibv_wr_*. */
#include <errno.h>
#include <string.h>

#include "test.h"

/* ibv_wr_* and ibv_post_send, in turns, on one queue pair. */
static void test_batches(void)
{
	struct vrdma_cq *cq = new_cq(16);
	const struct ibv_qp_cap cap = { 4, 1, 2, 1, 40 };
	struct ibv_sge sges[3] = { { 0x1000, 10, 7 }, { 0x2000, 20, 8 } };
	char first[] = "first", second[] = "second";
	struct ibv_data_buf bufs[2] = { { first, 5 }, { second, 6 } };
	struct ibv_send_wr send = { .wr_id = 77, .opcode = IBV_WR_SEND }, *bad;
	struct virtio_rdma_send_wqe *wqe;
	struct virtio_rdma_sge *sge;
	struct vrdma_qp *qp;
	struct ibv_qp_ex *ex;
	char large[65] = "";
	uint32_t mark;

	CHECK(!new_qp_ex(cq, IBV_QPT_RC, cap, IBV_QP_EX_WITH_TSO));
	CHECK(errno == EOPNOTSUPP);
	qp = new_qp_ex(cq, IBV_QPT_RC, cap,
		       IBV_QP_EX_WITH_SEND |
			       IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
	CHECK(qp);
	ex = &qp->verbs_qp.qp_ex;
	/* Where libibverbs looks, and where an older one looks. */
	CHECK(qp->verbs_qp.comp_mask & VERBS_QP_EX);
	memcpy(&mark, &ex->wr_flush, sizeof(mark));
	CHECK(mark == VERBS_QP_EX);

	/* Not in this state. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL && !qp->ctrl->sq_producer);
	qp->ibv_qp.state = IBV_QPS_RTS;

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, 0x1234, 0x99aabbccddee, htobe32(5));
	ibv_wr_set_sge_list(ex, 2, sges);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_FENCE;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 2, bufs);
	CHECK(!qp->ctrl->sq_producer);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 2);
	wqe = send_slot(qp, 0);
	sge = (void *)(wqe + 1);
	CHECK(le64toh(wqe->wr_id) == 1 && wqe->imm == htobe32(5));
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_WRITE_IMM);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	CHECK(le16toh(wqe->num_sge) == 2 && le64toh(sge[1].addr) == 0x2000);
	wqe = send_slot(qp, 1);
	CHECK(wqe->flags == (VIRTIO_RDMA_WQE_INLINE | VIRTIO_RDMA_WQE_FENCE));
	CHECK(le32toh(wqe->inline_len) == 11 && !wqe->num_sge);
	CHECK(!memcmp(wqe + 1, "firstsecond", 11));

	CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad));
	CHECK(le64toh(send_slot(qp, 2)->wr_id) == 77);

	/* What was given up leaves no trace, nor does a batch with an error. */
	ex->wr_id = 3;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 5, sges);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, large, sizeof(large));
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_atomic_cmp_swp(ex, 1, 2, 3, 4);
	ibv_wr_set_inline_data(ex, large, 8);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, 1, 2, 3);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, 1, 2, 3);
	CHECK(ibv_wr_complete(ex) == ENOMEM);
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);

	ibv_wr_start(ex);
	ibv_wr_atomic_cmp_swp(ex, 1, 2, 3, 4);
	ibv_wr_set_sge(ex, 5, 6, 8);
	CHECK(!ibv_wr_complete(ex));
	wqe = send_slot(qp, 3);
	CHECK(le64toh(wqe->compare_add) == 3 && le64toh(wqe->swap) == 4);
	CHECK(le32toh(qp->ctrl->sq_producer) == 4);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* Atomic write and flush, which only ibv_wr_* posts. */
static void test_placement(void)
{
	struct vrdma_cq *cq = new_cq(16);
	const struct ibv_qp_cap cap = { 4, 1, 1, 1, 0 };
	const uint64_t ops = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
	const uint8_t value[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct virtio_rdma_send_wqe *wqe;
	struct vrdma_qp *qp;
	struct ibv_qp_ex *ex;

	CHECK(!new_qp_ex(cq, IBV_QPT_UC, cap, ops));
	CHECK(errno == EOPNOTSUPP);
	qp = new_qp_ex(cq, IBV_QPT_RC, cap, ops);
	CHECK(qp && qp->verbs_qp.comp_mask & VERBS_QP_EX);
	ex = &qp->verbs_qp.qp_ex;
	qp->ibv_qp.state = IBV_QPS_RTS;

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(ex, 0x1234, 0x99aabbccddee, value);
	ibv_wr_flush(ex, 0x1234, 0x99aabbccddee, 5000, IBV_FLUSH_GLOBAL,
		     IBV_FLUSH_RANGE);
	ibv_wr_flush(ex, 0x1234, 0, 0, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);
	wqe = send_slot(qp, 0);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_ATOMIC_WRITE && !wqe->num_sge);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(!memcmp((uint8_t *)wqe + 32, value, 8));
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	wqe = send_slot(qp, 1);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_FLUSH && !wqe->num_sge);
	CHECK(le64toh(wqe->compare_add) == 5000 && le64toh(wqe->swap) == 1);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(send_slot(qp, 2)->swap) == 0x102);

	/* What makes no sense is not posted. */
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, 0, IBV_FLUSH_RANGE);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, 4, IBV_FLUSH_RANGE);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, IBV_FLUSH_GLOBAL, 2);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_atomic_write(ex, 1, 2, value);
	ibv_wr_set_inline_data(ex, (void *)value, 8);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

void test_wr(void)
{
	test_batches();
	test_placement();
}
