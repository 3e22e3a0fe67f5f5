// SPDX-License-Identifier: GPL-2.0
/*
 * Objects that the device names by number in its events. A handler holds the
 * one it found, and the object's end waits for all who do.
 */
#include "vrdma.h"

/* From here on it is found by its number. */
int vrdma_held_add(struct xarray *objects, u32 number, struct vrdma_held *held)
{
	refcount_set(&held->refs, 1);
	init_completion(&held->free);
	return xa_insert_irq(objects, number, held, GFP_KERNEL);
}

/* Found by number and held, or NULL. In any context. */
struct vrdma_held *vrdma_held_get(struct xarray *objects, u32 number)
{
	struct vrdma_held *held;
	unsigned long flags;

	xa_lock_irqsave(objects, flags);
	held = xa_load(objects, number);
	if (held)
		refcount_inc(&held->refs);
	xa_unlock_irqrestore(objects, flags);
	return held;
}

void vrdma_held_put(struct vrdma_held *held)
{
	if (refcount_dec_and_test(&held->refs))
		complete(&held->free);
}

/* It is found no more; when this returns nobody holds it. */
void vrdma_held_end(struct xarray *objects, u32 number,
		    struct vrdma_held *held)
{
	xa_erase_irq(objects, number);
	vrdma_held_put(held);
	wait_for_completion(&held->free);
}
