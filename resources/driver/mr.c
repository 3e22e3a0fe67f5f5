// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions. The device is given a page list, or extents where memory is
 * in few enough pieces for them to be shorter; either goes over several
 * commands if it must (docs/virtio-rdma.md, section 4.4).
 */
#include <linux/slab.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "vrdma.h"

/* List entries to one command: what a slab allocation gives without effort. */
#define VRDMA_MR_CMD_BYTES	(32U << 10)

/* Writes the list into commands and sends each when it is full. */
struct vrdma_mr_list {
	struct vrdma_dev *dev;
	struct vrdma_mr *mr;
	struct vrdma_cmd *cmd;
	__le64 *entry;		/* where the next goes */
	u32 words;		/* of one entry */
	u32 total;
	u32 sent;
	u32 filled;		/* entries in this command */
	u32 room;		/* entries that a command takes */
	u32 lkey;
	bool registered;	/* the device knows it, by lkey */
	bool more;		/* and waits for MR_COMMIT */
};

static u32 vrdma_mr_room(const struct vrdma_mr_list *list, size_t body)
{
	size_t entry = list->words * sizeof(__le64);

	return min_t(u32, vrdma_max_entries(list->dev, body, entry),
		     VRDMA_MR_CMD_BYTES / entry);
}

/* The first command, REG_MR. */
static int vrdma_mr_first(struct vrdma_mr_list *list)
{
	struct virtio_rdma_reg_mr *body = list->cmd->body;
	size_t size = (size_t)list->filled * list->words * sizeof(__le64);
	struct virtio_rdma_mr_keys *keys;
	int err;

	body->total_entries = cpu_to_le32(list->total);
	body->num_entries = cpu_to_le32(list->filled);
	list->more = list->filled < list->total;
	if (list->more)
		body->flags |= VIRTIO_RDMA_MR_MORE;
	err = vrdma_cmd_run_exact(list->cmd, sizeof(*body) + size);
	if (err)
		return err;
	keys = list->cmd->reply_body;
	list->lkey = le32_to_cpu(keys->lkey);
	list->registered = true;
	list->mr->handle = list->lkey;
	list->mr->ibmr.lkey = list->lkey;
	list->mr->ibmr.rkey = le32_to_cpu(keys->rkey);
	return 0;
}

static int vrdma_mr_send(struct vrdma_mr_list *list)
{
	struct virtio_rdma_mr_append *body;
	size_t size = (size_t)list->filled * list->words * sizeof(__le64);
	int err;

	if (!list->sent) {
		err = vrdma_mr_first(list);
	} else {
		body = list->cmd->body;
		body->lkey = cpu_to_le32(list->lkey);
		body->num_entries = cpu_to_le32(list->filled);
		err = vrdma_cmd_run(list->cmd, sizeof(*body) + size);
	}
	if (err)
		return err;
	list->sent += list->filled;
	list->filled = 0;
	if (list->sent == list->total)
		return 0;

	/* More to come: from here on in MR_APPEND. */
	vrdma_cmd_free(list->cmd);
	list->room = vrdma_mr_room(list, sizeof(*body));
	size = (size_t)list->room * list->words * sizeof(__le64);
	list->cmd = vrdma_cmd_alloc(list->dev, list->mr->context,
				    VIRTIO_RDMA_CMD_MR_APPEND,
				    sizeof(*body) + size, 0);
	if (!list->cmd)
		return -ENOMEM;
	body = list->cmd->body;
	list->entry = body->entry;
	return 0;
}

static int vrdma_mr_put(struct vrdma_mr_list *list, u64 address, u64 length)
{
	/* The pinned memory did not change; this guards our own arithmetic. */
	if (WARN_ON_ONCE(list->sent + list->filled == list->total))
		return -EINVAL;
	*list->entry++ = cpu_to_le64(address);
	if (list->words == 2)
		*list->entry++ = cpu_to_le64(length);
	list->filled++;
	if (list->filled == list->room ||
	    list->sent + list->filled == list->total)
		return vrdma_mr_send(list);
	return 0;
}

static int vrdma_mr_put_all(struct vrdma_mr_list *list, struct ib_umem *umem)
{
	struct ib_block_iter biter;
	struct scatterlist *sg;
	int err, i;

	if (!umem)
		return vrdma_mr_send(list);

	if (list->words == 2) {
		for_each_sgtable_dma_sg(&umem->sgt_append.sgt, sg, i) {
			err = vrdma_mr_put(list, sg_dma_address(sg),
					   sg_dma_len(sg));
			if (err)
				return err;
		}
		return 0;
	}
	rdma_umem_for_each_dma_block(umem, &biter, PAGE_SIZE) {
		err = vrdma_mr_put(list, rdma_block_iter_dma_address(&biter),
				   PAGE_SIZE);
		if (err)
			return err;
	}
	return 0;
}

static int vrdma_mr_register(struct vrdma_dev *dev, struct vrdma_pd *pd,
			     struct vrdma_mr *mr, u64 length, u64 virt,
			     int access)
{
	struct vrdma_mr_list list = { .dev = dev, .mr = mr, .words = 1 };
	struct virtio_rdma_reg_mr *body;
	u8 flags = 0;
	u64 offset = 0;
	int err;

	if (mr->umem) {
		u32 extents = mr->umem->sgt_append.sgt.nents;
		size_t pages = ib_umem_num_pages(mr->umem);

		if (pages > U32_MAX)
			return -ENOMEM;
		list.total = pages;
		if (extents < pages / 2) {
			list.words = 2;
			list.total = extents;
			flags = VIRTIO_RDMA_MR_EXTENTS;
		}
		offset = ib_umem_offset(mr->umem);
	}

	list.room = min(vrdma_mr_room(&list, sizeof(*body)), list.total);
	list.cmd = vrdma_cmd_alloc(dev, mr->context, VIRTIO_RDMA_CMD_REG_MR,
				   sizeof(*body) + (size_t)list.room *
				   list.words * sizeof(__le64),
				   sizeof(struct virtio_rdma_mr_keys));
	if (!list.cmd)
		return -ENOMEM;
	body = list.cmd->body;
	body->pd = cpu_to_le32(pd->pdn);
	body->access = cpu_to_le32(access & vrdma_mr_rights(dev));
	body->iova = cpu_to_le64(virt);
	body->length = cpu_to_le64(length);
	body->offset = cpu_to_le64(offset);
	body->page_shift = PAGE_SHIFT;
	body->flags = flags;
	list.entry = body->entry;

	err = vrdma_mr_put_all(&list, mr->umem);
	if (!err && list.more)
		err = vrdma_exec_handle(dev, mr->context,
					VIRTIO_RDMA_CMD_MR_COMMIT, list.lkey);
	vrdma_cmd_free(list.cmd);
	if (err && list.registered)
		vrdma_exec_destroy(dev, mr->context, VIRTIO_RDMA_CMD_DEREG_MR,
				   list.lkey);
	return err;
}

static int vrdma_mr_check(struct vrdma_dev *dev, u64 length, int access)
{
	if (access & ~(vrdma_mr_rights(dev) | IB_ACCESS_OPTIONAL))
		return -EOPNOTSUPP;
	if (length > le64_to_cpu(dev->attr.max_mr_size))
		return -EINVAL;
	return 0;
}

/* A new region of a process, over pinned memory that it takes over. */
static struct vrdma_mr *vrdma_mr_create(struct vrdma_dev *dev,
					struct vrdma_pd *pd,
					struct ib_umem *umem, u64 length,
					u64 virt, int access)
{
	struct vrdma_mr *mr;
	int err;

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr) {
		ib_umem_release(umem);
		return ERR_PTR(-ENOMEM);
	}
	mr->context = pd->context;
	mr->umem = umem;
	mr->access = access;
	err = vrdma_mr_register(dev, pd, mr, length, virt, access);
	if (err) {
		ib_umem_release(umem);
		kfree(mr);
		return ERR_PTR(err);
	}
	return mr;
}

static struct vrdma_mr *vrdma_mr_pin(struct vrdma_dev *dev, struct vrdma_pd *pd,
				     u64 start, u64 length, u64 virt,
				     int access)
{
	struct ib_umem *umem = NULL;

	if (length) {
		umem = ib_umem_get(&dev->ibdev, start, length, access);
		if (IS_ERR(umem))
			return ERR_CAST(umem);
	}
	return vrdma_mr_create(dev, pd, umem, length, virt, access);
}

struct ib_mr *vrdma_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length,
				u64 virt, int access, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibpd->device);
	struct vrdma_mr *mr;
	int err;

	err = vrdma_mr_check(dev, length, access);
	if (err)
		return ERR_PTR(err);
	mr = vrdma_mr_pin(dev, to_vpd(ibpd), start, length, virt,
			  access & ~IB_ACCESS_OPTIONAL);
	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ibmr;
}

/*
 * Memory of another driver, pinned where it is: the device cannot follow when
 * it moves. The list begins at the page of the first byte.
 */
struct ib_mr *vrdma_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
				       u64 length, u64 virt, int fd, int access,
				       vrdma_dmabuf_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibpd->device);
	struct ib_umem_dmabuf *dmabuf;
	struct vrdma_mr *mr;
	int err;

	err = vrdma_mr_check(dev, length, access);
	if (err)
		return ERR_PTR(err);
	access &= ~IB_ACCESS_OPTIONAL;
	dmabuf = ib_umem_dmabuf_get_pinned(&dev->ibdev, offset, length, fd,
					   access);
	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	dmabuf->umem.iova = dmabuf->umem.address;
	mr = vrdma_mr_create(dev, to_vpd(ibpd), &dmabuf->umem, length, virt,
			     access);
	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ibmr;
}

/*
 * Other memory goes into a region of its own first, whose place in the device
 * then becomes that of the old one: what fails has changed nothing.
 */
struct ib_mr *vrdma_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start,
				  u64 length, u64 virt, int access,
				  struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibmr->device);
	struct vrdma_mr *mr = to_vmr(ibmr);
	struct virtio_rdma_rereg_mr body = { .lkey = cpu_to_le32(mr->handle) };
	struct vrdma_mr *source = NULL;
	u32 change = 0;
	int err;

	if (flags & ~IB_MR_REREG_SUPPORTED)
		return ERR_PTR(-EOPNOTSUPP);
	if (!(flags & IB_MR_REREG_ACCESS))
		access = mr->access;
	if (!(flags & IB_MR_REREG_TRANS))
		length = 0;
	err = vrdma_mr_check(dev, length, access);
	if (err)
		return ERR_PTR(err);
	access &= ~IB_ACCESS_OPTIONAL;

	if (!(flags & IB_MR_REREG_TRANS) && mr->umem &&
	    ib_access_writable(access) && !mr->umem->writable) {
		/* It was pinned for reading; of another process it stays so. */
		if (mr->umem->is_dmabuf || mr->umem->owning_mm != current->mm)
			return ERR_PTR(-EOPNOTSUPP);
		start = mr->umem->address;
		length = mr->umem->length;
		virt = ibmr->iova;
		flags |= IB_MR_REREG_TRANS;
	}
	if (flags & IB_MR_REREG_TRANS) {
		source = vrdma_mr_pin(dev, to_vpd(ibmr->pd), start, length,
				      virt, access);
		if (IS_ERR(source))
			return ERR_CAST(source);
		body.source = cpu_to_le32(source->handle);
		change |= VIRTIO_RDMA_REREG_TRANSLATION;
	}
	if (flags & IB_MR_REREG_PD) {
		body.pd = cpu_to_le32(to_vpd(ibpd)->pdn);
		change |= VIRTIO_RDMA_REREG_PD;
	}
	if (flags & IB_MR_REREG_ACCESS) {
		body.access = cpu_to_le32(access);
		change |= VIRTIO_RDMA_REREG_ACCESS;
	}
	body.flags = cpu_to_le32(change);
	err = vrdma_exec(dev, mr->context, VIRTIO_RDMA_CMD_REREG_MR,
			 &body, sizeof(body), NULL, 0);
	if (err) {
		if (source && vrdma_dereg_mr(&source->ibmr, NULL))
			vrdma_fail(dev, "it does not end a new memory region");
		return ERR_PTR(err);
	}
	mr->access = access;
	if (source) {
		ib_umem_release(mr->umem);
		mr->umem = source->umem;
		kfree(source);
	}
	return NULL;
}

int vrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct vrdma_dev *dev = to_vdev(ibmr->device);
	struct vrdma_mr *mr = to_vmr(ibmr);
	int err;

	err = vrdma_exec_destroy(dev, mr->context,
				 VIRTIO_RDMA_CMD_DEREG_MR, mr->handle);
	if (err)
		return err;
	ib_umem_release(mr->umem);
	vrdma_buf_free(dev, &mr->buf);
	kfree(mr);
	return 0;
}
