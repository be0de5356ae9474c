// SPDX-License-Identifier: MIT
/*
 * One process of the conformance suite, by the C library. A command is a line of fields between
 * tabs: a verb, what it is about, options as key=value. Bytes are hex digits. Each is answered by
 * one line: "ok" and a value, or "error", its name and its message. See run.py.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#define MOST 64

struct tmesh_ctx *ctx;
static struct object objects[MOST];
char *fields[16];
int count;
struct tmesh_error why;
static char answer[16384];

void say(const char *format, ...)
{
	size_t there = strlen(answer);
	va_list args;

	va_start(args, format);
	vsnprintf(answer + there, sizeof(answer) - there, format, args);
	va_end(args);
}

void give_up(const char *what)
{
	fprintf(stderr, "driver.c: %s: %s\n", count ? fields[0] : "", what);
	exit(2);
}

const char *field(int i)
{
	if (i >= count)
		give_up("a field is missing");
	return fields[i];
}

const char *option(const char *key)
{
	size_t length = strlen(key);

	for (int i = 1; i < count; i++)
		if (!strncmp(fields[i], key, length) && fields[i][length] == '=')
			return fields[i] + length + 1;
	return NULL;
}

bool flag(const char *key)
{
	const char *value = option(key);

	return value && !strcmp(value, "true");
}

uint64_t number(const char *key)
{
	const char *value = option(key);

	return value ? strtoull(value, NULL, 0) : 0;
}

int64_t timeout_ns(void)
{
	return option("timeout") ? (int64_t)number("timeout") * MS : -1;
}

struct object *find(const char *name)
{
	for (int i = 0; i < MOST; i++)
		if (!strcmp(objects[i].name, name))
			return &objects[i];
	give_up("no object of that name");
}

struct tmesh_tensor *tensor(void)
{
	return find(field(1))->tensor;
}

struct tmesh_region *region(void)
{
	return tmesh_tensor_region(tensor());
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

void keep(const char *name, struct object made)
{
	for (int i = 0; i < MOST; i++)
		if (!strcmp(objects[i].name, name))
			drop(&objects[i]);
	for (int i = 0; i < MOST; i++)
		if (!objects[i].name[0]) {
			snprintf(made.name, sizeof(made.name), "%s", name);
			objects[i] = made;
			return;
		}
	give_up("too many objects");
}

static void say_hex(const void *data, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		say("%02x", ((const unsigned char *)data)[i]);
}

static size_t unhex(const char *text, unsigned char *data, size_t room)
{
	size_t bytes = strlen(text) / 2;

	if (bytes > room)
		give_up("too many bytes");
	for (size_t i = 0; i < bytes; i++)
		sscanf(text + 2 * i, "%2hhx", &data[i]);
	return bytes;
}

int32_t numbers(const char *text, int64_t out[16])
{
	int32_t n = 0;
	char *end;

	for (text++; *text && *text != ']' && n < 16; text = end + (*end == ','))
		out[n++] = strtoll(text, &end, 10);
	return n;
}

int look_at(struct tmesh_tensor *it)
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

int made(int rc, struct tmesh_tensor **it)
{
	if (rc)
		return rc;
	keep(field(1), (struct object){.tensor = *it});
	return look_at(*it);
}

static struct tmesh_region_opts options(void)
{
	struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.label = option("label"),
		.mode = (uint32_t)number("mode"),
		.flags = flag("huge") ? TMESH_REGION_HUGE : 0,
		.arena = option("arena") ? find(option("arena"))->arena : NULL,
	};

	return opts;
}

static int create(void)
{
	struct tmesh_region_opts opts = options();
	struct tmesh_tensor *it;
	int64_t shape[16];
	int32_t ndim = numbers(field(3), shape);

	return made(tmesh_tensor_create(ctx, tmesh_dtype_from_name(field(2)), ndim, shape, &opts,
					&it, &why),
		    &it);
}

static int put(void)
{
	struct tmesh_region_opts opts = options();
	struct tmesh_tensor *it;
	unsigned char data[4096];
	int64_t shape[16];
	int32_t ndim = numbers(field(3), shape);

	if (option("seal") && !flag("seal"))
		opts.flags |= TMESH_REGION_UNSEALED;
	unhex(field(4), data, sizeof(data));
	return made(tmesh_tensor_put(ctx, tmesh_dtype_from_name(field(2)), ndim, shape, data, &opts,
				     &it, &why),
		    &it);
}

static int open_ref(void)
{
	struct tmesh_tensor *it;
	struct tmesh_ref ref;
	int rc = tmesh_ref_decode(field(2), strlen(field(2)), &ref, &why);

	if (!rc)
		rc = tmesh_tensor_open(ctx, &ref, flag("writable") ? RW : TMESH_READ, &it, &why);
	return made(rc, &it);
}

static int ref(void)
{
	struct tmesh_bundle *bundle = find(field(1))->bundle;
	uint32_t rights = flag("writable") ? RW : TMESH_READ;
	char text[TMESH_REF_SIZE];
	uint64_t ns = number("hold") * MS;
	int rc;

	if (ns)
		rc = bundle ? tmesh_bundle_ref_hold(bundle, rights, ns, text, sizeof(text), &why)
			    : tmesh_tensor_ref_hold(tensor(), rights, ns, text, sizeof(text), &why);
	else
		rc = bundle ? tmesh_bundle_ref_encode(bundle, rights, text, sizeof(text), &why)
			    : tmesh_tensor_ref_encode(tensor(), rights, text, sizeof(text), &why);
	if (!rc)
		say("%s", text);
	return rc;
}

static int flush(void)
{
	return tmesh_ctx_flush(ctx, timeout_ns(), NULL, &why);
}

static int look(void)
{
	return look_at(tensor());
}

static unsigned char *read_elements(const struct tmesh_layout *layout, int32_t dim, uint64_t at,
				    unsigned char *to, int *rc)
{
	int64_t size = tmesh_dtype_bits(layout->dtype) / 8;

	if (dim == layout->ndim) {
		if (!*rc)
			*rc = tmesh_region_read(region(), at, to, (uint64_t)size, &why);
		return to + size;
	}
	for (int64_t i = 0; i < layout->shape[dim]; i++)
		to = read_elements(layout, dim + 1,
				   at + (uint64_t)(i * layout->strides[dim] * size), to, rc);
	return to;
}

static int read_all(void)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor());
	uint64_t bytes = tmesh_tensor_bytes(tensor());
	unsigned char data[4096];
	int rc = 0;

	if (bytes > sizeof(data))
		give_up("too many bytes");
	read_elements(layout, 0, layout->offset, data, &rc);
	if (!rc) {
		say_hex(data, bytes);
	}
	return rc;
}

static int write_some(void)
{
	unsigned char data[4096];
	size_t bytes = unhex(field(3), data, sizeof(data));

	return tmesh_region_write(
		region(), tmesh_tensor_layout(tensor())->offset + strtoull(field(2), NULL, 10),
		data, bytes, &why);
}

/* Have it mapped for writing as long as it lives. */
static int hold(void)
{
	void *data;

	return tmesh_tensor_data(tensor(), RW, &data, &why);
}

static int seal(void)
{
	return tmesh_region_seal(region(), &why);
}

static int release(void)
{
	drop(find(field(1)));
	return 0;
}

static int regions(void)
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

static int holders(void)
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

static int cap(void)
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
static int stats(void)
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

static int arena(void)
{
	struct tmesh_region_opts opts = options();
	struct tmesh_arena *it;
	int rc = tmesh_arena_create(ctx, number("bytes"), &opts, &it, &why);

	if (!rc)
		keep(field(1), (struct object){.arena = it});
	return rc;
}

static struct tmesh_channel_opts channel_options(void)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts),
		.slots = (uint32_t)number("slots"),
		.producers = (uint32_t)number("producers"),
		.limit = (uint32_t)number("limit"),
		.rights = flag("writable") ? RW : 0,
	};

	return opts;
}

static enum tmesh_channel_role role(const char *text)
{
	return !strcmp(text, "send") ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV;
}

static int channel(void)
{
	struct tmesh_channel_opts opts = channel_options();
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *it;
	int rc = tmesh_channel_create(ctx, role(field(2)), &opts, &it, &why);

	if (rc)
		return rc;
	keep(field(1), (struct object){.channel = it});
	rc = tmesh_channel_token(it, token, &why);
	if (!rc)
		say("%s", token);
	return rc;
}

static int join(void)
{
	struct tmesh_channel_opts opts = channel_options();
	struct tmesh_channel *it;
	int rc = tmesh_channel_open(ctx, field(2), role(field(3)), &opts, &it, &why);

	if (!rc)
		keep(field(1), (struct object){.channel = it});
	return rc;
}

static int send_message(void)
{
	struct tmesh_message message = {
		.tensor = option("tensor") ? find(option("tensor"))->tensor : NULL,
	};
	unsigned char data[4096];

	/* More than there is room for is the library's to refuse. */
	message.bytes = (uint32_t)unhex(field(2), data, sizeof(data));
	memcpy(message.data, data,
	       message.bytes < sizeof(message.data) ? message.bytes : sizeof(message.data));
	return tmesh_channel_send(find(field(1))->channel, &message, timeout_ns(), &why);
}

static int recv_message(void)
{
	struct tmesh_message message;
	int rc = tmesh_channel_recv(find(field(1))->channel, &message, timeout_ns(), &why);

	if (rc)
		return rc;
	say("%s ", message.tensor ? "tensor" : "bytes");
	say_hex(message.data, message.bytes);
	if (message.tensor)
		keep(field(2), (struct object){.tensor = message.tensor});
	return 0;
}

/* Let go of everything; how many regions are left. */
static int reset(void)
{
	struct tmesh_stats now = {.size = sizeof(now)};
	int rc;

	for (int i = 0; i < MOST; i++)
		drop(&objects[i]);
	rc = tmesh_stats(ctx, &now);
	say("%" PRIu64, now.regions_live);
	return rc;
}

static int backend(void)
{
	say("%s", tmesh_backend_name(tmesh_ctx_backend(ctx)));
	return 0;
}

/* A line for each. */
/* clang-format off */
static const struct verb verbs[] = {
	{"create", create},
	{"put", put},
	{"open", open_ref},
	{"ref", ref},
	{"flush", flush},
	{"look", look},
	{"read", read_all},
	{"write", write_some},
	{"hold", hold},
	{"seal", seal},
	{"release", release},
	{"regions", regions},
	{"holders", holders},
	{"cap", cap},
	{"stats", stats},
	{"arena", arena},
	{"channel", channel},
	{"join", join},
	{"send", send_message},
	{"recv", recv_message},
	{"close", release},
	{"reset", reset},
	{"backend", backend},
	{"unpin", release},
	{NULL},
};
/* clang-format on */

static const struct verb *verb_of(const struct verb *all, const char *name)
{
	for (; all->name; all++)
		if (!strcmp(all->name, name))
			return all;
	return NULL;
}

static void obey(void)
{
	const struct verb *verb = verb_of(verbs, fields[0]);
	int rc;

	if (!verb)
		verb = verb_of(reach_verbs, fields[0]);
	if (!verb)
		give_up("no such verb");
	memset(&why, 0, sizeof(why));
	answer[0] = '\0';
	rc = verb->run();
	if (rc)
		printf("error\t%s\t%s\n", strerrorname_np(-rc), why.message);
	else
		printf("ok\t%s\n", answer);
}

int main(void)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.max_bytes = 64 * MIB,
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
	for (int i = 0; i < MOST; i++)
		drop(&objects[i]);
	end_keeper();
	tmesh_ctx_unref(ctx);
	free(line);
	return 0;
}
