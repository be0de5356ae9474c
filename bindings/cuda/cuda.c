// SPDX-License-Identifier: MIT
/* Instances of the library, devices and their contexts. */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>

#define BLOCK_BYTES (32ull << 20)

/* Find the device's UUID. Only the newer call distinguishes the instances of a GPU (MIG). */
static int find_uuid(struct tmesh_cuda *cuda, struct device *device, struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;

	if (driver->device_uuid_v2)
		return cuda_check(cuda, driver->device_uuid_v2(&device->uuid, device->handle),
				  "cuDeviceGetUuid", err);
	return cuda_check(cuda, driver->device_uuid(&device->uuid, device->handle),
			  "cuDeviceGetUuid", err);
}

static int find_devices(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;
	int count;
	int rc = cuda_check(cuda, driver->device_count(&count), "cuDeviceGetCount", err);

	if (rc)
		return rc;
	if (count < 1)
		return tmesh_fail(err, -ENODEV, "the CUDA driver shows no GPU");
	for (int i = 0; i < count && i < DEVICES_MAX && !rc; i++) {
		struct device *device = &cuda->devices[i];

		pthread_mutex_init(&device->wait_lock, NULL);
		rc = cuda_check(cuda, driver->device_get(&device->handle, i), "cuDeviceGet", err);
		if (!rc)
			rc = find_uuid(cuda, device, err);
		cuda->device_count = i + 1;
	}
	return rc;
}

static void device_free(struct tmesh_cuda *cuda, struct device *device, int number)
{
	int rc = device->context ? cuda_enter_to_free(cuda, number) : -ENODEV;

	order_end(cuda, number);
	/* A destroyed context took its streams along. */
	if (device->stream && rc != -ECONNRESET)
		cuda->driver.stream_destroy(device->stream);
	if (!rc)
		cuda_leave(cuda);
	if (device->context)
		cuda->driver.primary_release(device->handle);
	pthread_mutex_destroy(&device->wait_lock);
}

static void cuda_free(struct tmesh_cuda *cuda)
{
	bool relaxed = !cuda_relax(cuda, NULL);

	/* Memory that streams still use stays mapped. */
	for (int i = 0; i < cuda->device_count; i++)
		order_wait_all(cuda, i);
	block_trim(cuda);
	for (int i = 0; i < cuda->device_count; i++)
		values_end(cuda, i);
	if (!registrations_end(cuda))
		cuda_log(cuda, TMESH_LOG_ERROR,
			 "the library is closed while memory stays registered: it stays mapped "
			 "until "
			 "the process ends");
	for (int i = 0; i < cuda->device_count; i++)
		device_free(cuda, &cuda->devices[i], i);
	if (relaxed)
		cuda_restore(cuda);
	if (cuda->wake >= 0)
		close(cuda->wake);
	if (cuda->epoll >= 0)
		close(cuda->epoll);
	/* The driver is never unloaded: it does not expect to be. */
	pthread_cond_destroy(&cuda->registered);
	pthread_mutex_destroy(&cuda->lock);
	pthread_mutex_destroy(&cuda->share_lock);
	tmesh_ctx_unref(cuda->ctx);
	free(cuda);
}

int tmesh_cuda_open(struct tmesh_ctx *ctx, const struct tmesh_cuda_opts *opts,
		    struct tmesh_cuda **out, struct tmesh_error *err)
{
	struct tmesh_cuda_opts o;
	struct tmesh_cuda *cuda;
	int rc = tmesh_read_sized(&o, sizeof(o), opts, err);

	if (!rc && (o.flags & ~(uint32_t)TMESH_CUDA_NO_EVENTS))
		rc = tmesh_fail(err, -EINVAL, "open: unknown flags 0x%x", o.flags);
	if (rc)
		return rc;
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return tmesh_fail(err, -ENOMEM, "no memory");
	atomic_init(&cuda->refs, 1);
	cuda->pid = getpid();
	pthread_mutex_init(&cuda->lock, NULL);
	pthread_mutex_init(&cuda->share_lock, NULL);
	pthread_cond_init(&cuda->registered, NULL);
	cuda->ctx = tmesh_ctx_ref(ctx);
	snprintf(cuda->nvml, sizeof(cuda->nvml), "%s", o.nvml ? o.nvml : "libnvidia-ml.so.1");
	cuda->no_events = o.flags & TMESH_CUDA_NO_EVENTS;
	cuda->block_bytes = o.block_bytes ? o.block_bytes : BLOCK_BYTES;
	cuda->log = o.log;
	cuda->log_data = o.log_data;
	cuda->epoll = cuda->wake = -1;
	rc = cuda_load(cuda, o.library, err);
	if (!rc)
		rc = find_devices(cuda, err);
	if (rc) {
		cuda_free(cuda);
		return rc;
	}
	*out = cuda;
	return 0;
}

bool cuda_inherited(const struct tmesh_cuda *cuda)
{
	return cuda->pid != getpid();
}

int cuda_check_life(const struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	if (cuda_inherited(cuda))
		return tmesh_fail(err, -EPERM,
				  "the CUDA driver was inherited through fork(), which it does not "
				  "survive: open it in this process");
	return 0;
}

/* The process's own object; the lock is held while it is opened. */
static struct {
	pthread_once_t once;
	pthread_mutex_t lock;
	struct tmesh_cuda *cuda;
	int watched; /* what pthread_atfork() said */
} own = {PTHREAD_ONCE_INIT, PTHREAD_MUTEX_INITIALIZER, NULL, 0};

/* Make the lock anew in the child. fork() cannot wait for it: a thread that the child does not have
 * may hold it for seconds, inside the driver. A driver may also fork by itself while it is opened.
 */
static void own_forked(void)
{
	pthread_mutex_init(&own.lock, NULL);
	own.cuda = NULL;
}

static void own_watch(void)
{
	own.watched = pthread_atfork(NULL, NULL, own_forked);
}

/* Return the process's own instance, made at the first call. A failure is not remembered: the next
 * call tries again, because a driver may be there by then. */
int tmesh_cuda_default(struct tmesh_cuda **out, struct tmesh_error *err)
{
	struct tmesh_cuda_opts opts = {.size = sizeof(opts)};
	const char *events;
	struct tmesh_ctx *ctx;
	int rc = 0;

	pthread_once(&own.once, own_watch);
	if (own.watched)
		return tmesh_fail(err, -own.watched, "no memory to watch for fork()");
	pthread_mutex_lock(&own.lock);
	if (!own.cuda) {
		events = secure_getenv("TMESH_CUDA_EVENTS");
		if (events && !strcmp(events, "0"))
			opts.flags = TMESH_CUDA_NO_EVENTS;
		rc = tmesh_ctx_open(NULL, &ctx, err);
		if (!rc) {
			rc = tmesh_cuda_open(ctx, &opts, &own.cuda, err);
			tmesh_ctx_unref(ctx);
		}
	}
	if (!rc)
		*out = own.cuda;
	pthread_mutex_unlock(&own.lock);
	return rc;
}

struct tmesh_cuda *tmesh_cuda_ref(struct tmesh_cuda *cuda)
{
	atomic_fetch_add_explicit(&cuda->refs, 1, memory_order_relaxed);
	return cuda;
}

/* Try a last time to wait for devices. Memory that other processes hold stays theirs: the driver
 * keeps it for them. False: a device cannot be waited for. */
static bool give_back_all(struct tmesh_cuda *cuda)
{
	bool relaxed = !cuda_relax(cuda, NULL), all = true;

	while (all && cuda->memory) {
		struct tmesh_cuda_memory *memory = cuda->memory;

		if (memory->state == WAITING) {
			all = memory_give_back(memory);
			continue;
		}
		cuda->memory = memory->next;
		watch_remove(memory);
		tmesh_region_unref(memory->region);
		event_leave(memory);
		block_free(memory);
		free(memory);
	}
	if (relaxed)
		cuda_restore(cuda);
	return all;
}

void tmesh_cuda_unref(struct tmesh_cuda *cuda)
{
	if (!cuda || atomic_fetch_sub_explicit(&cuda->refs, 1, memory_order_acq_rel) != 1 ||
	    cuda_inherited(cuda))
		return;
	watch_stop(cuda);
	if (give_back_all(cuda))
		cuda_free(cuda);
	else
		cuda_log(cuda, TMESH_LOG_ERROR,
			 "the library is closed while a GPU cannot be waited for: its memory stays "
			 "until the process ends");
}

int tmesh_cuda_device_count(const struct tmesh_cuda *cuda)
{
	return cuda->device_count;
}

int cuda_check_device(const struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	int rc = cuda_check_life(cuda, err);

	if (rc)
		return rc;
	if (device < 0 || device >= cuda->device_count)
		return tmesh_fail(err, -ENODEV,
				  "there is no GPU %d here: this process sees %d "
				  "(CUDA_ERROR_INVALID_DEVICE)",
				  device, cuda->device_count);
	return 0;
}

int tmesh_cuda_device_info(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_device_info *info,
			   struct tmesh_error *err)
{
	struct tmesh_cuda_device_info i = {.driver_version = cuda->version};
	int rc = cuda_check_device(cuda, device, err);
	size_t bytes = 0;

	if (!rc)
		rc = cuda_check(cuda,
				cuda->driver.device_name(i.name, sizeof(i.name),
							 cuda->devices[device].handle),
				"cuDeviceGetName", err);
	if (!rc)
		rc = cuda_check(cuda,
				cuda->driver.device_memory(&bytes, cuda->devices[device].handle),
				"cuDeviceTotalMem", err);
	if (rc)
		return rc;
	i.bytes = bytes;
	memcpy(i.uuid, cuda->devices[device].uuid.bytes, sizeof(i.uuid));
	return tmesh_write_sized(info, &i, sizeof(i), err);
}

/* Under the lock. */
static int retain(struct tmesh_cuda *cuda, struct device *device, struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;
	cu_context context;
	int rc = cuda_check(cuda, driver->primary_retain(&context, device->handle),
			    "cuDevicePrimaryCtxRetain", err);

	if (!rc && driver->ctx_id) {
		rc = cuda_check(cuda, driver->ctx_id(context, &device->context_id), "cuCtxGetId",
				err);
		if (rc)
			driver->primary_release(device->handle);
	}
	if (!rc)
		device->context = context;
	return rc;
}

static int lose(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	cuda->devices[device].lost = true;
	/* Its streams are gone. */
	pthread_mutex_lock(&cuda->lock);
	cuda->devices[device].capturing = NULL;
	pthread_mutex_unlock(&cuda->lock);
	return tmesh_fail(err, -ECONNRESET,
			  "GPU %d was reset, and what its context had is gone "
			  "(CUDA_ERROR_CONTEXT_IS_DESTROYED)",
			  device);
}

/*
 * Check that the device's primary context is still the one that was retained. A context that was
 * reset can still be made current, and a context that is retained later gets the same address. Only
 * the context's number tells them apart, and drivers before CUDA 12 have no number. A lost context
 * stays lost.
 */
static int check_context(struct tmesh_cuda *cuda, int device, cu_context context,
			 struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;
	struct device *d = &cuda->devices[device];
	unsigned long long id = d->context_id;
	unsigned int flags;
	int active = 1;
	int rc;

	if (d->lost)
		return lose(cuda, device, err);
	rc = cuda_check(cuda, driver->primary_state(d->handle, &flags, &active),
			"cuDevicePrimaryCtxGetState", err);
	if (!rc && active && driver->ctx_id)
		rc = cuda_check(cuda, driver->ctx_id(context, &id), "cuCtxGetId", err);
	if (!rc && (!active || id != d->context_id))
		rc = lose(cuda, device, err);
	return rc;
}

int cuda_check_context(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	cu_context context;
	int rc = cuda_check_device(cuda, device, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	context = cuda->devices[device].context;
	pthread_mutex_unlock(&cuda->lock);
	return context ? check_context(cuda, device, context, err) : 0;
}

static int enter(struct tmesh_cuda *cuda, struct device *d, int device, struct tmesh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (!d->context)
		rc = retain(cuda, d, err);
	pthread_mutex_unlock(&cuda->lock);
	if (!rc)
		rc = check_context(cuda, device, d->context, err);
	return rc ? rc
		  : cuda_check(cuda, cuda->driver.ctx_push(d->context), "cuCtxPushCurrent", err);
}

int cuda_enter(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	int rc = cuda_check_device(cuda, device, err);

	if (!rc)
		rc = cuda_relax(cuda, err);
	if (rc)
		return rc;
	rc = enter(cuda, &cuda->devices[device], device, err);
	if (rc)
		cuda_restore(cuda);
	return rc;
}

int cuda_enter_to_free(struct tmesh_cuda *cuda, int device)
{
	int rc = cuda_enter(cuda, device, NULL);

	return rc && rc != -ECONNRESET ? cuda_enter(cuda, device, NULL) : rc;
}

void cuda_leave(struct tmesh_cuda *cuda)
{
	cu_context context;

	cuda->driver.ctx_pop(&context);
	cuda_restore(cuda);
}

int tmesh_cuda_stats(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_stats *stats)
{
	struct tmesh_cuda_stats all = {0};
	int rc = cuda_check_life(cuda, NULL);

	if (rc)
		return rc;
	if (device >= cuda->device_count || device < -1)
		return -ENODEV;
	pthread_mutex_lock(&cuda->lock);
	for (int i = 0; i < cuda->device_count; i++) {
		const struct tmesh_cuda_stats *one = &cuda->devices[i].stats;

		if (device >= 0 && i != device)
			continue;
#define ADD(member) all.member += one->member
		ADD(bytes_used);
		ADD(bytes_reserved);
		ADD(bytes_pending_free);
		ADD(blocks);
		ADD(allocs);
		ADD(reused);
		ADD(imported_bytes);
		ADD(registered_bytes);
		ADD(staged_copies);
		ADD(staged_bytes);
		ADD(host_fallbacks);
		ADD(host_waits);
		ADD(taken);
		ADD(writable_instead);
		ADD(bytes_waiting);
#undef ADD
	}
	pthread_mutex_unlock(&cuda->lock);
	return tmesh_write_sized(stats, &all, sizeof(all), NULL);
}
