/* SPDX-License-Identifier: MIT */
/* Files of the runtime directory that others may have left. */
#ifndef MODEL_AROUND_H
#define MODEL_AROUND_H

#include "inside.h"

typedef void model_look_fn(void *data, const char *name);

/* Look at up to @most of the files whose names begin with @prefix: of more than that at others each
 * time, so that each has its turn, however many there are. */
void model_look_around(int dir, const char *prefix, unsigned int most, model_look_fn *look,
		       void *data);

#endif /* MODEL_AROUND_H */
