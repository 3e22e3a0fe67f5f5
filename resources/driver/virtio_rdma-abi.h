/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */
/*
 * What the rdma-core provider and the kernel driver say to each other beside
 * the verbs' own structures. A field is only ever added at the end, and the
 * driver answers as much as the provider has room for.
 */
#ifndef VIRTIO_RDMA_ABI_H
#define VIRTIO_RDMA_ABI_H

#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>

#include "virtio_rdma_layout.h"

#define VIRTIO_RDMA_UVERBS_ABI_VERSION	1

/* features: the negotiated feature bits 0 to 31. */
struct virtio_rdma_uresp_alloc_ucontext {
	__aligned_u64			doorbell_key;
	__u32				doorbell_length;
	__u32				features;
	struct virtio_rdma_limits	limits;
};

/* The same of a context that exists, from UVERBS_METHOD_QUERY_CONTEXT. */
enum virtio_rdma_query_context_attrs {
	VIRTIO_RDMA_ATTR_QUERY_CONTEXT_RESP = (1U << UVERBS_ID_NS_SHIFT),
};

/* clock: nanoseconds of the device's clock while the query was answered. */
struct virtio_rdma_uresp_query_device {
	__aligned_u64			clock;
};

/* Of RESIZE_CQ as well. */
struct virtio_rdma_ureq_create_cq {
	__aligned_u64			buf_addr;
	struct virtio_rdma_cq_layout	layout;
};

struct virtio_rdma_uresp_create_cq {
	__u32	cqn;
	__u32	reserved;
};

/* Of create_srq, and of modify_srq with another size. */
struct virtio_rdma_ureq_srq {
	__aligned_u64			buf_addr;
	struct virtio_rdma_srq_layout	layout;
};

struct virtio_rdma_ureq_create_qp {
	__aligned_u64			buf_addr;
	struct virtio_rdma_qp_layout	layout;
};

#endif /* VIRTIO_RDMA_ABI_H */
