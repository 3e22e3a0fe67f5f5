// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Rings in a parent domain's memory, without locks when it has one thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static uint64_t asked;
static void *asked_for;
static unsigned int given_back;

static void *ask(struct ibv_pd *of, void *ctx, size_t size, size_t alignment,
		 uint64_t type)
{
	asked = type;
	CHECK(ctx == &asked && alignment == VIRTIO_RDMA_PAGE_SIZE);
	asked_for = aligned_alloc(alignment, size);
	memset(asked_for, 0xff, size);
	return asked_for;
}

static void give_back(struct ibv_pd *of, void *ctx, void *ptr, uint64_t type)
{
	CHECK(type == asked);
	free(ptr);
	given_back++;
}

void test_parent_domain(void)
{
	struct ibv_context *ctx = test_pd.ibv_pd.context;
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = vrdma_alloc_td(ctx, &td_attr);
	struct ibv_parent_domain_init_attr attr = {
		.pd = &test_pd.ibv_pd,
		.td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = ask,
		.free = give_back,
		.pd_context = &asked,
	};
	struct ibv_cq_init_attr_ex init = {
		.cqe = 4,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
	};
	struct ibv_pd *parent = vrdma_alloc_parent_domain(ctx, &attr);
	struct device_cq dev = {};
	struct ibv_wc wc;
	struct vrdma_cq *cq;
	struct vrdma_qp *qp;

	CHECK(parent && vrdma_dealloc_td(td) == EBUSY);
	CHECK(vrdma_dealloc_pd(&test_pd.ibv_pd) == EBUSY);
	attr.pd = parent;
	CHECK(!vrdma_alloc_parent_domain(ctx, &attr) && errno == EINVAL);

	init.parent_domain = &test_pd.ibv_pd;
	CHECK(!vrdma_create_cq_ex(ctx, &init) && errno == EINVAL);
	init.parent_domain = parent;
	cq = to_vcq(ibv_cq_ex_to_cq(vrdma_create_cq_ex(ctx, &init)));
	CHECK(asked == VRDMA_RES_TYPE(VRDMA_RES_TYPE_CQ));
	CHECK(cq->buf.addr == asked_for && cq->single_threaded);
	/* The allocator's memory has been zeroed. */
	CHECK(!vrdma_poll_cq(&cq->ibv_cq, 1, &wc));
	CHECK(vrdma_dealloc_pd(parent) == EBUSY);

	test_pd.ibv_pd.handle = 1;
	qp = new_qp_in(parent, cq, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 },
		       IBV_QPS_RTS);
	CHECK(asked == VRDMA_RES_TYPE(VRDMA_RES_TYPE_QP));
	CHECK(qp->sq.single_threaded && qp->rq.single_threaded);
	dev.cq = cq;
	device_complete(&dev, qp, 0, 0, 9);
	CHECK(vrdma_poll_cq(&cq->ibv_cq, 1, &wc) == 1 && wc.wr_id == 9);

	CHECK(!vrdma_destroy_qp(&qp->ibv_qp) && given_back == 1);
	asked = VRDMA_RES_TYPE(VRDMA_RES_TYPE_CQ);
	CHECK(!vrdma_destroy_cq(&cq->ibv_cq) && given_back == 2);
	CHECK(!vrdma_dealloc_pd(parent) && !vrdma_dealloc_td(td));
}
