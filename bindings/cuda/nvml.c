// SPDX-License-Identifier: MIT
/* Questions about a device for NVML, the library of nvidia-smi. Each question loads the library
 * anew. */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_uuid)(const char *uuid, void **device);
	int (*persistence)(void *device, int *mode);
};

static bool nvml_load(struct nvml *nvml, const char *name)
{
	nvml->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library)
		return false;
	*(void **)&nvml->init = dlsym(nvml->library, "nvmlInit_v2");
	*(void **)&nvml->shutdown = dlsym(nvml->library, "nvmlShutdown");
	*(void **)&nvml->by_uuid = dlsym(nvml->library, "nvmlDeviceGetHandleByUUID");
	*(void **)&nvml->persistence = dlsym(nvml->library, "nvmlDeviceGetPersistenceMode");
	if (nvml->init && nvml->shutdown && nvml->by_uuid && nvml->persistence)
		return true;
	dlclose(nvml->library);
	return false;
}

static void uuid_text(const struct cu_uuid *uuid, char text[48])
{
	const unsigned char *b = uuid->bytes;

	snprintf(text, 48,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

bool nvml_persistence_is_off(const struct tmesh_cuda *cuda, int device)
{
	struct nvml nvml;
	char uuid[48];
	void *handle;
	int mode = 1;

	if (!nvml_load(&nvml, cuda->nvml))
		return false;
	uuid_text(&cuda->devices[device].uuid, uuid);
	if (!nvml.init()) {
		/* Ignore a device that NVML does not know, such as an instance of a GPU. */
		if (nvml.by_uuid(uuid, &handle) || nvml.persistence(handle, &mode))
			mode = 1;
		nvml.shutdown();
	}
	dlclose(nvml.library);
	return mode == 0;
}
