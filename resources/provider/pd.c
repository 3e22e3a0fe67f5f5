// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Protection domains. A parent domain is a protection domain under which
 * objects get their memory from the process's own allocator, or need no locks
 * because one thread uses them (its thread domain says so); to the kernel it
 * is the protection domain that it was made of.
 */
#include <errno.h>
#include <stdlib.h>

#include "vrdma.h"

static struct vrdma_pd *vrdma_new_pd(void)
{
	struct vrdma_pd *pd;

	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		errno = ENOMEM;
		return NULL;
	}
	atomic_init(&pd->users, 0);
	return pd;
}

struct ibv_pd *vrdma_alloc_pd(struct ibv_context *ibv_ctx)
{
	struct ib_uverbs_alloc_pd_resp resp = {};
	struct ibv_alloc_pd cmd = {};
	struct vrdma_pd *pd;
	int ret;

	pd = vrdma_new_pd();
	if (!pd)
		return NULL;
	ret = ibv_cmd_alloc_pd(ibv_ctx, &pd->ibv_pd, &cmd, sizeof(cmd), &resp,
			       sizeof(resp));
	if (ret) {
		free(pd);
		errno = ret;
		return NULL;
	}
	return &pd->ibv_pd;
}

/* The kernel looks at the handle whenever it is used. */
struct ibv_pd *vrdma_import_pd(struct ibv_context *ibv_ctx, uint32_t handle)
{
	struct vrdma_pd *pd;

	pd = vrdma_new_pd();
	if (!pd)
		return NULL;
	pd->ibv_pd.context = ibv_ctx;
	pd->ibv_pd.handle = handle;
	return &pd->ibv_pd;
}

void vrdma_unimport_pd(struct ibv_pd *ibv_pd)
{
	free(to_vpd(ibv_pd));
}

int vrdma_dealloc_pd(struct ibv_pd *ibv_pd)
{
	struct vrdma_pd *pd = to_vpd(ibv_pd);
	int ret;

	if (atomic_load(&pd->users))
		return EBUSY;
	if (pd->of) {
		atomic_fetch_sub(&pd->of->users, 1);
		if (pd->td)
			atomic_fetch_sub(&pd->td->users, 1);
	} else {
		ret = ibv_cmd_dealloc_pd(ibv_pd);
		if (ret)
			return ret;
	}
	free(pd);
	return 0;
}

struct ibv_pd *
vrdma_alloc_parent_domain(struct ibv_context *ibv_ctx,
			  struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			       IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct vrdma_pd *pd;

	/* A parent domain of a parent domain would have two allocators. */
	if (!attr->pd || to_vpd(attr->pd)->of ||
	    !check_comp_mask(attr->comp_mask, known)) {
		errno = EINVAL;
		return NULL;
	}
	if ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) &&
	    !attr->alloc != !attr->free) {
		errno = EINVAL;
		return NULL;
	}
	pd = vrdma_new_pd();
	if (!pd)
		return NULL;

	pd->ibv_pd.context = ibv_ctx;
	pd->ibv_pd.handle = attr->pd->handle;
	pd->of = to_vpd(attr->pd);
	atomic_fetch_add(&pd->of->users, 1);
	if (attr->td) {
		pd->td = container_of(attr->td, struct vrdma_td, ibv_td);
		atomic_fetch_add(&pd->td->users, 1);
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		pd->alloc = attr->alloc;
		pd->free = attr->free;
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		pd->context = attr->pd_context;
	return &pd->ibv_pd;
}

struct ibv_td *vrdma_alloc_td(struct ibv_context *ibv_ctx,
			      struct ibv_td_init_attr *attr)
{
	struct vrdma_td *td;

	if (attr->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td) {
		errno = ENOMEM;
		return NULL;
	}
	atomic_init(&td->users, 0);
	td->ibv_td.context = ibv_ctx;
	return &td->ibv_td;
}

int vrdma_dealloc_td(struct ibv_td *ibv_td)
{
	struct vrdma_td *td = container_of(ibv_td, struct vrdma_td, ibv_td);

	if (atomic_load(&td->users))
		return EBUSY;
	free(td);
	return 0;
}
