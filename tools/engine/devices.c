// SPDX-License-Identifier: MIT
/* tmeshctl devices: the devices of this machine and the engines that can use them. */
#include <inttypes.h>
#include <string.h>

#include <tmesh/placement.h>

#include "../tmeshctl.h"

static const struct option_entry options[] = {
	OPTION_JSON,
	{NULL},
};

static void print_devices(const struct tmesh_devices *devices)
{
	struct table table = {.columns = 6};
	char total[16], room[16];
	bool unseen = false;

	table_add(&table, "DEVICE");
	table_add(&table, "MEMORY");
	table_add(&table, "FREE");
	table_add(&table, "PROCESSORS");
	table_add(&table, "ENGINES");
	table_add(&table, "NAME");
	for (size_t i = 0; i < tmesh_devices_count(devices); i++) {
		struct tmesh_devices_device device = {.size = sizeof(device)};
		char engines[512] = "";
		size_t at = 0;

		if (tmesh_devices_device(devices, i, &device, NULL))
			continue;
		for (size_t n = 0; n < tmesh_devices_engines(devices); n++) {
			struct tmesh_devices_engine engine = {.size = sizeof(engine)};

			if (tmesh_devices_engine(devices, n, &engine, NULL))
				break;
			unseen |= engine.never_seen >> device.device_type & 1;
			if (device.engines >> n & 1)
				at += (size_t)snprintf(engines + at, sizeof(engines) - at, "%s%s",
						       at ? "," : "", engine.name);
			if (at >= sizeof(engines))
				break;
		}
		table_add(&table, device.id);
		table_add(&table, human_bytes(device.memory, total));
		table_add(&table, device.memory_free == TMESH_DEVICES_UNKNOWN
					  ? "-"
					  : human_bytes(device.memory_free, room));
		if (device.processors)
			table_addf(&table, "%u", device.processors);
		else
			table_add(&table, "-");
		table_add(&table, at ? engines : "-");
		table_add(&table, device.name);
	}
	table_print(&table);
	if (unseen)
		puts("engines on GPUs: compiled, and never seen on one "
		     "(docs/reference/engines.md)");
}

/* Describe the GPU support of an engine that was never run on a GPU. */
static const char *there_for_gpus(const char *engine)
{
	return strcmp(engine, "onnx") ? "refused" : "compiled, and tried on stand-ins";
}

static void print_engines(const struct tmesh_devices *devices)
{
	for (size_t i = 0; i < tmesh_devices_engines(devices); i++) {
		struct tmesh_devices_engine engine = {.size = sizeof(engine)};
		bool any = false;
		char *text;

		if (tmesh_devices_engine(devices, i, &engine, NULL))
			continue;
		text = escaped(*engine.reason ? engine.reason : engine.library);
		if (*engine.reason)
			printf("\nengine %s: cannot be used: %s\n", engine.name, text);
		else
			printf("\nengine %s %s: %s\n", engine.name, engine.version,
			       *text ? text : "its library is unknown");
		free(text);
		if (!strcmp(engine.reads, "onnx"))
			printf("  runs ONNX models\n");
		for (int op = 0; op < TMESH_DEVICES_OPERATORS; op++) {
			if (!engine.operators[op])
				continue;
			printf("%s%s", any ? ", " : "  runs ", tmesh_graph_op_name(op));
			any = true;
		}
		if (any)
			putchar('\n');
		if (engine.never_seen >> TMESH_DEVICE_CUDA & 1)
			printf("  CUDA: never seen on a GPU; %s (docs/reference/engines.md)\n",
			       there_for_gpus(engine.name));
	}
}

static int run_verb_devices(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_devices_opts opts = {.size = sizeof(opts)};
	struct tmesh_devices *devices;
	struct tmesh_error err;
	bool json = false;
	int key, status = STATUS_OK;

	while ((key = verb_option(verb, argc, argv)) >= 0)
		json |= key == 'j';
	verb_expect_words(verb, argc, 0, 0);
	if (tmesh_devices_find(&opts, &devices, &err))
		return complain("devices", &err);
	if (json) {
		char *text = tmesh_devices_to_json(devices);

		status = print_json(text ? json_loads(text, 0, NULL) : NULL);
		free(text);
	} else {
		print_devices(devices);
		print_engines(devices);
	}
	tmesh_devices_unref(devices);
	return status;
}

static const struct verb verb_devices = {
	.name = "devices",
	.args = "",
	.help = "say what this machine computes with, and which engines run there",
	.options = options,
	.run = run_verb_devices,
};

int main(int argc, char **argv)
{
	return verb_main(&verb_devices, argc, argv);
}
