// SPDX-License-Identifier: GPL-2.0
/*
 * virtio-rdma guest driver. The device it drives is specified in
 * docs/virtio-rdma.md; vrdma.h says what is in which file.
 */
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <rdma/ib_verbs.h>

#include "vrdma.h"

static const struct ib_device_ops vrdma_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = VIRTIO_RDMA_UVERBS_ABI_VERSION,

	.add_gid = vrdma_add_gid,
	.alloc_hw_port_stats = vrdma_alloc_hw_stats,
	.alloc_pd = vrdma_alloc_pd,
	.alloc_ucontext = vrdma_alloc_ucontext,
	.create_cq = vrdma_create_cq,
	.create_qp = vrdma_create_qp,
	.dealloc_pd = vrdma_dealloc_pd,
	.dealloc_ucontext = vrdma_dealloc_ucontext,
	.del_gid = vrdma_del_gid,
	.dereg_mr = vrdma_dereg_mr,
	.destroy_cq = vrdma_destroy_cq,
	.destroy_qp = vrdma_destroy_qp,
	.disassociate_ucontext = vrdma_disassociate_ucontext,
	.fill_res_cq_entry = vrdma_fill_res_cq,
	.fill_res_mr_entry = vrdma_fill_res_mr,
	.fill_res_qp_entry = vrdma_fill_res_qp,
	.get_dev_fw_str = vrdma_get_fw_str,
	.get_hw_stats = vrdma_get_hw_stats,
	.get_link_layer = vrdma_get_link_layer,
	.get_port_immutable = vrdma_get_port_immutable,
	.mmap = vrdma_mmap,
	.mmap_free = vrdma_mmap_free,
	.modify_cq = vrdma_modify_cq,
	.modify_qp = vrdma_modify_qp,
	.poll_cq = vrdma_poll_cq,
	.post_recv = vrdma_post_recv,
	.post_send = vrdma_post_send,
	.query_device = vrdma_query_device,
	.query_pkey = vrdma_query_pkey,
	.query_port = vrdma_query_port,
	.query_qp = vrdma_query_qp,
	.query_ucontext = vrdma_query_ucontext,
	.reg_user_mr = vrdma_reg_user_mr,
	.reg_user_mr_dmabuf = vrdma_reg_user_mr_dmabuf,
	.req_notify_cq = vrdma_req_notify_cq,
	.rereg_user_mr = vrdma_rereg_user_mr,
	.resize_cq = vrdma_resize_cq,

	INIT_RDMA_OBJ_SIZE(ib_cq, vrdma_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, vrdma_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, vrdma_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, vrdma_ucontext, ibucontext),
};

static const struct ib_device_ops vrdma_datagram_ops = {
	.attach_mcast = vrdma_attach_mcast,
	.create_ah = vrdma_create_ah,
	.create_user_ah = vrdma_create_ah,
	.destroy_ah = vrdma_destroy_ah,
	.detach_mcast = vrdma_detach_mcast,

	INIT_RDMA_OBJ_SIZE(ib_ah, vrdma_ah, ibah),
};

/* Without these the core offers the device to processes only. */
static const struct ib_device_ops vrdma_dma_mr_ops = {
	.get_dma_mr = vrdma_get_dma_mr,
};

static const struct ib_device_ops vrdma_frwr_ops = {
	.alloc_mr = vrdma_alloc_mr,
	.map_mr_sg = vrdma_map_mr_sg,
};

static const struct ib_device_ops vrdma_mw_ops = {
	.alloc_mw = vrdma_alloc_mw,
	.dealloc_mw = vrdma_dealloc_mw,

	INIT_RDMA_OBJ_SIZE(ib_mw, vrdma_mw, ibmw),
};

static const struct ib_device_ops vrdma_srq_ops = {
	.create_srq = vrdma_create_srq,
	.destroy_srq = vrdma_destroy_srq,
	VRDMA_FILL_RES_SRQ(vrdma_fill_res_srq)
	.modify_srq = vrdma_modify_srq,
	.post_srq_recv = vrdma_post_srq_recv,
	.query_srq = vrdma_query_srq,

	INIT_RDMA_OBJ_SIZE(ib_srq, vrdma_srq, ibsrq),
};

static const struct ib_device_ops vrdma_xrc_ops = {
	.alloc_xrcd = vrdma_alloc_xrcd,
	.dealloc_xrcd = vrdma_dealloc_xrcd,

	INIT_RDMA_OBJ_SIZE(ib_xrcd, vrdma_xrcd, ibxrcd),
};

/* The pages from 1 on are mapped by processes; page 0 is the kernel's own. */
static int vrdma_find_doorbells(struct vrdma_dev *dev)
{
	struct device *parent = dev->vdev->dev.parent;
	u64 offset, size;
	u32 pages;
	u8 bar;

	if (!vrdma_has(dev, VIRTIO_RDMA_F_USER_DOORBELL))
		return 0;
	if (PAGE_SIZE != VIRTIO_RDMA_PAGE_SIZE || !dev_is_pci(parent)) {
		dev_warn(&dev->vdev->dev,
			 "doorbell pages cannot be mapped here: no user contexts\n");
		return 0;
	}
	virtio_cread_le(dev->vdev, struct virtio_rdma_config, doorbell_pages,
			&pages);
	virtio_cread_le(dev->vdev, struct virtio_rdma_config, doorbell_bar,
			&bar);
	virtio_cread_le(dev->vdev, struct virtio_rdma_config, doorbell_offset,
			&offset);
	size = (u64)pages << VIRTIO_RDMA_PAGE_SHIFT;

	if (bar >= PCI_STD_NUM_BARS || !pages ||
	    offset % VIRTIO_RDMA_PAGE_SIZE ||
	    size > pci_resource_len(to_pci_dev(parent), bar) ||
	    offset > pci_resource_len(to_pci_dev(parent), bar) - size) {
		dev_err(&dev->vdev->dev,
			"%u doorbell pages at %#llx do not lie in BAR %u\n",
			pages, offset, bar);
		return -EINVAL;
	}
	dev->doorbell = pci_resource_start(to_pci_dev(parent), bar) + offset;
	dev->kernel_doorbell = ioremap(dev->doorbell, VIRTIO_RDMA_PAGE_SIZE);
	if (!dev->kernel_doorbell)
		return -ENOMEM;
	dev->doorbell_pages = pages;
	return 0;
}

static void vrdma_unmap_doorbell(struct vrdma_dev *dev)
{
	if (dev->kernel_doorbell)
		iounmap(dev->kernel_doorbell);
}

/* After a reset, or before the device was told that the driver is ready. */
static void vrdma_free_vqs(struct vrdma_dev *dev)
{
	u32 i;

	vrdma_eq_free(&dev->async);
	for (i = 0; i < dev->num_vectors; i++)
		vrdma_eq_free(&dev->comp[i]);
	dev->vdev->config->del_vqs(dev->vdev);
}

static int vrdma_setup_vqs(struct vrdma_dev *dev)
{
	u32 i, nvqs = VIRTIO_RDMA_VQ_COMP + dev->num_vectors;
	vq_callback_t **callbacks;
	struct virtqueue **vqs;
	const char **names;
	int err = -ENOMEM;

	vqs = kcalloc(nvqs, sizeof(*vqs), GFP_KERNEL);
	callbacks = kcalloc(nvqs, sizeof(*callbacks), GFP_KERNEL);
	names = kcalloc(nvqs, sizeof(*names), GFP_KERNEL);
	dev->comp = kcalloc(dev->num_vectors, sizeof(*dev->comp), GFP_KERNEL);
	if (!vqs || !callbacks || !names || !dev->comp)
		goto out;

	names[VIRTIO_RDMA_VQ_CTRL] = "control";
	callbacks[VIRTIO_RDMA_VQ_CTRL] = vrdma_ctrl_done;
	names[VIRTIO_RDMA_VQ_ASYNC] = "async";
	callbacks[VIRTIO_RDMA_VQ_ASYNC] = vrdma_async_event;
	for (i = VIRTIO_RDMA_VQ_COMP; i < nvqs; i++) {
		names[i] = "completion";
		callbacks[i] = vrdma_comp_event;
	}
	err = vrdma_find_vqs(dev->vdev, nvqs, vqs, callbacks, names);
	if (err)
		goto out;

	err = vrdma_ctrl_init(dev, vqs[VIRTIO_RDMA_VQ_CTRL]);
	if (!err)
		err = vrdma_eq_init(&dev->async, vqs[VIRTIO_RDMA_VQ_ASYNC],
				    sizeof(struct virtio_rdma_async_event));
	for (i = 0; i < dev->num_vectors && !err; i++)
		err = vrdma_eq_init(&dev->comp[i], vqs[VIRTIO_RDMA_VQ_COMP + i],
				    sizeof(struct virtio_rdma_comp_event));
	if (err)
		vrdma_free_vqs(dev);
out:
	kfree(names);
	kfree(callbacks);
	kfree(vqs);
	return err;
}

static int vrdma_register(struct vrdma_dev *dev)
{
	struct ib_device *ibdev = &dev->ibdev;
	int err;

	ibdev->node_type = RDMA_NODE_IB_CA;
	ibdev->phys_port_cnt = 1;
	ibdev->num_comp_vectors = dev->num_vectors;
	ibdev->dev.parent = &dev->vdev->dev;
	memcpy(&ibdev->node_guid, dev->attr.node_guid,
	       sizeof(ibdev->node_guid));
	strscpy(ibdev->node_desc, "virtio-rdma", sizeof(ibdev->node_desc));
	ib_set_device_ops(ibdev, &vrdma_ops);
	ibdev->driver_def = vrdma_uapi_defs;
	if (vrdma_has(dev, VIRTIO_RDMA_F_UD))
		ib_set_device_ops(ibdev, &vrdma_datagram_ops);
	if (vrdma_has(dev, VIRTIO_RDMA_F_DMA_MR))
		ib_set_device_ops(ibdev, &vrdma_dma_mr_ops);
	if (vrdma_has(dev, VIRTIO_RDMA_F_SRQ))
		ib_set_device_ops(ibdev, &vrdma_srq_ops);
	if (vrdma_has(dev, VIRTIO_RDMA_F_XRC))
		ib_set_device_ops(ibdev, &vrdma_xrc_ops);
	if (vrdma_has(dev, VIRTIO_RDMA_F_FRWR))
		ib_set_device_ops(ibdev, &vrdma_frwr_ops);
	if (vrdma_has(dev, VIRTIO_RDMA_F_MW))
		ib_set_device_ops(ibdev, &vrdma_mw_ops);

	vrdma_netdev_pair(dev);
	err = ib_register_device(ibdev, "vrdma%d", dev->dma_dev);
	if (err)
		return err;
	spin_lock_irq(&dev->netdev_lock);
	dev->registered = true;
	spin_unlock_irq(&dev->netdev_lock);

	err = vrdma_netdev_start(dev);
	if (err)
		ib_unregister_device(ibdev);
	return err;
}

static int vrdma_validate(struct virtio_device *vdev)
{
	if (!virtio_has_feature(vdev, VIRTIO_F_ACCESS_PLATFORM)) {
		dev_err(&vdev->dev,
			"the device does not offer VIRTIO_F_ACCESS_PLATFORM, which it must\n");
		return -EINVAL;
	}
	return 0;
}

static int vrdma_probe(struct virtio_device *vdev)
{
	struct vrdma_dev *dev;
	u16 vectors;
	u32 i;
	int err;

	dev = ib_alloc_device(vrdma_dev, ibdev);
	if (!dev)
		return -ENOMEM;
	vdev->priv = dev;
	dev->vdev = vdev;
	dev->dma_dev = vdev->dev.parent;
	xa_init_flags(&dev->cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->srqs, XA_FLAGS_LOCK_IRQ);
	mutex_init(&dev->fail_lock);
	INIT_WORK(&dev->fail_work, vrdma_fail_work);
	INIT_WORK(&dev->flush_work, vrdma_flush_work);
	vrdma_netdev_init(dev);
	/* A piece of memory is given to the device as long as it is. */
	dma_set_max_seg_size(dev->dma_dev, UINT_MAX);

	virtio_cread_bytes(vdev, offsetof(struct virtio_rdma_config, mac),
			   dev->mac, sizeof(dev->mac));
	virtio_cread_le(vdev, struct virtio_rdma_config, num_vectors, &vectors);
	if (!vectors) {
		dev_err(&vdev->dev, "the device has no completion vectors\n");
		err = -EINVAL;
		goto err_dealloc;
	}
	/* More than there are processors would be of no use. */
	dev->num_vectors = min_t(u32, vectors, num_possible_cpus());

	err = vrdma_find_doorbells(dev);
	if (err)
		goto err_dealloc;
	err = vrdma_setup_vqs(dev);
	if (err)
		goto err_comp;

	virtio_device_ready(vdev);
	vrdma_eq_start(&dev->async);
	for (i = 0; i < dev->num_vectors; i++)
		vrdma_eq_start(&dev->comp[i]);

	err = vrdma_query_attr(dev);
	if (err)
		goto err_stop;
	err = vrdma_register(dev);
	if (err)
		goto err_stop;
	return 0;

err_stop:
	vrdma_stop(dev);
	cancel_work_sync(&dev->fail_work);
	cancel_work_sync(&dev->flush_work);
	vrdma_netdev_release(dev);
	vrdma_free_vqs(dev);
err_comp:
	kfree(dev->comp);
	vrdma_unmap_doorbell(dev);
err_dealloc:
	ib_dealloc_device(&dev->ibdev);
	return err;
}

/*
 * First the objects go, with the device still there to confirm it; then the
 * device is reset, and only then the queues go.
 */
static void vrdma_remove(struct virtio_device *vdev)
{
	struct vrdma_dev *dev = vdev->priv;

	vrdma_netdev_stop(dev);
	spin_lock_irq(&dev->netdev_lock);
	dev->registered = false;
	spin_unlock_irq(&dev->netdev_lock);
	ib_unregister_device(&dev->ibdev);

	vrdma_stop(dev);
	cancel_work_sync(&dev->fail_work);
	cancel_work_sync(&dev->flush_work);
	vrdma_netdev_release(dev);
	vrdma_free_vqs(dev);
	kfree(dev->comp);
	vrdma_unmap_doorbell(dev);
	xa_destroy(&dev->cqs);
	xa_destroy(&dev->qps);
	xa_destroy(&dev->srqs);
	ib_dealloc_device(&dev->ibdev);
}

static void vrdma_config_changed(struct virtio_device *vdev)
{
	struct vrdma_dev *dev = vdev->priv;

	if (vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_NEEDS_RESET)
		schedule_work(&dev->fail_work);
}

static const struct virtio_device_id vrdma_ids[] = {
	{ VIRTIO_RDMA_DEVICE_ID, VIRTIO_DEV_ANY_ID },
	{}
};
MODULE_DEVICE_TABLE(virtio, vrdma_ids);

static const unsigned int vrdma_features[] = {
	VIRTIO_RDMA_F_UC,
	VIRTIO_RDMA_F_UD,
	VIRTIO_RDMA_F_SRQ,
	VIRTIO_RDMA_F_ATOMICS,
	VIRTIO_RDMA_F_FRWR,
	VIRTIO_RDMA_F_MW,
	VIRTIO_RDMA_F_CQ_RESIZE,
	VIRTIO_RDMA_F_USER_DOORBELL,
	VIRTIO_RDMA_F_XRC,
	VIRTIO_RDMA_F_DMA_MR,
	VIRTIO_RDMA_F_ATOMIC_WRITE,
	VIRTIO_RDMA_F_FLUSH,
};

static struct virtio_driver vrdma_driver = {
	.driver.name = "virtio_rdma",
	.driver.owner = THIS_MODULE,
	.feature_table = vrdma_features,
	.feature_table_size = ARRAY_SIZE(vrdma_features),
	.id_table = vrdma_ids,
	.validate = vrdma_validate,
	.probe = vrdma_probe,
	.remove = vrdma_remove,
	.config_changed = vrdma_config_changed,
};
module_virtio_driver(vrdma_driver);

MODULE_DESCRIPTION("virtio RDMA guest driver");
MODULE_AUTHOR("The Longarm authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
