// SPDX-License-Identifier: MIT
/* Loading a model: from a path to a sealed region with all tensors in it. */
#include "model_internal.h"

#include "common/keep_room.h"
#include "common/room.h"

#include <stdio.h>
#include <string.h>

const char *tmesh_model_method_name(enum tmesh_model_method method)
{
	static const char *const names[] = {NULL, "splice", "io_uring", "direct", "read"};

	return (size_t)method < sizeof(names) / sizeof(names[0]) ? names[method] : NULL;
}

bool load_huge(const struct load *load)
{
	uint64_t bytes = load->model->region_bytes, unused = -bytes % MODEL_HUGE_BYTES;

	return unused <= bytes / 8;
}

/* Check that the memory limits leave room for the model. Without room the kernel would kill this
 * process or another one of its group. The module refuses such a region by itself. */
static int check_room(const struct load *load, struct tmesh_error *err)
{
	uint64_t bytes = load->model->region_bytes;
	char where[TMESH_ROOM_PATH + 64];
	struct tmesh_room room;

	if (tmesh_ctx_backend(load->ctx) != TMESH_BACKEND_MEMFD)
		return 0;
	tmesh_room("", &room);
	if (bytes <= room.bytes)
		return 0;
	if (*room.group)
		snprintf(where, sizeof(where), "the control group %.100s (%s %llu MiB)", room.group,
			 room.file, (unsigned long long)(room.limit >> 20));
	else
		snprintf(where, sizeof(where), "this machine, with its swap space,");
	return tmesh_fail(err, -ENOMEM,
			  "the model needs %llu MiB, and %s has room for %llu MiB: raise the "
			  "limit, or end what has memory there",
			  (unsigned long long)(bytes >> 20), where,
			  (unsigned long long)(room.bytes >> 20));
}

/* If the limit of kept bytes is not known, tmesh_keep() will tell. */
static int check_limit(const struct load *load, struct tmesh_error *err)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	if (!(load->opts.flags & TMESH_MODEL_KEEP) || tmesh_keeper_info(load->ctx, &info, NULL))
		return 0;
	return tmesh_keep_room(&info, tmesh_ctx_backend(load->ctx), load->model->region_bytes, err);
}

int load_region(struct load *load, struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.flags = load_huge(load) ? TMESH_REGION_TRY_HUGE : 0,
		.label = load->model->label,
	};
	int rc = check_room(load, err);

	if (!rc)
		rc = check_limit(load, err);
	return rc ? rc : tmesh_region_create(load->ctx, load->model->region_bytes, &opts, out, err);
}

static int read_opts(const struct tmesh_model_load_opts *opts, struct tmesh_ctx *ctx,
		     struct tmesh_model_load_opts *out, struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (out->flags & ~(uint32_t)(TMESH_MODEL_ALONE | TMESH_MODEL_HASH | TMESH_MODEL_KEEP |
				     TMESH_MODEL_LENIENT))
		return tmesh_fail(err, -EINVAL, "unknown flags 0x%x", out->flags);
	if ((out->flags & TMESH_MODEL_ALONE) && (out->flags & TMESH_MODEL_KEEP))
		return tmesh_fail(
			err, -EINVAL,
			"alone and keep exclude each other, because kept memory is shared by "
			"its name: leave one of them out");
	if (out->method && !tmesh_model_method_name(out->method))
		return tmesh_fail(err, -EINVAL, "there is no method %d", (int)out->method);
	if (out->method == TMESH_MODEL_SPLICE && tmesh_ctx_backend(ctx) != TMESH_BACKEND_MEMFD)
		return tmesh_fail(err, -EOPNOTSUPP, "only memfds can be spliced to");
	return 0;
}

int load_finish(struct load *load, struct tmesh_error *err)
{
	/* Keep the right to manage: tmesh_keep() needs it. */
	uint32_t rights = tmesh_region_rights(load->region) & ~(uint32_t)TMESH_WRITE;
	struct tmesh_region *region;
	int rc;

	if (rights != tmesh_region_rights(load->region)) {
		rc = tmesh_region_derive(load->region, rights, &region, err);
		if (rc)
			return rc;
		tmesh_region_unref(load->region);
		load->region = region;
	}
	load->model->region = load->region;
	return 0;
}

int load_alone(struct load *load, struct tmesh_error *err)
{
	int rc = load_region(load, &load->region, err);

	if (!rc)
		rc = load_read(load, err);
	if (!rc)
		rc = load_verify(load, err);
	if (!rc)
		rc = tmesh_region_seal(load->region, err);
	if (!rc)
		rc = load_finish(load, err);
	if (rc)
		tmesh_region_unref(load->region);
	return rc;
}

static struct tmesh_region *model_region_of(const struct tmesh_model *model,
					    const struct model_entry *entry)
{
	struct tmesh_region *own = model->files[entry->file].region;

	return own ? own : model->region;
}

static void hash_bytes(const void *data, size_t bytes, uint8_t hash[16])
{
	uint64_t words[2];

	model_hash(data, bytes, words);
	for (int i = 0; i < 16; i++)
		hash[i] = (uint8_t)(words[i / 8] >> (56 - i % 8 * 8));
}

static int hash_region(struct tmesh_region *region, uint8_t hash[16], struct tmesh_error *err)
{
	void *memory;
	int rc = tmesh_region_map(region, TMESH_READ, &memory, err);

	if (rc)
		return rc;
	hash_bytes(memory, tmesh_region_bytes(region), hash);
	tmesh_region_unmap(region, TMESH_READ);
	return 0;
}

/* Compute the checksum of the region, or that of the checksums of the files' regions. */
static int hash_model(const struct tmesh_model *model, uint8_t hash[16], struct tmesh_error *err)
{
	uint8_t *each;
	int rc = 0;

	if (model->file_count == 1 || !model->files[0].region)
		return hash_region(model->region, hash, err);
	each = malloc(16 * model->file_count);
	if (!each)
		return tmesh_fail(err, -ENOMEM, "no memory for the checksums of %zu files",
				  model->file_count);
	for (size_t i = 0; i < model->file_count && !rc; i++)
		rc = hash_region(model->files[i].region, each + 16 * i, err);
	if (!rc)
		hash_bytes(each, 16 * model->file_count, hash);
	free(each);
	return rc;
}

static uint64_t huge_bytes(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return tmesh_region_info(region, &info, NULL) ? 0 : info.huge_bytes;
}

static int fill_report(struct load *load, uint64_t began, struct tmesh_error *err)
{
	const struct tmesh_model *model = load->model;
	struct tmesh_model_report *report = &load->model->report;
	uint64_t huge = 0;
	int rc;

	report->bytes = model->region_bytes;
	/* Small files, which share a region, have no huge pages. */
	for (size_t i = 0; i < model->file_count && model->files[i].region; i++)
		huge += huge_bytes(model->files[i].region);
	if (!model->files[0].region)
		huge = huge_bytes(model->region);
	if (huge > report->huge_bytes)
		report->huge_bytes = huge;
	if (load->opts.flags & TMESH_MODEL_HASH) {
		rc = hash_model(model, report->hash, err);
		if (rc)
			return rc;
	}
	report->ns = tmesh_now_ns() - began;
	return 0;
}

static int set_label(struct tmesh_model *model, const char *label, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE];

	if (label && strlen(label) > TMESH_LABEL_LEN)
		return tmesh_fail(err, -EINVAL, "the label is longer than %d bytes",
				  TMESH_LABEL_LEN);
	if (!label)
		label = model_quote(quoted, model->files[0].name);
	snprintf(model->label, sizeof(model->label), "%s", label);
	return 0;
}

/* Report rules that the files break and that the option "lenient" allows. */
static void tell_lapses(struct load *load)
{
	unsigned int lapses = load->model->lapses;

	for (size_t i = 0; i < load->model->file_count; i++)
		lapses |= load->model->files[i].table->lapses;
	if (lapses & LAPSE_VERSION)
		load_say(load, "lenient: GGUF of version 2; ");
	if (lapses & LAPSE_BEHIND)
		load_say(load, "lenient: bytes behind the last tensor; ");
	if (lapses & LAPSE_UNNAMED)
		load_say(load, "lenient: tensors that the index does not name; ");
}

int tmesh_model_load(struct tmesh_ctx *ctx, const char *path,
		     const struct tmesh_model_load_opts *opts, struct tmesh_model **out,
		     struct tmesh_error *err)
{
	struct load load = {.ctx = ctx};
	struct opening opening = {.ctx = ctx};
	uint64_t began = tmesh_now_ns();
	bool in_place = false;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = read_opts(opts, ctx, &load.opts, err);
	if (rc)
		return rc;
	opening.lenient = load.opts.flags & TMESH_MODEL_LENIENT;
	opening.progress = load.opts.progress;
	opening.progress_data = load.opts.progress_data;
	rc = model_open(&opening, path, &load.model, err);
	if (rc)
		return rc;
	rc = set_label(load.model, load.opts.label, err);
	if (!rc)
		tell_lapses(&load);
	if (!rc)
		rc = load_in_place(&load, &in_place, err);
	if (!rc && !in_place)
		rc = model_plan(load.model, err);
	if (!rc && !in_place)
		rc = load.opts.flags & TMESH_MODEL_ALONE ? load_alone(&load, err)
							 : shared_load_run(&load, err);
	model_close_files(load.model);
	if (!rc)
		rc = fill_report(&load, began, err);
	if (rc) {
		tmesh_model_unref(load.model);
		return rc;
	}
	*out = load.model;
	return 0;
}

int tmesh_model_report(const struct tmesh_model *model, struct tmesh_model_report *out,
		       struct tmesh_error *err)
{
	if (TMESH_NEED(err, model, out))
		return -EINVAL;
	if (!model->region)
		return tmesh_fail(err, -EINVAL, "the model was described, not loaded");
	return tmesh_write_sized(out, &model->report, sizeof(model->report), err);
}

struct tmesh_region *tmesh_model_region(const struct tmesh_model *model)
{
	return model->region;
}

/* Make the layout of a tensor whose elements have no dtype: rows of bytes if blocks fill them. */
static int bytes_layout(const struct table_tensor *tensor, struct tmesh_layout *layout,
			struct tmesh_error *err)
{
	int64_t shape[TMESH_MAX_DIMS];
	int32_t ndim = tensor->ndim;

	memcpy(shape, tensor->shape, sizeof(shape));
	if (ndim && shape[ndim - 1] % tensor->type->block_elements == 0) {
		shape[ndim - 1] =
			shape[ndim - 1] / tensor->type->block_elements * tensor->type->block_bytes;
	} else if (ndim || tensor->bytes != 1) {
		ndim = 1;
		shape[0] = (int64_t)tensor->bytes;
	}
	return tmesh_layout_contiguous(layout, TMESH_UINT8, ndim, shape, err);
}

static int layout_of(const struct model_entry *entry, struct tmesh_layout *layout,
		     struct tmesh_error *err)
{
	const struct table_tensor *tensor = entry->tensor;
	int rc;

	if (tensor->type->dtype)
		rc = tmesh_layout_contiguous(layout, tensor->type->dtype, tensor->ndim,
					     tensor->shape, err);
	else
		rc = bytes_layout(tensor, layout, err);
	if (!rc)
		layout->offset = entry->offset;
	return rc;
}

int tmesh_model_tensor_open(const struct tmesh_model *model, size_t index,
			    struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_layout layout;
	int rc = TMESH_NEED(err, model, out);

	if (rc)
		return rc;
	if (!model->region)
		return tmesh_fail(err, -EINVAL, "the model was described, not loaded");
	if (index >= model->entry_count)
		return tmesh_fail(err, -EINVAL,
				  "the model has %zu tensors, none with the number %zu",
				  model->entry_count, index);
	rc = layout_of(&model->entries[index], &layout, err);
	return rc ? rc
		  : tmesh_tensor_wrap(model_region_of(model, &model->entries[index]), &layout, out,
				      err);
}

int tmesh_model_bundle(struct tmesh_ctx *ctx, const struct tmesh_model *model,
		       struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts)};
	struct tmesh_bundle_entry *entries;
	char label[TMESH_LABEL_LEN + 1];
	char *metadata = NULL;
	int rc = TMESH_NEED(err, ctx, model, out);

	if (rc)
		return rc;
	if (!model->region)
		return tmesh_fail(err, -EINVAL, "the model was described, not loaded");
	entries = calloc(model->entry_count + 1, sizeof(*entries));
	if (!entries)
		return tmesh_fail(err, -ENOMEM, "no memory for the bundle");
	rc = model_metadata_text(model, 0, TMESH_BUNDLE_MAX_METADATA, &metadata, err);
	for (size_t i = 0; i < model->entry_count && !rc; i++) {
		const struct table_tensor *tensor = model->entries[i].tensor;

		entries[i].name = tensor->name;
		entries[i].region = model_region_of(model, &model->entries[i]);
		rc = layout_of(&model->entries[i], &entries[i].layout, err);
		if (rc || tensor->type->dtype)
			continue;
		entries[i].type = tensor->type->name;
		entries[i].type_ndim = tensor->ndim;
		memcpy(entries[i].type_shape, tensor->shape, sizeof(tensor->shape));
	}
	if (!rc) {
		snprintf(label, sizeof(label), "%s", model->label);
		opts.label = label;
		opts.metadata = metadata;
		opts.metadata_bytes = strlen(metadata);
		rc = tmesh_bundle_create(ctx, entries, model->entry_count, &opts, out, err);
	}
	free(metadata);
	free(entries);
	return rc;
}
