/* SPDX-License-Identifier: MIT */
/* What tmesh-net does with its commands. */
#ifndef TMESH_NET_PORT_H
#define TMESH_NET_PORT_H

#include <pthread.h>
#include <sys/queue.h>

#include "command.h"

/* A fetch or an offer, by a thread of its own; a fetch's region until it is released. */
struct job {
	LIST_ENTRY(job) entry;
	struct port *port;
	struct command command;
	struct tmesh_region *region;
	uint64_t told_bytes, told_ns; /* of its progress */
	bool cancelled, ended;
};

struct port {
	struct tmesh_ctx *ctx;
	struct tmesh_net *net;
	int out;
	pthread_mutex_t lock; /* of all below, and of each job's flags */
	pthread_cond_t ended;
	LIST_HEAD(, job) jobs;
	unsigned int running;
};

void port_open(struct port *port, struct tmesh_ctx *ctx, struct tmesh_net *net, int out);
/* One message, whatever it is; it is answered, now or by its job. */
void port_message(struct port *port, const char *text, size_t bytes);
/* Ends all jobs and lets go of everything. */
void port_close(struct port *port);

#endif /* TMESH_NET_PORT_H */
