// SPDX-License-Identifier: GPL-2.0
/* Arming a completion queue tells of completions that wait, and of the next. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/sched.h>

#include "selftest.h"

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

int st_arm(struct st_rig *rig)
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
