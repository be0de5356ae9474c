// SPDX-License-Identifier: MIT
/* The processors and memory of each NUMA node, from the kernel's files. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devices_internal.h"

#define NODES_MAX 1024

/* Read the first bytes of a file; false: it cannot be read. */
static bool read_text(const char *root, const char *name, char *text, size_t size)
{
	char path[4096];
	size_t got;
	FILE *file;

	if ((size_t)snprintf(path, sizeof(path), "%s%s", root, name) >= sizeof(path))
		return false;
	file = fopen(path, "re");
	if (!file)
		return false;
	got = fread(text, 1, size - 1, file);
	fclose(file);
	text[got] = '\0';
	return true;
}

/* Return the number of kB after @name and a colon, as bytes; 0: there is none. */
static uint64_t kilobytes(const char *text, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
		uint64_t value;

		if (at > text && at[-1] != ' ' && at[-1] != '\n')
			continue;
		if (at[length] == ':' && sscanf(at + length + 1, "%" SCNu64, &value) == 1 &&
		    !__builtin_mul_overflow(value, 1024, &value))
			return value;
	}
	return 0;
}

/* Call @each for every number below @most that a list such as "0-3,8" names. Return their count; 0:
 * the list is malformed. */
static uint32_t list(const char *text, uint32_t most, void (*each)(uint32_t number, void *data),
		     void *data)
{
	uint32_t count = 0;

	while (*text && *text != '\n') {
		unsigned int first, last;
		int used = 0;

		if (sscanf(text, "%u%n", &first, &used) != 1)
			return 0;
		text += used;
		last = first;
		if (*text == '-') {
			if (sscanf(text, "-%u%n", &last, &used) != 1)
				return 0;
			text += used;
		}
		if (last < first || last >= most)
			return 0;
		count += last - first + 1;
		for (unsigned int n = first; each && n <= last; n++)
			each(n, data);
		if (*text == ',')
			text++;
	}
	return count;
}

struct nodes {
	uint32_t number[DEVICES_MAX];
	size_t count;
};

static void add_node(uint32_t number, void *data)
{
	struct nodes *nodes = data;

	if (nodes->count < DEVICES_MAX)
		nodes->number[nodes->count++] = number;
}

static void model_name(const char *root, char *name, size_t size)
{
	static const char *const words[] = {"model name", "Model", "cpu model", "uarch"};
	char text[4096];

	snprintf(name, size, "processors");
	if (!read_text(root, "/proc/cpuinfo", text, sizeof(text)))
		return;
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		const char *at = strstr(text, words[i]);

		at = at ? strchr(at, ':') : NULL;
		if (!at)
			continue;
		at += strspn(at, ": \t");
		snprintf(name, size, "%.*s", (int)strcspn(at, "\n"), at);
		return;
	}
}

static uint32_t processors_of(const char *root, const char *file)
{
	char text[4096];

	return read_text(root, file, text, sizeof(text)) ? list(text, 1 << 20, NULL, NULL) : 0;
}

/* Describe the whole machine as node 0. This also works for a kernel without NUMA. */
static bool whole(const char *root, struct tmesh_devices_device *device)
{
	char text[8192];

	if (!read_text(root, "/proc/meminfo", text, sizeof(text)))
		return false;
	device->memory = kilobytes(text, "MemTotal");
	device->memory_free = kilobytes(text, "MemAvailable");
	device->processors = processors_of(root, "/sys/devices/system/cpu/online");
	/* In a container without sysfs: the C library has other sources. */
	if (!device->processors && !*root)
		device->processors = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	return device->memory;
}

static bool of_node(const char *root, uint32_t node, struct tmesh_devices_device *device)
{
	char text[8192], name[96];

	snprintf(name, sizeof(name), "/sys/devices/system/node/node%u/meminfo", node);
	if (!read_text(root, name, text, sizeof(text)))
		return false;
	device->memory = kilobytes(text, "MemTotal");
	device->memory_free = kilobytes(text, "MemFree") + kilobytes(text, "Active(file)") +
			      kilobytes(text, "Inactive(file)");
	snprintf(name, sizeof(name), "/sys/devices/system/node/node%u/cpulist", node);
	device->processors = processors_of(root, name);
	return device->memory;
}

int devices_find_host(struct tmesh_devices *devices, const char *root, struct tmesh_error *err)
{
	struct nodes nodes = {0};
	char text[4096], name[sizeof(devices->devices->name)];

	model_name(root, name, sizeof(name));
	if (!read_text(root, "/sys/devices/system/node/online", text, sizeof(text)) ||
	    !list(text, NODES_MAX, add_node, &nodes))
		nodes = (struct nodes){.count = 1};
	for (size_t i = 0; i < nodes.count; i++) {
		struct tmesh_devices_device *device = &devices->devices[devices->device_count];

		*device = (struct tmesh_devices_device){
			.device_type = TMESH_DEVICE_CPU,
			.device_id = (int32_t)nodes.number[i],
			.node = (int32_t)nodes.number[i],
		};
		/* A node without processors is only memory: no engine runs there. */
		if (nodes.count == 1
			    ? !whole(root, device)
			    : !of_node(root, nodes.number[i], device) || !device->processors)
			continue;
		snprintf(device->id, sizeof(device->id), "cpu:%u", nodes.number[i] % 100000);
		strcpy(device->name, name);
		devices->device_count++;
	}
	if (!devices->device_count)
		return tmesh_fail(
			err, -EIO,
			"%s/proc/meminfo and %s/sys/devices/system/node tell of no memory", root,
			root);
	return 0;
}
