/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Verbs of kernel users on one device, as the kernel's own users call them. A
 * module for tests: loading it runs the cases, and fails if one did; the
 * kernel's log says which.
 *
 * main.c      the module, and what its cases share
 * qp.c        queue pairs: their states, and posting
 * drain.c     a drain ends in every state of a queue pair
 * arm.c       arming tells of completions that wait
 * memory.c    fast registration, and what peers do with its keys
 */
#ifndef VRDMA_SELFTEST_H
#define VRDMA_SELFTEST_H

#include <linux/version.h>
#include <rdma/ib_verbs.h>

#define ST_OPS		16
#define ST_WR		(2 * ST_OPS)
#define ST_BYTES	64

/* Atomic write and flush: the verbs know them since 6.2. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define ST_ATOMIC_WRITE
#define ST_ACCESS_FLUSH(dev)						\
	((dev)->attrs.device_cap_flags & IB_DEVICE_FLUSH_GLOBAL ?	\
	 IB_ACCESS_FLUSH_GLOBAL : 0)
#else
#define ST_ACCESS_FLUSH(dev)	0
#endif

/* A work request and what became of it. */
struct st_op {
	struct ib_cqe cqe;
	atomic_t completions;
	enum ib_wc_status status;
};

/* A queue pair with what it posted. */
struct st_end {
	struct ib_qp *qp;
	struct st_op sends[ST_OPS];
	struct st_op recvs[ST_OPS];
	int num_sends;
	int num_recvs;
	bool drained;
};

struct st_rig {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_srq *srq;
	struct ib_cq *cq;
	void *buf;
	dma_addr_t dma;
	struct rdma_ah_attr ah;
	struct st_end a;
	struct st_end b;
};

/* qp.c */
int st_create_flags(struct st_rig *rig);
struct ib_qp *st_create_qp(struct st_rig *rig, enum ib_qp_type type,
			   struct ib_srq *srq);
int st_step(struct st_rig *rig, struct ib_qp *qp, u32 peer,
	    enum ib_qp_state state);
int st_raise(struct st_rig *rig, struct ib_qp *qp, u32 peer,
	     enum ib_qp_state to);
int st_post(struct st_end *end, struct ib_send_wr *wr);
int st_post_sends(struct st_rig *rig, struct st_end *end, int count, u32 lkey);
int st_post_recvs(struct st_rig *rig, struct st_end *end, int count);
int st_wait(struct ib_cq *cq, const struct st_op *op);

/* drain.c */
int st_drain_states(struct st_rig *rig);
int st_drain_failed(struct st_rig *rig);

/* arm.c */
int st_arm(struct st_rig *rig);

/* memory.c */
int st_memory(struct st_rig *rig);

#endif /* VRDMA_SELFTEST_H */
