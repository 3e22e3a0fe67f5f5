// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Test of the provider's rings without device, driver or libibverbs: what the
 * tests of each subject share, and the order of the subjects.
 */
#include <stdio.h>

#include "test.h"

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
uint32_t test_doorbell;

struct vrdma_cq *new_cq(int cqe)
{
	struct ibv_cq *cq = vrdma_create_cq(test_pd.ibv_pd.context, cqe, NULL, 0);

	CHECK(cq);
	return to_vcq(cq);
}

struct vrdma_qp *new_qp_in(struct ibv_pd *in, struct vrdma_cq *cq,
			   struct ibv_qp_cap cap, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = &cq->ibv_cq,
		.cap = cap,
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp;

	context.doorbell = &test_doorbell;
	test_doorbell = NO_DOORBELL;
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

/* One for ibv_wr_*, in RESET; or NULL with errno. */
struct vrdma_qp *new_qp_ex(struct vrdma_cq *cq, enum ibv_qp_type type,
			   struct ibv_qp_cap cap, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = &cq->ibv_cq,
		.recv_cq = type == IBV_QPT_XRC_SEND ? NULL : &cq->ibv_cq,
		.cap = cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = &test_pd.ibv_pd,
		.send_ops_flags = send_ops,
	};
	struct ibv_qp *qp = vrdma_create_qp_ex(test_pd.ibv_pd.context, &init);

	return qp ? to_vqp(qp) : NULL;
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

int main(void)
{
	test_layout();
	test_post();
	test_cq();
	test_wr();
	test_parent_domain();
	test_srq();
	test_semantics();
	test_windows();
	test_xrc();
	puts("virtio-rdma provider: rings as specified");
	return 0;
}
