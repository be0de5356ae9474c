// SPDX-License-Identifier: MIT
/*
 * Device memory: blocks of the driver's physical memory, each mapped once, and chunks of them.
 * Small allocations share blocks: the driver's smallest unit is a granule of 2 MiB, and making one
 * is slow. One empty block per device is kept.
 *
 * A chunk that is freed in the order of a stream can be reused on that stream at once. Other
 * streams can use it after the freeing stream has been waited for, which happens only if no other
 * chunk is free. While the stream captures a graph, nothing is waited for and another block is
 * used.
 */
#include "internal.h"

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Set the flag that lets other devices on the bus reach the memory, as cuMemAlloc() does by
 * default. A driver that does not support the flag would refuse the allocation. */
static int block_prop(struct tmesh_cuda *cuda, int device, struct cu_alloc_prop *prop,
		      struct tmesh_error *err)
{
	int rdma = 0;
	cu_result rc = cuda->driver.device_attribute(&rdma, CU_ATTR_VMM_RDMA,
						     cuda->devices[device].handle);

	*prop = (struct cu_alloc_prop){
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {.type = CU_LOCATION_DEVICE, .id = device},
		.rdma = rdma != 0,
	};
	/* Drivers older than the flag do not have the attribute. */
	return rc == CU_INVALID_VALUE ? 0 : cuda_check(cuda, rc, "cuDeviceGetAttribute", err);
}

int block_granule(struct tmesh_cuda *cuda, int device, uint64_t *granule, struct tmesh_error *err)
{
	struct device *d = &cuda->devices[device];
	struct cu_alloc_prop prop;
	int rc = CUDA_HAS(cuda, granularity, "cuMemGetAllocationGranularity", err);

	if (!rc && !d->granule) {
		rc = block_prop(cuda, device, &prop, err);
		if (!rc)
			rc = cuda_check(cuda,
					cuda->driver.granularity(&d->granule, &prop,
								 CU_GRANULARITY_MINIMUM),
					"cuMemGetAllocationGranularity", err);
	}
	*granule = d->granule;
	return rc;
}

static int set_access(struct tmesh_cuda *cuda, cu_ptr base, uint64_t bytes, int device,
		      int resident, uint32_t rights, struct tmesh_error *err)
{
	int flags = rights & TMESH_WRITE ? CU_ACCESS_READ_WRITE : CU_ACCESS_READ;
	const struct cu_access access[] = {
		{.location = {.type = CU_LOCATION_DEVICE, .id = resident}, .flags = flags},
		{.location = {.type = CU_LOCATION_DEVICE, .id = device}, .flags = flags},
	};

	return cuda_check(cuda,
			  cuda->driver.set_access(base, bytes, access, device == resident ? 1 : 2),
			  "cuMemSetAccess", err);
}

/* Set the access. A device without read-only mappings gets writable ones, and @rights becomes that.
 */
static int set_some_access(struct tmesh_cuda *cuda, cu_ptr base, uint64_t bytes, int device,
			   int resident, uint32_t *rights, struct tmesh_error *err)
{
	int rc = set_access(cuda, base, bytes, device, resident, *rights, err);

	if ((rc != -EINVAL && rc != -EOPNOTSUPP) || (*rights & TMESH_WRITE))
		return rc;
	rc = set_access(cuda, base, bytes, device, resident, *rights | TMESH_WRITE, err);
	if (rc)
		return rc;
	*rights |= TMESH_WRITE;
	cuda_log(cuda, TMESH_LOG_WARN,
		 "GPU %d maps no memory for reading alone: its kernels could write to %llu bytes",
		 device, (unsigned long long)bytes);
	return 0;
}

int block_map(struct tmesh_cuda *cuda, cu_mem handle, uint64_t bytes, int device, int resident,
	      uint32_t *rights, cu_ptr *base, struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;
	int rc =
		cuda_check(cuda, driver->reserve(base, bytes, 0, 0, 0), "cuMemAddressReserve", err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, driver->map(*base, bytes, 0, handle, 0), "cuMemMap", err);
	if (!rc) {
		rc = set_some_access(cuda, *base, bytes, device, resident, rights, err);
		if (rc)
			driver->unmap(*base, bytes);
	}
	if (rc)
		driver->unreserve(*base, bytes);
	return rc;
}

static void block_unmap(struct tmesh_cuda *cuda, cu_ptr base, uint64_t bytes)
{
	cuda->driver.unmap(base, bytes);
	cuda->driver.unreserve(base, bytes);
}

/* Chunks in bins by the highest bit of their length. */

static unsigned int bin_of(uint64_t bytes)
{
	return 63u - (unsigned int)__builtin_clzll(bytes);
}

static void bin_add(struct device *device, struct chunk *chunk)
{
	struct chunk **bin = &device->bins[bin_of(chunk->bytes)];

	chunk->free = true;
	chunk->previous = NULL;
	chunk->next = *bin;
	if (*bin)
		(*bin)->previous = chunk;
	*bin = chunk;
}

static void bin_remove(struct device *device, struct chunk *chunk)
{
	chunk->free = false;
	if (chunk->next)
		chunk->next->previous = chunk->previous;
	if (chunk->previous)
		chunk->previous->next = chunk->next;
	else
		device->bins[bin_of(chunk->bytes)] = chunk->next;
}

static bool busy(const struct device *device, const struct chunk *chunk)
{
	return chunk->freed > device->waited;
}

/* Find a free chunk that is long enough and that @stream can use. In its own bin a chunk may be too
 * short; in the bins above none is. @waits: a chunk would do once its stream has been waited for.
 */
static struct chunk *chunk_find(struct device *device, uint64_t bytes, cu_stream stream,
				bool *waits)
{
	*waits = false;
	for (unsigned int bin = bin_of(bytes); bin < BINS; bin++) {
		for (struct chunk *chunk = device->bins[bin]; chunk; chunk = chunk->next) {
			if (chunk->bytes < bytes)
				continue;
			if (!busy(device, chunk) ||
			    (chunk->stream == stream && stream != TMESH_CUDA_NO_STREAM))
				return chunk;
			*waits = true;
		}
	}
	return NULL;
}

static int new_chunk(struct block *block, struct chunk *before, uint64_t offset, uint64_t bytes,
		     struct chunk **out, struct tmesh_error *err)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return tmesh_fail(err, -ENOMEM, "no memory");
	*chunk = (struct chunk){.block = block, .offset = offset, .bytes = bytes, .before = before};
	chunk->behind = before ? before->behind : NULL;
	if (chunk->behind)
		chunk->behind->before = chunk;
	if (before)
		before->behind = chunk;
	else
		block->chunks = chunk;
	*out = chunk;
	return 0;
}

/* Take @bytes of a free chunk; the rest, if any, stays free. */
static int split(struct device *device, struct chunk *chunk, uint64_t bytes,
		 struct tmesh_error *err)
{
	struct chunk *rest = NULL;
	int rc;

	bin_remove(device, chunk);
	if (chunk->bytes > bytes) {
		rc = new_chunk(chunk->block, chunk, chunk->offset + bytes, chunk->bytes - bytes,
			       &rest, err);
		if (rc) {
			bin_add(device, chunk);
			return rc;
		}
		rest->freed = chunk->freed;
		rest->stream = chunk->stream;
		bin_add(device, rest);
		chunk->bytes = bytes;
	}
	chunk->block->used += chunk->bytes;
	return 0;
}

static void absorb(struct device *device, struct chunk *chunk, struct chunk *behind)
{
	if (busy(device, chunk) && busy(device, behind) && chunk->stream != behind->stream)
		chunk->stream = TMESH_CUDA_NO_STREAM;
	else if (busy(device, behind))
		chunk->stream = behind->stream;
	if (behind->freed > chunk->freed)
		chunk->freed = behind->freed;
	chunk->bytes += behind->bytes;
	chunk->behind = behind->behind;
	if (chunk->behind)
		chunk->behind->before = chunk;
	free(behind);
}

/* Blocks. */

static void block_release(struct tmesh_cuda *cuda, struct block *block)
{
	struct device *device = &cuda->devices[block->device];
	struct block **at = &device->blocks;

	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	if (block->chunks->free)
		bin_remove(device, block->chunks);
	free(block->chunks);
	block_unmap(cuda, block->base, block->bytes);
	cuda->driver.mem_release(block->handle);
	if (block->fd >= 0)
		close(block->fd);
	device->stats.bytes_reserved -= block->bytes;
	device->stats.blocks--;
	free(block);
}

static int create(struct tmesh_cuda *cuda, struct block *block, struct tmesh_error *err)
{
	uint32_t rights = TMESH_READ | TMESH_WRITE;
	struct cu_alloc_prop prop;
	int rc = block_prop(cuda, block->device, &prop, err);

	if (!rc)
		rc = cuda_check(cuda,
				cuda->driver.mem_create(&block->handle, block->bytes, &prop, 0),
				"cuMemCreate", err);
	if (rc)
		return rc;
	rc = block_map(cuda, block->handle, block->bytes, block->device, block->device, &rights,
		       &block->base, err);
	if (rc)
		cuda->driver.mem_release(block->handle);
	return rc;
}

static int block_new(struct tmesh_cuda *cuda, int device, uint64_t bytes, struct block **out,
		     struct tmesh_error *err)
{
	struct device *d = &cuda->devices[device];
	struct block *block = calloc(1, sizeof(*block));
	int rc;

	if (!block)
		return tmesh_fail(err, -ENOMEM, "no memory");
	block->device = device;
	block->bytes = bytes;
	block->fd = -1;
	rc = tmesh_random(&block->id, sizeof(block->id), err);
	if (!rc)
		rc = new_chunk(block, NULL, 0, bytes, &block->chunks, err);
	if (!rc) {
		rc = create(cuda, block, err);
		if (rc)
			free(block->chunks);
	}
	if (rc) {
		free(block);
		return rc;
	}
	block->next = d->blocks;
	d->blocks = block;
	d->stats.bytes_reserved += bytes;
	d->stats.blocks++;
	*out = block;
	return 0;
}

static void trim(struct tmesh_cuda *cuda, int device)
{
	struct device *d = &cuda->devices[device];

	for (struct block *block = d->blocks, *next; block; block = next) {
		next = block->next;
		if (!block->used && !busy(d, block->chunks))
			block_release(cuda, block);
	}
}

void block_trim(struct tmesh_cuda *cuda)
{
	for (int i = 0; i < cuda->device_count; i++)
		trim(cuda, i);
}

void tmesh_cuda_trim(struct tmesh_cuda *cuda)
{
	if (cuda_inherited(cuda) || cuda_relax(cuda, NULL))
		return;
	/* Blocks that are still busy stay. */
	for (int i = 0; i < cuda->device_count; i++)
		order_wait_all(cuda, i);
	pthread_mutex_lock(&cuda->lock);
	block_trim(cuda);
	pthread_mutex_unlock(&cuda->lock);
	cuda_restore(cuda);
}

static bool has_other_empty(const struct device *device, const struct block *block)
{
	for (const struct block *other = device->blocks; other; other = other->next)
		if (other != block && !other->used)
			return true;
	return false;
}

/* Make a block for @bytes: of the usual size, or the smallest that fits if memory is short. */
static int block_for(struct tmesh_cuda *cuda, int device, uint64_t bytes, bool alone,
		     struct block **out, struct tmesh_error *err)
{
	uint64_t granule, least, good;
	int rc = block_granule(cuda, device, &granule, err);

	if (rc)
		return rc;
	least = round_up(bytes, granule);
	good = round_up(cuda->block_bytes, granule);
	if (alone || good < least)
		good = least;
	rc = block_new(cuda, device, good, out, err);
	if (rc == -ENOMEM) {
		trim(cuda, device);
		rc = block_new(cuda, device, least, out, err);
		/* Waiting for an empty block that is still busy may free enough memory. */
		if (rc == -ENOMEM && has_other_empty(&cuda->devices[device], NULL))
			return -EAGAIN;
	}
	if (!rc)
		(*out)->alone = alone;
	return rc;
}

/* Allocate a chunk, under the lock. -EAGAIN: try again after waiting for the streams. @now: they
 * cannot be waited for. */
static int chunk_alloc(struct tmesh_cuda *cuda, int device, uint64_t bytes, bool alone, bool now,
		       cu_stream stream, struct chunk **out, struct tmesh_error *err)
{
	struct device *d = &cuda->devices[device];
	bool waits = false;
	struct chunk *chunk = alone ? NULL : chunk_find(d, bytes, stream, &waits);
	struct block *block;
	int rc = 0;

	if (!chunk && waits && !now)
		return -EAGAIN;
	if (chunk) {
		rc = split(d, chunk, bytes, err);
		if (!rc)
			d->stats.reused++;
	} else {
		rc = block_for(cuda, device, bytes, alone, &block, err);
		if (rc == -EAGAIN && now)
			rc = tmesh_fail(err, -ENOMEM,
					"alloc: no memory is left but what waits for a stream, and "
					"a stream captures a graph (CUDA_ERROR_OUT_OF_MEMORY)");
		if (rc)
			return rc;
		chunk = block->chunks;
		bin_add(d, chunk);
		rc = split(d, chunk, alone ? block->bytes : bytes, err);
		if (rc)
			block_release(cuda, block);
	}
	if (rc)
		return rc;
	d->stats.bytes_used += chunk->bytes;
	*out = chunk;
	return 0;
}

void block_free(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct chunk *chunk = memory->chunk;
	struct block *block = chunk->block;
	struct device *device = &cuda->devices[block->device];

	device->stats.bytes_used -= chunk->bytes;
	block->used -= chunk->bytes;
	chunk->freed = memory->ordered ? ++device->freed : 0;
	chunk->stream = memory->stream;
	if (chunk->behind && chunk->behind->free) {
		bin_remove(device, chunk->behind);
		absorb(device, chunk, chunk->behind);
	}
	if (chunk->before && chunk->before->free) {
		chunk = chunk->before;
		bin_remove(device, chunk);
		absorb(device, chunk, chunk->behind);
	}
	bin_add(device, chunk);
	if (!block->used && !busy(device, chunk) &&
	    (block->alone || has_other_empty(device, block)))
		block_release(cuda, block);
}

int block_export(struct tmesh_cuda *cuda, struct block *block, struct tmesh_error *err)
{
	int fd, rc;

	if (block->fd >= 0)
		return 0;
	rc = cuda_check(cuda, cuda->driver.export_handle(&fd, block->handle, CU_HANDLE_POSIX_FD, 0),
			"cuMemExportToShareableHandle", err);
	if (rc)
		return rc;
	rc = cuda_close_on_exec(fd, err);
	if (rc)
		close(fd);
	else
		block->fd = fd;
	return rc;
}

/* Allocate a chunk for @stream. Chunks that other streams freed are waited for before another block
 * is made. The order of streams is unknown in a graph, because it may run on any stream. */
static int take_chunk(struct tmesh_cuda_memory *memory, uint64_t bytes, bool alone,
		      cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool now;
	int rc = stream_captures(cuda, memory->device, stream, &now, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.allocs++;
	while ((rc = chunk_alloc(cuda, memory->device, bytes, alone, now,
				 now ? TMESH_CUDA_NO_STREAM : stream, &memory->chunk, err)) ==
	       -EAGAIN) {
		pthread_mutex_unlock(&cuda->lock);
		now = order_wait_all(cuda, memory->device) != 0;
		pthread_mutex_lock(&cuda->lock);
	}
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

/* Give host memory in place of memory on the device. The log reports it, because a kernel that uses
 * it is slower by an order of magnitude. */
static int host_instead(struct tmesh_cuda *cuda, int device, uint64_t bytes,
			struct tmesh_cuda_memory **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	struct tmesh_error why = *err;
	int rc = tmesh_region_create(cuda->ctx, bytes, NULL, &region, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_register(cuda, region, device, TMESH_READ | TMESH_WRITE, 0, out, err);
	tmesh_region_unref(region);
	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	cuda->devices[device].stats.host_fallbacks++;
	pthread_mutex_unlock(&cuda->lock);
	cuda_log(cuda, TMESH_LOG_WARN, "%llu bytes are in host memory instead of GPU %d: %s",
		 (unsigned long long)bytes, device, why.message);
	return 0;
}

int tmesh_cuda_alloc(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
		     struct tmesh_cuda_memory **out, struct tmesh_error *err)
{
	return tmesh_cuda_alloc_on(cuda, device, bytes, flags, TMESH_CUDA_NO_STREAM, out, err);
}

int tmesh_cuda_alloc_on(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
			struct CUstream_st *stream, struct tmesh_cuda_memory **out,
			struct tmesh_error *err)
{
	struct tmesh_error why;
	struct tmesh_cuda_memory *memory;
	int rc;

	err = err ? err : &why;
	if (flags & ~(uint32_t)(TMESH_CUDA_OR_HOST | TMESH_CUDA_ALONE))
		return tmesh_fail(err, -EINVAL, "alloc: unknown flags 0x%x", flags);
	if (!bytes || bytes > INT64_MAX - (1ull << 32))
		return tmesh_fail(err, bytes ? -EOVERFLOW : -EINVAL,
				  "alloc: %llu bytes are no size for memory",
				  (unsigned long long)bytes);
	rc = cuda_enter(cuda, device, err);
	if (rc)
		return rc;
	memory = memory_new(cuda, TMESH_CUDA_OWN, device, err);
	rc = memory ? take_chunk(memory, round_up(bytes, ALIGNMENT), flags & TMESH_CUDA_ALONE,
				 stream, err)
		    : -ENOMEM;
	cuda_leave(cuda);
	if (rc) {
		free(memory);
		return rc == -ENOMEM && (flags & TMESH_CUDA_OR_HOST)
			       ? host_instead(cuda, device, bytes, out, err)
			       : rc;
	}
	memory->bytes = bytes;
	memory->pointer = memory->chunk->block->base + memory->chunk->offset;
	memory_publish(memory, out);
	return 0;
}

int tmesh_cuda_slice(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
		     tmesh_cuda_release_fn release, void *data, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err)
{
	struct tmesh_cuda_memory *part;
	int rc = cuda_check_life(memory->cuda, err);

	if (rc)
		return rc;
	if (memory->kind != TMESH_CUDA_OWN)
		return tmesh_fail(err, -EINVAL, "part: the memory was not allocated here");
	if (!bytes || offset > memory->bytes || bytes > memory->bytes - offset)
		return tmesh_fail(err, -EINVAL, "part: outside the memory's %llu bytes",
				  (unsigned long long)memory->bytes);
	part = memory_new(memory->cuda, TMESH_CUDA_OWN, memory->device, err);
	if (!part)
		return -ENOMEM;
	part->whole = tmesh_cuda_memory_ref(memory);
	part->chunk = memory->chunk;
	part->pointer = memory->pointer + offset;
	part->bytes = bytes;
	part->release = release;
	part->release_data = data;
	memory_publish(part, out);
	return 0;
}
