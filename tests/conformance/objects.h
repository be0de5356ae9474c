/* SPDX-License-Identifier: MIT */
/* Declarations that the verbs of the conformance driver share: the command, its answer, and the
 * objects behind names. */
#ifndef TMESH_CONFORMANCE_OBJECTS_H
#define TMESH_CONFORMANCE_OBJECTS_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tmesh/pages.h>
#include <tmesh/slot.h>
#include <tmesh/tmesh.h>

#define MS INT64_C(1000000)
#define RW (TMESH_READ | TMESH_WRITE)
#define MOST 64

/* The object behind a name: one of these. */
struct object {
	char name[32];
	struct tmesh_tensor *tensor;
	struct tmesh_channel *channel;
	struct tmesh_arena *arena;
	struct tmesh_bundle *bundle;
	struct tmesh_region *pin;
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages;
	struct tmesh_seq *sequence;
	int fd; /* 0: none */
};

static struct tmesh_ctx *ctx;
static struct tmesh_error why;
static struct object objects[MOST];
/* The command, and the value of the answer. */
static char *fields[16];
static int count;
static char answer[16384];
/* Those of a message or a tensor, or hashes. */
static _Alignas(uint64_t) unsigned char data[4096];
/* The verb's new object: kept under the name that comes first, and described in the answer. */
static struct object made;

/* A verb returns 0 or a negative errno, as the library gives it. CALL: by one call. */
#define VERB(name) static int do_##name(void)
#define CALL(name, call)     \
	VERB(name)           \
	{                    \
		return call; \
	}

/* Add to the value of the answer. */
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

/* Return whether there is such a field, and it is no option. */
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
	tmesh_seq_free(object->sequence);
	tmesh_pages_unref(object->pages);
	tmesh_page_pool_unref(object->pool);
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

/* Answer with the held pages, the copies and their bytes; or with the number of participants and of
 * those gone. */
static int tell_pages(const struct object *it)
{
	struct tmesh_pages_info own = {.size = sizeof(own)};
	struct tmesh_page_pool_info all = {.size = sizeof(all)};
	int rc = it->pages ? tmesh_pages_info(it->pages, &own, &why)
			   : tmesh_page_pool_info(it->pool, &all, &why);

	if (it->pages)
		say("%" PRIu64 " %" PRIu64 " %" PRIu64, own.held, own.copies, own.bytes_copied);
	else
		say("%" PRIu64 " %" PRIu64, all.handles, all.died);
	return rc;
}

/* Answer with the description of a new object. */
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
	if (it->sequence)
		say("%" PRIu64, tmesh_seq_tokens(it->sequence));
	if (it->pages || it->pool)
		rc = tell_pages(it);
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

#endif /* TMESH_CONFORMANCE_OBJECTS_H */
