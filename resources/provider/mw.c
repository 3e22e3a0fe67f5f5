// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory windows (docs/virtio-rdma.md, sections 4.16 and 5.1). */
#include <errno.h>
#include <stdlib.h>

#include "vrdma.h"

struct ibv_mw *vrdma_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ib_uverbs_alloc_mw_resp resp = {};
	struct ibv_alloc_mw cmd = {};
	struct ibv_mw *mw;
	int ret;

	mw = calloc(1, sizeof(*mw));
	if (!mw) {
		errno = ENOMEM;
		return NULL;
	}
	ret = ibv_cmd_alloc_mw(pd, type, mw, &cmd, sizeof(cmd), &resp,
			       sizeof(resp));
	if (ret) {
		free(mw);
		errno = ret;
		return NULL;
	}
	return mw;
}

int vrdma_dealloc_mw(struct ibv_mw *mw)
{
	int ret;

	ret = ibv_cmd_dealloc_mw(mw);
	if (ret)
		return ret;
	free(mw);
	return 0;
}

void vrdma_fill_bind(struct virtio_rdma_send_wqe *wqe, uint32_t rkey,
		     const struct ibv_mw_bind_info *info)
{
	wqe->opcode = VIRTIO_RDMA_WQE_BIND_MW;
	wqe->inv_key = htole32(rkey);
	wqe->rkey = htole32(info->mr ? info->mr->lkey : 0);
	wqe->remote_addr = htole64(info->addr);
	wqe->compare_add = htole64(info->length);
	wqe->swap = htole64(info->mw_access_flags);
}

/* Of type 1: the next key is ours to choose. */
int vrdma_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw,
		  struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw.mw = mw,
		.bind_mw.rkey = ibv_inc_rkey(mw->rkey),
		.bind_mw.bind_info = bind->bind_info,
	};
	struct ibv_send_wr *bad_wr;
	int ret;

	if (bind->bind_info.length && !bind->bind_info.mr)
		return EINVAL;
	ret = vrdma_post_send(qp, &wr, &bad_wr);
	if (ret)
		return ret;
	mw->rkey = wr.bind_mw.rkey;
	return 0;
}
