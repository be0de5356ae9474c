/* SPDX-License-Identifier: MIT */
/* The commands of tmesh-net, as jobs. */
#ifndef TMESH_NET_PORT_H
#define TMESH_NET_PORT_H

#include <pthread.h>
#include <sys/queue.h>

#include "command.h"

/* A command with its own thread. A fetch's job keeps its region until it is released. */
struct job {
	LIST_ENTRY(job) entry;
	struct port *port;
	struct command command;
	struct tmesh_region *region;
	uint64_t told_bytes, told_ns; /* the last progress that was reported */
	bool cancelled, ended;
};

struct port {
	struct tmesh_ctx *ctx;
	struct tmesh_net *net;
	int out;
	pthread_mutex_t lock; /* guards all below and each job's flags */
	pthread_cond_t ended;
	LIST_HEAD(, job) jobs;
	unsigned int running;
};

void port_open(struct port *port, struct tmesh_ctx *ctx, struct tmesh_net *net, int out);
/* Handle one message, even a malformed one. The answer comes now or from its job. */
void port_message(struct port *port, const char *text, size_t bytes);
/* Cancel all jobs, wait for them and free everything. */
void port_close(struct port *port);

#endif /* TMESH_NET_PORT_H */
