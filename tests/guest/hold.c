// SPDX-License-Identifier: Apache-2.0
/*
 * Holds objects of every type and prints `holding`, then each asynchronous event. After DEVICE_FATAL every verb that needs the
 * device must fail with EIO, posting and polling must do no harm, and all objects must go.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "life.h"

struct set {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	char memory[4096];
};

static void make(struct ibv_context *context, struct set *set)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
	};

	CHECK(set->pd = ibv_alloc_pd(context));
	CHECK(set->cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CHECK(set->mr = ibv_reg_mr(set->pd, set->memory, sizeof(set->memory), IBV_ACCESS_LOCAL_WRITE));
	CHECK(set->srq = ibv_create_srq(set->pd, &srq));
	qp.send_cq = qp.recv_cq = set->cq;
	qp.srq = set->srq;
	CHECK(set->qp = ibv_create_qp(set->pd, &qp));
}

static void unmake(struct set *set)
{
	CHECK(!ibv_destroy_qp(set->qp));
	CHECK(!ibv_destroy_srq(set->srq));
	CHECK(!ibv_dereg_mr(set->mr));
	CHECK(!ibv_destroy_cq(set->cq));
	CHECK(!ibv_dealloc_pd(set->pd));
}

#define REFUSED(call) do { \
	errno = 0; \
	if (call) \
		FAIL("%s did not fail", #call); \
	if (errno != EIO) \
		FAIL("%s failed, but not with EIO", #call); \
} while (0)

/* What returns its errno. */
static bool carried_out(int error)
{
	errno = error;
	return !error;
}

static void use_without_device(struct ibv_context *context, struct set *set)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr *bad, receive = { .wr_id = 1 };
	struct ibv_port_attr port;
	struct ibv_wc wc;

	REFUSED(ibv_alloc_pd(context));
	REFUSED(ibv_create_cq(context, 16, NULL, NULL, 0));
	REFUSED(ibv_reg_mr(set->pd, set->memory, 64, 0));
	REFUSED(carried_out(ibv_modify_qp(set->qp, &attr, IBV_QP_STATE)));
	REFUSED(carried_out(ibv_query_port(context, PORT, &port)));
	/* Into rings that nobody reads any more, and the bell that is no longer there. */
	CHECK(!ibv_post_srq_recv(set->srq, &receive, &bad));
	CHECK(ibv_poll_cq(set->cq, 1, &wc) == 0);
}

int hold(int sets)
{
	struct ibv_context *context;
	struct ibv_async_event event;
	enum ibv_event_type type;
	struct set *set;

	/* What went with the device is destroyed with success, and not with EIO, for whoever asks the library for that. */
	CHECK(!setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1));
	context = open_device();
	CHECK(sets > 0 && (set = calloc(sets, sizeof(*set))));
	for (int i = 0; i < sets; i++)
		make(context, &set[i]);
	setlinebuf(stdout);
	printf("holding\n");
	do {
		CHECK(!ibv_get_async_event(context, &event));
		type = event.event_type;
		printf("event %s\n", ibv_event_type_str(type));
		ibv_ack_async_event(&event);
	} while (type != IBV_EVENT_DEVICE_FATAL);

	use_without_device(context, &set[0]);
	for (int i = 0; i < sets; i++)
		unmake(&set[i]);
	CHECK(!ibv_close_device(context));
	printf("gone\n");
	return 0;
}
