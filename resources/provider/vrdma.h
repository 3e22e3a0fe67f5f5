/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * rdma-core provider of virtio-rdma. Queues are rings in this process's memory
 * that the device reads and writes; they, and the doorbell page, are specified
 * in docs/virtio-rdma.md, sections 5 to 7.
 *
 * main.c	device and context, protection domains, memory regions
 * buf.c	memory of rings; queue pairs by number
 * cq.c		completion queues
 * qp.c		queue pairs
 * ah.c		address handles
 * post.c	posting
 */
#ifndef VRDMA_H
#define VRDMA_H

#include <endian.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/driver.h>
#include <util/compiler.h>
#include <util/util.h>

#include "virtio_rdma-abi.h"

/* Queue pair numbers have 24 bits: a table of tables of half of them each. */
#define VRDMA_QP_TABLE_BITS	12
#define VRDMA_QP_TABLE_SIZE	(1 << VRDMA_QP_TABLE_BITS)
#define VRDMA_QP_TABLE_MASK	(VRDMA_QP_TABLE_SIZE - 1)

struct vrdma_qp;

struct vrdma_device {
	struct verbs_device ibv_dev;
};

struct vrdma_qp_table {
	struct vrdma_qp **qps;
	unsigned int used;
};

struct vrdma_context {
	struct verbs_context ibv_ctx;
	void *doorbell;
	size_t doorbell_length;
	uint32_t features;
	struct virtio_rdma_limits limits;
	pthread_mutex_t qp_lock;	/* changes of the table */
	struct vrdma_qp_table qp_table[VRDMA_QP_TABLE_SIZE];
};

struct vrdma_buf {
	void *addr;
	size_t length;
};

struct vrdma_cq {
	struct ibv_cq ibv_cq;
	pthread_spinlock_t lock;
	struct virtio_rdma_cq_ctrl *ctrl;
	struct virtio_rdma_cqe *ring;
	uint32_t entries;
	uint32_t consumer;
	uint32_t sequence;
	uint32_t armed;		/* kind under this sequence, 0 none */
	uint32_t cqn;
	struct vrdma_buf buf;
};

struct vrdma_wq {
	pthread_spinlock_t lock;
	void *ring;
	uint32_t entries;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t producer;
	_Atomic(uint32_t) consumer;	/* moved by whoever polls the CQ */
};

struct vrdma_qp {
	struct ibv_qp ibv_qp;
	struct virtio_rdma_qp_ctrl *ctrl;
	struct vrdma_wq sq;
	struct vrdma_wq rq;
	uint32_t max_inline;
	bool atomics;
	bool windows;
	bool invalidates;
	void *doorbell;
	struct vrdma_buf buf;
};

struct vrdma_ah {
	struct ibv_ah ibv_ah;
	struct virtio_rdma_av av;
};

static inline struct vrdma_context *to_vctx(struct ibv_context *ibv_ctx)
{
	return container_of(ibv_ctx, struct vrdma_context, ibv_ctx.context);
}

static inline struct vrdma_cq *to_vcq(struct ibv_cq *ibv_cq)
{
	return container_of(ibv_cq, struct vrdma_cq, ibv_cq);
}

static inline struct vrdma_qp *to_vqp(struct ibv_qp *ibv_qp)
{
	return container_of(ibv_qp, struct vrdma_qp, ibv_qp);
}

static inline struct vrdma_ah *to_vah(struct ibv_ah *ibv_ah)
{
	return container_of(ibv_ah, struct vrdma_ah, ibv_ah);
}

/*
 * Words shared with the device. It is another processor of the same machine,
 * so the language's own ordering is what is needed.
 */
static inline void vrdma_store_release(__le32 *word, uint32_t value)
{
	atomic_store_explicit((_Atomic(__le32) *)word, htole32(value),
			      memory_order_release);
}

static inline void vrdma_store(__le32 *word, uint32_t value)
{
	atomic_store_explicit((_Atomic(__le32) *)word, htole32(value),
			      memory_order_relaxed);
}

static inline uint32_t vrdma_load_acquire(const __le32 *word)
{
	return le32toh(atomic_load_explicit((const _Atomic(__le32) *)word,
					    memory_order_acquire));
}

static inline uint32_t vrdma_load(const __le32 *word)
{
	return le32toh(atomic_load_explicit((const _Atomic(__le32) *)word,
					    memory_order_relaxed));
}

/* What was stored before is seen before what is loaded after. */
static inline void vrdma_fence(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/* buf.c */
int vrdma_buf_alloc(struct vrdma_buf *buf, size_t length);
void vrdma_buf_free(struct vrdma_buf *buf);
int vrdma_qp_table_add(struct vrdma_context *ctx, struct vrdma_qp *qp);
void vrdma_qp_table_remove(struct vrdma_context *ctx, uint32_t qpn);
struct vrdma_qp *vrdma_qp_table_find(struct vrdma_context *ctx, uint32_t qpn);

/* cq.c */
struct ibv_cq *vrdma_create_cq(struct ibv_context *ibv_ctx, int cqe,
			       struct ibv_comp_channel *channel,
			       int comp_vector);
int vrdma_destroy_cq(struct ibv_cq *ibv_cq);
int vrdma_poll_cq(struct ibv_cq *ibv_cq, int num_entries, struct ibv_wc *wc);
int vrdma_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only);
void vrdma_cq_event(struct ibv_cq *ibv_cq);
void vrdma_cq_clean(struct vrdma_cq *cq, uint32_t qpn);

/* qp.c */
struct ibv_qp *vrdma_create_qp(struct ibv_pd *pd,
			       struct ibv_qp_init_attr *attr);
int vrdma_modify_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask);
int vrdma_query_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask,
		   struct ibv_qp_init_attr *init_attr);
int vrdma_destroy_qp(struct ibv_qp *ibv_qp);

/* mw.c */
struct ibv_mw *vrdma_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vrdma_dealloc_mw(struct ibv_mw *mw);
int vrdma_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw,
		  struct ibv_mw_bind *bind);
void vrdma_fill_bind(struct virtio_rdma_send_wqe *wqe, uint32_t rkey,
		     const struct ibv_mw_bind_info *info);

/* ah.c */
struct ibv_ah *vrdma_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int vrdma_destroy_ah(struct ibv_ah *ibv_ah);

/* post.c */
int vrdma_wq_init(struct vrdma_wq *wq, void *ring, uint32_t entries,
		  uint32_t stride, uint32_t max_sge);
void vrdma_wq_destroy(struct vrdma_wq *wq);
int vrdma_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad_wr);
int vrdma_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad_wr);

#endif /* VRDMA_H */
