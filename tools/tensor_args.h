/* SPDX-License-Identifier: MIT */
/* What create and put have in common. */
#ifndef TMESHCTL_TENSOR_ARGS_H
#define TMESHCTL_TENSOR_ARGS_H

#include <getopt.h>
#include <unistd.h>

#include "tmeshctl.h"

struct tensor_args {
	enum tmesh_backend backend;
	enum tmesh_dtype dtype;
	bool has_shape;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	const char *label;
	bool seal;
	uint32_t token_rights; /* of the further token; TMESH_READ: none */
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

/* Takes an option of TENSOR_OPTIONS, or of put's: 'U' is --unsealed, 'H' --hold. False: it is
 * another. */
bool tensor_option(const struct verb *verb, struct tensor_args *args, int key, const char *value);
void tensor_check(const struct verb *verb, const struct tensor_args *args);
int tensor_bytes(const struct tensor_args *args, uint64_t *bytes);
int tensor_new(const struct tensor_args *args, struct tmesh_ctx **ctx,
	       struct tmesh_tensor **tensor);
/* Print its names and hold it for as long as asked. Takes over @tensor. */
int tensor_hold(struct tensor_args *args, struct tmesh_tensor *tensor);

#endif /* TMESHCTL_TENSOR_ARGS_H */
