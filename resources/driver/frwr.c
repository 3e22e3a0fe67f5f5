// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions of kernel users: all DMA addresses (docs/virtio-rdma.md,
 * section 4.4), and regions that are registered by work request (4.14, 5.1).
 */
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "vrdma.h"

/*
 * All DMA addresses that the device may use, for kernel users: each protection
 * domain of the kernel has one, and no process ever gets its key.
 */
struct ib_mr *vrdma_get_dma_mr(struct ib_pd *ibpd, int access)
{
	struct vrdma_dev *dev = to_vdev(ibpd->device);
	struct virtio_rdma_reg_mr body = {
		.pd = cpu_to_le32(to_vpd(ibpd)->pdn),
		.access = cpu_to_le32(access & vrdma_mr_rights(dev)),
		.flags = VIRTIO_RDMA_MR_DMA,
	};
	struct virtio_rdma_mr_keys keys;
	struct vrdma_mr *mr;
	int err;

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->context = VIRTIO_RDMA_KERNEL_CONTEXT;
	err = vrdma_exec(dev, mr->context, VIRTIO_RDMA_CMD_REG_MR,
			 &body, sizeof(body), &keys, sizeof(keys));
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->handle = le32_to_cpu(keys.lkey);
	mr->ibmr.lkey = mr->handle;
	mr->ibmr.rkey = le32_to_cpu(keys.rkey);
	return &mr->ibmr;
}

/* One without pages; its list lies in memory that the device reads. */
struct ib_mr *vrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
			     u32 max_num_sg)
{
	struct vrdma_dev *dev = to_vdev(ibpd->device);
	struct virtio_rdma_alloc_mr *body;
	struct virtio_rdma_mr_keys *keys;
	struct vrdma_cmd *cmd;
	struct vrdma_mr *mr;
	size_t size;
	int err;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg ||
	    max_num_sg > le32_to_cpu(dev->attr.max_fast_reg_pages))
		return ERR_PTR(-EINVAL);

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->context = VIRTIO_RDMA_KERNEL_CONTEXT;
	mr->max_pages = max_num_sg;
	err = vrdma_buf_alloc(dev, &mr->buf, max_num_sg * sizeof(*mr->list),
			      vrdma_max_entries(dev, sizeof(*body),
						sizeof(*mr->list)));
	if (err)
		goto err_free;
	mr->list = mr->buf.cpu;

	err = -ENOMEM;
	size = struct_size(body, page, mr->buf.num_pages);
	cmd = vrdma_cmd_alloc(dev, mr->context, VIRTIO_RDMA_CMD_ALLOC_MR, size,
			      sizeof(*keys));
	if (!cmd)
		goto err_buf;
	body = cmd->body;
	body->pd = cpu_to_le32(to_vpd(ibpd)->pdn);
	body->max_entries = cpu_to_le32(max_num_sg);
	vrdma_buf_fill(&body->buf, &mr->buf, body->page);
	err = vrdma_cmd_run_exact(cmd, size);
	if (!err) {
		keys = cmd->reply_body;
		mr->handle = le32_to_cpu(keys->lkey);
		mr->ibmr.lkey = mr->handle;
		mr->ibmr.rkey = le32_to_cpu(keys->rkey);
	}
	vrdma_cmd_free(cmd);
	if (err)
		goto err_buf;
	return &mr->ibmr;

err_buf:
	vrdma_buf_free(dev, &mr->buf);
err_free:
	kfree(mr);
	return ERR_PTR(err);
}

static int vrdma_set_page(struct ib_mr *ibmr, u64 addr)
{
	struct vrdma_mr *mr = to_vmr(ibmr);

	if (mr->num_pages == mr->max_pages)
		return -ENOMEM;
	mr->list[mr->num_pages++] = cpu_to_le64(addr);
	return 0;
}

int vrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int sg_nents,
		    unsigned int *sg_offset)
{
	to_vmr(ibmr)->num_pages = 0;
	return ib_sg_to_pages(ibmr, sg, sg_nents, sg_offset, vrdma_set_page);
}

/* The list itself lies where the device was told when the region was made. */
int vrdma_fill_reg(struct virtio_rdma_send_wqe *wqe,
		   const struct ib_reg_wr *wr)
{
	const struct vrdma_mr *mr = to_vmr(wr->mr);
	const u32 rights = vrdma_mr_rights(to_vdev(wr->mr->device));

	if (!mr->list || wr->access & ~(rights | IB_ACCESS_OPTIONAL))
		return -EINVAL;
	wqe->opcode = VIRTIO_RDMA_WQE_REG_MR;
	wqe->inv_key = cpu_to_le32(wr->key);
	wqe->rkey = cpu_to_le32(wr->access & rights);
	wqe->remote_addr = cpu_to_le64(mr->ibmr.iova);
	wqe->compare_add = cpu_to_le64(mr->ibmr.length);
	wqe->swap = cpu_to_le64(mr->ibmr.iova & (mr->ibmr.page_size - 1));
	wqe->num_pages = cpu_to_le32(mr->num_pages);
	wqe->page_shift = ilog2(mr->ibmr.page_size);
	return 0;
}
