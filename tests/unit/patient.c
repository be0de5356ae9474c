// SPDX-License-Identifier: MIT
/*
 * Linked with every unit program, in front of tmesh_ctx_open(): a context that sets no limit of its
 * own waits two seconds for an answer. A thread that others keep from running for longer is no
 * failure: where a test says nothing, it waits ten minutes.
 */
#include <string.h>

#include <tmesh/tmesh.h>

#define PATIENT_NS (UINT64_C(600) * 1000000000)

int __real_tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
			  struct tmesh_error *err);
int __wrap_tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
			  struct tmesh_error *err);

int __wrap_tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
			  struct tmesh_error *err)
{
	const size_t least = offsetof(struct tmesh_ctx_opts, timeout_ns) + sizeof(opts->timeout_ns);
	struct tmesh_ctx_opts patient = {.size = sizeof(patient)};

	/* An older caller's, a newer one's, or none: as it is. */
	if (opts && (opts->size < least || opts->size > sizeof(patient) || opts->timeout_ns))
		return __real_tmesh_ctx_open(opts, out, err);
	if (opts)
		memcpy(&patient, opts, opts->size);
	patient.timeout_ns = PATIENT_NS;
	return __real_tmesh_ctx_open(&patient, out, err);
}
