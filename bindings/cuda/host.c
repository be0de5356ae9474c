// SPDX-License-Identifier: MIT
/* Regions of host memory that kernels use: registered with the driver, or staged. */
#include "internal.h"

#include <stdlib.h>

/* In whole pages: the mapping has them, and the driver pins no less. */
static uint64_t pinned_bytes(const struct tmesh_cuda_memory *memory)
{
	uint64_t page = tmesh_page_bytes();

	return (memory->bytes + page - 1) & ~(page - 1);
}

static void count_registered(struct tmesh_cuda_memory *memory, uint64_t bytes)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.registered_bytes += bytes;
	pthread_mutex_unlock(&cuda->lock);
}

static int check_read_only(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	int can = 0;
	int rc = cuda_check(cuda,
			    cuda->driver.device_attribute(&can, CU_ATTR_READ_ONLY_HOST_REGISTER,
							  cuda->devices[device].handle),
			    "cuDeviceGetAttribute", err);

	if (!rc && !can)
		rc = tmesh_fail(
			err, -EOPNOTSUPP,
			"register: GPU %d takes no read-only memory "
			"(READ_ONLY_HOST_REGISTER_SUPPORTED is 0: CUDA_ERROR_NOT_SUPPORTED)",
			device);
	return rc;
}

/* The device's context is current. */
static int pin(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	unsigned int flags = CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP;
	int rc = 0;

	if (!(memory->rights & TMESH_WRITE)) {
		rc = check_read_only(cuda, memory->device, err);
		flags |= CU_HOST_REGISTER_READ_ONLY;
	}
	if (!rc)
		rc = cuda_check(
			cuda, cuda->driver.host_register(memory->host, pinned_bytes(memory), flags),
			"cuMemHostRegister", err);
	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.host_device_pointer(&memory->pointer, memory->host, 0),
			"cuMemHostGetDevicePointer", err);
	if (rc)
		cuda->driver.host_unregister(memory->host);
	return rc;
}

static int stage_new(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_error why = *err;
	int rc = cuda_check(cuda, cuda->driver.mem_alloc(&memory->pointer, memory->bytes),
			    "cuMemAlloc", err);

	if (rc)
		return rc;
	memory->kind = TMESH_CUDA_STAGED;
	rc = tmesh_cuda_stage(memory, false, err);
	if (rc) {
		cuda->driver.mem_free(memory->pointer);
		return rc;
	}
	cuda_log(cuda, TMESH_LOG_WARN, "%llu bytes are copied to GPU %d, not shared with it: %s",
		 (unsigned long long)memory->bytes, memory->device, why.message);
	return 0;
}

static int copy(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err)
{
	const struct cu_driver *driver = &memory->cuda->driver;

	if (back)
		return cuda_check(
			memory->cuda,
			driver->copy_to_host(memory->host, memory->pointer, memory->bytes),
			"cuMemcpyDtoH", err);
	return cuda_check(memory->cuda,
			  driver->copy_to_device(memory->pointer, memory->host, memory->bytes),
			  "cuMemcpyHtoD", err);
}

int tmesh_cuda_stage(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_cuda_stats *stats = &cuda->devices[memory->device].stats;
	int rc;

	if (memory->kind != TMESH_CUDA_STAGED)
		return tmesh_fail(err, -EINVAL, "stage: the memory is shared, there is no copy");
	if (back && !(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "stage: the region is for reading");
	rc = work_begin(memory, "stage", err);
	if (rc)
		return rc;
	rc = copy(memory, back, err);
	if (!rc) {
		pthread_mutex_lock(&cuda->lock);
		stats->staged_copies++;
		stats->staged_bytes += memory->bytes;
		pthread_mutex_unlock(&cuda->lock);
	}
	work_end(memory);
	return rc;
}

uint64_t region_lease_ns(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	if (tmesh_lease_state(region) == TMESH_LEASE_NONE || tmesh_region_info(region, &info, NULL))
		return 0;
	return info.lease_ns;
}

/* The same region for the same device again: the driver registers memory once. */
static struct tmesh_cuda_memory *registered(struct tmesh_cuda *cuda, struct tmesh_region *region,
					    int device, uint32_t rights)
{
	struct tmesh_cuda_memory *found = NULL;

	pthread_mutex_lock(&cuda->lock);
	for (struct tmesh_cuda_memory *memory = cuda->memory; memory && !found;
	     memory = memory->next)
		if (memory->kind == TMESH_CUDA_HOST && memory->region == region &&
		    memory->device == device && !(rights & ~memory->rights) &&
		    memory->state == LIVE && memory_get(memory))
			found = memory;
	pthread_mutex_unlock(&cuda->lock);
	return found;
}

int tmesh_cuda_register(struct tmesh_cuda *cuda, struct tmesh_region *region, int device,
			uint32_t rights, uint32_t flags, struct tmesh_cuda_memory **out,
			struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory, *there;
	struct tmesh_error why;
	int rc;

	err = err ? err : &why;
	if (flags & ~(uint32_t)TMESH_CUDA_OR_STAGE)
		return tmesh_fail(err, -EINVAL, "register: unknown flags 0x%x", flags);
	/* What is registered already went with its context. */
	rc = cuda_check_context(cuda, device, err);
	if (rc)
		return rc;
	there = registered(cuda, region, device, rights);
	if (there) {
		*out = there;
		return 0;
	}
	memory = memory_new(cuda, TMESH_CUDA_HOST, device, err);
	if (!memory)
		return -ENOMEM;
	memory->resident = -1;
	memory->rights = rights;
	memory->bytes = tmesh_region_bytes(region);
	memory->region = region;
	rc = tmesh_region_map(region, rights, &memory->host, err);
	if (rc) {
		free(memory);
		return rc;
	}
	/* A mapping from before is still there, with nothing behind it. */
	if (tmesh_region_events(region) & TMESH_EVENT_TAKEN)
		rc = tmesh_fail(err, -ESTALE,
				"register: the region was revoked, or its lease has lapsed");
	if (!rc)
		rc = watch_start(cuda, err);
	if (!rc)
		rc = cuda_enter(cuda, device, err);
	if (!rc) {
		rc = pin(memory, err);
		if (rc && (flags & TMESH_CUDA_OR_STAGE))
			rc = stage_new(memory, err);
		cuda_leave(cuda);
	}
	if (rc) {
		tmesh_region_unmap(region, rights);
		free(memory);
		return rc;
	}
	tmesh_region_ref(region);
	memory->lease_ns = region_lease_ns(region);
	count_registered(memory, memory->kind == TMESH_CUDA_HOST ? memory->bytes : 0);
	watch_add(memory);
	memory_publish(memory, out);
	return 0;
}

/* Also when it is taken away: then the memory object stays, with nothing behind it. */
void host_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_region *region = memory_detach(memory);
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (!region)
		return;
	rc = cuda_enter(cuda, memory->device, NULL);
	/* What a context had went with it, and its addresses may be another's by now. */
	if (rc != -ECONNRESET && memory->kind == TMESH_CUDA_HOST)
		cuda->driver.host_unregister(memory->host);
	else if (rc != -ECONNRESET)
		cuda->driver.mem_free(memory->pointer);
	if (!rc)
		cuda_leave(cuda);
	if (memory->kind == TMESH_CUDA_HOST)
		count_registered(memory, -memory->bytes);
	tmesh_region_unmap(region, memory->rights);
	tmesh_region_unref(region);
}
