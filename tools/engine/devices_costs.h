/* SPDX-License-Identifier: MIT */
/* What tmeshctl devices does with costs. */
#ifndef TMESHCTL_ENGINE_DEVICES_COSTS_H
#define TMESHCTL_ENGINE_DEVICES_COSTS_H

#include <tmesh/costs.h>

#include "../tmeshctl.h"

/* Measure this machine, keep that, and print it; or print what is kept. */
int measure_costs(struct tmesh_devices *devices, bool json);
int show_costs(struct tmesh_devices *devices, bool json);

#endif /* TMESHCTL_ENGINE_DEVICES_COSTS_H */
