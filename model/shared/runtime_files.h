/* SPDX-License-Identifier: MIT */
/* Files of the runtime directory that others may have left. */
#ifndef MODEL_RUNTIME_FILES_H
#define MODEL_RUNTIME_FILES_H

#include "shared.h"

typedef void model_runtime_file_fn(void *data, const char *name);

/* Look at up to @most of the files whose names begin with @prefix. If there are more, each call
 * begins at a random one, so that none is left out for ever. */
void model_runtime_files_walk(int dir, const char *prefix, unsigned int most,
			      model_runtime_file_fn *look, void *data);

#endif /* MODEL_RUNTIME_FILES_H */
