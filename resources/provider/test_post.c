// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* What is posted: plain verbs, and how UC and UD send. */
#include <errno.h>
#include <string.h>

#include "test.h"

static void test_post_send(void)
{
	struct vrdma_cq *cq = new_cq(16);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 4, 1, 2, 1, 40 }, IBV_QPS_RTR);
	struct ibv_sge sges[2] = {
		{ .addr = 0x123456789000, .length = 100, .lkey = 7 },
		{ .addr = 0x1000, .length = 1, .lkey = 8 },
	};
	struct ibv_send_wr wr = {
		.wr_id = 0xabcdef0123456789,
		.sg_list = sges,
		.num_sge = 2,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
		.imm_data = htobe32(0x55667788),
		.wr.rdma = { .remote_addr = 0x99aabbccddee, .rkey = 0x1234 },
	};
	struct ibv_send_wr more[4], *bad = NULL;
	struct virtio_rdma_send_wqe *wqe = send_slot(qp, 0);
	struct virtio_rdma_sge *sge = (void *)(wqe + 1);
	char text[65] = "forty bytes that go into the WQE itself";
	int i;

	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(!qp->ctrl->sq_producer);

	/* The device is looking anyway: no doorbell. */
	qp->ibv_qp.state = IBV_QPS_RTS;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	CHECK(le32toh(qp->ctrl->sq_producer) == 1);
	CHECK(test_doorbell == NO_DOORBELL);
	CHECK(le64toh(wqe->wr_id) == wr.wr_id);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_WRITE_IMM);
	CHECK(wqe->flags == (VIRTIO_RDMA_WQE_SIGNALED | VIRTIO_RDMA_WQE_FENCE));
	CHECK(le16toh(wqe->num_sge) == 2 && wqe->imm == wr.imm_data);
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(sge[0].addr) == sges[0].addr);
	CHECK(le32toh(sge[1].length) == 1 && le32toh(sge[1].lkey) == 8);

	/* It sleeps: one doorbell, with the QP's number. */
	qp->ctrl->flags = htole32(VIRTIO_RDMA_KICK_SQ);
	sges[0] = (struct ibv_sge){ (uintptr_t)text, 30, 0 };
	sges[1] = (struct ibv_sge){ (uintptr_t)text + 30, 10, 0 };
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	CHECK(test_doorbell == htole32(qp->ibv_qp.qp_num));
	wqe = send_slot(qp, 1);
	CHECK(wqe->flags ==
	      (VIRTIO_RDMA_WQE_INLINE | VIRTIO_RDMA_WQE_SOLICITED));
	CHECK(!wqe->num_sge && le32toh(wqe->inline_len) == 40);
	CHECK(!memcmp(wqe + 1, text, 40));

	/* What does not fit or cannot be is refused before it is seen. */
	test_doorbell = NO_DOORBELL;
	sges[0].length = 65;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	sges[0].length = 30;
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.send_flags = 0;
	wr.opcode = IBV_WR_TSO;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 5;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	qp->atomics = false;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	CHECK(le32toh(qp->ctrl->sq_producer) == 2);
	CHECK(test_doorbell == NO_DOORBELL);

	/* Two of a chain of four fit, and are posted. */
	wr.opcode = IBV_WR_SEND;
	for (i = 0; i < 4; i++) {
		more[i] = wr;
		more[i].next = i < 3 ? &more[i + 1] : NULL;
	}
	CHECK(vrdma_post_send(&qp->ibv_qp, more, &bad) == ENOMEM);
	CHECK(bad == &more[2] && le32toh(qp->ctrl->sq_producer) == 4);
	CHECK(test_doorbell == htole32(qp->ibv_qp.qp_num));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* What UC and UD send, and how a datagram is addressed. */
static void test_unacknowledged(void)
{
	struct vrdma_ah ah = {
		.av = { .dgid = { 0xfe, 0x80, [15] = 7 },
			.flow_label = htole32(0x12345),
			.sgid_index = 3,
			.hop_limit = 64,
			.traffic_class = 8,
			.sl = 5 },
	};
	struct vrdma_cq *cq = new_cq(16);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 4, 1, 1, 1, 0 }, IBV_QPS_RTS);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ }, *bad;
	struct virtio_rdma_send_wqe *wqe = send_slot(qp, 0);
	const uint8_t *bytes = (uint8_t *)wqe;
	struct ibv_qp_ex *ex;

	qp->ibv_qp.qp_type = IBV_QPT_UC;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));

	qp->ibv_qp.qp_type = IBV_QPT_UD;
	wr.wr.ud.ah = &ah.ibv_ah;
	wr.wr.ud.remote_qpn = 0x112233;
	wr.wr.ud.remote_qkey = 0x44556677;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	bytes += qp->sq.stride;
	CHECK(!memcmp(bytes + 24, "\x33\x22\x11\0\x77\x66\x55\x44", 8));
	CHECK(bytes[32] == 0xfe && bytes[33] == 0x80 && bytes[47] == 7);
	CHECK(!memcmp(bytes + 48, "\x45\x23\x01\0\x03\x40\x08\x05", 8));
	CHECK(le32toh(qp->ctrl->sq_producer) == 2);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));

	/* The same by ibv_wr_*, where an address before any request is none's. */
	qp = new_qp_ex(cq, IBV_QPT_UD, (struct ibv_qp_cap){ 4, 1, 1, 1, 0 },
		       IBV_QP_EX_WITH_SEND);
	CHECK(qp);
	ex = &qp->verbs_qp.qp_ex;
	qp->ibv_qp.state = IBV_QPS_RTS;
	ibv_wr_start(ex);
	ibv_wr_set_ud_addr(ex, &ah.ibv_ah, 1, 2);
	ex->wr_id = 5;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, &ah.ibv_ah, 0x112233, 0x44556677);
	ibv_wr_set_sge(ex, 7, 0x1000, 100);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 1);
	wqe = send_slot(qp, 0);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_SEND && le64toh(wqe->wr_id) == 5);
	CHECK(le16toh(wqe->num_sge) == 1);
	bytes = (uint8_t *)wqe;
	CHECK(!memcmp(bytes + 24, "\x33\x22\x11\0\x77\x66\x55\x44", 8));
	CHECK(!memcmp(bytes + 32, &ah.av, sizeof(ah.av)));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

void test_post(void)
{
	test_post_send();
	test_unacknowledged();
}
