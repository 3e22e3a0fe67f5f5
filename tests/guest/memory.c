// SPDX-License-Identifier: Apache-2.0
/* Registered memory and the process that it belongs to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

#define LOCKED_LIMIT	(1 << 20)
#define NOBODY		65534

static char *map(size_t length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	memset(memory, 1, length);
	return memory;
}

/* What is registered counts as locked memory of the user, until it is deregistered. */
int memory_limit(void)
{
	const struct rlimit limit = { LOCKED_LIMIT, LOCKED_LIMIT };
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *memory;

	/* Whoever may lock any amount has no limit. */
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	CHECK(!setgid(NOBODY) && !setuid(NOBODY));
	context = open_device();
	CHECK(pd = ibv_alloc_pd(context));
	memory = map(2 * LOCKED_LIMIT);

	errno = 0;
	mr = ibv_reg_mr(pd, memory, 2 * LOCKED_LIMIT, IBV_ACCESS_LOCAL_WRITE);
	if (mr || errno != ENOMEM)
		FAIL("twice the limit was not refused with ENOMEM");
	/* In sum far beyond the limit. */
	for (int i = 0; i < 8; i++) {
		CHECK(mr = ibv_reg_mr(pd, memory, LOCKED_LIMIT / 2, IBV_ACCESS_LOCAL_WRITE));
		CHECK(!ibv_dereg_mr(mr));
	}
	/* Rings are registered memory too: with all the rest taken there is no room for one. */
	CHECK(mr = ibv_reg_mr(pd, memory, LOCKED_LIMIT, IBV_ACCESS_LOCAL_WRITE));
	errno = 0;
	if (ibv_create_cq(context, 16, NULL, NULL, 0) || errno != ENOMEM)
		FAIL("a queue beyond the limit was not refused with ENOMEM");
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	printf("ENOMEM at the limit\n");
	return 0;
}

/* What rereg_mr says of a call that cannot be, and of one that the kernel refuses; the region is as it was. */
int rereg_codes(void)
{
	struct ends ends = {};
	char *memory = map(8192);
	int code;

	connect_ends(&ends, memory, 8192);
	code = ibv_rereg_mr(ends.mr, 0, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	if (code != IBV_REREG_MR_ERR_INPUT)
		FAIL("access that is not to change: %d", code);
	code = ibv_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 4096, 0);
	if (code != IBV_REREG_MR_ERR_INPUT)
		FAIL("no address: %d", code);
	code = ibv_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE);
	if (code != IBV_REREG_MR_ERR_CMD)
		FAIL("REMOTE_WRITE without LOCAL_WRITE: %d", code);
	post_write(&ends, 0, 4096, 4096);
	next_completion(ends.cq);
	part_ends(&ends);
	CHECK(!ibv_destroy_cq(ends.cq));
	printf("rereg_mr says why\n");
	return 0;
}

/* A child has memory of its own, whatever the parent registered; the device goes on with the parent's. */
int fork_and_exec(void)
{
	struct ends ends = {};
	char *memory;
	pid_t child;
	int status;

	CHECK(!ibv_fork_init());
	memory = map(2 * 65536);
	connect_ends(&ends, memory, 2 * 65536);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		memset(memory, 3, 2 * 65536);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	memset(memory, 2, 65536);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	post_write(&ends, 0, 65536, 65536);
	next_completion(ends.cq);
	for (size_t i = 0; i < 2 * 65536; i++)
		if (memory[i] != 2)
			FAIL("byte %zu is %d", i, memory[i]);
	part_ends(&ends);
	CHECK(!ibv_destroy_cq(ends.cq));
	printf("parent and child apart\n");
	return 0;
}
