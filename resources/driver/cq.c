// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues (docs/virtio-rdma.md, section 7). Those of processes are
 * polled and armed by the provider; here are their creation, their end and
 * their events, and all of those that kernel users have.
 */
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "vrdma.h"

static u32 vrdma_cq_max_pages(const struct vrdma_dev *dev)
{
	return vrdma_max_entries(dev, sizeof(struct virtio_rdma_create_cq),
				 sizeof(__le64));
}

/* Pins what the process has laid out for as many entries. */
int vrdma_cq_pin(struct vrdma_dev *dev, u32 cqe, struct ib_udata *udata,
		 struct vrdma_buf *buf, struct virtio_rdma_cq_layout *layout)
{
	struct virtio_rdma_ureq_create_cq ureq;
	int err;

	if (virtio_rdma_layout_cq(&dev->limits, cqe, layout) ||
	    udata->inlen < sizeof(ureq))
		return -EINVAL;
	err = ib_copy_from_udata(&ureq, udata, sizeof(ureq));
	if (err)
		return err;
	if (ureq.layout.entries != layout->entries)
		return -EINVAL;
	/* Where things lie is the process's choice; the device checks. */
	*layout = ureq.layout;
	return vrdma_buf_pin(dev, buf, ureq.buf_addr, layout->length,
			     vrdma_cq_max_pages(dev));
}

static int vrdma_cq_memory(struct vrdma_dev *dev, struct vrdma_cq *cq,
			   u32 cqe, struct ib_udata *udata,
			   struct virtio_rdma_cq_layout *layout)
{
	int err;

	if (udata) {
		if (udata->outlen < sizeof(struct virtio_rdma_uresp_create_cq))
			return -EINVAL;
		return vrdma_cq_pin(dev, cqe, udata, &cq->buf, layout);
	}

	if (virtio_rdma_layout_cq(&dev->limits, cqe, layout))
		return -EINVAL;
	err = vrdma_buf_alloc(dev, &cq->buf, layout->length,
			      vrdma_cq_max_pages(dev));
	if (err)
		return err;
	cq->ctrl = cq->buf.cpu + layout->ctrl_offset;
	cq->ring = cq->buf.cpu + layout->ring_offset;
	return 0;
}

/* CREATE_CQ, or RESIZE_CQ, over this memory; returns the body's size. */
size_t vrdma_cq_body(struct virtio_rdma_create_cq *body,
		     const struct vrdma_buf *buf,
		     const struct virtio_rdma_cq_layout *layout)
{
	body->entries = cpu_to_le32(layout->entries);
	vrdma_buf_fill_ring(&body->ring, buf, layout->ctrl_offset,
			    layout->ring_offset);
	return struct_size(body, ring.page, buf->num_pages);
}

static int vrdma_cq_create(struct vrdma_dev *dev, struct vrdma_cq *cq,
			   u32 vector,
			   const struct virtio_rdma_cq_layout *layout)
{
	struct virtio_rdma_create_cq *body;
	struct vrdma_cmd *cmd;
	size_t size;

	cmd = vrdma_cmd_alloc(dev, cq->context, VIRTIO_RDMA_CMD_CREATE_CQ,
			      struct_size(body, ring.page, cq->buf.num_pages),
			      sizeof(struct virtio_rdma_handle));
	if (!cmd)
		return -ENOMEM;
	body = cmd->body;
	body->vector = cpu_to_le32(vector);
	size = vrdma_cq_body(body, &cq->buf, layout);

	return vrdma_cmd_create(cmd, size, &cq->cqn);
}

int vrdma_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		    vrdma_cq_udata *cq_udata)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct ib_udata *udata = vrdma_cq_udata_get(cq_udata);
	struct virtio_rdma_uresp_create_cq resp = {};
	struct virtio_rdma_cq_layout layout;
	int err;

	/* Every completion has its time. */
	if (attr->flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION)
		return -EOPNOTSUPP;
	if (attr->comp_vector >= dev->num_vectors)
		return -EINVAL;

	spin_lock_init(&cq->lock);
	cq->context = vrdma_udata_context(udata);

	err = vrdma_cq_memory(dev, cq, attr->cqe, udata, &layout);
	if (err)
		return err;
	cq->entries = layout.entries;
	cq->ibcq.cqe = layout.entries;

	err = vrdma_cq_create(dev, cq, attr->comp_vector, &layout);
	if (err)
		goto err_buf;

	err = vrdma_held_add(&dev->cqs, cq->cqn, &cq->held);
	if (err)
		goto err_cq;
	if (udata) {
		resp.cqn = cq->cqn;
		err = ib_copy_to_udata(udata, &resp, sizeof(resp));
		if (err)
			goto err_held;
	}
	return 0;

err_held:
	vrdma_held_end(&dev->cqs, cq->cqn, &cq->held);
err_cq:
	/* Nothing refers to it yet: it can be destroyed. */
	if (vrdma_exec_destroy(dev, cq->context, VIRTIO_RDMA_CMD_DESTROY_CQ,
			       cq->cqn))
		vrdma_fail(dev, "it does not destroy a new completion queue");
err_buf:
	vrdma_buf_free(dev, &cq->buf);
	return err;
}

int vrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	int err;

	err = vrdma_exec_destroy(dev, cq->context, VIRTIO_RDMA_CMD_DESTROY_CQ,
				 cq->cqn);
	if (err)
		return err;
	vrdma_held_end(&dev->cqs, cq->cqn, &cq->held);
	vrdma_buf_free(dev, &cq->buf);
	return 0;
}

/* A completion event was taken from its queue; in the interrupt. */
void vrdma_cq_event(struct vrdma_cq *cq)
{
	unsigned long flags;

	if (cq->ctrl) {
		spin_lock_irqsave(&cq->lock, flags);
		cq->sequence = (cq->sequence + 1) & VIRTIO_RDMA_ARM_SEQ_MASK;
		cq->armed = 0;
		spin_unlock_irqrestore(&cq->lock, flags);
	}
	if (cq->ibcq.comp_handler)
		cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
}

static struct virtio_rdma_cqe *vrdma_cqe(struct vrdma_cq *cq, u32 index)
{
	return &cq->ring[index & (cq->entries - 1)];
}

static bool vrdma_cqe_valid(struct vrdma_cq *cq, u32 index)
{
	u32 phase = le32_to_cpu(READ_ONCE(vrdma_cqe(cq, index)->phase));

	return (phase & VIRTIO_RDMA_CQE_PHASE) ==
	       virtio_rdma_phase(index, cq->entries);
}

static void vrdma_cq_consumed(struct vrdma_cq *cq)
{
	/* What was read of a CQE was read before its slot is given away. */
	dma_mb();
	WRITE_ONCE(cq->ctrl->consumer, cpu_to_le32(cq->consumer));
}

static enum ib_wc_opcode vrdma_wc_opcode(u8 opcode)
{
	switch (opcode) {
	case VIRTIO_RDMA_WC_WRITE:
		return IB_WC_RDMA_WRITE;
	case VIRTIO_RDMA_WC_READ:
		return IB_WC_RDMA_READ;
	case VIRTIO_RDMA_WC_COMP_SWAP:
		return IB_WC_COMP_SWAP;
	case VIRTIO_RDMA_WC_FETCH_ADD:
		return IB_WC_FETCH_ADD;
	case VIRTIO_RDMA_WC_BIND_MW:
		return IB_WC_BIND_MW;
	case VIRTIO_RDMA_WC_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case VIRTIO_RDMA_WC_REG_MR:
		return IB_WC_REG_MR;
	case VIRTIO_RDMA_WC_ATOMIC_WRITE:
		return IB_WC_ATOMIC_WRITE;
	case VIRTIO_RDMA_WC_RECV:
		return IB_WC_RECV;
	case VIRTIO_RDMA_WC_RECV_IMM:
		return IB_WC_RECV_RDMA_WITH_IMM;
	default:
		return IB_WC_SEND;
	}
}

static void vrdma_fill_wc(struct ib_wc *wc, struct vrdma_qp *qp,
			  const struct virtio_rdma_cqe *cqe, u16 flags)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = le64_to_cpu(cqe->wr_id);
	wc->status = cqe->status <= IB_WC_GENERAL_ERR ? cqe->status :
							IB_WC_GENERAL_ERR;
	wc->opcode = vrdma_wc_opcode(cqe->opcode);
	wc->vendor_err = le32_to_cpu(cqe->vendor_err);
	wc->byte_len = le32_to_cpu(cqe->byte_len);
	wc->qp = &qp->ibqp;
	wc->src_qp = le32_to_cpu(cqe->src_qpn);
	wc->pkey_index = le16_to_cpu(cqe->pkey_index);
	wc->sl = cqe->sl;
	wc->port_num = VRDMA_PORT;
	if (flags & VIRTIO_RDMA_CQE_GRH)
		wc->wc_flags |= IB_WC_GRH;
	if (flags & VIRTIO_RDMA_CQE_ETHERNET) {
		wc->wc_flags |= IB_WC_WITH_SMAC;
		memcpy(wc->smac, cqe->smac, sizeof(wc->smac));
		wc->vlan_id = le16_to_cpu(cqe->vlan);
		if (wc->vlan_id != VIRTIO_RDMA_NO_VLAN)
			wc->wc_flags |= IB_WC_WITH_VLAN;
	}
	if (flags & VIRTIO_RDMA_CQE_WITH_IMM) {
		wc->wc_flags |= IB_WC_WITH_IMM;
		wc->ex.imm_data = cqe->imm;
	} else if (flags & VIRTIO_RDMA_CQE_WITH_INV) {
		wc->wc_flags |= IB_WC_WITH_INVALIDATE;
		wc->ex.invalidate_rkey = le32_to_cpu(cqe->inv_key);
	}
}

int vrdma_poll_cq(struct ib_cq *ibcq, int num_entries, struct ib_wc *wc)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	const struct virtio_rdma_cqe *cqe;
	struct vrdma_held *held;
	struct vrdma_qp *qp;
	struct vrdma_wq *wq;
	/* One that is dead before the ring is looked at adds nothing to it. */
	bool dead = smp_load_acquire(&dev->dead);
	unsigned long flags;
	u32 before;
	u16 cqe_flags;
	int n = 0;

	spin_lock_irqsave(&cq->lock, flags);
	before = cq->consumer;
	while (n < num_entries && vrdma_cqe_valid(cq, cq->consumer)) {
		/* The phase was stored last. */
		dma_rmb();
		cqe = vrdma_cqe(cq, cq->consumer++);
		held = xa_load(&dev->qps, le32_to_cpu(cqe->qpn));
		if (!held)
			continue;
		qp = held_to_vqp(held);
		cqe_flags = le16_to_cpu(cqe->flags);
		wq = cqe_flags & VIRTIO_RDMA_CQE_SEND_QUEUE ? &qp->sq : &qp->rq;
		vrdma_fill_wc(&wc[n++], qp, cqe, cqe_flags);
		smp_store_release(&wq->consumer,
				  le32_to_cpu(cqe->wqe_index) + 1);
	}
	if (cq->consumer != before)
		vrdma_cq_consumed(cq);
	if (unlikely(dead))
		n += vrdma_flush(cq, num_entries - n, wc + n);
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

int vrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	unsigned long irq_flags;
	u32 kind;
	int missed = 0;

	kind = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED ?
	       VIRTIO_RDMA_ARM_SOLICITED : VIRTIO_RDMA_ARM_ANY;

	spin_lock_irqsave(&cq->lock, irq_flags);
	/* Under one sequence the stronger kind stays. */
	cq->armed = max(cq->armed, kind);
	WRITE_ONCE(cq->ctrl->arm,
		   cpu_to_le32(cq->sequence << VIRTIO_RDMA_ARM_SEQ_SHIFT |
			       cq->armed));
	/* Armed before the ring is looked at; the device does the reverse. */
	mb();
	if (flags & IB_CQ_REPORT_MISSED_EVENTS)
		missed = vrdma_cqe_valid(cq, cq->consumer) ||
			 (READ_ONCE(dev->dead) && vrdma_flush_waits(cq));
	spin_unlock_irqrestore(&cq->lock, irq_flags);
	return missed;
}

/*
 * Takes the CQEs of a queue pair out of a kernel CQ: those that stay move up
 * to the producer's end, each under the phase of its new place.
 */
void vrdma_cq_clean(struct vrdma_cq *cq, u32 qpn)
{
	struct virtio_rdma_cqe *from, *to;
	unsigned long flags;
	u32 producer, i, freed = 0;

	spin_lock_irqsave(&cq->lock, flags);
	producer = cq->consumer;
	while (producer - cq->consumer < cq->entries &&
	       vrdma_cqe_valid(cq, producer))
		producer++;
	dma_rmb();

	for (i = producer; i != cq->consumer;) {
		from = vrdma_cqe(cq, --i);
		if (le32_to_cpu(from->qpn) == qpn) {
			freed++;
		} else if (freed) {
			to = vrdma_cqe(cq, i + freed);
			memcpy(to, from, offsetof(struct virtio_rdma_cqe, phase));
		}
	}
	if (freed) {
		cq->consumer += freed;
		vrdma_cq_consumed(cq);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
}
