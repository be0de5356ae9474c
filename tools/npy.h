/* SPDX-License-Identifier: MIT */
/* The header of NumPy's .npy files, which says what the bytes behind it are. */
#ifndef TMESHCTL_NPY_H
#define TMESHCTL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tmesh/tmesh.h>

#define NPY_PREFIX 12 /* magic, version and length are at most so long */
#define NPY_MAX 4096  /* no header of an array that tmesh takes comes near */
#define NPY_ALIGN 64  /* the data begins at a multiple of it */

struct npy {
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
};

/*
 * How long the header is that begins with these NPY_PREFIX bytes: between NPY_PREFIX and
 * NPY_MAX. 0 where it is none, and @why says why.
 */
size_t npy_length(const uint8_t prefix[NPY_PREFIX], const char **why);
/* The whole header, of npy_length() bytes. False where it is none of ours, with @why. */
bool npy_parse(const uint8_t *header, size_t length, struct npy *npy, const char **why);
/* A header for a tensor in C order; its length, or 0 where NumPy has not this dtype. */
size_t npy_format(uint8_t header[NPY_MAX], const struct npy *npy);

#endif /* TMESHCTL_NPY_H */
