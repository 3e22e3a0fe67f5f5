// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of rings, which the device is told about as lists of DMA pages
 * (docs/virtio-rdma.md, sections 4.6 and 4.7).
 */
#include <linux/dma-mapping.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "vrdma.h"

/* How many list entries a command has room for beside its body. */
u32 vrdma_max_entries(const struct vrdma_dev *dev, size_t body, size_t entry)
{
	return (dev->max_cmd_bytes - sizeof(struct virtio_rdma_cmd_hdr) - body) /
	       entry;
}

/*
 * Pins the piece of the calling process that holds its rings. Pages are those
 * of the kernel, for they are pinned and mapped whole; only a list that would
 * not fit a command is given in larger blocks.
 */
int vrdma_buf_pin(struct vrdma_dev *dev, struct vrdma_buf *buf, u64 addr,
		  u64 length, u32 max_pages)
{
	unsigned long sizes = le64_to_cpu(dev->attr.page_size_cap) &
			      GENMASK(30, PAGE_SHIFT);

	if (!length || length % VIRTIO_RDMA_PAGE_SIZE ||
	    addr % VIRTIO_RDMA_PAGE_SIZE)
		return -EINVAL;
	buf->umem = ib_umem_get(&dev->ibdev, addr, length,
				IB_ACCESS_LOCAL_WRITE);
	if (IS_ERR(buf->umem)) {
		int err = PTR_ERR(buf->umem);

		buf->umem = NULL;
		return err;
	}
	buf->length = length;
	buf->page_size = PAGE_SIZE;
	if (ib_umem_num_dma_blocks(buf->umem, buf->page_size) > max_pages)
		buf->page_size = ib_umem_find_best_pgsz(buf->umem, sizes, addr);
	if (!buf->page_size ||
	    ib_umem_num_dma_blocks(buf->umem, buf->page_size) > max_pages) {
		ib_umem_release(buf->umem);
		buf->umem = NULL;
		return -ENOMEM;
	}
	buf->num_pages = ib_umem_num_dma_blocks(buf->umem, buf->page_size);
	buf->offset = addr & (buf->page_size - 1);
	return 0;
}

/* Zeroed memory for rings of the kernel. */
int vrdma_buf_alloc(struct vrdma_dev *dev, struct vrdma_buf *buf, u64 length,
		    u32 max_pages)
{
	buf->length = PAGE_ALIGN(length);
	buf->page_size = PAGE_SIZE;
	buf->num_pages = buf->length >> PAGE_SHIFT;
	buf->offset = 0;
	if (buf->num_pages > max_pages)
		return -ENOMEM;
	buf->cpu = dma_alloc_coherent(dev->dma_dev, buf->length, &buf->dma,
				      GFP_KERNEL);
	return buf->cpu ? 0 : -ENOMEM;
}

/* Only when the device has let go of it. */
void vrdma_buf_free(struct vrdma_dev *dev, struct vrdma_buf *buf)
{
	if (buf->umem)
		ib_umem_release(buf->umem);
	if (buf->cpu)
		dma_free_coherent(dev->dma_dev, buf->length, buf->cpu,
				  buf->dma);
	buf->umem = NULL;
	buf->cpu = NULL;
}

/* What a command says of it, and its pages, with which the command ends. */
void vrdma_buf_fill(struct virtio_rdma_buf *body, const struct vrdma_buf *buf,
		    __le64 *page)
{
	struct ib_block_iter biter;
	u32 i;

	body->length = cpu_to_le64(buf->length);
	body->page_shift = cpu_to_le32(ilog2(buf->page_size));
	body->num_pages = cpu_to_le32(buf->num_pages);
	body->offset = cpu_to_le64(buf->offset);
	if (buf->umem) {
		rdma_umem_for_each_dma_block(buf->umem, &biter, buf->page_size)
			*page++ = cpu_to_le64(rdma_block_iter_dma_address(&biter));
		return;
	}
	for (i = 0; i < buf->num_pages; i++)
		*page++ = cpu_to_le64(buf->dma + (u64)i * PAGE_SIZE);
}

/* Of a ring, with its control block. */
void vrdma_buf_fill_ring(struct virtio_rdma_ring *ring,
			 const struct vrdma_buf *buf, u64 ctrl_offset,
			 u64 ring_offset)
{
	ring->ctrl_offset = cpu_to_le64(ctrl_offset);
	ring->ring_offset = cpu_to_le64(ring_offset);
	vrdma_buf_fill(&ring->buf, buf, ring->page);
}
