/* SPDX-License-Identifier: MIT */
/* Functions that tmeshctl-load and tmeshctl-model share. */
#ifndef TMESHCTL_MODEL_ARGS_H
#define TMESHCTL_MODEL_ARGS_H

#include <tmesh/model.h>

#include "../tmeshctl.h"

/* Return a description of the model with its metadata and tensors. NULL: no memory. */
json_t *model_json(const struct tmesh_model *model);

#endif /* TMESHCTL_MODEL_ARGS_H */
