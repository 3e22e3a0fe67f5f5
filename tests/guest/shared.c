// SPDX-License-Identifier: Apache-2.0
/*
 * A target of an XRC domain, made by one process and opened by another (`ibv_open_qp`): it outlives its maker, is moved from state
 * to state and receives by the handle of the other, and goes with the last handle. Events are not asked for: Linux (6.12) gives a
 * target's to the handle of the process that made it, and to no other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

#define MESSAGE "by a target of another process"

static char memory[4096];

/* The domain of a file; one of its own for -1. */
static struct ibv_xrcd *open_domain(struct ibv_context *context, int file)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = file,
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *domain = ibv_open_xrcd(context, &attr);

	if (!domain)
		FAIL("ibv_open_xrcd");
	return domain;
}

static struct ibv_qp *open_target(struct ibv_xrcd *domain, uint32_t qpn)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = qpn,
		.xrcd = domain,
		.qp_type = IBV_QPT_XRC_RECV,
	};

	return ibv_open_qp(domain->context, &attr);
}

/* The maker: tells the target's number, and is gone without a word when it hears one. */
static void make_target(int file, int say, int hear)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};
	struct ibv_context *context = open_device();
	struct ibv_qp *target;
	char word;

	init.xrcd = open_domain(context, file);
	CHECK(target = ibv_create_qp_ex(context, &init));
	CHECK(write(say, &target->qp_num, sizeof(target->qp_num)) == sizeof(target->qp_num));
	CHECK(read(hear, &word, 1) == 1);
	_exit(0);
}

/* What sends to the target, and what receives behind it. */
struct traffic {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_srq *srq;
	uint32_t srqn;
	struct ibv_qp *initiator;
};

static void begin(struct traffic *traffic, struct ibv_xrcd *domain)
{
	struct ibv_context *context = domain->context;
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 16, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.xrcd = domain,
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};

	CHECK(traffic->pd = ibv_alloc_pd(context));
	CHECK(traffic->cq = ibv_create_cq(context, 32, NULL, NULL, 0));
	CHECK(traffic->mr = ibv_reg_mr(traffic->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	srq.pd = init.pd = traffic->pd;
	srq.cq = init.send_cq = traffic->cq;
	CHECK(traffic->srq = ibv_create_srq_ex(context, &srq));
	CHECK(!ibv_get_srq_num(traffic->srq, &traffic->srqn));
	CHECK(traffic->initiator = ibv_create_qp_ex(context, &init));
}

static void end(struct traffic *traffic)
{
	CHECK(!ibv_destroy_qp(traffic->initiator));
	CHECK(!ibv_destroy_srq(traffic->srq));
	CHECK(!ibv_dereg_mr(traffic->mr));
	CHECK(!ibv_destroy_cq(traffic->cq));
	CHECK(!ibv_dealloc_pd(traffic->pd));
}

/* A message from the initiator to the shared receive queue, by the target of that number. */
static void carry(struct traffic *traffic, uint32_t target)
{
	struct ibv_sge from = {
		.addr = (uintptr_t)memory,
		.length = sizeof(MESSAGE),
		.lkey = traffic->mr->lkey,
	};
	struct ibv_sge to = {
		.addr = (uintptr_t)memory + 2048,
		.length = 2048,
		.lkey = traffic->mr->lkey,
	};
	struct ibv_recv_wr *bad_receive, receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 2,
		.opcode = IBV_WR_SEND,
		.sg_list = &from,
		.num_sge = 1,
		.qp_type.xrc.remote_srqn = traffic->srqn,
	};
	unsigned int seen = 0;

	memset(memory, 0, sizeof(memory));
	strcpy(memory, MESSAGE);
	CHECK(!ibv_post_srq_recv(traffic->srq, &receive, &bad_receive));
	CHECK(!ibv_post_send(traffic->initiator, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(traffic->cq);

		seen |= wc.wr_id;
		if (wc.wr_id == 1)
			CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == sizeof(MESSAGE) && wc.qp_num == target);
	}
	CHECK(seen == 3);
	CHECK(!strcmp(memory + 2048, MESSAGE));
}

static enum ibv_qp_state state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

int shared_target(void)
{
	int file = open("/tmp/shared-target", O_RDWR | O_CREAT, 0600), told[2], go[2], status;
	struct ibv_xrcd *domain, *other;
	struct ibv_context *context;
	struct traffic traffic = {};
	struct ibv_qp *qp, *again;
	union ibv_gid gid;
	uint32_t qpn;
	pid_t maker;

	CHECK(file >= 0 && !pipe(told) && !pipe(go));
	CHECK((maker = fork()) >= 0);
	if (!maker)
		make_target(file, told[1], go[0]);
	CHECK(!close(told[1]));
	CHECK(read(told[0], &qpn, sizeof(qpn)) == sizeof(qpn));

	context = open_device();
	domain = open_domain(context, file);
	other = open_domain(context, -1);
	CHECK(!open_target(other, qpn) && errno == EINVAL);
	CHECK(!open_target(domain, qpn + 1) && errno == EINVAL);
	if (!(qp = open_target(domain, qpn)))
		FAIL("ibv_open_qp");
	CHECK(qp->qp_num == qpn && state(qp) == IBV_QPS_RESET);

	/* The maker goes, and the target stays. */
	CHECK(write(go[1], "", 1) == 1);
	CHECK(waitpid(maker, &status, 0) == maker && !status);
	begin(&traffic, domain);
	find_gid(context, &gid);
	connect_qp(context, traffic.initiator, qpn, &gid);
	connect_qp(context, qp, traffic.initiator->qp_num, &gid);
	carry(&traffic, qpn);

	/* One handle more, and then the first no more. */
	if (!(again = open_target(domain, qpn)))
		FAIL("ibv_open_qp");
	CHECK(state(again) == IBV_QPS_RTS);
	CHECK(!ibv_destroy_qp(qp));
	carry(&traffic, qpn);

	/* The domain is not given up while a target is in it, and the target goes with its last handle. */
	CHECK(ibv_close_xrcd(domain) == EBUSY);
	CHECK(!ibv_destroy_qp(again));
	CHECK(!open_target(domain, qpn) && errno == EINVAL);
	end(&traffic);
	CHECK(!ibv_close_xrcd(other));
	CHECK(!ibv_close_xrcd(domain));
	CHECK(!ibv_close_device(context));
	CHECK(!unlink("/tmp/shared-target"));
	printf("the target went with its last handle\n");
	return 0;
}
