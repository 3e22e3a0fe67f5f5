// SPDX-License-Identifier: GPL-2.0
/* Queries of device and port, the GID table, counters. */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "vrdma.h"

/*
 * Whatever the device claims, sizes that are computed from its limits stay
 * within these, and within 32 bits.
 */
#define VRDMA_CAP_WR		(1U << 20)
#define VRDMA_CAP_CQE		(1U << 24)
#define VRDMA_CAP_SGE		1024U
#define VRDMA_CAP_CMD_BYTES	(64U << 10)

static u32 vrdma_cap(__le32 value, u32 cap)
{
	return min(le32_to_cpu(value), cap);
}

static int vrdma_query_port_attr(struct vrdma_dev *dev,
				 struct virtio_rdma_port_attr *attr)
{
	struct virtio_rdma_port body = { .port = cpu_to_le32(VRDMA_PORT) };

	return vrdma_exec(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			  VIRTIO_RDMA_CMD_QUERY_PORT, &body, sizeof(body),
			  attr, sizeof(*attr));
}

/* Asked once, at probe. */
int vrdma_query_attr(struct vrdma_dev *dev)
{
	struct virtio_rdma_device_attr *attr = &dev->attr;
	struct virtio_rdma_limits *limits = &dev->limits;
	struct virtio_rdma_port_attr port;
	int err;

	err = vrdma_exec(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			 VIRTIO_RDMA_CMD_QUERY_DEVICE, NULL, 0,
			 attr, sizeof(*attr));
	if (err)
		return err;
	err = vrdma_query_port_attr(dev, &port);
	if (err)
		return err;

	limits->max_send_wr = vrdma_cap(attr->max_send_wr, VRDMA_CAP_WR);
	limits->max_recv_wr = vrdma_cap(attr->max_recv_wr, VRDMA_CAP_WR);
	limits->max_send_sge = vrdma_cap(attr->max_send_sge, VRDMA_CAP_SGE);
	limits->max_recv_sge = vrdma_cap(attr->max_recv_sge, VRDMA_CAP_SGE);
	limits->max_inline = vrdma_cap(attr->max_inline, VIRTIO_RDMA_PAGE_SIZE);
	limits->max_sq_stride = vrdma_cap(attr->max_sq_stride,
					  VIRTIO_RDMA_PAGE_SIZE);
	limits->max_cqe = vrdma_cap(attr->max_cqe, VRDMA_CAP_CQE);
	limits->max_srq_wr = vrdma_cap(attr->max_srq_wr, VRDMA_CAP_WR);
	limits->max_srq_sge = vrdma_cap(attr->max_srq_sge, VRDMA_CAP_SGE);
	dev->max_cmd_bytes = vrdma_cap(attr->max_cmd_bytes, VRDMA_CAP_CMD_BYTES);
	/* sgid_index is a byte. */
	dev->gid_table_len = vrdma_cap(port.gid_table_len, 256);

	if (dev->max_cmd_bytes < 1024 ||
	    !(le64_to_cpu(attr->page_size_cap) & PAGE_SIZE)) {
		dev_err(&dev->vdev->dev,
			"limits of no use: commands of %u bytes, page sizes %#llx\n",
			dev->max_cmd_bytes, le64_to_cpu(attr->page_size_cap));
		return -EINVAL;
	}
	return 0;
}

static int vrdma_query_clock(struct vrdma_dev *dev, __u64 *clock)
{
	struct virtio_rdma_clock reply;
	int err;

	err = vrdma_exec(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			 VIRTIO_RDMA_CMD_QUERY_CLOCK, NULL, 0, &reply,
			 sizeof(reply));
	if (!err)
		*clock = le64_to_cpu(reply.nanoseconds);
	return err;
}

int vrdma_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
		       struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibdev);
	const struct virtio_rdma_device_attr *wire = &dev->attr;
	const struct virtio_rdma_limits *limits = &dev->limits;
	struct virtio_rdma_uresp_query_device resp;
	int err;

	if (udata->inlen ||
	    (udata->outlen && udata->outlen < sizeof(resp)))
		return -EINVAL;

	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = le64_to_cpu(wire->fw_version);
	memcpy(&attr->sys_image_guid, wire->sys_image_guid,
	       sizeof(attr->sys_image_guid));
	attr->max_mr_size = le64_to_cpu(wire->max_mr_size);
	attr->page_size_cap = le64_to_cpu(wire->page_size_cap);
	attr->vendor_id = le32_to_cpu(wire->vendor_id);
	attr->vendor_part_id = le32_to_cpu(wire->vendor_part_id);
	attr->hw_ver = le32_to_cpu(wire->hw_version);
	attr->device_cap_flags = IB_DEVICE_CURR_QP_STATE_MOD |
				 IB_DEVICE_PORT_ACTIVE_EVENT |
				 IB_DEVICE_SYS_IMAGE_GUID |
				 IB_DEVICE_RC_RNR_NAK_GEN;
	if (vrdma_has(dev, VIRTIO_RDMA_F_FRWR)) {
		/* What else that flag promises comes with FRWR and DMA_MR. */
		if (vrdma_has(dev, VIRTIO_RDMA_F_DMA_MR))
			attr->device_cap_flags |= IB_DEVICE_MEM_MGT_EXTENSIONS;
		attr->max_fast_reg_page_list_len =
			vrdma_cap(wire->max_fast_reg_pages, INT_MAX);
	}
	if (vrdma_has(dev, VIRTIO_RDMA_F_MW)) {
		attr->device_cap_flags |= IB_DEVICE_MEM_WINDOW |
					  IB_DEVICE_MEM_WINDOW_TYPE_2B;
		attr->max_mw = vrdma_cap(wire->max_mw, INT_MAX);
	}
	if (vrdma_has(dev, VIRTIO_RDMA_F_UD))
		attr->kernel_cap_flags |= IBK_BLOCK_MULTICAST_LOOPBACK;
	if (vrdma_has(dev, VIRTIO_RDMA_F_ATOMIC_WRITE))
		attr->device_cap_flags |= IB_DEVICE_ATOMIC_WRITE;
	if (vrdma_has(dev, VIRTIO_RDMA_F_FLUSH))
		attr->device_cap_flags |= IB_DEVICE_FLUSH_GLOBAL;
	attr->max_pd = vrdma_cap(wire->max_pd, INT_MAX);
	attr->max_mr = vrdma_cap(wire->max_mr, INT_MAX);
	attr->max_cq = vrdma_cap(wire->max_cq, INT_MAX);
	attr->max_cqe = limits->max_cqe;
	attr->max_qp = vrdma_cap(wire->max_qp, INT_MAX);
	attr->max_qp_wr = min(limits->max_send_wr, limits->max_recv_wr);
	attr->max_send_sge = limits->max_send_sge;
	attr->max_recv_sge = limits->max_recv_sge;
	attr->max_sge_rd = limits->max_send_sge;
	attr->max_qp_rd_atom = vrdma_cap(wire->max_rd_atomic, 255);
	attr->max_qp_init_rd_atom = vrdma_cap(wire->max_init_rd_atomic, 255);
	attr->max_res_rd_atom = min_t(u64, (u64)attr->max_qp_rd_atom *
					   attr->max_qp, INT_MAX);
	attr->atomic_cap = vrdma_has(dev, VIRTIO_RDMA_F_ATOMICS) ?
			   IB_ATOMIC_GLOB : IB_ATOMIC_NONE;
	attr->max_ah = vrdma_cap(wire->max_ah, INT_MAX);
	attr->max_mcast_grp = vrdma_cap(wire->max_mcast_grp, 1U << 15);
	attr->max_mcast_qp_attach = vrdma_cap(wire->max_mcast_qp, 1U << 15);
	attr->max_total_mcast_qp_attach = attr->max_mcast_grp *
					  attr->max_mcast_qp_attach;
	if (vrdma_has(dev, VIRTIO_RDMA_F_SRQ)) {
		attr->device_cap_flags |= IB_DEVICE_SRQ_RESIZE;
		attr->max_srq = vrdma_cap(wire->max_srq, INT_MAX);
		attr->max_srq_wr = limits->max_srq_wr;
		attr->max_srq_sge = limits->max_srq_sge;
	}
	if (vrdma_has(dev, VIRTIO_RDMA_F_XRC))
		attr->device_cap_flags |= IB_DEVICE_XRC;
	attr->max_pkeys = 1;
	attr->local_ca_ack_delay = vrdma_cap(wire->ack_delay, 31);
	/* In kHz: the device counts nanoseconds. */
	attr->hca_core_clock = 1000000;
	attr->timestamp_mask = U64_MAX;
	if (vrdma_has(dev, VIRTIO_RDMA_F_CQ_RESIZE)) {
		attr->cq_caps.max_cq_moderation_count = U16_MAX;
		attr->cq_caps.max_cq_moderation_period = U16_MAX;
	}
	if (!udata->outlen)
		return 0;
	err = vrdma_query_clock(dev, &resp.clock);
	if (err)
		return err;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

void vrdma_get_fw_str(struct ib_device *ibdev, char *str)
{
	u64 version = le64_to_cpu(to_vdev(ibdev)->attr.fw_version);

	snprintf(str, IB_FW_VERSION_NAME_MAX, "%llu.%llu.%llu", version >> 32,
		 (version >> 16) & 0xffff, version & 0xffff);
}

/*
 * MAD and CM need a GSI queue pair, and memory for the kernel to use with it;
 * without them there is RoCE v2 with neither.
 */
static bool vrdma_has_gsi(const struct vrdma_dev *dev)
{
	return vrdma_has(dev, VIRTIO_RDMA_F_UD) &&
	       vrdma_has(dev, VIRTIO_RDMA_F_DMA_MR);
}

/* Those that the device does not have are left as they are. */
static int vrdma_query_counters(struct vrdma_dev *dev, u64 *values)
{
	/* Room for counters that a later device may have. */
	const u32 room = 4 * VIRTIO_RDMA_NUM_COUNTERS;
	struct virtio_rdma_counters *reply;
	struct vrdma_cmd *cmd;
	u32 i, count;
	int err;

	cmd = vrdma_cmd_alloc(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			      VIRTIO_RDMA_CMD_QUERY_COUNTERS, 0,
			      struct_size(reply, value, room));
	if (!cmd)
		return -ENOMEM;
	err = vrdma_cmd_run(cmd, 0);
	if (err)
		goto out;
	reply = cmd->reply_body;
	count = min_t(u32, le32_to_cpu(reply->count), VIRTIO_RDMA_NUM_COUNTERS);
	if (cmd->used < sizeof(*cmd->reply) + struct_size(reply, value, count)) {
		err = -EIO;
		goto out;
	}
	for (i = 0; i < count; i++)
		values[i] = le64_to_cpu(reply->value[i]);
out:
	vrdma_cmd_free(cmd);
	return err;
}

int vrdma_query_port(struct ib_device *ibdev, u32 port,
		     struct ib_port_attr *attr)
{
	u64 counters[VIRTIO_RDMA_NUM_COUNTERS] = {};
	struct vrdma_dev *dev = to_vdev(ibdev);
	struct virtio_rdma_port_attr wire;
	struct net_device *netdev;
	enum ib_mtu mtu;
	int err;

	err = vrdma_query_port_attr(dev, &wire);
	if (err)
		return err;
	err = vrdma_query_counters(dev, counters);
	if (err)
		return err;
	/* InfiniBand counts them in 16 bits, and stops there. */
	attr->qkey_viol_cntr = min_t(u64, U16_MAX,
				     counters[VIRTIO_RDMA_CNT_QKEY_ERRORS]);

	attr->ip_gids = true;
	if (vrdma_has_gsi(dev))
		attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->gid_tbl_len = dev->gid_table_len;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = le32_to_cpu(wire.max_msg_size);
	attr->max_vl_num = 1;
	attr->active_width = wire.active_width;
	attr->active_speed = wire.active_speed;
	attr->max_mtu = clamp_t(int, wire.max_mtu, IB_MTU_256, IB_MTU_4096);
	attr->active_mtu = attr->max_mtu;
	attr->state = IB_PORT_DOWN;
	attr->phys_state = IB_PORT_PHYS_STATE_DISABLED;

	netdev = vrdma_netdev_get(dev);
	if (!netdev)
		return 0;
	/* Smaller than the least that InfiniBand knows is 0 here. */
	mtu = iboe_get_mtu(READ_ONCE(netdev->mtu));
	if (mtu)
		attr->active_mtu = min(mtu, attr->max_mtu);
	if (wire.state == IB_PORT_ACTIVE && netif_running(netdev) &&
	    netif_carrier_ok(netdev)) {
		attr->state = IB_PORT_ACTIVE;
		attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	}
	dev_put(netdev);
	return 0;
}

int vrdma_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

int vrdma_get_port_immutable(struct ib_device *ibdev, u32 port,
			     struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP |
				    RDMA_CORE_CAP_ETH_AH;
	if (vrdma_has_gsi(to_vdev(ibdev))) {
		immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
		immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	}
	immutable->gid_tbl_len = to_vdev(ibdev)->gid_table_len;
	immutable->pkey_tbl_len = 1;
	return 0;
}

enum rdma_link_layer vrdma_get_link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

int vrdma_add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct vrdma_dev *dev = to_vdev(attr->device);
	struct virtio_rdma_add_gid body = {
		.index = cpu_to_le32(attr->index),
		.type = VIRTIO_RDMA_GID_ROCE_V2,
	};
	u16 vlan = VIRTIO_RDMA_NO_VLAN;

	if (attr->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
		return -EOPNOTSUPP;
	if (rdma_read_gid_l2_fields(attr, &vlan, body.mac))
		ether_addr_copy(body.mac, dev->mac);
	body.vlan = cpu_to_le16(vlan);
	memcpy(body.gid, attr->gid.raw, sizeof(body.gid));
	return vrdma_exec(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			  VIRTIO_RDMA_CMD_ADD_GID, &body, sizeof(body),
			  NULL, 0);
}

int vrdma_del_gid(const struct ib_gid_attr *attr, void **context)
{
	return vrdma_exec_destroy(to_vdev(attr->device),
				  VIRTIO_RDMA_KERNEL_CONTEXT,
				  VIRTIO_RDMA_CMD_DEL_GID, attr->index);
}

static const struct rdma_stat_desc vrdma_stats[VIRTIO_RDMA_NUM_COUNTERS] = {
	[VIRTIO_RDMA_CNT_TX_MESSAGES].name = "tx_messages",
	[VIRTIO_RDMA_CNT_TX_BYTES].name = "tx_bytes",
	[VIRTIO_RDMA_CNT_RX_MESSAGES].name = "rx_messages",
	[VIRTIO_RDMA_CNT_RX_BYTES].name = "rx_bytes",
	[VIRTIO_RDMA_CNT_COMPLETIONS].name = "completions",
	[VIRTIO_RDMA_CNT_RNR_NAK_SENT].name = "rnr_nak_sent",
	[VIRTIO_RDMA_CNT_RNR_NAK_RECEIVED].name = "rnr_nak_received",
	[VIRTIO_RDMA_CNT_RETRIES].name = "retries",
	[VIRTIO_RDMA_CNT_TIMEOUTS].name = "timeouts",
	[VIRTIO_RDMA_CNT_ACCESS_ERRORS].name = "access_errors",
	[VIRTIO_RDMA_CNT_CQ_OVERFLOWS].name = "cq_overflows",
	[VIRTIO_RDMA_CNT_FLUSHED].name = "flushed",
	[VIRTIO_RDMA_CNT_RX_DISCARDED].name = "rx_discarded",
	[VIRTIO_RDMA_CNT_LOST].name = "lost",
	[VIRTIO_RDMA_CNT_TX_DISCARDED].name = "tx_discarded",
	[VIRTIO_RDMA_CNT_QKEY_ERRORS].name = "qkey_errors",
};

struct rdma_hw_stats *vrdma_alloc_hw_stats(struct ib_device *ibdev, u32 port)
{
	return rdma_alloc_hw_stats_struct(vrdma_stats, ARRAY_SIZE(vrdma_stats),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

int vrdma_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
		       u32 port, int index)
{
	return vrdma_query_counters(to_vdev(ibdev), stats->value) ?:
	       stats->num_counters;
}
