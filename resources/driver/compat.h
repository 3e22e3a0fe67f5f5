/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where the kernels that the driver is built for differ: 6.1 (Debian 12) and
 * 6.12 (Debian 13). Nothing else in the driver asks for a version.
 */
#ifndef VRDMA_COMPAT_H
#define VRDMA_COMPAT_H

#include <linux/slab.h>
#include <linux/version.h>
#include <linux/virtio_config.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
/* The verbs have no name for these yet, and so no flag. */
#define IB_DEVICE_FLUSH_GLOBAL	0ULL
#define IB_DEVICE_ATOMIC_WRITE	0ULL
#define IB_WC_ATOMIC_WRITE	IB_WC_RDMA_WRITE

static inline bool vrdma_is_atomic_write(const struct ib_send_wr *wr)
{
	return false;
}
#else
static inline bool vrdma_is_atomic_write(const struct ib_send_wr *wr)
{
	return wr->opcode == IB_WR_ATOMIC_WRITE;
}
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)

/*
 * create_cq and reg_user_mr_dmabuf are given the whole attribute bundle, none
 * for a kernel CQ.
 */
typedef struct uverbs_attr_bundle vrdma_cq_udata;
typedef struct uverbs_attr_bundle vrdma_dmabuf_udata;

static inline struct ib_udata *vrdma_cq_udata_get(vrdma_cq_udata *attrs)
{
	return attrs ? &attrs->driver_udata : NULL;
}

static inline int vrdma_find_vqs(struct virtio_device *vdev, unsigned int nvqs,
				 struct virtqueue **vqs,
				 vq_callback_t **callbacks,
				 const char **names)
{
	struct virtqueue_info *info;
	unsigned int i;
	int err;

	info = kcalloc(nvqs, sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	for (i = 0; i < nvqs; i++) {
		info[i].name = names[i];
		info[i].callback = callbacks[i];
	}
	err = virtio_find_vqs(vdev, nvqs, vqs, info, NULL);
	kfree(info);
	return err;
}

#else

typedef struct ib_udata vrdma_cq_udata;
typedef struct ib_udata vrdma_dmabuf_udata;

static inline struct ib_udata *vrdma_cq_udata_get(vrdma_cq_udata *udata)
{
	return udata;
}

static inline int vrdma_find_vqs(struct virtio_device *vdev, unsigned int nvqs,
				 struct virtqueue **vqs,
				 vq_callback_t **callbacks,
				 const char **names)
{
	return virtio_find_vqs(vdev, nvqs, vqs, callbacks,
			       (const char * const *)names, NULL);
}

#endif

/* The resource tracker asks for details of SRQs since 6.4. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
#define VRDMA_FILL_RES_SRQ(function)	.fill_res_srq_entry = (function),
#else
#define VRDMA_FILL_RES_SRQ(function)
#endif

#endif /* VRDMA_COMPAT_H */
