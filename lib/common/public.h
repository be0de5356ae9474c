/* SPDX-License-Identifier: MIT */
/* The libraries are built with hidden visibility, but export what the public headers declare. */
#ifndef TMESH_COMMON_PUBLIC_H
#define TMESH_COMMON_PUBLIC_H

#pragma GCC visibility push(default)
#include <tmesh/tmesh.h>
#pragma GCC visibility pop

#endif /* TMESH_COMMON_PUBLIC_H */
