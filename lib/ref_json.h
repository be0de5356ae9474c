/* SPDX-License-Identifier: MIT */
/* Reading refs, which come from other processes: functions for refs of tensors and of bundles. Each
 * returns 0, or -EPROTO with a message that names the member. */
#ifndef TMESH_REF_JSON_H
#define TMESH_REF_JSON_H

#include <jansson.h>

#include "internal.h"

/* Return: also -ENOMEM. json_decref() @out. */
int tmesh_ref_load(const char *text, size_t bytes, json_t **out, struct tmesh_error *err);
bool tmesh_ref_is_bundle(const json_t *ref);
int tmesh_ref_get_uint(const json_t *ref, const char *name, uint64_t *value,
		       struct tmesh_error *err);
int tmesh_ref_get_version(const json_t *ref, struct tmesh_error *err);
int tmesh_ref_get_id(const json_t *ref, uint64_t *id, struct tmesh_error *err);
/* Read the token: @token has TMESH_TOKEN_SIZE bytes and becomes "" if there is none. */
int tmesh_ref_get_token(const json_t *ref, char *token, struct tmesh_error *err);

#endif /* TMESH_REF_JSON_H */
