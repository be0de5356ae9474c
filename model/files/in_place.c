// SPDX-License-Identifier: MIT
/*
 * Load kept files at paths of tmeshfs or tmesh-mount: their regions become the model's, and nothing
 * is read. Either all files of a model are taken so, or none.
 */
#include "model_internal.h"

#include <stdio.h>
#include <string.h>

/* A file's place in its region. */
struct kept {
	struct tmesh_region *region;
	struct tmesh_kept_file file;
	char name[TMESH_KEPT_NAME_LEN + 1];
};

/* Check that each type's elements are aligned, since tensors begin as they do in the file. */
static bool are_aligned(const struct tmesh_model *model, const struct kept *kept)
{
	for (size_t i = 0; i < model->entry_count; i++) {
		const struct table_tensor *tensor = model->entries[i].tensor;
		uint64_t bits = tensor->type->dtype ? tmesh_dtype_bits(tensor->type->dtype) : 8;
		uint64_t offset = kept[model->entries[i].file].file.offset;

		if (tensor->bytes && bits > 8 && (offset + tensor->file_offset) % (bits / 8))
			return false;
	}
	return true;
}

/* Open the regions of all files. -ENODATA: a file is not kept. -EBADMSG: a file is not what is kept
 * at its path. */
static int open_all(const struct load *load, struct kept *kept, struct tmesh_error *err)
{
	const struct tmesh_model *model = load->model;
	char quoted[MODEL_QUOTE];

	for (size_t i = 0; i < model->file_count; i++) {
		int rc = tmesh_kept_open_fd(load->ctx, model->files[i].fd, &kept[i].region,
					    &kept[i].file, kept[i].name, err);

		/* Files of two keepings are no model: the copy would have some of each. */
		if (rc == -ESTALE && model->file_count > 1)
			return tmesh_fail(err, rc,
					  "%s was replaced while the model's files were opened: "
					  "load it again",
					  model_quote(quoted, model->files[i].path));
		if (rc)
			return rc == -ESTALE ? tmesh_fail(err, -EBADMSG, "it was replaced") : rc;
		if (kept[i].file.bytes != model->files[i].bytes)
			return tmesh_fail(err, -EBADMSG, "its length is another one");
	}
	if (!are_aligned(model, kept))
		return tmesh_fail(err, -EBADMSG, "its tensors are not aligned in the file");
	return 0;
}

/* Return whether a file before number @file has the same region: small files share one. */
static bool is_shared(const struct kept *kept, size_t file)
{
	for (size_t i = 0; i < file; i++) {
		if (tmesh_region_id(kept[i].region) == tmesh_region_id(kept[file].region))
			return true;
	}
	return false;
}

static void place(struct tmesh_model *model, struct kept *kept)
{
	for (size_t i = 0; i < model->entry_count; i++) {
		struct model_entry *entry = &model->entries[i];

		entry->offset = kept[entry->file].file.offset + entry->tensor->file_offset;
		model->report.tensors_moved += entry->offset % TMESH_ALIGN != 0;
	}
	for (size_t i = 0; i < model->file_count; i++) {
		model->files[i].region = kept[i].region;
		if (!is_shared(kept, i))
			model->region_bytes += tmesh_region_bytes(kept[i].region);
	}
	model->region = tmesh_region_ref(kept[0].region);
}

int load_in_place(struct load *load, bool *done, struct tmesh_error *err)
{
	struct tmesh_model *model = load->model;
	struct tmesh_error why;
	struct kept *kept;
	int rc;

	*done = false;
	/* A caller that names a method wants the file read. */
	if ((load->opts.flags & TMESH_MODEL_ALONE) || load->opts.method)
		return 0;
	/* A bundle has one region for each file. */
	if (model->file_count > TMESH_BUNDLE_MAX_REGIONS)
		return 0;
	kept = calloc(model->file_count, sizeof(*kept));
	if (!kept)
		return tmesh_fail(err, -ENOMEM, "no memory for the regions of %zu files",
				  model->file_count);
	rc = open_all(load, kept, &why);
	if (!rc) {
		place(model, kept);
		model->report.shared = *done = true;
		snprintf(model->report.kept, sizeof(model->report.kept), "%s", kept[0].name);
		load_say(load, "in place: the file is kept as \"%s\"", kept[0].name);
	} else {
		for (size_t i = 0; i < model->file_count; i++)
			tmesh_region_unref(kept[i].region);
		if (rc != -ENODATA && rc != -ESTALE)
			load_say(load, "the kept file is copied: %.100s; ", why.message);
	}
	free(kept);
	if (rc != -ESTALE)
		return 0;
	if (err)
		*err = why;
	return rc;
}
