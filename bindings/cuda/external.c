// SPDX-License-Identifier: MIT
/* Device memory out as a dma-buf, and in from others' descriptors. */
#include "internal.h"

#include <fcntl.h>

/* Export the range, by PCIe if possible: some platforms map otherwise, and older drivers lack the
 * flag. */
static cu_result range_fd(struct tmesh_cuda *cuda, cu_ptr at, uint64_t bytes, int *fd)
{
	cu_result rc =
		cuda->driver.range_handle(fd, at, bytes, CU_RANGE_DMA_BUF_FD, CU_RANGE_FLAG_PCIE);

	if (rc == CU_NOT_SUPPORTED || rc == CU_INVALID_VALUE)
		rc = cuda->driver.range_handle(fd, at, bytes, CU_RANGE_DMA_BUF_FD, 0);
	return rc;
}

int tmesh_cuda_export_dmabuf(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
			     int *fd, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	uint64_t page = tmesh_page_bytes();
	int can = 0;
	int rc;

	/* A dma-buf does not report when its last user closes it. Memory that was exported as one
	 * is therefore never used for anything else. */
	if (memory->kind != TMESH_CUDA_OWN || memory->whole)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "dma-buf: of memory that was allocated here on a GPU only");
	if (!memory->chunk->block->alone)
		return tmesh_fail(err, -EINVAL, "dma-buf: of memory allocated with ALONE only");
	if (offset > memory->bytes || bytes > memory->bytes - offset)
		return tmesh_fail(err, -EINVAL,
				  "dma-buf: outside the memory's %llu bytes "
				  "(CUDA_ERROR_INVALID_VALUE)",
				  (unsigned long long)memory->bytes);
	bytes = bytes ? bytes : memory->bytes - offset;
	if ((memory->pointer + offset) % page || !bytes || bytes % page)
		return tmesh_fail(err, -EINVAL,
				  "dma-buf: not whole pages (CUDA_ERROR_INVALID_VALUE)");
	rc = CUDA_HAS(cuda, range_handle, "cuMemGetHandleForAddressRange", err);
	if (!rc)
		rc = cuda_check(
			cuda,
			cuda->driver.device_attribute(&can, CU_ATTR_DMA_BUF,
						      cuda->devices[memory->resident].handle),
			"cuDeviceGetAttribute", err);
	if (!rc && !can)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"dma-buf: GPU %d makes none (DMA_BUF_SUPPORTED is 0: "
				"CUDA_ERROR_NOT_SUPPORTED)",
				memory->resident);
	if (!rc)
		rc = cuda_enter(cuda, memory->resident, err);
	if (rc)
		return rc;
	rc = cuda_check(cuda, range_fd(cuda, memory->pointer + offset, bytes, fd),
			"cuMemGetHandleForAddressRange", err);
	cuda_leave(cuda);
	if (rc)
		return rc;
	rc = cuda_close_on_exec(*fd, err);
	if (rc)
		close(*fd);
	return rc;
}

/* Import a descriptor. The driver owns it on success, so it gets a duplicate. */
static int import(struct tmesh_cuda_memory *memory, int type, int fd, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct cu_external_desc desc = {.type = type, .size = memory->bytes};
	struct cu_external_range range = {.size = memory->bytes};
	int rc;

	desc.handle.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (desc.handle.fd < 0)
		return tmesh_fail(err, -errno,
				  "import: %d is not an open descriptor (CUDA_ERROR_INVALID_VALUE)",
				  fd);
	rc = cuda_check(cuda, cuda->driver.external_import(&memory->external, &desc),
			"cuImportExternalMemory", err);
	if (rc || type == CU_EXTERNAL_DMABUF_FD)
		close(desc.handle.fd);
	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.external_map(&memory->pointer, memory->external, &range),
			"cuExternalMemoryGetMappedBuffer", err);
	if (rc)
		cuda->driver.external_destroy(memory->external);
	return rc;
}

int tmesh_cuda_import_fd(struct tmesh_cuda *cuda, int device, enum tmesh_cuda_fd type, int fd,
			 uint64_t bytes, struct tmesh_cuda_memory **out, struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	int rc;

	if ((type != TMESH_CUDA_OPAQUE_FD && type != TMESH_CUDA_DMABUF_FD) || !bytes)
		return tmesh_fail(err, -EINVAL,
				  "import: say what the descriptor is, and its bytes");
	rc = CUDA_HAS(cuda, external_import, "cuImportExternalMemory", err);
	if (!rc)
		rc = cuda_enter(cuda, device, err);
	if (rc)
		return rc;
	memory = memory_new(cuda, TMESH_CUDA_EXTERNAL, device, err);
	if (memory) {
		memory->bytes = bytes;
		rc = import(memory,
			    type == TMESH_CUDA_OPAQUE_FD ? CU_EXTERNAL_OPAQUE_FD
							 : CU_EXTERNAL_DMABUF_FD,
			    fd, err);
	} else {
		rc = -ENOMEM;
	}
	cuda_leave(cuda);
	if (rc) {
		free(memory);
		return rc;
	}
	memory_publish(memory, out);
	return 0;
}
