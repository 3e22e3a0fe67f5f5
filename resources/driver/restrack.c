// SPDX-License-Identifier: GPL-2.0
/*
 * What `rdma resource show -dd` tells of an object beyond what the core knows.
 * An object is held while it is asked about, but not its memory.
 */
#include <net/netlink.h>
#include <rdma/ib_verbs.h>
#include <rdma/restrack.h>
#include <uapi/rdma/rdma_netlink.h>

#include "vrdma.h"

struct vrdma_detail {
	const char *name;
	u32 value;
	bool hex;
};

static int vrdma_put_details(struct sk_buff *msg,
			     const struct vrdma_detail *detail, size_t count)
{
	struct nlattr *table;
	size_t i;
	int err;

	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	if (!table)
		return -EMSGSIZE;
	for (i = 0; i < count; i++) {
		err = detail[i].hex ?
		      rdma_nl_put_driver_u32_hex(msg, detail[i].name,
						 detail[i].value) :
		      rdma_nl_put_driver_u32(msg, detail[i].name,
					     detail[i].value);
		if (err) {
			nla_nest_cancel(msg, table);
			return -EMSGSIZE;
		}
	}
	nla_nest_end(msg, table);
	return 0;
}

int vrdma_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq)
{
	const struct vrdma_cq *cq = to_vcq(ibcq);
	const struct vrdma_detail detail[] = {
		{ "handle", cq->cqn },
		{ "context", cq->context },
		{ "entries", cq->entries },
		{ "ring_pages", cq->buf.num_pages },
	};

	return vrdma_put_details(msg, detail, ARRAY_SIZE(detail));
}

int vrdma_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp)
{
	const struct vrdma_qp *qp = to_vqp(ibqp);
	const struct vrdma_detail detail[] = {
		{ "context", qp->context },
		{ "send_wr", qp->caps.send_wr },
		{ "recv_wr", qp->caps.recv_wr },
		{ "send_sge", qp->caps.send_sge },
		{ "recv_sge", qp->caps.recv_sge },
		{ "inline_data", qp->caps.inline_data },
		{ "ring_pages", qp->buf.num_pages },
	};

	return vrdma_put_details(msg, detail, ARRAY_SIZE(detail));
}

int vrdma_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq)
{
	const struct vrdma_srq *srq = to_vsrq(ibsrq);
	const struct vrdma_detail detail[] = {
		{ "handle", srq->srqn },
		{ "context", srq->context },
		{ "entries", srq->entries },
		{ "stride", srq->stride },
		{ "max_sge", srq->max_sge },
		{ "ring_pages", srq->buf.num_pages },
	};

	return vrdma_put_details(msg, detail, ARRAY_SIZE(detail));
}

/* Of a fast registration the pages that it has room for; 0 of any other. */
int vrdma_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	const struct vrdma_mr *mr = to_vmr(ibmr);
	const struct vrdma_detail detail[] = {
		{ "handle", mr->handle, true },
		{ "context", mr->context },
		{ "access", mr->access, true },
		{ "max_pages", mr->max_pages },
	};

	return vrdma_put_details(msg, detail, ARRAY_SIZE(detail));
}
