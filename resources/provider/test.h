/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the files of the provider's test share. */
#ifndef VRDMA_TEST_H
#define VRDMA_TEST_H

#include <stdio.h>
#include <stdlib.h>

#include "vrdma.h"

#define CHECK(what)                                                            \
	do {                                                                   \
		if (!(what)) {                                                 \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__,       \
				__LINE__, #what);                              \
			exit(1);                                               \
		}                                                              \
	} while (0)

/* The device's side of a CQ. */
struct device_cq {
	struct vrdma_cq *cq;
	uint32_t producer;
};

/* In test_doorbell before it is rung. */
#define NO_DOORBELL 0xffffffff

/* test_rings.c */
extern struct vrdma_pd test_pd;
extern uint32_t test_doorbell;
void device_complete(struct device_cq *dev, struct vrdma_qp *qp, uint16_t flags,
		     uint32_t index, uint64_t wr_id);
struct vrdma_cq *new_cq(int cqe);
struct vrdma_qp *new_qp_in(struct ibv_pd *in, struct vrdma_cq *cq,
			   struct ibv_qp_cap cap, enum ibv_qp_state state);
struct vrdma_qp *new_qp(struct vrdma_cq *cq, struct ibv_qp_cap cap,
			enum ibv_qp_state state);
struct vrdma_qp *new_qp_ex(struct vrdma_cq *cq, enum ibv_qp_type type,
			   struct ibv_qp_cap cap, uint64_t send_ops);
struct virtio_rdma_send_wqe *send_slot(struct vrdma_qp *qp, uint32_t i);

/* test_libibverbs.c */
extern uint32_t device_srq_taken;
extern int device_clock_error;

/* One a subject. */
void test_post(void);
void test_cq(void);
void test_wr(void);
void test_parent_domain(void);
void test_srq(void);
void test_semantics(void);
void test_windows(void);
void test_xrc(void);

#endif /* VRDMA_TEST_H */
