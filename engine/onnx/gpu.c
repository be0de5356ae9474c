// SPDX-License-Identifier: MIT
/*
 * ONNX Runtime's CUDA execution provider, which its builds for CUDA have in a separate library. The
 * check for the provider has run here, and its calls are tested on a stand-in
 * (tests/engine/standin_onnxruntime.c). It has never run on a GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "onnx_internal.h"

#define PROVIDER "CUDAExecutionProvider"

static int has_provider(const struct onnx_engine *engine, bool *has, struct tmesh_error *err)
{
	char **names;
	int count;
	int rc = onnx_check(engine, engine->ort.providers(&names, &count), "providers", err);

	*has = false;
	if (rc)
		return rc;
	for (int i = 0; i < count; i++)
		*has |= !strcmp(names[i], PROVIDER);
	return onnx_check(engine, engine->ort.release_providers(names, count), "providers", err);
}

int onnx_gpu_append(const struct onnx_engine *engine, struct ort_session_options *options,
		    struct tmesh_error *err)
{
	const struct ort_api *ort = &engine->ort;
	const char *const key = "device_id";
	struct ort_cuda_options *cuda = NULL;
	char device[16];
	const char *const value = device;
	int rc = onnx_check(engine, ort->create_cuda(&cuda), PROVIDER, err);

	snprintf(device, sizeof(device), "%d", engine->device);
	if (!rc)
		rc = onnx_check(engine, ort->update_cuda(cuda, &key, &value, 1), PROVIDER, err);
	if (!rc)
		rc = onnx_check(engine, ort->append_cuda(options, cuda), PROVIDER, err);
	if (cuda)
		ort->release_cuda(cuda);
	return rc;
}

/* Check that the provider starts: it loads CUDA's libraries. */
static int try_provider(const struct onnx_engine *engine, struct tmesh_error *err)
{
	struct ort_session_options *options = NULL;
	struct tmesh_error why;
	int rc = onnx_check(engine, engine->ort.create_options(&options), "options", err);

	if (rc)
		return rc;
	if (onnx_gpu_append(engine, options, &why))
		rc = tmesh_fail(
			err, -EOPNOTSUPP,
			"ONNX Runtime's CUDA execution provider does not start; it wants the "
			"CUDA and cuDNN that it was built for: %.140s",
			why.message);
	engine->ort.release_options(options);
	return rc;
}

int onnx_gpu_open(struct onnx_engine *engine, struct tmesh_error *err)
{
	bool has;
	int rc = has_provider(engine, &has, err);

	if (rc)
		return rc;
	if (!has)
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"this build of ONNX Runtime (%.20s) has no CUDA execution provider: "
			"install Python's package onnxruntime-gpu, or a release for GPUs, and "
			"name its libonnxruntime in TMESH_ONNXRUNTIME",
			engine->version);
	rc = try_provider(engine, err);
	if (!rc)
		rc = onnx_check(engine,
				engine->ort.create_memory("Cuda", ORT_DEVICE_ALLOCATOR,
							  engine->device, ORT_MEMORY_DEFAULT,
							  &engine->memory),
				"start", err);
	if (!rc)
		rc = onnx_check(engine,
				engine->ort.create_cpu_memory(ORT_DEVICE_ALLOCATOR,
							      ORT_MEMORY_DEFAULT,
							      &engine->host_memory),
				"start", err);
	return rc;
}
