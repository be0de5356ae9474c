// SPDX-License-Identifier: MIT
/* Devices and their contexts; memory as callers see it. */
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES (32ull << 20)

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

		rc = cuda_check(cuda, driver->device_get(&device->handle, i), "cuDeviceGet", err);
		if (!rc)
			rc = cuda_check(cuda, driver->device_uuid(&device->uuid, device->handle),
					"cuDeviceGetUuid", err);
		cuda->device_count = i + 1;
	}
	return rc;
}

static void cuda_free(struct tmesh_cuda *cuda)
{
	for (int i = 0; i < cuda->device_count; i++)
		block_wait(cuda, i);
	block_trim(cuda);
	for (int i = 0; i < cuda->device_count; i++)
		if (cuda->devices[i].context)
			cuda->driver.primary_release(cuda->devices[i].handle);
	if (cuda->wake >= 0)
		close(cuda->wake);
	if (cuda->epoll >= 0)
		close(cuda->epoll);
	/* The driver is never unloaded: it does not expect to be. */
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

	if (rc)
		return rc;
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return tmesh_fail(err, -ENOMEM, "no memory");
	atomic_init(&cuda->refs, 1);
	cuda->pid = getpid();
	pthread_mutex_init(&cuda->lock, NULL);
	pthread_mutex_init(&cuda->share_lock, NULL);
	cuda->ctx = tmesh_ctx_ref(ctx);
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

/* A thread that the child does not have may hold the lock, and be in the driver, for seconds:
 * fork() cannot wait for it, also as a driver may fork by itself while it is opened. */
static void own_forked(void)
{
	pthread_mutex_init(&own.lock, NULL);
	own.cuda = NULL;
}

static void own_watch(void)
{
	own.watched = pthread_atfork(NULL, NULL, own_forked);
}

/* What fails is tried again by the next call: a driver may be there by then. */
int tmesh_cuda_default(struct tmesh_cuda **out, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx;
	int rc = 0;

	pthread_once(&own.once, own_watch);
	if (own.watched)
		return tmesh_fail(err, -own.watched, "no memory to watch for fork()");
	pthread_mutex_lock(&own.lock);
	if (!own.cuda) {
		rc = tmesh_ctx_open(NULL, &ctx, err);
		if (!rc) {
			rc = tmesh_cuda_open(ctx, NULL, &own.cuda, err);
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

void tmesh_cuda_unref(struct tmesh_cuda *cuda)
{
	if (!cuda || atomic_fetch_sub_explicit(&cuda->refs, 1, memory_order_acq_rel) != 1 ||
	    cuda_inherited(cuda))
		return;
	/* What lingers keeps no reference: its memory goes with the process or with us. Who holds
	 * it holds the driver's memory too, and loses nothing. */
	watch_stop(cuda);
	while (cuda->memory) {
		struct tmesh_cuda_memory *memory = cuda->memory;

		cuda->memory = memory->next;
		watch_remove(memory);
		tmesh_region_unref(memory->region);
		event_end(memory);
		block_free(memory);
		free(memory);
	}
	cuda_free(cuda);
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
	return tmesh_fail(err, -ECONNRESET,
			  "GPU %d was reset, and what its context had is gone "
			  "(CUDA_ERROR_CONTEXT_IS_DESTROYED)",
			  device);
}

/*
 * Whether it is still the context that was retained. One that was reset can be made current all
 * the same, and who retains it anew gets the same address: its number tells, and before CUDA 12
 * nothing does. What was lost stays so, whatever is made at its place.
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

int cuda_enter(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	struct device *d = &cuda->devices[device];
	int rc = cuda_check_device(cuda, device, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	if (!d->context)
		rc = retain(cuda, d, err);
	pthread_mutex_unlock(&cuda->lock);
	if (!rc)
		rc = check_context(cuda, device, d->context, err);
	return rc ? rc
		  : cuda_check(cuda, cuda->driver.ctx_push(d->context), "cuCtxPushCurrent", err);
}

void cuda_leave(struct tmesh_cuda *cuda)
{
	cu_context context;

	cuda->driver.ctx_pop(&context);
}

/* Blocks outlive a context: who made the device's new one may be using them. */
static void synchronize_other(struct tmesh_cuda *cuda, int device)
{
	const struct cu_driver *driver = &cuda->driver;
	cu_device handle = cuda->devices[device].handle;
	cu_context context;
	unsigned int flags;
	int active = 0;

	if (driver->primary_state(handle, &flags, &active) || !active ||
	    driver->primary_retain(&context, handle))
		return;
	if (!driver->ctx_push(context)) {
		driver->ctx_synchronize();
		cuda_leave(cuda);
	}
	driver->primary_release(handle);
}

void cuda_synchronize(struct tmesh_cuda *cuda, int device)
{
	int rc = cuda_enter(cuda, device, NULL);

	if (rc == -ECONNRESET)
		synchronize_other(cuda, device);
	if (rc)
		return;
	cuda->driver.ctx_synchronize();
	cuda_leave(cuda);
}

struct tmesh_cuda_memory *memory_new(struct tmesh_cuda *cuda, enum tmesh_cuda_kind kind, int device,
				     struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory = calloc(1, sizeof(*memory));

	if (!memory) {
		tmesh_fail(err, -ENOMEM, "no memory");
		return NULL;
	}
	atomic_init(&memory->refs, 1);
	memory->cuda = cuda;
	memory->watch = -1;
	memory->kind = kind;
	memory->device = memory->resident = device;
	memory->rights = TMESH_READ | TMESH_WRITE;
	return memory;
}

void memory_publish(struct tmesh_cuda_memory *memory, struct tmesh_cuda_memory **out)
{
	struct tmesh_cuda *cuda = tmesh_cuda_ref(memory->cuda);

	pthread_mutex_lock(&cuda->lock);
	memory->next = cuda->memory;
	cuda->memory = memory;
	pthread_mutex_unlock(&cuda->lock);
	/* Its descriptor wakes by itself. */
	if (memory->lease_ns || memory->slow)
		watch_again(cuda);
	*out = memory;
}

struct tmesh_region *memory_detach(struct tmesh_cuda_memory *memory)
{
	struct tmesh_region *region;

	pthread_mutex_lock(&memory->cuda->lock);
	watch_remove(memory);
	region = memory->region;
	memory->region = NULL;
	pthread_mutex_unlock(&memory->cuda->lock);
	return region;
}

static void unlist(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda_memory **at = &memory->cuda->memory;

	while (*at != memory)
		at = &(*at)->next;
	*at = memory->next;
}

void memory_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	event_end(memory);
	pthread_mutex_lock(&cuda->lock);
	unlist(memory);
	if (memory->state == LINGERING)
		cuda->devices[memory->device].stats.bytes_lingering -= memory->bytes;
	if (memory->kind == TMESH_CUDA_OWN && !memory->whole)
		block_free(memory);
	pthread_mutex_unlock(&cuda->lock);
	if (memory->release)
		memory->release(memory->release_data);
	tmesh_cuda_memory_unref(memory->whole);
	free(memory);
}

bool memory_get(struct tmesh_cuda_memory *memory)
{
	unsigned int refs = atomic_load(&memory->refs);

	while (refs)
		if (atomic_compare_exchange_weak(&memory->refs, &refs, refs + 1))
			return true;
	return false;
}

struct tmesh_cuda_memory *tmesh_cuda_memory_ref(struct tmesh_cuda_memory *memory)
{
	atomic_fetch_add_explicit(&memory->refs, 1, memory_order_relaxed);
	return memory;
}

/* Work that is still queued may use it: it is waited for. */
static void finish(struct tmesh_cuda_memory *memory)
{
	cuda_synchronize(memory->cuda, memory->device);
	if (memory->resident >= 0 && memory->resident != memory->device)
		cuda_synchronize(memory->cuda, memory->resident);
}

/* Of what others may have used, and what is unmapped at once, more than one stream is to be waited
 * for; the handle of the thread's own stream is each thread's. */
static bool can_order(const struct tmesh_cuda_memory *memory, cu_stream stream)
{
	return stream != TMESH_CUDA_NO_STREAM && stream != CU_STREAM_PER_THREAD &&
	       memory->kind == TMESH_CUDA_OWN && !memory->whole && !memory->region &&
	       !memory->chunk->block->alone;
}

static void give_back(struct tmesh_cuda_memory *memory, cu_stream stream)
{
	struct tmesh_cuda *cuda = memory->cuda;

	memory->ordered = can_order(memory, stream);
	memory->stream = stream;
	if (memory->state == LIVE && !memory->ordered)
		finish(memory);
	switch (memory->kind) {
	case TMESH_CUDA_HOST:
	case TMESH_CUDA_STAGED:
		host_end(memory);
		break;
	case TMESH_CUDA_OWN:
		if (share_settle(memory))
			break;
		pthread_mutex_lock(&cuda->lock);
		memory->state = LINGERING;
		cuda->devices[memory->device].stats.bytes_lingering += memory->bytes;
		watch_add(memory);
		pthread_mutex_unlock(&cuda->lock);
		watch_again(cuda);
		return;
	case TMESH_CUDA_IMPORTED:
	case TMESH_CUDA_IPC:
	case TMESH_CUDA_EXTERNAL:
		import_end(memory);
		break;
	}
	memory_end(memory);
}

void tmesh_cuda_memory_unref(struct tmesh_cuda_memory *memory)
{
	tmesh_cuda_memory_unref_on(memory, TMESH_CUDA_NO_STREAM);
}

void tmesh_cuda_memory_unref_on(struct tmesh_cuda_memory *memory, struct CUstream_st *stream)
{
	struct tmesh_cuda *cuda;

	if (!memory || atomic_fetch_sub_explicit(&memory->refs, 1, memory_order_acq_rel) != 1)
		return;
	cuda = memory->cuda;
	if (cuda_inherited(cuda)) {
		/* Its descriptors are ours as well; all else is the parent's, locks included. */
		tmesh_region_unref(memory->region);
		return;
	}
	give_back(memory, stream);
	tmesh_cuda_unref(cuda);
}

uint64_t tmesh_cuda_pointer(const struct tmesh_cuda_memory *memory)
{
	return memory->pointer;
}

int tmesh_cuda_info(struct tmesh_cuda_memory *memory, struct tmesh_cuda_info *info,
		    struct tmesh_error *err)
{
	struct tmesh_cuda_info i = {
		.kind = memory->kind,
		.device = memory->device,
		.resident = memory->resident,
		.rights = memory->rights,
		.pointer = memory->pointer,
		.bytes = memory->bytes,
	};
	int rc = cuda_check_life(memory->cuda, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&memory->cuda->lock);
	i.taken = memory->state != LIVE;
	i.region = memory->region ? tmesh_region_id(memory->region) : 0;
	pthread_mutex_unlock(&memory->cuda->lock);
	return tmesh_write_sized(info, &i, sizeof(i), err);
}

int work_begin(struct tmesh_cuda_memory *memory, const char *what, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = cuda_enter(cuda, memory->device, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	if (memory->state == LIVE)
		memory->copies++;
	else
		rc = tmesh_fail(err, -ESTALE, "%s: the memory was taken back", what);
	pthread_mutex_unlock(&cuda->lock);
	if (rc)
		cuda_leave(cuda);
	return rc;
}

void work_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	memory->copies--;
	pthread_mutex_unlock(&cuda->lock);
	watch_again(cuda);
	cuda_leave(cuda);
}

int tmesh_cuda_zero(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (!(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "zero: the memory is for reading");
	rc = work_begin(memory, "zero", err);
	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.fill(memory->pointer, 0, memory->bytes, stream),
			"cuMemsetD8Async", err);
	work_end(memory);
	return rc;
}

/* Work on a part of the memory, whose device has nothing else to do: until work_end(). */
static int copy_begin(struct tmesh_cuda_memory *memory, const char *what, uint64_t offset,
		      uint64_t bytes, struct tmesh_error *err)
{
	int rc;

	if (offset > memory->bytes || bytes > memory->bytes - offset)
		return tmesh_fail(
			err, -EINVAL,
			"%s: %llu bytes at %llu are outside of the memory, which has %llu", what,
			(unsigned long long)bytes, (unsigned long long)offset,
			(unsigned long long)memory->bytes);
	rc = work_begin(memory, what, err);
	if (rc)
		return rc;
	rc = cuda_check(memory->cuda, memory->cuda->driver.ctx_synchronize(), "cuCtxSynchronize",
			err);
	if (rc)
		work_end(memory);
	return rc;
}

int tmesh_cuda_read(struct tmesh_cuda_memory *memory, uint64_t offset, void *data, uint64_t bytes,
		    struct tmesh_error *err)
{
	const struct cu_driver *driver = &memory->cuda->driver;
	int rc = copy_begin(memory, "read", offset, bytes, err);

	if (rc)
		return rc;
	if (bytes)
		rc = cuda_check(memory->cuda,
				driver->copy_to_host(data, memory->pointer + offset, bytes),
				"cuMemcpyDtoH", err);
	work_end(memory);
	return rc;
}

int tmesh_cuda_write(struct tmesh_cuda_memory *memory, uint64_t offset, const void *data,
		     uint64_t bytes, struct tmesh_error *err)
{
	const struct cu_driver *driver = &memory->cuda->driver;
	int rc;

	if (!(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "write: the memory is for reading");
	rc = copy_begin(memory, "write", offset, bytes, err);
	if (rc)
		return rc;
	if (bytes)
		rc = cuda_check(memory->cuda,
				driver->copy_to_device(memory->pointer + offset, data, bytes),
				"cuMemcpyHtoD", err);
	/* The driver may have taken the bytes, and not have them there yet. */
	if (!rc && bytes)
		rc = cuda_check(memory->cuda, driver->ctx_synchronize(), "cuCtxSynchronize", err);
	work_end(memory);
	return rc;
}

int tmesh_cuda_find(struct tmesh_cuda *cuda, uint64_t pointer, struct tmesh_cuda_memory **out,
		    uint64_t *offset, struct tmesh_error *err)
{
	struct tmesh_cuda_memory *found = NULL;
	int rc = cuda_check_life(cuda, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	for (struct tmesh_cuda_memory *memory = cuda->memory; memory && !found;
	     memory = memory->next)
		if (pointer >= memory->pointer && pointer - memory->pointer < memory->bytes &&
		    memory->state == LIVE && !memory->whole && memory_get(memory))
			found = memory;
	pthread_mutex_unlock(&cuda->lock);
	if (!found)
		return tmesh_fail(err, -ENOENT, "no memory of this library is at 0x%llx",
				  (unsigned long long)pointer);
	*offset = pointer - found->pointer;
	*out = found;
	return 0;
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
		ADD(bytes_lingering);
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
#undef ADD
	}
	pthread_mutex_unlock(&cuda->lock);
	return tmesh_write_sized(stats, &all, sizeof(all), NULL);
}

/* Whatever happens to memory is the watcher's to see; here it is only asked. */
int tmesh_cuda_touch(struct tmesh_cuda_memory *memory)
{
	int rc = cuda_check_life(memory->cuda, NULL);

	if (rc)
		return rc;
	pthread_mutex_lock(&memory->cuda->lock);
	if (memory->state != LIVE)
		rc = -ESTALE;
	else if (memory->lease_ns)
		rc = tmesh_lease_touch(memory->region);
	pthread_mutex_unlock(&memory->cuda->lock);
	return rc;
}
