// SPDX-License-Identifier: MIT
/* A plug-in of another version: nothing of it may be called. */
#include "plugin.h"

extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {.abi = TMESH_ENGINE_PLUGIN_ABI + 1};
