// SPDX-License-Identifier: GPL-2.0
/* A drain ends in every state of a queue pair, and all work with it. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/virtio.h>

#include "selftest.h"

#define ST_BAD_LKEY	0xdead00

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
	const struct ib_recv_wr none = {};
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
	if (!err && test->srq && ib_post_recv(a->qp, &none, NULL) != -EINVAL) {
		pr_err("drain in %s: a receive of its own\n", test->name);
		err = -EINVAL;
	}
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

int st_drain_states(struct st_rig *rig)
{
	const int count = ARRAY_SIZE(st_drains);

	return st_drain_all(rig, IB_POLL_SOFTIRQ, st_drains, count) ?:
	       st_drain_all(rig, IB_POLL_WORKQUEUE, st_drains, count) ?:
	       st_drain_all(rig, IB_POLL_DIRECT, st_drains, count);
}

/* Under work requests the device itself fails. */
int st_drain_failed(struct st_rig *rig)
{
	return st_drain_all(rig, IB_POLL_SOFTIRQ, &st_failure, 1);
}
