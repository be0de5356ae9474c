// SPDX-License-Identifier: MIT
/*
 * One process of the conformance suite, by the C library. A command is a line of fields between
 * tabs: a verb, its object, options as key=value. Bytes are hex digits. Each is answered by one
 * line: "ok" and a value, or "error", its name and its message. See run.py.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "objects.h"

/* Answer with a region as a tensor of this layout, or as its maker described it. The call takes the
 * region over. */
static int wrap(int rc, struct tmesh_region *it, const struct tmesh_layout *layout)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_ref ref;

	if (rc)
		return rc;
	rc = tmesh_region_info(it, &info, &why);
	if (!rc && !layout) {
		rc = tmesh_ref_decode(info.description, strlen(info.description), &ref, &why);
		layout = &ref.layout;
	}
	if (!rc)
		rc = tmesh_tensor_wrap(it, layout, &made.tensor, &why);
	tmesh_region_unref(it);
	return rc;
}

/* The bytes of a field. */
static uint32_t unhex(const char *text)
{
	size_t bytes = strlen(text) / 2;

	if (bytes > sizeof(data))
		give_up("too many bytes");
	for (size_t i = 0; i < bytes; i++)
		sscanf(text + 2 * i, "%2hhx", &data[i]);
	return (uint32_t)bytes;
}

/* "float32" "[2,3]": the fields behind the name. */
#define DTYPE tmesh_dtype_from_name(field(2))
static int64_t dims[16];

static int32_t shape(void)
{
	int32_t n = 0;
	char *end;

	for (char *text = field(3) + 1; *text && *text != ']' && n < 16; text = end + (*end == ','))
		dims[n++] = strtoll(text, &end, 10);
	return n;
}

/* Tensors */
static const struct tmesh_region_opts *options(void)
{
	static struct tmesh_region_opts opts;

	opts = (struct tmesh_region_opts){
		.size = sizeof(opts),
		.label = option("label"),
		.mode = (uint32_t)number("mode"),
		.flags = (is("huge", "true") ? TMESH_REGION_HUGE : 0) |
			 (is("seal", "false") ? TMESH_REGION_UNSEALED : 0),
		.arena = option("arena") ? find(option("arena"))->arena : NULL,
	};
	return &opts;
}

CALL(create, tmesh_tensor_create(ctx, DTYPE, shape(), dims, options(), &made.tensor, &why))
CALL(arena, tmesh_arena_create(ctx, number("bytes"), options(), &made.arena, &why))
CALL(release, (drop(named(1)), 0))
/* Keep it mapped for writing as long as it lives. */
CALL(hold, tmesh_tensor_data(named(1)->tensor, RW, &(void *){NULL}, &why))
CALL(look, tell(named(1)))
CALL(seal, tmesh_region_seal(region_of(1), &why))
CALL(flush, tmesh_ctx_flush(ctx, timeout_ns(), NULL, &why))
/* Nothing is closed. */
CALL(exit, (exit(0), 0))

VERB(put)
{
	unhex(field(4));
	return tmesh_tensor_put(ctx, DTYPE, shape(), dims, data, options(), &made.tensor, &why);
}

VERB(open)
{
	struct tmesh_ref ref;
	int rc = tmesh_ref_decode(field(2), strlen(field(2)), &ref, &why);

	return rc ? rc : tmesh_tensor_open(ctx, &ref, rights(), &made.tensor, &why);
}

VERB(ref)
{
	const struct object *it = named(1);
	uint64_t ns = number("hold") * MS;
	char text[TMESH_REF_SIZE] = "";
	int rc;

	if (ns && it->bundle)
		rc = tmesh_bundle_ref_hold(it->bundle, rights(), ns, text, sizeof(text), &why);
	else if (ns)
		rc = tmesh_tensor_ref_hold(it->tensor, rights(), ns, text, sizeof(text), &why);
	else if (it->bundle)
		rc = tmesh_bundle_ref_encode(it->bundle, rights(), text, sizeof(text), &why);
	else
		rc = tmesh_tensor_ref_encode(it->tensor, rights(), text, sizeof(text), &why);
	say("%s", text);
	return rc;
}

static unsigned char *read_elements(const struct tmesh_layout *layout, int32_t dim, uint64_t at,
				    unsigned char *to, int *rc)
{
	int64_t size = tmesh_dtype_bits(layout->dtype) / 8;

	if (dim == layout->ndim) {
		if (!*rc)
			*rc = tmesh_region_read(region_of(1), at, to, (uint64_t)size, &why);
		return to + size;
	}
	for (int64_t i = 0; i < layout->shape[dim]; i++)
		to = read_elements(layout, dim + 1,
				   at + (uint64_t)(i * layout->strides[dim] * size), to, rc);
	return to;
}

/* The first byte of each block of a sequence. */
static int read_blocks(struct tmesh_seq *sequence)
{
	uint32_t blocks;
	void *at;
	int rc = 0;

	tmesh_seq_table(sequence, &blocks);
	for (uint32_t i = 0; !rc && i < blocks; i++) {
		rc = tmesh_seq_page(sequence, i, 0, TMESH_READ, &at, &why);
		if (!rc)
			say_hex(at, 1);
	}
	return rc;
}

static int write_block(struct tmesh_seq *sequence)
{
	uint32_t bytes = unhex(field(3));
	void *at;
	int rc = tmesh_seq_page(sequence, (uint32_t)field_number(2), 0, RW, &at, &why);

	if (!rc)
		memcpy(at, data, bytes);
	return rc;
}

static int read_tensor(struct tmesh_tensor *tensor)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	uint64_t bytes = tmesh_tensor_bytes(tensor);
	int rc = 0;

	if (bytes > sizeof(data))
		give_up("too many bytes");
	read_elements(layout, 0, layout->offset, data, &rc);
	if (!rc)
		say_hex(data, bytes);
	return rc;
}

static int write_tensor(struct tmesh_tensor *tensor)
{
	uint64_t at = tmesh_tensor_layout(tensor)->offset + field_number(2);
	uint32_t bytes = unhex(field(3));

	return tmesh_region_write(region_of(1), at, data, bytes, &why);
}

CALL(read, named(1)->tensor ? read_tensor(named(1)->tensor) : read_blocks(named(1)->sequence))
CALL(write, named(1)->tensor ? write_tensor(named(1)->tensor) : write_block(named(1)->sequence))

/* Verbs that look from outside. */
VERB(regions)
{
	uint64_t id = strtoull(field(1), NULL, 16);
	struct tmesh_region_info *infos;
	size_t n;
	int rc = tmesh_list(ctx, &infos, &n, &why);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		if (infos[i].id == id)
			say("%s %" PRIu64 " %" PRIu64 " %o %s", infos[i].label, infos[i].bytes,
			    infos[i].alloc_bytes, infos[i].mode,
			    infos[i].revoked ? "revoked" : (infos[i].sealed ? "sealed" : "open"));
	free(infos);
	if (!answer[0])
		say("none");
	return 0;
}

VERB(holders)
{
	struct tmesh_holder_info *infos;
	size_t n;
	int rc = tmesh_holders(ctx, strtoull(field(1), NULL, 16), &infos, &n, &why);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		say("%d ", (int)infos[i].pid);
	free(infos);
	return 0;
}

VERB(cap)
{
	static const char *const levels[] = {"no", "cooperative", "enforced"};
	const struct tmesh_cap *caps;
	size_t n;
	int rc = tmesh_caps(ctx, &caps, &n);

	for (size_t i = 0; !rc && i < n; i++)
		if (!strcmp(caps[i].name, field(1)))
			say("%s", levels[caps[i].level]);
	return rc;
}

/* The growth of the counters since the last question. */
VERB(stats)
{
	static struct tmesh_stats last;
	struct tmesh_stats now = {.size = sizeof(now)};
	int rc = tmesh_stats(ctx, &now);

	say("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64, now.copies - last.copies,
	    now.bytes_copied - last.bytes_copied, now.regions_created - last.regions_created,
	    (int64_t)(now.regions_live - last.regions_live));
	last = now;
	return rc;
}

VERB(backend)
{
	say("%s", tmesh_backend_name(tmesh_ctx_backend(ctx)));
	return 0;
}

/* Release everything; answer with the number of regions left. */
VERB(reset)
{
	struct tmesh_stats now = {.size = sizeof(now)};

	for (int i = 0; i < MOST; i++)
		drop(&objects[i]);
	return say_number(tmesh_stats(ctx, &now), now.regions_live);
}

/* Channels: the role stands before the options. */
VERB(channel)
{
	bool joins = !strcmp(fields[0], "join");
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts),
		.capacity = (uint32_t)number("capacity"),
		.producers = (uint32_t)number("producers"),
		.limit = (uint32_t)number("limit"),
		.rights = option("writable") ? rights() : 0,
	};
	enum tmesh_channel_role role =
		!strcmp(field(joins ? 3 : 2), "send") ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV;

	return joins ? tmesh_channel_open(ctx, field(2), role, &opts, &made.channel, &why)
		     : tmesh_channel_create(ctx, role, &opts, &made.channel, &why);
}

VERB(send)
{
	struct tmesh_message message = {
		.tensor = option("tensor") ? find(option("tensor"))->tensor : NULL,
		.bytes = unhex(field(2)),
	};

	/* The library refuses more than there is room for. */
	memcpy(message.data, data,
	       message.bytes < sizeof(message.data) ? message.bytes : sizeof(message.data));
	return tmesh_channel_send(named(1)->channel, &message, timeout_ns(), &why);
}

VERB(recv)
{
	struct tmesh_message message;
	int rc = tmesh_channel_recv(named(1)->channel, &message, timeout_ns(), &why);

	if (rc)
		return rc;
	say("%s ", message.tensor ? "tensor" : "bytes");
	say_hex(message.data, message.bytes);
	if (message.tensor)
		store(field(2), (struct object){.tensor = message.tensor});
	return 0;
}

/* Taking back, leases, fences */
CALL(revoke, tmesh_region_revoke(region_of(1), &why))
CALL(reclaim, tmesh_region_reclaim(region_of(1), timeout_ns(), NULL, &why))
CALL(pin, tmesh_region_pin(region_of(2), &made.pin, &why))
CALL(signal, tmesh_fence_signal(region_of(1), field_number(2), &why))

VERB(lease)
{
	uint64_t ns = field_number(2) * MS;
	int rc, pidfd;

	if (!option("process"))
		return tmesh_lease_set(region_of(1), ns, TMESH_TAKEN_ZERO, &why);
	pidfd = (int)syscall(SYS_pidfd_open, (pid_t)number("process"), 0);
	if (pidfd < 0)
		give_up("no such process");
	rc = tmesh_lease_bind(region_of(1), pidfd, ns, TMESH_TAKEN_ZERO, &why);
	close(pidfd);
	return rc;
}

/* The only call without a message. */
VERB(touch)
{
	int rc = tmesh_lease_touch(region_of(1));

	if (rc)
		snprintf(why.message, sizeof(why.message), "the lease has lapsed");
	return rc;
}

VERB(wait)
{
	uint64_t reached = 0;
	int rc = tmesh_fence_wait(region_of(1), field_number(2), timeout_ns(), &reached, &why);

	return say_number(rc, reached);
}

/* Memory in other forms: a part is a tensor's region, or "tensor/offset/bytes" of it. */
VERB(gather)
{
	struct tmesh_gather_extent extents[8] = {0};
	struct tmesh_layout layout;
	struct tmesh_region *view = NULL;
	size_t n = 0;
	int rc = tmesh_layout_contiguous(&layout, DTYPE, shape(), dims, &why);

	for (; !rc && has_field(4 + (int)n); n++) {
		char *rest = field(4 + (int)n);
		struct tmesh_region_info info = {.size = sizeof(info)};

		extents[n].region = tmesh_tensor_region(find(strsep(&rest, "/"))->tensor);
		rc = tmesh_region_info(extents[n].region, &info, &why);
		extents[n].bytes = info.alloc_bytes;
		if (rest) {
			extents[n].offset = strtoull(strsep(&rest, "/"), NULL, 10);
			extents[n].bytes = strtoull(rest, NULL, 10);
		}
	}
	if (!rc)
		rc = tmesh_region_gather(ctx, extents, n, rights(), NULL, &view, &why);
	return wrap(rc, view, &layout);
}

VERB(private)
{
	struct tmesh_region *view = NULL;
	int rc = tmesh_region_private(region_of(2), &view, &why);

	return wrap(rc, view, tmesh_tensor_layout(named(2)->tensor));
}

CALL(export, tmesh_region_export_dmabuf(region_of(2), number("offset"), number("bytes"), rights(),
					&made.fd, &why))
CALL(import, tmesh_region_from_dmabuf(ctx, named(2)->fd, NULL, &made.pin, &why))

/* Hand-over by a socket. Its name is in no folder. */
static int meet(int (*way)(int, const struct sockaddr *, socklen_t), const char *name)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(at.sun_path + 1, name, sizeof(at.sun_path) - 2);
	if (fd < 0 || way(fd, (struct sockaddr *)&at,
			  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))))
		give_up("a socket");
	return fd;
}

CALL(connect, (made.fd = meet(connect, field(2))) < 0)
CALL(accept, (made.fd = accept(named(1)->fd, NULL, NULL)) < 0)
CALL(receive, tmesh_bundle_recv(ctx, named(2)->fd, &made.bundle, &why))

VERB(listen)
{
	char name[64];

	snprintf(name, sizeof(name), "tmesh-conformance-%d-%s", (int)getpid(), field(1));
	say("%s", name);
	made.fd = meet(bind, name);
	return listen(made.fd, 1);
}

VERB(hand)
{
	struct tmesh_bundle *bundle = named(2)->bundle;

	return bundle ? tmesh_bundle_send(bundle, named(1)->fd, rights(), &why)
		      : tmesh_region_send(region_of(2), named(1)->fd, rights(), &why);
}

/* From a socket, or of a tenant's pages by a ticket. */
VERB(take)
{
	struct tmesh_region *it = NULL;
	int rc;

	if (named(2)->pages)
		return tmesh_seq_open(named(2)->pages, field(3), &made.sequence, &why);
	rc = tmesh_region_recv(ctx, named(2)->fd, &it, &why);

	return wrap(rc, it, NULL);
}

/* Bundles: names, each with its tensor behind it. */
VERB(bundle)
{
	struct tmesh_bundle_opts opts = {
		.size = sizeof(opts),
		.metadata = option("metadata"),
		.metadata_bytes = option("metadata") ? strlen(option("metadata")) : 0,
		.flags = is("seal", "false") ? TMESH_BUNDLE_UNSEALED : 0,
	};
	struct tmesh_bundle_entry entries[8] = {0};
	size_t n = 0;

	for (int i = 2; has_field(i + 1); i += 2)
		entries[n++] = (struct tmesh_bundle_entry){.name = fields[i],
							   .tensor = named(i + 1)->tensor};
	return tmesh_bundle_create(ctx, entries, n, &opts, &made.bundle, &why);
}

CALL(unbundle, tmesh_bundle_open(ctx, field(2), strlen(field(2)), rights(), &made.bundle, &why))

VERB(member)
{
	struct tmesh_bundle *it = named(2)->bundle;
	size_t i;
	int rc = tmesh_bundle_find(it, field(3), &i, &why);

	return rc ? rc : tmesh_bundle_tensor(it, i, &made.tensor, &why);
}

/* Kept under a name */
VERB(keep)
{
	struct tmesh_keep_opts opts = {
		.size = sizeof(opts),
		.flags = is("replace", "true") ? TMESH_KEEPING_REPLACE : 0,
		.lifetime_ns = number("lifetime") * MS,
	};
	struct tmesh_region *all[8];
	size_t n = 0;

	if (named(2)->bundle)
		return tmesh_keep_bundle(ctx, field(1), named(2)->bundle, &opts, &why);
	for (; has_field(2 + (int)n); n++)
		all[n] = region_of(2 + (int)n);
	return tmesh_keep(ctx, field(1), all, n, &opts, &why);
}

VERB(kept)
{
	struct tmesh_region **all;
	char name[32];
	size_t n;
	int rc = tmesh_kept_open_bundle(ctx, field(2), TMESH_KEPT_OWN, &made.bundle, &why);

	if (rc != -EPROTO)
		return rc;
	rc = tmesh_kept_open(ctx, field(2), TMESH_KEPT_OWN, TMESH_READ, &all, &n, &why);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < n; i++) {
		rc = wrap(0, all[i], NULL);
		if (rc || n == 1)
			break;
		snprintf(name, sizeof(name), "%s.%zu", field(1), i);
		rc = tell(store(name, made));
		made.tensor = NULL;
		say(i + 1 < n ? ", " : "");
	}
	free(all);
	return rc;
}

/* NAME, or all that begin as NAME* does. */
VERB(drop)
{
	size_t length = strlen(field(1)), n = 0;
	struct tmesh_kept_info *all;
	int rc;

	if (!length || field(1)[length - 1] != '*')
		return tmesh_kept_drop(ctx, field(1), &why);
	rc = tmesh_kept_list(ctx, &all, &n, &why);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < n; i++)
		if (strncmp(all[i].name, field(1), length - 1) == 0)
			rc = tmesh_kept_drop(ctx, all[i].name, &why);
	free(all);
	return rc;
}

/* End the keeper that this suite has started on memfd. */
static void end_keeper(void)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	if (!tmesh_keeper_info(ctx, &info, &why) && info.pid)
		kill(info.pid, SIGTERM);
}

/* Slots */
VERB(slot)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .name = option("name")};

	return tmesh_slot_create(ctx, &opts, &made.slot, &why);
}

/* A bundle, or nothing. */
VERB(publish)
{
	uint64_t generation = 0;
	int rc = tmesh_slot_publish(named(1)->slot, has_field(2) ? named(2)->bundle : NULL,
				    &generation, &why);

	return say_number(rc, generation);
}

CALL(follow, tmesh_slot_open(ctx, field(2), &made.reader, &why))
CALL(named, tmesh_slot_open_named(ctx, field(2), &made.reader, &why))

VERB(value)
{
	struct tmesh_slot_value *newest;
	int rc = tmesh_slot_read(named(2)->reader, &newest, &why);

	if (!rc)
		made.bundle = tmesh_bundle_ref(tmesh_slot_value_bundle(newest));
	return rc;
}

/* Pages */
VERB(pool)
{
	struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts),
		.page_bytes = number("page_bytes"),
		.page_tokens = (uint32_t)number("page_tokens"),
		.slab_pages = (uint32_t)number("slab_pages"),
		.max_pages = (uint32_t)number("max_pages"),
		.devices = (uint32_t)number("devices"),
	};

	return tmesh_page_pool_create(ctx, &opts, &made.pool, &why);
}

VERB(tenant)
{
	char token[TMESH_TOKEN_SIZE] = "";
	int rc = tmesh_page_pool_tenant(named(1)->pool, (uint32_t)number("max_pages"), token, &why);

	say("%s", token);
	return rc;
}

VERB(share)
{
	char ticket[TMESH_PAGES_TICKET_SIZE] = "";
	int rc = tmesh_seq_share(named(1)->sequence, ticket, &why);

	say("%s", ticket);
	return rc;
}

/* The hashes of the first blocks of the tokens 0, 1, 2 and so on, four in each. */
VERB(hashes)
{
	uint64_t hash[2];

	for (int32_t i = 0; i < (int32_t)field_number(2); i++) {
		const int32_t tokens[] = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};

		tmesh_pages_hash(named(1)->pages, i ? hash : NULL, tokens, 4, hash);
		say_hex((const unsigned char *)hash, sizeof(hash));
	}
	return 0;
}

#define HASHES (const uint64_t(*)[2]) data
CALL(pages, tmesh_pages_open(ctx, field(2), &made.pages, &why))
CALL(sequence, tmesh_seq_create(named(2)->pages, &made.sequence, &why))
CALL(append, tmesh_seq_append(named(1)->sequence, field_number(2), &why))
CALL(truncate, tmesh_seq_truncate(named(1)->sequence, field_number(2), &why))
CALL(fork, tmesh_seq_fork(named(2)->sequence, &made.sequence, &why))
CALL(unshare, tmesh_pages_unshare(named(1)->pages, field(2), &why))
CALL(cache, tmesh_seq_cache(named(1)->sequence, HASHES, unhex(field(2)) / 16, &why))
CALL(find, tmesh_pages_find(named(2)->pages, HASHES, unhex(field(3)) / 16, &made.sequence, &why))

static const struct {
	const char *name;
	int (*run)(void);
} verbs[] = {
/* clang-format off */
#define V(name) {#name, do_##name}
	V(accept), V(append), V(arena), V(backend), V(bundle), V(cache), V(cap), V(channel),
	V(connect), V(create), V(drop), V(exit), V(export), V(find), V(flush), V(follow), V(fork),
	V(gather), V(hand), V(hashes), V(hold), V(holders), V(import), V(keep), V(kept), V(lease),
	V(listen), V(look), V(member), V(named), V(open), V(pages), V(pin), V(pool), V(private),
	V(publish), V(put), V(read), V(receive), V(reclaim), V(recv), V(ref), V(regions), V(release),
	V(reset), V(revoke), V(seal), V(send), V(sequence), V(share), V(signal), V(slot), V(stats),
	V(take), V(tenant), V(touch), V(truncate), V(unbundle), V(unshare), V(value), V(wait), V(write),
#undef V
	{"join", do_channel}, {"close", do_release}, {"unpin", do_release},
	/* clang-format on */
};

static void obey(void)
{
	static const struct object nothing;
	size_t i = 0;
	int rc;

	while (strcmp(verbs[i].name, fields[0]))
		if (++i == sizeof(verbs) / sizeof(verbs[0]))
			give_up("no such verb");
	memset(&why, 0, sizeof(why));
	answer[0] = '\0';
	made = nothing;
	rc = verbs[i].run();
	if (!rc && memcmp(&made, &nothing, sizeof(made)))
		rc = tell(store(field(1), made));
	if (rc)
		printf("error\t%s\t%s\n", strerrorname_np(-rc), why.message);
	else
		printf("ok\t%s\n", answer);
}

int main(void)
{
	/* A working peer is as slow as its machine, so wait long. */
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.max_bytes = UINT64_C(64) << 20,
		.timeout_ns = 60000 * MS,
	};
	char *line = NULL, *rest;
	size_t room = 0;

	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	if (tmesh_ctx_open(&opts, &ctx, &why))
		give_up(why.message);
	while (getline(&line, &room, stdin) > 0) {
		line[strcspn(line, "\n")] = '\0';
		rest = line;
		for (count = 0; count < 16 && (fields[count] = strsep(&rest, "\t")); count++)
			;
		obey();
	}
	do_reset();
	end_keeper();
	tmesh_ctx_unref(ctx);
	free(line);
	return 0;
}
