// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Test of the provider's rings without device, driver or libibverbs: the few
 * functions of those that it calls are here, and the test plays the device.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static uint32_t next_qpn = 0x1fff;
static const uint32_t no_doorbell = 0xffffffff;

/* What libibverbs has. */

int ibv_dontfork_range(void *base, size_t size)
{
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	return 0;
}

int ibv_cmd_create_cq_ex(struct ibv_context *context,
			 const struct ibv_cq_init_attr_ex *attr,
			 struct verbs_cq *cq, struct ibv_create_cq_ex *cmd,
			 size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp,
			 size_t resp_size, uint32_t cmd_flags)
{
	cq->cq.context = context;
	return 0;
}

/* The device's part as well: what was not polled goes to the new ring. */
int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd,
		      size_t cmd_size, struct ib_uverbs_resize_cq_resp *resp,
		      size_t resp_size)
{
	const struct virtio_rdma_ureq_create_cq *drv = (void *)(cmd + 1);
	void *buf = (void *)(uintptr_t)drv->buf_addr;
	struct virtio_rdma_cqe *ring = buf + drv->layout.ring_offset;
	struct vrdma_cq *old = to_vcq(cq);
	uint32_t unread = 0, i;

	while (unread < old->entries &&
	       vrdma_cqe_valid(old, old->consumer + unread))
		unread++;
	if (unread > drv->layout.entries)
		return EINVAL;
	for (i = 0; i < unread; i++) {
		ring[i] = *vrdma_cqe(old, old->consumer + i);
		ring[i].phase = htole32(1);
	}
	cq->cqe = drv->layout.entries;
	return 0;
}

int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr,
		      struct ibv_modify_cq *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

/* The device's clock at some time. */
int ibv_cmd_query_device_any(struct ibv_context *context,
			     const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_size,
			     struct ib_uverbs_ex_query_device_resp *resp,
			     size_t *resp_size)
{
	struct virtio_rdma_uresp_query_device *drv = (void *)(resp + 1);

	drv->clock = 5000;
	return 0;
}

int ibv_cmd_destroy_cq(struct ibv_cq *cq)
{
	return 0;
}

int ibv_cmd_create_qp_ex(struct ibv_context *context, struct verbs_qp *vqp,
			 struct ibv_qp_init_attr_ex *attr,
			 struct ibv_create_qp *cmd, size_t cmd_size,
			 struct ib_uverbs_create_qp_resp *resp,
			 size_t resp_size)
{
	struct ibv_qp *qp = &vqp->qp;

	qp->context = context;
	qp->qp_num = next_qpn++;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->qp_type = attr->qp_type;
	qp->state = IBV_QPS_RESET;
	vqp->comp_mask = 0;
	return 0;
}

int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		      struct ibv_modify_qp *cmd, size_t cmd_size)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		     struct ibv_qp_init_attr *init_attr,
		     struct ibv_query_qp *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type,
		     struct ibv_mw *mw, struct ibv_alloc_mw *cmd,
		     size_t cmd_size, struct ib_uverbs_alloc_mw_resp *resp,
		     size_t resp_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_dealloc_mw(struct ibv_mw *mw)
{
	return EOPNOTSUPP;
}

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	return 0;
}

int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *new_pd,
		     struct ibv_alloc_pd *cmd, size_t cmd_size,
		     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_dealloc_pd(struct ibv_pd *old_pd)
{
	return 0;
}

int ibv_cmd_create_srq_ex(struct ibv_context *context, struct verbs_srq *srq,
			  struct ibv_srq_init_attr_ex *attr,
			  struct ibv_create_xsrq *cmd, size_t cmd_size,
			  struct ib_uverbs_create_srq_resp *resp,
			  size_t resp_size)
{
	srq->srq.context = context;
	if (attr->srq_type == IBV_SRQT_XRC) {
		srq->xrcd = container_of(attr->xrcd, struct verbs_xrcd, xrcd);
		srq->srq_num = 0x77;
		srq->cq = attr->cq;
	}
	return 0;
}

int ibv_cmd_open_xrcd(struct ibv_context *context, struct verbs_xrcd *xrcd,
		      int vxrcd_size, struct ibv_xrcd_init_attr *attr,
		      struct ibv_open_xrcd *cmd, size_t cmd_size,
		      struct ib_uverbs_open_xrcd_resp *resp, size_t resp_size)
{
	xrcd->xrcd.context = context;
	return 0;
}

int ibv_cmd_close_xrcd(struct verbs_xrcd *xrcd)
{
	return 0;
}

int ibv_cmd_open_qp(struct ibv_context *context, struct verbs_qp *vqp,
		    int vqp_sz, struct ibv_qp_open_attr *attr,
		    struct ibv_open_qp *cmd, size_t cmd_size,
		    struct ib_uverbs_create_qp_resp *resp, size_t resp_size)
{
	vqp->qp.context = context;
	vqp->qp.qp_num = attr->qp_num;
	vqp->qp.qp_type = attr->qp_type;
	vqp->qp.state = IBV_QPS_RTS;
	return 0;
}

/* What the device does with a new ring of the test's SRQ: it goes on there. */
static uint32_t device_srq_taken;

int ibv_cmd_modify_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr,
		       int mask, struct ibv_modify_srq *cmd, size_t cmd_size)
{
	struct virtio_rdma_ureq_srq *drv = (void *)(cmd + 1);
	struct virtio_rdma_srq_ctrl *ctrl;

	if (cmd_size == sizeof(*cmd))
		return 0;
	ctrl = (void *)(uintptr_t)(drv->buf_addr + drv->layout.ctrl_offset);
	vrdma_store_release(&ctrl->consumer, device_srq_taken);
	return 0;
}

int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr,
		      struct ibv_query_srq *cmd, size_t cmd_size)
{
	return EOPNOTSUPP;
}

int ibv_cmd_destroy_srq(struct ibv_srq *srq)
{
	return 0;
}

/* The device. */

void device_complete(struct device_cq *dev, struct vrdma_qp *qp, uint16_t flags,
		     uint32_t index, uint64_t wr_id)
{
	struct vrdma_cq *cq = dev->cq;
	struct virtio_rdma_cqe *cqe =
		&cq->ring[dev->producer & (cq->entries - 1)];

	CHECK(dev->producer - vrdma_load_acquire(&cq->ctrl->consumer) <
	      cq->entries);
	cqe->wr_id = htole64(wr_id);
	cqe->status = IBV_WC_SUCCESS;
	cqe->opcode = flags & VIRTIO_RDMA_CQE_SEND_QUEUE ? IBV_WC_SEND :
							   IBV_WC_RECV;
	cqe->flags = htole16(flags);
	cqe->imm = htobe32(0x11223344);
	cqe->qpn = htole32(qp->ibv_qp.qp_num);
	cqe->wqe_index = htole32(index);
	vrdma_store_release(&cqe->phase,
			    virtio_rdma_phase(dev->producer, cq->entries));
	dev->producer++;
}

/* One context, and in it what a test asks for. */

static struct vrdma_context context = {
	.features = 1U << VIRTIO_RDMA_F_ATOMICS | 1U << VIRTIO_RDMA_F_UC |
		    1U << VIRTIO_RDMA_F_UD | 1U << VIRTIO_RDMA_F_CQ_RESIZE |
		    1U << VIRTIO_RDMA_F_XRC | 1U << VIRTIO_RDMA_F_ATOMIC_WRITE |
		    1U << VIRTIO_RDMA_F_FLUSH,
	.limits = {
		.max_send_wr = 1024,
		.max_recv_wr = 1024,
		.max_send_sge = 30,
		.max_recv_sge = 16,
		.max_inline = 512,
		.max_sq_stride = 1024,
		.max_cqe = 4096,
		.max_srq_wr = 1024,
		.max_srq_sge = 16,
	},
	.qp_lock = PTHREAD_MUTEX_INITIALIZER,
};
struct vrdma_pd test_pd = { .ibv_pd.context = &context.ibv_ctx.context };
static uint32_t doorbell;

struct vrdma_cq *new_cq(int cqe)
{
	struct ibv_cq *cq = vrdma_create_cq(test_pd.ibv_pd.context, cqe, NULL, 0);

	CHECK(cq);
	return to_vcq(cq);
}

static struct vrdma_qp *new_qp_in(struct ibv_pd *in, struct vrdma_cq *cq,
				  struct ibv_qp_cap cap,
				  enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = &cq->ibv_cq,
		.cap = cap,
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp;

	context.doorbell = &doorbell;
	doorbell = no_doorbell;
	qp = vrdma_create_qp(in, &init);
	CHECK(qp);
	qp->state = state;
	return to_vqp(qp);
}

struct vrdma_qp *new_qp(struct vrdma_cq *cq, struct ibv_qp_cap cap,
			enum ibv_qp_state state)
{
	return new_qp_in(&test_pd.ibv_pd, cq, cap, state);
}

struct virtio_rdma_send_wqe *send_slot(struct vrdma_qp *qp, uint32_t i)
{
	return qp->sq.ring + (size_t)(i & (qp->sq.entries - 1)) * qp->sq.stride;
}

static void test_layout(void)
{
	struct virtio_rdma_qp_caps caps = { 5, 3, 1, 3, 0 };
	struct virtio_rdma_qp_layout qp;
	struct virtio_rdma_cq_layout cq;

	CHECK(!virtio_rdma_layout_qp(&context.limits, &caps, &qp));
	CHECK(qp.sq_entries == 8 && qp.sq_stride == 128);
	CHECK(qp.rq_entries == 4 && qp.rq_stride == 64);
	CHECK(caps.send_wr == 8 && caps.send_sge == 4);
	CHECK(caps.inline_data == 64);
	CHECK(caps.recv_wr == 4 && caps.recv_sge == 3);
	CHECK(qp.sq_offset >= sizeof(struct virtio_rdma_qp_ctrl));
	CHECK(qp.rq_offset == qp.sq_offset + 8 * 128);
	CHECK(qp.length == 4096);

	/* The largest, where rounding up meets the device's limits. */
	caps = (struct virtio_rdma_qp_caps){ 1024, 1024, 30, 16, 512 };
	CHECK(!virtio_rdma_layout_qp(&context.limits, &caps, &qp));
	CHECK(qp.sq_stride == 1024 && caps.send_sge == 30);
	CHECK(caps.inline_data == 512);
	CHECK(qp.sq_offset % 1024 == 0 && qp.rq_offset % qp.rq_stride == 0);
	CHECK(qp.length % 4096 == 0);
	CHECK(qp.length >= qp.rq_offset + 1024 * (uint64_t)qp.rq_stride);

	caps = (struct virtio_rdma_qp_caps){ 1025, 1, 1, 1, 0 };
	CHECK(virtio_rdma_layout_qp(&context.limits, &caps, &qp));
	caps = (struct virtio_rdma_qp_caps){ 1, 1, 31, 1, 0 };
	CHECK(virtio_rdma_layout_qp(&context.limits, &caps, &qp));
	caps = (struct virtio_rdma_qp_caps){ 1, 1, 1, 1, 513 };
	CHECK(virtio_rdma_layout_qp(&context.limits, &caps, &qp));

	CHECK(!virtio_rdma_layout_cq(&context.limits, 1, &cq));
	CHECK(cq.entries == 1 && cq.length == 4096);
	CHECK(!virtio_rdma_layout_cq(&context.limits, 4095, &cq));
	CHECK(cq.entries == 4096 && cq.ring_offset % 64 == 0);
	CHECK(virtio_rdma_layout_cq(&context.limits, 4097, &cq));
	CHECK(virtio_rdma_layout_cq(&context.limits, 0, &cq));
}

static void test_post_send(void)
{
	struct vrdma_cq *cq = new_cq(16);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 4, 1, 2, 1, 40 }, IBV_QPS_RTR);
	struct ibv_sge sges[2] = {
		{ .addr = 0x123456789000, .length = 100, .lkey = 7 },
		{ .addr = 0x1000, .length = 1, .lkey = 8 },
	};
	struct ibv_send_wr wr = {
		.wr_id = 0xabcdef0123456789,
		.sg_list = sges,
		.num_sge = 2,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
		.imm_data = htobe32(0x55667788),
		.wr.rdma = { .remote_addr = 0x99aabbccddee, .rkey = 0x1234 },
	};
	struct ibv_send_wr more[4], *bad = NULL;
	struct virtio_rdma_send_wqe *wqe = send_slot(qp, 0);
	struct virtio_rdma_sge *sge = (void *)(wqe + 1);
	char text[65] = "forty bytes that go into the WQE itself";
	int i;

	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(!qp->ctrl->sq_producer);

	/* The device is looking anyway: no doorbell. */
	qp->ibv_qp.state = IBV_QPS_RTS;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	CHECK(le32toh(qp->ctrl->sq_producer) == 1 && doorbell == no_doorbell);
	CHECK(le64toh(wqe->wr_id) == wr.wr_id);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_WRITE_IMM);
	CHECK(wqe->flags == (VIRTIO_RDMA_WQE_SIGNALED | VIRTIO_RDMA_WQE_FENCE));
	CHECK(le16toh(wqe->num_sge) == 2 && wqe->imm == wr.imm_data);
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(sge[0].addr) == sges[0].addr);
	CHECK(le32toh(sge[1].length) == 1 && le32toh(sge[1].lkey) == 8);

	/* It sleeps: one doorbell, with the QP's number. */
	qp->ctrl->flags = htole32(VIRTIO_RDMA_KICK_SQ);
	sges[0] = (struct ibv_sge){ (uintptr_t)text, 30, 0 };
	sges[1] = (struct ibv_sge){ (uintptr_t)text + 30, 10, 0 };
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	CHECK(doorbell == htole32(qp->ibv_qp.qp_num));
	wqe = send_slot(qp, 1);
	CHECK(wqe->flags ==
	      (VIRTIO_RDMA_WQE_INLINE | VIRTIO_RDMA_WQE_SOLICITED));
	CHECK(!wqe->num_sge && le32toh(wqe->inline_len) == 40);
	CHECK(!memcmp(wqe + 1, text, 40));

	/* What does not fit or cannot be is refused before it is seen. */
	doorbell = no_doorbell;
	sges[0].length = 65;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	sges[0].length = 30;
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.send_flags = 0;
	wr.opcode = IBV_WR_TSO;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 5;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	qp->atomics = false;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	CHECK(le32toh(qp->ctrl->sq_producer) == 2 && doorbell == no_doorbell);

	/* Two of a chain of four fit, and are posted. */
	wr.opcode = IBV_WR_SEND;
	for (i = 0; i < 4; i++) {
		more[i] = wr;
		more[i].next = i < 3 ? &more[i + 1] : NULL;
	}
	CHECK(vrdma_post_send(&qp->ibv_qp, more, &bad) == ENOMEM);
	CHECK(bad == &more[2] && le32toh(qp->ctrl->sq_producer) == 4);
	CHECK(doorbell == htole32(qp->ibv_qp.qp_num));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* What UC and UD send, and how a datagram is addressed. */
static void test_unacknowledged(void)
{
	struct vrdma_ah ah = {
		.av = { .dgid = { 0xfe, 0x80, [15] = 7 },
			.flow_label = htole32(0x12345),
			.sgid_index = 3,
			.hop_limit = 64,
			.traffic_class = 8,
			.sl = 5 },
	};
	struct vrdma_cq *cq = new_cq(16);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 4, 1, 1, 1, 0 }, IBV_QPS_RTS);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ }, *bad;
	struct virtio_rdma_send_wqe *wqe = send_slot(qp, 0);
	const uint8_t *bytes = (uint8_t *)wqe;
	struct ibv_qp_init_attr_ex init = {
		.cap = { 4, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = &test_pd.ibv_pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp_ex *ex;

	qp->ibv_qp.qp_type = IBV_QPT_UC;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));

	qp->ibv_qp.qp_type = IBV_QPT_UD;
	wr.wr.ud.ah = &ah.ibv_ah;
	wr.wr.ud.remote_qpn = 0x112233;
	wr.wr.ud.remote_qkey = 0x44556677;
	CHECK(vrdma_post_send(&qp->ibv_qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	CHECK(!vrdma_post_send(&qp->ibv_qp, &wr, &bad));
	bytes += qp->sq.stride;
	CHECK(!memcmp(bytes + 24, "\x33\x22\x11\0\x77\x66\x55\x44", 8));
	CHECK(bytes[32] == 0xfe && bytes[33] == 0x80 && bytes[47] == 7);
	CHECK(!memcmp(bytes + 48, "\x45\x23\x01\0\x03\x40\x08\x05", 8));
	CHECK(le32toh(qp->ctrl->sq_producer) == 2);
	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));

	/* The same by ibv_wr_*, where an address before any request is none's. */
	init.send_cq = init.recv_cq = &cq->ibv_cq;
	qp = to_vqp(vrdma_create_qp_ex(test_pd.ibv_pd.context, &init));
	ex = &qp->verbs_qp.qp_ex;
	qp->ibv_qp.state = IBV_QPS_RTS;
	ibv_wr_start(ex);
	ibv_wr_set_ud_addr(ex, &ah.ibv_ah, 1, 2);
	ex->wr_id = 5;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, &ah.ibv_ah, 0x112233, 0x44556677);
	ibv_wr_set_sge(ex, 7, 0x1000, 100);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 1);
	wqe = send_slot(qp, 0);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_SEND && le64toh(wqe->wr_id) == 5);
	CHECK(le16toh(wqe->num_sge) == 1);
	bytes = (uint8_t *)wqe;
	CHECK(!memcmp(bytes + 24, "\x33\x22\x11\0\x77\x66\x55\x44", 8));
	CHECK(!memcmp(bytes + 32, &ah.av, sizeof(ah.av)));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

static void test_laps(void)
{
	struct vrdma_cq *cq = new_cq(4);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 2, 2, 1, 1, 0 }, IBV_QPS_RTS);
	struct device_cq dev = { .cq = cq };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = {}, *bad_recv;
	struct ibv_wc wc[4];
	uint32_t i;

	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 4, wc));
	for (i = 0; i < 11; i++) {
		recv.wr_id = 100 + i;
		send.wr_id = 200 + i;
		CHECK(!vrdma_post_recv(&qp->ibv_qp, &recv, &bad_recv));
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_WITH_IMM, i, 100 + i);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i,
				200 + i);
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 1, wc) == 1);
		CHECK(wc[0].wr_id == 100 + i && wc[0].opcode == IBV_WC_RECV);
		CHECK(wc[0].wc_flags == IBV_WC_WITH_IMM);
		CHECK(wc[0].imm_data == htobe32(0x11223344));
		CHECK(wc[0].qp_num == qp->ibv_qp.qp_num);
		CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
		CHECK(wc[0].wr_id == 200 + i && !wc[0].wc_flags);
		CHECK(!vrdma_poll_cq(&cq->ibv_cq, 4, wc));
		CHECK(le32toh(cq->ctrl->consumer) == 2 * i + 2);
	}

	/* One completion retires all sends before it, and only those. */
	for (i = 0; i < 2; i++)
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
	CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad_send) == ENOMEM);
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, 12, 0);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
	for (i = 0; i < 2; i++)
		CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad_send));
	CHECK(vrdma_post_send(&qp->ibv_qp, &send, &bad_send) == ENOMEM);

	/* An overflowed CQ gives what it has, and then an error. */
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, 13, 0);
	cq->ctrl->flags = htole32(VIRTIO_RDMA_CQ_ERROR);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) == 1);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 4, wc) < 0);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

static void test_arm(void)
{
	struct vrdma_cq *cq = new_cq(1);

	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_SOLICITED);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 0));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_ANY);
	/* The stronger of two armings stays. */
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_ANY);
	/* An event ends it. */
	vrdma_cq_event(&cq->ibv_cq);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));
	CHECK(le32toh(cq->ctrl->arm) == (1 << 2 | VIRTIO_RDMA_ARM_SOLICITED));
	/* The sequence has the 30 bits that the word has room for. */
	cq->sequence = VIRTIO_RDMA_ARM_SEQ_MASK;
	vrdma_cq_event(&cq->ibv_cq);
	CHECK(!cq->sequence);
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* Extended and plain verbs, in turns, on one CQ. */
static void test_start_poll(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 4,
		.wc_flags = IBV_WC_STANDARD_FLAGS |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_init_attr_ex tags = {
		.cqe = 4,
		.wc_flags = IBV_WC_EX_WITH_FLOW_TAG,
	};
	struct ibv_poll_cq_attr attr = {}, odd = { .comp_mask = 1 };
	struct ibv_cq_ex *ex;
	struct device_cq dev = {};
	struct vrdma_qp *qp;
	struct ibv_wc wc;
	uint32_t i = 0, lap;

	CHECK(!vrdma_create_cq_ex(test_pd.ibv_pd.context, &tags));
	CHECK(errno == EOPNOTSUPP);
	ex = vrdma_create_cq_ex(test_pd.ibv_pd.context, &init);
	CHECK(ex);
	dev.cq = to_vcq(ibv_cq_ex_to_cq(ex));
	qp = new_qp(dev.cq, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 }, IBV_QPS_RTS);

	CHECK(ibv_start_poll(ex, &odd) == EINVAL);
	CHECK(ibv_start_poll(ex, &attr) == ENOENT);
	for (lap = 0; lap < 5; lap++) {
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_WITH_IMM, i, i + 100);
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i + 1, 7);
		CHECK(!ibv_start_poll(ex, &attr));
		CHECK(ex->wr_id == i && ex->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_opcode(ex) == IBV_WC_SEND);
		CHECK(!ibv_wc_read_wc_flags(ex));
		/* The slot is not given away before the end. */
		CHECK(le32toh(dev.cq->ctrl->consumer) == 3 * lap);
		CHECK(!ibv_next_poll(ex));
		CHECK(ex->wr_id == i + 100);
		CHECK(ibv_wc_read_opcode(ex) == IBV_WC_RECV);
		CHECK(ibv_wc_read_wc_flags(ex) == IBV_WC_WITH_IMM);
		CHECK(ibv_wc_read_imm_data(ex) == htobe32(0x11223344));
		CHECK(ibv_wc_read_qp_num(ex) == qp->ibv_qp.qp_num);
		CHECK(ibv_wc_read_completion_ts(ex) == 0);
		CHECK(ibv_wc_read_completion_wallclock_ns(ex) ==
		      (uint64_t)dev.cq->wall_offset);
		ibv_end_poll(ex);
		CHECK(le32toh(dev.cq->ctrl->consumer) == 3 * lap + 2);
		CHECK(vrdma_poll_cq(&dev.cq->ibv_cq, 1, &wc) == 1);
		CHECK(wc.wr_id == 7);
		CHECK(ibv_start_poll(ex, &attr) == ENOENT);
		i += 2;
	}
	device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, 1);
	CHECK(!ibv_start_poll(ex, &attr));
	CHECK(ibv_next_poll(ex) == ENOENT);
	ibv_end_poll(ex);
	dev.cq->ctrl->flags = htole32(VIRTIO_RDMA_CQ_ERROR);
	CHECK(ibv_start_poll(ex, &attr) == EIO);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&dev.cq->ibv_cq));
}

static void test_resize(void)
{
	struct vrdma_cq *cq = new_cq(4);
	struct vrdma_qp *qp = new_qp(
		cq, (struct ibv_qp_cap){ 8, 8, 1, 1, 0 }, IBV_QPS_RTS);
	struct device_cq dev = { .cq = cq };
	struct ibv_wc wc[8];
	uint32_t i;

	for (i = 0; i < 2; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 2);
	for (; i < 5; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(!vrdma_req_notify_cq(&cq->ibv_cq, 1));

	CHECK(vrdma_resize_cq(&cq->ibv_cq, 0) == EINVAL);
	CHECK(vrdma_resize_cq(&cq->ibv_cq, 4097) == EINVAL);
	CHECK(vrdma_resize_cq(&cq->ibv_cq, 2) == EINVAL);
	CHECK(cq->entries == 4);
	CHECK(!vrdma_resize_cq(&cq->ibv_cq, 5));
	CHECK(cq->entries == 8 && cq->ibv_cq.cqe == 8);
	/* Arming went along. */
	CHECK(le32toh(cq->ctrl->arm) == VIRTIO_RDMA_ARM_SOLICITED);
	dev.producer = 3;
	for (; i < 10; i++)
		device_complete(&dev, qp, VIRTIO_RDMA_CQE_SEND_QUEUE, i, i);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 8, wc) == 8);
	for (i = 0; i < 8; i++)
		CHECK(wc[i].wr_id == 2 + i);
	CHECK(!vrdma_resize_cq(&cq->ibv_cq, 1));
	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 8, wc));

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* ibv_wr_* and ibv_post_send, in turns, on one queue pair. */
static void test_wr(void)
{
	struct vrdma_cq *cq = new_cq(16);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = &cq->ibv_cq,
		.cap = { 4, 1, 2, 1, 40 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = &test_pd.ibv_pd,
		.send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	struct ibv_sge sges[3] = { { 0x1000, 10, 7 }, { 0x2000, 20, 8 } };
	char first[] = "first", second[] = "second";
	struct ibv_data_buf bufs[2] = { { first, 5 }, { second, 6 } };
	struct ibv_send_wr send = { .wr_id = 77, .opcode = IBV_WR_SEND }, *bad;
	struct virtio_rdma_send_wqe *wqe;
	struct virtio_rdma_sge *sge;
	struct vrdma_qp *qp;
	struct ibv_qp_ex *ex;
	char large[65] = "";
	uint32_t mark;

	CHECK(!vrdma_create_qp_ex(test_pd.ibv_pd.context, &init));
	CHECK(errno == EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND |
			      IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			      IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
	qp = to_vqp(vrdma_create_qp_ex(test_pd.ibv_pd.context, &init));
	ex = &qp->verbs_qp.qp_ex;
	/* Where libibverbs looks, and where an older one looks. */
	CHECK(qp->verbs_qp.comp_mask & VERBS_QP_EX);
	memcpy(&mark, &ex->wr_flush, sizeof(mark));
	CHECK(mark == VERBS_QP_EX);

	/* Not in this state. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL && !qp->ctrl->sq_producer);
	qp->ibv_qp.state = IBV_QPS_RTS;

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, 0x1234, 0x99aabbccddee, htobe32(5));
	ibv_wr_set_sge_list(ex, 2, sges);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_FENCE;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 2, bufs);
	CHECK(!qp->ctrl->sq_producer);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 2);
	wqe = send_slot(qp, 0);
	sge = (void *)(wqe + 1);
	CHECK(le64toh(wqe->wr_id) == 1 && wqe->imm == htobe32(5));
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_WRITE_IMM);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	CHECK(le16toh(wqe->num_sge) == 2 && le64toh(sge[1].addr) == 0x2000);
	wqe = send_slot(qp, 1);
	CHECK(wqe->flags == (VIRTIO_RDMA_WQE_INLINE | VIRTIO_RDMA_WQE_FENCE));
	CHECK(le32toh(wqe->inline_len) == 11 && !wqe->num_sge);
	CHECK(!memcmp(wqe + 1, "firstsecond", 11));

	CHECK(!vrdma_post_send(&qp->ibv_qp, &send, &bad));
	CHECK(le64toh(send_slot(qp, 2)->wr_id) == 77);

	/* What was given up leaves no trace, nor does a batch with an error. */
	ex->wr_id = 3;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 5, sges);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, large, sizeof(large));
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_atomic_cmp_swp(ex, 1, 2, 3, 4);
	ibv_wr_set_inline_data(ex, large, 8);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, 1, 2, 3);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, 1, 2, 3);
	CHECK(ibv_wr_complete(ex) == ENOMEM);
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);

	ibv_wr_start(ex);
	ibv_wr_atomic_cmp_swp(ex, 1, 2, 3, 4);
	ibv_wr_set_sge(ex, 5, 6, 8);
	CHECK(!ibv_wr_complete(ex));
	wqe = send_slot(qp, 3);
	CHECK(le64toh(wqe->compare_add) == 3 && le64toh(wqe->swap) == 4);
	CHECK(le32toh(qp->ctrl->sq_producer) == 4);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* Atomic write and flush, which only ibv_wr_* posts. */
static void test_placement(void)
{
	struct vrdma_cq *cq = new_cq(16);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = &cq->ibv_cq,
		.cap = { 4, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = &test_pd.ibv_pd,
		.send_ops_flags = IBV_QP_EX_WITH_FLUSH |
				  IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	const uint8_t value[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct virtio_rdma_send_wqe *wqe;
	struct vrdma_qp *qp;
	struct ibv_qp_ex *ex;

	init.qp_type = IBV_QPT_UC;
	CHECK(!vrdma_create_qp_ex(test_pd.ibv_pd.context, &init));
	CHECK(errno == EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	qp = to_vqp(vrdma_create_qp_ex(test_pd.ibv_pd.context, &init));
	CHECK(qp && qp->verbs_qp.comp_mask & VERBS_QP_EX);
	ex = &qp->verbs_qp.qp_ex;
	qp->ibv_qp.state = IBV_QPS_RTS;

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(ex, 0x1234, 0x99aabbccddee, value);
	ibv_wr_flush(ex, 0x1234, 0x99aabbccddee, 5000, IBV_FLUSH_GLOBAL,
		     IBV_FLUSH_RANGE);
	ibv_wr_flush(ex, 0x1234, 0, 0, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR);
	CHECK(!ibv_wr_complete(ex));
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);
	wqe = send_slot(qp, 0);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_ATOMIC_WRITE && !wqe->num_sge);
	CHECK(wqe->flags == VIRTIO_RDMA_WQE_SIGNALED);
	CHECK(!memcmp((uint8_t *)wqe + 32, value, 8));
	CHECK(le64toh(wqe->remote_addr) == 0x99aabbccddee);
	wqe = send_slot(qp, 1);
	CHECK(wqe->opcode == VIRTIO_RDMA_WQE_FLUSH && !wqe->num_sge);
	CHECK(le64toh(wqe->compare_add) == 5000 && le64toh(wqe->swap) == 1);
	CHECK(le32toh(wqe->rkey) == 0x1234);
	CHECK(le64toh(send_slot(qp, 2)->swap) == 0x102);

	/* What makes no sense is not posted. */
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, 0, IBV_FLUSH_RANGE);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, 4, IBV_FLUSH_RANGE);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, IBV_FLUSH_GLOBAL, 2);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_atomic_write(ex, 1, 2, value);
	ibv_wr_set_inline_data(ex, (void *)value, 8);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	CHECK(le32toh(qp->ctrl->sq_producer) == 3);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp));
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq));
}

/* Rings in a parent domain's memory, without locks when it has one thread. */
static uint64_t asked;
static void *asked_for;
static unsigned int given_back;

static void *ask(struct ibv_pd *of, void *ctx, size_t size, size_t alignment,
		 uint64_t type)
{
	asked = type;
	CHECK(ctx == &asked && alignment == VIRTIO_RDMA_PAGE_SIZE);
	asked_for = aligned_alloc(alignment, size);
	memset(asked_for, 0xff, size);
	return asked_for;
}

static void give_back(struct ibv_pd *of, void *ctx, void *ptr, uint64_t type)
{
	CHECK(type == asked);
	free(ptr);
	given_back++;
}

static void test_parent_domain(void)
{
	struct ibv_context *ctx = test_pd.ibv_pd.context;
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = vrdma_alloc_td(ctx, &td_attr);
	struct ibv_parent_domain_init_attr attr = {
		.pd = &test_pd.ibv_pd,
		.td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = ask,
		.free = give_back,
		.pd_context = &asked,
	};
	struct ibv_cq_init_attr_ex init = {
		.cqe = 4,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
	};
	struct ibv_pd *parent = vrdma_alloc_parent_domain(ctx, &attr);
	struct device_cq dev = {};
	struct ibv_wc wc;
	struct vrdma_cq *cq;
	struct vrdma_qp *qp;

	CHECK(parent && vrdma_dealloc_td(td) == EBUSY);
	CHECK(vrdma_dealloc_pd(&test_pd.ibv_pd) == EBUSY);
	attr.pd = parent;
	CHECK(!vrdma_alloc_parent_domain(ctx, &attr) && errno == EINVAL);

	init.parent_domain = &test_pd.ibv_pd;
	CHECK(!vrdma_create_cq_ex(ctx, &init) && errno == EINVAL);
	init.parent_domain = parent;
	cq = to_vcq(ibv_cq_ex_to_cq(vrdma_create_cq_ex(ctx, &init)));
	CHECK(asked == VRDMA_RES_TYPE(VRDMA_RES_TYPE_CQ));
	CHECK(cq->buf.addr == asked_for && cq->single_threaded);
	/* The allocator's memory has been zeroed. */
	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 1, &wc));
	CHECK(vrdma_dealloc_pd(parent) == EBUSY);

	test_pd.ibv_pd.handle = 1;
	qp = new_qp_in(parent, cq, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 },
		       IBV_QPS_RTS);
	CHECK(asked == VRDMA_RES_TYPE(VRDMA_RES_TYPE_QP));
	CHECK(qp->sq.single_threaded && qp->rq.single_threaded);
	dev.cq = cq;
	device_complete(&dev, qp, 0, 0, 9);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 1, &wc) == 1 && wc.wr_id == 9);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp) && given_back == 1);
	asked = VRDMA_RES_TYPE(VRDMA_RES_TYPE_CQ);
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq) && given_back == 2);
	CHECK(!vrdma_dealloc_pd(parent) && !vrdma_dealloc_td(td));
}

static uint64_t srq_wr_id(struct vrdma_srq *srq, uint32_t index)
{
	struct virtio_rdma_recv_wqe *wqe =
		srq->ring + (size_t)(index & (srq->entries - 1)) * srq->stride;

	return le64toh(wqe->wr_id);
}

static int srq_post(struct vrdma_srq *srq, uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;

	return vrdma_post_srq_recv(&srq->vsrq.srq, &wr, &bad);
}

static void test_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 3,
						    .max_sge = 2 } };
	struct ibv_srq *ibv_srq = vrdma_create_srq(&test_pd.ibv_pd, &init);
	struct ibv_sge sges[4] = { { .addr = 0x1000, .length = 7, .lkey = 9 } };
	struct ibv_recv_wr more[3] = {
		{ .wr_id = 1, .next = &more[1], .sg_list = sges, .num_sge = 3 },
		{ .wr_id = 2, .next = &more[2], .sg_list = sges, .num_sge = 4 },
		{ .wr_id = 3 },
	};
	struct ibv_srq_attr size = { .max_wr = 8 };
	struct virtio_rdma_sge *sge;
	struct vrdma_srq *srq;
	struct ibv_recv_wr *bad;
	uint32_t i;

	CHECK(ibv_srq);
	srq = to_vsrq(ibv_srq);
	CHECK(srq->entries == 4 && srq->max_sge == 3 && srq->stride == 64);
	/* More SGEs than it has: what is before that is posted. */
	CHECK(vrdma_post_srq_recv(ibv_srq, more, &bad) == EINVAL);
	CHECK(bad == &more[1] && le32toh(srq->ctrl->producer) == 1);
	sge = (void *)((struct virtio_rdma_recv_wqe *)srq->ring + 1);
	CHECK(le64toh(sge->addr) == 0x1000 && le32toh(sge->lkey) == 9);

	/* A slot is free when the device has taken it, whatever completes. */
	for (i = 2; i <= 4; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 5) == ENOMEM);
	vrdma_store_release(&srq->ctrl->consumer, 3);
	for (i = 5; i <= 7; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 8) == ENOMEM);
	CHECK(le32toh(srq->ctrl->producer) == 7);

	/* What waits goes along into a larger ring and a smaller one. */
	device_srq_taken = 3;
	CHECK(!vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR));
	CHECK(srq->entries == 8 && le32toh(srq->ctrl->producer) == 7);
	for (i = 3; i < 7; i++)
		CHECK(srq_wr_id(srq, i) == i + 1);
	for (i = 8; i <= 11; i++)
		CHECK(!srq_post(srq, i));
	CHECK(srq_post(srq, 12) == ENOMEM);
	size.max_wr = 2;
	CHECK(vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(srq->entries == 8);
	device_srq_taken = 9;
	vrdma_store_release(&srq->ctrl->consumer, 9);
	CHECK(!vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR));
	CHECK(srq->entries == 2 && srq_post(srq, 12) == ENOMEM);
	CHECK(srq_wr_id(srq, 9) == 10 && srq_wr_id(srq, 10) == 11);
	size.max_wr = 1025;
	CHECK(vrdma_modify_srq(ibv_srq, &size, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(!vrdma_destroy_srq(ibv_srq));

	init.attr.max_sge = 17;
	CHECK(!vrdma_create_srq(&test_pd.ibv_pd, &init) && errno == EINVAL);
}

int main(void)
{
	test_layout();
	test_post_send();
	test_unacknowledged();
	test_laps();
	test_arm();
	test_start_poll();
	test_resize();
	test_wr();
	test_placement();
	test_parent_domain();
	test_srq();
	test_semantics();
	test_xrc();
	puts("virtio-rdma provider: rings as specified");
	return 0;
}
