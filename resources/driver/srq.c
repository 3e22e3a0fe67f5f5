// SPDX-License-Identifier: GPL-2.0
/*
 * Shared receive queues (docs/virtio-rdma.md, sections 4.12 and 6.1). Processes
 * post to theirs by themselves; posting here is for kernel users.
 */
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "vrdma.h"

static int vrdma_srq_user_memory(struct vrdma_dev *dev, struct vrdma_buf *buf,
				 struct ib_udata *udata, size_t body,
				 struct virtio_rdma_srq_layout *layout)
{
	struct virtio_rdma_ureq_srq ureq;
	int err;

	if (udata->inlen < sizeof(ureq))
		return -EINVAL;
	err = ib_copy_from_udata(&ureq, udata, sizeof(ureq));
	if (err)
		return err;
	if (ureq.layout.entries != layout->entries ||
	    ureq.layout.stride != layout->stride)
		return -EINVAL;
	/* Where things lie is the process's choice; the device checks. */
	*layout = ureq.layout;
	return vrdma_buf_pin(dev, buf, ureq.buf_addr, layout->length,
			     vrdma_max_entries(dev, body, sizeof(__le64)));
}

static int vrdma_srq_kernel_memory(struct vrdma_dev *dev, struct vrdma_srq *srq,
				   const struct virtio_rdma_srq_layout *layout)
{
	const size_t body = sizeof(struct virtio_rdma_create_srq);
	int err;

	err = vrdma_buf_alloc(dev, &srq->buf, layout->length,
			      vrdma_max_entries(dev, body, sizeof(__le64)));
	if (err)
		return err;
	srq->ctrl = srq->buf.cpu + layout->ctrl_offset;
	srq->ring = srq->buf.cpu + layout->ring_offset;
	return 0;
}

static int vrdma_srq_create(struct vrdma_dev *dev, struct vrdma_srq *srq,
			    const struct virtio_rdma_srq_layout *layout)
{
	struct virtio_rdma_create_srq *body;
	struct vrdma_cmd *cmd;
	size_t size = struct_size(body, ring.page, srq->buf.num_pages);

	cmd = vrdma_cmd_alloc(dev, srq->context, VIRTIO_RDMA_CMD_CREATE_SRQ,
			      size, sizeof(struct virtio_rdma_handle));
	if (!cmd)
		return -ENOMEM;
	body = cmd->body;
	body->pd = cpu_to_le32(to_vpd(srq->ibsrq.pd)->pdn);
	body->type = cpu_to_le32(VIRTIO_RDMA_SRQT_BASIC);
	if (srq->ibsrq.srq_type == IB_SRQT_XRC) {
		body->type = cpu_to_le32(VIRTIO_RDMA_SRQT_XRC);
		body->cq = cpu_to_le32(to_vcq(srq->ibsrq.ext.cq)->cqn);
		body->xrcd = cpu_to_le32(to_vxrcd(srq->ibsrq.ext.xrc.xrcd)->handle);
	}
	body->entries = cpu_to_le32(layout->entries);
	body->stride = cpu_to_le32(layout->stride);
	body->max_sge = cpu_to_le32(srq->max_sge);
	vrdma_buf_fill_ring(&body->ring, &srq->buf, layout->ctrl_offset,
			    layout->ring_offset);

	return vrdma_cmd_create(cmd, size, &srq->srqn);
}

int vrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr,
		     struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct virtio_rdma_srq_layout layout;
	u32 max_sge = attr->attr.max_sge;
	int err;

	/* No kernel user has XRC. */
	if (attr->srq_type != IB_SRQT_BASIC &&
	    !(attr->srq_type == IB_SRQT_XRC && udata &&
	      vrdma_has(dev, VIRTIO_RDMA_F_XRC)))
		return -EOPNOTSUPP;
	if (virtio_rdma_layout_srq(&dev->limits, attr->attr.max_wr, &max_sge,
				   &layout))
		return -EINVAL;

	spin_lock_init(&srq->lock);
	srq->context = vrdma_udata_context(udata);
	srq->entries = layout.entries;
	srq->stride = layout.stride;
	srq->max_sge = max_sge;

	if (udata)
		err = vrdma_srq_user_memory(dev, &srq->buf, udata,
					    sizeof(struct virtio_rdma_create_srq),
					    &layout);
	else
		err = vrdma_srq_kernel_memory(dev, srq, &layout);
	if (err)
		return err;

	err = vrdma_srq_create(dev, srq, &layout);
	if (err)
		goto err_buf;
	err = vrdma_held_add(&dev->srqs, srq->srqn, &srq->held);
	if (err)
		goto err_srq;
	if (attr->srq_type == IB_SRQT_XRC)
		ibsrq->ext.xrc.srq_num = srq->srqn;
	attr->attr.max_wr = srq->entries;
	attr->attr.max_sge = srq->max_sge;
	return 0;

err_srq:
	/* Nothing refers to it yet: it can be destroyed. */
	if (vrdma_exec_destroy(dev, srq->context, VIRTIO_RDMA_CMD_DESTROY_SRQ,
			       srq->srqn))
		vrdma_fail(dev, "it does not destroy a new shared receive queue");
err_buf:
	vrdma_buf_free(dev, &srq->buf);
	return err;
}

/*
 * The process has copied what waits into the new ring, and posts nothing until
 * this is done.
 */
static int vrdma_srq_resize(struct vrdma_dev *dev, struct vrdma_srq *srq,
			    const struct ib_srq_attr *attr, u32 mask,
			    struct ib_udata *udata)
{
	struct virtio_rdma_modify_srq *body;
	struct virtio_rdma_srq_layout layout;
	u32 max_sge = srq->max_sge;
	struct vrdma_buf buf = {};
	struct vrdma_cmd *cmd;
	size_t size;
	int err;

	if (virtio_rdma_layout_srq(&dev->limits, attr->max_wr, &max_sge,
				   &layout))
		return -EINVAL;
	err = vrdma_srq_user_memory(dev, &buf, udata, sizeof(*body), &layout);
	if (err)
		return err;

	size = struct_size(body, ring.page, buf.num_pages);
	cmd = vrdma_cmd_alloc(dev, srq->context, VIRTIO_RDMA_CMD_MODIFY_SRQ,
			      size, 0);
	if (!cmd) {
		vrdma_buf_free(dev, &buf);
		return -ENOMEM;
	}
	body = cmd->body;
	body->srq = cpu_to_le32(srq->srqn);
	body->mask = cpu_to_le32(mask);
	if (mask & IB_SRQ_LIMIT)
		body->limit = cpu_to_le32(attr->srq_limit);
	body->entries = cpu_to_le32(layout.entries);
	vrdma_buf_fill_ring(&body->ring, &buf, layout.ctrl_offset,
			    layout.ring_offset);
	err = vrdma_cmd_run_exact(cmd, size);
	vrdma_cmd_free(cmd);
	if (!err) {
		swap(srq->buf, buf);
		srq->entries = layout.entries;
	}
	vrdma_buf_free(dev, &buf);
	return err;
}

int vrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		     enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct virtio_rdma_modify_srq body = {
		.srq = cpu_to_le32(srq->srqn),
		.mask = cpu_to_le32(IB_SRQ_LIMIT),
		.limit = cpu_to_le32(attr->srq_limit),
	};

	if (mask & ~(IB_SRQ_MAX_WR | IB_SRQ_LIMIT))
		return -EINVAL;
	if (mask & IB_SRQ_MAX_WR)
		/* Kernel users post from any context, which cannot be held up. */
		return udata ? vrdma_srq_resize(dev, srq, attr, mask, udata) :
			       -EOPNOTSUPP;
	if (!(mask & IB_SRQ_LIMIT))
		return 0;
	return vrdma_exec(dev, srq->context, VIRTIO_RDMA_CMD_MODIFY_SRQ,
			  &body, sizeof(body), NULL, 0);
}

int vrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct vrdma_dev *dev = to_vdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	struct virtio_rdma_handle body = {
		.handle = cpu_to_le32(srq->srqn),
	};
	struct virtio_rdma_srq_attr wire;
	int err;

	err = vrdma_exec(dev, srq->context, VIRTIO_RDMA_CMD_QUERY_SRQ,
			 &body, sizeof(body), &wire, sizeof(wire));
	if (err)
		return err;
	attr->max_wr = le32_to_cpu(wire.entries);
	attr->max_sge = le32_to_cpu(wire.max_sge);
	attr->srq_limit = le32_to_cpu(wire.limit);
	return 0;
}

int vrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibsrq->device);
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	int err;

	err = vrdma_exec_destroy(dev, srq->context, VIRTIO_RDMA_CMD_DESTROY_SRQ,
				 srq->srqn);
	if (err)
		return err;
	vrdma_held_end(&dev->srqs, srq->srqn, &srq->held);
	vrdma_buf_free(dev, &srq->buf);
	return 0;
}

/* The device's index says which slots it has copied. */
static bool vrdma_srq_full(struct vrdma_srq *srq, u32 producer)
{
	if (producer - srq->consumer >= srq->entries)
		srq->consumer = le32_to_cpu(smp_load_acquire(&srq->ctrl->consumer));
	return producer - srq->consumer >= srq->entries;
}

int vrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad_wr)
{
	struct vrdma_srq *srq = to_vsrq(ibsrq);
	unsigned long flags;
	u32 producer, slot;
	int err = 0;

	spin_lock_irqsave(&srq->lock, flags);
	producer = srq->producer;
	for (; wr; wr = wr->next) {
		if (wr->num_sge < 0 || wr->num_sge > srq->max_sge)
			err = -EINVAL;
		else if (vrdma_srq_full(srq, producer))
			err = -ENOMEM;
		if (err) {
			*bad_wr = wr;
			break;
		}
		slot = producer++ & (srq->entries - 1);
		vrdma_fill_recv(srq->ring + (size_t)slot * srq->stride, wr);
	}
	if (producer != srq->producer) {
		srq->producer = producer;
		/* No doorbell: the device looks when a message comes. */
		dma_wmb();
		WRITE_ONCE(srq->ctrl->producer, cpu_to_le32(producer));
	}
	spin_unlock_irqrestore(&srq->lock, flags);
	return err;
}
