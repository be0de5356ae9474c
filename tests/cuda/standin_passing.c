// SPDX-License-Identifier: MIT
/* Memory of the stand-in driver from process to process: IPC, dma-bufs, external memory. */
#include "standin_memory.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

void standin_ipc_fill(struct cu_ipc_handle *handle, uint32_t magic, int fd, int device,
		      uint64_t bytes)
{
	struct standin_ipc ipc = {
		.magic = magic, .pid = getpid(), .fd = fd, .device = device, .bytes = bytes};
	struct stat st;

	fstat(fd, &st);
	ipc.ino = st.st_ino;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
}

int standin_ipc_open(const struct standin_ipc *ipc, uint32_t magic)
{
	char path[64];
	struct stat st;
	int fd;

	if (ipc->magic != magic)
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc->pid, ipc->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) || st.st_ino != ipc->ino)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

cu_result cuIpcGetMemHandle(struct cu_ipc_handle *handle, cu_ptr ptr)
{
	struct range *range;

	ENTER("cuIpcGetMemHandle");
	if (standin_without("ipc-memory"))
		return CU_NOT_SUPPORTED;
	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, ptr, 1);
	if (range && range->kind == WHOLE)
		standin_ipc_fill(handle, STANDIN_IPC_MEM, range->of->fd, range->of->device,
				 range->bytes);
	pthread_mutex_unlock(&standin_lock);
	return range && range->kind == WHOLE ? CU_OK : CU_INVALID_VALUE;
}

cu_result cuIpcOpenMemHandle_v2(cu_ptr *ptr, struct cu_ipc_handle handle, unsigned int flags)
{
	struct physical *memory;
	struct standin_ipc ipc;
	cu_result rc;
	int fd;

	UNSAFE("cuIpcOpenMemHandle_v2");
	NEED_CONTEXT();
	if (flags != CU_IPC_LAZY_ENABLE_PEER_ACCESS)
		return CU_INVALID_VALUE;
	memcpy(&ipc, &handle, sizeof(ipc));
	if (ipc.pid == getpid())
		return CU_INVALID_CONTEXT;
	fd = standin_ipc_open(&ipc, STANDIN_IPC_MEM);
	if (fd < 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	rc = standin_adopt(fd, &memory);
	if (!rc && memory->device != standin_current() && standin_without("peers")) {
		standin_physical_drop(memory);
		rc = CU_PEER_ACCESS_UNSUPPORTED;
	}
	if (!rc)
		rc = standin_whole(OPENED, memory, standin_current(), ptr);
	pthread_mutex_unlock(&standin_lock);
	close(fd);
	return rc;
}

cu_result cuIpcCloseMemHandle(cu_ptr ptr)
{
	UNSAFE("cuIpcCloseMemHandle");
	NEED_CONTEXT();
	return standin_end_whole(OPENED, ptr);
}

/* Out and in by descriptors. */

static int udmabuf(int fd, size_t offset, size_t bytes)
{
	struct udmabuf_create create = {.memfd = (uint32_t)fd, .offset = offset, .size = bytes};
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int made = device < 0 ? -1 : ioctl(device, UDMABUF_CREATE, &create);

	if (device >= 0)
		close(device);
	return made;
}

/* A real dma-buf where the kernel makes them of memfds, else the memfd itself. */
cu_result cuMemGetHandleForAddressRange(void *handle, cu_ptr ptr, size_t bytes, int type,
					unsigned long long flags)
{
	cu_result rc = CU_INVALID_VALUE;
	struct range *range;
	int fd = -1;

	ENTER("cuMemGetHandleForAddressRange");
	if (standin_without("dma-buf") || ((flags & CU_RANGE_FLAG_PCIE) && standin_without("pcie")))
		return CU_NOT_SUPPORTED;
	if (type != CU_RANGE_DMA_BUF_FD || ptr % 4096 || !bytes || bytes % 4096)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	range = standin_range_with(standin_is_memory, ptr, bytes);
	if (range) {
		/* The driver makes no promise of FD_CLOEXEC. */
		fd = udmabuf(range->of->fd, ptr - (uintptr_t)range->at, bytes);
		if (fd < 0)
			fd = dup(range->of->fd);
		rc = fd < 0 ? CU_OPERATING_SYSTEM : CU_OK;
		*(int *)handle = fd;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

/* What cuMemGetHandleForAddressRange() gives. */
static cu_result adopt_dmabuf(int fd, struct physical **out)
{
	char path[32], target[64] = "";
	struct standin_file file;

	if (standin_file_look(fd, &file))
		return standin_adopt(fd, out);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, target, sizeof(target) - 1) < 0 || strncmp(target, "/dmabuf:", 8))
		return CU_INVALID_VALUE;
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	*out = fd < 0 ? NULL
		      : standin_physical_new(fd, standin_current(), (size_t)lseek(fd, 0, SEEK_END));
	return *out ? CU_OK : CU_OUT_OF_MEMORY;
}

/* OPAQUE_FD takes the descriptor over, when it succeeds. */
cu_result cuImportExternalMemory(cu_external *external, const struct cu_external_desc *desc)
{
	struct physical *memory;
	cu_result rc;

	UNSAFE("cuImportExternalMemory");
	NEED_CONTEXT();
	if (desc->type != CU_EXTERNAL_OPAQUE_FD &&
	    (desc->type != CU_EXTERNAL_DMABUF_FD || !standin_with("dma-buf-import")))
		return CU_NOT_SUPPORTED;
	pthread_mutex_lock(&standin_lock);
	rc = desc->type == CU_EXTERNAL_OPAQUE_FD ? standin_adopt(desc->handle.fd, &memory)
						 : adopt_dmabuf(desc->handle.fd, &memory);
	if (!rc && desc->size > memory->bytes) {
		standin_physical_drop(memory);
		rc = CU_INVALID_VALUE;
	}
	if (!rc) {
		if (desc->type == CU_EXTERNAL_OPAQUE_FD)
			close(desc->handle.fd);
		memory->handles = 1;
		memory->external_of = standin_current() + 1;
		*external = (cu_external)memory;
	}
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuExternalMemoryGetMappedBuffer(cu_ptr *ptr, cu_external external,
					  const struct cu_external_range *range)
{
	struct physical *memory = (struct physical *)external;
	cu_result rc = CU_INVALID_VALUE;

	UNSAFE("cuExternalMemoryGetMappedBuffer");
	NEED_CONTEXT();
	pthread_mutex_lock(&standin_lock);
	if (range->offset == 0 && range->size <= memory->bytes)
		rc = standin_whole(EXTERNAL, memory, standin_current(), ptr);
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

/* Buffers that were mapped of it stay until cuMemFree(). */
cu_result cuDestroyExternalMemory(cu_external external)
{
	struct physical *memory = (struct physical *)external;

	UNSAFE("cuDestroyExternalMemory");
	pthread_mutex_lock(&standin_lock);
	if (!memory->handles)
		abort();
	memory->handles--;
	standin_physical_drop(memory);
	pthread_mutex_unlock(&standin_lock);
	return CU_OK;
}
