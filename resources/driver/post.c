// SPDX-License-Identifier: GPL-2.0
/*
 * Posting to the queue pairs of kernel users (docs/virtio-rdma.md, sections 5
 * and 6); processes post by themselves.
 */
#include <linux/io.h>
#include <rdma/ib_verbs.h>

#include "vrdma.h"

void vrdma_wq_init(struct vrdma_wq *wq, void *ring, u32 entries, u32 stride,
		   u32 max_sge)
{
	spin_lock_init(&wq->lock);
	wq->ring = ring;
	wq->entries = entries;
	wq->stride = stride;
	wq->max_sge = max_sge;
}

static bool vrdma_wq_full(const struct vrdma_wq *wq, u32 producer)
{
	return producer - smp_load_acquire(&wq->consumer) >= wq->entries;
}

/*
 * Makes WQEs visible, and wakes the device if it said that it sleeps. It says
 * so before it looks at the index a last time, we look after storing it.
 */
static void vrdma_wq_publish(struct vrdma_qp *qp, struct vrdma_wq *wq,
			     __le32 *index, u32 producer, u32 kick)
{
	struct vrdma_dev *dev = to_vdev(qp->ibqp.device);

	if (producer == wq->producer)
		return;
	smp_store_release(&wq->producer, producer);
	dma_wmb();
	WRITE_ONCE(*index, cpu_to_le32(producer));
	mb();
	if (unlikely(READ_ONCE(dev->dead))) {
		schedule_work(&dev->flush_work);
		return;
	}
	if (!(le32_to_cpu(READ_ONCE(qp->ctrl->flags)) & kick))
		return;
	if (dev->kernel_doorbell)
		writel(qp->ibqp.qp_num, dev->kernel_doorbell);
	else
		virtqueue_notify(dev->ctrl.vq);
}

static void vrdma_fill_sges(struct virtio_rdma_sge *to,
			    const struct ib_sge *from, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		to[i].addr = cpu_to_le64(from[i].addr);
		to[i].length = cpu_to_le32(from[i].length);
		to[i].lkey = cpu_to_le32(from[i].lkey);
	}
}

/* Kernel users give inline data by its virtual address. */
static int vrdma_fill_inline(struct virtio_rdma_send_wqe *wqe,
			     const struct ib_send_wr *wr, u32 room)
{
	u8 *to = (u8 *)(wqe + 1);
	u32 length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].length > room - length)
			return -EINVAL;
		memcpy(to + length, (void *)(uintptr_t)wr->sg_list[i].addr,
		       wr->sg_list[i].length);
		length += wr->sg_list[i].length;
	}
	wqe->flags |= VIRTIO_RDMA_WQE_INLINE;
	wqe->inline_len = cpu_to_le32(length);
	return 0;
}

static bool vrdma_invalidates(const struct vrdma_dev *dev)
{
	return vrdma_has(dev, VIRTIO_RDMA_F_FRWR) ||
	       vrdma_has(dev, VIRTIO_RDMA_F_MW);
}

/* The value goes along: it is given by its virtual address, as inline data. */
static int vrdma_fill_atomic_write(struct vrdma_dev *dev,
				   struct virtio_rdma_send_wqe *wqe,
				   const struct ib_send_wr *wr)
{
	if (!vrdma_has(dev, VIRTIO_RDMA_F_ATOMIC_WRITE) ||
	    !(wr->send_flags & IB_SEND_INLINE) || wr->num_sge != 1 ||
	    wr->sg_list[0].length != sizeof(wqe->compare_add))
		return -EINVAL;
	memcpy(&wqe->compare_add, (void *)(uintptr_t)wr->sg_list[0].addr,
	       sizeof(wqe->compare_add));
	wqe->opcode = VIRTIO_RDMA_WQE_ATOMIC_WRITE;
	wqe->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
	wqe->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
	return 0;
}

static int vrdma_fill_opcode(struct vrdma_dev *dev,
			     struct virtio_rdma_send_wqe *wqe,
			     const struct ib_send_wr *wr)
{
	if (vrdma_is_atomic_write(wr))
		return vrdma_fill_atomic_write(dev, wqe, wr);
	switch (wr->opcode) {
	case IB_WR_SEND_WITH_IMM:
		wqe->imm = wr->ex.imm_data;
		wqe->opcode = VIRTIO_RDMA_WQE_SEND_IMM;
		return 0;
	case IB_WR_SEND:
		wqe->opcode = VIRTIO_RDMA_WQE_SEND;
		return 0;
	case IB_WR_SEND_WITH_INV:
		if (!vrdma_invalidates(dev))
			return -EINVAL;
		wqe->inv_key = cpu_to_le32(wr->ex.invalidate_rkey);
		wqe->opcode = VIRTIO_RDMA_WQE_SEND_INV;
		return 0;
	case IB_WR_LOCAL_INV:
		if (!vrdma_invalidates(dev))
			return -EINVAL;
		wqe->inv_key = cpu_to_le32(wr->ex.invalidate_rkey);
		wqe->opcode = VIRTIO_RDMA_WQE_LOCAL_INV;
		return 0;
	case IB_WR_REG_MR:
		if (!vrdma_has(dev, VIRTIO_RDMA_F_FRWR))
			return -EINVAL;
		return vrdma_fill_reg(wqe, reg_wr(wr));
	case IB_WR_RDMA_WRITE_WITH_IMM:
		wqe->imm = wr->ex.imm_data;
		wqe->opcode = VIRTIO_RDMA_WQE_WRITE_IMM;
		break;
	case IB_WR_RDMA_WRITE:
		wqe->opcode = VIRTIO_RDMA_WQE_WRITE;
		break;
	case IB_WR_RDMA_READ:
		wqe->opcode = VIRTIO_RDMA_WQE_READ;
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		if (!vrdma_has(dev, VIRTIO_RDMA_F_ATOMICS))
			return -EINVAL;
		wqe->remote_addr = cpu_to_le64(atomic_wr(wr)->remote_addr);
		wqe->rkey = cpu_to_le32(atomic_wr(wr)->rkey);
		wqe->compare_add = cpu_to_le64(atomic_wr(wr)->compare_add);
		wqe->swap = cpu_to_le64(atomic_wr(wr)->swap);
		wqe->opcode = wr->opcode == IB_WR_ATOMIC_CMP_AND_SWP ?
			      VIRTIO_RDMA_WQE_CMP_AND_SWP :
			      VIRTIO_RDMA_WQE_FETCH_AND_ADD;
		return 0;
	default:
		return -EINVAL;
	}
	wqe->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
	wqe->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
	return 0;
}

/* What no peer hears of. */
static bool vrdma_is_local(u8 opcode)
{
	return opcode == VIRTIO_RDMA_WQE_LOCAL_INV ||
	       opcode == VIRTIO_RDMA_WQE_REG_MR;
}

/*
 * UC has no answers, and so neither READs nor atomics; a datagram is a SEND.
 * Of what peers hear those two have the opcodes 0 to 3.
 */
static bool vrdma_can_send(const struct vrdma_qp *qp, u8 opcode)
{
	switch (qp->ibqp.qp_type) {
	case IB_QPT_UC:
		return opcode <= VIRTIO_RDMA_WQE_SEND_IMM ||
		       vrdma_is_local(opcode);
	case IB_QPT_UD:
	case IB_QPT_GSI:
		return opcode == VIRTIO_RDMA_WQE_SEND ||
		       opcode == VIRTIO_RDMA_WQE_SEND_IMM;
	default:
		return true;
	}
}

static bool vrdma_sends_datagrams(const struct vrdma_qp *qp)
{
	return qp->ibqp.qp_type == IB_QPT_UD || qp->ibqp.qp_type == IB_QPT_GSI;
}

static int vrdma_fill_send(struct vrdma_dev *dev, struct vrdma_qp *qp,
			   struct virtio_rdma_send_wqe *wqe,
			   const struct ib_send_wr *wr)
{
	int err;

	if (wr->num_sge < 0 || wr->num_sge > qp->sq.max_sge)
		return -EINVAL;
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = cpu_to_le64(wr->wr_id);
	err = vrdma_fill_opcode(dev, wqe, wr);
	if (err)
		return err;
	if (!vrdma_can_send(qp, wqe->opcode))
		return -EINVAL;
	if (vrdma_sends_datagrams(qp)) {
		wqe->dest_qpn = cpu_to_le32(ud_wr(wr)->remote_qpn);
		wqe->qkey = cpu_to_le32(ud_wr(wr)->remote_qkey);
		wqe->av = to_vah(ud_wr(wr)->ah)->av;
	}
	if (wr->send_flags & IB_SEND_SIGNALED)
		wqe->flags |= VIRTIO_RDMA_WQE_SIGNALED;
	if (wr->send_flags & IB_SEND_SOLICITED)
		wqe->flags |= VIRTIO_RDMA_WQE_SOLICITED;
	if (wr->send_flags & IB_SEND_FENCE)
		wqe->flags |= VIRTIO_RDMA_WQE_FENCE;
	if (wqe->opcode == VIRTIO_RDMA_WQE_ATOMIC_WRITE)
		return 0;
	if (wr->send_flags & IB_SEND_INLINE) {
		if (wqe->opcode > VIRTIO_RDMA_WQE_SEND_IMM &&
		    wqe->opcode != VIRTIO_RDMA_WQE_SEND_INV)
			return -EINVAL;
		return vrdma_fill_inline(wqe, wr, qp->caps.inline_data);
	}
	if (vrdma_is_local(wqe->opcode))
		return 0;
	wqe->num_sge = cpu_to_le16(wr->num_sge);
	vrdma_fill_sges((struct virtio_rdma_sge *)(wqe + 1), wr->sg_list,
			wr->num_sge);
	return 0;
}

int vrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		    const struct ib_send_wr **bad_wr)
{
	struct vrdma_dev *dev = to_vdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct vrdma_wq *sq = &qp->sq;
	unsigned long flags;
	u32 producer;
	int err = 0;

	spin_lock_irqsave(&sq->lock, flags);
	producer = sq->producer;
	if (READ_ONCE(qp->state) < IB_QPS_RTS)
		err = -EINVAL;
	for (; wr && !err; wr = wr->next) {
		err = vrdma_wq_full(sq, producer) ? -ENOMEM :
		      vrdma_fill_send(dev, qp, vrdma_wq_slot(sq, producer), wr);
		if (err)
			break;
		producer++;
	}
	if (err)
		*bad_wr = wr;
	vrdma_wq_publish(qp, sq, &qp->ctrl->sq_producer, producer,
			 VIRTIO_RDMA_KICK_SQ);
	spin_unlock_irqrestore(&sq->lock, flags);
	return err;
}

void vrdma_fill_recv(struct virtio_rdma_recv_wqe *wqe,
		     const struct ib_recv_wr *wr)
{
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = cpu_to_le64(wr->wr_id);
	wqe->num_sge = cpu_to_le16(wr->num_sge);
	vrdma_fill_sges((struct virtio_rdma_sge *)(wqe + 1), wr->sg_list,
			wr->num_sge);
}

int vrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		    const struct ib_recv_wr **bad_wr)
{
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct vrdma_wq *rq = &qp->rq;
	unsigned long flags;
	u32 producer;
	int err = 0;

	spin_lock_irqsave(&rq->lock, flags);
	producer = rq->producer;
	/* Whose receives are shared, or who only sends, has none of its own. */
	if (READ_ONCE(qp->state) == IB_QPS_RESET || ibqp->srq ||
	    ibqp->qp_type == IB_QPT_XRC_INI)
		err = -EINVAL;
	for (; wr && !err; wr = wr->next) {
		if (wr->num_sge < 0 || wr->num_sge > rq->max_sge)
			err = -EINVAL;
		else if (vrdma_wq_full(rq, producer))
			err = -ENOMEM;
		if (err)
			break;
		vrdma_fill_recv(vrdma_wq_slot(rq, producer), wr);
		producer++;
	}
	if (err)
		*bad_wr = wr;
	vrdma_wq_publish(qp, rq, &qp->ctrl->rq_producer, producer,
			 VIRTIO_RDMA_KICK_RQ);
	spin_unlock_irqrestore(&rq->lock, flags);
	return err;
}
