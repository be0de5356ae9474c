// SPDX-License-Identifier: MIT
/*
 * Make, join and leave channels. The memory is a region of a memfd context on both backends,
 * because futexes do not work on the module's pages. The region's token is the channel's; the
 * server that answers for the token lets others join.
 */
#include "channel_internal.h"
#include "common/foreign.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RW (TMESH_READ | TMESH_WRITE)
#define SPIN_MAX_NS 1000000000u
#define MAX_BYTES (1ull << 30)

static int check_number(uint32_t *number, uint32_t preset, uint32_t most, const char *name,
			struct tmesh_error *err)
{
	if (!*number)
		*number = preset;
	if (*number > most)
		return tmesh_fail(err, -EINVAL, "%s is %u; %u is the most", name, *number, most);
	return 0;
}

static int read_opts(const struct tmesh_channel_opts *opts, enum tmesh_channel_role role,
		     struct tmesh_channel_opts *out, struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (role != TMESH_CHANNEL_SEND && role != TMESH_CHANNEL_RECV)
		return tmesh_fail(err, -EINVAL,
				  "a channel's handle sends or receives; %d is neither", (int)role);
	if (!out->rights)
		out->rights = TMESH_READ;
	if (out->rights != TMESH_READ && out->rights != RW)
		return tmesh_fail(
			err, -EINVAL,
			"the rights of sent tensors must be read, or read and write, not 0x%x",
			out->rights);
	if (out->flags & ~(uint32_t)(TMESH_CHANNEL_NO_OPEN | TMESH_CHANNEL_NO_POLL))
		return tmesh_fail(err, -EINVAL, "unknown flags 0x%x", out->flags);
	if (out->limit && role != TMESH_CHANNEL_SEND)
		return tmesh_fail(err, -EINVAL, "limit is for handles that send: leave it 0 here");
	if (out->spin_ns > SPIN_MAX_NS)
		return tmesh_fail(err, -EINVAL,
				  "spin_ns is %" PRIu64 ": at most a second (1000000000)",
				  out->spin_ns);
	return check_number(&out->max_regions, 64, UINT32_MAX, "max_regions", err);
}

/* Compute the lengths of the memory's parts. The checks before bound them, so nothing overflows. */
static void measure(struct channel_shape *shape)
{
	shape->lane_bytes = sizeof(struct channel_lane) +
			    (uint64_t)shape->capacity * sizeof(struct channel_cell) +
			    (uint64_t)shape->regions * sizeof(struct channel_region) +
			    (uint64_t)shape->layouts * sizeof(struct channel_layout);
	/* No two lanes in one pair of lines. */
	shape->lane_bytes = (shape->lane_bytes + 127) & ~127ull;
	shape->bytes = CHANNEL_HEAD_BYTES + shape->lanes * shape->lane_bytes;
}

static int check_shape(struct channel_shape *shape, struct tmesh_error *err)
{
	int rc = check_number(&shape->capacity, 64, CHANNEL_CAPACITY_MAX, "capacity", err);

	if (!rc && (shape->capacity & (shape->capacity - 1)))
		rc = tmesh_fail(err, -EINVAL, "capacity is %u, which is not a power of two",
				shape->capacity);
	if (!rc)
		rc = check_number(&shape->lanes, 1, CHANNEL_LANES_MAX, "producers", err);
	if (!rc)
		rc = check_number(&shape->regions, 16, CHANNEL_ENTRIES_MAX, "regions", err);
	if (!rc)
		rc = check_number(&shape->layouts, 16, CHANNEL_ENTRIES_MAX, "layouts", err);
	if (!rc)
		measure(shape);
	return rc;
}

void tmesh_channel_free(struct tmesh_channel *channel)
{
	tmesh_channel_leave(channel);
	tmesh_channel_tables_free(channel);
	tmesh_region_unref(channel->memory);
	tmesh_ctx_unref(channel->home);
	tmesh_ctx_unref(channel->ctx);
	free(channel);
}

static int channel_new(struct tmesh_ctx *ctx, enum tmesh_channel_role role,
		       const struct tmesh_channel_opts *o, struct tmesh_channel **out,
		       struct tmesh_error *err)
{
	struct tmesh_channel *channel;
	struct tmesh_ctx *home;
	int rc = tmesh_ctx_memfd(ctx, &home, err);

	if (rc)
		return rc;
	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return tmesh_fail(err, -ENOMEM, "no memory for a channel");
	atomic_init(&channel->refs, 1);
	channel->life = tmesh_fork_life();
	channel->role = role;
	channel->ctx = tmesh_ctx_ref(ctx);
	channel->home = tmesh_ctx_ref(home);
	channel->rights = o->rights;
	channel->opens = !(o->flags & TMESH_CHANNEL_NO_OPEN);
	channel->limit = o->limit;
	channel->max_regions = o->max_regions;
	channel->max_bytes = o->max_bytes ? o->max_bytes : MAX_BYTES;
	channel->spin = channel->spin_max = o->spin_ns;
	channel->conn = -1;
	for (int i = 0; i < CHANNEL_NOTIFIERS; i++)
		channel->notifiers[i] = (struct channel_notifier){-1, -1};
	channel->own = (struct channel_store){-1, -1};
	*out = channel;
	return 0;
}

static int map(struct tmesh_channel *channel, struct tmesh_error *err)
{
	return tmesh_region_map(channel->memory, RW, (void **)&channel->head, err);
}

static int channel_begin(struct tmesh_channel *channel, struct tmesh_error *err)
{
	int rc;

	pthread_mutex_lock(&channel->home->lock);
	rc = tmesh_channel_watch(channel, err);
	if (!rc && channel->maker)
		channel->memory->channel = channel;
	pthread_mutex_unlock(&channel->home->lock);
	return rc;
}

static int create(struct tmesh_ctx *ctx, enum tmesh_channel_role role,
		  const struct tmesh_channel_opts *opts, const struct channel_shape *shape,
		  struct tmesh_channel **out, struct tmesh_error *err)
{
	const struct tmesh_region_opts label = {.size = sizeof(label), .label = "channel"};
	struct tmesh_channel *channel;
	int rc = channel_new(ctx, role, opts, &channel, err);

	if (rc)
		return rc;
	channel->maker = true;
	channel->shape = *shape;
	rc = tmesh_region_create(channel->home, shape->bytes, &label, &channel->memory, err);
	if (!rc)
		rc = map(channel, err);
	if (!rc)
		rc = tmesh_channel_tables_new(channel, err);
	if (!rc) {
		channel->head->magic = CHANNEL_MAGIC;
		channel->head->version = CHANNEL_VERSION;
		channel->head->capacity = shape->capacity;
		channel->head->lanes = shape->lanes;
		channel->head->regions = shape->regions;
		channel->head->layouts = shape->layouts;
		channel->head->flags = shape->pollable ? CHANNEL_POLLABLE : 0;
		rc = tmesh_channel_store_new(channel, -1, err);
	}
	if (!rc)
		rc = tmesh_channel_members_new(channel, err);
	if (!rc && role == TMESH_CHANNEL_SEND)
		rc = tmesh_channel_resume(channel, 0, err);
	if (!rc)
		rc = channel_begin(channel, err);
	if (rc)
		tmesh_channel_free(channel);
	else
		*out = channel;
	return rc;
}

int tmesh_channel_create(struct tmesh_ctx *ctx, enum tmesh_channel_role role,
			 const struct tmesh_channel_opts *opts, struct tmesh_channel **out,
			 struct tmesh_error *err)
{
	struct tmesh_channel_opts o;
	struct channel_shape shape;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = read_opts(opts, role, &o, err);
	if (rc)
		return rc;
	shape = (struct channel_shape){
		.capacity = o.capacity,
		.lanes = o.producers,
		.regions = o.regions,
		.layouts = o.layouts,
		.pollable = !(o.flags & TMESH_CHANNEL_NO_POLL),
	};
	rc = check_shape(&shape, err);
	if (rc)
		return rc;
	rc = create(ctx, role, &o, &shape, out, err);
	return tmesh_region_pool_yields(ctx, rc) ? create(ctx, role, &o, &shape, out, err) : rc;
}

/* Read the channel's shape from its memory, once. */
static int read_shape(struct tmesh_channel *channel, struct tmesh_error *err)
{
	const volatile struct channel_head *head = channel->head;
	struct channel_shape *shape = &channel->shape;
	uint64_t bytes = tmesh_region_bytes(channel->memory);
	uint32_t flags;

	*shape = (struct channel_shape){
		.capacity = head->capacity,
		.lanes = head->lanes,
		.regions = head->regions,
		.layouts = head->layouts,
	};
	flags = head->flags;
	shape->pollable = flags & CHANNEL_POLLABLE;
	if (head->magic != CHANNEL_MAGIC || head->version != CHANNEL_VERSION || !shape->capacity ||
	    !shape->lanes || !shape->regions || !shape->layouts || check_shape(shape, NULL) ||
	    shape->bytes != bytes || flags & ~CHANNEL_POLLABLE)
		return tmesh_fail(
			err, -EPROTO,
			"the token's region is not a channel that this version of libtmesh knows");
	return 0;
}

static const char not_a_channel[] =
	"the token is a region's, not a channel's: tmesh_channel_token() gives one of a channel";

/* Find the memory of a channel that this process made. */
static struct tmesh_region *own_memory(struct tmesh_ctx *home,
				       const struct tmesh_token_fields *parts)
{
	struct tmesh_served found;
	struct tmesh_region *region = NULL;

	pthread_mutex_lock(&home->lock);
	if (tmesh_server_find(home, parts, &found) && found.region->channel)
		region = tmesh_region_ref(found.region);
	pthread_mutex_unlock(&home->lock);
	return region;
}

static int open_memory(struct tmesh_channel *channel, const char *token,
		       const struct tmesh_token_fields *parts, struct tmesh_error *err)
{
	int rc = 0;

	channel->memory = own_memory(channel->home, parts);
	if (!channel->memory)
		rc = tmesh_region_open(channel->home, token, RW, &channel->memory, err);
	/* Each channel's token gives both rights. */
	if (rc == -EACCES || rc == -EPERM)
		return tmesh_fail(err, -EPROTO, not_a_channel);
	if (!rc)
		rc = map(channel, err);
	return rc ? rc : read_shape(channel, err);
}

static int no_answer(int rc, tmesh_giver maker, struct tmesh_error *err)
{
	switch (rc) {
	case -EPIPE:
		return tmesh_fail(err, -ENOENT, "the channel's maker is gone");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "the channel's maker does not answer");
	default:
		errno = -rc;
		return tmesh_foreign_fail_errno(err, "asking the channel's maker", maker);
	}
}

/* Check that all are Unix sockets. Polling a file could block on the process that serves it, and
 * sending by another socket could reach another machine. */
static bool all_sockets(const int *fds, int count)
{
	for (int i = 0; i < count; i++)
		if (!tmesh_foreign_is_unix_socket(fds[i]))
			return false;
	return true;
}

/* Take the ends that came with the reply, which are this handle's then. */
static int take_ends(struct tmesh_channel *channel, const int *fds, int count,
		     struct tmesh_error *err)
{
	struct tmesh_channel *maker;
	int at = 0;

	if (channel->shape.pollable) {
		channel->notifiers[channel_peer_notifier(channel->role)].signal = fds[at++];
		channel->notifiers[channel_own_notifier(channel->role)].signal = fds[at++];
		channel->notifiers[channel_own_notifier(channel->role)].wait = fds[at++];
	}
	if (channel->role == TMESH_CHANNEL_SEND) {
		if (at < count)
			channel->own = (struct channel_store){.get = fds[at], .put = fds[at + 1]};
		return 0;
	}
	pthread_mutex_lock(&channel->home->lock);
	maker = channel->memory->channel;
	if (maker)
		tmesh_channel_store_share(channel, maker);
	pthread_mutex_unlock(&channel->home->lock);
	if (!maker)
		return tmesh_channel_store_new(channel, fds[at], err);
	close(fds[at]);
	return 0;
}

/* Return whether the reply to a join has as many descriptors. */
static bool good_count(const struct tmesh_channel *channel, int count)
{
	count -= channel->shape.pollable ? 3 : 0;
	return channel->role == TMESH_CHANNEL_RECV ? count == 1 : count == 0 || count == 2;
}

/* Join. The connection stays open, because its end shows each side the death of the other. */
static int join(struct tmesh_channel *channel, const struct tmesh_token_fields *token,
		uint32_t *lane, struct tmesh_error *err)
{
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_JOIN,
		.version = TMESH_WIRE_VERSION,
		.rights = channel->role,
	};
	struct tmesh_wire_reply reply;
	uint64_t deadline = tmesh_now_ns() + channel->home->timeout_ns;
	int fds[TMESH_JOIN_FDS], got = 0, rc;

	memcpy(request.secret, token->secret, sizeof(request.secret));
	rc = tmesh_peer_connect(channel->home, token->name, deadline, &channel->conn, err);
	if (rc)
		return rc;
	rc = tmesh_wire_send(channel->conn, &request, sizeof(request), NULL, 0, MSG_DONTWAIT);
	if (!rc)
		got = tmesh_wire_recv(channel->conn, &reply, sizeof(reply), fds, TMESH_JOIN_FDS,
				      deadline);
	if (rc || got < 0)
		return no_answer(rc ? rc : got, tmesh_giver_at(channel->conn), err);
	rc = reply.magic != TMESH_MAGIC_REPLY || reply.version != TMESH_WIRE_VERSION ||
			     !all_sockets(fds, got)
		     ? -EPROTO
		     : reply.status;
	if (rc == 0 && good_count(channel, got) && reply.lane < channel->shape.lanes) {
		*lane = reply.lane;
		return take_ends(channel, fds, got, err);
	}
	for (int i = 0; i < got; i++)
		close(fds[i]);
	switch (rc) {
	case -ENOENT:
		return tmesh_fail(err, rc, "no such channel: its maker has closed it");
	case -EBUSY:
		return channel->role == TMESH_CHANNEL_SEND
			       ? tmesh_fail(err, rc,
					    "all %u of the channel's places to send are taken; its "
					    "maker sets their number with producers, at most %u",
					    channel->shape.lanes, CHANNEL_LANES_MAX)
			       : tmesh_fail(err, rc,
					    "all %u of the channel's places to receive are taken; "
					    "close one of its receivers",
					    CHANNEL_CONSUMERS_MAX);
	default:
		return tmesh_fail(err, rc < 0 && rc > -4096 ? rc : -EPROTO,
				  "the channel's maker gave a malformed answer");
	}
}

int tmesh_channel_open(struct tmesh_ctx *ctx, const char *token, enum tmesh_channel_role role,
		       const struct tmesh_channel_opts *opts, struct tmesh_channel **out,
		       struct tmesh_error *err)
{
	struct tmesh_channel_opts o;
	struct tmesh_channel *channel;
	struct tmesh_token_fields parts;
	uint32_t lane = 0;
	int rc = TMESH_NEED(err, ctx, token, out);

	if (!rc)
		rc = read_opts(opts, role, &o, err);
	if (!rc && (o.capacity || o.producers || o.regions || o.layouts ||
		    o.flags & TMESH_CHANNEL_NO_POLL))
		rc = tmesh_fail(
			err, -EINVAL,
			"capacity, producers, regions, layouts and TMESH_CHANNEL_NO_POLL are "
			"set when the channel is made, not when it is opened");
	if (!rc)
		rc = tmesh_token_parse(token, &parts, err);
	if (!rc && parts.backend != TMESH_BACKEND_MEMFD)
		rc = tmesh_fail(err, -EPROTO, not_a_channel);
	if (!rc)
		rc = channel_new(ctx, role, &o, &channel, err);
	if (rc)
		return rc;
	channel->gone_mask =
		role == TMESH_CHANNEL_SEND ? CHANNEL_NO_CONSUMERS : CHANNEL_NO_PRODUCERS;
	rc = open_memory(channel, token, &parts, err);
	if (!rc)
		rc = tmesh_channel_tables_new(channel, err);
	if (!rc)
		rc = join(channel, &parts, &lane, err);
	if (!rc && role == TMESH_CHANNEL_SEND)
		rc = tmesh_channel_resume(channel, lane, err);
	if (!rc)
		rc = channel_begin(channel, err);
	if (rc) {
		tmesh_channel_withdraw(channel);
		tmesh_channel_free(channel);
	} else {
		*out = channel;
	}
	return rc;
}

int tmesh_channel_token(struct tmesh_channel *channel, char *token, struct tmesh_error *err)
{
	if (TMESH_NEED(err, channel, token))
		return -EINVAL;
	if (!channel->maker)
		return tmesh_fail(err, -EINVAL,
				  "only the maker of the channel gives out its token");
	return tmesh_region_token(channel->memory, RW, token, err);
}

struct tmesh_channel *tmesh_channel_ref(struct tmesh_channel *channel)
{
	atomic_fetch_add_explicit(&channel->refs, 1, memory_order_relaxed);
	return channel;
}

void tmesh_channel_unref(struct tmesh_channel *channel)
{
	if (channel && atomic_fetch_sub_explicit(&channel->refs, 1, memory_order_acq_rel) == 1 &&
	    !tmesh_channel_close_later(channel))
		tmesh_channel_free(channel);
}
