// SPDX-License-Identifier: MIT
/* Memory as callers see it: its references, how it is given back, copies. */
#include "internal.h"

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
	memory->rights = memory->mapped = TMESH_READ | TMESH_WRITE;
	return memory;
}

void memory_publish(struct tmesh_cuda_memory *memory, struct tmesh_cuda_memory **out)
{
	struct tmesh_cuda *cuda = tmesh_cuda_ref(memory->cuda);

	pthread_mutex_lock(&cuda->lock);
	memory->next = cuda->memory;
	cuda->memory = memory;
	pthread_mutex_unlock(&cuda->lock);
	/* Memory with a descriptor wakes the watcher by it. */
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
	if (memory->state == PENDING_FREE)
		cuda->devices[memory->device].stats.bytes_pending_free -= memory->bytes;
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
static int finish(const struct tmesh_cuda_memory *memory)
{
	int rc = cuda_synchronize(memory->cuda, memory->device);

	if (!rc && memory->resident >= 0 && memory->resident != memory->device)
		rc = cuda_synchronize(memory->cuda, memory->resident);
	return rc;
}

/* Return whether one stream alone orders the free. It does not if others may have used the memory
 * or if the memory is unmapped at once. The per-thread stream's handle means another stream in each
 * thread. */
static bool can_order(const struct tmesh_cuda_memory *memory, cu_stream stream)
{
	return stream != CU_STREAM_PER_THREAD && memory->kind == TMESH_CUDA_OWN && !memory->whole &&
	       !memory->region && !memory->chunk->block->alone;
}

/* Record an event on @stream, so that the memory can be reused in its order. A capture has no order
 * that is known here. A stream of another context is synchronized instead. */
static void order(struct tmesh_cuda_memory *memory, cu_stream stream)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool captures = false, here = false;

	if (stream == TMESH_CUDA_NO_STREAM || cuda_enter(cuda, memory->device, NULL))
		return;
	if (!stream_captures(cuda, memory->device, stream, &captures, NULL) && !captures &&
	    !stream_is_of(cuda, memory->device, stream, &here, NULL)) {
		if (!here)
			cuda->driver.stream_synchronize(stream);
		else if (can_order(memory, stream))
			memory->ordered = !order_record(cuda, memory->device, stream);
	}
	memory->stream = stream;
	cuda_leave(cuda);
}

static void complete(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	switch (memory->kind) {
	case TMESH_CUDA_HOST:
	case TMESH_CUDA_STAGED:
		host_end(memory);
		break;
	case TMESH_CUDA_OWN:
		if (share_settle(memory))
			break;
		pthread_mutex_lock(&cuda->lock);
		memory->state = PENDING_FREE;
		cuda->devices[memory->device].stats.bytes_pending_free += memory->bytes;
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

/* Under the lock. */
static void set_waiting(struct tmesh_cuda_memory *memory, bool waiting)
{
	struct tmesh_cuda_stats *stats = &memory->cuda->devices[memory->device].stats;

	if ((memory->state == WAITING) == waiting)
		return;
	stats->bytes_waiting += waiting ? memory->bytes : -memory->bytes;
	memory->state = waiting ? WAITING : LIVE;
}

/* Free memory. It is unmapped, unregistered or used again only after its device has been waited
 * for. */
bool memory_give_back(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool waits = (memory->state == LIVE || memory->state == WAITING) && !memory->ordered &&
		     finish(memory);

	pthread_mutex_lock(&cuda->lock);
	set_waiting(memory, waits);
	pthread_mutex_unlock(&cuda->lock);
	if (!waits)
		complete(memory);
	return !waits;
}

static void give_back(struct tmesh_cuda_memory *memory, cu_stream stream)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = cuda_relax(cuda, NULL);

	if (memory->state == LIVE)
		order(memory, stream);
	/* If no thread can be had that tries again, the end of the library does. */
	if (!memory_give_back(memory) && !watch_start(cuda, NULL))
		watch_again(cuda);
	if (!rc)
		cuda_restore(cuda);
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
		tmesh_region_unref(memory->values);
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

/* Under the lock. */
static uint64_t piece_of(const struct tmesh_cuda_memory *memory)
{
	return memory->kind == TMESH_CUDA_HOST && memory->region
		       ? registration_piece(memory->registration)
		       : 0;
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
	i.mapped_rights = memory->mapped;
	i.piece_bytes = piece_of(memory);
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

/* Return how many of @bytes at @offset one call of the driver may touch. Work has begun. */
static uint64_t one_call(const struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes)
{
	uint64_t piece = memory->kind == TMESH_CUDA_HOST ? registration_piece(memory->registration)
							 : UINT64_MAX;
	uint64_t most = piece - offset % piece;

	return bytes < most ? bytes : most;
}

static int fill(struct tmesh_cuda_memory *memory, cu_stream stream, uint64_t at, uint64_t bytes,
		struct tmesh_error *err)
{
	return cuda_check(memory->cuda,
			  memory->cuda->driver.fill(memory->pointer + at, 0, bytes, stream),
			  "cuMemsetD8Async", err);
}

/* Fill memory for a stream of another device, which cannot do it: the host waits for it. */
static int fill_for_other(struct tmesh_cuda_memory *memory, cu_stream stream, uint64_t at,
			  uint64_t bytes, struct tmesh_error *err)
{
	int rc = at ? 0 : event_host_waits(memory, stream, err);

	return rc ? rc
		  : cuda_fill_now(memory->cuda, memory->device, memory->pointer + at, bytes, err);
}

int tmesh_cuda_zero(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool here = true;
	uint64_t now;
	int rc;

	if (!(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "zero: the memory is for reading");
	rc = work_begin(memory, "zero", err);
	if (rc)
		return rc;
	/* A graph may zero memory; the default stream is unusable while a blocking one captures. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_LEGACY)
		rc = stream_check(cuda, memory->device, stream, "zero", err);
	if (!rc)
		rc = stream_is_of(cuda, memory->device, stream, &here, err);
	for (uint64_t at = 0; !rc && at < memory->bytes; at += now) {
		now = one_call(memory, at, memory->bytes - at);
		rc = here ? fill(memory, stream, at, now, err)
			  : fill_for_other(memory, stream, at, now, err);
	}
	work_end(memory);
	return rc;
}

/* Begin work on a part of the memory, for a device that has no other work there; until work_end().
 */
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
	rc = cuda_wait_for_all(memory->cuda, memory->device, err);
	if (rc)
		work_end(memory);
	return rc;
}

int tmesh_cuda_read(struct tmesh_cuda_memory *memory, uint64_t offset, void *data, uint64_t bytes,
		    struct tmesh_error *err)
{
	int rc = copy_begin(memory, "read", offset, bytes, err);
	uint64_t now;

	if (rc)
		return rc;
	for (uint64_t at = 0; !rc && at < bytes; at += now) {
		now = one_call(memory, offset + at, bytes - at);
		rc = cuda_copy_to_host(memory->cuda, memory->device, (char *)data + at,
				       memory->pointer + offset + at, now, err);
	}
	work_end(memory);
	return rc;
}

int tmesh_cuda_write(struct tmesh_cuda_memory *memory, uint64_t offset, const void *data,
		     uint64_t bytes, struct tmesh_error *err)
{
	uint64_t now;
	int rc;

	if (!(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "write: the memory is for reading");
	rc = copy_begin(memory, "write", offset, bytes, err);
	if (rc)
		return rc;
	for (uint64_t at = 0; !rc && at < bytes; at += now) {
		now = one_call(memory, offset + at, bytes - at);
		rc = cuda_copy_to_device(memory->cuda, memory->device,
					 memory->pointer + offset + at, (const char *)data + at,
					 now, err);
	}
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

/* Check that the memory is live, and renew its lease. The watcher thread handles memory that its
 * producer takes back; this call only looks at the result. */
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
