// SPDX-License-Identifier: MIT
/* Bundles between processes: refs with a token a region, and hand-over by socket. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bundle_internal.h"
#include "ref_json.h"
#include "wire.h"

/* A head or a region with its token fits. */
#define HEAD_ROOM 320
#define REGION_ROOM 128

_Static_assert(HEAD_ROOM + TMESH_BUNDLE_MAX_REGIONS * REGION_ROOM <= TMESH_BUNDLE_MAX_REF,
	       "what is written can be read");

size_t tmesh_bundle_ref_size(const struct tmesh_bundle *bundle)
{
	return HEAD_ROOM + bundle->count * REGION_ROOM;
}

/* Make a region's token; if @hold is a time, one that holds the region so long. */
static int token_of(struct tmesh_region *region, uint32_t rights, const uint64_t *hold, char *token,
		    struct tmesh_error *err)
{
	return hold ? tmesh_region_hold(region, rights, *hold, token, err)
		    : tmesh_region_token(region, rights, token, err);
}

static int put_regions(struct tmesh_bundle *bundle, uint32_t rights, const uint64_t *hold, char *to,
		       struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE];

	for (size_t i = 0; i < bundle->count; i++) {
		struct tmesh_region *region = bundle->regions[i];
		int rc = token_of(region, rights, hold, token, err);

		if (rc)
			return rc;
		to += sprintf(to, "%s{\"id\":\"%016" PRIx64 "\",\"token\":\"%s\"}", i ? "," : "",
			      region->id, token);
	}
	strcpy(to, "]}");
	return 0;
}

static int encode(struct tmesh_bundle *bundle, uint32_t rights, const uint64_t *hold, char *text,
		  size_t size, struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE];
	size_t bytes;
	char *whole;
	int length, rc = 0;

	for (size_t i = 0; i < bundle->count && !rc; i++)
		rc = tmesh_refuse_sealed_gift(bundle->regions[i], rights, "ref", err);
	if (!rc)
		rc = token_of(bundle->index, TMESH_READ | (rights & TMESH_MANAGE), hold, token,
			      err);
	if (rc)
		return rc;
	whole = malloc(tmesh_bundle_ref_size(bundle));
	if (!whole)
		return tmesh_fail(err, -ENOMEM, "no memory for a bundle's ref");
	length = snprintf(
		whole, HEAD_ROOM,
		"{\"v\":1,\"kind\":\"bundle\",\"id\":\"%016" PRIx64
		"\",\"token\":\"%s\",\"tensors\":%zu,\"byte_size\":%" PRIu64 ",\"regions\":[",
		bundle->index->id, token, tmesh_bundle_count(bundle), tmesh_bundle_bytes(bundle));
	rc = put_regions(bundle, rights, hold, whole + length, err);
	bytes = rc ? 0 : strlen(whole) + 1;
	if (bytes > size)
		rc = tmesh_fail(err, -ENOSPC,
				"the bundle's ref needs %zu bytes, there is room for %zu", bytes,
				size);
	if (!rc)
		memcpy(text, whole, bytes);
	free(whole);
	return rc;
}

int tmesh_bundle_ref_encode(struct tmesh_bundle *bundle, uint32_t rights, char *text, size_t size,
			    struct tmesh_error *err)
{
	if (TMESH_NEED(err, bundle, text))
		return -EINVAL;
	return encode(bundle, rights, NULL, text, size, err);
}

/* Encode the ref before holding: a bundle whose ref does not fit is not held. */
int tmesh_bundle_ref_hold(struct tmesh_bundle *bundle, uint32_t rights, uint64_t ns, char *text,
			  size_t size, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, bundle, text);
	size_t room;
	char *trial;

	if (rc)
		return rc;
	room = tmesh_bundle_ref_size(bundle);
	trial = malloc(room);
	if (!trial)
		return tmesh_fail(err, -ENOMEM, "no memory for a bundle's ref");
	rc = encode(bundle, rights, NULL, trial, size < room ? size : room, err);
	free(trial);
	return rc ? rc : encode(bundle, rights, &ns, text, size, err);
}

/* The members of a ref, without its regions. */
struct bundle_ref {
	uint64_t id;
	char token[TMESH_TOKEN_SIZE];
	uint64_t tensors;
	uint64_t byte_size;
	const json_t *regions;
	size_t count;
};

static int read_head(const json_t *json, struct bundle_ref *ref, struct tmesh_error *err)
{
	int rc;

	if (!json_is_object(json))
		return tmesh_fail(err, -EPROTO, "a bundle's ref is a JSON object");
	if (!tmesh_ref_is_bundle(json))
		return tmesh_fail(err, -EPROTO,
				  json_object_get(json, "dtype")
					  ? "this is the ref of a tensor, not of a bundle: "
					    "tmesh_ref_decode() and tmesh_tensor_open() open it"
					  : "not a bundle's ref: it has no \"kind\":\"bundle\"");
	rc = tmesh_ref_get_version(json, err);
	if (!rc)
		rc = tmesh_ref_get_id(json, &ref->id, err);
	if (!rc)
		rc = tmesh_ref_get_token(json, ref->token, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "tensors", &ref->tensors, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "byte_size", &ref->byte_size, err);
	if (rc)
		return rc;
	if (!*ref->token)
		return tmesh_fail(err, -EPROTO,
				  "the bundle's ref has no token: it describes the bundle and "
				  "does not open it");
	ref->regions = json_object_get(json, "regions");
	if (!json_is_array(ref->regions))
		return tmesh_fail(err, -EPROTO, "the bundle's ref has no list \"regions\"");
	ref->count = json_array_size(ref->regions);
	if (ref->count > TMESH_BUNDLE_MAX_REGIONS)
		return tmesh_fail(err, -EPROTO, "a bundle has at most %d data regions, not %zu",
				  TMESH_BUNDLE_MAX_REGIONS, ref->count);
	return 0;
}

static int open_named(struct tmesh_ctx *ctx, const char *token, uint64_t id, uint32_t rights,
		      struct tmesh_region **out, struct tmesh_error *err)
{
	int rc = tmesh_region_open(ctx, token, rights, out, err);

	if (rc || (*out)->id == id)
		return rc;
	rc = tmesh_fail(err, -EPROTO,
			"the ref is of region %016" PRIx64 ", its token of %016" PRIx64, id,
			(*out)->id);
	tmesh_region_unref(*out);
	*out = NULL;
	return rc;
}

static int open_regions(struct tmesh_ctx *ctx, const struct bundle_ref *ref, uint32_t rights,
			struct tmesh_region **regions, struct tmesh_error *err)
{
	const json_t *member;
	size_t i;

	json_array_foreach(ref->regions, i, member) {
		char token[TMESH_TOKEN_SIZE];
		uint64_t id;
		int rc;

		if (!json_is_object(member))
			return tmesh_fail(err, -EPROTO,
					  "region %zu of the bundle's ref is not an object", i);
		rc = tmesh_ref_get_id(member, &id, err);
		if (!rc)
			rc = tmesh_ref_get_token(member, token, err);
		if (!rc)
			rc = open_named(ctx, token, id, rights, &regions[i], err);
		if (!rc)
			rc = tmesh_refuse_sealed(regions[i], rights, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int open_ref(struct tmesh_ctx *ctx, const struct bundle_ref *ref, uint32_t rights,
		    struct tmesh_bundle **out, struct tmesh_error *err)
{
	/* The index is the last. */
	struct tmesh_region **regions = calloc(ref->count + 1, sizeof(struct tmesh_region *));
	struct tmesh_region **index;
	struct tmesh_bundle *bundle;
	int rc;

	if (!regions)
		return tmesh_fail(err, -ENOMEM, "no memory for a bundle");
	index = &regions[ref->count];
	rc = open_named(ctx, ref->token, ref->id, TMESH_READ | (rights & TMESH_MANAGE), index, err);
	if (!rc)
		rc = open_regions(ctx, ref, rights, regions, err);
	if (!rc)
		rc = tmesh_bundle_adopt(ctx, *index, regions, ref->count, &bundle, err);
	if (rc) {
		tmesh_bundle_drop(regions, ref->count + 1);
	} else if (tmesh_bundle_count(bundle) != ref->tensors ||
		   tmesh_bundle_bytes(bundle) != ref->byte_size) {
		rc = tmesh_fail(err, -EPROTO,
				"the ref names %" PRIu64 " tensors with %" PRIu64
				" bytes, but the bundle has %zu with %" PRIu64,
				ref->tensors, ref->byte_size, tmesh_bundle_count(bundle),
				tmesh_bundle_bytes(bundle));
		tmesh_bundle_unref(bundle);
	} else {
		*out = bundle;
	}
	free(regions);
	return rc;
}

int tmesh_bundle_open(struct tmesh_ctx *ctx, const char *text, size_t bytes, uint32_t rights,
		      struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct bundle_ref ref;
	json_t *json;
	int rc = TMESH_NEED(err, ctx, text, out);

	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (rc)
		return rc;
	if (bytes > TMESH_BUNDLE_MAX_REF)
		return tmesh_fail(err, -EPROTO, "a bundle's ref has at most %u bytes, not %zu",
				  TMESH_BUNDLE_MAX_REF, bytes);
	rc = tmesh_ref_load(text, bytes, &json, err);
	if (rc)
		return rc;
	rc = read_head(json, &ref, err);
	if (!rc)
		rc = open_ref(ctx, &ref, rights, out, err);
	json_decref(json);
	return rc;
}

/* By socket. */

int tmesh_bundle_send(struct tmesh_bundle *bundle, int socket, uint32_t rights,
		      struct tmesh_error *err)
{
	struct tmesh_wire_bundle head = {
		.magic = TMESH_MAGIC_BUNDLE,
		.version = TMESH_WIRE_VERSION,
	};
	int rc = TMESH_NEED(err, bundle);

	if (rc)
		return rc;
	head.backend = bundle->ctx->ops->backend;
	head.regions = (uint32_t)bundle->count;
	rc = tmesh_check_rights(rights, err);
	/* Check first, so that a foreseeable failure comes before any part is sent. */
	for (size_t i = 0; !rc && i < bundle->count; i++) {
		rc = tmesh_region_may(bundle->regions[i], rights, "send", err);
		if (!rc)
			rc = tmesh_refuse_sealed_gift(bundle->regions[i], rights, "send", err);
	}
	if (!rc)
		rc = tmesh_region_may(bundle->index, TMESH_READ | (rights & TMESH_MANAGE), "send",
				      err);
	if (!rc)
		rc = tmesh_wire_send_waiting(bundle->ctx, socket, &head, sizeof(head), NULL, 0,
					     err);
	if (!rc)
		rc = tmesh_region_send(bundle->index, socket, TMESH_READ | (rights & TMESH_MANAGE),
				       err);
	for (size_t i = 0; !rc && i < bundle->count; i++)
		rc = tmesh_region_send(bundle->regions[i], socket, rights, err);
	return rc;
}

static int recv_head(struct tmesh_ctx *ctx, int socket, size_t *count, struct tmesh_error *err)
{
	struct tmesh_wire_bundle head;
	static const uint32_t none[6];
	int rc = tmesh_wire_recv_plain(socket, &head, sizeof(head),
				       tmesh_now_ns() + ctx->timeout_ns, err);

	if (rc)
		return rc;
	if (head.magic == TMESH_MAGIC_REGION)
		return tmesh_fail(err, -EPROTO,
				  "receive: the peer sent a region, not a bundle: "
				  "tmesh_region_recv() takes it");
	if (head.magic != TMESH_MAGIC_BUNDLE || head.version != TMESH_WIRE_VERSION ||
	    head.regions > TMESH_BUNDLE_MAX_REGIONS || memcmp(head.pad, none, sizeof(none)))
		return tmesh_fail(err, -EPROTO,
				  "receive: the peer sent something else than a bundle");
	if (head.backend != ctx->ops->backend)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "receive: the bundle is of another backend than this context's "
				  "(%s)",
				  tmesh_backend_name(ctx->ops->backend));
	*count = head.regions;
	return 0;
}

int tmesh_bundle_recv(struct tmesh_ctx *ctx, int socket, struct tmesh_bundle **out,
		      struct tmesh_error *err)
{
	struct tmesh_region **regions; /* the index first */
	size_t count = 0;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = tmesh_wire_check(socket, err);
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = recv_head(ctx, socket, &count, err);
	if (rc)
		return rc;
	regions = calloc(count + 1, sizeof(struct tmesh_region *));
	if (!regions)
		return tmesh_fail(err, -ENOMEM, "no memory for a bundle");
	for (size_t i = 0; !rc && i <= count; i++)
		rc = tmesh_region_recv(ctx, socket, &regions[i], err);
	if (!rc)
		rc = tmesh_bundle_adopt(ctx, regions[0], regions + 1, count, out, err);
	if (rc)
		tmesh_bundle_drop(regions, count + 1);
	free(regions);
	return rc;
}
