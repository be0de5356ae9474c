/* SPDX-License-Identifier: MIT */
#ifndef TMESH_UNIT_CLOSES_H
#define TMESH_UNIT_CLOSES_H

/* Called before each close() of this program and the libraries in it; NULL: nothing. */
extern void (*_Atomic unit_before_close)(int fd);

#endif /* TMESH_UNIT_CLOSES_H */
