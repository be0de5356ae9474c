// SPDX-License-Identifier: MIT
/*
 * Run commands. An offer, whose checksum takes long, a find, a fetch and a store each have a
 * thread; all others run at once. A fetched region is kept under a name made of its checksum, by
 * the rules of kept regions. A later find for the same bytes opens it.
 */
#include "port.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/error_names.h"
#include "common/hex.h"
#include "frame.h"

#define PROGRESS_NS UINT64_C(100000000)

/* Return the name of an error, or NULL. glibc before 2.32 knows none: then only tmesh's own errors
 * have one. */
static const char *name_of(int code)
{
#if __GLIBC_PREREQ(2, 32)
	return strerrorname_np(code);
#else
	switch (code) {
#define X(number, class) \
	case number:     \
		return #number;
		TMESH_ERROR_NAMES(X)
#undef X
	}
	return NULL;
#endif
}

static void answer_error(struct port *port, int64_t id, const struct tmesh_error *err)
{
	const char *name = name_of(-err->code);

	frame_write(port->out, json_pack("{si ss so ss so}", "v", 1, "type", "error", "id",
					 id < 0 ? json_null() : json_integer(id), "errno",
					 name ? name : "EIO", "message", frame_text(err->message)));
}

static void answer_done(struct port *port, int64_t id)
{
	frame_write(port->out, json_pack("{si ss sI}", "v", 1, "type", "done", "id", id));
}

static void kept_name(const struct command *command, char name[TMESH_KEPT_NAME_LEN + 1])
{
	snprintf(name, TMESH_KEPT_NAME_LEN + 1, "net-%s", command->checksum);
}

static int find_kept(struct job *job, struct tmesh_region **region, struct tmesh_error *err)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region **regions;
	size_t count;
	int rc;

	kept_name(&job->command, name);
	rc = tmesh_kept_open(job->port->ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count,
			     err);
	if (rc)
		return rc;
	if (count == 1 && tmesh_region_bytes(regions[0]) == (uint64_t)job->command.bytes)
		*region = tmesh_region_ref(regions[0]);
	else
		rc = tmesh_fail(err, -ENOENT, "other memory is kept as %s", name);
	for (size_t i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
	free(regions);
	return rc;
}

static int tell_progress(void *data, uint64_t bytes)
{
	struct job *job = data;
	uint64_t now = tmesh_now_ns();
	bool cancelled;

	pthread_mutex_lock(&job->port->lock);
	cancelled = job->cancelled;
	pthread_mutex_unlock(&job->port->lock);
	if (bytes > job->told_bytes && now - job->told_ns >= PROGRESS_NS) {
		job->told_bytes = bytes;
		job->told_ns = now;
		frame_write(job->port->out,
			    json_pack("{si ss sI sI}", "v", 1, "type", "progress", "id",
				      job->command.id, "bytes", (json_int_t)bytes));
	}
	return cancelled;
}

static int fetch(struct job *job, struct tmesh_region **region, struct tmesh_error *err)
{
	const struct command *command = &job->command;
	struct tmesh_net_source source = {
		.size = sizeof(source),
		.address = command->address,
		.key = command->key,
		.checksum = command->checksum,
		.bytes = command->bytes,
	};
	struct tmesh_net_fetch_opts opts = {
		.size = sizeof(opts),
		.label = "net",
		.timeout_ns = command->timeout_ms > INT32_MAX
				      ? UINT64_C(1000000) * INT32_MAX
				      : UINT64_C(1000000) * command->timeout_ms,
		.progress = tell_progress,
		.data = job,
	};

	return tmesh_net_fetch(job->port->net, &source, &opts, region, err);
}

static int get(struct job *job, struct tmesh_region **region, struct tmesh_error *err)
{
	const struct command *command = &job->command;

	switch (command->type) {
	case COMMAND_FIND:
		return find_kept(job, region, err);
	case COMMAND_STORE:
		return tmesh_net_store(job->port->net, command->data, command->bytes,
				       command->checksum, region, err);
	default:
		return fetch(job, region, err);
	}
}

/* Run a find, a fetch or a store and return its answer, with the reason if the region was not
 * kept. */
static json_t *run_fetch(struct job *job, struct tmesh_region **region, struct tmesh_error *err)
{
	char name[TMESH_KEPT_NAME_LEN + 1], token[TMESH_TOKEN_SIZE], id[17];
	bool finds = job->command.type == COMMAND_FIND, kept = true;
	struct tmesh_error why = {0};

	if (get(job, region, err))
		return NULL;
	kept_name(&job->command, name);
	if (!finds)
		kept = !tmesh_keep(job->port->ctx, name, region, 1, NULL, &why);
	if (tmesh_region_token(*region, TMESH_READ, token, err))
		return NULL;
	snprintf(id, sizeof(id), "%016llx", (unsigned long long)tmesh_region_id(*region));
	return json_pack("{si ss sI ss ss sb so}", "v", 1, "type", finds ? "found" : "fetched",
			 "id", job->command.id, "token", token, "region", id, "kept", kept, "why",
			 frame_text(why.message));
}

static json_t *run_offer(struct job *job, struct tmesh_error *err)
{
	struct tmesh_net_offer_info info = {.size = sizeof(info)};
	struct tmesh_region *region;
	int rc = tmesh_region_open(job->port->ctx, job->command.token, TMESH_READ, &region, err);

	if (rc)
		return NULL;
	rc = tmesh_net_offer(job->port->net, region, &info, err);
	tmesh_region_unref(region);
	if (rc)
		return NULL;
	return json_pack("{si ss sI ss ss sI}", "v", 1, "type", "offered", "id", job->command.id,
			 "offer", info.id, "checksum", info.checksum, "bytes",
			 (json_int_t)info.bytes);
}

static void *port_run(void *data)
{
	struct job *job = data;
	struct port *port = job->port;
	struct tmesh_region *region = NULL;
	struct tmesh_error err = {0};
	bool fetches = job->command.type != COMMAND_OFFER;
	int64_t id = job->command.id;
	json_t *answer = fetches ? run_fetch(job, &region, &err) : run_offer(job, &err);
	bool hold = answer && fetches;

	free(job->command.data);
	if (!hold)
		tmesh_region_unref(region);
	/* Update the job before the answer: its reader may release at once what the job holds. */
	pthread_mutex_lock(&port->lock);
	job->ended = true;
	job->region = hold ? region : NULL;
	if (!hold) {
		LIST_REMOVE(job, entry);
		free(job);
	}
	pthread_mutex_unlock(&port->lock);
	if (answer)
		frame_write(port->out, answer);
	else
		answer_error(port, id, &err);
	pthread_mutex_lock(&port->lock);
	port->running--;
	pthread_cond_signal(&port->ended);
	pthread_mutex_unlock(&port->lock);
	return NULL;
}

static int command_begin(struct port *port, const struct command *command, struct tmesh_error *err)
{
	struct job *job = calloc(1, sizeof(*job)), *other;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	if (!job)
		return tmesh_fail(err, -ENOMEM, "no memory for a command");
	job->port = port;
	job->command = *command;
	pthread_mutex_lock(&port->lock);
	LIST_FOREACH(other, &port->jobs, entry)
		if (other->command.id == command->id)
			break;
	if (!other) {
		LIST_INSERT_HEAD(&port->jobs, job, entry);
		port->running++;
	}
	pthread_mutex_unlock(&port->lock);
	if (other) {
		free(job);
		return tmesh_fail(err, -EINVAL, "the id is that of another command");
	}
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, port_run, job);
	pthread_attr_destroy(&attr);
	if (!rc)
		return 0;
	pthread_mutex_lock(&port->lock);
	LIST_REMOVE(job, entry);
	port->running--;
	pthread_mutex_unlock(&port->lock);
	free(job);
	return tmesh_fail(err, -ENOMEM, "no thread for a command: %s", strerror(rc));
}

/* Cancel a running fetch, or release the region of a finished one. */
static int command_end(struct port *port, const struct command *command, struct tmesh_error *err)
{
	struct job *job;
	int rc = 0;

	pthread_mutex_lock(&port->lock);
	LIST_FOREACH(job, &port->jobs, entry)
		if (job->command.id == command->of)
			break;
	if (!job) {
		rc = tmesh_fail(err, -ENOENT, "no fetch has that id");
	} else if (command->type == COMMAND_CANCEL) {
		job->cancelled = true;
	} else if (!job->ended) {
		rc = tmesh_fail(err, -EBUSY, "the fetch runs; cancel it");
	} else {
		LIST_REMOVE(job, entry);
		tmesh_region_unref(job->region);
		free(job);
	}
	pthread_mutex_unlock(&port->lock);
	return rc;
}

static int grant(struct port *port, const struct command *command, struct tmesh_error *err)
{
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
	int rc = tmesh_net_grant(port->net, command->offer, command->peer, key, address, err);

	if (!rc)
		frame_write(port->out,
			    json_pack("{si ss sI ss ss}", "v", 1, "type", "granted", "id",
				      command->id, "key", key, "address", address));
	return rc;
}

static int copy(struct port *port, const struct command *command, struct tmesh_error *err)
{
	static uint8_t data[TMESH_NET_SMALL_BYTES];
	static char text[2 * TMESH_NET_SMALL_BYTES + 1];
	size_t bytes;
	int rc = tmesh_net_copy(port->net, command->offer, data, sizeof(data), &bytes, err);

	if (rc)
		return rc;
	tmesh_hex(text, data, bytes);
	frame_write(port->out, json_pack("{si ss sI ss}", "v", 1, "type", "copied", "id",
					 command->id, "data", text));
	return 0;
}

static void answer_stats(struct port *port, int64_t id)
{
	struct tmesh_net_stats stats = {.size = sizeof(stats)};

	tmesh_net_stats(port->net, &stats);
	frame_write(port->out,
		    json_pack("{si ss sI sI sI sI sI sI sI sI}", "v", 1, "type", "stats", "id", id,
			      "offers", stats.offers, "keys", stats.keys, "fetches", stats.fetches,
			      "fetched", stats.fetched, "failed", stats.failed, "resumed",
			      stats.resumed, "bytes_fetched", stats.bytes_fetched));
}

void port_message(struct port *port, const char *text, size_t bytes)
{
	struct tmesh_error err = {0};
	struct command command;
	int64_t id;
	int rc = command_read(text, bytes, &command, &id, &err);

	if (rc) {
		answer_error(port, id, &err);
		return;
	}
	switch (command.type) {
	case COMMAND_OFFER:
	case COMMAND_FIND:
	case COMMAND_FETCH:
	case COMMAND_STORE:
		rc = command_begin(port, &command, &err);
		break;
	case COMMAND_COPY:
		rc = copy(port, &command, &err);
		break;
	case COMMAND_GRANT:
		rc = grant(port, &command, &err);
		break;
	case COMMAND_WITHDRAW:
		rc = tmesh_net_withdraw(port->net, command.offer, &err);
		if (!rc)
			answer_done(port, id);
		break;
	case COMMAND_REVOKE:
		rc = tmesh_net_revoke(port->net, command.key, &err);
		if (!rc)
			answer_done(port, id);
		break;
	case COMMAND_CANCEL:
	case COMMAND_RELEASE:
		rc = command_end(port, &command, &err);
		if (!rc)
			answer_done(port, id);
		break;
	case COMMAND_STATS:
		answer_stats(port, id);
		break;
	}
	if (rc) {
		free(command.data);
		answer_error(port, id, &err);
	}
}

void port_open(struct port *port, struct tmesh_ctx *ctx, struct tmesh_net *net, int out)
{
	*port = (struct port){.ctx = ctx, .net = net, .out = out};
	pthread_mutex_init(&port->lock, NULL);
	pthread_cond_init(&port->ended, NULL);
}

void port_close(struct port *port)
{
	struct job *job;

	pthread_mutex_lock(&port->lock);
	LIST_FOREACH(job, &port->jobs, entry)
		job->cancelled = true;
	while (port->running)
		pthread_cond_wait(&port->ended, &port->lock);
	pthread_mutex_unlock(&port->lock);
	while ((job = LIST_FIRST(&port->jobs))) {
		LIST_REMOVE(job, entry);
		tmesh_region_unref(job->region);
		free(job);
	}
	tmesh_net_unref(port->net);
	tmesh_ctx_unref(port->ctx);
}
