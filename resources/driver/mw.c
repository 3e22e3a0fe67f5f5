// SPDX-License-Identifier: GPL-2.0
/*
 * Memory windows (docs/virtio-rdma.md, section 4.16). Processes bind them by
 * work request; here are their making and their end.
 */
#include <rdma/ib_verbs.h>

#include "vrdma.h"

int vrdma_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata)
{
	struct vrdma_mw *mw = to_vmw(ibmw);
	struct virtio_rdma_alloc_mw body = {
		.pd = cpu_to_le32(to_vpd(ibmw->pd)->pdn),
		.type = ibmw->type,
	};
	struct virtio_rdma_handle reply;
	int err;

	if (ibmw->type != IB_MW_TYPE_1 && ibmw->type != IB_MW_TYPE_2)
		return -EINVAL;
	mw->context = to_vpd(ibmw->pd)->context;
	err = vrdma_exec(to_vdev(ibmw->device), mw->context,
			 VIRTIO_RDMA_CMD_ALLOC_MW, &body, sizeof(body),
			 &reply, sizeof(reply));
	if (err)
		return err;
	mw->handle = le32_to_cpu(reply.handle);
	ibmw->rkey = mw->handle;
	return 0;
}

int vrdma_dealloc_mw(struct ib_mw *ibmw)
{
	struct vrdma_mw *mw = to_vmw(ibmw);

	return vrdma_exec_destroy(to_vdev(ibmw->device), mw->context,
				  VIRTIO_RDMA_CMD_DEALLOC_MW, mw->handle);
}
