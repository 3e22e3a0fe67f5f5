// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Device and context, memory regions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <infiniband/cmd_ioctl.h>

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

static struct verbs_mr *vrdma_new_mr(void)
{
	struct verbs_mr *mr;

	mr = calloc(1, sizeof(*mr));
	if (!mr)
		errno = ENOMEM;
	return mr;
}

/* It, or NULL when the kernel refused. */
static struct ibv_mr *vrdma_made_mr(struct verbs_mr *mr, int err)
{
	if (err) {
		free(mr);
		errno = err;
		return NULL;
	}
	return &mr->ibv_mr;
}

static struct ibv_mr *vrdma_reg_mr(struct ibv_pd *pd, void *addr,
				   size_t length, uint64_t hca_va, int access)
{
	struct ib_uverbs_reg_mr_resp resp = {};
	struct ibv_reg_mr cmd = {};
	struct verbs_mr *mr;
	int ret;

	mr = vrdma_new_mr();
	if (!mr)
		return NULL;
	ret = ibv_cmd_reg_mr(pd, addr, length, hca_va, access, mr, &cmd,
			     sizeof(cmd), &resp, sizeof(resp));
	return vrdma_made_mr(mr, ret);
}

static struct ibv_mr *vrdma_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
					  size_t length, uint64_t iova, int fd,
					  int access)
{
	struct verbs_mr *mr;
	int ret;

	mr = vrdma_new_mr();
	if (!mr)
		return NULL;
	/* Older libraries do not know the last argument, and ignore it. */
	ret = ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr,
				    NULL);
	return vrdma_made_mr(mr, ret);
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

static struct ibv_mr *vrdma_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct verbs_mr *mr;
	int ret;

	mr = vrdma_new_mr();
	if (!mr)
		return NULL;
	ret = ibv_cmd_query_mr(pd, mr, handle);
	return vrdma_made_mr(mr, ret);
}

static void vrdma_unimport_mr(struct ibv_mr *ibv_mr)
{
	free(verbs_get_mr(ibv_mr));
}

static const struct verbs_context_ops vrdma_context_ops = {
	.alloc_mw = vrdma_alloc_mw,
	.alloc_parent_domain = vrdma_alloc_parent_domain,
	.alloc_pd = vrdma_alloc_pd,
	.alloc_td = vrdma_alloc_td,
	.attach_mcast = ibv_cmd_attach_mcast,
	.bind_mw = vrdma_bind_mw,
	.close_xrcd = vrdma_close_xrcd,
	.cq_event = vrdma_cq_event,
	.create_ah = vrdma_create_ah,
	.create_cq = vrdma_create_cq,
	.create_cq_ex = vrdma_create_cq_ex,
	.create_qp = vrdma_create_qp,
	.create_qp_ex = vrdma_create_qp_ex,
	.create_srq = vrdma_create_srq,
	.create_srq_ex = vrdma_create_srq_ex,
	.dealloc_mw = vrdma_dealloc_mw,
	.dealloc_pd = vrdma_dealloc_pd,
	.dealloc_td = vrdma_dealloc_td,
	.dereg_mr = vrdma_dereg_mr,
	.destroy_ah = vrdma_destroy_ah,
	.destroy_cq = vrdma_destroy_cq,
	.destroy_qp = vrdma_destroy_qp,
	.destroy_srq = vrdma_destroy_srq,
	.detach_mcast = ibv_cmd_detach_mcast,
	.free_context = vrdma_free_context,
	.get_srq_num = vrdma_get_srq_num,
	.import_mr = vrdma_import_mr,
	.import_pd = vrdma_import_pd,
	.modify_cq = vrdma_modify_cq,
	.modify_qp = vrdma_modify_qp,
	.modify_srq = vrdma_modify_srq,
	.open_qp = vrdma_open_qp,
	.open_xrcd = vrdma_open_xrcd,
	.poll_cq = vrdma_poll_cq,
	.post_recv = vrdma_post_recv,
	.post_send = vrdma_post_send,
	.post_srq_recv = vrdma_post_srq_recv,
	.query_device_ex = vrdma_query_device,
	.query_port = vrdma_query_port,
	.query_qp = vrdma_query_qp,
	.query_rt_values = vrdma_query_rt_values,
	.query_srq = vrdma_query_srq,
	.reg_dmabuf_mr = vrdma_reg_dmabuf_mr,
	.reg_mr = vrdma_reg_mr,
	.req_notify_cq = vrdma_req_notify_cq,
	.rereg_mr = vrdma_rereg_mr,
	.resize_cq = vrdma_resize_cq,
	.unimport_mr = vrdma_unimport_mr,
	.unimport_pd = vrdma_unimport_pd,
};

struct vrdma_get_context_resp {
	struct ib_uverbs_get_context_resp ibv_resp;
	struct virtio_rdma_uresp_alloc_ucontext drv;
};
static_assert(offsetof(struct vrdma_get_context_resp, drv) ==
		      sizeof(struct ib_uverbs_get_context_resp),
	      "the driver's part follows the core's at once");

static struct vrdma_context *vrdma_new_context(struct ibv_device *ibv_dev,
					       int cmd_fd)
{
	struct vrdma_context *ctx;

	return verbs_init_and_alloc_context(ibv_dev, cmd_fd, ctx, ibv_ctx,
					    RDMA_DRIVER_UNKNOWN);
}

/* With what the kernel says of it, or NULL when the rest of it failed. */
static struct verbs_context *
vrdma_use_context(struct vrdma_context *ctx, int err,
		  const struct virtio_rdma_uresp_alloc_ucontext *resp)
{
	if (err)
		goto err_ctx;
	ctx->features = resp->features;
	ctx->limits = resp->limits;
	ctx->doorbell_length = resp->doorbell_length;
	ctx->doorbell = mmap(NULL, ctx->doorbell_length, PROT_WRITE, MAP_SHARED,
			     ctx->ibv_ctx.context.cmd_fd, resp->doorbell_key);
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

static struct verbs_context *vrdma_alloc_context(struct ibv_device *ibv_dev,
						 int cmd_fd,
						 void *private_data)
{
	struct vrdma_get_context_resp resp = {};
	struct ibv_get_context cmd = {};
	struct vrdma_context *ctx;
	int err;

	ctx = vrdma_new_context(ibv_dev, cmd_fd);
	if (!ctx)
		return NULL;
	err = ibv_cmd_get_context(&ctx->ibv_ctx, &cmd, sizeof(cmd),
				  &resp.ibv_resp, sizeof(resp));
	return vrdma_use_context(ctx, err, &resp.drv);
}

/* A context that exists, of this process or of another that gave the file. */
static struct verbs_context *vrdma_import_context(struct ibv_device *ibv_dev,
						  int cmd_fd)
{
	struct virtio_rdma_uresp_alloc_ucontext resp = {};
	DECLARE_COMMAND_BUFFER_LINK(driver, UVERBS_OBJECT_DEVICE,
				    UVERBS_METHOD_QUERY_CONTEXT, 1, NULL);
	struct vrdma_context *ctx;
	int err;

	ctx = vrdma_new_context(ibv_dev, cmd_fd);
	if (!ctx)
		return NULL;
	fill_attr_out_ptr(driver, VIRTIO_RDMA_ATTR_QUERY_CONTEXT_RESP, &resp);
	err = ibv_cmd_query_context(&ctx->ibv_ctx.context, driver);
	return vrdma_use_context(ctx, err, &resp);
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
	.import_context = vrdma_import_context,
};
PROVIDER_DRIVER(virtio_rdma, vrdma_dev_ops);
