// SPDX-License-Identifier: GPL-2.0
/* Queue pairs of the cases: their states, and what is posted to them. */
#include "selftest.h"

static void st_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct st_op *op = container_of(wc->wr_cqe, struct st_op, cqe);

	op->status = wc->status;
	atomic_inc(&op->completions);
}

static void st_event(struct ib_event *event, void *context)
{
}

int st_post_sends(struct st_rig *rig, struct st_end *end, int count, u32 lkey)
{
	struct ib_sge sge = {
		.addr = rig->dma, .length = ST_BYTES, .lkey = lkey,
	};
	struct ib_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};
	int err = 0;

	while (count-- > 0 && !err) {
		struct st_op *op = &end->sends[end->num_sends++];

		op->cqe.done = st_done;
		wr.wr_cqe = &op->cqe;
		err = ib_post_send(end->qp, &wr, NULL);
	}
	return err;
}

int st_post_recvs(struct st_rig *rig, struct st_end *end, int count)
{
	struct ib_sge sge = {
		.addr = rig->dma, .length = ST_BYTES,
		.lkey = rig->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
	int err = 0;

	while (count-- > 0 && !err) {
		struct st_op *op = &end->recvs[end->num_recvs++];

		op->cqe.done = st_done;
		wr.wr_cqe = &op->cqe;
		err = ib_post_recv(end->qp, &wr, NULL);
	}
	return err;
}

int st_step(struct st_rig *rig, struct ib_qp *qp, u32 peer,
	    enum ib_qp_state state)
{
	bool rc = qp->qp_type == IB_QPT_RC;
	struct ib_qp_attr attr = {
		.qp_state = state,
		.port_num = 1,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 12,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = rig->ah,
	};
	int mask = IB_QP_STATE;

	switch (state) {
	case IB_QPS_INIT:
		mask |= IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS;
		break;
	case IB_QPS_RTR:
		mask |= IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			IB_QP_RQ_PSN;
		if (rc)
			mask |= IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER;
		break;
	case IB_QPS_RTS:
		mask |= IB_QP_SQ_PSN;
		if (rc)
			mask |= IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				IB_QP_RNR_RETRY | IB_QP_MAX_QP_RD_ATOMIC;
		break;
	default:
		break;
	}
	return ib_modify_qp(qp, &attr, mask);
}

/* Brings a queue pair up to a state, or as far as RTS on the way to it. */
int st_raise(struct st_rig *rig, struct ib_qp *qp, u32 peer,
	     enum ib_qp_state to)
{
	enum ib_qp_state state;
	int err = 0;

	for (state = IB_QPS_INIT; state <= min(to, IB_QPS_RTS) && !err; state++)
		err = st_step(rig, qp, peer, state);
	return err;
}

struct ib_qp *st_create_qp(struct st_rig *rig, enum ib_qp_type type,
			   struct ib_srq *srq)
{
	struct ib_qp_init_attr attr = {
		.event_handler = st_event,
		.send_cq = rig->cq,
		.recv_cq = rig->cq,
		.srq = srq,
		.cap = {
			.max_send_wr = ST_WR, .max_recv_wr = ST_WR,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = type,
	};

	return ib_create_qp(rig->pd, &attr);
}
