// SPDX-License-Identifier: MIT
/* Find out what a device can do: try each operation that costs nothing, ask the driver for the
 * rest. */
#include "internal.h"

#include <stdio.h>

static void set(struct tmesh_cuda_cap *cap, const char *name, int rc, const struct tmesh_error *err,
		const char *how)
{
	cap->name = name;
	cap->level = rc ? TMESH_CUDA_NOT_SUPPORTED : TMESH_CUDA_WORKS;
	snprintf(cap->reason, sizeof(cap->reason), "%.159s", rc ? err->message : how);
}

static int attribute_ask(struct tmesh_cuda *cuda, int device, int attribute, const char *name,
			 struct tmesh_error *err)
{
	int can = 0;
	int rc = cuda_check(
		cuda, cuda->driver.device_attribute(&can, attribute, cuda->devices[device].handle),
		"cuDeviceGetAttribute", err);

	return rc || can ? rc : tmesh_fail(err, -EOPNOTSUPP, "%s is 0", name);
}

static int try_register(struct tmesh_cuda *cuda, int device, uint32_t rights,
			struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	int rc = tmesh_region_create(cuda->ctx, 1, NULL, &region, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_register(cuda, region, device, rights, 0, &memory, err);
	if (!rc)
		tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	return rc;
}

static int try_export(struct tmesh_cuda_memory *memory, int *fd, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = tmesh_cuda_region(memory, &region, err);

	if (rc)
		return rc;
	rc = tmesh_region_opaque_fd(region, fd, err);
	tmesh_region_unref(region);
	return rc;
}

/* Ask whether memory has the flag, which a driver may ignore when it makes the memory. */
static int ask_rdma(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_memory *memory,
		    struct tmesh_error *err)
{
	int can = 0;
	int rc = attribute_ask(cuda, device, CU_ATTR_VMM_RDMA,
			       "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", err);

	if (!rc)
		rc = cuda_enter(cuda, device, err);
	if (rc)
		return rc;
	rc = cuda_check(cuda,
			cuda->driver.pointer_attribute(&can, CU_POINTER_ATTR_RDMA, memory->pointer),
			"cuPointerGetAttribute", err);
	cuda_leave(cuda);
	return rc || can ? rc
			 : tmesh_fail(err, -EOPNOTSUPP,
				      "memory made with the flag is not: "
				      "IS_GPU_DIRECT_RDMA_CAPABLE is 0");
}

/* Import a descriptor that this device exported itself, so that no other process is needed. */
static void try_import(struct tmesh_cuda *cuda, int device, enum tmesh_cuda_fd type, int fd,
		       uint64_t bytes, struct tmesh_cuda_cap *cap, const char *name)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_error why = {0};
	int rc;

	if (fd < 0) {
		cap->name = name;
		cap->level = TMESH_CUDA_NOT_TRIED;
		snprintf(cap->reason, sizeof(cap->reason), "there is no descriptor to try with");
		return;
	}
	rc = tmesh_cuda_import_fd(cuda, device, type, fd, bytes, &memory, &why);
	set(cap, name, rc, &why, "tried with one that was exported here");
	if (!rc)
		tmesh_cuda_memory_unref(memory);
	close(fd);
}

/* Try the device's own memory, and everything that is made from it. */
static void try_memory(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *caps)
{
	struct tmesh_cuda_memory *memory = NULL;
	int export = -1, dmabuf = -1;
	struct tmesh_error why = {0};
	uint64_t granule = 0;
	int rc = attribute_ask(cuda, device, CU_ATTR_VMM, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
			       &why);

	if (!rc)
		rc = block_granule(cuda, device, &granule, &why);
	if (!rc)
		rc = tmesh_cuda_alloc(cuda, device, granule, TMESH_CUDA_ALONE, &memory, &why);
	set(&caps[0], "vmm", rc, &why, "tried with one granule");
	if (!rc)
		rc = try_export(memory, &export, &why);
	set(&caps[1], "posix-fd", rc, &why, "exported here; not imported by another process");
	rc = memory ? ask_rdma(cuda, device, memory, &why)
		    : tmesh_fail(&why, -EOPNOTSUPP, "needs vmm");
	set(&caps[2], "gpudirect-rdma", rc, &why, "the driver says so of one granule");
	rc = memory ? tmesh_cuda_export_dmabuf(memory, 0, 0, &dmabuf, &why)
		    : tmesh_fail(&why, -EOPNOTSUPP, "needs vmm");
	set(&caps[3], "dma-buf-export", rc, &why, "tried with one granule");
	try_import(cuda, device, TMESH_CUDA_DMABUF_FD, dmabuf, granule, &caps[4], "dma-buf-import");
	try_import(cuda, device, TMESH_CUDA_OPAQUE_FD, export, granule, &caps[5],
		   "opaque-fd-import");
	tmesh_cuda_memory_unref(memory);
}

/* Try memory of others: make its handle, which the process that made it cannot open. */
static int try_ipc(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	const struct cu_driver *driver = &cuda->driver;
	struct cu_ipc_handle handle;
	cu_ptr pointer;
	int rc = cuda_enter(cuda, device, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, driver->mem_alloc(&pointer, 1), "cuMemAlloc", err);
	if (!rc) {
		rc = cuda_check(cuda, driver->ipc_mem_get(&handle, pointer), "cuIpcGetMemHandle",
				err);
		driver->mem_free(pointer);
	}
	cuda_leave(cuda);
	return rc;
}

static void peers(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *cap)
{
	int reached = 0, can;

	for (int i = 0; i < cuda->device_count; i++)
		if (i != device &&
		    cuda->driver.device_can_access_peer(&can, cuda->devices[device].handle,
							cuda->devices[i].handle) == CU_OK)
			reached += can;
	cap->name = "peer-access";
	cap->level = reached ? TMESH_CUDA_WORKS : TMESH_CUDA_NOT_SUPPORTED;
	snprintf(cap->reason, sizeof(cap->reason), "%d of %d other GPUs", reached,
		 cuda->device_count - 1);
	if (cuda->device_count == 1) {
		cap->level = TMESH_CUDA_NOT_TRIED;
		snprintf(cap->reason, sizeof(cap->reason), "there is one GPU");
	}
}

static void caps_find(struct tmesh_cuda *cuda, int device,
		      struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS])
{
	struct tmesh_error why = {0};
	int rc;

	rc = try_register(cuda, device, TMESH_READ | TMESH_WRITE, &why);
	set(&caps[0], "host-register", rc, &why, "tried with a region");
	rc = try_register(cuda, device, TMESH_READ, &why);
	set(&caps[1], "host-register-read-only", rc, &why, "tried with a region");
	try_memory(cuda, device, &caps[2]);
	peers(cuda, device, &caps[8]);
	rc = attribute_ask(cuda, device, CU_ATTR_IPC_EVENT, "IPC_EVENT_SUPPORTED", &why);
	set(&caps[9], "ipc-event", rc, &why, "the driver says so");
	rc = try_ipc(cuda, device, &why);
	set(&caps[10], "ipc-memory", rc, &why, "exported here; not imported by another process");
}

int tmesh_cuda_caps_sized(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *out,
			  size_t count, size_t cap_bytes, struct tmesh_error *err)
{
	size_t both = cap_bytes < sizeof(*out) ? cap_bytes : sizeof(*out);
	struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS] = {0};
	const struct tmesh_cuda_cap none = {.name = "unknown"};
	int rc = cuda_check_device(cuda, device, err);

	if (!rc)
		rc = tmesh_check_element(sizeof(*out), cap_bytes, err);
	if (rc)
		return rc;
	caps_find(cuda, device, caps);
	for (size_t i = 0; i < count; i++) {
		uint8_t *to = (uint8_t *)out + i * cap_bytes;

		memset(to, 0, cap_bytes);
		memcpy(to, i < TMESH_CUDA_CAPS ? &caps[i] : &none, both);
	}
	return 0;
}
