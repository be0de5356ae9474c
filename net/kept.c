// SPDX-License-Identifier: MIT
/*
 * Regions that this machine has fetched are kept under the checksum of their bytes. A process with
 * an offer first looks for them here, as tmesh-net does, and then needs neither the machine's
 * Tmesh.Net nor the home. The rules of kept regions apply: memory of this user alone, for reading.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tmesh/keep.h>

#include "net_internal.h"

/* A ref may have only these members. An offer has more, and may be longer than a ref. */
static const char *const ref_members[] = {"v",	   "id",    "token",   "offset", "byte_size",
					  "shape", "dtype", "strides", "device"};

static bool open_shard(struct tmesh_ctx *ctx, const json_t *shard, struct tmesh_region **out)
{
	const char *checksum = json_string_value(json_object_get(shard, "checksum"));
	json_int_t bytes = json_integer_value(json_object_get(shard, "region_bytes"));
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region **regions;
	bool same;
	size_t count;

	if (bytes < 1 || net_check_hex("a checksum", checksum, TMESH_NET_CHECKSUM_SIZE - 1, NULL))
		return false;
	snprintf(name, sizeof(name), "net-%s", checksum);
	if (tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL))
		return false;
	same = count == 1 && tmesh_region_bytes(regions[0]) == (uint64_t)bytes &&
	       tmesh_region_is_sealed(regions[0]);
	if (same)
		*out = tmesh_region_ref(regions[0]);
	for (size_t i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
	free(regions);
	return same;
}

static bool read_ref(json_t *offer, struct tmesh_ref *ref)
{
	json_t *object = json_object();
	char *text;
	bool good;

	for (size_t i = 0; i < sizeof(ref_members) / sizeof(ref_members[0]); i++)
		json_object_set(object, ref_members[i], json_object_get(offer, ref_members[i]));
	text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	good = text && !tmesh_ref_decode(text, strlen(text), ref, NULL);
	free(text);
	return good;
}

bool net_kept_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_tensor **out)
{
	json_t *offer = wanted->ref ? json_loadb(wanted->ref, wanted->ref_bytes,
						 JSON_REJECT_DUPLICATES, NULL)
				    : NULL;
	struct tmesh_region *region;
	struct tmesh_ref ref;
	bool good = offer && !json_object_get(offer, "kind") && read_ref(offer, &ref) &&
		    open_shard(ctx, offer, &region);

	json_decref(offer);
	if (!good)
		return false;
	good = !tmesh_tensor_wrap(region, &ref.layout, out, NULL);
	tmesh_region_unref(region);
	return good;
}

bool net_kept_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		     struct tmesh_bundle **out)
{
	json_t *offer = wanted->ref ? json_loadb(wanted->ref, wanted->ref_bytes,
						 JSON_REJECT_DUPLICATES, NULL)
				    : NULL;
	const json_t *shards = json_object_get(offer, "shards");
	size_t opened = 0, count = json_array_size(shards);
	struct tmesh_region **regions = NULL;
	bool good = count && count <= TMESH_KEPT_MAX_REGIONS + 1;

	if (good)
		regions = calloc(count, sizeof(struct tmesh_region *));
	while (regions && opened < count &&
	       open_shard(ctx, json_array_get(shards, opened), &regions[opened]))
		opened++;
	good = regions && opened == count &&
	       !tmesh_bundle_from_regions(ctx, regions[0], regions + 1, count - 1, out, NULL);
	while (opened)
		tmesh_region_unref(regions[--opened]);
	free(regions);
	json_decref(offer);
	return good;
}
