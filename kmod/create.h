/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Creation of regions.
 */
#ifndef TMESH_CREATE_H
#define TMESH_CREATE_H

#include "tmesh.h"

/**
 * struct tmesh_spec - the parameters that all calls which create a region share
 * @bytes:     length asked for
 * @nr_pages:  length in pages
 * @flags:     TMESH_CREATE_*
 * @mode:      as given by the caller
 * @gid:       as given by the caller
 * @hold_ms: as given by the caller
 * @node:      NUMA node or NUMA_NO_NODE
 * @label:     as given by the caller
 */
struct tmesh_spec {
	u64 bytes;
	unsigned long nr_pages;
	u32 flags;
	u32 mode;
	u32 gid;
	u32 hold_ms;
	int node;
	const char *label;
};

/* Fill a struct tmesh_spec from the structure of a call. */
#define TMESH_SPEC(cmd)                        \
	{                                      \
		.bytes = (cmd)->bytes,         \
		.flags = (cmd)->flags,         \
		.mode = (cmd)->mode,           \
		.gid = (cmd)->gid,             \
		.hold_ms = (cmd)->hold_ms, \
		.node = NUMA_NO_NODE,          \
		.label = (cmd)->label,         \
	}

/**
 * struct tmesh_birth - a region that is being created
 * @user:   the owner, who is charged; reference
 * @region: the region, not visible yet; reference
 * @file:   its first handle, NULL before there is one
 * @fd:     the handle's descriptor
 */
struct tmesh_birth {
	struct tmesh_user *user;
	struct tmesh_region *region;
	struct file *file;
	int fd;
};

int tmesh_birth_begin(struct tmesh_birth *birth, const struct tmesh_spec *spec);
int tmesh_birth_handle(struct tmesh_birth *birth, struct tmesh_mem *mem, u32 rights);
int tmesh_birth_end(struct tmesh_birth *birth, int rc);
int tmesh_ioctl_create(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_create_memfd(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_create_user(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_import(struct tmesh_ucmd *ucmd);

#endif /* TMESH_CREATE_H */
