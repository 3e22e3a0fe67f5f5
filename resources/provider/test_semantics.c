// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Points of the list in docs/verbs.md that are the provider's to keep: each
 * function has the number of its point.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "test.h"

static void semantics_13_an_unsupported_opcode_is_einval(void)
{
	struct vrdma_cq *cq = new_cq(16);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 8, 1, 1, 1, 0 }, IBV_QPS_RTS);
	/* The context of the test has atomics, UC and UD, and no windows. */
	static const struct {
		enum ibv_qp_type type;
		uint32_t opcodes;
		uint32_t keys;	/* more with windows */
	} known[] = {
		{ IBV_QPT_RC,
		  1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM |
			  1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM |
			  1 << IBV_WR_RDMA_READ | 1 << IBV_WR_ATOMIC_CMP_AND_SWP |
			  1 << IBV_WR_ATOMIC_FETCH_AND_ADD,
		  1 << IBV_WR_LOCAL_INV | 1 << IBV_WR_BIND_MW |
			  1 << IBV_WR_SEND_WITH_INV },
		{ IBV_QPT_UC,
		  1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM |
			  1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM,
		  1 << IBV_WR_LOCAL_INV | 1 << IBV_WR_BIND_MW },
		{ IBV_QPT_UD, 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM, 0 },
	};
	const uint32_t kinds = sizeof(known) / sizeof(known[0]);
	struct vrdma_ah ah = {};
	uint32_t opcode, opcodes, posted, i;

	for (i = 0; i < 2 * kinds; i++) {
		qp->windows = qp->invalidates = i >= kinds;
		qp->ibv_qp.qp_type = known[i % kinds].type;
		opcodes = known[i % kinds].opcodes;
		if (qp->windows)
			opcodes |= known[i % kinds].keys;
		for (opcode = 0; opcode < 32; opcode++) {
			struct ibv_send_wr wr = { .opcode = opcode }, *bad = NULL;
			bool posts = opcodes & (1U << opcode);

			if (qp->ibv_qp.qp_type == IBV_QPT_UD)
				wr.wr.ud.ah = &ah.ibv_ah;
			posted = le32toh(qp->ctrl->sq_producer);
			/* There is room for what is right. */
			atomic_store(&qp->sq.consumer, posted);
			CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) ==
			      (posts ? 0 : EINVAL));
			CHECK(posts || bad == &wr);
			CHECK(le32toh(qp->ctrl->sq_producer) == posted + posts);
		}
	}
	qp->ibv_qp.qp_type = IBV_QPT_RC;
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

static void semantics_20_reset_and_destroy_take_unpolled_completions_along(void)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct vrdma_cq *cq = new_cq(8);
	struct vrdma_qp *kept = new_qp(
		cq, (struct ibv_qp_cap){ 8, 8, 1, 1, 0 }, IBV_QPS_RTS);
	struct vrdma_qp *gone = new_qp(
		cq, (struct ibv_qp_cap){ 8, 8, 1, 1, 0 }, IBV_QPS_RTS);
	struct device_cq dev = { .cq = cq };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc[8];
	uint32_t i, lap;

	for (lap = 0; lap < 5; lap++) {
		/* A full ring that begins elsewhere in every lap. */
		for (i = 0; i < 8; i++)
			device_complete(&dev, i % 3 ? gone : kept,
					VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
		CHECK(!vrdma_post_send(&gone->ibv_qp, &send, &bad));
		CHECK(!vrdma_modify_qp(&gone->ibv_qp, &reset, IBV_QP_STATE));
		CHECK(!gone->ctrl->sq_producer && !gone->sq.producer);
		gone->ibv_qp.state = IBV_QPS_RTS;
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 3);
		for (i = 0; i < 3; i++)
			CHECK(wc[i].wr_id == 3 * i &&
			      wc[i].qp_num == kept->ibv_qp.qp_num);
		CHECK(!vrdma_poll_cq(&cq->ibv_cq, 8, wc));
		CHECK(le32toh(cq->ctrl->consumer) == dev.producer);
		device_complete(&dev, kept, VIRTIO_RDMA_CQE_SEND_QUEUE, 8, 8);
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 1);
		CHECK(wc[0].wr_id == 8);
	}

	device_complete(&dev, gone, 0, 0, 1);
	device_complete(&dev, kept, 0, 0, 2);
	CHECK(!vrdma_destroy_qp(&gone->ibv_qp));
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 1 && wc[0].wr_id == 2);
	CHECK(!vrdma_destroy_qp(&kept->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

static void semantics_21_posting_before_its_state_is_einval(void)
{
	struct vrdma_cq *cq = new_cq(8);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 8, 8, 1, 1, 0 }, IBV_QPS_RESET);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = {}, *bad_recv;
	enum ibv_qp_state state;

	for (state = IBV_QPS_RESET; state <= IBV_QPS_ERR; state++) {
		qp->ibv_qp.state = state;
		CHECK(vrdma_post_recv(&qp->ibv_qp, &recv, &bad_recv) ==
		      (state == IBV_QPS_RESET ? EINVAL : 0));
		/* In SQD it waits, in SQE and ERR it flushes. */
		CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad_send) ==
		      (state < IBV_QPS_RTS ? EINVAL : 0));
	}
	CHECK(le32toh(qp->ctrl->rq_producer) == 6);
	CHECK(le32toh(qp->ctrl->sq_producer) == 4);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

#define POLLED 20000

struct poller {
	struct ibv_cq_ex *cq;
	bool extended;
	_Atomic(uint32_t) *total;
	uint32_t seen[POLLED];
	uint32_t count;
};

static void saw(struct poller *poller, uint64_t wr_id)
{
	CHECK(wr_id < POLLED && poller->count < POLLED);
	/* One after another of what is in order, so these are too. */
	CHECK(!poller->count || poller->seen[poller->count - 1] < wr_id);
	poller->seen[poller->count++] = wr_id;
	atomic_fetch_add(poller->total, 1);
}

static void *poll_cq(void *arg)
{
	struct poller *poller = arg;
	struct ibv_poll_cq_attr attr = {};
	struct ibv_wc wc[3];
	int i, n;

	while (atomic_load(poller->total) < POLLED) {
		if (poller->extended) {
			if (ibv_start_poll(poller->cq, &attr)) {
				sched_yield();
				continue;
			}
			saw(poller, poller->cq->wr_id);
			if (!ibv_next_poll(poller->cq))
				saw(poller, poller->cq->wr_id);
			ibv_end_poll(poller->cq);
			continue;
		}
		n = vrdma_poll_cq(ibv_cq_ex_to_cq(poller->cq), 3, wc);
		CHECK(n >= 0);
		for (i = 0; i < n; i++)
			saw(poller, wc[i].wr_id);
		if (!n)
			sched_yield();
	}
	return NULL;
}

static void semantics_29_two_pollers_never_see_one_cqe_twice(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16 };
	struct ibv_cq_ex *ex = vrdma_create_cq_ex(test_pd.ibv_pd.context, &init);
	struct device_cq dev = { .cq = to_vcq(ibv_cq_ex_to_cq(ex)) };
	struct vrdma_qp *qp = new_qp(
		dev.cq, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 }, IBV_QPS_RTS);
	static struct poller pollers[3];
	static uint8_t times[POLLED];
	_Atomic(uint32_t) total = 0;
	pthread_t threads[3];
	uint32_t i, n;

	for (i = 0; i < 3; i++) {
		pollers[i].cq = ex;
		pollers[i].extended = i == 2;
		pollers[i].total = &total;
		CHECK(!pthread_create(&threads[i], NULL, poll_cq, &pollers[i]));
	}
	for (n = 0; n < POLLED; n++) {
		while (dev.producer -
			       vrdma_load_acquire(&dev.cq->ctrl->consumer) >=
		       dev.cq->entries)
			sched_yield();
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, n, n);
	}
	for (i = 0; i < 3; i++) {
		CHECK(!pthread_join(threads[i], NULL));
		for (n = 0; n < pollers[i].count; n++)
			CHECK(!times[pollers[i].seen[n]]++);
	}
	for (n = 0; n < POLLED; n++)
		CHECK(times[n] == 1);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&dev.cq->ibv_cq));
}

void test_semantics(void)
{
	semantics_13_an_unsupported_opcode_is_einval();
	semantics_20_reset_and_destroy_take_unpolled_completions_along();
	semantics_21_posting_before_its_state_is_einval();
	semantics_29_two_pollers_never_see_one_cqe_twice();
}
