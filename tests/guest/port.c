// SPDX-License-Identifier: Apache-2.0
/* What the port says of itself. */
#include <stdio.h>
#include <unistd.h>

#include "life.h"

#define QKEY 0x11223344

static uint32_t violations(struct ibv_context *context)
{
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(context, PORT, &port));
	return port.qkey_viol_cntr;
}

static struct ibv_qp *datagram_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY };
	struct ibv_qp *qp;

	CHECK(qp = ibv_create_qp(pd, &init));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

/* A datagram with a wrong Q_Key counts at the port. */
int qkey_violations(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = PORT, .grh.hop_limit = 64 };
	struct ibv_context *context = open_device();
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND };
	uint32_t before = violations(context);
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	int left = 100;

	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 8, NULL, NULL, 0));
	qp = datagram_qp(pd, cq);
	to.grh.sgid_index = find_gid(context, &to.grh.dgid);
	CHECK(wr.wr.ud.ah = ibv_create_ah(pd, &to));
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY + 1;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
	/* That it was sent says nothing of its arrival. */
	while (violations(context) == before && left--)
		usleep(100000);
	CHECK(violations(context) == before + 1);
	CHECK(!ibv_destroy_ah(wr.wr.ud.ah));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	printf("the port counts wrong Q_Keys\n");
	return 0;
}
