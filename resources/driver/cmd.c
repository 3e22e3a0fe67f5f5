// SPDX-License-Identifier: GPL-2.0
/*
 * Control queue (docs/virtio-rdma.md, section 4): commands are given by
 * threads that may sleep, as many at once as the queue has room for. A device
 * that does not answer in time, or answers nonsense, is reset and not used
 * again, for only a reset tells that it will touch no more memory.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "vrdma.h"

#define VRDMA_CMD_TIMEOUT	(60 * HZ)

static const int vrdma_errno[] = {
	[VIRTIO_RDMA_OK]		= 0,
	[VIRTIO_RDMA_UNSUPPORTED]	= -EOPNOTSUPP,
	[VIRTIO_RDMA_INVALID]		= -EINVAL,
	[VIRTIO_RDMA_NO_RESOURCE]	= -ENOMEM,
	[VIRTIO_RDMA_NOT_FOUND]		= -EINVAL,
	[VIRTIO_RDMA_DENIED]		= -EPERM,
	[VIRTIO_RDMA_BUSY]		= -EBUSY,
	[VIRTIO_RDMA_BAD_STATE]		= -EINVAL,
	[VIRTIO_RDMA_BAD_ADDRESS]	= -EFAULT,
	[VIRTIO_RDMA_EXISTS]		= -EEXIST,
	[VIRTIO_RDMA_IN_PROGRESS]	= -EAGAIN,
};

int vrdma_ctrl_init(struct vrdma_dev *dev, struct virtqueue *vq)
{
	/* Two descriptors to a command, when there are no indirect ones. */
	unsigned int slots = virtqueue_get_vring_size(vq) / 2;

	if (!slots)
		return -EINVAL;
	spin_lock_init(&dev->ctrl.lock);
	sema_init(&dev->ctrl.slots, slots);
	dev->ctrl.vq = vq;
	return 0;
}

/* Callback of the control queue. */
void vrdma_ctrl_done(struct virtqueue *vq)
{
	struct vrdma_dev *dev = vq->vdev->priv;
	struct vrdma_cmd *cmd;
	unsigned long flags;
	unsigned int len;

	spin_lock_irqsave(&dev->ctrl.lock, flags);
	do {
		virtqueue_disable_cb(vq);
		while ((cmd = virtqueue_get_buf(vq, &len))) {
			cmd->used = len;
			complete(&cmd->done);
		}
	} while (!virtqueue_enable_cb(vq));
	spin_unlock_irqrestore(&dev->ctrl.lock, flags);
}

/*
 * Resets the device for good and ends all commands that wait for it. When this
 * returns the device touches no memory of ours, whoever called it first.
 */
static bool vrdma_shut_down(struct vrdma_dev *dev)
{
	struct vrdma_cmd *cmd;
	unsigned long flags;

	mutex_lock(&dev->fail_lock);
	if (dev->failed) {
		mutex_unlock(&dev->fail_lock);
		return false;
	}
	WRITE_ONCE(dev->failed, true);
	virtio_break_device(dev->vdev);
	virtio_reset_device(dev->vdev);
	smp_store_release(&dev->dead, true);
	/* Whoever posts looks there once more after it. */
	smp_mb();

	spin_lock_irqsave(&dev->ctrl.lock, flags);
	while ((cmd = virtqueue_detach_unused_buf(dev->ctrl.vq))) {
		cmd->aborted = true;
		complete(&cmd->done);
	}
	spin_unlock_irqrestore(&dev->ctrl.lock, flags);
	mutex_unlock(&dev->fail_lock);
	return true;
}

void vrdma_fail(struct vrdma_dev *dev, const char *why)
{
	if (!vrdma_shut_down(dev))
		return;
	dev_err(&dev->vdev->dev, "device reset and out of use: %s\n", why);
	vrdma_flush_start(dev);
	vrdma_port_event(dev, IB_EVENT_DEVICE_FATAL);
}

/* For those who find out in an interrupt. */
void vrdma_fail_work(struct work_struct *work)
{
	struct vrdma_dev *dev = container_of(work, struct vrdma_dev, fail_work);

	vrdma_fail(dev, "it reported a fatal error");
}

/* The orderly end: as a failure, without the noise. */
void vrdma_stop(struct vrdma_dev *dev)
{
	vrdma_shut_down(dev);
}

struct vrdma_cmd *vrdma_cmd_alloc(struct vrdma_dev *dev, u32 context,
				  enum virtio_rdma_opcode opcode,
				  u32 body_size, u32 reply_body_size)
{
	struct vrdma_cmd *cmd;

	cmd = kzalloc(sizeof(*cmd), GFP_KERNEL);
	if (!cmd)
		return NULL;
	init_completion(&cmd->done);
	cmd->dev = dev;
	cmd->req_size = sizeof(*cmd->req) + body_size;
	cmd->reply_size = sizeof(*cmd->reply) + reply_body_size;
	cmd->req = kzalloc(cmd->req_size, GFP_KERNEL);
	cmd->reply = kzalloc(cmd->reply_size, GFP_KERNEL);
	if (!cmd->req || !cmd->reply) {
		vrdma_cmd_free(cmd);
		return NULL;
	}
	cmd->body = cmd->req + 1;
	cmd->reply_body = cmd->reply + 1;
	cmd->req->opcode = cpu_to_le16(opcode);
	cmd->req->context = cpu_to_le32(context);
	return cmd;
}

void vrdma_cmd_free(struct vrdma_cmd *cmd)
{
	if (!cmd)
		return;
	kfree(cmd->req);
	kfree(cmd->reply);
	kfree(cmd);
}

static int vrdma_cmd_submit(struct vrdma_cmd *cmd, u32 req_len)
{
	struct vrdma_ctrl *ctrl = &cmd->dev->ctrl;
	struct scatterlist req, reply, *sgs[] = { &req, &reply };
	unsigned long flags;
	bool kick = false;
	int err;

	sg_init_one(&req, cmd->req, req_len);
	sg_init_one(&reply, cmd->reply, cmd->reply_size);

	spin_lock_irqsave(&ctrl->lock, flags);
	err = READ_ONCE(cmd->dev->failed) ? -EIO :
	      virtqueue_add_sgs(ctrl->vq, sgs, 1, 1, cmd, GFP_ATOMIC);
	if (!err)
		kick = virtqueue_kick_prepare(ctrl->vq);
	spin_unlock_irqrestore(&ctrl->lock, flags);

	if (kick)
		virtqueue_notify(ctrl->vq);
	return err;
}

static void vrdma_cmd_wait(struct vrdma_cmd *cmd)
{
	unsigned long end = jiffies + VRDMA_CMD_TIMEOUT;

	/* In slices: a device that was unplugged will never interrupt. */
	while (!wait_for_completion_timeout(&cmd->done, HZ)) {
		if (virtqueue_is_broken(cmd->dev->ctrl.vq))
			vrdma_fail(cmd->dev, "it is gone");
		else if (time_after(jiffies, end))
			vrdma_fail(cmd->dev, "a command was not answered");
	}
}

/* The reply is the device's word: nothing of it is used before this. */
static int vrdma_cmd_check(struct vrdma_cmd *cmd)
{
	const struct virtio_rdma_reply_hdr *reply = cmd->reply;
	u32 status, length;

	if (cmd->aborted)
		return -EIO;
	if (cmd->used < sizeof(*reply))
		goto nonsense;
	status = le32_to_cpu(reply->status);
	length = le32_to_cpu(reply->length);
	if (reply->cookie != cmd->req->cookie || length < sizeof(*reply) ||
	    length > cmd->used || cmd->used > cmd->reply_size)
		goto nonsense;
	if (status)
		return status < ARRAY_SIZE(vrdma_errno) ? vrdma_errno[status] :
							  -EINVAL;
	cmd->used = length;
	return 0;

nonsense:
	vrdma_fail(cmd->dev, "a reply is malformed");
	return -EIO;
}

/*
 * Carries a command out whose body is body_len bytes. Returns 0 or the errno
 * of its status; -EIO if and only if the device failed, and then it has been
 * reset.
 */
int vrdma_cmd_run(struct vrdma_cmd *cmd, u32 body_len)
{
	struct vrdma_dev *dev = cmd->dev;
	u32 req_len = sizeof(*cmd->req) + body_len;
	int err;

	if (WARN_ON_ONCE(req_len > cmd->req_size))
		return -EINVAL;
	cmd->req->length = cpu_to_le32(req_len);
	cmd->req->cookie = cpu_to_le64(atomic64_inc_return(&dev->ctrl.cookie));
	reinit_completion(&cmd->done);

	down(&dev->ctrl.slots);
	err = vrdma_cmd_submit(cmd, req_len);
	if (err == -EIO)
		vrdma_fail(dev, "its control queue is broken");
	if (!err)
		vrdma_cmd_wait(cmd);
	up(&dev->ctrl.slots);
	if (err)
		return err;

	err = vrdma_cmd_check(cmd);
	if (err)
		dev_dbg(&dev->vdev->dev, "command %#x of context %u: %d\n",
			le16_to_cpu(cmd->req->opcode),
			le32_to_cpu(cmd->req->context), err);
	return err;
}

/* As vrdma_cmd_run(), where the reply is to be all that there is room for. */
int vrdma_cmd_run_exact(struct vrdma_cmd *cmd, u32 body_len)
{
	int err = vrdma_cmd_run(cmd, body_len);

	if (!err && cmd->used != cmd->reply_size) {
		vrdma_fail(cmd->dev, "a reply has the wrong length");
		err = -EIO;
	}
	return err;
}

/* Creates an object whose number is all of the reply; frees the command. */
int vrdma_cmd_create(struct vrdma_cmd *cmd, u32 body_len, u32 *handle)
{
	const struct virtio_rdma_handle *reply = cmd->reply_body;
	int err = vrdma_cmd_run_exact(cmd, body_len);

	if (!err)
		*handle = le32_to_cpu(reply->handle);
	vrdma_cmd_free(cmd);
	return err;
}

/* A command with a plain body and a reply of exactly reply_len bytes. */
int vrdma_exec(struct vrdma_dev *dev, u32 context,
	       enum virtio_rdma_opcode opcode, const void *body, u32 body_len,
	       void *reply, u32 reply_len)
{
	struct vrdma_cmd *cmd;
	int err;

	cmd = vrdma_cmd_alloc(dev, context, opcode, body_len, reply_len);
	if (!cmd)
		return -ENOMEM;
	if (body_len)
		memcpy(cmd->body, body, body_len);
	err = vrdma_cmd_run_exact(cmd, body_len);
	if (!err && reply_len)
		memcpy(reply, cmd->reply_body, reply_len);
	vrdma_cmd_free(cmd);
	return err;
}

/* A command that names a handle and has no reply body. */
int vrdma_exec_handle(struct vrdma_dev *dev, u32 context,
		      enum virtio_rdma_opcode opcode, u32 handle)
{
	struct virtio_rdma_handle body = { .handle = cpu_to_le32(handle) };

	return vrdma_exec(dev, context, opcode, &body, sizeof(body), NULL, 0);
}

/*
 * Destroys an object. With a failed device all objects are gone, and its
 * memory may be freed as after success.
 */
int vrdma_exec_destroy(struct vrdma_dev *dev, u32 context,
		       enum virtio_rdma_opcode opcode, u32 handle)
{
	int err = vrdma_exec_handle(dev, context, opcode, handle);

	return err == -EIO ? 0 : err;
}
