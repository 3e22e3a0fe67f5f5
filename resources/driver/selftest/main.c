// SPDX-License-Identifier: GPL-2.0
/* The module: a device, what its cases share, and their order. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

#include "selftest.h"

static char *st_device = "vrdma0";
module_param_named(device, st_device, charp, 0444);
MODULE_PARM_DESC(device, "RDMA device to use (default vrdma0)");

static bool st_fail;
module_param_named(fail, st_fail, bool, 0444);
MODULE_PARM_DESC(fail, "let the virtio device fail under work requests, and drain them");

/* The address of the first GID there is: the device itself. */
static int st_address(struct st_rig *rig)
{
	const struct ib_gid_attr *gid = ERR_PTR(-ENOENT);
	u32 i;

	for (i = 0; i < 16 && IS_ERR(gid); i++)
		gid = rdma_get_gid_attr(rig->dev, 1, i);
	if (IS_ERR(gid))
		return PTR_ERR(gid);
	rig->ah.type = rdma_ah_find_type(rig->dev, 1);
	rdma_ah_set_port_num(&rig->ah, 1);
	rdma_ah_set_grh(&rig->ah, (union ib_gid *)&gid->gid, 0, gid->index, 64, 0);
	rdma_put_gid_attr(gid);
	return 0;
}

static int st_cases(struct st_rig *rig)
{
	if (st_fail)
		return st_drain_failed(rig);
	return st_create_flags(rig) ?: st_drain_states(rig) ?: st_arm(rig) ?:
	       st_memory(rig);
}

static int st_run(struct st_rig *rig)
{
	struct ib_srq_init_attr srq = {
		.attr = { .max_wr = ST_WR, .max_sge = 1 },
	};
	int err;

	err = st_address(rig);
	if (err)
		return err;
	rig->pd = ib_alloc_pd(rig->dev, 0);
	if (IS_ERR(rig->pd))
		return PTR_ERR(rig->pd);
	rig->dma = ib_dma_map_single(rig->dev, rig->buf, ST_BYTES,
				     DMA_BIDIRECTIONAL);
	err = ib_dma_mapping_error(rig->dev, rig->dma);
	if (err)
		goto out_pd;
	rig->srq = ib_create_srq(rig->pd, &srq);
	if (IS_ERR(rig->srq)) {
		err = PTR_ERR(rig->srq);
		goto out_dma;
	}
	err = st_cases(rig);

	ib_destroy_srq(rig->srq);
out_dma:
	ib_dma_unmap_single(rig->dev, rig->dma, ST_BYTES, DMA_BIDIRECTIONAL);
out_pd:
	ib_dealloc_pd(rig->pd);
	return err;
}

static int __init st_init(void)
{
	struct st_rig *rig;
	int err = -ENOMEM;

	rig = kzalloc(sizeof(*rig), GFP_KERNEL);
	if (!rig)
		return err;
	rig->buf = kzalloc(ST_BYTES, GFP_KERNEL);
	rig->dev = ib_device_get_by_name(st_device, RDMA_DRIVER_UNKNOWN);
	if (!rig->dev)
		err = -ENODEV;
	else if (rig->buf)
		err = st_run(rig);
	if (rig->dev)
		ib_device_put(rig->dev);
	kfree(rig->buf);
	kfree(rig);
	if (!err)
		pr_info("all cases passed\n");
	return err;
}

static void __exit st_exit(void)
{
}

module_init(st_init);
module_exit(st_exit);

MODULE_DESCRIPTION("Cases for the verbs of kernel users");
MODULE_AUTHOR("The Longarm authors");
MODULE_LICENSE("GPL");
