// SPDX-License-Identifier: MIT
/* The stand-in driver's device memory: VMM, cuMemAlloc, copies. */
#include "standin_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct physical physical[STANDIN_MAX];
static struct range ranges[STANDIN_MAX];

static struct range *range_new(enum kind kind, void *at, size_t bytes)
{
	for (int i = 0; i < STANDIN_MAX; i++) {
		if (ranges[i].kind == FREE) {
			ranges[i] = (struct range){.kind = kind, .at = at, .bytes = bytes};
			return &ranges[i];
		}
	}
	return NULL;
}

static struct range *range_at(enum kind kind, cu_ptr ptr)
{
	for (int i = 0; i < STANDIN_MAX; i++)
		if (ranges[i].kind == kind && (uintptr_t)ranges[i].at == ptr)
			return &ranges[i];
	return NULL;
}

struct range *standin_range_with(bool (*is)(enum kind kind), cu_ptr ptr, size_t bytes)
{
	for (int i = 0; i < STANDIN_MAX; i++)
		if (is(ranges[i].kind) && ptr >= (uintptr_t)ranges[i].at &&
		    bytes <= ranges[i].bytes &&
		    ptr - (uintptr_t)ranges[i].at <= ranges[i].bytes - bytes)
			return &ranges[i];
	return NULL;
}

static bool is_reserved(enum kind kind)
{
	return kind == RESERVED;
}

bool standin_is_memory(enum kind kind)
{
	return kind > RESERVED;
}

static size_t used(int device)
{
	size_t bytes = 0;

	for (int i = 0; i < STANDIN_MAX; i++)
		if ((physical[i].handles || physical[i].mappings) && physical[i].made &&
		    physical[i].device == device)
			bytes += physical[i].bytes;
	return bytes;
}

struct physical *standin_physical_new(int fd, int device, size_t bytes)
{
	for (int i = 0; i < STANDIN_MAX; i++) {
		if (!physical[i].handles && !physical[i].mappings) {
			physical[i] = (struct physical){.fd = fd, .device = device, .bytes = bytes};
			return &physical[i];
		}
	}
	return NULL;
}

void standin_physical_drop(struct physical *memory)
{
	if (!memory->handles && !memory->mappings)
		close(memory->fd);
}

static struct physical *physical_of(cu_mem handle)
{
	if (handle < 1 || handle > STANDIN_MAX || !physical[handle - 1].handles)
		return NULL;
	return &physical[handle - 1];
}

/* @fd goes to the new memory on success, and stays with the caller on an error. */
static cu_result physical_of_file(int fd, struct physical **out)
{
	struct standin_file file;

	if (!standin_file_look(fd, &file))
		return CU_INVALID_VALUE;
	if (standin_permitted())
		return CU_NOT_PERMITTED;
	if (file.device >= standin.devices)
		return CU_INVALID_DEVICE;
	*out = standin_physical_new(fd, file.device, file.bytes);
	if (!*out)
		return CU_OUT_OF_MEMORY;
	(*out)->offset = file.offset;
	return CU_OK;
}

static cu_result make(int device, size_t bytes, bool exportable, struct physical **out)
{
	cu_result rc;
	int fd;

	if (standin_permitted())
		return CU_NOT_PERMITTED;
	if (bytes > standin.bytes || used(device) > standin.bytes - bytes)
		return CU_OUT_OF_MEMORY;
	fd = standin_file_new(device, bytes, exportable);
	if (fd < 0)
		return CU_OPERATING_SYSTEM;
	rc = physical_of_file(fd, out);
	if (rc) {
		close(fd);
		return rc;
	}
	(*out)->made = true;
	(*out)->exportable = exportable;
	return CU_OK;
}

cu_result standin_adopt(int fd, struct physical **out)
{
	cu_result rc;

	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CU_INVALID_VALUE;
	rc = physical_of_file(fd, out);
	if (rc)
		close(fd);
	return rc;
}

/* VMM */

static cu_result check_prop(const struct cu_alloc_prop *prop)
{
	if (standin_without("vmm"))
		return CU_NOT_SUPPORTED;
	if (prop->type != CU_ALLOCATION_PINNED || prop->win32 ||
	    prop->location.type != CU_LOCATION_DEVICE)
		return CU_INVALID_VALUE;
	if (prop->location.id < 0 || prop->location.id >= standin.devices)
		return CU_INVALID_DEVICE;
	/* Seen on integrated GPUs, which have VMM and not this. */
	if (prop->rdma && standin_without("rdma"))
		return CU_INVALID_DEVICE;
	return prop->handle_types && standin_without("posix-fd") ? CU_NOT_SUPPORTED : CU_OK;
}

cu_result cuMemGetAllocationGranularity(size_t *bytes, const struct cu_alloc_prop *prop, int flags)
{
	ENTER("cuMemGetAllocationGranularity");
	*bytes = STANDIN_GRANULE;
	return check_prop(prop);
}

cu_result cuMemCreate(cu_mem *mem, size_t bytes, const struct cu_alloc_prop *prop,
		      unsigned long long flags)
{
	struct physical *memory;
	cu_result rc;

	UNSAFE("cuMemCreate");
	rc = check_prop(prop);
	if (!rc && (!bytes || bytes % STANDIN_GRANULE))
		rc = CU_INVALID_VALUE;
	if (rc)
		return rc;
	pthread_mutex_lock(&standin_lock);
	rc = make(prop->location.id, bytes, prop->handle_types & CU_HANDLE_POSIX_FD, &memory);
	if (!rc) {
		memory->handles = 1;
		memory->rdma = prop->rdma;
		*mem = (cu_mem)(memory - physical) + 1;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemRelease(cu_mem mem)
{
	struct physical *memory;
	cu_result rc = CU_INVALID_VALUE;

	UNSAFE("cuMemRelease");
	pthread_mutex_lock(&standin_lock);
	memory = physical_of(mem);
	if (memory) {
		memory->handles--;
		standin_physical_drop(memory);
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemRetainAllocationHandle(cu_mem *mem, void *addr)
{
	struct range *range;

	UNSAFE("cuMemRetainAllocationHandle");
	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, (cu_ptr)addr, 1);
	if (range && range->kind == MAPPED) {
		range->of->handles++;
		*mem = (cu_mem)(range->of - physical) + 1;
	}
	pthread_mutex_unlock(&standin_lock);
	return range && range->kind == MAPPED ? CU_OK : CU_INVALID_VALUE;
}

cu_result cuMemExportToShareableHandle(void *handle, cu_mem mem, int type, unsigned long long flags)
{
	struct physical *memory;
	cu_result rc = CU_INVALID_VALUE;

	UNSAFE("cuMemExportToShareableHandle");
	pthread_mutex_lock(&standin_lock);
	memory = physical_of(mem);
	/* The maker of the memory chose which handles it can become. */
	if (memory && memory->exportable && type == CU_HANDLE_POSIX_FD) {
		/* The driver makes no promise of FD_CLOEXEC. */
		*(int *)handle = dup(memory->fd);
		rc = *(int *)handle < 0 ? CU_OPERATING_SYSTEM : CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemImportFromShareableHandle(cu_mem *mem, void *handle, int type)
{
	struct physical *memory;
	cu_result rc;

	UNSAFE("cuMemImportFromShareableHandle");
	if (type != CU_HANDLE_POSIX_FD)
		return CU_INVALID_VALUE;
	if (standin_without("posix-fd"))
		return CU_NOT_SUPPORTED;
	pthread_mutex_lock(&standin_lock);
	rc = standin_adopt((int)(intptr_t)handle, &memory);
	if (!rc) {
		memory->handles = 1;
		memory->exportable = true;
		*mem = (cu_mem)(memory - physical) + 1;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemAddressReserve(cu_ptr *ptr, size_t bytes, size_t alignment, cu_ptr addr,
			      unsigned long long flags)
{
	char *at;
	cu_result rc = CU_OK;

	UNSAFE("cuMemAddressReserve");
	if (!bytes || bytes % STANDIN_GRANULE || (alignment & (alignment - 1)))
		return CU_INVALID_VALUE;
	/* At a multiple of the granule, as the driver's are. */
	at = mmap(NULL, bytes + STANDIN_GRANULE, PROT_NONE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	*ptr = ((uintptr_t)at + STANDIN_GRANULE - 1) & ~(cu_ptr)(STANDIN_GRANULE - 1);
	if ((char *)*ptr > at)
		munmap(at, (size_t)((char *)*ptr - at));
	munmap((char *)*ptr + bytes, (size_t)(at + STANDIN_GRANULE - (char *)*ptr));
	pthread_mutex_lock(&standin_lock);
	if (!range_new(RESERVED, (void *)*ptr, bytes))
		rc = CU_OUT_OF_MEMORY;
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

static bool has_mapping(const struct range *reserved)
{
	for (int i = 0; i < STANDIN_MAX; i++)
		if (ranges[i].kind == MAPPED && ranges[i].at >= reserved->at &&
		    ranges[i].at < reserved->at + reserved->bytes)
			return true;
	return false;
}

cu_result cuMemAddressFree(cu_ptr ptr, size_t bytes)
{
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;

	UNSAFE("cuMemAddressFree");
	pthread_mutex_lock(&standin_lock);
	range = range_at(RESERVED, ptr);
	if (range && range->bytes == bytes && !has_mapping(range)) {
		munmap(range->at, bytes);
		range->kind = FREE;
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemMap(cu_ptr ptr, size_t bytes, size_t offset, cu_mem mem, unsigned long long flags)
{
	struct physical *memory;
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;

	UNSAFE("cuMemMap");
	pthread_mutex_lock(&standin_lock);
	memory = physical_of(mem);
	if (memory && offset == 0 && bytes == memory->bytes && !flags &&
	    standin_range_with(is_reserved, ptr, bytes) &&
	    !standin_range_with(standin_is_memory, ptr, 1)) {
		range = range_new(MAPPED, (void *)ptr, bytes);
		rc = range ? CU_OK : CU_OUT_OF_MEMORY;
		if (range) {
			range->of = memory;
			memory->mappings++;
		}
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

/* An access to unmapped memory must fail, and no other mapping may get its address. */
static void leave_hole(struct range *range)
{
	mmap(range->at, range->bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void range_end(struct range *range)
{
	range->of->mappings--;
	standin_physical_drop(range->of);
	range->kind = FREE;
}

cu_result cuMemUnmap(cu_ptr ptr, size_t bytes)
{
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;

	UNSAFE("cuMemUnmap");
	pthread_mutex_lock(&standin_lock);
	range = range_at(MAPPED, ptr);
	if (range && range->bytes == bytes) {
		leave_hole(range);
		range_end(range);
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

/* The process's one mapping has the rights of all devices; each device's rights are kept beside. */
static cu_result map_file(struct range *range, int fixed)
{
	int prot = PROT_NONE;

	for (int i = 0; i < standin.devices; i++) {
		if (range->access[i] == CU_ACCESS_READ_WRITE)
			prot |= PROT_READ | PROT_WRITE;
		else if (range->access[i] == CU_ACCESS_READ)
			prot |= PROT_READ;
	}
	range->at = mmap(range->at, range->bytes, prot, MAP_SHARED | fixed, range->of->fd,
			 range->of->offset);
	return range->at == MAP_FAILED ? CU_OUT_OF_MEMORY : CU_OK;
}

cu_result cuMemSetAccess(cu_ptr ptr, size_t bytes, const struct cu_access *access, size_t count)
{
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;

	UNSAFE("cuMemSetAccess");
	pthread_mutex_lock(&standin_lock);
	range = range_at(MAPPED, ptr);
	if (range && range->bytes == bytes && count) {
		rc = CU_OK;
		for (size_t i = 0; i < count && !rc; i++) {
			if (access[i].location.type != CU_LOCATION_DEVICE ||
			    access[i].location.id < 0 || access[i].location.id >= standin.devices)
				rc = CU_INVALID_DEVICE;
			else if (access[i].flags == CU_ACCESS_READ && standin_without("prot-read"))
				rc = CU_INVALID_VALUE;
			else
				range->access[access[i].location.id] = access[i].flags;
		}
		if (!rc)
			rc = map_file(range, MAP_FIXED);
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

/* Memory as cudaMalloc() gives it. */

cu_result standin_whole(enum kind kind, struct physical *memory, int device, cu_ptr *ptr)
{
	struct range *range = range_new(kind, NULL, memory->bytes);
	cu_result rc;

	if (!range) {
		standin_physical_drop(memory);
		return CU_OUT_OF_MEMORY;
	}
	range->of = memory;
	memory->mappings++;
	range->access[device] = CU_ACCESS_READ_WRITE;
	rc = map_file(range, 0);
	if (rc)
		range_end(range);
	*ptr = (uintptr_t)range->at;
	return rc;
}

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes)
{
	int device = standin_current();
	struct physical *memory;
	cu_result rc;

	UNSAFE("cuMemAlloc_v2");
	NEED_CONTEXT();
	if (!bytes)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	rc = make(device, (bytes + STANDIN_GRANULE - 1) & ~(size_t)(STANDIN_GRANULE - 1), false,
		  &memory);
	if (!rc)
		rc = standin_whole(WHOLE, memory, device, ptr);
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result standin_end_whole(enum kind kind, cu_ptr ptr)
{
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;

	pthread_mutex_lock(&standin_lock);
	range = range_at(kind, ptr);
	if (range) {
		munmap(range->at, range->bytes);
		range_end(range);
		rc = CU_OK;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuMemFree_v2(cu_ptr ptr)
{
	cu_result rc;

	UNSAFE("cuMemFree_v2");
	NEED_CONTEXT();
	rc = standin_end_whole(WHOLE, ptr);
	return rc ? standin_end_whole(EXTERNAL, ptr) : rc;
}

/* Called by tests alone. */
cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	NEED_CONTEXT();
	pthread_mutex_lock(&standin_lock);
	*total = standin.bytes;
	*free_bytes = standin.bytes - used(standin_current());
	pthread_mutex_unlock(&standin_lock);
	return CU_OK;
}

cu_result cuMemGetAddressRange_v2(cu_ptr *base, size_t *bytes, cu_ptr ptr)
{
	struct range *range;

	ENTER("cuMemGetAddressRange_v2");
	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, ptr, 1);
	if (range) {
		*base = (uintptr_t)range->at;
		*bytes = range->bytes;
	}
	pthread_mutex_unlock(&standin_lock);
	return range ? CU_OK : CU_INVALID_VALUE;
}

cu_result cuPointerGetAttribute(void *value, int attribute, cu_ptr ptr)
{
	struct range *range;
	cu_result rc = CU_OK;

	ENTER("cuPointerGetAttribute");
	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, ptr, 1);
	if (!range)
		rc = CU_INVALID_VALUE;
	else if (attribute == CU_POINTER_ATTR_DEVICE)
		*(int *)value = range->of->device;
	else if (attribute == CU_POINTER_ATTR_IPC_CAPABLE)
		*(int *)value = range->kind == WHOLE;
	else if (attribute == CU_POINTER_ATTR_RDMA)
		*(int *)value = range->of->rdma || range->kind == WHOLE;
	else if (attribute == CU_POINTER_ATTR_BUFFER_ID)
		*(unsigned long long *)value = (unsigned long long)(range - ranges) + 1;
	else
		rc = CU_INVALID_VALUE;
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

bool standin_may_access(int device, unsigned long long ptr, size_t bytes, bool write)
{
	struct range *range;
	bool may;

	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, ptr, bytes);
	may = range && (range->access[device] == CU_ACCESS_READ_WRITE ||
			(!write && range->access[device] == CU_ACCESS_READ));
	pthread_mutex_unlock(&standin_lock);
	return may || standin_host(device, (void *)ptr, bytes, write);
}

bool standin_access(int device, unsigned long long ptr, void *data, size_t bytes, bool write)
{
	if (!standin_may_access(device, ptr, bytes, write))
		return false;
	if (write)
		memcpy((void *)ptr, data, bytes);
	else
		memcpy(data, (void *)ptr, bytes);
	return true;
}

/* Tests alone call it: on the legacy default stream, and waited for. */

cu_result cuMemcpyHtoD_v2(cu_ptr to, const void *from, size_t bytes)
{
	cu_result rc = standin_unsafe();

	NEED_CONTEXT();
	rc = rc ? rc : standin_usable(NULL);
	if (rc)
		return rc;
	standin_look_for_private(from, bytes, true);
	return standin_access(standin_current(), to, (void *)from, bytes, true) ? CU_OK
										: CU_INVALID_VALUE;
}

cu_result cuMemcpyDtoH_v2(void *to, cu_ptr from, size_t bytes)
{
	cu_result rc = standin_unsafe();

	NEED_CONTEXT();
	rc = rc ? rc : standin_usable(NULL);
	if (rc)
		return rc;
	return standin_access(standin_current(), from, to, bytes, false) ? CU_OK : CU_INVALID_VALUE;
}

struct copy {
	void *to;
	const void *from;
	size_t bytes;
};

static void copy(void *data)
{
	struct copy *what = data;

	memcpy(what->to, what->from, what->bytes);
	free(what);
}

static cu_result copy_on(cu_stream stream, void *to, const void *from, size_t bytes, cu_ptr device,
			 bool write)
{
	struct copy *what;
	cu_result rc = standin_usable(stream);

	NEED_CONTEXT();
	if (rc)
		return rc;
	if (!standin_may_access(standin_current(), device, bytes, write))
		return CU_INVALID_VALUE;
	what = malloc(sizeof(*what));
	*what = (struct copy){.to = to, .from = from, .bytes = bytes};
	return cuLaunchHostFunc(stream, copy, what);
}

cu_result cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, cu_stream stream)
{
	ENTER("cuMemcpyHtoDAsync_v2");
	standin_look_for_private(from, bytes, true);
	return copy_on(stream, (void *)to, from, bytes, to, true);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, cu_stream stream)
{
	ENTER("cuMemcpyDtoHAsync_v2");
	return copy_on(stream, to, (const void *)from, bytes, from, false);
}

void standin_reset_memory(int device)
{
	for (int i = 0; i < STANDIN_MAX; i++) {
		struct range *range = &ranges[i];

		if (range->kind >= WHOLE && range->access[device]) {
			munmap(range->at, range->bytes);
			range_end(range);
		}
	}
	for (int i = 0; i < STANDIN_MAX; i++) {
		if (physical[i].handles && physical[i].external_of == device + 1) {
			physical[i].handles = 0;
			standin_physical_drop(&physical[i]);
		}
	}
}

unsigned long standin_live_memory(void)
{
	unsigned long live = 0;

	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < STANDIN_MAX; i++)
		live += physical[i].handles + (ranges[i].kind != FREE);
	pthread_mutex_unlock(&standin_lock);
	return live;
}
