// SPDX-License-Identifier: MIT
/*
 * GPUs and their abilities, by libtmesh-cuda if it is installed. The library is loaded only on
 * demand, because it loads the driver. It has its own libtmesh, so no object of ours is passed to
 * it.
 */
#include "common/cuda_api.h"
#include "doctor_gpu.h"
#include "tmeshctl.h"

void examine_gpus(struct gpu_report *report)
{
	struct tmesh_error err = {0};
	struct tmesh_cuda_api calls = {0};
	struct tmesh_cuda *cuda;
	int count;

	*report = (struct gpu_report){0};
	if (tmesh_cuda_api_load(&calls, TMESH_CUDA_LIBRARY, &err)) {
		snprintf(report->reason, sizeof(report->reason), "not tried: %.230s", err.message);
		return;
	}
	if (calls.cuda_default(&cuda, &err)) {
		snprintf(report->reason, sizeof(report->reason), "not supported: %.230s",
			 err.message);
		return;
	}
	count = calls.cuda_device_count(cuda);
	for (int i = 0; i < count && report->count < GPUS_SHOWN; i++) {
		struct gpu_found *gpu = &report->gpus[report->count++];

		gpu->info.size = sizeof(gpu->info);
		if (calls.cuda_device_info(cuda, i, &gpu->info, &err) ||
		    calls.cuda_caps_sized(cuda, i, gpu->caps, TMESH_CUDA_CAPS, sizeof(gpu->caps[0]),
					  &err))
			snprintf(gpu->reason, sizeof(gpu->reason), "%s", err.message);
	}
}

static const char *level_text(enum tmesh_cuda_level level)
{
	switch (level) {
	case TMESH_CUDA_WORKS:
		return "works";
	case TMESH_CUDA_NOT_SUPPORTED:
		return "not supported";
	case TMESH_CUDA_NOT_TRIED:
		return "not tried";
	}
	return "unknown";
}

json_t *gpus_json(const struct gpu_report *report)
{
	json_t *gpus = json_array();

	for (int i = 0; i < report->count; i++) {
		const struct gpu_found *gpu = &report->gpus[i];
		json_t *paths = json_array();

		for (int j = 0; !gpu->reason[0] && j < TMESH_CUDA_CAPS; j++)
			json_array_append_new(
				paths, json_pack("{s:s, s:s, s:o}", "name", gpu->caps[j].name,
						 "level", level_text(gpu->caps[j].level), "reason",
						 json_text(gpu->caps[j].reason)));
		json_array_append_new(
			gpus,
			json_pack("{s:i, s:o, s:i, s:o, s:o}", "device", i, "name",
				  json_text(gpu->info.name), "driver", gpu->info.driver_version,
				  "reason", gpu->reason[0] ? json_text(gpu->reason) : json_null(),
				  "paths", paths));
	}
	return json_pack("{s:o, s:o}", "reason",
			 report->reason[0] ? json_text(report->reason) : json_null(), "devices",
			 gpus);
}

void print_gpus(const struct gpu_report *report)
{
	struct table table = {.columns = 3};
	char *text;

	if (report->reason[0]) {
		text = escaped(report->reason);
		printf("\nGPUs: %s\n", text);
		free(text);
	}
	for (int i = 0; i < report->count; i++) {
		const struct gpu_found *gpu = &report->gpus[i];

		text = escaped(gpu->reason[0] ? gpu->reason : gpu->info.name);
		printf("\nGPU %d: %s\n", i, text);
		free(text);
		for (int j = 0; !gpu->reason[0] && j < TMESH_CUDA_CAPS; j++) {
			table_addf(&table, "  %s", gpu->caps[j].name);
			table_add(&table, level_text(gpu->caps[j].level));
			table_add(&table, gpu->caps[j].reason);
		}
		table_print(&table);
	}
}
