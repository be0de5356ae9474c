// SPDX-License-Identifier: MIT
/*
 * One process of the conformance suite, by the C library. A command is a line of fields between
 * tabs: a verb, what it is about, options as key=value. Bytes are hex digits. Each is answered by
 * one line: "ok" and a value, or "error", its name and its message. See run.py.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <tmesh/slot.h>
#include <tmesh/tmesh.h>

#define MS INT64_C(1000000)
#define RW (TMESH_READ | TMESH_WRITE)
#define MOST 64

/* What a name stands for: one of these. */
struct object {
	char name[32];
	struct tmesh_tensor *tensor;
	struct tmesh_channel *channel;
	struct tmesh_arena *arena;
	struct tmesh_bundle *bundle;
	struct tmesh_region *pin;
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	int fd; /* 0: none */
};

static struct tmesh_ctx *ctx;
static struct tmesh_error why;
static struct object objects[MOST];
/* The command, and the value that is answered. */
static char *fields[16];
static int count;
static char answer[16384];
/* Those of a message or a tensor. */
static unsigned char data[4096];
/* What the verb has made: kept under the name that comes first, and told. */
static struct object made;

/* What a verb does: 0 or a negative errno, as the library gives it. CALL: by one call. */
#define VERB(name) static int do_##name(void)
#define CALL(name, call)     \
	VERB(name)           \
	{                    \
		return call; \
	}

/* More of the value that is answered. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	size_t there = strlen(answer);
	va_list args;

	va_start(args, format);
	vsnprintf(answer + there, sizeof(answer) - there, format, args);
	va_end(args);
}

static int say_number(int rc, uint64_t number)
{
	if (!rc)
		say("%" PRIu64, number);
	return rc;
}

static void say_hex(const unsigned char *bytes, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		say("%02x", bytes[i]);
}

_Noreturn static void give_up(const char *what)
{
	fprintf(stderr, "driver.c: %s: %s\n", count ? fields[0] : "", what);
	exit(2);
}

static char *field(int i)
{
	if (i >= count)
		give_up("a field is missing");
	return fields[i];
}

static uint64_t field_number(int i)
{
	return strtoull(field(i), NULL, 0);
}

/* Whether there is such a field, and it is no option. */
static bool has_field(int i)
{
	return i < count && !strchr(fields[i], '=');
}

static const char *option(const char *key)
{
	size_t length = strlen(key);

	for (int i = 1; i < count; i++)
		if (!strncmp(fields[i], key, length) && fields[i][length] == '=')
			return fields[i] + length + 1;
	return NULL;
}

static bool is(const char *key, const char *value)
{
	return option(key) && !strcmp(option(key), value);
}

static uint64_t number(const char *key)
{
	return option(key) ? strtoull(option(key), NULL, 0) : 0;
}

static uint32_t rights(void)
{
	return is("writable", "true") ? RW : TMESH_READ;
}

static int64_t timeout_ns(void)
{
	return option("timeout") ? (int64_t)number("timeout") * MS : -1;
}

static struct object *has(const char *name)
{
	for (int i = 0; i < MOST; i++)
		if (!strcmp(objects[i].name, name))
			return &objects[i];
	return NULL;
}

static struct object *find(const char *name)
{
	return has(name) ? has(name) : (give_up("no object of that name"), NULL);
}

static struct object *named(int i)
{
	return find(field(i));
}

static struct tmesh_region *region_of(int i)
{
	return tmesh_tensor_region(named(i)->tensor);
}

static void drop(struct object *object)
{
	tmesh_tensor_unref(object->tensor);
	tmesh_channel_unref(object->channel);
	tmesh_arena_unref(object->arena);
	tmesh_bundle_unref(object->bundle);
	tmesh_region_unref(object->pin);
	tmesh_slot_unref(object->slot);
	tmesh_slot_close(object->reader);
	if (object->fd)
		close(object->fd);
	memset(object, 0, sizeof(*object));
}

static int look_at(struct tmesh_tensor *it)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	const struct tmesh_layout *layout = tmesh_tensor_layout(it);
	int rc = tmesh_region_info(tmesh_tensor_region(it), &info, &why);

	if (rc)
		return rc;
	say("%s [", tmesh_dtype_name(layout->dtype));
	for (int32_t i = 0; i < layout->ndim; i++)
		say("%s%" PRId64, i ? "," : "", layout->shape[i]);
	say("] %s",
	    info.sealed ? "sealed" : (info.rights & TMESH_WRITE ? "writable" : "read-only"));
	return 0;
}

/* What is answered of what was made. */
static int tell(const struct object *it)
{
	char token[TMESH_TOKEN_SIZE] = "";
	int rc = 0;

	if (it->tensor)
		return look_at(it->tensor);
	for (size_t i = 0; it->bundle && i < tmesh_bundle_count(it->bundle); i++)
		say("%s ", tmesh_bundle_name(it->bundle, i));
	if (it->bundle)
		say("%" PRIu64 " %s", tmesh_bundle_bytes(it->bundle),
		    tmesh_bundle_metadata(it->bundle, NULL));
	if (it->channel && strcmp(fields[0], "join"))
		rc = tmesh_channel_token(it->channel, token, &why);
	if (it->slot)
		rc = tmesh_slot_token(it->slot, token, &why);
	say("%s", token);
	return rc;
}

static struct object *store(const char *name, struct object it)
{
	struct object *place = has(name) ? has(name) : has("");

	if (!place)
		give_up("too many objects");
	drop(place);
	snprintf(it.name, sizeof(it.name), "%s", name);
	*place = it;
	return place;
}

/* A region as a tensor of this layout, or as its maker described it; no longer the caller's. */
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
/* Have it mapped for writing as long as it lives. */
CALL(hold, tmesh_tensor_data(named(1)->tensor, RW, &(void *){NULL}, &why))
CALL(look, tell(named(1)))
CALL(seal, tmesh_region_seal(region_of(1), &why))
CALL(flush, tmesh_ctx_flush(ctx, timeout_ns(), NULL, &why))

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

VERB(read)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(named(1)->tensor);
	uint64_t bytes = tmesh_tensor_bytes(named(1)->tensor);
	int rc = 0;

	if (bytes > sizeof(data))
		give_up("too many bytes");
	read_elements(layout, 0, layout->offset, data, &rc);
	if (!rc)
		say_hex(data, bytes);
	return rc;
}

VERB(write)
{
	uint64_t at = tmesh_tensor_layout(named(1)->tensor)->offset + field_number(2);
	uint32_t bytes = unhex(field(3));

	return tmesh_region_write(region_of(1), at, data, bytes, &why);
}

/* What is seen from outside. */
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

/* By how much they have grown since they were asked for last. */
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

/* Let go of everything; how many regions are left. */
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
		.slots = (uint32_t)number("slots"),
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

	/* More than there is room for is the library's to refuse. */
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
CALL(reclaim, tmesh_region_reclaim(region_of(1), (uint64_t)timeout_ns(), NULL, &why))
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

/* The one call without a message. */
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

VERB(take)
{
	struct tmesh_region *it = NULL;
	int rc = tmesh_region_recv(ctx, named(2)->fd, &it, &why);

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

/* The one that this suite has started on memfd. */
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

static const struct {
	const char *name;
	int (*run)(void);
} verbs[] = {
/* clang-format off */
#define V(name) {#name, do_##name}
	V(accept), V(arena), V(backend), V(bundle), V(cap), V(channel), V(connect), V(create),
	V(drop), V(export), V(flush), V(follow), V(gather), V(hand), V(hold), V(holders),
	V(import), V(keep), V(kept), V(lease), V(listen), V(look), V(member), V(named), V(open),
	V(pin), V(private), V(publish), V(put), V(read), V(receive), V(reclaim), V(recv),
	V(ref), V(regions), V(release), V(reset), V(revoke), V(seal), V(send), V(signal),
	V(slot), V(stats), V(take), V(touch), V(unbundle), V(value), V(wait), V(write),
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
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .max_bytes = UINT64_C(64) << 20};
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
