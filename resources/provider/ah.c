// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Address handles. The device knows none: every datagram's WQE carries the
 * address. The kernel checks it, and keeps the source GID in its slot.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vrdma.h"

struct ibv_ah *vrdma_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ib_uverbs_create_ah_resp resp = {};
	struct vrdma_ah *ah;
	int ret;

	if (!attr->is_global) {
		errno = EINVAL;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah) {
		errno = ENOMEM;
		return NULL;
	}
	ret = ibv_cmd_create_ah(pd, &ah->ibv_ah, attr, &resp, sizeof(resp));
	if (ret) {
		free(ah);
		errno = ret;
		return NULL;
	}
	memcpy(ah->av.dgid, attr->grh.dgid.raw, sizeof(ah->av.dgid));
	ah->av.flow_label = htole32(attr->grh.flow_label);
	ah->av.sgid_index = attr->grh.sgid_index;
	ah->av.hop_limit = attr->grh.hop_limit;
	ah->av.traffic_class = attr->grh.traffic_class;
	ah->av.sl = attr->sl;
	return &ah->ibv_ah;
}

int vrdma_destroy_ah(struct ibv_ah *ibv_ah)
{
	int ret;

	ret = ibv_cmd_destroy_ah(ibv_ah);
	if (ret)
		return ret;
	free(to_vah(ibv_ah));
	return 0;
}
