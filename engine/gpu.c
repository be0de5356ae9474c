// SPDX-License-Identifier: MIT
/*
 * GPU memory of contexts on GPUs, by libtmesh-cuda, which is loaded for the first such context. It
 * has its own libtmesh, so memory for other processes is passed as a ref's text.
 */
#include "gpu.h"

/* clang-format off */
#define TMESH_CUDA_API_MORE(X) \
	X(cuda_zero) X(cuda_read) X(cuda_write) X(cuda_pointer) X(cuda_capture_begin) X(cuda_capture_end)
/* clang-format on */
#include "common/cuda_api.h"

static struct {
	pthread_mutex_t lock; /* guards the loading; a loaded library stays */
	bool loaded;
	struct tmesh_cuda_api calls;
} api = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * Runs of engines that capture graphs, and copies, which wait for the whole device. The driver lets
 * no thread wait for a device while a stream of it captures, in any mode of the capture, and the
 * capture would be broken. Runs share the lock, copies have it alone and come first.
 */
static pthread_rwlock_t turns = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

/* Load again if the fork came during loading. The parent does not wait for the lock before it
 * forks, because a library that is being loaded may call pthread_atfork() itself. */
void gpu_forked(void)
{
	pthread_mutex_init(&api.lock, NULL);
	turns = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

/* Return this process's CUDA object. A missing library may appear later: the next call tries
 * again. */
static int get_cuda(struct tmesh_cuda **cuda, struct tmesh_error *err)
{
	struct tmesh_error why;
	int rc = 0;

	pthread_mutex_lock(&api.lock);
	if (!api.loaded)
		rc = tmesh_cuda_api_load(&api.calls, TMESH_CUDA_LIBRARY, &why);
	api.loaded = !rc;
	pthread_mutex_unlock(&api.lock);
	if (!rc)
		rc = api.calls.cuda_default(cuda, &why);
	return rc ? tmesh_fail(err, rc, "%s", why.message) : 0;
}

int gpu_check(int32_t device, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda;
	int rc = get_cuda(&cuda, err);

	if (rc)
		return rc;
	if (device < 0 || device >= api.calls.cuda_device_count(cuda))
		return tmesh_fail(err, -ENODEV, "there is no GPU %d: the driver has %d", device,
				  api.calls.cuda_device_count(cuda));
	return 0;
}

int gpu_memory_alloc(int32_t device, uint64_t bytes, bool alone, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	int rc = get_cuda(&cuda, err);

	if (!rc)
		rc = api.calls.cuda_alloc(cuda, device, bytes ? bytes : 1,
					  alone ? TMESH_CUDA_ALONE : 0, &memory, err);
	if (rc)
		return rc;
	/* Wait until the zeros are written: the engine's own streams do not wait for ours. */
	pthread_rwlock_wrlock(&turns);
	rc = api.calls.cuda_zero(memory, NULL, err);
	if (!rc)
		rc = api.calls.cuda_read(memory, 0, NULL, 0, err);
	pthread_rwlock_unlock(&turns);
	if (rc)
		api.calls.cuda_memory_unref(memory);
	else
		*out = memory;
	return rc;
}

void *gpu_address(const struct tmesh_cuda_memory *memory)
{
	return (void *)(uintptr_t)api.calls.cuda_pointer(memory);
}

void gpu_unref(struct tmesh_cuda_memory *memory)
{
	api.calls.cuda_memory_unref(memory);
}

int gpu_read(struct tmesh_cuda_memory *memory, void *data, uint64_t bytes, struct tmesh_error *err)
{
	int rc;

	pthread_rwlock_wrlock(&turns);
	rc = api.calls.cuda_read(memory, 0, data, bytes, err);
	pthread_rwlock_unlock(&turns);
	return rc;
}

int gpu_write(struct tmesh_cuda_memory *memory, const void *data, uint64_t bytes,
	      struct tmesh_error *err)
{
	int rc;

	pthread_rwlock_wrlock(&turns);
	rc = api.calls.cuda_write(memory, 0, data, bytes, err);
	pthread_rwlock_unlock(&turns);
	return rc;
}

int gpu_run_begin(int32_t device, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda;
	int rc = get_cuda(&cuda, err);

	if (rc)
		return rc;
	pthread_rwlock_rdlock(&turns);
	rc = api.calls.cuda_capture_begin(cuda, device, err);
	if (rc)
		pthread_rwlock_unlock(&turns);
	return rc;
}

void gpu_run_end(int32_t device)
{
	struct tmesh_cuda *cuda;

	if (!get_cuda(&cuda, NULL))
		api.calls.cuda_capture_end(cuda, device, NULL);
	pthread_rwlock_unlock(&turns);
}

int gpu_ref_encode(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout, char *text,
		   size_t size, struct tmesh_error *err)
{
	/* No stream to wait for: dispatches and copies are complete when they return. */
	return api.calls.cuda_share(memory, layout, TMESH_CUDA_NO_STREAM, text, size, err);
}
