/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * rdma-core provider of virtio-rdma. Queues are rings in this process's memory
 * that the device reads and writes; they, and the doorbell page, are specified
 * in docs/virtio-rdma.md, sections 5 to 7.
 *
 * main.c	device and context, memory regions
 * pd.c		protection domains, parent domains, thread domains
 * buf.c	memory of rings; queue pairs by number
 * cq.c		completion queues
 * poll.c	polling them, ibv_poll_cq and ibv_start_poll
 * clock.c	the device's clock
 * qp.c		queue pairs
 * srq.c	shared receive queues
 * xrc.c	XRC domains, the targets in them
 * ah.c		address handles
 * post.c	posting, ibv_post_send and ibv_post_recv
 * wr.c		posting with ibv_wr_*
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

#include <rdma/virtio_rdma-abi.h>

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

struct vrdma_td {
	struct ibv_td ibv_td;
	atomic_uint users;	/* parent domains */
};

/* A protection domain, or a parent domain, which stands for one. */
struct vrdma_pd {
	struct ibv_pd ibv_pd;
	atomic_uint users;	/* parent domains; of one, its objects */

	/* Of a parent domain. */
	struct vrdma_pd *of;
	struct vrdma_td *td;
	void *(*alloc)(struct ibv_pd *pd, void *context, size_t size,
		       size_t alignment, uint64_t resource_type);
	void (*free)(struct ibv_pd *pd, void *context, void *ptr,
		     uint64_t resource_type);
	void *context;
};

/* What a parent domain's allocator is told that the memory is for. */
#define VRDMA_RES_TYPE(n) (((uint64_t)RDMA_DRIVER_UNKNOWN << 32) | (n))

enum vrdma_res_type {
	VRDMA_RES_TYPE_QP = 1,
	VRDMA_RES_TYPE_CQ = 2,
	VRDMA_RES_TYPE_SRQ = 3,
};

struct vrdma_buf {
	void *addr;
	size_t length;
	struct vrdma_pd *pd;		/* whose allocator gave it, or NULL */
	enum vrdma_res_type type;
};

/* The first member of a verbs_cq is the ibv_cq, and of a verbs_qp the ibv_qp. */
struct vrdma_cq {
	union {
		struct verbs_cq verbs_cq;
		struct ibv_cq ibv_cq;
	};
	struct vrdma_pd *parent;	/* parent domain, or NULL */
	bool single_threaded;
	pthread_spinlock_t lock;
	struct virtio_rdma_cq_ctrl *ctrl;
	struct virtio_rdma_cqe *ring;
	uint32_t entries;
	uint32_t consumer;
	uint32_t sequence;
	uint32_t armed;		/* kind under this sequence, 0 none */
	uint32_t cqn;
	struct vrdma_buf buf;

	/* Between ibv_start_poll and ibv_end_poll, with the lock held. */
	const struct virtio_rdma_cqe *current;
	struct vrdma_qp *current_qp;

	/* Wall clock less device clock, and when that was found out. */
	bool wallclock;
	int64_t wall_offset;
	uint64_t wall_checked;
};

struct vrdma_wq {
	pthread_spinlock_t lock;
	bool single_threaded;
	void *ring;
	uint32_t entries;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t producer;
	_Atomic(uint32_t) consumer;	/* moved by whoever polls the CQ */
};

struct vrdma_srq {
	struct verbs_srq vsrq;
	struct vrdma_pd *parent;	/* parent domain, or NULL */
	pthread_spinlock_t lock;
	struct virtio_rdma_srq_ctrl *ctrl;
	void *ring;
	uint32_t entries;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t producer;
	uint32_t consumer;	/* the device's, as last read */
	struct vrdma_buf buf;
};

/* Of an XRC target only the number and the state: ctrl is NULL. */
struct vrdma_qp {
	union {
		struct verbs_qp verbs_qp;
		struct ibv_qp ibv_qp;
	};
	struct vrdma_pd *parent;	/* parent domain, or NULL */
	struct virtio_rdma_qp_ctrl *ctrl;
	struct vrdma_wq sq;
	struct vrdma_wq rq;
	uint32_t max_inline;
	bool receives;		/* of its own */
	bool atomics;
	bool windows;
	bool invalidates;
	bool writes_words;	/* IBV_WR_ATOMIC_WRITE */
	bool flushes;
	void *doorbell;
	struct vrdma_buf buf;

	/* Between ibv_wr_start and ibv_wr_complete, with the SQ's lock held. */
	struct virtio_rdma_send_wqe *wr;	/* NULL after an error */
	uint32_t wr_producer;
	int wr_error;
};

struct vrdma_ah {
	struct ibv_ah ibv_ah;
	struct virtio_rdma_av av;
};

static inline struct vrdma_context *to_vctx(struct ibv_context *ibv_ctx)
{
	return container_of(ibv_ctx, struct vrdma_context, ibv_ctx.context);
}

static inline struct vrdma_pd *to_vpd(struct ibv_pd *ibv_pd)
{
	return container_of(ibv_pd, struct vrdma_pd, ibv_pd);
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

/* The parent domain that this is, or NULL. */
static inline struct vrdma_pd *vrdma_parent(struct ibv_pd *ibv_pd)
{
	return ibv_pd && to_vpd(ibv_pd)->of ? to_vpd(ibv_pd) : NULL;
}

static inline bool vrdma_single_threaded(const struct vrdma_pd *parent)
{
	return parent && parent->td;
}

/* A parent domain, if it is one, stays as long as its objects. */
static inline void vrdma_parent_hold(struct vrdma_pd *parent)
{
	if (parent)
		atomic_fetch_add(&parent->users, 1);
}

static inline void vrdma_parent_release(struct vrdma_pd *parent)
{
	if (parent)
		atomic_fetch_sub(&parent->users, 1);
}

static inline struct vrdma_srq *to_vsrq(struct ibv_srq *ibv_srq)
{
	return container_of(ibv_srq, struct vrdma_srq, vsrq.srq);
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

static inline void vrdma_cq_lock(struct vrdma_cq *cq)
{
	if (!cq->single_threaded)
		pthread_spin_lock(&cq->lock);
}

static inline void vrdma_cq_unlock(struct vrdma_cq *cq)
{
	if (!cq->single_threaded)
		pthread_spin_unlock(&cq->lock);
}

static inline void vrdma_wq_lock(struct vrdma_wq *wq)
{
	if (!wq->single_threaded)
		pthread_spin_lock(&wq->lock);
}

static inline void vrdma_wq_unlock(struct vrdma_wq *wq)
{
	if (!wq->single_threaded)
		pthread_spin_unlock(&wq->lock);
}

static inline void *vrdma_wq_slot(const struct vrdma_wq *wq, uint32_t index)
{
	return wq->ring + (size_t)(index & (wq->entries - 1)) * wq->stride;
}

static inline bool vrdma_wq_full(struct vrdma_wq *wq, uint32_t producer)
{
	return producer - atomic_load_explicit(&wq->consumer,
					       memory_order_acquire) >=
	       wq->entries;
}

static inline struct virtio_rdma_cqe *vrdma_cqe(const struct vrdma_cq *cq,
						uint32_t index)
{
	return &cq->ring[index & (cq->entries - 1)];
}

static inline bool vrdma_cqe_valid(const struct vrdma_cq *cq, uint32_t index)
{
	uint32_t phase = vrdma_load_acquire(&vrdma_cqe(cq, index)->phase);

	return (phase & VIRTIO_RDMA_CQE_PHASE) ==
	       virtio_rdma_phase(index, cq->entries);
}

/* pd.c */
struct ibv_pd *vrdma_alloc_pd(struct ibv_context *ibv_ctx);
struct ibv_pd *vrdma_import_pd(struct ibv_context *ibv_ctx, uint32_t handle);
void vrdma_unimport_pd(struct ibv_pd *ibv_pd);
int vrdma_dealloc_pd(struct ibv_pd *ibv_pd);
struct ibv_pd *
vrdma_alloc_parent_domain(struct ibv_context *ibv_ctx,
			  struct ibv_parent_domain_init_attr *attr);
struct ibv_td *vrdma_alloc_td(struct ibv_context *ibv_ctx,
			      struct ibv_td_init_attr *attr);
int vrdma_dealloc_td(struct ibv_td *ibv_td);

/* buf.c */
int vrdma_buf_alloc(struct vrdma_buf *buf, struct vrdma_pd *pd,
		    enum vrdma_res_type type, size_t length);
void vrdma_buf_free(struct vrdma_buf *buf);
int vrdma_qp_table_add(struct vrdma_context *ctx, struct vrdma_qp *qp);
void vrdma_qp_table_remove(struct vrdma_context *ctx, uint32_t qpn);
struct vrdma_qp *vrdma_qp_table_find(struct vrdma_context *ctx, uint32_t qpn);

/* cq.c */
struct ibv_cq *vrdma_create_cq(struct ibv_context *ibv_ctx, int cqe,
			       struct ibv_comp_channel *channel,
			       int comp_vector);
struct ibv_cq_ex *vrdma_create_cq_ex(struct ibv_context *ibv_ctx,
				     struct ibv_cq_init_attr_ex *attr);
int vrdma_resize_cq(struct ibv_cq *ibv_cq, int cqe);
int vrdma_modify_cq(struct ibv_cq *ibv_cq, struct ibv_modify_cq_attr *attr);
int vrdma_destroy_cq(struct ibv_cq *ibv_cq);
int vrdma_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only);
void vrdma_cq_event(struct ibv_cq *ibv_cq);
void vrdma_cq_clean(struct vrdma_cq *cq, uint32_t qpn);
void vrdma_cq_clean_srq(struct vrdma_cq *cq, uint32_t srqn);

/* poll.c */
int vrdma_poll_cq(struct ibv_cq *ibv_cq, int num_entries, struct ibv_wc *wc);
void vrdma_cq_ex_init(struct vrdma_cq *cq,
		      const struct ibv_cq_init_attr_ex *attr);

/* clock.c */
int vrdma_query_rt_values(struct ibv_context *ibv_ctx,
			  struct ibv_values_ex *values);
int vrdma_check_wallclock(struct vrdma_cq *cq);

/* qp.c */
struct ibv_qp *vrdma_create_qp(struct ibv_pd *pd,
			       struct ibv_qp_init_attr *attr);
struct ibv_qp *vrdma_create_qp_ex(struct ibv_context *ibv_ctx,
				  struct ibv_qp_init_attr_ex *attr);
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

/* srq.c */
struct ibv_srq *vrdma_create_srq(struct ibv_pd *pd,
				 struct ibv_srq_init_attr *attr);
struct ibv_srq *vrdma_create_srq_ex(struct ibv_context *ibv_ctx,
				    struct ibv_srq_init_attr_ex *attr);
int vrdma_modify_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr,
		     int mask);
int vrdma_query_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr);
int vrdma_destroy_srq(struct ibv_srq *ibv_srq);
int vrdma_post_srq_recv(struct ibv_srq *ibv_srq, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr);

/* xrc.c */
struct ibv_xrcd *vrdma_open_xrcd(struct ibv_context *ibv_ctx,
				 struct ibv_xrcd_init_attr *attr);
int vrdma_close_xrcd(struct ibv_xrcd *ibv_xrcd);
struct vrdma_qp *vrdma_new_target(struct ibv_context *ibv_ctx,
				  struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *vrdma_open_qp(struct ibv_context *ibv_ctx,
			     struct ibv_qp_open_attr *attr);
int vrdma_get_srq_num(struct ibv_srq *ibv_srq, uint32_t *srq_num);

/* post.c */
void vrdma_fill_recv(struct virtio_rdma_recv_wqe *wqe,
		     const struct ibv_recv_wr *wr);
int vrdma_wq_init(struct vrdma_wq *wq, void *ring, uint32_t entries,
		  uint32_t stride, uint32_t max_sge, bool single_threaded);
void vrdma_wq_destroy(struct vrdma_wq *wq);
void vrdma_wq_publish(struct vrdma_qp *qp, struct vrdma_wq *wq, __le32 *index,
		      uint32_t producer, uint32_t kick);
void vrdma_fill_sges(struct virtio_rdma_sge *to, const struct ibv_sge *from,
		     int count);
uint8_t vrdma_wqe_flags(unsigned int send_flags);
int vrdma_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad_wr);
int vrdma_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr,
		    struct ibv_recv_wr **bad_wr);

/* wr.c */
int vrdma_wr_init(struct vrdma_qp *qp, uint64_t send_ops_flags);

#endif /* VRDMA_H */
