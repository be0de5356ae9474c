// SPDX-License-Identifier: MIT
/* Devices of machines that are folders: NUMA nodes, what is malformed; engines that are fakes. */
#include "devices_internal.h"
#include "unit.h"

static char root[64];

static void put(const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		mkdir(path, 0700);
	}
	file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int make_root(void **state)
{
	strcpy(root, "/tmp/tmesh-devices-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command);
}

static int find(struct tmesh_devices **out, struct tmesh_error *err)
{
	struct tmesh_devices_opts opts = {.size = sizeof(opts), .root = root};

	return tmesh_devices_find(&opts, out, err);
}

/* Three nodes, of which one has no processors; numbers need not follow each other. */
UNIT_ADD(test_nodes, make_root, remove_root)
{
	struct tmesh_devices_device device = {.size = sizeof(device)};
	struct tmesh_devices *devices;
	char *json;

	put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made \"up\" 3000\n");
	put("/sys/devices/system/node/online", "0,4-5\n");
	put("/sys/devices/system/node/node0/meminfo",
	    "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:        100 kB\n"
	    "Node 0 Inactive:        999 kB\nNode 0 Active(file):     20 kB\n"
	    "Node 0 Inactive(file):    3 kB\n");
	put("/sys/devices/system/node/node0/cpulist", "0-3,8\n");
	put("/sys/devices/system/node/node4/meminfo", "Node 4 MemTotal: 2000 kB\n");
	put("/sys/devices/system/node/node4/cpulist", "4-5\n");
	put("/sys/devices/system/node/node5/meminfo", "Node 5 MemTotal: 9000 kB\n");
	put("/sys/devices/system/node/node5/cpulist", "\n");
	assert_ok(find(&devices, err));
	assert_int_equal(tmesh_devices_count(devices), 2);
	assert_ok(tmesh_devices_device(devices, 0, &device, err));
	assert_string_equal(device.id, "cpu:0");
	assert_string_equal(device.name, "Made \"up\" 3000");
	assert_int_equal(device.processors, 5);
	assert_int_equal(device.memory, 1000 << 10);
	assert_int_equal(device.memory_free, 123 << 10);
	assert_ok(tmesh_devices_device(devices, 1, &device, err));
	assert_string_equal(device.id, "cpu:4");
	assert_int_equal(device.node, 4);
	assert_int_equal(device.memory_free, 0);
	assert_refused(tmesh_devices_device(devices, 2, &device, err), -EINVAL, "no device 2 of 2");
	json = tmesh_devices_to_json(devices);
	assert_non_null(strstr(json, "Made \\\"up\\\" 3000"));
	free(json);
	assert_ptr_equal(tmesh_devices_ref(devices), devices);
	tmesh_devices_unref(devices);
	tmesh_devices_unref(devices);
	tmesh_devices_unref(NULL);
}

/* A kernel without NUMA; a list of nodes that is none counts as no list. */
UNIT_ADD(test_one_node, make_root, remove_root)
{
	static const char *const lists[] = {"", "0-", "5-2", "x", "0-99999999999", "4294967295"};
	struct tmesh_devices_device device = {.size = sizeof(device)};
	struct tmesh_devices *devices;

	put("/proc/meminfo", "MemTotal:  4096 kB\nMemFree: 1 kB\nMemAvailable:  2048 kB\n");
	put("/sys/devices/system/cpu/online", "0-1\n");
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		put("/sys/devices/system/node/online", lists[i]);
		assert_ok(find(&devices, err));
		assert_int_equal(tmesh_devices_count(devices), 1);
		assert_ok(tmesh_devices_device(devices, 0, &device, err));
		assert_int_equal(device.memory, 4 << 20);
		assert_int_equal(device.memory_free, 2 << 20);
		assert_int_equal(device.processors, 2);
		tmesh_devices_unref(devices);
	}
}

/* A device that no engine runs on, and these engines. */
/* A list that another process has made: it reads back the same, or is refused. */
/* A device has the names of the engines that were never seen on its kind. */
UNIT(test_unseen)
{
	static struct tmesh_devices devices = {
		.device_count = 2,
		.engine_count = 1,
		.engines[0] = {.name = "e", .never_seen = 1 << TMESH_DEVICE_CUDA},
		.devices[0] = {.id = "cpu:0", .device_type = TMESH_DEVICE_CPU},
		.devices[1] = {.id = "cuda:0", .device_type = TMESH_DEVICE_CUDA},
	};
	char *json = tmesh_devices_to_json(&devices);
	char *unseen = strstr(json, "\"e\"\n   ],\n   \"reason\"");

	assert_true(unseen && unseen > strstr(json, "cuda:0"));
	free(json);
}

UNIT_ADD(test_refused, make_root, remove_root)
{
	struct tmesh_devices_opts opts = {.size = sizeof(opts), .library_count = 1};
	struct tmesh_devices_library library = {.engine = "fake"};
	struct tmesh_devices *devices;

	assert_refused(find(&devices, err), -EIO, "tell of no memory");
	put("/proc/meminfo", "MemTotal:  18446744073709551615 kB\n");
	assert_refused(find(&devices, err), -EIO, "tell of no memory");
	assert_refused(tmesh_devices_find(&opts, &devices, err), -EINVAL, "no list of them");
	opts.libraries = &library;
	assert_refused(tmesh_devices_find(&opts, &devices, err), -EINVAL,
		       "library 0 has no engine");
}

/* The fake runs here; the old one is of another version; ours are not in that folder. */
UNIT_ADD(test_engines, make_root, remove_root)
{
	struct tmesh_devices_device device = {.size = sizeof(device)};
	struct tmesh_devices_engine engine = {.size = sizeof(engine)};
	struct tmesh_devices *devices;
	char *json;
	int seen = 0;

	put("/proc/meminfo", "MemTotal:  4096 kB\n");
	assert_ok(find(&devices, err));
	assert_ok(tmesh_devices_device(devices, 0, &device, err));
	for (size_t i = 0; i < tmesh_devices_engines(devices); i++) {
		assert_ok(tmesh_devices_engine(devices, i, &engine, err));
		if (!strcmp(engine.name, "fake")) {
			assert_string_equal(engine.reason, "");
			assert_string_not_equal(engine.version, "");
			assert_string_equal(engine.reads, "");
			assert_int_equal(engine.never_seen, 0);
		} else if (!strcmp(engine.name, "old")) {
			assert_non_null(strstr(engine.reason, "not an engine of this version"));
		} else {
			assert_non_null(strstr(engine.reason, "TMESH_ENGINE_PATH names another"));
			assert_string_equal(engine.version, "");
			assert_int_equal(engine.never_seen, 1 << TMESH_DEVICE_CUDA);
		}
		assert_int_equal(device.engines >> i & 1, !strcmp(engine.name, "fake"));
		seen++;
	}
	assert_int_equal(seen, 4);
	assert_string_equal(device.reason, "");
	assert_refused(tmesh_devices_engine(devices, 4, &engine, err), -EINVAL, "no engine 4 of 4");
	json = tmesh_devices_to_json(devices);
	assert_non_null(strstr(json, "\"fake\""));
	free(json);
	tmesh_devices_unref(devices);
}

UNIT_MAIN("tests", NULL, NULL)
