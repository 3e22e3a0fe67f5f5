// SPDX-License-Identifier: GPL-2.0
/*
 * Address handles and multicast groups. An address handle is nothing to the
 * device: every datagram's WQE carries the address (docs/virtio-rdma.md,
 * section 5), so that one can be made where nobody may wait for a command.
 */
#include <rdma/ib_verbs.h>

#include "vrdma.h"

/* The core holds the source GID's slot as long as the handle lives. */
int vrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init_attr,
		    struct ib_udata *udata)
{
	const struct rdma_ah_attr *attr = init_attr->ah_attr;
	struct virtio_rdma_av *av = &to_vah(ibah)->av;
	const struct ib_global_route *grh;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE ||
	    !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return -EINVAL;
	grh = rdma_ah_read_grh(attr);
	memcpy(av->dgid, grh->dgid.raw, sizeof(av->dgid));
	av->flow_label = cpu_to_le32(grh->flow_label);
	av->sgid_index = grh->sgid_index;
	av->hop_limit = grh->hop_limit;
	av->traffic_class = grh->traffic_class;
	av->sl = rdma_ah_get_sl(attr);
	return 0;
}

int vrdma_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	return 0;
}

static int vrdma_mcast(struct ib_qp *ibqp, enum virtio_rdma_opcode opcode,
		       const union ib_gid *gid)
{
	struct virtio_rdma_mcast body = {
		.qpn = cpu_to_le32(ibqp->qp_num),
	};

	memcpy(body.gid, gid->raw, sizeof(body.gid));
	return vrdma_exec(to_vdev(ibqp->device), to_vqp(ibqp)->context, opcode,
			  &body, sizeof(body), NULL, 0);
}

int vrdma_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	return vrdma_mcast(ibqp, VIRTIO_RDMA_CMD_ATTACH_MCAST, gid);
}

/* As for every end of use, a device that failed has let go of the group. */
int vrdma_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	int err = vrdma_mcast(ibqp, VIRTIO_RDMA_CMD_DETACH_MCAST, gid);

	return READ_ONCE(to_vdev(ibqp->device)->failed) ? 0 : err;
}
