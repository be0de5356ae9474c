/* SPDX-License-Identifier: MIT */
/* Functions that tmeshctl-load and tmeshctl-model share. */
#ifndef TMESHCTL_MODEL_ARGS_H
#define TMESHCTL_MODEL_ARGS_H

#include <tmesh/model.h>

#include "../tmeshctl.h"

/* Run a program of one verb. Its messages begin with "tmeshctl VERB". */
int verb_main(const struct verb *verb, int argc, char **argv);
/* Return a description of the model with its metadata and tensors. NULL: no memory. */
json_t *model_json(const struct tmesh_model *model);

#endif /* TMESHCTL_MODEL_ARGS_H */
