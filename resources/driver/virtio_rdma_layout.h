/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */
/*
 * How this driver lays queues out in one buffer, for kernel queues and for
 * those of the provider alike; what the device accepts is in sections 4.6 and
 * 4.7 of docs/virtio-rdma.md. Pure arithmetic, no dependencies.
 */
#ifndef VIRTIO_RDMA_LAYOUT_H
#define VIRTIO_RDMA_LAYOUT_H

#include "virtio_rdma_wire.h"

/* The device's limits that a layout has to respect. */
struct virtio_rdma_limits {
	__u32	max_send_wr;
	__u32	max_recv_wr;
	__u32	max_send_sge;
	__u32	max_recv_sge;
	__u32	max_inline;
	__u32	max_sq_stride;
	__u32	max_cqe;
	__u32	max_srq_wr;
	__u32	max_srq_sge;
	__u32	reserved;
};

/* Asked for by the consumer, and afterwards what there really is. */
struct virtio_rdma_qp_caps {
	__u32	send_wr;
	__u32	recv_wr;
	__u32	send_sge;
	__u32	recv_sge;
	__u32	inline_data;
};

struct virtio_rdma_qp_layout {
	__u32	sq_entries;
	__u32	sq_stride;
	__u32	rq_entries;
	__u32	rq_stride;
	__u64	ctrl_offset;
	__u64	sq_offset;
	__u64	rq_offset;
	__u64	length;
};

struct virtio_rdma_srq_layout {
	__u32	entries;
	__u32	stride;
	__u64	ctrl_offset;
	__u64	ring_offset;
	__u64	length;
};

struct virtio_rdma_cq_layout {
	__u32	entries;
	__u32	reserved;
	__u64	ctrl_offset;
	__u64	ring_offset;
	__u64	length;
};

/* Smallest power of two that is not below value; value is at most 2^31. */
static inline __u32 virtio_rdma_pow2(__u32 value)
{
	__u32 pow2 = 1;

	while (pow2 < value)
		pow2 <<= 1;
	return pow2;
}

static inline __u64 virtio_rdma_align(__u64 value, __u64 to)
{
	return (value + to - 1) & ~(to - 1);
}

static inline __u32 virtio_rdma_min(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

/*
 * Fills caps with what the rounding makes available. Returns 0, or -1 when
 * more was asked than the device has.
 */
static inline int virtio_rdma_layout_qp(const struct virtio_rdma_limits *limits,
					struct virtio_rdma_qp_caps *caps,
					struct virtio_rdma_qp_layout *layout)
{
	const __u32 send_hdr = sizeof(struct virtio_rdma_send_wqe);
	const __u32 recv_hdr = sizeof(struct virtio_rdma_recv_wqe);
	const __u32 sge = sizeof(struct virtio_rdma_sge);
	__u32 extra;

	if (caps->send_wr > limits->max_send_wr ||
	    caps->recv_wr > limits->max_recv_wr ||
	    caps->send_sge > limits->max_send_sge ||
	    caps->recv_sge > limits->max_recv_sge ||
	    caps->inline_data > limits->max_inline)
		return -1;

	layout->ctrl_offset = 0;
	layout->length = sizeof(struct virtio_rdma_qp_ctrl);

	/* A stride is valid for an absent queue too: the device checks it. */
	layout->sq_entries = caps->send_wr ? virtio_rdma_pow2(caps->send_wr) : 0;
	extra = caps->send_sge * sge;
	if (extra < caps->inline_data)
		extra = caps->inline_data;
	layout->sq_stride = virtio_rdma_pow2(send_hdr + extra);
	if (layout->sq_stride > limits->max_sq_stride)
		return -1;
	layout->sq_offset = virtio_rdma_align(layout->length, layout->sq_stride);
	layout->length = layout->sq_offset +
			 (__u64)layout->sq_entries * layout->sq_stride;

	layout->rq_entries = caps->recv_wr ? virtio_rdma_pow2(caps->recv_wr) : 0;
	layout->rq_stride = virtio_rdma_pow2(recv_hdr + caps->recv_sge * sge);
	if (layout->rq_stride > 1024)
		return -1;
	layout->rq_offset = virtio_rdma_align(layout->length, layout->rq_stride);
	layout->length = layout->rq_offset +
			 (__u64)layout->rq_entries * layout->rq_stride;
	layout->length = virtio_rdma_align(layout->length,
					   VIRTIO_RDMA_PAGE_SIZE);

	caps->send_wr = layout->sq_entries;
	caps->recv_wr = layout->rq_entries;
	extra = layout->sq_stride - send_hdr;
	caps->send_sge = virtio_rdma_min(extra / sge, limits->max_send_sge);
	caps->inline_data = virtio_rdma_min(extra, limits->max_inline);
	caps->recv_sge = virtio_rdma_min((layout->rq_stride - recv_hdr) / sge,
					 limits->max_recv_sge);
	return 0;
}

/* Returns 0, or -1 when cqe is 0 or more than the device has. */
static inline int virtio_rdma_layout_cq(const struct virtio_rdma_limits *limits,
					__u32 cqe,
					struct virtio_rdma_cq_layout *layout)
{
	if (!cqe || cqe > limits->max_cqe)
		return -1;

	layout->entries = virtio_rdma_pow2(cqe);
	layout->reserved = 0;
	layout->ctrl_offset = 0;
	layout->ring_offset = sizeof(struct virtio_rdma_cq_ctrl);
	layout->length = layout->ring_offset +
			 (__u64)layout->entries * sizeof(struct virtio_rdma_cqe);
	layout->length = virtio_rdma_align(layout->length,
					   VIRTIO_RDMA_PAGE_SIZE);
	return 0;
}

/*
 * Fills max_sge with what the rounding makes available, from which the same
 * stride follows. Returns 0, or -1 when wr is 0 or more was asked than the
 * device has.
 */
static inline int virtio_rdma_layout_srq(const struct virtio_rdma_limits *limits,
					 __u32 wr, __u32 *max_sge,
					 struct virtio_rdma_srq_layout *layout)
{
	const __u32 recv_hdr = sizeof(struct virtio_rdma_recv_wqe);
	const __u32 sge = sizeof(struct virtio_rdma_sge);

	if (!wr || wr > limits->max_srq_wr || *max_sge > limits->max_srq_sge)
		return -1;

	layout->entries = virtio_rdma_pow2(wr);
	layout->stride = virtio_rdma_pow2(recv_hdr + *max_sge * sge);
	if (layout->stride > 1024)
		return -1;
	layout->ctrl_offset = 0;
	layout->ring_offset = virtio_rdma_align(sizeof(struct virtio_rdma_srq_ctrl),
						layout->stride);
	layout->length = layout->ring_offset +
			 (__u64)layout->entries * layout->stride;
	layout->length = virtio_rdma_align(layout->length,
					   VIRTIO_RDMA_PAGE_SIZE);
	*max_sge = virtio_rdma_min((layout->stride - recv_hdr) / sge,
				   limits->max_srq_sge);
	return 0;
}

/* Phase word that makes CQE number index (free-running) valid: section 7. */
static inline __u32 virtio_rdma_phase(__u32 index, __u32 entries)
{
	return (index / entries + 1) & VIRTIO_RDMA_CQE_PHASE;
}

#endif /* VIRTIO_RDMA_LAYOUT_H */
