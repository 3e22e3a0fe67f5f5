// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Polling without system calls: ibv_poll_cq, and ibv_start_poll and its kin. */
#include <errno.h>

#include "vrdma.h"

static unsigned int vrdma_wc_flags(uint16_t flags)
{
	unsigned int wc_flags = 0;

	if (flags & VIRTIO_RDMA_CQE_GRH)
		wc_flags |= IBV_WC_GRH;
	if (flags & VIRTIO_RDMA_CQE_WITH_IMM)
		wc_flags |= IBV_WC_WITH_IMM;
	else if (flags & VIRTIO_RDMA_CQE_WITH_INV)
		wc_flags |= IBV_WC_WITH_INV;
	return wc_flags;
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

	wc->wc_flags = vrdma_wc_flags(flags);
	wc->imm_data = 0;
	if (flags & VIRTIO_RDMA_CQE_WITH_IMM)
		wc->imm_data = cqe->imm;
	else if (flags & VIRTIO_RDMA_CQE_WITH_INV)
		wc->invalidated_rkey = le32toh(cqe->inv_key);
}

/*
 * The next CQE, or NULL. It stays where it is until the consumer index is
 * published. qp is where the caller keeps the queue pair of the one before.
 */
static const struct virtio_rdma_cqe *vrdma_cq_take(struct vrdma_cq *cq,
						   struct vrdma_qp **qp)
{
	struct vrdma_context *ctx = to_vctx(cq->ibv_cq.context);
	const struct virtio_rdma_cqe *cqe;
	struct vrdma_wq *wq;
	uint32_t qpn;

	while (vrdma_cqe_valid(cq, cq->consumer)) {
		cqe = vrdma_cqe(cq, cq->consumer++);
		/* The queue pair may be another process's, and has no ring. */
		if (le16toh(cqe->flags) & VIRTIO_RDMA_CQE_XRC)
			return cqe;
		qpn = le32toh(cqe->qpn);
		if (!*qp || (*qp)->ibv_qp.qp_num != qpn)
			*qp = vrdma_qp_table_find(ctx, qpn);
		if (unlikely(!*qp))
			continue;
		wq = le16toh(cqe->flags) & VIRTIO_RDMA_CQE_SEND_QUEUE ?
			     &(*qp)->sq : &(*qp)->rq;
		/* This WQE, and all before it, may be written over. */
		atomic_store_explicit(&wq->consumer,
				      le32toh(cqe->wqe_index) + 1,
				      memory_order_release);
		return cqe;
	}
	return NULL;
}

static bool vrdma_cq_failed(const struct vrdma_cq *cq)
{
	return vrdma_load(&cq->ctrl->flags) & VIRTIO_RDMA_CQ_ERROR;
}

int vrdma_poll_cq(struct ibv_cq *ibv_cq, int num_entries, struct ibv_wc *wc)
{
	struct vrdma_cq *cq = to_vcq(ibv_cq);
	const struct virtio_rdma_cqe *cqe;
	struct vrdma_qp *qp = NULL;
	uint32_t before;
	int n = 0;

	vrdma_cq_lock(cq);
	before = cq->consumer;
	while (n < num_entries && (cqe = vrdma_cq_take(cq, &qp)))
		vrdma_fill_wc(&wc[n++], cqe, le16toh(cqe->flags));
	if (cq->consumer != before)
		vrdma_store_release(&cq->ctrl->consumer, cq->consumer);
	else if (unlikely(num_entries > 0 && vrdma_cq_failed(cq)))
		n = -EIO;
	vrdma_cq_unlock(cq);
	return n;
}

static struct vrdma_cq *ex_to_vcq(struct ibv_cq_ex *cq_ex)
{
	return container_of(cq_ex, struct vrdma_cq, verbs_cq.cq_ex);
}

static int vrdma_next_poll(struct ibv_cq_ex *cq_ex)
{
	struct vrdma_cq *cq = ex_to_vcq(cq_ex);
	const struct virtio_rdma_cqe *cqe;

	cqe = vrdma_cq_take(cq, &cq->current_qp);
	if (!cqe)
		return ENOENT;
	cq->current = cqe;
	cq_ex->wr_id = le64toh(cqe->wr_id);
	cq_ex->status = cqe->status;
	return 0;
}

static void vrdma_end_poll(struct ibv_cq_ex *cq_ex)
{
	struct vrdma_cq *cq = ex_to_vcq(cq_ex);

	vrdma_store_release(&cq->ctrl->consumer, cq->consumer);
	vrdma_cq_unlock(cq);
}

/* Without a completion it ends here: the lock is given back. */
static int vrdma_start_poll(struct ibv_cq_ex *cq_ex,
			    struct ibv_poll_cq_attr *attr)
{
	struct vrdma_cq *cq = ex_to_vcq(cq_ex);
	int ret;

	if (unlikely(attr->comp_mask))
		return EINVAL;
	vrdma_cq_lock(cq);
	if (cq->wallclock)
		vrdma_check_wallclock(cq);
	cq->current_qp = NULL;
	ret = vrdma_next_poll(cq_ex);
	if (!ret)
		return 0;
	if (unlikely(vrdma_cq_failed(cq)))
		ret = EIO;
	vrdma_end_poll(cq_ex);
	return ret;
}

static enum ibv_wc_opcode vrdma_read_opcode(struct ibv_cq_ex *cq_ex)
{
	return ex_to_vcq(cq_ex)->current->opcode;
}

static uint32_t vrdma_read_vendor_err(struct ibv_cq_ex *cq_ex)
{
	return le32toh(ex_to_vcq(cq_ex)->current->vendor_err);
}

static uint32_t vrdma_read_byte_len(struct ibv_cq_ex *cq_ex)
{
	return le32toh(ex_to_vcq(cq_ex)->current->byte_len);
}

/* Or, as in ibv_wc, the key that was invalidated. */
static __be32 vrdma_read_imm_data(struct ibv_cq_ex *cq_ex)
{
	const struct virtio_rdma_cqe *cqe = ex_to_vcq(cq_ex)->current;

	if (le16toh(cqe->flags) & VIRTIO_RDMA_CQE_WITH_INV)
		return (__force __be32)le32toh(cqe->inv_key);
	return cqe->imm;
}

static uint32_t vrdma_read_qp_num(struct ibv_cq_ex *cq_ex)
{
	return le32toh(ex_to_vcq(cq_ex)->current->qpn);
}

static uint32_t vrdma_read_src_qp(struct ibv_cq_ex *cq_ex)
{
	return le32toh(ex_to_vcq(cq_ex)->current->src_qpn);
}

static unsigned int vrdma_read_wc_flags(struct ibv_cq_ex *cq_ex)
{
	return vrdma_wc_flags(le16toh(ex_to_vcq(cq_ex)->current->flags));
}

/* RoCE has no LIDs. */
static uint32_t vrdma_read_slid(struct ibv_cq_ex *cq_ex)
{
	return 0;
}

static uint8_t vrdma_read_sl(struct ibv_cq_ex *cq_ex)
{
	return ex_to_vcq(cq_ex)->current->sl;
}

static uint8_t vrdma_read_dlid_path_bits(struct ibv_cq_ex *cq_ex)
{
	return 0;
}

static uint64_t vrdma_read_completion_ts(struct ibv_cq_ex *cq_ex)
{
	return le64toh(ex_to_vcq(cq_ex)->current->timestamp);
}

static uint64_t vrdma_read_completion_wallclock_ns(struct ibv_cq_ex *cq_ex)
{
	return vrdma_read_completion_ts(cq_ex) + ex_to_vcq(cq_ex)->wall_offset;
}

/* Everything that can be read may be, whatever flags asked for. */
void vrdma_cq_ex_init(struct vrdma_cq *cq,
		      const struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq_ex *cq_ex = &cq->verbs_cq.cq_ex;

	cq->wallclock = attr->wc_flags &
			IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	cq_ex->start_poll = vrdma_start_poll;
	cq_ex->next_poll = vrdma_next_poll;
	cq_ex->end_poll = vrdma_end_poll;
	cq_ex->read_opcode = vrdma_read_opcode;
	cq_ex->read_vendor_err = vrdma_read_vendor_err;
	cq_ex->read_byte_len = vrdma_read_byte_len;
	cq_ex->read_imm_data = vrdma_read_imm_data;
	cq_ex->read_qp_num = vrdma_read_qp_num;
	cq_ex->read_src_qp = vrdma_read_src_qp;
	cq_ex->read_wc_flags = vrdma_read_wc_flags;
	cq_ex->read_slid = vrdma_read_slid;
	cq_ex->read_sl = vrdma_read_sl;
	cq_ex->read_dlid_path_bits = vrdma_read_dlid_path_bits;
	cq_ex->read_completion_ts = vrdma_read_completion_ts;
	cq_ex->read_completion_wallclock_ns = vrdma_read_completion_wallclock_ns;
}
