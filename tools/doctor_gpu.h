/* SPDX-License-Identifier: MIT */
/* GPUs and engines for doctor: doctor_gpu.c, doctor_engines.c */
#ifndef DOCTOR_GPU_H
#define DOCTOR_GPU_H

#include <jansson.h>
#include <tmesh/cuda.h>

#define GPUS_SHOWN 64

struct gpu_found {
	struct tmesh_cuda_device_info info;
	struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS];
	char reason[252]; /* why it could not be examined, or "" */
};

struct gpu_report {
	char reason[252]; /* why there are none, or "" */
	int count;
	struct gpu_found gpus[GPUS_SHOWN];
};

void examine_gpus(struct gpu_report *report);
json_t *gpus_json(const struct gpu_report *report);
void print_gpus(const struct gpu_report *report);

/* Return {"reason", "devices", "engines"}, with the members of tmeshctl devices --json. */
json_t *examine_engines(void);
/* Read the line that tmesh-engine --check prints. Return: its exit status; -1 and errno: it cannot
 * be started. */
int check_confinement(char *line, size_t size);
void print_engines(const json_t *told);

#endif /* DOCTOR_GPU_H */
