/* SPDX-License-Identifier: MIT */
/* The header of NumPy's .npy files, which describes the bytes after it. */
#ifndef TMESHCTL_NPY_H
#define TMESHCTL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tmesh/tmesh.h>

#define NPY_PREFIX 12 /* magic, version and length have at most so many bytes */
#define NPY_MAX 4096  /* headers of arrays that tmesh takes are far shorter */
#define NPY_ALIGN 64  /* the data begins at a multiple of it */

struct npy {
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
};

/*
 * Return the length of the header that begins with these NPY_PREFIX bytes: NPY_PREFIX to NPY_MAX.
 * Return 0 and set @why if it is no such header.
 */
size_t npy_length(const uint8_t prefix[NPY_PREFIX], const char **why);
/* Parse a whole header, of npy_length() bytes. Return false and set @why if tmesh does not take
 * it. */
bool npy_parse(const uint8_t *header, size_t length, struct npy *npy, const char **why);
/* Write a header for a tensor in C order. Return its length, or 0 if NumPy does not have this
 * dtype. */
size_t npy_format(uint8_t header[NPY_MAX], const struct npy *npy);

#endif /* TMESHCTL_NPY_H */
