// SPDX-License-Identifier: Apache-2.0
/* Completion events and the end of what they belong to. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "life.h"

static char memory[4096];

/* Leaves one completion event for the channel to give. */
static void make_event(struct ends *ends)
{
	CHECK(!ibv_req_notify_cq(ends->cq, 0));
	post_write(ends, 0, 64, 64);
	next_completion(ends->cq);
}

static void get_event(struct ends *ends)
{
	struct ibv_cq *cq;
	void *unused;

	CHECK(!ibv_get_cq_event(ends->channel, &cq, &unused));
	CHECK(cq == ends->cq);
}

static void close_rest(struct ends *ends)
{
	CHECK(!ibv_destroy_comp_channel(ends->channel));
	CHECK(!ibv_dealloc_pd(ends->pd));
	CHECK(!ibv_close_device(ends->context));
}

static atomic_bool destroyed;

static void *destroy(void *cq)
{
	CHECK(!ibv_destroy_cq(cq));
	destroyed = true;
	return NULL;
}

/* destroy_cq waits until every event that was given is acknowledged, and no longer. */
int unacknowledged_events(void)
{
	struct ends ends = {};
	pthread_t thread;

	connect_ends(&ends, memory, sizeof(memory));
	for (int i = 0; i < 2; i++) {
		make_event(&ends);
		get_event(&ends);
	}
	part_ends(&ends);
	CHECK(!pthread_create(&thread, NULL, destroy, ends.cq));
	usleep(300000);
	CHECK(!destroyed);
	ibv_ack_cq_events(ends.cq, 1);
	usleep(300000);
	CHECK(!destroyed);
	ibv_ack_cq_events(ends.cq, 1);
	CHECK(!pthread_join(thread, NULL));
	CHECK(destroyed);
	close_rest(&ends);
	printf("destroyed after the acknowledgement\n");
	return 0;
}

/* An event that nobody has asked for is nothing to wait for. */
int unread_events(void)
{
	struct ends ends = {};

	connect_ends(&ends, memory, sizeof(memory));
	make_event(&ends);
	part_ends(&ends);
	CHECK(!ibv_destroy_cq(ends.cq));
	close_rest(&ends);
	printf("destroyed with an event unread\n");
	return 0;
}

/* The process ends with all open, one event given and not acknowledged, one unread, work under way. */
int leave_with_events(void)
{
	struct ends ends = {};

	connect_ends(&ends, memory, sizeof(memory));
	make_event(&ends);
	get_event(&ends);
	make_event(&ends);
	post_write(&ends, 0, 64, 64);
	printf("leaving\n");
	fflush(stdout);
	_exit(0);
}
