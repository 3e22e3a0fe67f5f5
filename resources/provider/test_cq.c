// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Completion queues: polled, armed, resized. */
#include <errno.h>

#include "test.h"

static void test_laps(void)
{
	struct vrdma_cq *cq = new_cq(4);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 2, 2, 1, 1, 0 }, IBV_QPS_RTS);
	struct device_cq dev = { .cq = cq };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = {}, *bad_recv;
	struct ibv_wc wc[4];
	uint32_t i;

	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 4, wc));
	for (i = 0; i < 11; i++) {
		recv.wr_id = 100 + i;
		send.wr_id = 200 + i;
		CHECK(!vrdma_post_recv(&qp->ibv_qp, &recv, &bad_recv));
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_WITH_IMM, i, 100 + i);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i,
				200 + i);
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 1, wc) == 1);
		CHECK(wc[0].wr_id == 100 + i && wc[0].opcode == IBV_WC_RECV);
		CHECK(wc[0].wc_flags == IBV_WC_WITH_IMM);
		CHECK(wc[0].imm_data == htobe32(0x11223344));
		CHECK(wc[0].qp_num == qp->ibv_qp.qp_num);
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
		CHECK(wc[0].wr_id == 200 + i && !wc[0].wc_flags);
		CHECK(!vrdma_poll_cq(&cq->ibv_cq, 4, wc));
		CHECK(le32toh(cq->ctrl->consumer) == 2 * i + 2);
	}

	/* One completion retires all sends before it, and only those. */
	for (i = 0; i < 2; i++)
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
	CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad_send) == ENOMEM);
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, 12, 0);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
	for (i = 0; i < 2; i++)
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
	CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad_send) == ENOMEM);

	/* An overflowed CQ gives what it has, and then an error. */
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, 13, 0);
	cq->ctrl->flags = htole32(VIRTIO_RDMA_CQ_ERROR);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) < 0);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

static void test_arm(void)
{
	struct vrdma_cq *cq = new_cq(1);

	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_SOLICITED);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 0));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_ANY);
	/* The stronger of two armings stays. */
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_ANY);
	/* An event ends it. */
	vrdma_cq_event(&cq->ibv_cq);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == (1 << 2 | VIRTIO_RDMA_ARM_SOLICITED));
	/* The sequence has the 30 bits that the word has room for. */
	cq->sequence = VIRTIO_RDMA_ARM_SEQ_MASK;
	vrdma_cq_event(&cq->ibv_cq);
	CHECK(!cq->sequence);
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* Extended and plain verbs, in turns, on one CQ. */
static void test_start_poll(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 4,
		.wc_flags = IBV_WC_STANDARD_FLAGS |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_init_attr_ex tags = {
		.cqe = 4,
		.wc_flags = IBV_WC_EX_WITH_FLOW_TAG,
	};
	struct ibv_poll_cq_attr attr = {}, odd = { .comp_mask = 1 };
	struct ibv_cq_ex *ex;
	struct device_cq dev = {};
	struct vrdma_qp *qp;
	struct ibv_wc wc;
	uint32_t i = 0, lap;

	CHECK(!vrdma_create_cq_ex(test_pd.ibv_pd.context, &tags));
	CHECK(errno == EOPNOTSUPP);
	/* There is no time of the wall clock that nobody found out. */
	device_clock_error = EIO;
	CHECK(!vrdma_create_cq_ex(test_pd.ibv_pd.context, &init));
	CHECK(errno == EIO);
	device_clock_error = 0;
	ex = vrdma_create_cq_ex(test_pd.ibv_pd.context, &init);
	CHECK(ex);
	dev.cq = to_vcq(ibv_cq_ex_to_cq(ex));
	qp = new_qp(dev.cq, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 }, IBV_QPS_RTS);

	CHECK(dev.cq->wall_offset > 0);
	/* A reading that fails later leaves what is known. */
	device_clock_error = EIO;
	dev.cq->wall_checked = 0;
	CHECK(ibv_start_poll(ex, &odd) == EINVAL);
	CHECK(ibv_start_poll(ex, &attr) == ENOENT);
	CHECK(dev.cq->wall_offset > 0);
	device_clock_error = 0;
	for (lap = 0; lap < 5; lap++) {
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_WITH_IMM, i, i + 100);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i + 1, 7);
		CHECK(!ibv_start_poll(ex, &attr));
		CHECK(ex->wr_id == i && ex->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_opcode(ex) == IBV_WC_SEND);
		CHECK(!ibv_wc_read_wc_flags(ex));
		/* The slot is not given away before the end. */
		CHECK(le32toh(dev.cq->ctrl->consumer) == 3 * lap);
		CHECK(!ibv_next_poll(ex));
		CHECK(ex->wr_id == i + 100);
		CHECK(ibv_wc_read_opcode(ex) == IBV_WC_RECV);
		CHECK(ibv_wc_read_wc_flags(ex) == IBV_WC_WITH_IMM);
		CHECK(ibv_wc_read_imm_data(ex) == htobe32(0x11223344));
		CHECK(ibv_wc_read_qp_num(ex) == qp->ibv_qp.qp_num);
		CHECK(ibv_wc_read_completion_ts(ex) == 0);
		CHECK(ibv_wc_read_completion_wallclock_ns(ex) ==
		      (uint64_t)dev.cq->wall_offset);
		ibv_end_poll(ex);
		CHECK(le32toh(dev.cq->ctrl->consumer) == 3 * lap + 2);
		CHECK(vrdma_poll_cq(&dev.cq->ibv_cq, 1, &wc) == 1);
		CHECK(wc.wr_id == 7);
		CHECK(ibv_start_poll(ex, &attr) == ENOENT);
		i += 2;
	}
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, 1);
	CHECK(!ibv_start_poll(ex, &attr));
	CHECK(ibv_next_poll(ex) == ENOENT);
	ibv_end_poll(ex);
	dev.cq->ctrl->flags = htole32(VIRTIO_RDMA_CQ_ERROR);
	CHECK(ibv_start_poll(ex, &attr) == EIO);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&dev.cq->ibv_cq));
}

static void test_resize(void)
{
	struct vrdma_cq *cq = new_cq(4);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 8, 8, 1, 1, 0 }, IBV_QPS_RTS);
	struct device_cq dev = { .cq = cq };
	struct ibv_wc wc[8];
	uint32_t i;

	for (i = 0; i < 2; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 2);
	for (; i < 5; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));

	CHECK(vrdma_resize_cq(&cq->ibv_cq, 0) == EINVAL);
	CHECK(vrdma_resize_cq(&cq->ibv_cq, 4097) == EINVAL);
	CHECK(vrdma_resize_cq(&cq->ibv_cq, 2) == EINVAL);
	CHECK(cq->entries == 4);
	CHECK(!vrdma_resize_cq(&cq->ibv_cq, 5));
	CHECK(cq->entries == 8 && cq->ibv_cq.cqe == 8);
	/* Arming went along. */
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_SOLICITED);
	dev.producer = 3;
	for (; i < 10; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 8);
	for (i = 0; i < 8; i++)
		CHECK(wc[i].wr_id == 2 + i);
	CHECK(!vrdma_resize_cq(&cq->ibv_cq, 1));
	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 8, wc));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

void test_cq(void)
{
	test_laps();
	test_arm();
	test_start_poll();
	test_resize();
}
