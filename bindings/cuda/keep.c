// SPDX-License-Identifier: MIT
/*
 * Kept memory. A region of its own stands for it and is kept as other regions are. The keeper has
 * the driver's descriptor and no context. To open the memory again, nothing of its maker is needed:
 * no event and no process.
 */
#include "internal.h"

static int check(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		 struct tmesh_error *err)
{
	uint64_t bytes;
	int rc = cuda_check_life(memory->cuda, err);

	if (rc)
		return rc;
	if (memory->resident < 0 || memory->kind == TMESH_CUDA_STAGED)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "keep: this is host memory: seal its region and keep that "
				  "(tmesh_keep)");
	if (memory->kind != TMESH_CUDA_OWN)
		return tmesh_fail(err, -EINVAL,
				  "keep: the memory was not allocated here: its maker keeps it");
	return tmesh_layout_check(layout, memory->bytes, &bytes, err);
}

static int wait_for(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (stream == TMESH_CUDA_NO_STREAM)
		return 0;
	rc = cuda_enter(cuda, memory->device, err);
	if (rc)
		return rc;
	rc = stream_check(cuda, memory->device, stream, "keep", err);
	if (!rc)
		rc = cuda_check(cuda, cuda->driver.stream_synchronize(stream),
				"cuStreamSynchronize", err);
	cuda_leave(cuda);
	return rc;
}

/* Keep memory. A part belongs to its memory until no process has it. The keeper counts as one, so
 * the memory is not reused while it is kept. */
int tmesh_cuda_keep(struct tmesh_cuda_memory *memory, const char *name,
		    const struct tmesh_layout *layout, struct CUstream_st *stream,
		    const struct tmesh_keep_opts *opts, struct tmesh_error *err)
{
	struct tmesh_cuda_memory *part;
	int rc = check(memory, layout, err);

	if (!rc)
		rc = wait_for(memory, stream, err);
	if (!rc)
		rc = tmesh_cuda_slice(memory, 0, memory->bytes, NULL, NULL, &part, err);
	if (rc)
		return rc;
	rc = share_region_to_keep(part, layout, err);
	if (!rc)
		rc = tmesh_keep(memory->cuda->ctx, name, &part->region, 1, opts, err);
	if (!rc && nvml_persistence_is_off(memory->cuda, memory->resident))
		cuda_log(memory->cuda, TMESH_LOG_WARN,
			 "\"%s\" is kept on GPU %d, whose persistence mode is off: the driver may "
			 "shut the GPU down when no process uses it: nvidia-smi -pm 1",
			 name, memory->resident);
	tmesh_cuda_memory_unref(part);
	return rc;
}

/* Read the layout. The region's description is a ref with one more member, no longer than a ref
 * with a token. Another process wrote it. */
static int read_layout(struct tmesh_region *region, struct tmesh_ref *ref, struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	int rc = tmesh_region_info(region, &info, err);

	return rc ? rc : tmesh_ref_decode(info.description, strlen(info.description), ref, err);
}

static int open_kept(struct tmesh_cuda *cuda, const char *name, uid_t uid,
		     struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region **regions;
	struct tmesh_error why;
	size_t count;
	int rc = tmesh_kept_open(cuda->ctx, name, uid, TMESH_READ | TMESH_WRITE, &regions, &count,
				 &why);

	/* Sealed memory is kept for reading. */
	if (rc)
		return tmesh_fail(err, rc, "%.180s%s", why.message,
				  rc == -EACCES ? ": GPU memory is; is this GPU memory?" : "");
	if (count == 1) {
		*out = regions[0];
	} else {
		rc = tmesh_fail(err, -EPROTO, "%zu regions are kept as \"%s\": GPU memory is one",
				count, name);
		while (count)
			tmesh_region_unref(regions[--count]);
	}
	free(regions);
	return rc;
}

int tmesh_cuda_kept_open(struct tmesh_cuda *cuda, const char *name, uid_t uid,
			 const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
			 struct tmesh_layout *layout, struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory = NULL;
	struct tmesh_region *region = NULL;
	struct tmesh_ref ref;
	int rc = cuda_check_life(cuda, err);

	if (!rc)
		rc = open_kept(cuda, name, uid, &region, err);
	if (rc)
		return rc;
	rc = tmesh_cuda_import(cuda, region, opts, &memory, err);
	if (!rc)
		rc = read_layout(region, &ref, err);
	if (!rc)
		rc = import_finish(memory, &ref, TMESH_CUDA_NO_STREAM, layout, err);
	tmesh_region_unref(region);
	if (rc)
		tmesh_cuda_memory_unref(memory);
	else
		*out = memory;
	return rc;
}
