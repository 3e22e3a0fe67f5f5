// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The device's clock counts nanoseconds. Its reading takes a command, so what
 * stands between it and the wall clock is found out at times and not for each
 * completion.
 */
#include <errno.h>
#include <time.h>

#include "vrdma.h"

#define NSEC_PER_SEC		1000000000ULL

/* How long a difference between the clocks is believed. */
#define VRDMA_WALL_PERIOD	NSEC_PER_SEC
/* Readings; the one that took least time tells most. */
#define VRDMA_WALL_TRIES	3

struct vrdma_query_device_resp {
	struct ib_uverbs_ex_query_device_resp ibv_resp;
	struct virtio_rdma_uresp_query_device drv;
};
static_assert(offsetof(struct vrdma_query_device_resp, drv) ==
		      sizeof(struct ib_uverbs_ex_query_device_resp),
	      "the driver's part follows the core's at once");

static int vrdma_read_clock(struct ibv_context *ibv_ctx, uint64_t *clock)
{
	struct vrdma_query_device_resp resp = {};
	struct ibv_device_attr_ex attr;
	size_t size = sizeof(resp);
	int ret;

	ret = ibv_cmd_query_device_any(ibv_ctx, NULL, &attr, sizeof(attr),
				       &resp.ibv_resp, &size);
	if (ret)
		return ret;
	*clock = resp.drv.clock;
	return 0;
}

int vrdma_query_rt_values(struct ibv_context *ibv_ctx,
			  struct ibv_values_ex *values)
{
	uint64_t clock;
	int ret;

	if (!check_comp_mask(values->comp_mask, IBV_VALUES_MASK_RAW_CLOCK))
		return EINVAL;
	if (!values->comp_mask)
		return 0;
	ret = vrdma_read_clock(ibv_ctx, &clock);
	if (ret)
		return ret;
	/* In one number, as read_completion_ts has it. */
	values->raw_clock.tv_sec = 0;
	values->raw_clock.tv_nsec = clock;
	return 0;
}

static uint64_t vrdma_now(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return now.tv_sec * NSEC_PER_SEC + now.tv_nsec;
}

/*
 * Under the CQ's lock. Right to half of what a reading takes; after one that
 * fails, what is known holds on.
 */
int vrdma_check_wallclock(struct vrdma_cq *cq)
{
	uint64_t now = vrdma_now(CLOCK_MONOTONIC);
	uint64_t before, after, clock, least = UINT64_MAX;
	int i, ret;

	if (cq->wall_checked && now - cq->wall_checked < VRDMA_WALL_PERIOD)
		return 0;
	for (i = 0; i < VRDMA_WALL_TRIES; i++) {
		before = vrdma_now(CLOCK_REALTIME);
		ret = vrdma_read_clock(cq->ibv_cq.context, &clock);
		if (ret)
			return ret;
		after = vrdma_now(CLOCK_REALTIME);
		if (after - before < least) {
			least = after - before;
			cq->wall_offset = before + least / 2 - clock;
		}
	}
	cq->wall_checked = now;
	return 0;
}
