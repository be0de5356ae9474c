// SPDX-License-Identifier: MIT
/* tmeshctl create: a new region of zeros. */
#include "tensor_args.h"

static const struct option_entry options[] = {TENSOR_OPTIONS, {NULL}};

static int run_verb_create(const struct verb *verb, int argc, char **argv)
{
	struct tensor_args args = TENSOR_ARGS_INIT;
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	int key, status;

	args.hold.command = split_command(verb, &argc, argv);
	while ((key = verb_option(verb, argc, argv)) != -1)
		tensor_option(verb, &args, key, optarg);
	verb_expect_words(verb, argc, 0, 1);
	tensor_check(verb, &args);
	if ((optind < argc) == args.has_shape)
		usage_error(verb, "either BYTES or --shape says how large the region is");
	if (!args.has_shape) {
		uint64_t count, bits = tmesh_dtype_bits(args.dtype);
		uint64_t bytes = bytes_option(verb, argv[optind]);

		if (!bytes || __builtin_mul_overflow(bytes, 8, &count) || count % bits ||
		    count / bits > INT64_MAX)
			usage_error(verb, "%s bytes are not a whole number of elements from 1 up",
				    argv[optind]);
		args.ndim = 1;
		args.shape[0] = (int64_t)(count / bits);
	}

	status = hold_begin(&args.hold);
	if (!status)
		status = tensor_new(&args, &ctx, &tensor);
	if (status)
		return status;
	status = tensor_hold(&args, tensor);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_create = {"create", "[BYTES] [-- COMMAND [ARGUMENT...]]",
				 "make a region of zeros and hold it", options, run_verb_create};
