/* SPDX-License-Identifier: MIT */
/* The part of struct tmesh_ctx (internal.h) that the kernel backend uses. */
#ifndef TMESH_KERNEL_PART_H
#define TMESH_KERNEL_PART_H

#include <stdatomic.h>
#include <stdbool.h>

struct tmesh_kernel_ctx {
	int device;			    /* an open /dev/tmesh */
	bool renews;			    /* it has TMESH_RENEW */
	_Atomic(struct tmesh_ctx *) beside; /* the memfd context of its channels, or NULL */
};

#endif /* TMESH_KERNEL_PART_H */
