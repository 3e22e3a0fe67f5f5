// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs of kernel users on one device, as the kernel's own users call them: a
 * drain ends in every state of a queue pair, and arming tells of completions
 * that wait. A module for tests: loading it runs the cases, and fails if one
 * did; the kernel's log says which.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

static char *st_device = "vrdma0";
module_param_named(device, st_device, charp, 0444);
MODULE_PARM_DESC(device, "RDMA device to use (default vrdma0)");

static bool st_fail;
module_param_named(fail, st_fail, bool, 0444);
MODULE_PARM_DESC(fail, "let the virtio device fail under work requests, and drain them");

#define ST_OPS		16
#define ST_WR		(2 * ST_OPS)
#define ST_BYTES	64
#define ST_BAD_LKEY	0xdead00

/* A work request and what became of it. */
struct st_op {
	struct ib_cqe cqe;
	atomic_t completions;
	enum ib_wc_status status;
};

/* A queue pair with what it posted. */
struct st_end {
	struct ib_qp *qp;
	struct st_op sends[ST_OPS];
	struct st_op recvs[ST_OPS];
	int num_sends;
	int num_recvs;
	bool drained;
};

struct st_rig {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_srq *srq;
	struct ib_cq *cq;
	void *buf;
	dma_addr_t dma;
	struct rdma_ah_attr ah;
	struct st_end a;
	struct st_end b;
};

struct st_case {
	const char *name;
	enum ib_qp_type type;
	enum ib_qp_state state;	/* into which it is brought by hand */
	int recvs;		/* posted at the queue pair that is drained */
	int sends;		/* posted there, once it can send */
	int early;		/* of those, before `state` when that is past RTS */
	int peer_recvs;		/* for so many of them */
	bool bad;		/* the first send has a key that is none */
	bool gone;		/* the peer is destroyed before the sends */
	bool srq;
	bool fails;		/* the device, when all is posted */
};

static const struct st_case st_drains[] = {
	{ "RESET", IB_QPT_RC, IB_QPS_RESET },
	{ "INIT", IB_QPT_RC, IB_QPS_INIT, .recvs = 8 },
	{ "RTR", IB_QPT_RC, IB_QPS_RTR, .recvs = 8 },
	{ "RTS", IB_QPT_RC, IB_QPS_RTS, .recvs = 8 },
	{ "RTS, sends that wait for receives", IB_QPT_RC, IB_QPS_RTS,
	  .recvs = 8, .sends = 16, .peer_recvs = 4 },
	{ "RTS, sends that nobody answers", IB_QPT_RC, IB_QPS_RTS,
	  .recvs = 8, .sends = 16, .gone = true },
	{ "SQD, sends begun", IB_QPT_RC, IB_QPS_SQD,
	  .recvs = 8, .sends = 8, .early = 8, .peer_recvs = 4 },
	{ "SQD, sends not begun", IB_QPT_RC, IB_QPS_SQD,
	  .recvs = 8, .sends = 8, .peer_recvs = 16 },
	{ "ERR", IB_QPT_RC, IB_QPS_ERR, .recvs = 8, .sends = 8, .early = 4 },
	{ "ERR, by a send that failed", IB_QPT_RC, IB_QPS_RTS,
	  .recvs = 8, .sends = 8, .peer_recvs = 16, .bad = true },
	{ "SQE", IB_QPT_UC, IB_QPS_RTS,
	  .recvs = 8, .sends = 8, .peer_recvs = 16, .bad = true },
	{ "RTS, shared receive queue", IB_QPT_RC, IB_QPS_RTS,
	  .sends = 8, .peer_recvs = 4, .srq = true },
};

static const struct st_case st_failure = {
	"a device that failed", IB_QPT_RC, IB_QPS_RTS,
	.recvs = 8, .sends = 16, .peer_recvs = 4, .fails = true
};

static void st_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct st_op *op = container_of(wc->wr_cqe, struct st_op, cqe);

	op->status = wc->status;
	atomic_inc(&op->completions);
}

static void st_event(struct ib_event *event, void *context)
{
}

static int st_post_sends(struct st_rig *rig, struct st_end *end, int count,
			 u32 lkey)
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

static int st_post_recvs(struct st_rig *rig, struct st_end *end, int count)
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

static int st_step(struct st_rig *rig, struct ib_qp *qp, u32 peer,
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
static int st_raise(struct st_rig *rig, struct ib_qp *qp, u32 peer,
		    enum ib_qp_state to)
{
	enum ib_qp_state state;
	int err = 0;

	for (state = IB_QPS_INIT; state <= min(to, IB_QPS_RTS) && !err; state++)
		err = st_step(rig, qp, peer, state);
	return err;
}

static struct ib_qp *st_create_qp(struct st_rig *rig, enum ib_qp_type type,
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

/* Waits for a completion, and polls where nobody else does. */
static int st_wait(struct ib_cq *cq, const struct st_op *op)
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

static int st_count(const char *name, const char *what,
		    const struct st_op *ops, int count)
{
	int i, n;

	for (i = 0; i < count; i++) {
		n = atomic_read(&ops[i].completions);
		if (n != 1) {
			pr_err("drain in %s: %s %d completed %d times\n", name,
			       what, i, n);
			return -EINVAL;
		}
	}
	return 0;
}

static void st_close(struct st_end *end)
{
	if (end->qp) {
		/* With a shared queue a second drain waits for a minute. */
		if (!end->drained)
			ib_drain_qp(end->qp);
		ib_destroy_qp(end->qp);
	}
	end->qp = NULL;
}

/* Posts and changes states as the case says, drains, and counts. */
static int st_drain(struct st_rig *rig, const struct st_case *test)
{
	struct st_end *a = &rig->a, *b = &rig->b;
	u32 b_num, lkey = rig->pd->local_dma_lkey;
	struct ib_qp *qp;
	int err;

	memset(a, 0, sizeof(*a));
	memset(b, 0, sizeof(*b));
	qp = st_create_qp(rig, test->type, test->srq ? rig->srq : NULL);
	if (IS_ERR(qp))
		return PTR_ERR(qp);
	a->qp = qp;
	qp = st_create_qp(rig, test->type, NULL);
	if (IS_ERR(qp)) {
		err = PTR_ERR(qp);
		goto out;
	}
	b->qp = qp;
	b_num = qp->qp_num;

	err = st_raise(rig, b->qp, a->qp->qp_num, IB_QPS_RTS) ?:
	      st_post_recvs(rig, b, test->peer_recvs);
	if (err)
		goto out;
	if (test->gone)
		st_close(b);

	err = st_raise(rig, a->qp, b_num, test->state) ?:
	      st_post_recvs(rig, a, test->recvs) ?:
	      st_post_sends(rig, a, test->bad, ST_BAD_LKEY) ?:
	      st_post_sends(rig, a, test->early, lkey);
	if (!err && test->state > IB_QPS_RTS)
		err = st_step(rig, a->qp, b_num, test->state);
	if (!err)
		err = st_post_sends(rig, a, test->sends - a->num_sends, lkey);
	if (!err && test->bad)
		err = st_wait(rig->cq, &a->sends[0]);
	if (err)
		goto out;

	if (test->fails)
		virtio_break_device(dev_to_virtio(rig->dev->dev.parent));
	ib_drain_qp(a->qp);
	/* What is posted to a failed device later ends as well. */
	if (test->fails)
		ib_drain_qp(a->qp);
	a->drained = true;
	err = st_count(test->name, "send", a->sends, a->num_sends) ?:
	      st_count(test->name, "receive", a->recvs, a->num_recvs);
	if (!err && test->bad && a->sends[0].status != IB_WC_LOC_PROT_ERR) {
		pr_err("drain in %s: the bad send has status %d\n", test->name,
		       a->sends[0].status);
		err = -EINVAL;
	}
out:
	st_close(a);
	st_close(b);
	return err;
}

static bool st_expect(bool is, const char *what)
{
	if (!is)
		pr_err("arming: %s\n", what);
	return is;
}

static int st_poll(struct ib_cq *cq, int count)
{
	unsigned long end = jiffies + 20 * HZ;
	struct ib_wc wc;

	while (count) {
		if (ib_poll_cq(cq, 1, &wc) == 1)
			count--;
		else if (time_after(jiffies, end))
			return -ETIMEDOUT;
		else
			cond_resched();
	}
	return 0;
}

static void st_notify(struct ib_cq *cq, void *context)
{
	complete(context);
}

/* A send to oneself: two completions, and the event of the first of them. */
static bool st_message(struct st_rig *rig, struct completion *event)
{
	rig->a.num_sends = 0;
	rig->b.num_recvs = 0;
	return !st_post_recvs(rig, &rig->b, 1) &&
	       !st_post_sends(rig, &rig->a, 1, rig->pd->local_dma_lkey) &&
	       wait_for_completion_timeout(event, 20 * HZ);
}

static int st_arm(struct st_rig *rig)
{
	const enum ib_cq_notify_flags flags = IB_CQ_NEXT_COMP |
					      IB_CQ_REPORT_MISSED_EVENTS;
	struct ib_cq_init_attr attr = { .cqe = ST_WR };
	DECLARE_COMPLETION_ONSTACK(event);
	struct ib_cq *cq;
	bool ok;
	int i;

	memset(&rig->a, 0, sizeof(rig->a));
	memset(&rig->b, 0, sizeof(rig->b));
	cq = ib_create_cq(rig->dev, st_notify, NULL, &event, &attr);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	rig->cq = cq;
	rig->a.qp = st_create_qp(rig, IB_QPT_RC, NULL);
	rig->b.qp = st_create_qp(rig, IB_QPT_RC, NULL);
	ok = st_expect(!IS_ERR(rig->a.qp) && !IS_ERR(rig->b.qp) &&
		       !st_raise(rig, rig->a.qp, rig->b.qp->qp_num, IB_QPS_RTS) &&
		       !st_raise(rig, rig->b.qp, rig->a.qp->qp_num, IB_QPS_RTS),
		       "no queue pairs");

	ok = ok && st_expect(!ib_req_notify_cq(cq, flags),
			     "completions reported where there are none") &&
	     st_expect(st_message(rig, &event), "no event") &&
	     st_expect(ib_req_notify_cq(cq, flags) > 0,
		       "completions that wait are not reported") &&
	     st_expect(!st_poll(cq, 2), "fewer completions than work");
	/* Armed, and empty again before the next completion: none is missed. */
	for (i = 0; ok && i < 100; i++) {
		reinit_completion(&event);
		ok = st_expect(!ib_req_notify_cq(cq, flags),
			       "completions reported after all were polled") &&
		     st_expect(st_message(rig, &event), "an event was lost") &&
		     st_expect(!st_poll(cq, 2), "fewer completions than work");
	}

	if (!IS_ERR(rig->a.qp))
		ib_destroy_qp(rig->a.qp);
	if (!IS_ERR(rig->b.qp))
		ib_destroy_qp(rig->b.qp);
	ib_destroy_cq(cq);
	return ok ? 0 : -EINVAL;
}

/* Drains with completions handled in that context. */
static int st_drain_all(struct st_rig *rig, enum ib_poll_context context,
			const struct st_case *tests, int count)
{
	int i, err, failed = 0;

	rig->cq = ib_alloc_cq(rig->dev, NULL, 8 * ST_WR, 0, context);
	if (IS_ERR(rig->cq))
		return PTR_ERR(rig->cq);
	for (i = 0; i < count; i++) {
		pr_info("drain in %s, context %d\n", tests[i].name, context);
		err = st_drain(rig, &tests[i]);
		if (err) {
			pr_err("drain in %s: %d\n", tests[i].name, err);
			failed++;
		}
	}
	ib_free_cq(rig->cq);
	return failed ? -EINVAL : 0;
}

static int st_cases(struct st_rig *rig)
{
	const int count = ARRAY_SIZE(st_drains);

	if (st_fail)
		return st_drain_all(rig, IB_POLL_SOFTIRQ, &st_failure, 1);
	return st_drain_all(rig, IB_POLL_SOFTIRQ, st_drains, count) ?:
	       st_drain_all(rig, IB_POLL_WORKQUEUE, st_drains, count) ?:
	       st_drain_all(rig, IB_POLL_DIRECT, st_drains, count) ?:
	       st_arm(rig);
}

/* The address of the first GID there is: the device itself. */
static int st_address(struct st_rig *rig)
{
	const struct ib_gid_attr *gid = ERR_PTR(-ENOENT);
	u32 i;

	for (i = 0; i < 16 && IS_ERR(gid); i++)
		gid = rdma_get_gid_attr(rig->dev, 1, i);
	if (IS_ERR(gid))
		return PTR_ERR(gid);
	rig->ah.type = rdma_ah_find_type(rig->dev, 1);
	rdma_ah_set_port_num(&rig->ah, 1);
	rdma_ah_set_grh(&rig->ah, (union ib_gid *)&gid->gid, 0, gid->index, 64, 0);
	rdma_put_gid_attr(gid);
	return 0;
}

static int st_run(struct st_rig *rig)
{
	struct ib_srq_init_attr srq = {
		.attr = { .max_wr = ST_WR, .max_sge = 1 },
	};
	int err;

	err = st_address(rig);
	if (err)
		return err;
	rig->pd = ib_alloc_pd(rig->dev, 0);
	if (IS_ERR(rig->pd))
		return PTR_ERR(rig->pd);
	rig->dma = ib_dma_map_single(rig->dev, rig->buf, ST_BYTES,
				     DMA_BIDIRECTIONAL);
	err = ib_dma_mapping_error(rig->dev, rig->dma);
	if (err)
		goto out_pd;
	rig->srq = ib_create_srq(rig->pd, &srq);
	if (IS_ERR(rig->srq)) {
		err = PTR_ERR(rig->srq);
		goto out_dma;
	}
	err = st_cases(rig);

	ib_destroy_srq(rig->srq);
out_dma:
	ib_dma_unmap_single(rig->dev, rig->dma, ST_BYTES, DMA_BIDIRECTIONAL);
out_pd:
	ib_dealloc_pd(rig->pd);
	return err;
}

static int __init st_init(void)
{
	struct st_rig *rig;
	int err = -ENOMEM;

	rig = kzalloc(sizeof(*rig), GFP_KERNEL);
	if (!rig)
		return err;
	rig->buf = kzalloc(ST_BYTES, GFP_KERNEL);
	rig->dev = ib_device_get_by_name(st_device, RDMA_DRIVER_UNKNOWN);
	if (!rig->dev)
		err = -ENODEV;
	else if (rig->buf)
		err = st_run(rig);
	if (rig->dev)
		ib_device_put(rig->dev);
	kfree(rig->buf);
	kfree(rig);
	if (!err)
		pr_info("all cases passed\n");
	return err;
}

static void __exit st_exit(void)
{
}

module_init(st_init);
module_exit(st_exit);

MODULE_DESCRIPTION("Cases for the verbs of kernel users");
MODULE_AUTHOR("The Longarm authors");
MODULE_LICENSE("GPL");
