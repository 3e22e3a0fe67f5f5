// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "life.h"

void fail(const char *file, int line, const char *format, ...)
{
	int error = errno;
	va_list arguments;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (errno %d: %s)\n", error, strerror(error));
	exit(1);
}

struct ibv_context *open_device(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context;

	if (!devices || !devices[0])
		FAIL("no RDMA device");
	context = ibv_open_device(devices[0]);
	if (!context)
		FAIL("ibv_open_device");
	ibv_free_device_list(devices);
	return context;
}

uint8_t find_gid(struct ibv_context *context, union ibv_gid *gid)
{
	static const union ibv_gid none;

	for (int index = 0; index < 128; index++)
		if (!ibv_query_gid(context, PORT, index, gid) && memcmp(gid, &none, sizeof(none)))
			return index;
	FAIL("no GID");
}

void connect_qp(struct ibv_context *context, struct ibv_qp *qp, uint32_t far_qpn, const union ibv_gid *far_gid)
{
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
	/* Of XRC, the one end answers nothing and the other asks for nothing. */
	const int answers = qp->qp_type == IBV_QPT_XRC_SEND ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int asks = qp->qp_type == IBV_QPT_XRC_RECV ? 0 : IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	union ibv_gid near_gid;

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = far_qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = *far_gid, .hop_limit = 64 } },
	};
	attr.ah_attr.grh.sgid_index = find_gid(context, &near_gid);
	CHECK(!ibv_modify_qp(qp, &attr, rtr | answers));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS,
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	CHECK(!ibv_modify_qp(qp, &attr, rts | asks));
}

void connect_ends(struct ends *ends, char *memory, size_t length)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	union ibv_gid gid;

	ends->memory = memory;
	ends->length = length;
	ends->context = open_device();
	CHECK(ends->pd = ibv_alloc_pd(ends->context));
	CHECK(ends->channel = ibv_create_comp_channel(ends->context));
	CHECK(ends->cq = ibv_create_cq(ends->context, 32, NULL, ends->channel, 0));
	CHECK(ends->mr = ibv_reg_mr(ends->pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	init.send_cq = init.recv_cq = ends->cq;
	for (int side = 0; side < 2; side++)
		CHECK(ends->qp[side] = ibv_create_qp(ends->pd, &init));
	find_gid(ends->context, &gid);
	for (int side = 0; side < 2; side++)
		connect_qp(ends->context, ends->qp[side], ends->qp[!side]->qp_num, &gid);
}

void part_ends(struct ends *ends)
{
	for (int side = 0; side < 2; side++)
		CHECK(!ibv_destroy_qp(ends->qp[side]));
	CHECK(!ibv_dereg_mr(ends->mr));
}

void post_write(struct ends *ends, size_t from, size_t to, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)ends->memory + from,
		.length = length,
		.lkey = ends->mr->lkey,
	};
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = { .remote_addr = (uintptr_t)ends->memory + to, .rkey = ends->mr->rkey },
	};

	CHECK(!ibv_post_send(ends->qp[0], &wr, &bad));
}

struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(count == 1);
	if (wc.status != IBV_WC_SUCCESS)
		FAIL("completion: %s", ibv_wc_status_str(wc.status));
	return wc;
}

static int hold_one(void)
{
	return hold(1);
}

static const struct {
	const char *name;
	int (*run)(void);
} commands[] = {
	{ "hold", hold_one },
	{ "unacknowledged-events", unacknowledged_events },
	{ "unread-events", unread_events },
	{ "leave-with-events", leave_with_events },
	{ "memory-limit", memory_limit },
	{ "rereg-codes", rereg_codes },
	{ "fork-and-exec", fork_and_exec },
	{ "qkey-violations", qkey_violations },
	{ "shared-target", shared_target },
};

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "hold"))
		return hold(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "dmabuf"))
		return dmabuf_serve(atoi(argv[2]));
	if (argc == 4 && !strcmp(argv[1], "dmabuf"))
		return dmabuf_ask(argv[3], atoi(argv[2]));
	for (size_t i = 0; argc == 2 && i < sizeof(commands) / sizeof(*commands); i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run();
	fprintf(stderr, "usage: verbs-life hold [SETS] | dmabuf PORT [ADDRESS]");
	for (size_t i = 1; i < sizeof(commands) / sizeof(*commands); i++)
		fprintf(stderr, " | %s", commands[i].name);
	fprintf(stderr, "\n");
	return 2;
}
