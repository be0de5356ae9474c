// SPDX-License-Identifier: MIT
/* Device tensors: memory of regions or of the engine, with the permitted accesses. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

void engine_memory_unref(struct memory *memory)
{
	struct tmesh_engine_context *context = memory->context;

	if (atomic_fetch_sub(&memory->refs, 1) > 1)
		return;
	if (memory->tensor)
		tmesh_tensor_unref(memory->tensor);
	else if (memory->gpu)
		gpu_unref(memory->gpu);
	else if (context->life == engine_life())
		context->plugin->release(context->engine, memory->result);
	free(memory);
	tmesh_engine_context_unref(context);
}

struct memory *engine_tensor_memory(struct tmesh_engine_tensor *tensor, struct tmesh_error *err)
{
	struct memory *memory;

	pthread_mutex_lock(&tensor->lock);
	memory = tensor->memory;
	if (memory)
		atomic_fetch_add(&memory->refs, 1);
	pthread_mutex_unlock(&tensor->lock);
	if (!memory)
		tmesh_fail(err, -EBADF, "the tensor was destroyed");
	return memory;
}

static struct tmesh_engine_tensor *new_tensor(struct tmesh_engine_context *context)
{
	struct tmesh_engine_tensor *tensor = calloc(1, sizeof(*tensor));
	struct memory *memory = calloc(1, sizeof(*memory));

	if (!tensor || !memory) {
		free(memory);
		free(tensor);
		return NULL;
	}
	memory->refs = 1;
	memory->context = tmesh_engine_context_ref(context);
	tensor->refs = 1;
	tensor->context = tmesh_engine_context_ref(context);
	tensor->memory = memory;
	pthread_mutex_init(&tensor->lock, NULL);
	return tensor;
}

int engine_tensor_of_result(struct tmesh_engine_context *context,
			    const struct plugin_result *result, struct tmesh_engine_tensor **out,
			    struct tmesh_error *err)
{
	struct tmesh_engine_tensor *tensor = new_tensor(context);
	struct tmesh_layout layout;
	int rc;

	if (!tensor) {
		context->plugin->release(context->engine, result->handle);
		return tmesh_fail(err, -ENOMEM, "no memory for a device tensor");
	}
	/* An engine in another process returns a region. */
	if (context->remote)
		tensor->memory->tensor = result->handle;
	else
		tensor->memory->result = result->handle;
	rc = tmesh_layout_contiguous(&layout, result->dtype, result->ndim, result->shape, err);
	if (!rc)
		rc = tmesh_layout_check(&layout, UINT64_MAX, &tensor->bytes, err);
	if (rc) {
		tmesh_engine_tensor_unref(tensor);
		return rc;
	}
	tensor->memory->address = result->data;
	tensor->flags = TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE;
	tensor->rights = TMESH_READ | TMESH_WRITE;
	tensor->dtype = result->dtype;
	tensor->ndim = result->ndim;
	memcpy(tensor->shape, result->shape, sizeof(tensor->shape));
	atomic_fetch_add(&context->counters.outputs_of_engine, 1);
	atomic_fetch_add(&context->counters.bytes_of_engine, tensor->bytes);
	*out = tensor;
	return 0;
}

int tmesh_engine_tensor_wrap(struct tmesh_engine_context *context, struct tmesh_tensor *tensor,
			     uint32_t rights, uint32_t flags, struct tmesh_engine_tensor **out,
			     struct tmesh_error *err)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	struct tmesh_engine_tensor *made;
	void *address;
	int rc = engine_enter(context, err);

	if (rc)
		return rc;
	if (flags & ~ENGINE_FLAGS)
		return tmesh_fail(err, -EINVAL, "unknown flags %#x", flags & ~ENGINE_FLAGS);
	if (rights != TMESH_READ && rights != (TMESH_READ | TMESH_WRITE))
		return tmesh_fail(
			err, -EINVAL,
			"the rights of graphs are TMESH_READ, or TMESH_READ and TMESH_WRITE");
	if (flags & TMESH_ENGINE_WRITABLE && !(rights & TMESH_WRITE))
		return tmesh_fail(err, -EINVAL,
				  "a device tensor that is to be written needs a tensor with the "
				  "right TMESH_WRITE");
	if (engine_on_gpu(context))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"the context is on GPU %d, and the tensor lies in host memory: make "
			"a device tensor in the context and write it",
			context->device.device_id);
	if (!tmesh_layout_is_contiguous(layout))
		return tmesh_fail(
			err, -EINVAL,
			"engines take contiguous tensors, and this one has strides: copy it first");
	/* The mapping lives as long as the tensor. */
	rc = tmesh_tensor_data(tensor, rights, &address, err);
	if (rc)
		return rc;
	made = new_tensor(context);
	if (!made)
		return tmesh_fail(err, -ENOMEM, "no memory for a device tensor");
	made->memory->tensor = tmesh_tensor_ref(tensor);
	made->memory->address = address;
	made->flags = flags;
	made->rights = rights;
	made->bytes = tmesh_tensor_bytes(tensor);
	made->dtype = layout->dtype;
	made->ndim = layout->ndim;
	memcpy(made->shape, layout->shape, sizeof(made->shape));
	*out = made;
	return 0;
}

static int create_on_gpu(struct tmesh_engine_context *context, enum tmesh_dtype dtype, int32_t ndim,
			 const int64_t *shape, uint32_t flags, struct tmesh_engine_tensor **out,
			 struct tmesh_error *err)
{
	struct tmesh_engine_tensor *made;
	struct tmesh_layout layout;
	uint64_t bytes;
	int rc;

	if (flags & ~ENGINE_FLAGS)
		return tmesh_fail(err, -EINVAL, "unknown flags %#x", flags & ~ENGINE_FLAGS);
	rc = tmesh_layout_contiguous(&layout, dtype, ndim, shape, err);
	if (!rc)
		rc = tmesh_layout_check(&layout, INT64_MAX, &bytes, err);
	if (rc)
		return rc;
	made = new_tensor(context);
	if (!made)
		return tmesh_fail(err, -ENOMEM, "no memory for a device tensor");
	rc = gpu_memory_alloc(context->device.device_id, bytes, flags & TMESH_ENGINE_EXPORTABLE,
			      &made->memory->gpu, err);
	if (rc) {
		/* Free the empty memory by hand: engine_memory_unref() would release it as the
		 * engine's. */
		free(made->memory);
		made->memory = NULL;
		tmesh_engine_context_unref(context);
		tmesh_engine_tensor_unref(made);
		return rc;
	}
	made->memory->address = gpu_address(made->memory->gpu);
	made->flags = flags;
	made->rights = TMESH_READ | TMESH_WRITE;
	made->bytes = bytes;
	made->dtype = dtype;
	made->ndim = ndim;
	memcpy(made->shape, shape, (size_t)ndim * sizeof(*shape));
	*out = made;
	return 0;
}

int tmesh_engine_tensor_create(struct tmesh_engine_context *context, enum tmesh_dtype dtype,
			       int32_t ndim, const int64_t *shape, uint32_t flags,
			       struct tmesh_engine_tensor **out, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	int rc = engine_enter(context, err);

	if (!rc && engine_on_gpu(context))
		return create_on_gpu(context, dtype, ndim, shape, flags, out, err);
	if (!rc)
		rc = tmesh_tensor_create(context->ctx, dtype, ndim, shape, NULL, &tensor, err);
	if (rc)
		return rc;
	rc = tmesh_engine_tensor_wrap(context, tensor, TMESH_READ | TMESH_WRITE, flags, out, err);
	tmesh_tensor_unref(tensor);
	return rc;
}

struct tmesh_engine_tensor *tmesh_engine_tensor_ref(struct tmesh_engine_tensor *tensor)
{
	atomic_fetch_add(&tensor->refs, 1);
	return tensor;
}

void tmesh_engine_tensor_unref(struct tmesh_engine_tensor *tensor)
{
	if (!tensor || atomic_fetch_sub(&tensor->refs, 1) > 1)
		return;
	tmesh_engine_tensor_destroy(tensor);
	tmesh_engine_context_unref(tensor->context);
	pthread_mutex_destroy(&tensor->lock);
	free(tensor);
}

void tmesh_engine_tensor_destroy(struct tmesh_engine_tensor *tensor)
{
	struct memory *memory;

	pthread_mutex_lock(&tensor->lock);
	memory = tensor->memory;
	tensor->memory = NULL;
	tensor->destroyed = true;
	pthread_mutex_unlock(&tensor->lock);
	if (memory)
		engine_memory_unref(memory);
}

/* Check that @flag allows a copy of @bytes. */
static int check_copy(struct tmesh_engine_tensor *tensor, uint32_t flag, const char *verb,
		      uint64_t bytes, struct tmesh_error *err)
{
	int rc = engine_enter(tensor->context, err);

	if (rc)
		return rc;
	if (!(tensor->flags & flag))
		return tmesh_fail(err, -EACCES, "the tensor was not made to be %s", verb);
	if (bytes != tensor->bytes)
		return tmesh_fail(err, -EINVAL,
				  "%llu bytes were given, and the tensor has %llu: give as many",
				  (unsigned long long)bytes, (unsigned long long)tensor->bytes);
	return 0;
}

int tmesh_engine_tensor_read(struct tmesh_engine_tensor *tensor, void *data, uint64_t bytes,
			     struct tmesh_error *err)
{
	struct memory *memory = engine_tensor_memory(tensor, err);
	int rc;

	if (!memory)
		return -EBADF;
	rc = check_copy(tensor, TMESH_ENGINE_READABLE, "read", bytes, err);
	if (rc)
		goto unref;
	if (memory->tensor)
		rc = tmesh_tensor_read(memory->tensor, data, bytes, err);
	else if (memory->gpu)
		rc = gpu_read(memory->gpu, data, bytes, err);
	else if (bytes)
		memcpy(data, memory->address, bytes);
	if (!rc) {
		atomic_fetch_add(&tensor->context->counters.reads, 1);
		atomic_fetch_add(&tensor->context->counters.bytes_read, bytes);
	}
unref:
	engine_memory_unref(memory);
	return rc;
}

int tmesh_engine_tensor_write(struct tmesh_engine_tensor *tensor, const void *data, uint64_t bytes,
			      struct tmesh_error *err)
{
	struct memory *memory = engine_tensor_memory(tensor, err);
	int rc;

	if (!memory)
		return -EBADF;
	rc = check_copy(tensor, TMESH_ENGINE_WRITABLE, "written", bytes, err);
	if (rc)
		goto unref;
	if (memory->tensor && bytes)
		rc = tmesh_region_write(tmesh_tensor_region(memory->tensor),
					tmesh_tensor_layout(memory->tensor)->offset, data, bytes,
					err);
	else if (memory->gpu)
		rc = gpu_write(memory->gpu, data, bytes, err);
	else if (bytes)
		memcpy(memory->address, data, bytes);
	if (!rc) {
		atomic_fetch_add(&tensor->context->counters.writes, 1);
		atomic_fetch_add(&tensor->context->counters.bytes_written, bytes);
	}
unref:
	engine_memory_unref(memory);
	return rc;
}

static int refuse_export(const struct memory *memory, struct tmesh_error *err)
{
	return tmesh_fail(
		err, -EACCES, "the tensor was not made to be exported%s",
		memory->tensor || memory->gpu ? "" : ": the engine allocated it, in no region");
}

int tmesh_engine_tensor_export(struct tmesh_engine_tensor *tensor, struct tmesh_tensor **out,
			       struct tmesh_error *err)
{
	struct memory *memory = engine_tensor_memory(tensor, err);
	int rc = 0;

	if (!memory)
		return -EBADF;
	if (!(tensor->flags & TMESH_ENGINE_EXPORTABLE))
		rc = refuse_export(memory, err);
	else if (!memory->tensor)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"GPU memory is no tensor of a libtmesh: give its ref away, "
				"tmesh_engine_tensor_ref_encode()");
	else
		*out = tmesh_tensor_ref(memory->tensor);
	engine_memory_unref(memory);
	return rc;
}

int tmesh_engine_tensor_ref_encode(struct tmesh_engine_tensor *tensor, uint32_t rights, char *text,
				   size_t size, struct tmesh_error *err)
{
	struct memory *memory = engine_tensor_memory(tensor, err);
	struct tmesh_layout layout;
	int rc;

	if (!memory)
		return -EBADF;
	if (!(tensor->flags & TMESH_ENGINE_EXPORTABLE)) {
		rc = refuse_export(memory, err);
	} else if (memory->tensor) {
		rc = tmesh_tensor_ref_encode(memory->tensor, rights, text, size, err);
	} else {
		rc = tmesh_layout_contiguous(&layout, tensor->dtype, tensor->ndim, tensor->shape,
					     err);
		if (!rc)
			rc = gpu_ref_encode(memory->gpu, &layout, text, size, err);
	}
	engine_memory_unref(memory);
	return rc;
}

int tmesh_engine_tensor_info(struct tmesh_engine_tensor *tensor,
			     struct tmesh_engine_tensor_info *out, struct tmesh_error *err)
{
	struct tmesh_engine_tensor_info info = {
		.dtype = tensor->dtype,
		.ndim = tensor->ndim,
		.device_type = tensor->context->device.device_type,
		.device_id = tensor->context->device.device_id,
		.flags = tensor->flags,
		.rights = tensor->rights,
		.bytes = tensor->bytes,
		.backend = tensor->context->backend,
	};
	struct memory *memory = engine_tensor_memory(tensor, err);

	if (!memory)
		return -EBADF;
	memcpy(info.shape, tensor->shape, sizeof(info.shape));
	info.address = memory->address;
	info.of_engine = !memory->tensor && !memory->gpu;
	engine_memory_unref(memory);
	return tmesh_write_sized(out, &info, sizeof(info), err);
}
