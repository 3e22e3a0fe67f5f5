// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Completion queues: polled and armed without system calls. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vrdma.h"

struct vrdma_create_cq {
	struct ibv_create_cq ibv_cmd;
	struct virtio_rdma_ureq_create_cq drv;
};
static_assert(offsetof(struct vrdma_create_cq, drv) ==
		      sizeof(struct ibv_create_cq),
	      "the driver's part follows the core's at once");

struct vrdma_create_cq_resp {
	struct ib_uverbs_create_cq_resp ibv_resp;
	struct virtio_rdma_uresp_create_cq drv;
};
static_assert(offsetof(struct vrdma_create_cq_resp, drv) ==
		      sizeof(struct ib_uverbs_create_cq_resp),
	      "the driver's part follows the core's at once");

struct ibv_cq *vrdma_create_cq(struct ibv_context *ibv_ctx, int cqe,
			       struct ibv_comp_channel *channel,
			       int comp_vector)
{
	struct vrdma_context *ctx = to_vctx(ibv_ctx);
	struct vrdma_create_cq_resp resp = {};
	struct vrdma_create_cq cmd = {};
	struct vrdma_cq *cq;
	int ret;

	if (cqe < 1 ||
	    virtio_rdma_layout_cq(&ctx->limits, cqe, &cmd.drv.layout)) {
		errno = EINVAL;
		return NULL;
	}

	cq = calloc(1, sizeof(*cq));
	if (!cq) {
		errno = ENOMEM;
		return NULL;
	}
	ret = pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
	if (ret)
		goto err_free;
	ret = vrdma_buf_alloc(&cq->buf, cmd.drv.layout.length);
	if (ret)
		goto err_lock;
	cq->entries = cmd.drv.layout.entries;
	cq->ctrl = cq->buf.addr + cmd.drv.layout.ctrl_offset;
	cq->ring = cq->buf.addr + cmd.drv.layout.ring_offset;

	cmd.drv.buf_addr = (uintptr_t)cq->buf.addr;
	ret = ibv_cmd_create_cq(ibv_ctx, cqe, channel, comp_vector,
				&cq->ibv_cq, &cmd.ibv_cmd, sizeof(cmd),
				&resp.ibv_resp, sizeof(resp));
	if (ret)
		goto err_buf;
	cq->cqn = resp.drv.cqn;
	return &cq->ibv_cq;

err_buf:
	vrdma_buf_free(&cq->buf);
err_lock:
	pthread_spin_destroy(&cq->lock);
err_free:
	free(cq);
	errno = ret;
	return NULL;
}

int vrdma_destroy_cq(struct ibv_cq *ibv_cq)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	int ret;

	ret = ibv_cmd_destroy_cq(ibv_cq);
	if (ret)
		return ret;
	vrdma_buf_free(&cq->buf);
	pthread_spin_destroy(&cq->lock);
	free(cq);
	return 0;
}

static struct virtio_rdma_cqe *vrdma_cqe(const struct vrdma_cq *cq,
					 uint32_t index)
{
	return &cq->ring[index & (cq->entries - 1)];
}

static bool vrdma_cqe_valid(const struct vrdma_cq *cq, uint32_t index)
{
	uint32_t phase = vrdma_load_acquire(&vrdma_cqe(cq, index)->phase);

	return (phase & VIRTIO_RDMA_CQE_PHASE) ==
	       virtio_rdma_phase(index, cq->entries);
}

static void vrdma_fill_wc(struct ibv_wc *wc, const struct virtio_rdma_cqe *cqe,
			  uint16_t flags)
{
	wc->wr_id = le64toh(cqe->wr_id);
	wc->status = cqe->status;
	wc->opcode = cqe->opcode;
	wc->vendor_err = le32toh(cqe->vendor_err);
	wc->byte_len = le32toh(cqe->byte_len);
	wc->qp_num = le32toh(cqe->qpn);
	wc->src_qp = le32toh(cqe->src_qpn);
	wc->pkey_index = le16toh(cqe->pkey_index);
	wc->slid = 0;
	wc->sl = cqe->sl;
	wc->dlid_path_bits = 0;

	wc->wc_flags = 0;
	wc->imm_data = 0;
	if (flags & VIRTIO_RDMA_CQE_GRH)
		wc->wc_flags |= IBV_WC_GRH;
	if (flags & VIRTIO_RDMA_CQE_WITH_IMM) {
		wc->wc_flags |= IBV_WC_WITH_IMM;
		wc->imm_data = cqe->imm;
	} else if (flags & VIRTIO_RDMA_CQE_WITH_INV) {
		wc->wc_flags |= IBV_WC_WITH_INV;
		wc->invalidated_rkey = le32toh(cqe->inv_key);
	}
}

int vrdma_poll_cq(struct ibv_cq *ibv_cq, int num_entries, struct ibv_wc *wc)
{
	struct vrdma_context *ctx = to_vctx(ibv_cq->context);
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	const struct virtio_rdma_cqe *cqe;
	struct vrdma_qp *qp = NULL;
	struct vrdma_wq *wq;
	uint32_t before, qpn;
	uint16_t flags;
	int n = 0;

	pthread_spin_lock(&cq->lock);
	before = cq->consumer;
	while (n < num_entries && vrdma_cqe_valid(cq, cq->consumer)) {
		cqe = vrdma_cqe(cq, cq->consumer++);
		qpn = le32toh(cqe->qpn);
		if (!qp || qp->ibv_qp.qp_num != qpn)
			qp = vrdma_qp_table_find(ctx, qpn);
		if (unlikely(!qp))
			continue;
		flags = le16toh(cqe->flags);
		wq = flags & VIRTIO_RDMA_CQE_SEND_QUEUE ? &qp->sq : &qp->rq;
		vrdma_fill_wc(&wc[n++], cqe, flags);
		/* This WQE, and all before it, may be written over. */
		atomic_store_explicit(&wq->consumer,
				      le32toh(cqe->wqe_index) + 1,
				      memory_order_release);
	}
	if (cq->consumer != before)
		vrdma_store_release(&cq->ctrl->consumer, cq->consumer);
	else if (unlikely(num_entries > 0 && (vrdma_load(&cq->ctrl->flags) &
					      VIRTIO_RDMA_CQ_ERROR)))
		n = -EIO;
	pthread_spin_unlock(&cq->lock);
	return n;
}

int vrdma_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	uint32_t kind = solicited_only ? VIRTIO_RDMA_ARM_SOLICITED :
					 VIRTIO_RDMA_ARM_ANY;

	pthread_spin_lock(&cq->lock);
	/* Under one sequence the stronger kind stays. */
	if (cq->armed < kind)
		cq->armed = kind;
	vrdma_store_release(&cq->ctrl->arm,
			    cq->sequence << VIRTIO_RDMA_ARM_SEQ_SHIFT |
				    cq->armed);
	/* Armed before the ring is looked at; the device does the reverse. */
	vrdma_fence();
	pthread_spin_unlock(&cq->lock);
	return 0;
}

/* An event was taken from the channel: the next arming is a new one. */
void vrdma_cq_event(struct ibv_cq *ibv_cq)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);

	pthread_spin_lock(&cq->lock);
	cq->sequence = (cq->sequence + 1) & VIRTIO_RDMA_ARM_SEQ_MASK;
	cq->armed = 0;
	pthread_spin_unlock(&cq->lock);
}

/*
 * Takes the CQEs of a queue pair out: those that stay move up to the
 * producer's end, each under the phase of its new place.
 */
void vrdma_cq_clean(struct vrdma_cq *cq, uint32_t qpn)
{
	struct virtio_rdma_cqe *from, *to;
	uint32_t producer, i, freed = 0;

	pthread_spin_lock(&cq->lock);
	producer = cq->consumer;
	while (producer - cq->consumer < cq->entries &&
	       vrdma_cqe_valid(cq, producer))
		producer++;

	for (i = producer; i != cq->consumer;) {
		from = vrdma_cqe(cq, --i);
		if (le32toh(from->qpn) == qpn) {
			freed++;
		} else if (freed) {
			to = vrdma_cqe(cq, i + freed);
			memcpy(to, from,
			       offsetof(struct virtio_rdma_cqe, phase));
		}
	}
	if (freed) {
		cq->consumer += freed;
		vrdma_store_release(&cq->ctrl->consumer, cq->consumer);
	}
	pthread_spin_unlock(&cq->lock);
}
