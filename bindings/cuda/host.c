// SPDX-License-Identifier: MIT
/* Regions of host memory that kernels use: registered with the driver, or staged. */
#include "internal.h"

static void count_registered(struct tmesh_cuda_memory *memory, uint64_t bytes)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.registered_bytes += bytes;
	pthread_mutex_unlock(&cuda->lock);
}

static int attribute_ask(struct tmesh_cuda *cuda, int device, int attribute, int *can,
			 struct tmesh_error *err)
{
	cu_result rc = cuda->driver.device_attribute(can, attribute, cuda->devices[device].handle);

	/* Drivers older than the attribute do not have it. */
	if (rc == CU_INVALID_VALUE)
		*can = 0;
	return rc == CU_INVALID_VALUE ? 0 : cuda_check(cuda, rc, "cuDeviceGetAttribute", err);
}

static int attach(struct tmesh_cuda_memory *memory, uint32_t rights, unsigned int flags,
		  const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	return registration_get(memory->cuda, memory->region, rights,
				flags | CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP,
				opts, &memory->registration, err);
}

/* Register for writing, as the region's owner allowed by a handle for writing. */
static int attach_writable(struct tmesh_cuda_memory *memory,
			   const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_error why = *err;
	int rc = attach(memory, TMESH_READ | TMESH_WRITE, 0, opts, err);

	if (rc == -EACCES || rc == -EPERM) {
		struct tmesh_error not = *err;

		return tmesh_fail(err, -EOPNOTSUPP, "%.140s; not for writing either: %.90s",
				  why.message, not .message);
	}
	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.writable_instead++;
	pthread_mutex_unlock(&cuda->lock);
	cuda_log(cuda, TMESH_LOG_WARN,
		 "%llu bytes are registered for writing with GPU %d, whose kernels are to read "
		 "them: %s",
		 (unsigned long long)memory->bytes, memory->device, why.message);
	return 0;
}

static int attach_read_only(struct tmesh_cuda_memory *memory,
			    const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int device = memory->device, can, minds = 0;
	int rc = attribute_ask(cuda, device, CU_ATTR_READ_ONLY_HOST_REGISTER, &can, err);

	if (!rc && !can)
		rc = attribute_ask(cuda, device, CU_ATTR_HOST_PAGE_TABLES, &minds, err);
	if (rc)
		return rc;
	if (can || minds)
		return attach(memory, TMESH_READ, can ? CU_HOST_REGISTER_READ_ONLY : 0, opts, err);
	return tmesh_fail(err, -EOPNOTSUPP,
			  "register: GPU %d takes no read-only memory "
			  "(READ_ONLY_HOST_REGISTER_SUPPORTED is 0: CUDA_ERROR_NOT_SUPPORTED): "
			  "allow TMESH_CUDA_OR_WRITABLE or OR_STAGE",
			  device);
}

static int attach_somehow(struct tmesh_cuda_memory *memory,
			  const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	int rc;

	if (memory->rights & TMESH_WRITE)
		return attach(memory, memory->rights, 0, opts, err);
	rc = attach_read_only(memory, opts, err);
	if (rc == -EOPNOTSUPP && (opts->flags & TMESH_CUDA_OR_WRITABLE))
		rc = attach_writable(memory, opts, err);
	return rc;
}

static int pin(struct tmesh_cuda_memory *memory, const struct tmesh_cuda_register_opts *opts,
	       struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = attach_somehow(memory, opts, err);

	if (rc)
		return rc;
	rc = registration_pointer(cuda, memory->registration, memory->device, &memory->pointer,
				  err);
	if (rc) {
		registration_drop(cuda, memory->registration);
		return rc;
	}
	memory->mapped = registration_rights(memory->registration);
	return 0;
}

/* Copy between the region and the staged memory. The device's context is current. */
static int copy(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_cuda_stats *stats = &cuda->devices[memory->device].stats;
	int rc;

	if (back)
		rc = cuda_copy_to_host(cuda, memory->device, memory->host, memory->pointer,
				       memory->bytes, err);
	else
		rc = cuda_copy_to_device(cuda, memory->device, memory->pointer, memory->host,
					 memory->bytes, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	stats->staged_copies++;
	stats->staged_bytes += memory->bytes;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

/* Make the staged copy and fill it. The device's context is current. */
static int stage_copy(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = cuda_check(cuda, cuda->driver.mem_alloc(&memory->pointer, memory->bytes),
			    "cuMemAlloc", err);

	if (rc)
		return rc;
	memory->kind = TMESH_CUDA_STAGED;
	rc = copy(memory, false, err);
	if (rc)
		cuda->driver.mem_free(memory->pointer);
	return rc;
}

static int stage_new(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_error why = *err;
	int rc = tmesh_region_map(memory->region, memory->rights, &memory->host, err);

	if (rc)
		return rc;
	rc = cuda_enter(cuda, memory->device, err);
	if (!rc) {
		rc = stage_copy(memory, err);
		cuda_leave(cuda);
	}
	if (rc) {
		tmesh_region_unmap(memory->region, memory->rights);
		return rc;
	}
	cuda_log(cuda, TMESH_LOG_WARN, "%llu bytes are copied to GPU %d, not shared with it: %s",
		 (unsigned long long)memory->bytes, memory->device, why.message);
	return 0;
}

/* Refresh the copy or write it back, after waiting for queued kernels that may use it. */
int tmesh_cuda_stage(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err)
{
	int rc;

	if (memory->kind != TMESH_CUDA_STAGED)
		return tmesh_fail(err, -EINVAL, "stage: the memory is shared, there is no copy");
	if (back && !(memory->rights & TMESH_WRITE))
		return tmesh_fail(err, -EACCES, "stage: the region is for reading");
	rc = work_begin(memory, "stage", err);
	if (rc)
		return rc;
	rc = cuda_wait_for_all(memory->cuda, memory->device, err);
	if (!rc)
		rc = copy(memory, back, err);
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

/* Find an earlier registration for the same device: the driver registers memory once. */
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

static int register_new(struct tmesh_cuda *cuda, struct tmesh_region *region,
			const struct tmesh_cuda_register_opts *opts, struct tmesh_cuda_memory **out,
			struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory = memory_new(cuda, TMESH_CUDA_HOST, opts->device, err);
	int rc;

	if (!memory)
		return -ENOMEM;
	memory->resident = -1;
	memory->rights = memory->mapped = opts->rights;
	memory->bytes = tmesh_region_bytes(region);
	memory->region = region;
	rc = watch_start(cuda, err);
	/* A mapping made before is still there, but without memory. */
	if (!rc && (tmesh_region_events(region) & TMESH_EVENT_TAKEN))
		rc = tmesh_fail(err, -ESTALE,
				"register: the region was revoked, or its lease has lapsed");
	if (!rc) {
		rc = pin(memory, opts, err);
		if (rc && rc != -ECANCELED && (opts->flags & TMESH_CUDA_OR_STAGE))
			rc = stage_new(memory, err);
	}
	if (rc) {
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

int tmesh_cuda_register_with(struct tmesh_cuda *cuda, struct tmesh_region *region,
			     const struct tmesh_cuda_register_opts *opts,
			     struct tmesh_cuda_memory **out, struct tmesh_error *err)
{
	struct tmesh_cuda_register_opts o;
	struct tmesh_cuda_memory *there;
	struct tmesh_error why;
	int rc;

	err = err ? err : &why;
	rc = tmesh_read_sized(&o, sizeof(o), opts, err);
	if (rc)
		return rc;
	if (o.flags & ~(uint32_t)(TMESH_CUDA_OR_STAGE | TMESH_CUDA_OR_WRITABLE))
		return tmesh_fail(err, -EINVAL, "register: unknown flags 0x%x", o.flags);
	if (!o.rights)
		o.rights = TMESH_READ;
	/* A destroyed context took its registrations along. */
	rc = cuda_check_context(cuda, o.device, err);
	if (rc)
		return rc;
	there = registered(cuda, region, o.device, o.rights);
	if (!there)
		return register_new(cuda, region, &o, out, err);
	*out = there;
	return 0;
}

int tmesh_cuda_register(struct tmesh_cuda *cuda, struct tmesh_region *region, int device,
			uint32_t rights, uint32_t flags, struct tmesh_cuda_memory **out,
			struct tmesh_error *err)
{
	const struct tmesh_cuda_register_opts opts = {
		.size = sizeof(opts), .device = device, .rights = rights, .flags = flags};

	return tmesh_cuda_register_with(cuda, region, &opts, out, err);
}

static void end_copy(struct tmesh_cuda_memory *memory, struct tmesh_region *region)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = cuda_enter_to_free(cuda, memory->device);

	/* A destroyed context took its memory along: the address may be another's. */
	if (rc != -ECONNRESET)
		cuda->driver.mem_free(memory->pointer);
	if (!rc)
		cuda_leave(cuda);
	tmesh_region_unmap(region, memory->rights);
}

/* End the registration, also of a region that is taken away. Then the object stays without memory.
 */
void host_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_region *region = memory_detach(memory);

	if (!region)
		return;
	if (memory->kind == TMESH_CUDA_HOST) {
		registration_drop(memory->cuda, memory->registration);
		count_registered(memory, -memory->bytes);
	} else {
		end_copy(memory, region);
	}
	tmesh_region_unref(region);
}
