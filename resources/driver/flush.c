// SPDX-License-Identifier: GPL-2.0
/*
 * The end of kernel users' work on a device that failed. Such a device writes
 * no completions, and whoever waits for them (a drain does) would wait for
 * ever: the driver flushes in its place.
 */
#include <rdma/ib_verbs.h>

#include "vrdma.h"

/* A walk over the queues whose completions go to a CQ. */
struct vrdma_owed {
	struct ib_wc *wc;	/* NULL: only look */
	int room;
	int n;
};

static void vrdma_flush_wq(struct vrdma_owed *owed, struct vrdma_qp *qp,
			   struct vrdma_wq *wq, enum ib_wc_opcode opcode)
{
	u32 producer = smp_load_acquire(&wq->producer), index = wq->consumer;
	struct ib_wc *wc;

	for (; owed->n < owed->room && index != producer; index++, owed->n++) {
		if (!owed->wc)
			continue;
		wc = &owed->wc[owed->n];
		memset(wc, 0, sizeof(*wc));
		/* Both kinds of work request begin with it. */
		wc->wr_id = le64_to_cpup(vrdma_wq_slot(wq, index));
		wc->status = IB_WC_WR_FLUSH_ERR;
		wc->opcode = opcode;
		wc->qp = &qp->ibqp;
	}
	if (owed->wc)
		smp_store_release(&wq->consumer, index);
}

static int vrdma_flush_walk(struct vrdma_cq *cq, struct vrdma_owed owed)
{
	struct vrdma_dev *dev = to_vdev(cq->ibcq.device);
	struct vrdma_held *held;
	struct vrdma_qp *qp;
	unsigned long i;

	/* One that is in there under the lock is not freed. */
	xa_lock(&dev->qps);
	xa_for_each(&dev->qps, i, held) {
		qp = held_to_vqp(held);
		if (!qp->ctrl)
			continue;
		if (qp->ibqp.send_cq == &cq->ibcq)
			vrdma_flush_wq(&owed, qp, &qp->sq, IB_WC_SEND);
		if (qp->ibqp.recv_cq == &cq->ibcq)
			vrdma_flush_wq(&owed, qp, &qp->rq, IB_WC_RECV);
	}
	xa_unlock(&dev->qps);
	return owed.n;
}

/*
 * Completions that the device owes a kernel CQ, when all that it did write was
 * taken from the ring. Under the CQ's lock.
 */
int vrdma_flush(struct vrdma_cq *cq, int room, struct ib_wc *wc)
{
	return vrdma_flush_walk(cq, (struct vrdma_owed){ wc, room });
}

/* Whether vrdma_flush() would find any. Under the CQ's lock. */
bool vrdma_flush_waits(struct vrdma_cq *cq)
{
	return vrdma_flush_walk(cq, (struct vrdma_owed){ .room = 1 });
}

/* The events that kernel users asked for. */
void vrdma_flush_work(struct work_struct *work)
{
	struct vrdma_dev *dev = container_of(work, struct vrdma_dev, flush_work);
	struct vrdma_held *held;
	struct vrdma_cq *cq;
	unsigned long i;

	xa_for_each(&dev->cqs, i, held) {
		cq = vrdma_cq_get(dev, i);
		if (!cq)
			continue;
		if (READ_ONCE(cq->armed))
			vrdma_cq_event(cq);
		vrdma_held_put(&cq->held);
	}
}

/* The device has just failed: all that kernel users have there is in error. */
void vrdma_flush_start(struct vrdma_dev *dev)
{
	struct vrdma_held *held;
	struct vrdma_qp *qp;
	unsigned long i;

	xa_for_each(&dev->qps, i, held) {
		qp = vrdma_qp_get(dev, i);
		if (!qp)
			continue;
		if (qp->ctrl && qp->ibqp.srq)
			vrdma_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
		vrdma_held_put(&qp->held);
	}
	schedule_work(&dev->flush_work);
}
