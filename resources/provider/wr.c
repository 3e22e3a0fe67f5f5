// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Posting with ibv_wr_*: the WQEs of a batch are filled in their slots, and the
 * device is told of them all at its end. They are those of ibv_post_send, so
 * both may be used on one queue pair.
 */
#include <errno.h>
#include <string.h>

#include "vrdma.h"

static struct vrdma_qp *ex_to_vqp(struct ibv_qp_ex *qp_ex)
{
	return container_of(qp_ex, struct vrdma_qp, verbs_qp.qp_ex);
}

/* The first error is what the batch ends with; nothing of it is posted. */
static void vrdma_wr_fail(struct vrdma_qp *qp, int error)
{
	qp->wr = NULL;
	if (!qp->wr_error)
		qp->wr_error = error;
}

/* A new WQE, or NULL. */
static struct virtio_rdma_send_wqe *vrdma_wr_new(struct ibv_qp_ex *qp_ex,
						 uint8_t opcode)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);
	struct virtio_rdma_send_wqe *wqe;

	if (unlikely(qp->wr_error))
		return NULL;
	if (unlikely(vrdma_wq_full(&qp->sq, qp->wr_producer))) {
		vrdma_wr_fail(qp, ENOMEM);
		return NULL;
	}
	wqe = vrdma_wq_slot(&qp->sq, qp->wr_producer++);
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = htole64(qp_ex->wr_id);
	wqe->opcode = opcode;
	wqe->flags = vrdma_wqe_flags(qp_ex->wr_flags);
	qp->wr = wqe;
	return wqe;
}

static struct virtio_rdma_send_wqe *vrdma_wr_remote(struct ibv_qp_ex *qp_ex,
						    uint8_t opcode,
						    uint32_t rkey,
						    uint64_t remote_addr)
{
	struct virtio_rdma_send_wqe *wqe = vrdma_wr_new(qp_ex, opcode);

	if (likely(wqe)) {
		wqe->remote_addr = htole64(remote_addr);
		wqe->rkey = htole32(rkey);
	}
	return wqe;
}

static void vrdma_wr_send(struct ibv_qp_ex *qp_ex)
{
	vrdma_wr_new(qp_ex, VIRTIO_RDMA_WQE_SEND);
}

static void vrdma_wr_send_imm(struct ibv_qp_ex *qp_ex, __be32 imm_data)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_new(qp_ex, VIRTIO_RDMA_WQE_SEND_IMM);
	if (likely(wqe))
		wqe->imm = imm_data;
}

static void vrdma_wr_rdma_write(struct ibv_qp_ex *qp_ex, uint32_t rkey,
				uint64_t remote_addr)
{
	vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_WRITE, rkey, remote_addr);
}

static void vrdma_wr_rdma_write_imm(struct ibv_qp_ex *qp_ex, uint32_t rkey,
				    uint64_t remote_addr, __be32 imm_data)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_WRITE_IMM, rkey,
			      remote_addr);
	if (likely(wqe))
		wqe->imm = imm_data;
}

static void vrdma_wr_rdma_read(struct ibv_qp_ex *qp_ex, uint32_t rkey,
			       uint64_t remote_addr)
{
	vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_READ, rkey, remote_addr);
}

static void vrdma_wr_atomic_cmp_swp(struct ibv_qp_ex *qp_ex, uint32_t rkey,
				    uint64_t remote_addr, uint64_t compare,
				    uint64_t swap)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_CMP_AND_SWP, rkey,
			      remote_addr);
	if (likely(wqe)) {
		wqe->compare_add = htole64(compare);
		wqe->swap = htole64(swap);
	}
}

static void vrdma_wr_atomic_fetch_add(struct ibv_qp_ex *qp_ex, uint32_t rkey,
				      uint64_t remote_addr, uint64_t add)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_FETCH_AND_ADD, rkey,
			      remote_addr);
	if (likely(wqe))
		wqe->compare_add = htole64(add);
}

/* The value goes along in the work request. */
static void vrdma_wr_atomic_write(struct ibv_qp_ex *qp_ex, uint32_t rkey,
				  uint64_t remote_addr, const void *atomic_wr)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_ATOMIC_WRITE, rkey,
			      remote_addr);
	if (likely(wqe))
		memcpy(&wqe->compare_add, atomic_wr, sizeof(wqe->compare_add));
}

static void vrdma_wr_flush(struct ibv_qp_ex *qp_ex, uint32_t rkey,
			   uint64_t remote_addr, size_t len, uint8_t type,
			   uint8_t level)
{
	struct virtio_rdma_send_wqe *wqe;

	if (unlikely(!type || (type & ~VIRTIO_RDMA_FLUSH_PLACEMENT) ||
		     level > IBV_FLUSH_MR)) {
		vrdma_wr_fail(ex_to_vqp(qp_ex), EINVAL);
		return;
	}
	wqe = vrdma_wr_remote(qp_ex, VIRTIO_RDMA_WQE_FLUSH, rkey, remote_addr);
	if (likely(wqe)) {
		wqe->compare_add = htole64(len);
		wqe->swap = htole64(type | (level == IBV_FLUSH_MR ?
						    VIRTIO_RDMA_FLUSH_REGION :
						    0));
	}
}

static void vrdma_wr_send_inv(struct ibv_qp_ex *qp_ex, uint32_t rkey)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_new(qp_ex, VIRTIO_RDMA_WQE_SEND_INV);
	if (likely(wqe))
		wqe->inv_key = htole32(rkey);
}

static void vrdma_wr_local_inv(struct ibv_qp_ex *qp_ex, uint32_t rkey)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_new(qp_ex, VIRTIO_RDMA_WQE_LOCAL_INV);
	if (likely(wqe))
		wqe->inv_key = htole32(rkey);
}

static void vrdma_wr_bind_mw(struct ibv_qp_ex *qp_ex, struct ibv_mw *mw,
			     uint32_t rkey,
			     const struct ibv_mw_bind_info *bind_info)
{
	struct virtio_rdma_send_wqe *wqe;

	wqe = vrdma_wr_new(qp_ex, VIRTIO_RDMA_WQE_BIND_MW);
	if (likely(wqe))
		vrdma_fill_bind(wqe, rkey, bind_info);
}

static void vrdma_wr_set_ud_addr(struct ibv_qp_ex *qp_ex, struct ibv_ah *ah,
				 uint32_t remote_qpn, uint32_t remote_qkey)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);

	if (unlikely(!qp->wr))
		return;
	qp->wr->dest_qpn = htole32(remote_qpn);
	qp->wr->qkey = htole32(remote_qkey);
	qp->wr->av = to_vah(ah)->av;
}

static void vrdma_wr_set_xrc_srqn(struct ibv_qp_ex *qp_ex, uint32_t srqn)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);

	if (likely(qp->wr))
		qp->wr->srqn = htole32(srqn);
}

static void vrdma_wr_set_sge_list(struct ibv_qp_ex *qp_ex, size_t num_sge,
				  const struct ibv_sge *sg_list)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);

	if (unlikely(!qp->wr))
		return;
	if (unlikely(num_sge > qp->sq.max_sge)) {
		vrdma_wr_fail(qp, EINVAL);
		return;
	}
	qp->wr->num_sge = htole16(num_sge);
	vrdma_fill_sges((struct virtio_rdma_sge *)(qp->wr + 1), sg_list,
			num_sge);
}

static void vrdma_wr_set_sge(struct ibv_qp_ex *qp_ex, uint32_t lkey,
			     uint64_t addr, uint32_t length)
{
	const struct ibv_sge sge = { addr, length, lkey };

	vrdma_wr_set_sge_list(qp_ex, 1, &sge);
}

static void vrdma_wr_set_inline_data_list(struct ibv_qp_ex *qp_ex,
					  size_t num_buf,
					  const struct ibv_data_buf *buf_list)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);
	uint32_t length = 0;
	uint8_t *to;
	size_t i;

	if (unlikely(!qp->wr))
		return;
	/* What is read or swapped has to have a place to go. */
	if (unlikely(qp->wr->opcode > VIRTIO_RDMA_WQE_SEND_IMM &&
		     qp->wr->opcode != VIRTIO_RDMA_WQE_SEND_INV)) {
		vrdma_wr_fail(qp, EINVAL);
		return;
	}
	to = (uint8_t *)(qp->wr + 1);
	for (i = 0; i < num_buf; i++) {
		if (unlikely(buf_list[i].length > qp->max_inline - length)) {
			vrdma_wr_fail(qp, EINVAL);
			return;
		}
		memcpy(to + length, buf_list[i].addr, buf_list[i].length);
		length += buf_list[i].length;
	}
	qp->wr->flags |= VIRTIO_RDMA_WQE_INLINE;
	qp->wr->inline_len = htole32(length);
}

static void vrdma_wr_set_inline_data(struct ibv_qp_ex *qp_ex, void *addr,
				     size_t length)
{
	const struct ibv_data_buf buf = { addr, length };

	vrdma_wr_set_inline_data_list(qp_ex, 1, &buf);
}

static void vrdma_wr_start(struct ibv_qp_ex *qp_ex)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);

	vrdma_wq_lock(&qp->sq);
	qp->wr = NULL;
	qp->wr_producer = qp->sq.producer;
	qp->wr_error = qp->ibv_qp.state < IBV_QPS_RTS ? EINVAL : 0;
}

static int vrdma_wr_complete(struct ibv_qp_ex *qp_ex)
{
	struct vrdma_qp *qp = ex_to_vqp(qp_ex);
	int error = qp->wr_error;

	if (likely(!error))
		vrdma_wq_publish(qp, &qp->sq, &qp->ctrl->sq_producer,
				 qp->wr_producer, VIRTIO_RDMA_KICK_SQ);
	vrdma_wq_unlock(&qp->sq);
	return error;
}

static void vrdma_wr_abort(struct ibv_qp_ex *qp_ex)
{
	vrdma_wq_unlock(&ex_to_vqp(qp_ex)->sq);
}

/* What ibv_wr_* may post to a queue pair of this kind. */
static uint64_t vrdma_wr_ops(const struct vrdma_qp *qp)
{
	const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t writes = IBV_QP_EX_WITH_RDMA_WRITE |
				IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	const uint64_t atomics = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

	const uint64_t placement =
		(qp->writes_words ? IBV_QP_EX_WITH_ATOMIC_WRITE : 0) |
		(qp->flushes ? IBV_QP_EX_WITH_FLUSH : 0);
	const uint64_t local = (qp->invalidates ? IBV_QP_EX_WITH_LOCAL_INV : 0) |
			       (qp->windows ? IBV_QP_EX_WITH_BIND_MW : 0);
	const uint64_t invalidate = qp->invalidates ? IBV_QP_EX_WITH_SEND_WITH_INV :
						      0;

	switch (qp->ibv_qp.qp_type) {
	case IBV_QPT_RC:
		return sends | writes | IBV_QP_EX_WITH_RDMA_READ | local |
		       invalidate | placement | (qp->atomics ? atomics : 0);
	case IBV_QPT_XRC_SEND:
		return sends | writes | IBV_QP_EX_WITH_RDMA_READ | local |
		       (qp->atomics ? atomics : 0);
	case IBV_QPT_UC:
		return sends | writes | local;
	case IBV_QPT_UD:
		return sends;
	default:
		return 0;
	}
}

/*
 * A libibverbs before 45 has no wr_flush at the end of ibv_qp_ex, and its word
 * for "extended" lies there. Nobody asks it for flushes.
 */
static void vrdma_wr_mark(struct vrdma_qp *qp, bool flushes)
{
	const uint32_t mark = VERBS_QP_EX;

	qp->verbs_qp.comp_mask |= mark;
	if (flushes)
		qp->verbs_qp.qp_ex.wr_flush = vrdma_wr_flush;
	else
		memcpy(&qp->verbs_qp.qp_ex.wr_flush, &mark, sizeof(mark));
}

int vrdma_wr_init(struct vrdma_qp *qp, uint64_t send_ops_flags)
{
	struct ibv_qp_ex *qp_ex = &qp->verbs_qp.qp_ex;

	if (!check_comp_mask(send_ops_flags, vrdma_wr_ops(qp)))
		return EOPNOTSUPP;

	qp_ex->wr_start = vrdma_wr_start;
	qp_ex->wr_complete = vrdma_wr_complete;
	qp_ex->wr_abort = vrdma_wr_abort;
	qp_ex->wr_send = vrdma_wr_send;
	qp_ex->wr_send_imm = vrdma_wr_send_imm;
	qp_ex->wr_rdma_write = vrdma_wr_rdma_write;
	qp_ex->wr_rdma_write_imm = vrdma_wr_rdma_write_imm;
	qp_ex->wr_rdma_read = vrdma_wr_rdma_read;
	qp_ex->wr_atomic_cmp_swp = vrdma_wr_atomic_cmp_swp;
	qp_ex->wr_atomic_fetch_add = vrdma_wr_atomic_fetch_add;
	qp_ex->wr_atomic_write = vrdma_wr_atomic_write;
	qp_ex->wr_send_inv = vrdma_wr_send_inv;
	qp_ex->wr_local_inv = vrdma_wr_local_inv;
	qp_ex->wr_bind_mw = vrdma_wr_bind_mw;
	qp_ex->wr_set_ud_addr = vrdma_wr_set_ud_addr;
	qp_ex->wr_set_xrc_srqn = vrdma_wr_set_xrc_srqn;
	qp_ex->wr_set_sge = vrdma_wr_set_sge;
	qp_ex->wr_set_sge_list = vrdma_wr_set_sge_list;
	qp_ex->wr_set_inline_data = vrdma_wr_set_inline_data;
	qp_ex->wr_set_inline_data_list = vrdma_wr_set_inline_data_list;
	vrdma_wr_mark(qp, send_ops_flags & IBV_QP_EX_WITH_FLUSH);
	return 0;
}
