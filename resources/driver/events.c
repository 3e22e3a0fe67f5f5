// SPDX-License-Identifier: GPL-2.0
/*
 * Event queues (docs/virtio-rdma.md, sections 3 and 8). The device writes
 * events into buffers that are given back at once; objects are looked up by
 * number and held while their handler runs.
 */
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "vrdma.h"

static void *vrdma_eq_slot(const struct vrdma_eq *eq, u32 i)
{
	return eq->buf + (size_t)i * eq->stride;
}

static int vrdma_eq_give(struct vrdma_eq *eq, void *slot)
{
	struct scatterlist sg;

	sg_init_one(&sg, slot, eq->size);
	return virtqueue_add_inbuf(eq->vq, &sg, 1, slot, GFP_ATOMIC);
}

int vrdma_eq_init(struct vrdma_eq *eq, struct virtqueue *vq, u32 size)
{
	u32 i;
	int err;

	spin_lock_init(&eq->lock);
	eq->vq = vq;
	eq->size = size;
	eq->stride = max_t(u32, size, dma_get_cache_alignment());
	eq->count = virtqueue_get_vring_size(vq);
	eq->buf = kcalloc(eq->count, eq->stride, GFP_KERNEL);
	if (!eq->buf)
		return -ENOMEM;
	for (i = 0; i < eq->count; i++) {
		err = vrdma_eq_give(eq, vrdma_eq_slot(eq, i));
		if (err)
			return err;
	}
	return 0;
}

/* Only after a reset. */
void vrdma_eq_free(struct vrdma_eq *eq)
{
	if (!eq->vq)
		return;
	while (virtqueue_detach_unused_buf(eq->vq))
		;
	kfree(eq->buf);
	eq->buf = NULL;
}

/* Tells the device about the buffers, once it is ready. */
void vrdma_eq_start(struct vrdma_eq *eq)
{
	virtqueue_kick(eq->vq);
}

/*
 * Next event as a copy, its buffer given back. The lock is not held while the
 * caller handles it.
 */
static bool vrdma_eq_next(struct vrdma_eq *eq, void *event)
{
	unsigned long flags;
	unsigned int len;
	void *slot;
	bool found = false;

	spin_lock_irqsave(&eq->lock, flags);
	while (!found && (slot = virtqueue_get_buf(eq->vq, &len))) {
		/* A short one says nothing. */
		if (len >= eq->size) {
			memcpy(event, slot, eq->size);
			found = true;
		}
		if (vrdma_eq_give(eq, slot))
			break;
	}
	spin_unlock_irqrestore(&eq->lock, flags);
	return found;
}

static void vrdma_eq_rearm(struct vrdma_eq *eq, bool *again)
{
	unsigned long flags;
	bool kick;

	spin_lock_irqsave(&eq->lock, flags);
	kick = virtqueue_kick_prepare(eq->vq);
	*again = !virtqueue_enable_cb(eq->vq);
	if (*again)
		virtqueue_disable_cb(eq->vq);
	spin_unlock_irqrestore(&eq->lock, flags);
	if (kick)
		virtqueue_notify(eq->vq);
}

void vrdma_comp_event(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct vrdma_eq *eq = &dev->comp[vq->index - VIRTIO_RDMA_VQ_COMP];
	struct virtio_rdma_comp_event event;
	struct vrdma_cq *cq;
	bool again;

	do {
		while (vrdma_eq_next(eq, &event)) {
			cq = vrdma_cq_get(dev, le32_to_cpu(event.cqn));
			if (!cq)
				continue;
			vrdma_cq_event(cq);
			vrdma_held_put(&cq->held);
		}
		vrdma_eq_rearm(eq, &again);
	} while (again);
}

static void vrdma_event_cq(struct vrdma_dev *dev, u32 cqn)
{
	struct ib_event event = {
		.device = &dev->ibdev,
		.event = IB_EVENT_CQ_ERR,
	};
	struct vrdma_cq *cq = vrdma_cq_get(dev, cqn);

	if (!cq)
		return;
	event.element.cq = &cq->ibcq;
	if (cq->ibcq.event_handler)
		cq->ibcq.event_handler(&event, cq->ibcq.cq_context);
	vrdma_held_put(&cq->held);
}

void vrdma_qp_event(struct vrdma_qp *qp, enum ib_event_type type)
{
	struct ib_event event = {
		.device = qp->ibqp.device,
		.element.qp = &qp->ibqp,
		.event = type,
	};

	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}

static void vrdma_event_qp(struct vrdma_dev *dev, u32 qpn,
			   enum ib_event_type type)
{
	struct vrdma_qp *qp = vrdma_qp_get(dev, qpn);

	if (!qp)
		return;
	vrdma_qp_event(qp, type);
	vrdma_held_put(&qp->held);
}

static void vrdma_event_srq(struct vrdma_dev *dev, u32 srqn,
			    enum ib_event_type type)
{
	struct ib_event event = { .device = &dev->ibdev, .event = type };
	struct vrdma_srq *srq = vrdma_srq_get(dev, srqn);

	if (!srq)
		return;
	event.element.srq = &srq->ibsrq;
	if (srq->ibsrq.event_handler)
		srq->ibsrq.event_handler(&event, srq->ibsrq.srq_context);
	vrdma_held_put(&srq->held);
}

/* Of the port, or of the whole device. */
void vrdma_port_event(struct vrdma_dev *dev, enum ib_event_type type)
{
	struct ib_event event = {
		.device = &dev->ibdev,
		.element.port_num = VRDMA_PORT,
		.event = type,
	};
	unsigned long flags;
	bool registered;

	spin_lock_irqsave(&dev->netdev_lock, flags);
	registered = dev->registered;
	spin_unlock_irqrestore(&dev->netdev_lock, flags);
	if (registered)
		ib_dispatch_event(&event);
}

static void vrdma_dispatch(struct vrdma_dev *dev,
			   const struct virtio_rdma_async_event *event)
{
	u32 handle = le32_to_cpu(event->handle);

	switch (le32_to_cpu(event->type)) {
	case VIRTIO_RDMA_EVENT_CQ_ERR:
		vrdma_event_cq(dev, handle);
		break;
	case VIRTIO_RDMA_EVENT_QP_FATAL:
		vrdma_event_qp(dev, handle, IB_EVENT_QP_FATAL);
		break;
	case VIRTIO_RDMA_EVENT_QP_REQ_ERR:
		vrdma_event_qp(dev, handle, IB_EVENT_QP_REQ_ERR);
		break;
	case VIRTIO_RDMA_EVENT_QP_ACCESS_ERR:
		vrdma_event_qp(dev, handle, IB_EVENT_QP_ACCESS_ERR);
		break;
	case VIRTIO_RDMA_EVENT_COMM_EST:
		vrdma_event_qp(dev, handle, IB_EVENT_COMM_EST);
		break;
	case VIRTIO_RDMA_EVENT_SQ_DRAINED:
		vrdma_event_qp(dev, handle, IB_EVENT_SQ_DRAINED);
		break;
	case VIRTIO_RDMA_EVENT_LAST_WQE_REACHED:
		vrdma_event_qp(dev, handle, IB_EVENT_QP_LAST_WQE_REACHED);
		break;
	case VIRTIO_RDMA_EVENT_SRQ_ERR:
		vrdma_event_srq(dev, handle, IB_EVENT_SRQ_ERR);
		break;
	case VIRTIO_RDMA_EVENT_SRQ_LIMIT:
		vrdma_event_srq(dev, handle, IB_EVENT_SRQ_LIMIT_REACHED);
		break;
	case VIRTIO_RDMA_EVENT_PORT_ACTIVE:
		vrdma_port_event(dev, IB_EVENT_PORT_ACTIVE);
		break;
	case VIRTIO_RDMA_EVENT_PORT_ERR:
		vrdma_port_event(dev, IB_EVENT_PORT_ERR);
		break;
	case VIRTIO_RDMA_EVENT_DEVICE_FATAL:
		schedule_work(&dev->fail_work);
		break;
	default:
		dev_warn_ratelimited(&dev->vdev->dev,
				     "asynchronous event of unknown type %u\n",
				     le32_to_cpu(event->type));
	}
}

void vrdma_async_event(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct virtio_rdma_async_event event;
	bool again;

	do {
		while (vrdma_eq_next(&dev->async, &event))
			vrdma_dispatch(dev, &event);
		vrdma_eq_rearm(&dev->async, &again);
	} while (again);
}
