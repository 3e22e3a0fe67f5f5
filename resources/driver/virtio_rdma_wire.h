/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause */
/*
 * What passes between a virtio-rdma driver and the device, one to one with
 * docs/virtio-rdma.md (the section is named at each group). Shared by the
 * kernel driver and the rdma-core provider: data only, no code.
 */
#ifndef VIRTIO_RDMA_WIRE_H
#define VIRTIO_RDMA_WIRE_H

#include <linux/types.h>

/* Section 1: device ID and feature bits. */
#define VIRTIO_RDMA_DEVICE_ID		42

#define VIRTIO_RDMA_F_UC		0
#define VIRTIO_RDMA_F_UD		1
#define VIRTIO_RDMA_F_SRQ		2
#define VIRTIO_RDMA_F_ATOMICS		3
#define VIRTIO_RDMA_F_FRWR		4
#define VIRTIO_RDMA_F_MW		5
#define VIRTIO_RDMA_F_CQ_RESIZE		6
#define VIRTIO_RDMA_F_INDIRECT_MR	7
#define VIRTIO_RDMA_F_USER_DOORBELL	8
#define VIRTIO_RDMA_F_XRC		9
#define VIRTIO_RDMA_F_DMA_MR		10
#define VIRTIO_RDMA_F_ATOMIC_WRITE	11
#define VIRTIO_RDMA_F_FLUSH		12

/* Granule of doorbell pages and ring buffers. */
#define VIRTIO_RDMA_PAGE_SHIFT		12
#define VIRTIO_RDMA_PAGE_SIZE		(1U << VIRTIO_RDMA_PAGE_SHIFT)

/* Section 2: configuration. */
struct virtio_rdma_config {
	__u8	mac[6];
	__le16	num_vectors;
	__le32	doorbell_pages;
	__u8	doorbell_bar;
	__u8	reserved[3];
	__le64	doorbell_offset;
};

/* Section 3: virtqueues; completion vector v is queue VQ_COMP + v. */
#define VIRTIO_RDMA_VQ_CTRL		0
#define VIRTIO_RDMA_VQ_ASYNC		1
#define VIRTIO_RDMA_VQ_COMP		2

/* Section 4: commands. */
enum virtio_rdma_opcode {
	VIRTIO_RDMA_CMD_QUERY_DEVICE	= 0x0001,
	VIRTIO_RDMA_CMD_QUERY_PORT	= 0x0002,
	VIRTIO_RDMA_CMD_QUERY_COUNTERS	= 0x0003,
	VIRTIO_RDMA_CMD_QUERY_CLOCK	= 0x0004,
	VIRTIO_RDMA_CMD_ADD_GID		= 0x0010,
	VIRTIO_RDMA_CMD_DEL_GID		= 0x0011,
	VIRTIO_RDMA_CMD_CREATE_CONTEXT	= 0x0020,
	VIRTIO_RDMA_CMD_DESTROY_CONTEXT	= 0x0021,
	VIRTIO_RDMA_CMD_CREATE_PD	= 0x0030,
	VIRTIO_RDMA_CMD_DESTROY_PD	= 0x0031,
	VIRTIO_RDMA_CMD_REG_MR		= 0x0040,
	VIRTIO_RDMA_CMD_MR_APPEND	= 0x0041,
	VIRTIO_RDMA_CMD_MR_COMMIT	= 0x0042,
	VIRTIO_RDMA_CMD_DEREG_MR	= 0x0043,
	VIRTIO_RDMA_CMD_REREG_MR	= 0x0044,
	VIRTIO_RDMA_CMD_ALLOC_MR	= 0x0045,
	VIRTIO_RDMA_CMD_CREATE_CQ	= 0x0050,
	VIRTIO_RDMA_CMD_DESTROY_CQ	= 0x0051,
	VIRTIO_RDMA_CMD_RESIZE_CQ	= 0x0052,
	VIRTIO_RDMA_CMD_MODIFY_CQ	= 0x0053,
	VIRTIO_RDMA_CMD_CREATE_QP	= 0x0060,
	VIRTIO_RDMA_CMD_MODIFY_QP	= 0x0061,
	VIRTIO_RDMA_CMD_QUERY_QP	= 0x0062,
	VIRTIO_RDMA_CMD_DESTROY_QP	= 0x0063,
	VIRTIO_RDMA_CMD_CREATE_SRQ	= 0x0070,
	VIRTIO_RDMA_CMD_MODIFY_SRQ	= 0x0071,
	VIRTIO_RDMA_CMD_QUERY_SRQ	= 0x0072,
	VIRTIO_RDMA_CMD_DESTROY_SRQ	= 0x0073,
	VIRTIO_RDMA_CMD_ALLOC_MW	= 0x0090,
	VIRTIO_RDMA_CMD_DEALLOC_MW	= 0x0091,
	VIRTIO_RDMA_CMD_ATTACH_MCAST	= 0x00a0,
	VIRTIO_RDMA_CMD_DETACH_MCAST	= 0x00a1,
	VIRTIO_RDMA_CMD_ALLOC_XRCD	= 0x00b0,
	VIRTIO_RDMA_CMD_DEALLOC_XRCD	= 0x00b1,
};

enum virtio_rdma_status {
	VIRTIO_RDMA_OK			= 0,
	VIRTIO_RDMA_UNSUPPORTED		= 1,
	VIRTIO_RDMA_INVALID		= 2,
	VIRTIO_RDMA_NO_RESOURCE		= 3,
	VIRTIO_RDMA_NOT_FOUND		= 4,
	VIRTIO_RDMA_DENIED		= 5,
	VIRTIO_RDMA_BUSY		= 6,
	VIRTIO_RDMA_BAD_STATE		= 7,
	VIRTIO_RDMA_BAD_ADDRESS		= 8,
	VIRTIO_RDMA_EXISTS		= 9,
	VIRTIO_RDMA_IN_PROGRESS		= 10,
};

/* The context of commands that the kernel gives on its own behalf. */
#define VIRTIO_RDMA_KERNEL_CONTEXT	0

struct virtio_rdma_cmd_hdr {
	__le16	opcode;
	__le16	reserved;
	__le32	length;
	__le32	context;
	__le32	reserved1;
	__le64	cookie;
};

struct virtio_rdma_reply_hdr {
	__le32	status;
	__le32	length;
	__le64	cookie;
};

/* A command or reply that is one handle, and what goes with it. */
struct virtio_rdma_handle {
	__le32	handle;
	__le32	reserved;
};

/* Section 4.1 */
struct virtio_rdma_device_attr {
	__u8	node_guid[8];
	__u8	sys_image_guid[8];
	__le64	fw_version;
	__le64	max_mr_size;
	__le64	page_size_cap;
	__le32	vendor_id;
	__le32	vendor_part_id;
	__le32	hw_version;
	__le32	max_contexts;
	__le32	max_pd;
	__le32	max_mr;
	__le32	max_mw;
	__le32	max_cq;
	__le32	max_cqe;
	__le32	max_qp;
	__le32	max_send_wr;
	__le32	max_recv_wr;
	__le32	max_send_sge;
	__le32	max_recv_sge;
	__le32	max_inline;
	__le32	max_srq;
	__le32	max_srq_wr;
	__le32	max_srq_sge;
	__le32	max_ah;
	__le32	max_xrcd;
	__le32	max_rd_atomic;
	__le32	max_init_rd_atomic;
	__le32	max_mcast_grp;
	__le32	max_mcast_qp;
	__le32	max_gids;
	__le32	max_pkeys;
	__le32	max_msg_size;
	__le32	max_fast_reg_pages;
	__le32	max_cmd_bytes;
	__le32	ack_delay;
	__le32	max_sq_stride;
	__le32	reserved;
};

/* Section 4.2; the query itself is a virtio_rdma_port. */
struct virtio_rdma_port {
	__le32	port;
};

struct virtio_rdma_port_attr {
	__u8	state;
	__u8	phys_state;
	__u8	max_mtu;
	__u8	active_width;
	__u8	active_speed;
	__u8	reserved[3];
	__le32	max_msg_size;
	__le32	gid_table_len;
	__le32	pkey_table_len;
	__le32	reserved1;
};

/* Section 4.3 */
#define VIRTIO_RDMA_GID_ROCE_V2		2
#define VIRTIO_RDMA_NO_VLAN		0xffff

struct virtio_rdma_add_gid {
	__le32	index;
	__u8	type;
	__u8	reserved;
	__le16	vlan;
	__u8	gid[16];
	__u8	mac[6];
	__u8	reserved1[2];
};

struct virtio_rdma_context {
	__le32	context;
	__le32	doorbell_page;
};

/* Section 4.4 */
#define VIRTIO_RDMA_MR_MORE		0x1
#define VIRTIO_RDMA_MR_EXTENTS		0x2
#define VIRTIO_RDMA_MR_DMA		0x4

/* With EXTENTS two words, address and length, else one, the page's address. */
struct virtio_rdma_reg_mr {
	__le32	pd;
	__le32	access;
	__le64	iova;
	__le64	length;
	__le64	offset;
	__u8	page_shift;
	__u8	flags;
	__le16	reserved;
	__le32	total_entries;
	__le32	num_entries;
	__le32	reserved1;
	__le64	entry[];
};

struct virtio_rdma_mr_append {
	__le32	lkey;
	__le32	num_entries;
	__le64	entry[];
};

struct virtio_rdma_mr_keys {
	__le32	lkey;
	__le32	rkey;
};

/* Section 4.5 */
#define VIRTIO_RDMA_ACCESS_LOCAL_WRITE		0x01
#define VIRTIO_RDMA_ACCESS_REMOTE_WRITE		0x02
#define VIRTIO_RDMA_ACCESS_REMOTE_READ		0x04
#define VIRTIO_RDMA_ACCESS_REMOTE_ATOMIC	0x08
#define VIRTIO_RDMA_ACCESS_MW_BIND		0x10
#define VIRTIO_RDMA_ACCESS_ALL			0x1f
/* With feature FLUSH; the second for queue pairs only. */
#define VIRTIO_RDMA_ACCESS_FLUSH_GLOBAL		0x100
#define VIRTIO_RDMA_ACCESS_FLUSH_PERSISTENT	0x200
/* Of BIND_MW only. */
#define VIRTIO_RDMA_ACCESS_ZERO_BASED		0x20

/* Memory of a list or of rings; its pages end the command. */
struct virtio_rdma_buf {
	__le64	length;
	__le32	page_shift;
	__le32	num_pages;
	__le64	offset;
};

/* Section 4.14 */
struct virtio_rdma_alloc_mr {
	__le32	pd;
	__le32	max_entries;
	struct virtio_rdma_buf buf;
	__le64	list_offset;
	__le64	page[];
};

/* Section 4.15 */
#define VIRTIO_RDMA_REREG_TRANSLATION	0x1
#define VIRTIO_RDMA_REREG_PD		0x2
#define VIRTIO_RDMA_REREG_ACCESS	0x4

struct virtio_rdma_rereg_mr {
	__le32	lkey;
	__le32	flags;
	__le32	pd;
	__le32	access;
	__le32	source;
	__le32	reserved;
};

/* Section 4.16 */
struct virtio_rdma_alloc_mw {
	__le32	pd;
	__u8	type;
	__u8	reserved[3];
};

/* Section 4.11 */
struct virtio_rdma_clock {
	__le64	nanoseconds;
};

/* The memory of a ring with its control block: of a CQ, of an SRQ. */
struct virtio_rdma_ring {
	struct virtio_rdma_buf buf;
	__le64	ctrl_offset;
	__le64	ring_offset;
	__le64	page[];
};

/* Section 4.6; RESIZE_CQ has the same body with the CQ in the vector's place. */
struct virtio_rdma_create_cq {
	__le32	entries;
	union {
		__le32	vector;
		__le32	cqn;
	};
	struct virtio_rdma_ring ring;
};

struct virtio_rdma_modify_cq {
	__le32	cqn;
	__le16	count;
	__le16	period;
};

/* Section 4.7 */
#define VIRTIO_RDMA_QPT_GSI		1
#define VIRTIO_RDMA_QPT_RC		2
#define VIRTIO_RDMA_QPT_UC		3
#define VIRTIO_RDMA_QPT_UD		4
#define VIRTIO_RDMA_QPT_XRC_INI		9
#define VIRTIO_RDMA_QPT_XRC_TGT		10

#define VIRTIO_RDMA_QP_SQ_SIG_ALL	0x1
#define VIRTIO_RDMA_QP_BLOCK_LOOPBACK	0x2

struct virtio_rdma_create_qp {
	__le32	pd;
	__le32	type;
	__le32	send_cq;
	__le32	recv_cq;
	__le32	srq;
	__le32	flags;
	__le32	sq_entries;
	__le32	sq_stride;
	__le32	rq_entries;
	__le32	rq_stride;
	__le32	max_send_sge;
	__le32	max_recv_sge;
	__le32	max_inline;
	__le32	xrcd;
	struct virtio_rdma_buf buf;
	__le64	ctrl_offset;
	__le64	sq_offset;
	__le64	rq_offset;
	__le64	page[];
};

/* Section 4.8; states and mask bits are those of the verbs. */
struct virtio_rdma_qp_attr {
	__le32	qpn;
	__le32	mask;
	__u8	state;
	__u8	cur_state;
	__u8	path_mtu;
	__u8	port;
	__le32	access;
	__le32	qkey;
	__le32	dest_qpn;
	__le32	rq_psn;
	__le32	sq_psn;
	__u8	max_rd_atomic;
	__u8	max_dest_rd_atomic;
	__u8	timeout;
	__u8	retry_cnt;
	__u8	rnr_retry;
	__u8	min_rnr_timer;
	__le16	pkey_index;
	__le32	flow_label;
	__u8	sgid_index;
	__u8	hop_limit;
	__u8	traffic_class;
	__u8	sl;
	__u8	dgid[16];
	__u8	dmac[6];
	__u8	en_sqd_async;
	__u8	sq_draining;
};

/* Section 4.9: order of the counters. */
enum virtio_rdma_counter {
	VIRTIO_RDMA_CNT_TX_MESSAGES,
	VIRTIO_RDMA_CNT_TX_BYTES,
	VIRTIO_RDMA_CNT_RX_MESSAGES,
	VIRTIO_RDMA_CNT_RX_BYTES,
	VIRTIO_RDMA_CNT_COMPLETIONS,
	VIRTIO_RDMA_CNT_RNR_NAK_SENT,
	VIRTIO_RDMA_CNT_RNR_NAK_RECEIVED,
	VIRTIO_RDMA_CNT_RETRIES,
	VIRTIO_RDMA_CNT_TIMEOUTS,
	VIRTIO_RDMA_CNT_ACCESS_ERRORS,
	VIRTIO_RDMA_CNT_CQ_OVERFLOWS,
	VIRTIO_RDMA_CNT_FLUSHED,
	VIRTIO_RDMA_CNT_RX_DISCARDED,
	VIRTIO_RDMA_CNT_LOST,
	VIRTIO_RDMA_CNT_TX_DISCARDED,
	VIRTIO_RDMA_CNT_QKEY_ERRORS,
	VIRTIO_RDMA_NUM_COUNTERS,
};

struct virtio_rdma_counters {
	__le32	count;
	__le32	reserved;
	__le64	value[];
};

/* Section 4.10 */
struct virtio_rdma_mcast {
	__le32	qpn;
	__le32	reserved;
	__u8	gid[16];
};

/* Section 4.12; mask bits are those of the verbs. */
#define VIRTIO_RDMA_SRQT_BASIC		0
#define VIRTIO_RDMA_SRQT_XRC		1

struct virtio_rdma_create_srq {
	__le32	pd;
	__le32	type;
	__le32	cq;
	__le32	xrcd;
	__le32	entries;
	__le32	stride;
	__le32	max_sge;
	__le32	reserved;
	struct virtio_rdma_ring ring;
};

struct virtio_rdma_modify_srq {
	__le32	srq;
	__le32	mask;
	__le32	limit;
	__le32	entries;
	struct virtio_rdma_ring ring;
};

struct virtio_rdma_srq_attr {
	__le32	srq;
	__le32	entries;
	__le32	max_sge;
	__le32	limit;
};

/* Section 5: a QP's control block, one line for each writer. */
#define VIRTIO_RDMA_KICK_SQ		0x1
#define VIRTIO_RDMA_KICK_RQ		0x2

struct virtio_rdma_qp_ctrl {
	__le32	sq_producer;
	__u8	reserved[60];
	__le32	rq_producer;
	__u8	reserved1[60];
	__le32	flags;
	__u8	reserved2[124];
};

enum virtio_rdma_wqe_opcode {
	VIRTIO_RDMA_WQE_WRITE		= 0,
	VIRTIO_RDMA_WQE_WRITE_IMM	= 1,
	VIRTIO_RDMA_WQE_SEND		= 2,
	VIRTIO_RDMA_WQE_SEND_IMM	= 3,
	VIRTIO_RDMA_WQE_READ		= 4,
	VIRTIO_RDMA_WQE_CMP_AND_SWP	= 5,
	VIRTIO_RDMA_WQE_FETCH_AND_ADD	= 6,
	VIRTIO_RDMA_WQE_LOCAL_INV	= 7,
	VIRTIO_RDMA_WQE_BIND_MW		= 8,
	VIRTIO_RDMA_WQE_SEND_INV	= 9,
	VIRTIO_RDMA_WQE_FLUSH		= 14,
	VIRTIO_RDMA_WQE_ATOMIC_WRITE	= 15,
	VIRTIO_RDMA_WQE_REG_MR		= 32,
};

#define VIRTIO_RDMA_WQE_SIGNALED	0x1
#define VIRTIO_RDMA_WQE_SOLICITED	0x2
#define VIRTIO_RDMA_WQE_FENCE		0x4
#define VIRTIO_RDMA_WQE_INLINE		0x8

/* Section 5.2: what a FLUSH's swap says, beside the placement. */
#define VIRTIO_RDMA_FLUSH_PLACEMENT	0x3
#define VIRTIO_RDMA_FLUSH_REGION	0x100

struct virtio_rdma_sge {
	__le64	addr;
	__le32	length;
	__le32	lkey;
};

/* Where a datagram goes, but for the queue pair there. */
struct virtio_rdma_av {
	__u8	dgid[16];
	__le32	flow_label;
	__u8	sgid_index;
	__u8	hop_limit;
	__u8	traffic_class;
	__u8	sl;
};

#define VIRTIO_RDMA_MULTICAST_QPN	0xffffff

/*
 * SGEs, or the inline bytes, follow. What REG_MR and BIND_MW have in these
 * fields is in section 5.1.
 */
struct virtio_rdma_send_wqe {
	__le64	wr_id;
	__u8	opcode;
	__u8	flags;
	__le16	num_sge;
	__le32	inline_len;
	union {
		__be32	imm;
		__le32	inv_key;
	};
	__le32	rkey;
	union {
		struct {
			__le64	remote_addr;
			__le64	compare_add;
			__le64	swap;
			union {
				__le32	num_pages;
				__le32	srqn;	/* XRC */
			};
			__u8	page_shift;
			__u8	reserved[11];
		};
		/* Of a datagram. */
		struct {
			__le32	dest_qpn;
			__le32	qkey;
			struct virtio_rdma_av	av;
			__u8	reserved1[8];
		};
	};
};

/* Section 6: SGEs follow. */
struct virtio_rdma_recv_wqe {
	__le64	wr_id;
	__le16	num_sge;
	__u8	reserved[6];
};

/* Section 6.1: an SRQ's control block. */
struct virtio_rdma_srq_ctrl {
	__le32	producer;
	__u8	reserved[60];
	__le32	consumer;
	__le32	flags;
	__u8	reserved1[56];
};

/* Section 7 */
#define VIRTIO_RDMA_CQ_ERROR		0x1

#define VIRTIO_RDMA_ARM_SOLICITED	1
#define VIRTIO_RDMA_ARM_ANY		2
#define VIRTIO_RDMA_ARM_SEQ_SHIFT	2
#define VIRTIO_RDMA_ARM_SEQ_MASK	0x3fffffffU

struct virtio_rdma_cq_ctrl {
	__le32	consumer;
	__le32	arm;
	__u8	reserved[56];
	__le32	flags;
	__u8	reserved1[60];
};

#define VIRTIO_RDMA_CQE_GRH		0x1
#define VIRTIO_RDMA_CQE_WITH_IMM	0x2
#define VIRTIO_RDMA_CQE_WITH_INV	0x4
#define VIRTIO_RDMA_CQE_SEND_QUEUE	0x8
#define VIRTIO_RDMA_CQE_ETHERNET	0x10
#define VIRTIO_RDMA_CQE_XRC		0x20

#define VIRTIO_RDMA_CQE_PHASE		0x1

enum virtio_rdma_wc_opcode {
	VIRTIO_RDMA_WC_SEND		= 0,
	VIRTIO_RDMA_WC_WRITE		= 1,
	VIRTIO_RDMA_WC_READ		= 2,
	VIRTIO_RDMA_WC_COMP_SWAP	= 3,
	VIRTIO_RDMA_WC_FETCH_ADD	= 4,
	VIRTIO_RDMA_WC_BIND_MW		= 5,
	VIRTIO_RDMA_WC_LOCAL_INV	= 6,
	VIRTIO_RDMA_WC_REG_MR		= 7,
	VIRTIO_RDMA_WC_FLUSH		= 8,
	VIRTIO_RDMA_WC_ATOMIC_WRITE	= 9,
	VIRTIO_RDMA_WC_RECV		= 128,
	VIRTIO_RDMA_WC_RECV_IMM		= 129,
};

struct virtio_rdma_cqe {
	__le64	wr_id;
	__u8	status;
	__u8	opcode;
	__le16	flags;
	__le32	byte_len;
	union {
		__be32	imm;
		__le32	inv_key;
	};
	__le32	qpn;
	__le32	src_qpn;
	__le32	vendor_err;
	__le32	wqe_index;
	__u8	sl;
	__u8	reserved;
	__le16	pkey_index;
	__le64	timestamp;
	__u8	smac[6];
	__le16	vlan;
	__le32	srqn;
	__le32	phase;
};

/* Section 8 */
struct virtio_rdma_comp_event {
	__le32	cqn;
	__le32	sequence;
};

enum virtio_rdma_event_type {
	VIRTIO_RDMA_EVENT_CQ_ERR		= 1,
	VIRTIO_RDMA_EVENT_QP_FATAL		= 2,
	VIRTIO_RDMA_EVENT_QP_REQ_ERR		= 3,
	VIRTIO_RDMA_EVENT_QP_ACCESS_ERR		= 4,
	VIRTIO_RDMA_EVENT_COMM_EST		= 5,
	VIRTIO_RDMA_EVENT_SQ_DRAINED		= 6,
	VIRTIO_RDMA_EVENT_LAST_WQE_REACHED	= 7,
	VIRTIO_RDMA_EVENT_SRQ_ERR		= 8,
	VIRTIO_RDMA_EVENT_SRQ_LIMIT		= 9,
	VIRTIO_RDMA_EVENT_PORT_ACTIVE		= 10,
	VIRTIO_RDMA_EVENT_PORT_ERR		= 11,
	VIRTIO_RDMA_EVENT_DEVICE_FATAL		= 12,
};

struct virtio_rdma_async_event {
	__le32	type;
	__le32	handle;
	__le64	reserved;
};

/* The sizes that the specification gives; a compiler that pads breaks here. */
_Static_assert(sizeof(struct virtio_rdma_config) == 24, "config");
_Static_assert(sizeof(struct virtio_rdma_cmd_hdr) == 24, "cmd_hdr");
_Static_assert(sizeof(struct virtio_rdma_reply_hdr) == 16, "reply_hdr");
_Static_assert(sizeof(struct virtio_rdma_device_attr) == 168, "device_attr");
_Static_assert(sizeof(struct virtio_rdma_port_attr) == 24, "port_attr");
_Static_assert(sizeof(struct virtio_rdma_add_gid) == 32, "add_gid");
_Static_assert(sizeof(struct virtio_rdma_reg_mr) == 48, "reg_mr");
_Static_assert(sizeof(struct virtio_rdma_buf) == 24, "buf");
_Static_assert(sizeof(struct virtio_rdma_ring) == 40, "ring");
_Static_assert(sizeof(struct virtio_rdma_alloc_mr) == 40, "alloc_mr");
_Static_assert(sizeof(struct virtio_rdma_create_cq) == 48, "create_cq");
_Static_assert(sizeof(struct virtio_rdma_modify_cq) == 8, "modify_cq");
_Static_assert(sizeof(struct virtio_rdma_create_qp) == 104, "create_qp");
_Static_assert(sizeof(struct virtio_rdma_qp_attr) == 72, "qp_attr");
_Static_assert(sizeof(struct virtio_rdma_qp_ctrl) == 256, "qp_ctrl");
_Static_assert(sizeof(struct virtio_rdma_mcast) == 24, "mcast");
_Static_assert(sizeof(struct virtio_rdma_create_srq) == 72, "create_srq");
_Static_assert(sizeof(struct virtio_rdma_modify_srq) == 56, "modify_srq");
_Static_assert(sizeof(struct virtio_rdma_srq_ctrl) == 128, "srq_ctrl");
_Static_assert(sizeof(struct virtio_rdma_send_wqe) == 64, "send_wqe");
_Static_assert(sizeof(struct virtio_rdma_recv_wqe) == 16, "recv_wqe");
_Static_assert(sizeof(struct virtio_rdma_sge) == 16, "sge");
_Static_assert(sizeof(struct virtio_rdma_cq_ctrl) == 128, "cq_ctrl");
_Static_assert(sizeof(struct virtio_rdma_cqe) == 64, "cqe");
_Static_assert(sizeof(struct virtio_rdma_comp_event) == 8, "comp_event");
_Static_assert(sizeof(struct virtio_rdma_async_event) == 16, "async_event");

#endif /* VIRTIO_RDMA_WIRE_H */
