/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_LABEL_H
#define TMESH_COMMON_LABEL_H

#include "public.h"

/* Return -EINVAL if it is longer than TMESH_LABEL_LEN, or not UTF-8 without control characters. */
int tmesh_check_label(const char *label, struct tmesh_error *err);

#endif /* TMESH_COMMON_LABEL_H */
