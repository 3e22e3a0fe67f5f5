// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs (docs/virtio-rdma.md, sections 4.7 and 4.8). The device keeps the
 * state table; what it refuses has changed nothing.
 */
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "vrdma.h"

static u32 vrdma_qp_max_pages(const struct vrdma_dev *dev)
{
	return vrdma_max_entries(dev, sizeof(struct virtio_rdma_create_qp),
				 sizeof(__le64));
}

/* The process chose its layout by the same rules; it gets what fits it. */
static int vrdma_qp_user_memory(struct vrdma_dev *dev, struct vrdma_qp *qp,
				struct ib_udata *udata,
				struct virtio_rdma_qp_layout *layout)
{
	struct virtio_rdma_ureq_create_qp ureq;
	int err;

	if (udata->inlen < sizeof(ureq))
		return -EINVAL;
	err = ib_copy_from_udata(&ureq, udata, sizeof(ureq));
	if (err)
		return err;
	if (ureq.layout.sq_entries != layout->sq_entries ||
	    ureq.layout.sq_stride != layout->sq_stride ||
	    ureq.layout.rq_entries != layout->rq_entries ||
	    ureq.layout.rq_stride != layout->rq_stride)
		return -EINVAL;
	/* Where things lie is the process's choice; the device checks. */
	*layout = ureq.layout;
	return vrdma_buf_pin(dev, &qp->buf, ureq.buf_addr, layout->length,
			     vrdma_qp_max_pages(dev));
}

static int vrdma_qp_kernel_memory(struct vrdma_dev *dev, struct vrdma_qp *qp,
				  const struct virtio_rdma_qp_layout *layout)
{
	int err;

	err = vrdma_buf_alloc(dev, &qp->buf, layout->length,
			      vrdma_qp_max_pages(dev));
	if (err)
		return err;
	qp->ctrl = qp->buf.cpu + layout->ctrl_offset;
	vrdma_wq_init(&qp->sq, qp->buf.cpu + layout->sq_offset,
		      layout->sq_entries, layout->sq_stride,
		      qp->caps.send_sge);
	vrdma_wq_init(&qp->rq, qp->buf.cpu + layout->rq_offset,
		      layout->rq_entries, layout->rq_stride,
		      qp->caps.recv_sge);
	return 0;
}

static int vrdma_qp_type(struct vrdma_dev *dev, enum ib_qp_type type,
			 struct ib_udata *udata)
{
	if (type == IB_QPT_RC)
		return VIRTIO_RDMA_QPT_RC;
	if (type == IB_QPT_UC && vrdma_has(dev, VIRTIO_RDMA_F_UC))
		return VIRTIO_RDMA_QPT_UC;
	if (type == IB_QPT_UD && vrdma_has(dev, VIRTIO_RDMA_F_UD))
		return VIRTIO_RDMA_QPT_UD;
	if (type == IB_QPT_GSI && vrdma_has(dev, VIRTIO_RDMA_F_UD) && !udata)
		return VIRTIO_RDMA_QPT_GSI;
	if (type == IB_QPT_XRC_INI && vrdma_has(dev, VIRTIO_RDMA_F_XRC) && udata)
		return VIRTIO_RDMA_QPT_XRC_INI;
	/* The core makes it, for all who share the domain. */
	if (type == IB_QPT_XRC_TGT && vrdma_has(dev, VIRTIO_RDMA_F_XRC) && !udata)
		return VIRTIO_RDMA_QPT_XRC_TGT;
	return -EOPNOTSUPP;
}

/* Whether such a queue pair has a completion queue for receives. */
static bool vrdma_qp_receives(u32 type)
{
	return type != VIRTIO_RDMA_QPT_XRC_INI &&
	       type != VIRTIO_RDMA_QPT_XRC_TGT;
}

/* The rings that it gets; one that takes receives elsewhere has none for them. */
static void vrdma_qp_caps(const struct ib_qp_init_attr *attr, u32 type,
			  struct virtio_rdma_qp_caps *caps)
{
	memset(caps, 0, sizeof(*caps));
	if (type != VIRTIO_RDMA_QPT_XRC_TGT) {
		caps->send_wr = attr->cap.max_send_wr;
		caps->send_sge = attr->cap.max_send_sge;
		caps->inline_data = attr->cap.max_inline_data;
	}
	if (vrdma_qp_receives(type) && !attr->srq) {
		caps->recv_wr = attr->cap.max_recv_wr;
		caps->recv_sge = attr->cap.max_recv_sge;
	}
}

static int vrdma_qp_create(struct vrdma_dev *dev, struct vrdma_qp *qp,
			   const struct ib_qp_init_attr *attr, u32 type,
			   const struct virtio_rdma_qp_layout *layout)
{
	struct virtio_rdma_create_qp *body;
	struct vrdma_cmd *cmd;
	size_t size = struct_size(body, page, qp->buf.num_pages);

	cmd = vrdma_cmd_alloc(dev, qp->context, VIRTIO_RDMA_CMD_CREATE_QP,
			      size, sizeof(struct virtio_rdma_handle));
	if (!cmd)
		return -ENOMEM;
	body = cmd->body;
	body->type = cpu_to_le32(type);
	if (type == VIRTIO_RDMA_QPT_XRC_TGT) {
		body->xrcd = cpu_to_le32(to_vxrcd(attr->xrcd)->handle);
	} else {
		body->pd = cpu_to_le32(to_vpd(qp->ibqp.pd)->pdn);
		body->send_cq = cpu_to_le32(to_vcq(attr->send_cq)->cqn);
	}
	if (vrdma_qp_receives(type))
		body->recv_cq = cpu_to_le32(to_vcq(attr->recv_cq)->cqn);
	if (attr->srq)
		body->srq = cpu_to_le32(to_vsrq(attr->srq)->srqn);
	if (attr->sq_sig_type == IB_SIGNAL_ALL_WR)
		body->flags |= cpu_to_le32(VIRTIO_RDMA_QP_SQ_SIG_ALL);
	if (attr->create_flags & IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK)
		body->flags |= cpu_to_le32(VIRTIO_RDMA_QP_BLOCK_LOOPBACK);
	body->sq_entries = cpu_to_le32(layout->sq_entries);
	body->sq_stride = cpu_to_le32(layout->sq_stride);
	body->rq_entries = cpu_to_le32(layout->rq_entries);
	body->rq_stride = cpu_to_le32(layout->rq_stride);
	body->max_send_sge = cpu_to_le32(qp->caps.send_sge);
	body->max_recv_sge = cpu_to_le32(qp->caps.recv_sge);
	body->max_inline = cpu_to_le32(qp->caps.inline_data);
	body->ctrl_offset = cpu_to_le64(layout->ctrl_offset);
	body->sq_offset = cpu_to_le64(layout->sq_offset);
	body->rq_offset = cpu_to_le64(layout->rq_offset);
	vrdma_buf_fill(&body->buf, &qp->buf, body->page);

	return vrdma_cmd_create(cmd, size, &qp->ibqp.qp_num);
}

static void vrdma_qp_fill_cap(const struct vrdma_qp *qp, struct ib_qp_cap *cap)
{
	cap->max_send_wr = qp->caps.send_wr;
	cap->max_recv_wr = qp->caps.recv_wr;
	cap->max_send_sge = qp->caps.send_sge;
	cap->max_recv_sge = qp->caps.recv_sge;
	cap->max_inline_data = qp->caps.inline_data;
}

int vrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr,
		    struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct virtio_rdma_qp_layout layout;
	int type, err;

	type = vrdma_qp_type(dev, attr->qp_type, udata);
	if (type < 0)
		return type;
	if (attr->create_flags &&
	    (attr->create_flags != IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK ||
	     type != VIRTIO_RDMA_QPT_UD))
		return -EOPNOTSUPP;

	vrdma_qp_caps(attr, type, &qp->caps);
	if (virtio_rdma_layout_qp(&dev->limits, &qp->caps, &layout))
		return -EINVAL;

	qp->context = vrdma_udata_context(udata);
	qp->sig_type = attr->sq_sig_type;
	qp->state = IB_QPS_RESET;

	if (udata)
		err = vrdma_qp_user_memory(dev, qp, udata, &layout);
	else
		err = vrdma_qp_kernel_memory(dev, qp, &layout);
	if (err)
		return err;

	err = vrdma_qp_create(dev, qp, attr, type, &layout);
	if (err)
		goto err_buf;
	err = vrdma_held_add(&dev->qps, ibqp->qp_num, &qp->held);
	if (err)
		goto err_qp;
	vrdma_qp_fill_cap(qp, &attr->cap);
	return 0;

err_qp:
	if (vrdma_exec_destroy(dev, qp->context, VIRTIO_RDMA_CMD_DESTROY_QP,
			       ibqp->qp_num))
		vrdma_fail(dev, "it does not destroy a new queue pair");
err_buf:
	vrdma_buf_free(dev, &qp->buf);
	return err;
}

/* Mask bits that the device knows; they are the verbs' own numbers. */
#define VRDMA_QP_MASK	(IB_QP_STATE | IB_QP_CUR_STATE |		\
			 IB_QP_EN_SQD_ASYNC_NOTIFY | IB_QP_ACCESS_FLAGS | \
			 IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY |	\
			 IB_QP_AV | IB_QP_PATH_MTU | IB_QP_TIMEOUT |	\
			 IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |		\
			 IB_QP_RQ_PSN | IB_QP_MAX_QP_RD_ATOMIC |	\
			 IB_QP_MIN_RNR_TIMER | IB_QP_SQ_PSN |		\
			 IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_DEST_QPN)

static int vrdma_fill_av(const struct rdma_ah_attr *ah,
			 struct virtio_rdma_qp_attr *wire)
{
	const struct ib_global_route *grh;

	if (ah->type != RDMA_AH_ATTR_TYPE_ROCE ||
	    !(rdma_ah_get_ah_flags(ah) & IB_AH_GRH))
		return -EINVAL;
	grh = rdma_ah_read_grh(ah);
	wire->flow_label = cpu_to_le32(grh->flow_label);
	wire->sgid_index = grh->sgid_index;
	wire->hop_limit = grh->hop_limit;
	wire->traffic_class = grh->traffic_class;
	wire->sl = rdma_ah_get_sl(ah);
	memcpy(wire->dgid, grh->dgid.raw, sizeof(wire->dgid));
	memcpy(wire->dmac, ah->roce.dmac, sizeof(wire->dmac));
	return 0;
}

/* Fields outside the mask stay zero: the caller may have left them anyhow. */
static int vrdma_fill_attr(const struct vrdma_dev *dev,
			   const struct ib_qp_attr *attr, int mask,
			   struct virtio_rdma_qp_attr *wire)
{
	wire->mask = cpu_to_le32(mask);
	if (mask & IB_QP_STATE)
		wire->state = attr->qp_state;
	if (mask & IB_QP_CUR_STATE)
		wire->cur_state = attr->cur_qp_state;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		wire->en_sqd_async = attr->en_sqd_async_notify;
	if (mask & IB_QP_ACCESS_FLAGS)
		wire->access = cpu_to_le32(attr->qp_access_flags &
					   vrdma_qp_rights(dev));
	if (mask & IB_QP_PKEY_INDEX)
		wire->pkey_index = cpu_to_le16(attr->pkey_index);
	if (mask & IB_QP_PORT)
		wire->port = attr->port_num;
	if (mask & IB_QP_QKEY)
		wire->qkey = cpu_to_le32(attr->qkey);
	if (mask & IB_QP_PATH_MTU)
		wire->path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		wire->timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		wire->retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		wire->rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		wire->rq_psn = cpu_to_le32(attr->rq_psn);
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		wire->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		wire->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_SQ_PSN)
		wire->sq_psn = cpu_to_le32(attr->sq_psn);
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		wire->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_DEST_QPN)
		wire->dest_qpn = cpu_to_le32(attr->dest_qp_num);
	if (mask & IB_QP_AV)
		return vrdma_fill_av(&attr->ah_attr, wire);
	return 0;
}

/* A kernel user's queues start over with the device's. */
static void vrdma_qp_restart(struct vrdma_qp *qp)
{
	if (!qp->ctrl)
		return;
	/* An XRC target has none. */
	if (qp->ibqp.send_cq)
		vrdma_cq_clean(to_vcq(qp->ibqp.send_cq), qp->ibqp.qp_num);
	if (qp->ibqp.recv_cq && qp->ibqp.recv_cq != qp->ibqp.send_cq)
		vrdma_cq_clean(to_vcq(qp->ibqp.recv_cq), qp->ibqp.qp_num);
	qp->sq.producer = 0;
	qp->sq.consumer = 0;
	qp->rq.producer = 0;
	qp->rq.consumer = 0;
	WRITE_ONCE(qp->ctrl->sq_producer, 0);
	WRITE_ONCE(qp->ctrl->rq_producer, 0);
}

int vrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct virtio_rdma_qp_attr wire = {
		.qpn = cpu_to_le32(ibqp->qp_num),
	};
	int err;

	if (mask & ~VRDMA_QP_MASK)
		return -EOPNOTSUPP;
	err = vrdma_fill_attr(dev, attr, mask, &wire);
	if (err)
		return err;
	err = vrdma_exec(dev, qp->context, VIRTIO_RDMA_CMD_MODIFY_QP,
			 &wire, sizeof(wire), NULL, 0);
	/* On a device that failed every queue pair is in error, and flushes. */
	if (err == -EIO && qp->ctrl && mask & IB_QP_STATE &&
	    attr->qp_state == IB_QPS_ERR)
		err = 0;
	if (err)
		return err;
	if (mask & IB_QP_STATE) {
		if (attr->qp_state == IB_QPS_RESET)
			vrdma_qp_restart(qp);
		WRITE_ONCE(qp->state, attr->qp_state);
	}
	return 0;
}

int vrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init_attr)
{
	struct vrdma_dev *dev = to_vdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	struct virtio_rdma_handle body = {
		.handle = cpu_to_le32(ibqp->qp_num),
	};
	struct virtio_rdma_qp_attr wire;
	int err;

	err = vrdma_exec(dev, qp->context, VIRTIO_RDMA_CMD_QUERY_QP,
			 &body, sizeof(body), &wire, sizeof(wire));
	if (err)
		return err;

	attr->qp_state = wire.state;
	attr->cur_qp_state = wire.state;
	attr->path_mtu = wire.path_mtu;
	attr->path_mig_state = IB_MIG_MIGRATED;
	attr->qkey = le32_to_cpu(wire.qkey);
	attr->rq_psn = le32_to_cpu(wire.rq_psn);
	attr->sq_psn = le32_to_cpu(wire.sq_psn);
	attr->dest_qp_num = le32_to_cpu(wire.dest_qpn);
	attr->qp_access_flags = le32_to_cpu(wire.access);
	attr->pkey_index = le16_to_cpu(wire.pkey_index);
	attr->en_sqd_async_notify = wire.en_sqd_async;
	attr->sq_draining = wire.sq_draining;
	attr->max_rd_atomic = wire.max_rd_atomic;
	attr->max_dest_rd_atomic = wire.max_dest_rd_atomic;
	attr->min_rnr_timer = wire.min_rnr_timer;
	attr->port_num = wire.port;
	attr->timeout = wire.timeout;
	attr->retry_cnt = wire.retry_cnt;
	attr->rnr_retry = wire.rnr_retry;

	attr->ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_grh(&attr->ah_attr, (union ib_gid *)wire.dgid,
			le32_to_cpu(wire.flow_label), wire.sgid_index,
			wire.hop_limit, wire.traffic_class);
	rdma_ah_set_sl(&attr->ah_attr, wire.sl);
	rdma_ah_set_port_num(&attr->ah_attr, VRDMA_PORT);
	memcpy(attr->ah_attr.roce.dmac, wire.dmac, sizeof(wire.dmac));

	vrdma_qp_fill_cap(qp, &attr->cap);
	init_attr->event_handler = ibqp->event_handler;
	init_attr->qp_context = ibqp->qp_context;
	init_attr->send_cq = ibqp->send_cq;
	init_attr->recv_cq = ibqp->recv_cq;
	init_attr->srq = ibqp->srq;
	init_attr->cap = attr->cap;
	init_attr->sq_sig_type = qp->sig_type;
	init_attr->qp_type = ibqp->qp_type;
	return 0;
}

int vrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibqp->device);
	struct vrdma_qp *qp = to_vqp(ibqp);
	int err;

	err = vrdma_exec_destroy(dev, qp->context, VIRTIO_RDMA_CMD_DESTROY_QP,
				 ibqp->qp_num);
	if (err)
		return err;
	vrdma_held_end(&dev->qps, ibqp->qp_num, &qp->held);
	/* A poller has it unheld, under the lock of a CQ: cleaning takes that. */
	vrdma_qp_restart(qp);
	vrdma_buf_free(dev, &qp->buf);
	return 0;
}
