// SPDX-License-Identifier: MIT
/* Loading a model: from a path to a sealed region with all tensors in it. */
#include "model_internal.h"

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

int load_region(struct load *load, struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.flags = load_huge(load) ? TMESH_REGION_TRY_HUGE : 0,
		.label = load->model->label,
	};

	return tmesh_region_create(load->ctx, load->model->region_bytes, &opts, out, err);
}

static int read_opts(const struct tmesh_model_load_opts *opts, struct tmesh_ctx *ctx,
		     struct tmesh_model_load_opts *out, struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (out->flags & ~(uint32_t)(TMESH_MODEL_ALONE | TMESH_MODEL_HASH | TMESH_MODEL_KEEP))
		return tmesh_fail(err, -EINVAL, "unknown flags 0x%x", out->flags);
	if ((out->flags & TMESH_MODEL_ALONE) && (out->flags & TMESH_MODEL_KEEP))
		return tmesh_fail(
			err, -EINVAL,
			"alone and keep exclude each other: what is kept is shared by its name; "
			"leave one of them out");
	if (out->method && !tmesh_model_method_name(out->method))
		return tmesh_fail(err, -EINVAL, "there is no method %d", (int)out->method);
	if (out->method == TMESH_MODEL_SPLICE && tmesh_ctx_backend(ctx) != TMESH_BACKEND_MEMFD)
		return tmesh_fail(err, -EOPNOTSUPP, "only memfds can be spliced to");
	return 0;
}

int load_finish(struct load *load, struct tmesh_error *err)
{
	/* The right to manage is for whoever keeps it. */
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

static int fill_report(struct load *load, uint64_t began, struct tmesh_error *err)
{
	struct tmesh_model_report *report = &load->model->report;
	struct tmesh_region_info info = {.size = sizeof(info)};
	uint64_t hash[2];
	void *memory;
	int rc;

	report->bytes = load->model->region_bytes;
	if (!tmesh_region_info(load->model->region, &info, NULL) &&
	    info.huge_bytes > report->huge_bytes)
		report->huge_bytes = info.huge_bytes;
	if (load->opts.flags & TMESH_MODEL_HASH) {
		rc = tmesh_region_map(load->model->region, TMESH_READ, &memory, err);
		if (rc)
			return rc;
		model_hash(memory, load->model->region_bytes, hash);
		tmesh_region_unmap(load->model->region, TMESH_READ);
		for (int i = 0; i < 16; i++)
			report->hash[i] = (uint8_t)(hash[i / 8] >> (56 - i % 8 * 8));
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

int tmesh_model_load(struct tmesh_ctx *ctx, const char *path,
		     const struct tmesh_model_load_opts *opts, struct tmesh_model **out,
		     struct tmesh_error *err)
{
	struct load load = {.ctx = ctx};
	uint64_t began = tmesh_now_ns();
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = read_opts(opts, ctx, &load.opts, err);
	if (rc)
		return rc;
	rc = model_open(ctx, path, &load.model, err);
	if (rc)
		return rc;
	rc = set_label(load.model, load.opts.label, err);
	if (!rc)
		rc = model_plan(load.model, err);
	if (!rc)
		rc = load.opts.flags & TMESH_MODEL_ALONE ? load_alone(&load, err)
							 : flight_load(&load, err);
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

/* The layout of a tensor whose elements have no dtype: rows of bytes where blocks fill them. */
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
	return rc ? rc : tmesh_tensor_wrap(model->region, &layout, out, err);
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
	rc = tmesh_model_metadata_json(model, 0, &metadata, err);
	for (size_t i = 0; i < model->entry_count && !rc; i++) {
		const struct table_tensor *tensor = model->entries[i].tensor;

		entries[i].name = tensor->name;
		entries[i].region = model->region;
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
