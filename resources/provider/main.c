// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Device and context, protection domains, memory regions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "vrdma.h"

static void vrdma_free_context(struct ibv_context *ibv_ctx);

static int vrdma_query_device(struct ibv_context *ibv_ctx,
			      const struct ibv_query_device_ex_input *input,
			      struct ibv_device_attr_ex *attr,
			      size_t attr_size)
{
	struct ib_uverbs_ex_query_device_resp resp = {};
	size_t resp_size = sizeof(resp);
	uint64_t version;
	int ret;

	ret = ibv_cmd_query_device_any(ibv_ctx, input, attr, attr_size, &resp,
				       &resp_size);
	if (ret)
		return ret;

	version = resp.base.fw_ver;
	snprintf(attr->orig_attr.fw_ver, sizeof(attr->orig_attr.fw_ver),
		 "%u.%u.%u", (uint32_t)(version >> 32),
		 (uint32_t)(version >> 16) & 0xffff,
		 (uint32_t)version & 0xffff);
	return 0;
}

static int vrdma_query_port(struct ibv_context *ibv_ctx, uint8_t port,
			    struct ibv_port_attr *attr)
{
	struct ibv_query_port cmd = {};

	return ibv_cmd_query_port(ibv_ctx, port, attr, &cmd, sizeof(cmd));
}

static struct ibv_pd *vrdma_alloc_pd(struct ibv_context *ibv_ctx)
{
	struct ib_uverbs_alloc_pd_resp resp = {};
	struct ibv_alloc_pd cmd = {};
	struct ibv_pd *pd;
	int ret;

	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		errno = ENOMEM;
		return NULL;
	}
	ret = ibv_cmd_alloc_pd(ibv_ctx, pd, &cmd, sizeof(cmd), &resp,
			       sizeof(resp));
	if (ret) {
		free(pd);
		errno = ret;
		return NULL;
	}
	return pd;
}

static int vrdma_dealloc_pd(struct ibv_pd *pd)
{
	int ret;

	ret = ibv_cmd_dealloc_pd(pd);
	if (ret)
		return ret;
	free(pd);
	return 0;
}

static struct ibv_mr *vrdma_reg_mr(struct ibv_pd *pd, void *addr,
				   size_t length, uint64_t hca_va, int access)
{
	struct ib_uverbs_reg_mr_resp resp = {};
	struct ibv_reg_mr cmd = {};
	struct verbs_mr *mr;
	int ret;

	mr = calloc(1, sizeof(*mr));
	if (!mr) {
		errno = ENOMEM;
		return NULL;
	}
	ret = ibv_cmd_reg_mr(pd, addr, length, hca_va, access, mr, &cmd,
			     sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		free(mr);
		errno = ret;
		return NULL;
	}
	return &mr->ibv_mr;
}

static struct ibv_mr *vrdma_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
					  size_t length, uint64_t iova, int fd,
					  int access)
{
	struct verbs_mr *mr;
	int ret;

	mr = calloc(1, sizeof(*mr));
	if (!mr) {
		errno = ENOMEM;
		return NULL;
	}
	/* Older libraries do not know the last argument, and ignore it. */
	ret = ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr,
				    NULL);
	if (ret) {
		free(mr);
		errno = ret;
		return NULL;
	}
	return &mr->ibv_mr;
}

static int vrdma_rereg_mr(struct verbs_mr *mr, int flags, struct ibv_pd *pd,
			  void *addr, size_t length, int access)
{
	struct ib_uverbs_rereg_mr_resp resp;
	struct ibv_rereg_mr cmd;

	return ibv_cmd_rereg_mr(mr, flags, addr, length, (uintptr_t)addr,
				access, pd, &cmd, sizeof(cmd), &resp,
				sizeof(resp));
}

static int vrdma_dereg_mr(struct verbs_mr *mr)
{
	int ret;

	ret = ibv_cmd_dereg_mr(mr);
	if (ret)
		return ret;
	free(mr);
	return 0;
}

static const struct verbs_context_ops vrdma_context_ops = {
	.alloc_mw = vrdma_alloc_mw,
	.alloc_pd = vrdma_alloc_pd,
	.attach_mcast = ibv_cmd_attach_mcast,
	.bind_mw = vrdma_bind_mw,
	.cq_event = vrdma_cq_event,
	.create_ah = vrdma_create_ah,
	.create_cq = vrdma_create_cq,
	.create_qp = vrdma_create_qp,
	.dealloc_mw = vrdma_dealloc_mw,
	.dealloc_pd = vrdma_dealloc_pd,
	.dereg_mr = vrdma_dereg_mr,
	.destroy_ah = vrdma_destroy_ah,
	.destroy_cq = vrdma_destroy_cq,
	.destroy_qp = vrdma_destroy_qp,
	.detach_mcast = ibv_cmd_detach_mcast,
	.free_context = vrdma_free_context,
	.modify_qp = vrdma_modify_qp,
	.poll_cq = vrdma_poll_cq,
	.post_recv = vrdma_post_recv,
	.post_send = vrdma_post_send,
	.query_device_ex = vrdma_query_device,
	.query_port = vrdma_query_port,
	.query_qp = vrdma_query_qp,
	.reg_dmabuf_mr = vrdma_reg_dmabuf_mr,
	.reg_mr = vrdma_reg_mr,
	.req_notify_cq = vrdma_req_notify_cq,
	.rereg_mr = vrdma_rereg_mr,
};

struct vrdma_get_context_resp {
	struct ib_uverbs_get_context_resp ibv_resp;
	struct virtio_rdma_uresp_alloc_ucontext drv;
};
static_assert(offsetof(struct vrdma_get_context_resp, drv) ==
		      sizeof(struct ib_uverbs_get_context_resp),
	      "the driver's part follows the core's at once");

static struct verbs_context *vrdma_alloc_context(struct ibv_device *ibv_dev,
						 int cmd_fd,
						 void *private_data)
{
	struct vrdma_get_context_resp resp = {};
	struct ibv_get_context cmd = {};
	struct vrdma_context *ctx;

	ctx = verbs_init_and_alloc_context(ibv_dev, cmd_fd, ctx, ibv_ctx,
					   RDMA_DRIVER_UNKNOWN);
	if (!ctx)
		return NULL;
	if (ibv_cmd_get_context(&ctx->ibv_ctx, &cmd, sizeof(cmd),
				&resp.ibv_resp, sizeof(resp)))
		goto err_ctx;

	ctx->features = resp.drv.features;
	ctx->limits = resp.drv.limits;
	ctx->doorbell_length = resp.drv.doorbell_length;
	ctx->doorbell = mmap(NULL, ctx->doorbell_length, PROT_WRITE, MAP_SHARED,
			     cmd_fd, resp.drv.doorbell_key);
	if (ctx->doorbell == MAP_FAILED)
		goto err_ctx;

	pthread_mutex_init(&ctx->qp_lock, NULL);
	verbs_set_ops(&ctx->ibv_ctx, &vrdma_context_ops);
	return &ctx->ibv_ctx;

err_ctx:
	verbs_uninit_context(&ctx->ibv_ctx);
	free(ctx);
	return NULL;
}

static void vrdma_free_context(struct ibv_context *ibv_ctx)
{
	struct vrdma_context *ctx = to_vctx(ibv_ctx);

	munmap(ctx->doorbell, ctx->doorbell_length);
	pthread_mutex_destroy(&ctx->qp_lock);
	verbs_uninit_context(&ctx->ibv_ctx);
	free(ctx);
}

static struct verbs_device *vrdma_alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	struct vrdma_device *dev;

	dev = calloc(1, sizeof(*dev));
	return dev ? &dev->ibv_dev : NULL;
}

static void vrdma_uninit_device(struct verbs_device *verbs_dev)
{
	free(container_of(verbs_dev, struct vrdma_device, ibv_dev));
}

/* Virtio device 42 of any vendor. */
static const struct verbs_match_ent vrdma_match[] = {
	VERBS_MODALIAS_MATCH("virtio:d0000002Av*", NULL),
	{},
};

static const struct verbs_device_ops vrdma_dev_ops = {
	.name = "virtio_rdma",
	.match_min_abi_version = VIRTIO_RDMA_UVERBS_ABI_VERSION,
	.match_max_abi_version = VIRTIO_RDMA_UVERBS_ABI_VERSION,
	.match_table = vrdma_match,
	.alloc_device = vrdma_alloc_device,
	.uninit_device = vrdma_uninit_device,
	.alloc_context = vrdma_alloc_context,
};
PROVIDER_DRIVER(virtio_rdma, vrdma_dev_ops);
