/* SPDX-License-Identifier: MIT */
/* Declarations that the files of devices share. */
#ifndef TMESH_ENGINE_DEVICES_INTERNAL_H
#define TMESH_ENGINE_DEVICES_INTERNAL_H

#include <jansson.h>

#include "engine_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/placement.h>
#pragma GCC visibility pop

#define DEVICES_MAX 64

struct tmesh_devices {
	atomic_uint refs;
	struct tmesh_devices_device devices[DEVICES_MAX];
	size_t device_count;
	struct tmesh_devices_engine engines[TMESH_DEVICES_MAX_ENGINES];
	size_t engine_count;
	char *root; /* where the machine's files are; usually "" */
};

/* devices_host.c: find the processors from the files below @root. */
int devices_find_host(struct tmesh_devices *devices, const char *root, struct tmesh_error *err);
/* devices_probe.c: find the operators that an open engine runs. */
void devices_probe(const struct tmesh_engine_plugin *plugin, void *engine,
		   struct tmesh_devices_engine *out);

#endif /* TMESH_ENGINE_DEVICES_INTERNAL_H */
