/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs-life: what a guest says of the life of verbs objects, where no stock tool does. It uses libibverbs as any program
 * does, knows nothing of the device, and ends with status 0 if all was as the verbs promise.
 *
 * main.c    the commands, and what they share
 * hold.c    objects of every type, held until the device goes
 * events.c  completion events that nobody acknowledged
 * memory.c  registered memory: limits, rereg, fork and exec
 * dmabuf.c  memory of another driver, between two machines
 * port.c    what the port says of itself
 * shared.c  an XRC target that outlives the process that made it
 */
#ifndef LIFE_H
#define LIFE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

#define PORT 1

/* Says what is wrong, where, with errno's words, and ends the process with status 1. */
#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition) do { if (!(condition)) FAIL("%s", #condition); } while (0)
void fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/* The first device. */
struct ibv_context *open_device(void);
/* Index of a GID that is there. */
uint8_t find_gid(struct ibv_context *context, union ibv_gid *gid);
/* Takes a queue pair, of RC or one end of XRC, from RESET to RTS, towards another of this device or of another. */
void connect_qp(struct ibv_context *context, struct ibv_qp *qp, uint32_t far_qpn, const union ibv_gid *far_gid);

/* Two connected RC queue pairs of one device, with one completion queue and one region for both. */
struct ends {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	char *memory;
	size_t length;
};

/* Over `length` bytes of memory of the caller's. */
void connect_ends(struct ends *ends, char *memory, size_t length);
/* Takes all down but the completion queue and what it hangs on. */
void part_ends(struct ends *ends);
/* WRITE of `length` bytes within the memory, from offset `from` to offset `to`. */
void post_write(struct ends *ends, size_t from, size_t to, size_t length);
/* Waits for one completion, which must be a success. */
struct ibv_wc next_completion(struct ibv_cq *cq);

int hold(int sets);
int unacknowledged_events(void);
int unread_events(void);
int leave_with_events(void);
int memory_limit(void);
int rereg_codes(void);
int fork_and_exec(void);
int shared_target(void);
/* The machine that is asked, and the one that asks. */
int dmabuf_serve(int port);
int dmabuf_ask(const char *address, int port);
int qkey_violations(void);

#endif
