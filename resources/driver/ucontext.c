// SPDX-License-Identifier: GPL-2.0
/*
 * User contexts, protection domains, and the doorbell page that a process may
 * map. The page wakes only what the context owns (docs/virtio-rdma.md,
 * section 5).
 */
#include <linux/slab.h>
#include <rdma/uverbs_ioctl.h>

#include "vrdma.h"

#define UVERBS_MODULE_NAME vrdma
#include <rdma/uverbs_named_ioctl.h>

/* The device's context of whoever asks: the process, or the kernel. */
u32 vrdma_udata_context(struct ib_udata *udata)
{
	struct vrdma_ucontext *ucontext =
		rdma_udata_to_drv_context(udata, struct vrdma_ucontext,
					  ibucontext);

	return ucontext ? ucontext->context : VIRTIO_RDMA_KERNEL_CONTEXT;
}

static int vrdma_map_doorbell(struct vrdma_dev *dev,
			      struct vrdma_ucontext *ucontext, u32 page)
{
	struct vrdma_mmap_entry *entry;
	int err;

	if (page >= dev->doorbell_pages)
		return -EIO;
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return -ENOMEM;
	entry->address = dev->doorbell +
			 ((phys_addr_t)page << VIRTIO_RDMA_PAGE_SHIFT);
	err = rdma_user_mmap_entry_insert(&ucontext->ibucontext,
					  &entry->rdma_entry, PAGE_SIZE);
	if (err) {
		kfree(entry);
		return err;
	}
	ucontext->doorbell = &entry->rdma_entry;
	return 0;
}

static struct virtio_rdma_uresp_alloc_ucontext
vrdma_ucontext_resp(struct vrdma_dev *dev, struct vrdma_ucontext *ucontext)
{
	return (struct virtio_rdma_uresp_alloc_ucontext) {
		.doorbell_key = rdma_user_mmap_get_offset(ucontext->doorbell),
		.doorbell_length = PAGE_SIZE,
		.features = lower_32_bits(dev->vdev->features),
		.limits = dev->limits,
	};
}

int vrdma_alloc_ucontext(struct ib_ucontext *ibucontext,
			 struct ib_udata *udata)
{
	struct vrdma_ucontext *ucontext = to_vucontext(ibucontext);
	struct vrdma_dev *dev = to_vdev(ibucontext->device);
	struct virtio_rdma_uresp_alloc_ucontext resp;
	struct virtio_rdma_context reply;
	int err;

	if (!dev->doorbell_pages)
		return -EOPNOTSUPP;
	if (udata->outlen < sizeof(resp))
		return -EINVAL;

	err = vrdma_exec(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			 VIRTIO_RDMA_CMD_CREATE_CONTEXT, NULL, 0,
			 &reply, sizeof(reply));
	if (err)
		return err;
	ucontext->context = le32_to_cpu(reply.context);

	err = vrdma_map_doorbell(dev, ucontext,
				 le32_to_cpu(reply.doorbell_page));
	if (err)
		goto err_context;

	resp = vrdma_ucontext_resp(dev, ucontext);
	err = ib_copy_to_udata(udata, &resp, sizeof(resp));
	if (err)
		goto err_doorbell;
	return 0;

err_doorbell:
	rdma_user_mmap_entry_remove(ucontext->doorbell);
err_context:
	vrdma_exec_handle(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
			  VIRTIO_RDMA_CMD_DESTROY_CONTEXT, ucontext->context);
	return err;
}

/* For a process that was given the file of a context that exists. */
int vrdma_query_ucontext(struct ib_ucontext *ibucontext,
			 struct uverbs_attr_bundle *attrs)
{
	struct virtio_rdma_uresp_alloc_ucontext resp =
		vrdma_ucontext_resp(to_vdev(ibucontext->device),
				    to_vucontext(ibucontext));

	return uverbs_copy_to(attrs, VIRTIO_RDMA_ATTR_QUERY_CONTEXT_RESP, &resp,
			      sizeof(resp));
}

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	vrdma_query_context,
	UVERBS_OBJECT_DEVICE,
	UVERBS_METHOD_QUERY_CONTEXT,
	UVERBS_ATTR_PTR_OUT(
		VIRTIO_RDMA_ATTR_QUERY_CONTEXT_RESP,
		UVERBS_ATTR_TYPE(struct virtio_rdma_uresp_alloc_ucontext),
		UA_MANDATORY));

const struct uapi_definition vrdma_uapi_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &vrdma_query_context),
	{},
};

void vrdma_dealloc_ucontext(struct ib_ucontext *ibucontext)
{
	struct vrdma_ucontext *ucontext = to_vucontext(ibucontext);
	struct vrdma_dev *dev = to_vdev(ibucontext->device);
	int err;

	rdma_user_mmap_entry_remove(ucontext->doorbell);
	err = vrdma_exec_destroy(dev, VIRTIO_RDMA_KERNEL_CONTEXT,
				 VIRTIO_RDMA_CMD_DESTROY_CONTEXT,
				 ucontext->context);
	if (err)
		dev_warn(&dev->vdev->dev, "context %u not destroyed: %d\n",
			 ucontext->context, err);
}

/*
 * The core takes the mappings away from the process. There is nothing else to
 * do, but without this function it would not let the driver go while a context
 * is open.
 */
void vrdma_disassociate_ucontext(struct ib_ucontext *ibucontext)
{
}

int vrdma_mmap(struct ib_ucontext *ibucontext, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *rdma_entry;
	struct vrdma_mmap_entry *entry;
	int err;

	rdma_entry = rdma_user_mmap_entry_get(ibucontext, vma);
	if (!rdma_entry)
		return -EINVAL;
	entry = container_of(rdma_entry, struct vrdma_mmap_entry, rdma_entry);
	err = rdma_user_mmap_io(ibucontext, vma, PHYS_PFN(entry->address),
				PAGE_SIZE, pgprot_noncached(vma->vm_page_prot),
				rdma_entry);
	rdma_user_mmap_entry_put(rdma_entry);
	return err;
}

void vrdma_mmap_free(struct rdma_user_mmap_entry *rdma_entry)
{
	kfree(container_of(rdma_entry, struct vrdma_mmap_entry, rdma_entry));
}

int vrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibpd->device);
	struct vrdma_pd *pd = to_vpd(ibpd);
	struct virtio_rdma_handle reply;
	int err;

	pd->context = vrdma_udata_context(udata);
	err = vrdma_exec(dev, pd->context, VIRTIO_RDMA_CMD_CREATE_PD, NULL, 0,
			 &reply, sizeof(reply));
	if (err)
		return err;
	pd->pdn = le32_to_cpu(reply.handle);
	return 0;
}

int vrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vrdma_pd *pd = to_vpd(ibpd);

	return vrdma_exec_destroy(to_vdev(ibpd->device), pd->context,
				  VIRTIO_RDMA_CMD_DESTROY_PD, pd->pdn);
}
