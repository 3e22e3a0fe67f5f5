// SPDX-License-Identifier: GPL-2.0
/* Changes of completion queues: their size, and moderation of their events. */
#include <rdma/ib_verbs.h>

#include "vrdma.h"

static int vrdma_cq_move(struct vrdma_dev *dev, struct vrdma_cq *cq,
			 const struct vrdma_buf *buf,
			 const struct virtio_rdma_cq_layout *layout)
{
	struct virtio_rdma_create_cq *body;
	struct vrdma_cmd *cmd;
	size_t size;
	int err;

	cmd = vrdma_cmd_alloc(dev, cq->context, VIRTIO_RDMA_CMD_RESIZE_CQ,
			      struct_size(body, ring.page, buf->num_pages), 0);
	if (!cmd)
		return -ENOMEM;
	body = cmd->body;
	body->cqn = cpu_to_le32(cq->cqn);
	size = vrdma_cq_body(body, buf, layout);
	err = vrdma_cmd_run(cmd, size);
	vrdma_cmd_free(cmd);
	return err;
}

/*
 * Of processes only: the core serializes resizing, the provider holds its own
 * lock. The device is done with the old ring when it has answered.
 */
int vrdma_resize_cq(struct ib_cq *ibcq, int cqe, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct virtio_rdma_cq_layout layout;
	struct vrdma_buf buf = {};
	int err;

	if (!vrdma_has(dev, VIRTIO_RDMA_F_CQ_RESIZE) || !udata)
		return -EOPNOTSUPP;
	if (cqe < 1)
		return -EINVAL;
	err = vrdma_cq_pin(dev, cqe, udata, &buf, &layout);
	if (err)
		return err;
	err = vrdma_cq_move(dev, cq, &buf, &layout);
	if (!err) {
		swap(cq->buf, buf);
		cq->entries = layout.entries;
		ibcq->cqe = layout.entries;
	}
	vrdma_buf_free(dev, &buf);
	return err;
}

int vrdma_modify_cq(struct ib_cq *ibcq, u16 count, u16 period)
{
	struct vrdma_dev *dev = to_vdev(ibcq->device);
	struct vrdma_cq *cq = to_vcq(ibcq);
	struct virtio_rdma_modify_cq body = {
		.cqn = cpu_to_le32(cq->cqn),
		.count = cpu_to_le16(count),
		.period = cpu_to_le16(period),
	};

	if (!vrdma_has(dev, VIRTIO_RDMA_F_CQ_RESIZE))
		return -EOPNOTSUPP;
	return vrdma_exec(dev, cq->context, VIRTIO_RDMA_CMD_MODIFY_CQ, &body,
			  sizeof(body), NULL, 0);
}
