// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Posting without system calls: WQEs, then the index, then a look whether the
 * device sleeps and has to be woken.
 */
#include <errno.h>
#include <string.h>

#include <util/mmio.h>

#include "vrdma.h"

int vrdma_wq_init(struct vrdma_wq *wq, void *ring, uint32_t entries,
		  uint32_t stride, uint32_t max_sge, bool single_threaded)
{
	wq->single_threaded = single_threaded;
	wq->ring = ring;
	wq->entries = entries;
	wq->stride = stride;
	wq->max_sge = max_sge;
	atomic_init(&wq->consumer, 0);
	return pthread_spin_init(&wq->lock, PTHREAD_PROCESS_PRIVATE);
}

void vrdma_wq_destroy(struct vrdma_wq *wq)
{
	pthread_spin_destroy(&wq->lock);
}

/*
 * The device says that it sleeps before it looks at the index a last time; we
 * look whether it said so after storing the index.
 */
void vrdma_wq_publish(struct vrdma_qp *qp, struct vrdma_wq *wq, __le32 *index,
		      uint32_t producer, uint32_t kick)
{
	if (producer == wq->producer)
		return;
	wq->producer = producer;
	vrdma_store_release(index, producer);
	vrdma_fence();
	if (vrdma_load(&qp->ctrl->flags) & kick)
		mmio_write32_le(qp->doorbell, htole32(qp->ibv_qp.qp_num));
}

void vrdma_fill_sges(struct virtio_rdma_sge *to, const struct ibv_sge *from,
		     int count)
{
	int i;

	for (i = 0; i < count; i++) {
		to[i].addr = htole64(from[i].addr);
		to[i].length = htole32(from[i].length);
		to[i].lkey = htole32(from[i].lkey);
	}
}

/* Of those that have a meaning for every work request. */
uint8_t vrdma_wqe_flags(unsigned int send_flags)
{
	uint8_t flags = 0;

	if (send_flags & IBV_SEND_SIGNALED)
		flags |= VIRTIO_RDMA_WQE_SIGNALED;
	if (send_flags & IBV_SEND_SOLICITED)
		flags |= VIRTIO_RDMA_WQE_SOLICITED;
	if (send_flags & IBV_SEND_FENCE)
		flags |= VIRTIO_RDMA_WQE_FENCE;
	return flags;
}

static int vrdma_fill_inline(struct virtio_rdma_send_wqe *wqe,
			     const struct ibv_send_wr *wr, uint32_t room)
{
	uint8_t *to = (uint8_t *)(wqe + 1);
	uint32_t length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *sge = &wr->sg_list[i];

		if (sge->length > room - length)
			return EINVAL;
		memcpy(to + length, (void *)(uintptr_t)sge->addr, sge->length);
		length += sge->length;
	}
	wqe->flags |= VIRTIO_RDMA_WQE_INLINE;
	wqe->inline_len = htole32(length);
	return 0;
}

static int vrdma_fill_opcode(const struct vrdma_qp *qp,
			     struct virtio_rdma_send_wqe *wqe,
			     const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
		wqe->imm = wr->imm_data;
		wqe->opcode = VIRTIO_RDMA_WQE_SEND_IMM;
		return 0;
	case IBV_WR_SEND:
		wqe->opcode = VIRTIO_RDMA_WQE_SEND;
		return 0;
	case IBV_WR_SEND_WITH_INV:
		if (!qp->invalidates)
			return EINVAL;
		wqe->inv_key = htole32(wr->invalidate_rkey);
		wqe->opcode = VIRTIO_RDMA_WQE_SEND_INV;
		return 0;
	case IBV_WR_LOCAL_INV:
		if (!qp->invalidates)
			return EINVAL;
		wqe->inv_key = htole32(wr->invalidate_rkey);
		wqe->opcode = VIRTIO_RDMA_WQE_LOCAL_INV;
		return 0;
	case IBV_WR_BIND_MW:
		if (!qp->windows)
			return EINVAL;
		vrdma_fill_bind(wqe, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		return 0;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		wqe->imm = wr->imm_data;
		wqe->opcode = VIRTIO_RDMA_WQE_WRITE_IMM;
		break;
	case IBV_WR_RDMA_WRITE:
		wqe->opcode = VIRTIO_RDMA_WQE_WRITE;
		break;
	case IBV_WR_RDMA_READ:
		wqe->opcode = VIRTIO_RDMA_WQE_READ;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		if (!qp->atomics)
			return EINVAL;
		wqe->opcode = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ?
				      VIRTIO_RDMA_WQE_CMP_AND_SWP :
				      VIRTIO_RDMA_WQE_FETCH_AND_ADD;
		wqe->remote_addr = htole64(wr->wr.atomic.remote_addr);
		wqe->rkey = htole32(wr->wr.atomic.rkey);
		wqe->compare_add = htole64(wr->wr.atomic.compare_add);
		wqe->swap = htole64(wr->wr.atomic.swap);
		return 0;
	default:
		return EINVAL;
	}
	wqe->remote_addr = htole64(wr->wr.rdma.remote_addr);
	wqe->rkey = htole32(wr->wr.rdma.rkey);
	return 0;
}

/* What no peer hears of. */
static bool vrdma_is_local(uint8_t opcode)
{
	return opcode == VIRTIO_RDMA_WQE_LOCAL_INV ||
	       opcode == VIRTIO_RDMA_WQE_BIND_MW;
}

/*
 * UC has no answers, and so neither READs nor atomics; a datagram is a SEND.
 * Of what peers hear those two have the opcodes 0 to 3. An XRC target has no
 * keys to invalidate.
 */
static bool vrdma_can_send(const struct vrdma_qp *qp, uint8_t opcode)
{
	switch (qp->ibv_qp.qp_type) {
	case IBV_QPT_UC:
		return opcode <= VIRTIO_RDMA_WQE_SEND_IMM ||
		       vrdma_is_local(opcode);
	case IBV_QPT_UD:
		return opcode == VIRTIO_RDMA_WQE_SEND ||
		       opcode == VIRTIO_RDMA_WQE_SEND_IMM;
	case IBV_QPT_XRC_SEND:
		return opcode != VIRTIO_RDMA_WQE_SEND_INV;
	default:
		return true;
	}
}

static int vrdma_fill_send(const struct vrdma_qp *qp,
			   struct virtio_rdma_send_wqe *wqe,
			   const struct ibv_send_wr *wr)
{
	int ret;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
		return EINVAL;
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = htole64(wr->wr_id);
	ret = vrdma_fill_opcode(qp, wqe, wr);
	if (ret)
		return ret;
	if (unlikely(!vrdma_can_send(qp, wqe->opcode)))
		return EINVAL;
	if (qp->ibv_qp.qp_type == IBV_QPT_UD) {
		wqe->dest_qpn = htole32(wr->wr.ud.remote_qpn);
		wqe->qkey = htole32(wr->wr.ud.remote_qkey);
		wqe->av = to_vah(wr->wr.ud.ah)->av;
	}
	/* What is local has other things there. */
	if (qp->ibv_qp.qp_type == IBV_QPT_XRC_SEND &&
	    wqe->opcode <= VIRTIO_RDMA_WQE_FETCH_AND_ADD)
		wqe->srqn = htole32(wr->qp_type.xrc.remote_srqn);
	wqe->flags = vrdma_wqe_flags(wr->send_flags);
	if (wr->send_flags & IBV_SEND_INLINE) {
		/* What is read or swapped has to have a place to go. */
		if (wqe->opcode > VIRTIO_RDMA_WQE_SEND_IMM &&
		    wqe->opcode != VIRTIO_RDMA_WQE_SEND_INV)
			return EINVAL;
		return vrdma_fill_inline(wqe, wr, qp->max_inline);
	}
	if (vrdma_is_local(wqe->opcode))
		return 0;
	wqe->num_sge = htole16(wr->num_sge);
	vrdma_fill_sges((struct virtio_rdma_sge *)(wqe + 1), wr->sg_list,
			wr->num_sge);
	return 0;
}

int vrdma_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad_wr)
{
	struct vrdma_qp *qp = to_vqp(ibv_qp);
	struct vrdma_wq *sq = &qp->sq;
	uint32_t producer;
	int ret = 0;

	if (unlikely(ibv_qp->state < IBV_QPS_RTS)) {
		*bad_wr = wr;
		return EINVAL;
	}

	vrdma_wq_lock(sq);
	producer = sq->producer;
	for (; wr; wr = wr->next) {
		if (unlikely(vrdma_wq_full(sq, producer)))
			ret = ENOMEM;
		else
			ret = vrdma_fill_send(qp, vrdma_wq_slot(sq, producer),
					      wr);
		if (unlikely(ret)) {
			*bad_wr = wr;
			break;
		}
		producer++;
	}
	vrdma_wq_publish(qp, sq, &qp->ctrl->sq_producer, producer,
			 VIRTIO_RDMA_KICK_SQ);
	vrdma_wq_unlock(sq);
	return ret;
}

void vrdma_fill_recv(struct virtio_rdma_recv_wqe *wqe,
		     const struct ibv_recv_wr *wr)
{
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = htole64(wr->wr_id);
	wqe->num_sge = htole16(wr->num_sge);
	vrdma_fill_sges((struct virtio_rdma_sge *)(wqe + 1), wr->sg_list,
			wr->num_sge);
}

int vrdma_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad_wr)
{
	struct vrdma_qp *qp = to_vqp(ibv_qp);
	struct vrdma_wq *rq = &qp->rq;
	uint32_t producer;
	int ret = 0;

	if (unlikely(ibv_qp->state == IBV_QPS_RESET || !qp->receives)) {
		*bad_wr = wr;
		return EINVAL;
	}

	vrdma_wq_lock(rq);
	producer = rq->producer;
	for (; wr; wr = wr->next) {
		if (unlikely(wr->num_sge < 0 ||
			     (uint32_t)wr->num_sge > rq->max_sge))
			ret = EINVAL;
		else if (unlikely(vrdma_wq_full(rq, producer)))
			ret = ENOMEM;
		if (unlikely(ret)) {
			*bad_wr = wr;
			break;
		}
		vrdma_fill_recv(vrdma_wq_slot(rq, producer), wr);
		producer++;
	}
	vrdma_wq_publish(qp, rq, &qp->ctrl->rq_producer, producer,
			 VIRTIO_RDMA_KICK_RQ);
	vrdma_wq_unlock(rq);
	return ret;
}
