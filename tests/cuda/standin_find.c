// SPDX-License-Identifier: MIT
/* How a CUDA runtime finds the stand-in driver's functions. Called by tests alone. */
#include <stdio.h>
#include <string.h>

#include "standin_internal.h"

#define NOT_FOUND 500
#define PER_THREAD 2 /* flag: functions for the per-thread default stream */

cu_result cuCtxGetDevice(cu_device *device)
{
	NEED_CONTEXT();
	*device = standin_current();
	return CU_OK;
}

cu_result cuMemFreeAsync(cu_ptr ptr, cu_stream stream)
{
	cu_result rc = cuStreamSynchronize(stream);

	return rc ? rc : cuMemFree_v2(ptr);
}

cu_result cuMemFreeAsync_ptsz(cu_ptr ptr, cu_stream stream)
{
	return cuMemFreeAsync(ptr, stream);
}

static const struct {
	const char *symbol;
	void *function;
} functions[] = {
#define ROW(member, name, arguments) {#name, (void *)name},
	CU_FUNCTIONS(ROW) CU_FUNCTIONS_NEWER(ROW)
#undef ROW
		{"cuCtxGetDevice", (void *)cuCtxGetDevice},
	{"cuMemFreeAsync", (void *)cuMemFreeAsync},
	{"cuMemFreeAsync_ptsz", (void *)cuMemFreeAsync_ptsz},
	{"cuGetProcAddress", (void *)cuGetProcAddress},
	{"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
};

static void *find(const char *name, const char *ending)
{
	char symbol[64];

	snprintf(symbol, sizeof(symbol), "%s%s", name, ending);
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (!strcmp(functions[i].symbol, symbol))
			return functions[i].function;
	return NULL;
}

/* The newest function of that name. */
cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
			      unsigned long long flags, int *status)
{
	*function = flags & PER_THREAD ? find(name, "_ptsz") : NULL;
	if (!*function && (strcmp(name, "cuGetProcAddress") || version >= 12000))
		*function = find(name, "_v2");
	if (!*function)
		*function = find(name, "");
	if (status)
		*status = !*function;
	return *function ? CU_OK : NOT_FOUND;
}

cu_result cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
