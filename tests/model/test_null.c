// SPDX-License-Identifier: MIT
/* Arguments that are NULL where a call of libtmesh-model needs something, as tests/unit/test_null.c
 * does for libtmesh. */
#include <tmesh/model.h>
#include <tmesh/slot.h>

#include "unit.h"

#define NULL_(call, name) assert_refused(call, -EINVAL, name " is NULL")

#define HEADER "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

UNIT(test_models)
{
	static const char header[] = "\x36\0\0\0\0\0\0\0" HEADER;
	const size_t bytes = sizeof(header) - 1;
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	struct tmesh_model_value value = {.size = sizeof(value)};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model = NULL, *other = NULL;
	struct tmesh_tensor *opened = NULL;
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_ctx *ctx;
	char *text = NULL;
	size_t index;

	assert_int_equal(strlen(HEADER), 0x36);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_parse(header, bytes, bytes + 4, &model, NULL, err));
	NULL_(tmesh_model_parse(NULL, bytes, bytes + 4, &other, NULL, err), "header");
	NULL_(tmesh_model_parse(header, bytes, bytes + 4, NULL, NULL, err), "out");
	assert_int_equal(tmesh_model_parse(NULL, 0, 9, &other, NULL, NULL), -EAGAIN);
	NULL_(tmesh_model_describe("/", NULL, NULL, err), "out");
	NULL_(tmesh_model_load(NULL, "/", NULL, &other, err), "ctx");
	NULL_(tmesh_model_load(ctx, "/", NULL, NULL, err), "out");
	NULL_(tmesh_model_tensor(NULL, 0, &tensor, err), "model");
	NULL_(tmesh_model_tensor(model, 0, NULL, err), "out");
	NULL_(tmesh_model_find(NULL, "a", &index, err), "model");
	NULL_(tmesh_model_find(model, NULL, &index, err), "name");
	NULL_(tmesh_model_find(model, "a", NULL, err), "index");
	NULL_(tmesh_model_value(NULL, 0, &value, err), "model");
	NULL_(tmesh_model_value(model, 0, NULL, err), "out");
	NULL_(tmesh_model_metadata_json(NULL, 0, &text, err), "model");
	NULL_(tmesh_model_metadata_json(model, 0, NULL, err), "text");
	NULL_(tmesh_model_report(NULL, &report, err), "model");
	NULL_(tmesh_model_report(model, NULL, err), "out");
	NULL_(tmesh_model_tensor_open(NULL, 0, &opened, err), "model");
	NULL_(tmesh_model_tensor_open(model, 0, NULL, err), "out");
	NULL_(tmesh_model_bundle(NULL, model, &bundle, err), "ctx");
	NULL_(tmesh_model_bundle(ctx, NULL, &bundle, err), "model");
	NULL_(tmesh_model_bundle(ctx, model, NULL, err), "out");
	NULL_(tmesh_model_save("/tmp/none.safetensors", NULL, 1, NULL, err), "items");
	assert_null(other);
	assert_null(text);
	assert_null(opened);
	assert_null(bundle);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
}

UNIT(test_slots)
{
	struct tmesh_slot_reader *reader, *none = NULL;
	struct tmesh_slot *slot, *other = NULL;
	struct tmesh_slot_value *value = NULL;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	NULL_(tmesh_slot_create(NULL, NULL, &other, err), "ctx");
	NULL_(tmesh_slot_create(ctx, NULL, NULL, err), "out");
	NULL_(tmesh_slot_token(NULL, token, err), "slot");
	NULL_(tmesh_slot_token(slot, NULL, err), "token");
	NULL_(tmesh_slot_publish(NULL, NULL, NULL, err), "slot");
	NULL_(tmesh_slot_open(NULL, token, &none, err), "ctx");
	NULL_(tmesh_slot_open(ctx, NULL, &none, err), "token");
	NULL_(tmesh_slot_open(ctx, token, NULL, err), "out");
	NULL_(tmesh_slot_open_named(NULL, "a", &none, err), "ctx");
	NULL_(tmesh_slot_open_named(ctx, "a", NULL, err), "out");
	NULL_(tmesh_slot_read(NULL, &value, err), "reader");
	NULL_(tmesh_slot_read(reader, NULL, err), "value");
	NULL_(tmesh_slot_poll_fd(NULL, err), "reader");
	assert_int_equal(tmesh_slot_changed(NULL), -EINVAL);
	assert_null(none);
	assert_null(other);
	assert_null(value);
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("null", NULL, NULL)
