// SPDX-License-Identifier: MIT
/* ggml_api.h beside ggml's headers, where they are: compiling is the test. */
#include <stdio.h>

#include "ggml/ggml_api.h"

#if __has_include(<ggml.h>)
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
SAME(GGML_F32, GGML_TYPE_F32);
SAME(GGML_F16, GGML_TYPE_F16);
SAME(GGML_I32, GGML_TYPE_I32);
SAME(GGML_I64, GGML_TYPE_I64);
SAME(GGML_BF16, GGML_TYPE_BF16);
SAME(GGML_DEVICE_CPU, GGML_BACKEND_DEVICE_TYPE_CPU);
SAME(GGML_SUCCESS, GGML_STATUS_SUCCESS);
SAME(GGML_ABORTED, GGML_STATUS_ABORTED);
_Static_assert(__builtin_types_compatible_p(ggml_abort_function, ggml_abort_callback), "abort");
_Static_assert(__builtin_types_compatible_p(ggml_set_abort_function,
					    ggml_backend_set_abort_callback_t),
	       "set abort");
SAME(GGML_PRECISION_F32, GGML_PREC_F32);
SAME(GGML_ROPE_NORMAL, GGML_ROPE_TYPE_NORMAL);
SAME(GGML_ROPE_NEOX, GGML_ROPE_TYPE_NEOX);
SAME(GGML_TASKS_MAX, GGML_N_TASKS_MAX);
_Static_assert(__builtin_types_compatible_p(ggml_custom_function, ggml_custom_op_t), "custom");
SAME(sizeof(struct ggml_params), sizeof(struct ggml_init_params));
SAME(offsetof(struct ggml_params, mem_size), offsetof(struct ggml_init_params, mem_size));
SAME(offsetof(struct ggml_params, mem_buffer), offsetof(struct ggml_init_params, mem_buffer));
SAME(offsetof(struct ggml_params, no_alloc), offsetof(struct ggml_init_params, no_alloc));
SAME(sizeof(struct gguf_params), sizeof(struct gguf_init_params));
SAME(offsetof(struct gguf_params, no_alloc), offsetof(struct gguf_init_params, no_alloc));
SAME(offsetof(struct gguf_params, context), offsetof(struct gguf_init_params, ctx));

/* Enumerations are integers in ours, and the one structure by value has our name. */
#define ggml_params ggml_init_params
#define FUNCTION(name, result, arguments)                                                    \
	_Static_assert(                                                                      \
		__builtin_types_compatible_p(__typeof__(&ggml_##name), result(*) arguments), \
		"ggml_" #name);
GGML_FUNCTIONS(FUNCTION)
#define gguf_params gguf_init_params
#define GGUF_FUNCTION(name, symbol, result, arguments)                                         \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), result(*) arguments), \
		       #symbol);
GGUF_FUNCTIONS(GGUF_FUNCTION)
#define HEADER
#endif

int main(void)
{
#ifdef HEADER
	puts("ok 1 - ggml_api.h is as ggml's headers have it\n1..1");
#else
	puts("ok 1 - ggml_api.h # SKIP ggml's headers are not installed (libggml-python, "
	     "libggml-dev)\n1..1");
#endif
	return 0;
}
