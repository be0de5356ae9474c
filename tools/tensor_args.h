/* SPDX-License-Identifier: MIT */
/* Arguments that create and put share. */
#ifndef TMESHCTL_TENSOR_ARGS_H
#define TMESHCTL_TENSOR_ARGS_H

#include "tmeshctl.h"

struct tensor_args {
	enum tmesh_backend backend;
	enum tmesh_dtype dtype;
	bool has_shape;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	const char *label;
	bool seal;
	uint32_t token_rights; /* of a second token; TMESH_READ: none */
	bool json;
	struct hold hold;
};

#define TENSOR_ARGS_INIT                                                            \
	{                                                                           \
		.dtype = TMESH_UINT8, .token_rights = TMESH_READ, .hold = HOLD_INIT \
	}

#define TENSOR_OPTIONS                                                                         \
	{"dtype", 'd', "DTYPE", "element type (default: uint8)"},                              \
		{"shape", 's', "N,N,...", "dimensions (default: one, as many as there are)"},  \
		{"label", 'l', "TEXT", "a name for people"},                                   \
		{"writable-token", 'w', NULL, "also print a token that lets others write"},    \
		{"manage-token", 'm', NULL, "also print one that lets others write and seal"}, \
		OPTION_BACKEND, OPTION_JSON, HOLD_OPTIONS

/* Take an option of TENSOR_OPTIONS, or one of put's: 'U' is --unsealed, 'H' --hold. Return false
 * for any other option. */
bool tensor_option(const struct verb *verb, struct tensor_args *args, int key, const char *value);
void tensor_check(const struct verb *verb, const struct tensor_args *args);
int tensor_bytes(const struct tensor_args *args, uint64_t *bytes);
int tensor_new(const struct tensor_args *args, struct tmesh_ctx **ctx,
	       struct tmesh_tensor **tensor);
/* Print its names and hold it as long as the arguments ask. Take ownership of @tensor. */
int tensor_hold(struct tensor_args *args, struct tmesh_tensor *tensor);

#endif /* TMESHCTL_TENSOR_ARGS_H */
