/* SPDX-License-Identifier: MIT */
/* What tmeshctl-load and tmeshctl-model have in common. */
#ifndef TMESHCTL_MODEL_ARGS_H
#define TMESHCTL_MODEL_ARGS_H

#include <tmesh/model.h>

#include "../tmeshctl.h"

/* A program of one verb: "tmeshctl VERB" begins its messages. */
int verb_main(const struct verb *verb, int argc, char **argv);
/* What a path describes, with its metadata and tensors. NULL: no memory. */
json_t *model_json(const struct tmesh_model *model);

#endif /* TMESHCTL_MODEL_ARGS_H */
