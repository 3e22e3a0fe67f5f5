// SPDX-License-Identifier: GPL-2.0
/* Queue pairs of the cases: their states, and what is posted to them. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>

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

/* Posts one more work request, of which the completion is noted. */
int st_post(struct st_end *end, struct ib_send_wr *wr)
{
	struct st_op *op = &end->sends[end->num_sends++];

	op->cqe.done = st_done;
	wr->wr_cqe = &op->cqe;
	return ib_post_send(end->qp, wr, NULL);
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

	while (count-- > 0 && !err)
		err = st_post(end, &wr);
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

/* Waits for a completion, and polls where nobody else does. */
int st_wait(struct ib_cq *cq, const struct st_op *op)
{
	unsigned long end = jiffies + 20 * HZ;

	while (!atomic_read(&op->completions)) {
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		if (cq->poll_ctx == IB_POLL_DIRECT)
			ib_process_cq_direct(cq, -1);
		msleep(1);
	}
	return 0;
}

int st_step(struct st_rig *rig, struct ib_qp *qp, u32 peer,
	    enum ib_qp_state state)
{
	bool rc = qp->qp_type == IB_QPT_RC;
	struct ib_qp_attr attr = {
		.qp_state = state,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE,
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

/* Of the flags that a queue pair may be created with, each for its type. */
int st_create_flags(struct st_rig *rig)
{
	static const struct {
		enum ib_qp_type type;
		u32 flags;
		int err;
	} cases[] = {
		{ IB_QPT_UD, IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK, 0 },
		{ IB_QPT_RC, IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK, -EOPNOTSUPP },
		{ IB_QPT_UD, IB_QP_CREATE_IPOIB_UD_LSO, -EOPNOTSUPP },
	};
	struct ib_qp_init_attr attr = {
		.event_handler = st_event,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
	};
	struct ib_qp *qp;
	struct ib_cq *cq;
	int i, err = 0;

	cq = ib_alloc_cq(rig->dev, NULL, 2, 0, IB_POLL_DIRECT);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	attr.send_cq = attr.recv_cq = cq;
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		attr.qp_type = cases[i].type;
		attr.create_flags = cases[i].flags;
		qp = ib_create_qp(rig->pd, &attr);
		if (!IS_ERR(qp))
			ib_destroy_qp(qp);
		if (PTR_ERR_OR_ZERO(qp) != cases[i].err) {
			pr_err("create flags 0x%x of type %d: %d\n",
			       cases[i].flags, cases[i].type,
			       PTR_ERR_OR_ZERO(qp));
			err = -EINVAL;
		}
	}
	ib_free_cq(cq);
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
