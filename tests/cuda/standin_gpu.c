// SPDX-License-Identifier: MIT
/* The driver's calls that tests/gpu makes itself, so that those tests run on the stand-in as well,
 * and the calls that libtmesh-cuda fills memory with. */
#include "standin_internal.h"

#include <stdlib.h>
#include <string.h>

#define CU_NOT_FOUND 500

typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;

cu_result cuDevicePrimaryCtxReset_v2(cu_device device);
cu_result cuMemcpyDtoD_v2(cu_ptr to, cu_ptr from, size_t bytes);
cu_result cuMemAllocHost_v2(void **addr, size_t bytes);
cu_result cuMemFreeHost(void *addr);
cu_result cuModuleLoadData(cu_module *module, const void *image);
cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name);
cu_result cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
			 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			 unsigned int block_z, unsigned int shared, cu_stream stream, void **params,
			 void **extra);

/* NVML's part. */

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetPersistenceMode(void *device, int *mode);

int nvmlInit_v2(void)
{
	return standin_without("nvml") ? 9 : 0;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	const char *start = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a";

	*device = NULL;
	return strncmp(uuid, start, strlen(start)) ? 6 : 0;
}

int nvmlDeviceGetPersistenceMode(void *device, int *mode)
{
	*mode = !standin_without("persistence");
	return 0;
}

cu_result cuDevicePrimaryCtxReset_v2(cu_device device)
{
	standin_reset(device);
	return CU_OK;
}

struct fill {
	cu_ptr at;
	size_t bytes;
	int value;
};

static void fill(void *data)
{
	struct fill *what = data;

	memset((void *)what->at, what->value, what->bytes);
	free(what);
}

cu_result cuMemsetD8Async(cu_ptr at, unsigned char value, size_t bytes, cu_stream stream)
{
	struct fill *what;
	cu_result rc;

	ENTER("cuMemsetD8Async");
	NEED_CONTEXT();
	if (!standin_may_access(standin_current(), at, bytes, true))
		return CU_INVALID_VALUE;
	rc = standin_usable(stream);
	if (rc)
		return rc;
	what = malloc(sizeof(*what));
	*what = (struct fill){.at = at, .bytes = bytes, .value = value};
	return cuLaunchHostFunc(stream, fill, what);
}

static cu_result copy(cu_ptr to, cu_ptr from, size_t bytes)
{
	char *by = malloc(bytes + 1);
	bool done = standin_access(standin_current(), from, by, bytes, false) &&
		    standin_access(standin_current(), to, by, bytes, true);

	free(by);
	return done ? CU_OK : CU_INVALID_VALUE;
}

cu_result cuMemcpyDtoD_v2(cu_ptr to, cu_ptr from, size_t bytes)
{
	NEED_CONTEXT();
	return copy(to, from, bytes);
}

cu_result cuMemAllocHost_v2(void **addr, size_t bytes)
{
	NEED_CONTEXT();
	*addr = malloc(bytes);
	return *addr ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result cuMemFreeHost(void *addr)
{
	free(addr);
	return CU_OK;
}

/* There is one kernel: it copies. */
cu_result cuModuleLoadData(cu_module *module, const void *image)
{
	NEED_CONTEXT();
	*module = (cu_module)image;
	return CU_OK;
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
	char entry[64] = ".entry ";

	*function = (cu_function)module;
	return strstr((const char *)module, strncat(entry, name, 32)) ? CU_OK : CU_NOT_FOUND;
}

cu_result cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
			 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			 unsigned int block_z, unsigned int shared, cu_stream stream, void **params,
			 void **extra)
{
	NEED_CONTEXT();
	return copy(*(cu_ptr *)params[0], *(cu_ptr *)params[1], *(uint64_t *)params[2] * 16);
}
