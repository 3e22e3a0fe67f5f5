// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of another driver, as a dma-buf: that of udmabuf, whose pages are those of a file in memory, so that it can be looked at. One
 * machine reads and writes that of another, from and into its own.
 */
/* For memfd_create and seals. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

#define BUFFER	(1 << 20)
/* The region begins and ends within pages. */
#define AT	(3 * 4096 + 100)
#define LENGTH	(800000)
/* The address by which work requests name its first byte: as far into a page. */
#define IOVA	(0x700000000000 + 100)
#define ACCESS	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* What the far side has to know. */
struct card {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t rkey;
};

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	struct card far;
	int stream;
};

static uint8_t pattern(int seed, size_t at)
{
	return (at + seed) * 31 % 251;
}

static void fill(struct side *side, int seed)
{
	for (size_t at = 0; at < BUFFER; at++)
		side->memory[at] = pattern(seed, at);
}

/* The region has the bytes of one pattern, what is around it those of another. */
static void check(const struct side *side, int inside, int outside)
{
	for (size_t at = 0; at < BUFFER; at++) {
		uint8_t wanted = pattern(at >= AT && at < AT + LENGTH ? inside : outside, at);

		if (side->memory[at] != wanted)
			FAIL("byte %zu is %d instead of %d", at, side->memory[at], wanted);
	}
}

static int make_dmabuf(struct side *side)
{
	struct udmabuf_create create = { .size = BUFFER };
	int device, fd;

	create.memfd = memfd_create("buffer", MFD_ALLOW_SEALING);
	CHECK((int)create.memfd >= 0 && !ftruncate(create.memfd, BUFFER));
	CHECK(!fcntl(create.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	side->memory = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, create.memfd, 0);
	CHECK(side->memory != MAP_FAILED);
	device = open("/dev/udmabuf", O_RDWR);
	CHECK(device >= 0);
	fd = ioctl(device, UDMABUF_CREATE, &create);
	CHECK(fd >= 0);
	close(device);
	close(create.memfd);
	return fd;
}

static void refused(struct side *side, uint64_t offset, size_t length, uint64_t iova, int fd, const char *what)
{
	errno = 0;
	if (ibv_reg_dmabuf_mr(side->pd, offset, length, iova, fd, ACCESS) || !errno)
		FAIL("registered: %s", what);
}

static void register_dmabuf(struct side *side)
{
	int fd = make_dmabuf(side);

	refused(side, AT, BUFFER - AT + 1, IOVA, fd, "more than the buffer has");
	refused(side, BUFFER, 100, IOVA - 100, fd, "what is behind the buffer");
	refused(side, AT, LENGTH, IOVA, side->context->async_fd, "no dma-buf");
	CHECK(side->mr = ibv_reg_dmabuf_mr(side->pd, AT, LENGTH, IOVA, fd, ACCESS));
	/* The region keeps what it needs. */
	close(fd);
}

static void exchange(struct side *side, void *out, void *in, size_t length)
{
	CHECK(send(side->stream, out, length, MSG_NOSIGNAL) == (ssize_t)length);
	CHECK(recv(side->stream, in, length, MSG_WAITALL) == (ssize_t)length);
}

/* Both sides have come to this point. */
static void meet(struct side *side, char point)
{
	char theirs;

	exchange(side, &point, &theirs, 1);
	CHECK(theirs == point);
}

static void open_side(struct side *side, int stream)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct card near;

	side->stream = stream;
	side->context = open_device();
	CHECK(side->pd = ibv_alloc_pd(side->context));
	CHECK(side->cq = ibv_create_cq(side->context, 8, NULL, NULL, 0));
	init.send_cq = init.recv_cq = side->cq;
	CHECK(side->qp = ibv_create_qp(side->pd, &init));
	register_dmabuf(side);
	near.qpn = side->qp->qp_num;
	near.rkey = side->mr->rkey;
	find_gid(side->context, &near.gid);
	exchange(side, &near, &side->far, sizeof(near));
	connect_qp(side->context, side->qp, side->far.qpn, &side->far.gid);
}

static enum ibv_wc_status request(struct side *side, enum ibv_wr_opcode opcode, uint64_t remote_addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = IOVA, .length = length, .lkey = side->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.opcode = opcode,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = { .remote_addr = remote_addr, .rkey = side->far.rkey },
	};
	struct ibv_wc wc;
	int count;

	CHECK(!ibv_post_send(side->qp, &wr, &bad));
	while (!(count = ibv_poll_cq(side->cq, 1, &wc)))
		;
	CHECK(count == 1);
	return wc.status;
}

static void close_side(struct side *side)
{
	CHECK(!ibv_destroy_qp(side->qp));
	CHECK(!ibv_dereg_mr(side->mr));
	CHECK(!ibv_destroy_cq(side->cq));
	CHECK(!ibv_dealloc_pd(side->pd));
	CHECK(!ibv_close_device(side->context));
}

static struct sockaddr_in meeting_place(const char *address, int port)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK(inet_pton(AF_INET, address, &place.sin_addr) == 1);
	return place;
}

int dmabuf_serve(int port)
{
	struct sockaddr_in place = meeting_place("0.0.0.0", port);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, stream;
	struct side side;

	CHECK(listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(listener, (struct sockaddr *)&place, sizeof(place)) && !listen(listener, 1));
	stream = accept(listener, NULL, NULL);
	CHECK(stream >= 0);
	open_side(&side, stream);
	fill(&side, 1);
	meet(&side, 'c');
	/* Here the far side WRITEs. */
	meet(&side, 'w');
	check(&side, 2, 1);
	fill(&side, 3);
	meet(&side, 'f');
	/* Here it READs, and then goes too far. */
	meet(&side, 'r');
	check(&side, 3, 3);
	close_side(&side);
	printf("a dma-buf was written and read\n");
	return 0;
}

int dmabuf_ask(const char *address, int port)
{
	struct sockaddr_in place = meeting_place(address, port);
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	enum ibv_wc_status status;
	struct side side;

	CHECK(stream >= 0 && !connect(stream, (struct sockaddr *)&place, sizeof(place)));
	open_side(&side, stream);
	fill(&side, 2);
	meet(&side, 'c');
	status = request(&side, IBV_WR_RDMA_WRITE, IOVA, LENGTH);
	if (status != IBV_WC_SUCCESS)
		FAIL("WRITE: %s", ibv_wc_status_str(status));
	meet(&side, 'w');
	meet(&side, 'f');
	status = request(&side, IBV_WR_RDMA_READ, IOVA, LENGTH);
	if (status != IBV_WC_SUCCESS)
		FAIL("READ: %s", ibv_wc_status_str(status));
	check(&side, 3, 2);
	status = request(&side, IBV_WR_RDMA_WRITE, IOVA + LENGTH - 7, 8);
	if (status != IBV_WC_REM_ACCESS_ERR)
		FAIL("a WRITE past the region's end: %s", ibv_wc_status_str(status));
	meet(&side, 'r');
	close_side(&side);
	printf("a dma-buf was written and read\n");
	return 0;
}
