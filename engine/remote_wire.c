// SPDX-License-Identifier: MIT
/* Texts between an engine's process and its clients. The reader trusts none of them. */
#include "remote_wire.h"

#include "identity.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* The least bytes of a tensor in a text. */
#define TENSOR_BYTES 24

static char *room(struct wire *wire, size_t bytes)
{
	char *at = wire->text + wire->at;

	if (wire->wrong || bytes > wire->bytes - wire->at) {
		wire->wrong = true;
		return NULL;
	}
	wire->at += bytes;
	return at;
}

void wire_put_u32(struct wire *wire, uint32_t value)
{
	char *at = room(wire, sizeof(value));

	value = htole32(value);
	if (at)
		memcpy(at, &value, sizeof(value));
}

void wire_put_u64(struct wire *wire, uint64_t value)
{
	char *at = room(wire, sizeof(value));

	value = htole64(value);
	if (at)
		memcpy(at, &value, sizeof(value));
}

void wire_put_text(struct wire *wire, const char *text)
{
	size_t bytes = text ? strlen(text) : 0;
	char *at;

	wire_put_u32(wire, (uint32_t)bytes);
	at = room(wire, bytes + 1);
	if (at)
		memcpy(at, text ? text : "", bytes + 1);
}

uint32_t wire_get_u32(struct wire *wire)
{
	const char *at = room(wire, sizeof(uint32_t));
	uint32_t value = 0;

	if (at)
		memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

uint64_t wire_get_u64(struct wire *wire)
{
	const char *at = room(wire, sizeof(uint64_t));
	uint64_t value = 0;

	if (at)
		memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

const char *wire_get_text(struct wire *wire)
{
	uint32_t bytes = wire_get_u32(wire);
	const char *at = room(wire, (size_t)bytes + 1);

	if (at && strnlen(at, (size_t)bytes + 1) == bytes)
		return at;
	wire->wrong = true;
	return "";
}

/* Return the index of the first tensor in the same region as tensor @i. */
static size_t first_of(const struct wire_tensor *tensors, size_t i)
{
	struct tmesh_region *region = tmesh_tensor_region(tensors[i].tensor);
	size_t first = 0;

	while (first < i && !memory_is_same(tmesh_tensor_region(tensors[first].tensor), region))
		first++;
	return first;
}

/* Write the region's token with the rights that all its tensors need, from a handle that has
 * them. */
static int put_region(struct wire *wire, const struct wire_tensor *tensors, size_t count,
		      size_t first, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor = tensors[first].tensor;
	char token[TMESH_TOKEN_SIZE];
	bool write = false;
	int rc;

	for (size_t i = first; !write && i < count; i++)
		if (tensors[i].write && first_of(tensors, i) == first) {
			tensor = tensors[i].tensor;
			write = true;
		}
	rc = tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ | (write ? TMESH_WRITE : 0),
				token, err);
	if (rc)
		return rc;
	wire_put_u32(wire, write);
	wire_put_text(wire, token);
	return 0;
}

static int too_long(size_t count, struct tmesh_error *err)
{
	return tmesh_fail(err, -EINVAL,
			  "%zu tensors are more than one request to an engine's process has room "
			  "for (%u bytes of tokens and layouts)",
			  count, WIRE_TEXT);
}

int wire_put_tensors(struct wire *wire, const struct wire_tensor *tensors, size_t count,
		     struct tmesh_error *err)
{
	uint32_t *place = NULL, regions = 0;
	int rc = 0;

	wire->wrong |= count > WIRE_TEXT / TENSOR_BYTES;
	if (wire->wrong)
		return too_long(count, err);
	place = calloc(count + 1, sizeof(*place));
	if (!place)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu tensors", count);
	for (size_t i = 0; i < count; i++) {
		size_t first = first_of(tensors, i);

		place[i] = first == i ? regions++ : place[first];
	}
	wire_put_u32(wire, regions);
	for (size_t i = 0; !rc && i < count; i++)
		if (first_of(tensors, i) == i)
			rc = put_region(wire, tensors, count, i, err);
	wire_put_u32(wire, (uint32_t)count);
	for (size_t i = 0; !rc && i < count; i++) {
		const struct tmesh_layout *layout = tmesh_tensor_layout(tensors[i].tensor);

		wire_put_u32(wire, place[i]);
		wire_put_u32(wire, tensors[i].write);
		wire_put_u64(wire, layout->offset);
		wire_put_u32(wire, layout->dtype);
		wire_put_u32(wire, (uint32_t)layout->ndim);
		for (int32_t n = 0; n < layout->ndim; n++)
			wire_put_u64(wire, (uint64_t)layout->shape[n]);
	}
	free(place);
	if (!rc && wire->wrong)
		rc = too_long(count, err);
	return rc;
}

struct opened {
	struct tmesh_region *region;
	bool write;
};

static int get_regions(struct wire *wire, struct tmesh_ctx *ctx, struct opened *opened,
		       size_t count, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		bool write = wire_get_u32(wire);
		const char *token = wire_get_text(wire);

		if (wire->wrong)
			return tmesh_fail(err, -EPROTO, "a request ends in its list of regions");
		opened[i].write = write;
		rc = tmesh_region_open(ctx, token, TMESH_READ | (write ? TMESH_WRITE : 0),
				       &opened[i].region, err);
	}
	return rc;
}

static int get_tensor(struct wire *wire, const struct opened *opened, size_t regions,
		      struct wire_tensor *out, struct tmesh_error *err)
{
	uint32_t place = wire_get_u32(wire);
	bool write = wire_get_u32(wire);
	uint64_t offset = wire_get_u64(wire);
	uint32_t dtype = wire_get_u32(wire), ndim = wire_get_u32(wire);
	int64_t shape[TMESH_MAX_DIMS];
	struct tmesh_layout layout;
	int rc;

	if (ndim > TMESH_MAX_DIMS || place >= regions || (write && !opened[place].write))
		wire->wrong = true;
	for (uint32_t n = 0; !wire->wrong && n < ndim; n++)
		shape[n] = (int64_t)wire_get_u64(wire);
	if (wire->wrong)
		return tmesh_fail(err, -EPROTO, "a request's list of tensors is malformed");
	rc = tmesh_layout_contiguous(&layout, (enum tmesh_dtype)dtype, (int32_t)ndim, shape, err);
	if (rc)
		return rc;
	layout.offset = offset;
	out->write = write;
	return tmesh_tensor_wrap(opened[place].region, &layout, &out->tensor, err);
}

int wire_get_tensors(struct wire *wire, struct tmesh_ctx *ctx, size_t max, size_t max_regions,
		     struct wire_tensor **out, size_t *out_count, size_t *out_regions,
		     struct tmesh_error *err)
{
	size_t regions = wire_get_u32(wire), count = 0;
	struct wire_tensor *tensors = NULL;
	struct opened *opened;
	int rc;

	if (wire->wrong || regions > max)
		return tmesh_fail(err, -EPROTO, "a request names too many regions, or none at all");
	if (regions > max_regions)
		return tmesh_fail(err, -EDQUOT,
				  "the request names %zu regions, and this client may open %zu "
				  "more: release some, or give "
				  "tmesh-engine fewer --clients or more files (ulimit -n)",
				  regions, max_regions);
	opened = calloc(regions + 1, sizeof(*opened));
	if (!opened)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu regions", regions);
	rc = get_regions(wire, ctx, opened, regions, err);
	if (!rc) {
		count = wire_get_u32(wire);
		if (wire->wrong || count > max)
			rc = tmesh_fail(err, -EPROTO, "a request names too many tensors");
	}
	if (!rc) {
		tensors = calloc(count + 1, sizeof(*tensors));
		if (!tensors)
			rc = tmesh_fail(err, -ENOMEM, "no memory for %zu tensors", count);
	}
	for (size_t i = 0; !rc && i < count; i++)
		rc = get_tensor(wire, opened, regions, &tensors[i], err);
	for (size_t i = 0; i < regions; i++)
		if (opened[i].region)
			tmesh_region_unref(opened[i].region);
	free(opened);
	if (rc) {
		wire_tensors_free(tensors, count);
		return rc;
	}
	*out = tensors;
	*out_count = count;
	*out_regions = regions;
	return 0;
}

void wire_tensors_free(struct wire_tensor *tensors, size_t count)
{
	for (size_t i = 0; tensors && i < count; i++)
		tmesh_tensor_unref(tensors[i].tensor);
	free(tensors);
}

bool wire_hung_up(int fd)
{
	struct pollfd poller = {.fd = fd};

	return poll(&poller, 1, 0) > 0 && poller.revents;
}

bool wire_is_name(const char *name)
{
	size_t length = name ? strlen(name) : 0;

	return length && length <= WIRE_NAME_LEN &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}
