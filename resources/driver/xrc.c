// SPDX-License-Identifier: GPL-2.0
/*
 * XRC domains (docs/virtio-rdma.md, section 4.17). Processes share them by a
 * file, which is the core's business: to the device they are the kernel's, and
 * so are the targets in them. What a process has of its own are initiators
 * (qp.c) and the shared receive queues (srq.c).
 */
#include <rdma/ib_verbs.h>

#include "vrdma.h"

int vrdma_alloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata)
{
	struct virtio_rdma_handle reply;
	int err;

	err = vrdma_exec(to_vdev(ibxrcd->device), VIRTIO_RDMA_KERNEL_CONTEXT,
			 VIRTIO_RDMA_CMD_ALLOC_XRCD, NULL, 0, &reply,
			 sizeof(reply));
	if (err)
		return err;
	to_vxrcd(ibxrcd)->handle = le32_to_cpu(reply.handle);
	return 0;
}

int vrdma_dealloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata)
{
	return vrdma_exec_destroy(to_vdev(ibxrcd->device),
				  VIRTIO_RDMA_KERNEL_CONTEXT,
				  VIRTIO_RDMA_CMD_DEALLOC_XRCD,
				  to_vxrcd(ibxrcd)->handle);
}
