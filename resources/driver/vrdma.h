/* SPDX-License-Identifier: GPL-2.0 */
/*
 * virtio-rdma guest driver: the objects, and what each file offers the others.
 *
 * main.c      probe, remove, virtqueues, registration with the RDMA core
 * cmd.c       control queue: commands, time limit, failure of the device
 * events.c    completion-event and asynchronous-event queues
 * held.c      objects that are found by number, and held
 * netdev.c    pairing with the network interface, link state
 * port.c      device, port, P_Key and GID queries; counters
 * ucontext.c  user contexts, doorbell mapping, protection domains
 * buf.c       memory of rings, user or kernel, as page lists
 * mr.c        memory regions of processes
 * frwr.c      memory regions of kernel users
 * mw.c        memory windows
 * cq.c qp.c   completion queues, queue pairs
 * cq_resize.c changes of completion queues
 * ah.c        address handles, multicast groups
 * srq.c       shared receive queues
 * xrc.c       XRC domains
 * post.c      posting to queue pairs of kernel users
 * flush.c     what a failed device owes kernel users
 * restrack.c  details of objects for the resource tracker
 */
#ifndef VRDMA_H
#define VRDMA_H

#include <linux/completion.h>
#include <linux/if.h>
#include <linux/if_ether.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/refcount.h>
#include <linux/semaphore.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#include "compat.h"
#include "virtio_rdma-abi.h"

#define VRDMA_PORT	1

struct vrdma_dev;

/* A command on its way: owned by its caller from vrdma_cmd_alloc to _free. */
struct vrdma_cmd {
	struct completion done;
	struct vrdma_dev *dev;
	struct virtio_rdma_cmd_hdr *req;
	struct virtio_rdma_reply_hdr *reply;
	void *body;		/* of the request, zeroed */
	void *reply_body;	/* valid after vrdma_cmd_run() returned 0 */
	u32 req_size;		/* room; the caller may send less */
	u32 reply_size;
	u32 used;		/* bytes that the device wrote */
	bool aborted;		/* the device failed before it answered */
};

struct vrdma_ctrl {
	struct virtqueue *vq;
	spinlock_t lock;	/* vq */
	struct semaphore slots;	/* commands that the queue still has room for */
	atomic64_t cookie;
};

/* A queue of fixed-size buffers that the device fills with events. */
struct vrdma_eq {
	struct virtqueue *vq;
	spinlock_t lock;	/* vq */
	void *buf;
	u32 count;
	u32 stride;
	u32 size;
};

struct vrdma_dev {
	struct ib_device ibdev;
	struct virtio_device *vdev;
	struct device *dma_dev;

	struct virtio_rdma_device_attr attr;
	struct virtio_rdma_limits limits;
	u32 gid_table_len;
	u32 max_cmd_bytes;
	u8 mac[ETH_ALEN];

	phys_addr_t doorbell;
	u32 doorbell_pages;
	void __iomem *kernel_doorbell;	/* page 0, NULL without USER_DOORBELL */

	struct vrdma_ctrl ctrl;
	struct vrdma_eq async;
	struct vrdma_eq *comp;
	u32 num_vectors;

	/* The vrdma_held by number; the lock is taken in interrupts. */
	struct xarray cqs;
	struct xarray qps;
	struct xarray srqs;

	struct mutex fail_lock;	/* only one at a time resets the device */
	bool failed;
	bool dead;		/* and reset: it writes nothing any more */
	struct work_struct fail_work;
	struct work_struct flush_work;

	spinlock_t netdev_lock;	/* netdev, port_active, registered */
	struct net_device *netdev;
	char netdev_link[IFNAMSIZ];	/* its name in sysfs; under RTNL */
	bool port_active;
	bool registered;
	struct notifier_block netdev_nb;
	struct work_struct netdev_work;
};

struct vrdma_ucontext {
	struct ib_ucontext ibucontext;
	struct rdma_user_mmap_entry *doorbell;
	u32 context;
};

struct vrdma_mmap_entry {
	struct rdma_user_mmap_entry rdma_entry;
	phys_addr_t address;
};

struct vrdma_pd {
	struct ib_pd ibpd;
	u32 pdn;
	u32 context;
};

/* Memory of a ring: a pinned piece of a process, or coherent kernel memory. */
struct vrdma_buf {
	struct ib_umem *umem;
	void *cpu;
	dma_addr_t dma;
	size_t length;
	unsigned long page_size;
	u32 num_pages;
	u32 offset;		/* of the buffer in its first page */
};

struct vrdma_mr {
	struct ib_mr ibmr;
	struct ib_umem *umem;
	u32 context;
	u32 handle;		/* by which commands name it */
	int access;		/* of a process's */

	/* Of a fast registration: its list, in memory of the device. */
	struct vrdma_buf buf;
	__le64 *list;
	u32 max_pages;
	u32 num_pages;
};

struct vrdma_mw {
	struct ib_mw ibmw;
	u32 context;
	u32 handle;		/* by which commands name it */
};

/* What an object has that is found by its number. */
struct vrdma_held {
	refcount_t refs;	/* event handlers, and one for the object */
	struct completion free;
};

struct vrdma_cq {
	struct ib_cq ibcq;
	struct vrdma_held held;
	u32 cqn;
	u32 context;
	u32 entries;
	struct vrdma_buf buf;

	/* Of a kernel CQ. */
	spinlock_t lock;
	struct virtio_rdma_cq_ctrl *ctrl;
	struct virtio_rdma_cqe *ring;
	u32 consumer;
	u32 sequence;
	u32 armed;		/* kind under this sequence, 0 none */
};

struct vrdma_xrcd {
	struct ib_xrcd ibxrcd;
	u32 handle;
};

struct vrdma_srq {
	struct ib_srq ibsrq;
	struct vrdma_held held;
	u32 srqn;
	u32 context;
	struct vrdma_buf buf;
	u32 entries;
	u32 stride;
	u32 max_sge;

	/* Of a kernel SRQ. */
	spinlock_t lock;
	struct virtio_rdma_srq_ctrl *ctrl;
	void *ring;
	u32 producer;
	u32 consumer;		/* as last read */
};

struct vrdma_wq {
	spinlock_t lock;
	void *ring;
	u32 entries;
	u32 stride;
	u32 max_sge;
	u32 producer;
	u32 consumer;		/* written under the CQ's lock */
};

static inline void *vrdma_wq_slot(const struct vrdma_wq *wq, u32 index)
{
	return wq->ring + (size_t)(index & (wq->entries - 1)) * wq->stride;
}

struct vrdma_qp {
	struct ib_qp ibqp;
	struct vrdma_held held;
	u32 context;
	struct vrdma_buf buf;
	struct virtio_rdma_qp_caps caps;
	enum ib_sig_type sig_type;
	enum ib_qp_state state;

	/* Of a kernel QP. */
	struct virtio_rdma_qp_ctrl *ctrl;
	struct vrdma_wq sq;
	struct vrdma_wq rq;
};

struct vrdma_ah {
	struct ib_ah ibah;
	struct virtio_rdma_av av;
};

#define VRDMA_TO(name, type, member, core)				\
static inline struct type *name(struct core *object)			\
{									\
	return container_of(object, struct type, member);		\
}

VRDMA_TO(to_vdev, vrdma_dev, ibdev, ib_device)
VRDMA_TO(to_vucontext, vrdma_ucontext, ibucontext, ib_ucontext)
VRDMA_TO(to_vpd, vrdma_pd, ibpd, ib_pd)
VRDMA_TO(to_vmr, vrdma_mr, ibmr, ib_mr)
VRDMA_TO(to_vmw, vrdma_mw, ibmw, ib_mw)
VRDMA_TO(to_vcq, vrdma_cq, ibcq, ib_cq)
VRDMA_TO(to_vqp, vrdma_qp, ibqp, ib_qp)
VRDMA_TO(to_vsrq, vrdma_srq, ibsrq, ib_srq)
VRDMA_TO(to_vxrcd, vrdma_xrcd, ibxrcd, ib_xrcd)
VRDMA_TO(to_vah, vrdma_ah, ibah, ib_ah)
VRDMA_TO(held_to_vqp, vrdma_qp, held, vrdma_held)

static inline bool vrdma_has(const struct vrdma_dev *dev, unsigned int feature)
{
	return virtio_has_feature(dev->vdev, feature);
}

/* The access flags that a memory region may have: the verbs' own numbers. */
static inline u32 vrdma_mr_rights(const struct vrdma_dev *dev)
{
	u32 rights = VIRTIO_RDMA_ACCESS_ALL;

	if (vrdma_has(dev, VIRTIO_RDMA_F_FLUSH))
		rights |= VIRTIO_RDMA_ACCESS_FLUSH_GLOBAL;
	return rights;
}

/* Those that a queue pair may have. */
static inline u32 vrdma_qp_rights(const struct vrdma_dev *dev)
{
	u32 rights = vrdma_mr_rights(dev);

	if (vrdma_has(dev, VIRTIO_RDMA_F_FLUSH))
		rights |= VIRTIO_RDMA_ACCESS_FLUSH_PERSISTENT;
	return rights;
}

/* cmd.c */
int vrdma_ctrl_init(struct vrdma_dev *dev, struct virtqueue *vq);
void vrdma_ctrl_done(struct virtqueue *vq);
struct vrdma_cmd *vrdma_cmd_alloc(struct vrdma_dev *dev, u32 context,
				  enum virtio_rdma_opcode opcode,
				  u32 body_size, u32 reply_body_size);
int vrdma_cmd_run(struct vrdma_cmd *cmd, u32 body_len);
int vrdma_cmd_run_exact(struct vrdma_cmd *cmd, u32 body_len);
int vrdma_cmd_create(struct vrdma_cmd *cmd, u32 body_len, u32 *handle);
void vrdma_cmd_free(struct vrdma_cmd *cmd);
int vrdma_exec(struct vrdma_dev *dev, u32 context,
	       enum virtio_rdma_opcode opcode, const void *body, u32 body_len,
	       void *reply, u32 reply_len);
int vrdma_exec_handle(struct vrdma_dev *dev, u32 context,
		      enum virtio_rdma_opcode opcode, u32 handle);
int vrdma_exec_destroy(struct vrdma_dev *dev, u32 context,
		       enum virtio_rdma_opcode opcode, u32 handle);
void vrdma_fail(struct vrdma_dev *dev, const char *why);
void vrdma_fail_work(struct work_struct *work);
void vrdma_stop(struct vrdma_dev *dev);

/* events.c */
int vrdma_eq_init(struct vrdma_eq *eq, struct virtqueue *vq, u32 size);
void vrdma_eq_free(struct vrdma_eq *eq);
void vrdma_eq_start(struct vrdma_eq *eq);
void vrdma_async_event(struct virtqueue *vq);
void vrdma_comp_event(struct virtqueue *vq);
void vrdma_port_event(struct vrdma_dev *dev, enum ib_event_type type);
void vrdma_qp_event(struct vrdma_qp *qp, enum ib_event_type type);

/* held.c */
int vrdma_held_add(struct xarray *objects, u32 number, struct vrdma_held *held);
struct vrdma_held *vrdma_held_get(struct xarray *objects, u32 number);
void vrdma_held_put(struct vrdma_held *held);
void vrdma_held_end(struct xarray *objects, u32 number,
		    struct vrdma_held *held);

#define VRDMA_GET(name, type, objects)					\
static inline struct type *name(struct vrdma_dev *dev, u32 number)	\
{									\
	struct vrdma_held *held = vrdma_held_get(&dev->objects, number); \
									\
	return held ? container_of(held, struct type, held) : NULL;	\
}

VRDMA_GET(vrdma_cq_get, vrdma_cq, cqs)
VRDMA_GET(vrdma_qp_get, vrdma_qp, qps)
VRDMA_GET(vrdma_srq_get, vrdma_srq, srqs)

/* netdev.c */
void vrdma_netdev_init(struct vrdma_dev *dev);
void vrdma_netdev_pair(struct vrdma_dev *dev);
int vrdma_netdev_start(struct vrdma_dev *dev);
void vrdma_netdev_stop(struct vrdma_dev *dev);
void vrdma_netdev_release(struct vrdma_dev *dev);
struct net_device *vrdma_netdev_get(struct vrdma_dev *dev);

/* port.c */
int vrdma_query_attr(struct vrdma_dev *dev);
int vrdma_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
		       struct ib_udata *udata);
void vrdma_get_fw_str(struct ib_device *ibdev, char *str);
int vrdma_query_port(struct ib_device *ibdev, u32 port,
		     struct ib_port_attr *attr);
int vrdma_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey);
int vrdma_get_port_immutable(struct ib_device *ibdev, u32 port,
			     struct ib_port_immutable *immutable);
enum rdma_link_layer vrdma_get_link_layer(struct ib_device *ibdev, u32 port);
int vrdma_add_gid(const struct ib_gid_attr *attr, void **context);
int vrdma_del_gid(const struct ib_gid_attr *attr, void **context);
struct rdma_hw_stats *vrdma_alloc_hw_stats(struct ib_device *ibdev, u32 port);
int vrdma_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
		       u32 port, int index);

/* ucontext.c */
u32 vrdma_udata_context(struct ib_udata *udata);
extern const struct uapi_definition vrdma_uapi_defs[];
int vrdma_alloc_ucontext(struct ib_ucontext *ibucontext,
			 struct ib_udata *udata);
int vrdma_query_ucontext(struct ib_ucontext *ibucontext,
			 struct uverbs_attr_bundle *attrs);
void vrdma_dealloc_ucontext(struct ib_ucontext *ibucontext);
void vrdma_disassociate_ucontext(struct ib_ucontext *ibucontext);
int vrdma_mmap(struct ib_ucontext *ibucontext, struct vm_area_struct *vma);
void vrdma_mmap_free(struct rdma_user_mmap_entry *rdma_entry);
int vrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);
int vrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);

/* buf.c */
int vrdma_buf_pin(struct vrdma_dev *dev, struct vrdma_buf *buf, u64 addr,
		  u64 length, u32 max_pages);
int vrdma_buf_alloc(struct vrdma_dev *dev, struct vrdma_buf *buf, u64 length,
		    u32 max_pages);
void vrdma_buf_free(struct vrdma_dev *dev, struct vrdma_buf *buf);
void vrdma_buf_fill(struct virtio_rdma_buf *body, const struct vrdma_buf *buf,
		    __le64 *page);
void vrdma_buf_fill_ring(struct virtio_rdma_ring *ring,
			 const struct vrdma_buf *buf, u64 ctrl_offset,
			 u64 ring_offset);
u32 vrdma_max_entries(const struct vrdma_dev *dev, size_t body, size_t entry);

/* mr.c */
struct ib_mr *vrdma_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length,
				u64 virt, int access, struct ib_udata *udata);
struct ib_mr *vrdma_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
				       u64 length, u64 virt, int fd, int access,
				       vrdma_dmabuf_udata *udata);
struct ib_mr *vrdma_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start,
				  u64 length, u64 virt, int access,
				  struct ib_pd *ibpd, struct ib_udata *udata);
int vrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);

/* frwr.c */
struct ib_mr *vrdma_get_dma_mr(struct ib_pd *ibpd, int access);
struct ib_mr *vrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
			     u32 max_num_sg);
int vrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int sg_nents,
		    unsigned int *sg_offset);
int vrdma_fill_reg(struct virtio_rdma_send_wqe *wqe,
		   const struct ib_reg_wr *wr);

/* mw.c */
int vrdma_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata);
int vrdma_dealloc_mw(struct ib_mw *ibmw);

/* cq.c */
int vrdma_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		    vrdma_cq_udata *cq_udata);
int vrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);
int vrdma_poll_cq(struct ib_cq *ibcq, int num_entries, struct ib_wc *wc);
int vrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);
void vrdma_cq_event(struct vrdma_cq *cq);
void vrdma_cq_clean(struct vrdma_cq *cq, u32 qpn);
int vrdma_cq_pin(struct vrdma_dev *dev, u32 cqe, struct ib_udata *udata,
		 struct vrdma_buf *buf, struct virtio_rdma_cq_layout *layout);
size_t vrdma_cq_body(struct virtio_rdma_create_cq *body,
		     const struct vrdma_buf *buf,
		     const struct virtio_rdma_cq_layout *layout);

/* cq_resize.c */
int vrdma_resize_cq(struct ib_cq *ibcq, int cqe, struct ib_udata *udata);
int vrdma_modify_cq(struct ib_cq *ibcq, u16 count, u16 period);

/* qp.c */
int vrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr,
		    struct ib_udata *udata);
int vrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_udata *udata);
int vrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init_attr);
int vrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);

/* ah.c */
int vrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init_attr,
		    struct ib_udata *udata);
int vrdma_destroy_ah(struct ib_ah *ibah, u32 flags);
int vrdma_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);
int vrdma_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);

/* srq.c */
int vrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr,
		     struct ib_udata *udata);
int vrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		     enum ib_srq_attr_mask mask, struct ib_udata *udata);
int vrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int vrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);
int vrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad_wr);

/* xrc.c */
int vrdma_alloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata);
int vrdma_dealloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata);

/* post.c */
void vrdma_fill_recv(struct virtio_rdma_recv_wqe *wqe,
		     const struct ib_recv_wr *wr);
void vrdma_wq_init(struct vrdma_wq *wq, void *ring, u32 entries, u32 stride,
		   u32 max_sge);
int vrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		    const struct ib_send_wr **bad_wr);
int vrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		    const struct ib_recv_wr **bad_wr);

/* flush.c */
int vrdma_flush(struct vrdma_cq *cq, int room, struct ib_wc *wc);
bool vrdma_flush_waits(struct vrdma_cq *cq);
void vrdma_flush_work(struct work_struct *work);
void vrdma_flush_start(struct vrdma_dev *dev);

/* restrack.c */
int vrdma_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq);
int vrdma_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp);
int vrdma_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq);
int vrdma_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr);

#endif /* VRDMA_H */
