// SPDX-License-Identifier: MIT
#include "client.h"

#include "common/foreign.h"
#include "memfd.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A client that neither sends nor takes anything for so long is disconnected. */
#define PATIENCE_NS UINT64_C(10000000000)
/* Messages before it is another client's turn. */
#define TURN 64

static void be_patient(struct client *client)
{
	client->deadline = tmesh_now_ns() + PATIENCE_NS;
}

void client_begin(struct client *client, int fd, pid_t pid)
{
	*client = (struct client){.fd = fd, .pid = pid, .state = CLIENT_ASKS};
	be_patient(client);
}

static void leave_group(struct client *client)
{
	if (client->group && client->state == CLIENT_TAKES)
		group_read_end(client->group);
	else
		group_free(client->group);
	client->group = NULL;
}

void client_end(struct client *client)
{
	leave_group(client);
	free(client->rows);
	close(client->fd);
	*client = (struct client){.fd = -1};
}

short client_waits_for(const struct client *client)
{
	return client->state == CLIENT_TAKES ? POLLOUT : POLLIN;
}

/* Begin the answer, which goes out next with @follow messages after it. */
static void answer(struct client *client, int status, uint32_t follow)
{
	client->reply.magic = TMESH_MAGIC_KEEP;
	client->reply.version = TMESH_WIRE_VERSION;
	client->reply.status = status;
	client->reply.count = client->follow = follow;
	client->state = CLIENT_TAKES;
	client->done = 0;
}

static void close_paths(int paths)
{
	if (paths >= 0)
		close(paths);
}

static bool mode_is_good(uint32_t mode)
{
	return mode == 0600 || mode == 0640 || mode == 0644;
}

/* Begin to keep. @paths: a table's descriptor, or -1; it is the group's from here on. */
static void ask_keep(struct client *client, int paths)
{
	const struct tmesh_keeper_request *request = &client->request;
	bool with_paths = request->flags & TMESH_KEEPER_PATHS;

	if (!request->count || request->count > TMESH_KEPT_MAX_REGIONS ||
	    (request->flags & ~(uint32_t)(TMESH_KEEPING_REPLACE | TMESH_KEEPER_PATHS)) ||
	    with_paths != (paths >= 0) || (with_paths && !mode_is_good(request->mode))) {
		close_paths(paths);
		answer(client, -EINVAL, 0);
		return;
	}
	client->group = group_new(request->name, request->count);
	/* Read and drop all regions first, so that the answer finds its reader waiting. */
	client->reply.status = client->group ? 0 : -ENOMEM;
	if (!client->group) {
		close_paths(paths);
	} else if (with_paths) {
		client->group->mode = request->mode;
		client->group->gid = request->gid;
		client->reply.status = group_set_paths(client->group, paths, false);
	}
	client->state = CLIENT_GIVES;
	client->done = 0;
}

static void ask_open(struct client *client, struct service *service)
{
	struct group *group = table_find(&service->table, client->request.name);

	if (!group || tmesh_check_rights(client->request.rights, NULL)) {
		answer(client, group ? -EACCES : -ENOENT, 0);
		return;
	}
	for (uint32_t i = 0; i < group->count; i++) {
		if (client->request.rights & ~group->items[i].wire.rights) {
			client->reply.where = i;
			answer(client, -EACCES, 0);
			return;
		}
	}
	group->used_ns = tmesh_now_ns();
	client->reply.id = group->id;
	answer(client, 0, group->count);
	client->group = group;
	group_read(group);
}

static void fill_row(struct tmesh_keeper_row *row, const struct group *group)
{
	row->id = group->id;
	row->bytes = group->bytes;
	row->kept_ns = group->kept_ns;
	row->used_ns = group->used_ns;
	row->expires_ns = group->expires_ns;
	row->count = group->count;
	row->mode = group->mode;
	row->gid = group->gid;
	row->flags = group->paths >= 0 ? TMESH_KEEPER_PATHS : 0;
	memcpy(row->name, group->name, sizeof(row->name));
}

/* Find one row, without looking for its holders. */
static void ask_find(struct client *client, struct service *service)
{
	struct group *group = table_find(&service->table, client->request.name);

	client->rows = group ? calloc(1, sizeof(*client->rows)) : NULL;
	if (!client->rows) {
		answer(client, group ? -ENOMEM : -ENOENT, 0);
		return;
	}
	fill_row(client->rows, group);
	client->reply.id = group->id;
	answer(client, 0, 1);
	/* Its table goes along with the reply. */
	client->group = group;
	group_read(group);
}

static void ask_open_region(struct client *client, struct service *service)
{
	const struct tmesh_keeper_request *request = &client->request;
	struct group *group = table_find(&service->table, request->name);

	if (!group || group->id != request->id || request->region >= group->count ||
	    request->rights != TMESH_READ ||
	    !(group->items[request->region].wire.rights & TMESH_READ)) {
		answer(client,
		       !group			       ? -ENOENT
		       : group->id != request->id      ? -ESTALE
		       : request->rights != TMESH_READ ? -EACCES
						       : -EINVAL,
		       0);
		return;
	}
	group->used_ns = tmesh_now_ns();
	client->reply.id = group->id;
	answer(client, 0, 1);
	client->group = group;
	group_read(group);
}

static void ask_list(struct client *client, struct service *service)
{
	const struct table *table = &service->table;
	struct tmesh_keeper_row *row;

	client->rows = calloc(table->names ? table->names : 1, sizeof(*client->rows));
	if (!client->rows) {
		answer(client, -ENOMEM, 0);
		return;
	}
	row = client->rows;
	for (struct group *group = table->groups; group; group = group->next, row++) {
		row->held = table_held(table, group);
		if (row->held)
			group->used_ns = tmesh_now_ns();
		else
			group_used(group);
		fill_row(row, group);
	}
	table_looked(table);
	answer(client, 0, table->names);
}

static void client_ask(struct client *client, struct service *service, int paths)
{
	const struct tmesh_keeper_request *request = &client->request;
	struct table *table = &service->table;
	struct group *group;

	memset(&client->reply, 0, sizeof(client->reply));
	client->reply.used = table->used;
	client->reply.limit = table->limit;
	switch (request->op) {
	case TMESH_KEEPER_KEEP:
		ask_keep(client, paths);
		return;
	case TMESH_KEEPER_FIND:
		ask_find(client, service);
		return;
	case TMESH_KEEPER_OPEN_REGION:
		ask_open_region(client, service);
		return;
	case TMESH_KEEPER_OPEN:
		ask_open(client, service);
		return;
	case TMESH_KEEPER_LIST:
		ask_list(client, service);
		return;
	case TMESH_KEEPER_DROP:
		group = table_find(table, request->name);
		if (group)
			table_drop(table, group);
		answer(client, group ? 0 : -ENOENT, 0);
		return;
	default:
		client->reply.flags = service->flags;
		answer(client, 0, 0);
		client->reply.count = table->names;
	}
}

static bool is_request(const struct tmesh_keeper_request *request)
{
	bool named = request->op != TMESH_KEEPER_LIST && request->op != TMESH_KEEPER_STATUS;

	return request->magic == TMESH_MAGIC_KEEP && request->version == TMESH_WIRE_VERSION &&
	       request->op >= TMESH_KEEPER_KEEP && request->op <= TMESH_KEEPER_OPEN_REGION &&
	       (!named || name_is_good(request->name));
}

/* A client of another release gets one answer, whose head is the same in all versions. Its regions
 * may be on their way: to close the connection over them would lose the answer. */
static bool is_stranger(const struct tmesh_keeper_request *request)
{
	return request->magic == TMESH_MAGIC_KEEP && request->version != TMESH_WIRE_VERSION;
}

/* Read a request. False: nothing more can be read now, or the client is gone. */
static bool read_request(struct client *client, struct service *service)
{
	int paths = -1;
	int rc = tmesh_wire_recv(client->fd, &client->request, sizeof(client->request), &paths, 1,
				 0);

	if (rc == -EAGAIN)
		return false;
	if (client->stranger && rc != -EPIPE) {
		close_paths(paths);
		return true;
	}
	if (rc >= 0 && is_stranger(&client->request)) {
		close_paths(paths);
		client->stranger = true;
		answer(client, -EPROTO, 0);
		return true;
	}
	if (rc < 0 || !is_request(&client->request) ||
	    (paths >= 0 && client->request.op != TMESH_KEEPER_KEEP)) {
		if (rc > 0)
			close_paths(paths);
		client_end(client);
		return false;
	}
	be_patient(client);
	client_ask(client, service, paths);
	return true;
}

static void all_given(struct client *client, struct service *service)
{
	const struct tmesh_keeper_request *request = &client->request;
	struct group *group = client->group;
	int rc = client->reply.status;

	client->group = NULL;
	if (rc)
		group_free(group);
	else
		rc = table_keep(&service->table, group, request->lifetime_ns,
				request->flags & TMESH_KEEPING_REPLACE, tmesh_now_ns(),
				&client->reply.need);
	client->reply.used = service->table.used;
	answer(client, rc, 0);
}

static bool read_region(struct client *client, struct service *service)
{
	struct tmesh_wire_region wire;
	int fds[TMESH_WIRE_FDS];
	int count = tmesh_wire_recv(client->fd, &wire, sizeof(wire), fds, TMESH_WIRE_FDS, 0);
	int rc = 0;

	if (count == -EAGAIN)
		return false;
	if (count < 0 && count != -EMFILE && count != -EPROTO) {
		client_end(client);
		return false;
	}
	be_patient(client);
	if (count < 0)
		rc = client->reply.status ? 0 : count == -EMFILE ? -ENFILE : count;
	else if (client->group && !client->reply.status)
		rc = group_add(client->group, &wire, fds, (unsigned int)count, false);
	else
		for (int i = 0; i < count; i++)
			close(fds[i]);
	if (rc) {
		client->reply.status = rc;
		client->reply.where = client->done;
	}
	if (++client->done == client->request.count)
		all_given(client, service);
	return true;
}

/* Send an opening of its own to each client: it shows when the client has closed it. */
static int send_item(struct client *client, const struct item *item)
{
	struct tmesh_wire_region wire = item->wire;
	unsigned int count = 1;
	int fds[3], rc;

	wire.rights = client->request.rights;
	fds[0] = group_reopen(item->fds[0], 0);
	if (fds[0] < 0)
		return -errno;
	for (; count < 1 + tmesh_opaque_count(&wire); count++)
		fds[count] = item->fds[count];
	rc = tmesh_wire_send(client->fd, &wire, sizeof(wire), fds, count, MSG_DONTWAIT);
	close(fds[0]);
	return rc;
}

static const struct item *item_to_send(const struct client *client)
{
	const struct tmesh_keeper_request *request = &client->request;
	bool one = request->op == TMESH_KEEPER_OPEN_REGION;

	return &client->group->items[one ? request->region : client->done - 1];
}

static int send_reply(const struct client *client)
{
	const struct tmesh_keeper_request *request = &client->request;
	bool with_paths = request->op == TMESH_KEEPER_FIND && client->group &&
			  (request->flags & TMESH_KEEPER_PATHS) && client->group->paths >= 0;

	return tmesh_wire_send(client->fd, &client->reply, sizeof(client->reply),
			       with_paths ? &client->group->paths : NULL, with_paths, MSG_DONTWAIT);
}

/* Send a message. False: it cannot be sent now, or the client is gone. */
static bool write_one(struct client *client)
{
	int rc;

	if (client->done == 0)
		rc = send_reply(client);
	else if (client->rows)
		rc = tmesh_wire_send(client->fd, &client->rows[client->done - 1],
				     sizeof(*client->rows), NULL, 0, MSG_DONTWAIT);
	else
		rc = send_item(client, item_to_send(client));
	if (rc == -EAGAIN)
		return false;
	if (rc) {
		client_end(client);
		return false;
	}
	be_patient(client);
	if (++client->done <= client->follow)
		return true;
	leave_group(client);
	free(client->rows);
	client->rows = NULL;
	client->state = CLIENT_ASKS;
	return true;
}

void client_step(struct client *client, struct service *service, short events)
{
	unsigned int turn = TURN;
	bool more = true;

	if (client->fd < 0)
		return;
	if (!events) {
		if (tmesh_now_ns() >= client->deadline)
			client_end(client);
		return;
	}
	while (more && turn--) {
		switch (client->state) {
		case CLIENT_ASKS:
			more = read_request(client, service);
			break;
		case CLIENT_GIVES:
			more = read_region(client, service);
			break;
		case CLIENT_TAKES:
			more = write_one(client);
			break;
		}
	}
}
