// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* XRC: what is posted, targets without queues, completions by SRQ. */
#include <errno.h>

#include "test.h"

/* A receive of an XRC SRQ: its queue pair is of another process. */
static void device_complete_xrc(struct device_cq *dev, uint32_t srqn,
				uint64_t wr_id)
{
	struct virtio_rdma_cqe *cqe =
		&dev->cq->ring[dev->producer & (dev->cq->entries - 1)];
	struct vrdma_qp stranger = { .ibv_qp.qp_num = 0x5555 };

	cqe->srqn = htole32(srqn);
	device_complete(dev, &stranger, VIRTIO_RDMA_CQE_XRC, 0, wr_id);
}

void test_xrc(void)
{
	struct vrdma_cq *cq = new_cq(8);
	struct device_cq dev = { .cq = cq };
	struct ibv_xrcd_init_attr domain = { .fd = -1 };
	struct ibv_xrcd *xrcd = vrdma_open_xrcd(test_pd.ibv_pd.context, &domain);
	struct ibv_srq_init_attr_ex srq_init = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = &test_pd.ibv_pd,
		.xrcd = xrcd,
		.cq = &cq->ibv_cq,
	};
	struct ibv_qp_open_attr open = { .qp_num = 0x5555,
					 .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_send_wr send = { .opcode = IBV_WR_RDMA_READ,
				    .qp_type.xrc.remote_srqn = 0x123456 }, *bad;
	struct ibv_recv_wr recv = {}, *bad_recv;
	struct ibv_srq *srq;
	struct ibv_qp *target;
	struct vrdma_qp *qp;
	struct ibv_wc wc[8];
	uint32_t number;

	srq = vrdma_create_srq_ex(test_pd.ibv_pd.context, &srq_init);
	CHECK(srq && !vrdma_get_srq_num(srq, &number) && number == 0x77);
	qp = new_qp_ex(cq, IBV_QPT_XRC_SEND,
		       (struct ibv_qp_cap){ 4, 1, 1, 1, 0 },
		       IBV_QP_EX_WITH_SEND);
	CHECK(qp);
	qp->ibv_qp.state = IBV_QPS_RTS;
	CHECK(!qp->rq.entries);

	/* It only sends. */
	CHECK(vrdma_post_recv(&qp->ibv_qp, &recv, &bad_recv) == EINVAL);
	/* Both ways of posting name the SRQ. */
	CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad));
	CHECK(le32toh(send_slot(qp, 0)->srqn) == 0x123456);
	ibv_wr_start(&qp->verbs_qp.qp_ex);
	ibv_wr_send(&qp->verbs_qp.qp_ex);
	ibv_wr_set_xrc_srqn(&qp->verbs_qp.qp_ex, 0x654321);
	CHECK(!ibv_wr_complete(&qp->verbs_qp.qp_ex));
	CHECK(le32toh(send_slot(qp, 1)->srqn) == 0x654321);
	send.opcode = IBV_WR_SEND_WITH_INV;
	CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad) == EINVAL);

	/* A target has no queues. */
	target = vrdma_open_qp(test_pd.ibv_pd.context, &open);
	CHECK(target && target->qp_num == 0x5555);
	send.opcode = IBV_WR_SEND;
	CHECK(vrdma_post_send(target, &send, &bad) == ENOMEM);
	CHECK(!vrdma_destroy_qp(target));

	/* A queue pair's end takes its completions along, an SRQ's its own. */
	device_complete_xrc(&dev, 0x77, 1);
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, 0, 2);
	device_complete_xrc(&dev, 0x78, 3);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 1, wc) == 1);
	CHECK(wc[0].wr_id == 1 && wc[0].qp_num == 0x5555);
	device_complete_xrc(&dev, 0x77, 4);
	CHECK(!vrdma_destroy_srq(srq));
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 2);
	CHECK(wc[0].wr_id == 2 && wc[1].wr_id == 3);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_close_xrcd(xrcd));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}
