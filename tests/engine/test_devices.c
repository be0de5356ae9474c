// SPDX-License-Identifier: MIT
/* Devices of machines that are folders: NUMA nodes, what is malformed; engines that are fakes. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <tmesh/devices.h>

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
static void test_nodes(void **state)
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

/* What a kernel without NUMA says; a list of nodes that is none is as if there were none. */
static void test_one_node(void **state)
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
#define BARE(engines)                                                                         \
	"{\"devices\": [{\"id\": \"cpu:0\", \"kind\": \"cpu\", \"name\": null, \"node\": 0, " \
	"\"processors\": 1, \"memory\": null, \"memory_free\": null, \"engines\": [], "       \
	"\"reason\": null}], \"engines\": " engines "}"

/* What another process has found: the same list, or refused. */
static void test_parsed(void **state)
{
	static const struct {
		const char *from, *to;
	} wrong[] = {
		{"\"devices\"", "\"gadgets\""},
		{"\"engines\": [\n  {", "\"engines\": [\n  1, {"},
		{"\"cpu:4\"", "\"cpu:-4\""},
		{"\"cpu:4\"", "\"cpu:4x\""},
		{"\"cpu:4\"", "\"cpu:99999999999\""},
		{"\"cpu:4\"", "\"cuda:4\""},
		{"\"cpu:4\"", "\"gpu:4\""},
		{"\"name\": \"Made up 3000\"", "\"name\": 3000"},
		{"\"kind\": \"cpu\"", "\"kind\": \"tpu\""},
		{"\"node\": 4", "\"node\": -4"},
		{"\"node\": 4", "\"node\": 4294967296"},
		{"\"processors\": 5", "\"processors\": -5"},
		{"\"memory\": 1024000", "\"memory\": \"much\""},
		{"\"memory\": 1024000", "\"memory\": -1"},
		/* No device runs it, so nothing else is wrong. */
		{"\"name\": \"old\"", "\"name\": \"\""},
		{"\"name\": \"old\"",
		 "\"name\": \"a name of an engine that is longer than any of them\""},
		{"\"version\": ", "\"version\": 1, \"was\": "},
		{"\"library\": ", "\"library\": 1, \"was\": "},
		{"\"reads\": ", "\"reads\": 1, \"was\": "},
		{"{},\n   \"never_seen\": [],\n   \"reason\": ",
		 "{},\n   \"never_seen\": [],\n   \"reason\": 1, \"was\": "},
		{"\"reason\": ", "\"reason\": 1, \"was\": "},
		{"\"memory_free\": ", "\"memory_free\": -1, \"was\": "},
		{"\"node\": 4", "\"node\": \"4\""},
		{"\"node\": 4", "\"node\": 4, \"node\": 4"},
		{"\"engines\": ", "\"engines\": {}, \"was\": "},
		{"\"name\": \"fake\"", "\"name\": \"other\""},
		{"\"cuda\"", "\"tpu\""},
		{"\"dtypes\": []", "\"dtypes\": [\"float1\"]"},
		{"\"dtypes\": []", "\"dtypes\": 1"},
		{"\"operators\": {}", "\"operators\": {\"add\": [1]}"},
		{"\"operators\": {}", "\"operators\": []"},
		{"{},\n   \"never_seen\": []", "{},\n   \"never_seen\": 1"},
	};
	struct tmesh_devices *devices, *again;
	char *json, *same, *other;

	put("/proc/meminfo", "MemTotal:  4096 kB\n");
	put("/proc/cpuinfo", "model name\t: Made up 3000\n");
	put("/sys/devices/system/node/online", "0,4\n");
	put("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1000 kB\n");
	put("/sys/devices/system/node/node0/cpulist", "0-3,8\n");
	put("/sys/devices/system/node/node4/meminfo", "Node 4 MemTotal: 2000 kB\n");
	put("/sys/devices/system/node/node4/cpulist", "4-5\n");
	assert_ok(find(&devices, err));
	json = tmesh_devices_to_json(devices);
	assert_ok(tmesh_devices_parse(json, strlen(json), &again, err));
	same = tmesh_devices_to_json(again);
	assert_string_equal(same, json);
	free(same);
	tmesh_devices_unref(again);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		const char *at = strstr(json, wrong[i].from);

		if (!at)
			fail_msg("%s is not in %s", wrong[i].from, json);
		other = malloc(strlen(json) + strlen(wrong[i].to) + 1);
		sprintf(other, "%.*s%s%s", (int)(at - json), json, wrong[i].to,
			at + strlen(wrong[i].from));
		if (!tmesh_devices_parse(other, strlen(other), &again, NULL))
			fail_msg("taken: %s", other);
		assert_refused(tmesh_devices_parse(other, strlen(other), &again, err), -EPROTO,
			       "list");
		free(other);
	}
	assert_ok(tmesh_devices_parse(BARE("[]"), strlen(BARE("[]")), &again, err));
	tmesh_devices_unref(again);
	assert_refused(tmesh_devices_parse(BARE("{}"), strlen(BARE("{}")), &again, err), -EPROTO,
		       "list");
	for (size_t bytes = 0; bytes < strlen(json); bytes++)
		assert_int_equal(tmesh_devices_parse(json, bytes, &again, NULL), -EPROTO);
	free(json);
	tmesh_devices_unref(devices);
}

/* A list of so many: parsed, and what became of it. */
static int many(size_t device_count, size_t engine_count, struct tmesh_devices **out,
		struct tmesh_error *err)
{
	char *text = malloc(65536);
	size_t bytes = (size_t)sprintf(text, "{\"devices\": [");
	int rc;

	for (size_t i = 0; i < device_count; i++)
		bytes += (size_t)sprintf(
			text + bytes,
			"%s{\"id\": \"cpu:%zu\", \"kind\": \"cpu\", \"name\": null, \"node\": 0, "
			"\"processors\": 1, \"memory\": null, \"memory_free\": null, "
			"\"engines\": [], \"reason\": null}",
			i ? ", " : "", i);
	bytes += (size_t)sprintf(text + bytes, "], \"engines\": [");
	for (size_t i = 0; i < engine_count; i++)
		bytes += (size_t)sprintf(
			text + bytes,
			"%s{\"name\": \"e%zu\", \"version\": null, \"library\": null, "
			"\"reads\": null, \"dtypes\": [], \"operators\": {\"no such one\": "
			"[\"float32\"]}, \"never_seen\": [], \"reason\": null}",
			i ? ", " : "", i);
	bytes += (size_t)sprintf(text + bytes, "]}");
	rc = tmesh_devices_parse(text, bytes, out, err);
	free(text);
	return rc;
}

/* No more than there is room for; operators that this library has not are passed over. */
static void test_most(void **state)
{
	struct tmesh_devices_engine engine = {.size = sizeof(engine)};
	struct tmesh_devices *devices;

	assert_ok(many(64, TMESH_DEVICES_MAX_ENGINES, &devices, err));
	assert_ok(tmesh_devices_engine(devices, 15, &engine, err));
	for (size_t op = 0; op < sizeof(engine.operators) / sizeof(*engine.operators); op++)
		assert_int_equal(engine.operators[op], 0);
	tmesh_devices_unref(devices);
	assert_refused(many(65, 1, &devices, err), -EPROTO, "1 to 64 devices");
	assert_refused(many(1, TMESH_DEVICES_MAX_ENGINES + 1, &devices, err), -EPROTO,
		       "16 engines");
	assert_refused(many(0, 1, &devices, err), -EPROTO, "1 to 64 devices");
}

/* A device has the names of the engines that nobody has seen on its kind. */
static void test_unseen(void **state)
{
	static const char *const kinds[] = {"cpu", "cuda"};
	char text[1024], *json;
	struct tmesh_devices *devices;

	for (int i = 0; i < 2; i++) {
		int bytes = snprintf(
			text, sizeof(text),
			"{\"devices\": [{\"id\": \"%s:0\", \"kind\": \"%s\", \"name\": null, "
			"\"node\": 0, \"processors\": 1, \"memory\": null, "
			"\"memory_free\": null, \"engines\": [], \"reason\": null}], "
			"\"engines\": [{\"name\": \"e\", \"version\": null, \"library\": null, "
			"\"reads\": null, \"dtypes\": [], \"operators\": {}, "
			"\"never_seen\": [\"cuda\"], \"reason\": null}]}",
			kinds[i], kinds[i]);

		assert_ok(tmesh_devices_parse(text, (size_t)bytes, &devices, err));
		json = tmesh_devices_to_json(devices);
		assert_int_equal(!strstr(json, "\"e\"\n   ],\n   \"reason\""), i == 0);
		free(json);
		tmesh_devices_unref(devices);
	}
}

static void test_refused(void **state)
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
static void test_engines(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nodes, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_one_node, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_parsed, make_root, remove_root),
		cmocka_unit_test(test_most),
		cmocka_unit_test(test_unseen),
		cmocka_unit_test_setup_teardown(test_refused, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_engines, make_root, remove_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
