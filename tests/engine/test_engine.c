// SPDX-License-Identifier: MIT
/*
 * Device tensors, bindings and dispatch, on the engine "fake" (fake_engine.c): what the library
 * itself checks, counts and lets go of. engine-onnx-check has a real engine.
 */
#include <stdatomic.h>

#include "plain_graph.h"

UNIT_SET_UP(test_dispatch)
{
	struct fixture *fix = *state;
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;

	assert_int_equal(tmesh_stats(fix->ctx, &before), 0);
	assert_ok(dispatch(fix, err));
	assert_int_equal(tmesh_stats(fix->ctx, &after), 0);
	assert_int_equal(after.bytes_copied, before.bytes_copied);
	expect_sum(fix);
	assert_int_equal(stats(fix).dispatches, 1);
	assert_int_equal(stats(fix).bindings, 1);
	assert_int_equal(stats(fix).writes, 2);
	assert_int_equal(stats(fix).bytes_written, 48);
	assert_int_equal(stats(fix).reads, 1);
	assert_int_equal(stats(fix).bytes_read, 32);
}

UNIT_SET_UP(test_binding)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;
	float zeros[8] = {0};

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	for (int i = 0; i < 3; i++) {
		assert_ok(tmesh_engine_tensor_write(fix->y, zeros, sizeof(zeros), err));
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
		expect_sum(fix);
	}
	assert_int_equal(stats(fix).bindings, 1);
	assert_int_equal(stats(fix).dispatches, 3);
	/* A tensor that it has goes: the binding says so, and the memory is there until it goes
	 * too. */
	tmesh_engine_tensor_destroy(fix->b);
	assert_refused(tmesh_engine_binding_dispatch(binding, err), -EBADF,
		       "\"b\": the tensor was destroyed");
	assert_ptr_equal(tmesh_engine_binding_ref(binding), binding);
	tmesh_engine_binding_unref(binding);
	tmesh_engine_binding_unref(binding);
}

/* Inputs in others' place, one session and one binding; a refused change has no effect. */
UNIT_SET_UP(test_rebind)
{
	struct fixture *fix = *state;
	const float nines[8] = {9, 9, 9, 9, 9, 9, 9, 9};
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_tensor *other, *small;
	struct tmesh_engine_value values[3] = {{.name = "b"}, {.name = "x"}, {.name = "x"}};
	const int64_t three = 3;
	float y[8];

	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 1, shape_b, FLAGS, &other,
					     err));
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 1, &three, FLAGS, &small,
					     err));
	assert_ok(tmesh_engine_tensor_write(other, nines, 16, err));
	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	values[0].tensor = other;
	assert_ok(tmesh_engine_binding_rebind(binding, values, 1, err));
	/* It is held, and what was bound before is not. */
	tmesh_engine_tensor_destroy(fix->b);
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == (float)(i + 10));
	values[1].tensor = values[2].tensor = fix->x;
	assert_refused(tmesh_engine_binding_rebind(binding, values, 3, err), -EINVAL, "2");
	assert_refused(tmesh_engine_binding_rebind(binding, values + 1, 2, err), -EINVAL, "twice");
	values[1].name = "y";
	assert_refused(tmesh_engine_binding_rebind(binding, values, 2, err), -ENOENT, "\"y\"");
	values[1].name = NULL;
	assert_refused(tmesh_engine_binding_rebind(binding, values, 2, err), -ENOENT, "no input");
	values[1] = (struct tmesh_engine_value){.name = "x", .tensor = fix->y};
	assert_refused(tmesh_engine_binding_rebind(binding, values, 2, err), -EINVAL, "overlaps");
	values[0].tensor = small;
	assert_refused(tmesh_engine_binding_rebind(binding, values, 1, err), -EINVAL, "shape");
	values[0].tensor = fix->b;
	assert_refused(tmesh_engine_binding_rebind(binding, values, 1, err), -EBADF, "destroyed");
	assert_ok(tmesh_engine_binding_rebind(binding, NULL, 0, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == (float)(i + 10));
	assert_int_equal(stats(fix).bindings, 1);
	assert_int_equal(stats(fix).sessions_opened, 1);
	tmesh_engine_binding_unref(binding);
	tmesh_engine_tensor_unref(other);
	tmesh_engine_tensor_unref(small);
}

/* Arrays and device tensors in any mixture. */
UNIT_SET_UP(test_host)
{
	struct fixture *fix = *state;
	float x[12] = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, y[12] = {0};
	struct tmesh_engine_value outputs[2] = {
		{.name = "y", .data = y, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {3, 4}},
		{.name = "twice"}};
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_tensor *none = NULL;
	float twice[12];

	fix->inputs[0] = (struct tmesh_engine_value){
		.name = "x", .data = x, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {3, 4}};
	assert_ok(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, outputs, 2, err));
	assert_true(y[0] == 11 && y[7] == 42 && y[11] == 43);
	assert_non_null(outputs[1].tensor);
	assert_ok(tmesh_engine_tensor_info(outputs[1].tensor, &info, err));
	assert_true(info.of_engine && info.bytes == 48 && info.shape[0] == 3 &&
		    info.dtype == TMESH_FLOAT32);
	assert_int_equal(info.flags, TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE);
	assert_string_equal(info.backend, "fake");
	assert_ok(tmesh_engine_tensor_read(outputs[1].tensor, twice, sizeof(twice), err));
	assert_true(twice[11] == 6);
	assert_refused(tmesh_engine_tensor_export(outputs[1].tensor, &none, err), -EACCES,
		       "in no region");
	assert_int_equal(stats(fix).outputs_of_engine, 1);
	assert_int_equal(stats(fix).bytes_of_engine, 48);
	/* A tensor that the engine allocated is an input as any other, also when the first graph is
	 * gone. */
	fix->inputs[0] = (struct tmesh_engine_value){.name = "x", .tensor = outputs[1].tensor};
	outputs[0].tensor = NULL;
	assert_ok(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, outputs, 1, err));
	assert_true(y[11] == 46);
	tmesh_engine_tensor_unref(outputs[1].tensor);
}

UNIT_SET_UP(test_tensor_refusals)
{
	struct fixture *fix = *state;
	struct tmesh_engine_tensor *tensor = NULL;
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_tensor *region = NULL;
	float data[8] = {0};

	assert_refused(tmesh_engine_tensor_read(fix->x, data, 28, err), -EINVAL, "28 bytes");
	assert_refused(tmesh_engine_tensor_write(fix->x, data, 36, err), -EINVAL, "36 bytes");
	assert_refused(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, 8,
						  &tensor, err),
		       -EINVAL, "flags 0x8");
	assert_refused(tmesh_engine_tensor_create(fix->context, TMESH_DTYPE_INVALID, 2, shape_x, 0,
						  &tensor, err),
		       -EINVAL, "");
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, 0, &tensor,
					     err));
	assert_refused(tmesh_engine_tensor_read(tensor, data, 32, err), -EACCES, "to be read");
	assert_refused(tmesh_engine_tensor_write(tensor, data, 32, err), -EACCES, "to be written");
	assert_refused(tmesh_engine_tensor_export(tensor, &region, err), -EACCES, "to be exported");
	tmesh_engine_tensor_unref(tensor);
	assert_ok(tmesh_engine_tensor_info(fix->x, &info, err));
	assert_int_equal(info.rights, TMESH_READ | TMESH_WRITE);
	assert_false(info.of_engine);
	tmesh_engine_tensor_destroy(fix->x);
	tmesh_engine_tensor_destroy(fix->x);
	assert_refused(tmesh_engine_tensor_read(fix->x, data, 32, err), -EBADF, "destroyed");
	assert_refused(tmesh_engine_tensor_write(fix->x, data, 32, err), -EBADF, "destroyed");
	assert_refused(tmesh_engine_tensor_export(fix->x, &region, err), -EBADF, "destroyed");
	assert_refused(tmesh_engine_tensor_info(fix->x, &info, err), -EBADF, "destroyed");
	assert_not_run(fix, -EBADF, "\"x\": the tensor was destroyed");
	assert_null(region);
}

UNIT_SET_UP(test_wrap)
{
	struct fixture *fix = *state;
	const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_engine_tensor *tensor = NULL;
	struct tmesh_tensor *sealed, *columns, *same;
	struct tmesh_layout layout;
	float first;
	void *data;

	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape_x, x, NULL, &sealed, err));
	assert_refused(tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_READ | TMESH_WRITE, 0,
						&tensor, err),
		       -EPERM, "");
	assert_refused(tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_WRITE, 0, &tensor, err),
		       -EINVAL, "rights");
	assert_refused(tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_READ,
						TMESH_ENGINE_WRITABLE, &tensor, err),
		       -EINVAL, "TMESH_WRITE");
	assert_refused(tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_READ, 16, &tensor, err),
		       -EINVAL, "0x10");
	layout = *tmesh_tensor_layout(sealed);
	layout.shape[1] = 2;
	layout.strides[1] = 2;
	assert_ok(tmesh_tensor_view(sealed, &layout, &columns, err));
	assert_refused(tmesh_engine_tensor_wrap(fix->context, columns, TMESH_READ, 0, &tensor, err),
		       -EINVAL, "strides");
	assert_null(tensor);
	assert_ok(tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_READ,
					   TMESH_ENGINE_EXPORTABLE, &tensor, err));
	assert_ok(tmesh_tensor_data(sealed, TMESH_READ, &data, err));
	assert_ok(tmesh_engine_tensor_info(tensor, &info, err));
	assert_ptr_equal(info.address, data);
	assert_ok(tmesh_engine_tensor_export(tensor, &same, err));
	assert_ptr_equal(same, sealed);
	tmesh_tensor_unref(same);
	tmesh_tensor_unref(sealed);
	tmesh_tensor_unref(columns);
	/* Read by graphs, never written. */
	fix->inputs[0].tensor = tensor;
	assert_ok(dispatch(fix, err));
	expect_sum(fix);
	fix->inputs[0].tensor = fix->x;
	fix->outputs[0].tensor = tensor;
	assert_not_run(fix, -EACCES, "may only read");
	memcpy(&first, info.address, sizeof(first));
	assert_true(first == 1);
	tmesh_engine_tensor_unref(tensor);
}

/* Sealed after it was bound: the mapping that the engine would write to is read-only then. */
UNIT_SET_UP(test_sealed_later)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;
	struct tmesh_tensor *y;

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_ok(tmesh_engine_tensor_export(fix->y, &y, err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(y), err));
	assert_refused(tmesh_engine_binding_dispatch(binding, err), -EACCES,
		       "\"y\": its memory was sealed");
	assert_refused(dispatch(fix, err), -EACCES, "\"y\": its memory was sealed");
	expect_sum(fix);
	tmesh_tensor_unref(y);
	tmesh_engine_binding_unref(binding);
}

UNIT_SET_UP(test_names)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding = NULL;

	fix->inputs[1].name = "c";
	assert_not_run(fix, -ENOENT, "no input \"c\"");
	fix->inputs[1].name = NULL;
	assert_not_run(fix, -ENOENT, "no input");
	fix->inputs[1].name = "x";
	assert_not_run(fix, -EINVAL, "\"x\" was given twice");
	fix->inputs[1].name = "b";
	fix->outputs[0].name = "x";
	assert_not_run(fix, -ENOENT, "no output \"x\"");
	fix->outputs[0].name = "y";
	assert_refused(tmesh_engine_dispatch(fix->graph, fix->inputs, 1, fix->outputs, 1, err),
		       -EINVAL, "\"b\" is missing");
	assert_refused(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, fix->outputs, 0, err),
		       -EINVAL, "no output");
	assert_refused(tmesh_engine_dispatch(fix->graph, fix->inputs, 3, fix->outputs, 1, err),
		       -EINVAL, "3 inputs");
	fix->outputs[0].tensor = NULL;
	assert_refused(
		tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err),
		-EINVAL, "without memory");
	fix->outputs[0].tensor = fix->y;
	fix->inputs[0].tensor = NULL;
	assert_not_run(fix, -EINVAL, "\"x\" was given without memory");
	assert_null(binding);
}

UNIT_SET_UP(test_types)
{
	struct fixture *fix = *state;
	struct tmesh_engine_tensor *tensor;
	float data[16] = {0};

	fix->inputs[0] = (struct tmesh_engine_value){
		.name = "x", .data = data, .dtype = TMESH_INT32, .ndim = 2, .shape = {2, 4}};
	assert_not_run(fix, -EINVAL, "\"x\" is float32, and int32");
	fix->inputs[0].dtype = TMESH_FLOAT32;
	fix->inputs[0].shape[1] = 5;
	assert_not_run(fix, -EINVAL, "[any, 4], and [2, 5]");
	fix->inputs[0].ndim = 1;
	assert_not_run(fix, -EINVAL, "[any, 4], and [2]");
	fix->inputs[0].ndim = 99;
	assert_not_run(fix, -EINVAL, "");
	fix->inputs[0].ndim = 2;
	fix->inputs[0].shape[0] = -1;
	assert_not_run(fix, -EINVAL, "");
	fix->inputs[0].shape[0] = INT64_MAX;
	fix->inputs[0].shape[1] = 4;
	assert_not_run(fix, -EOVERFLOW, "");
	/* "n" is one number. */
	fix->inputs[0].shape[0] = 3;
	assert_not_run(fix, -EINVAL, "\"n\" is 3 in \"x\" and 2 in \"y\"");
	/* Its elements lie between the places of elements. */
	fix->inputs[0].shape[0] = 2;
	fix->inputs[0].data = (char *)data + 2;
	assert_not_run(fix, -EINVAL, "multiple of 4");
	fix->inputs[0].data = data;
	assert_ok(dispatch(fix, err));
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT64, 2, shape_x, 0, &tensor,
					     err));
	fix->outputs[0].tensor = tensor;
	assert_not_run(fix, -EINVAL, "\"y\" is float32, and float64");
	fix->outputs[0].data = data;
	assert_not_run(fix, -EINVAL, "give one of the two");
	tmesh_engine_tensor_unref(tensor);
}

UNIT_SET_UP(test_contexts)
{
	struct fixture *fix = *state;
	struct tmesh_engine_context *other;
	struct tmesh_engine_tensor *tensor;

	assert_ok(tmesh_engine_context_create(fix->ctx, "fake", NULL, &other, err));
	assert_ok(
		tmesh_engine_tensor_create(other, TMESH_FLOAT32, 2, shape_x, FLAGS, &tensor, err));
	fix->inputs[0].tensor = tensor;
	assert_not_run(fix, -EINVAL, "another context");
	/* The tensor keeps its context. */
	tmesh_engine_context_unref(other);
	tmesh_engine_tensor_unref(tensor);
}

UNIT_SET_UP(test_overlap)
{
	struct fixture *fix = *state;
	float data[16] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct tmesh_engine_value outputs[2];

	fix->outputs[0].tensor = fix->x;
	assert_not_run(fix, -EINVAL, "overlaps input \"x\"; name that input in in_place");
	fix->outputs[0].in_place = "b";
	assert_not_run(fix, -EINVAL, "overlaps input \"x\"");
	fix->outputs[0].in_place = "nobody";
	assert_not_run(fix, -EINVAL, "overlaps");
	fix->outputs[0].tensor = fix->y;
	assert_not_run(fix, -ENOENT, "\"nobody\", which is not an input");
	fix->outputs[0].in_place = "x";
	assert_not_run(fix, -EINVAL, "other memory, another dtype");
	fix->outputs[0].tensor = fix->x;
	assert_ok(dispatch(fix, err));
	/* By a part of it. */
	fix->inputs[0] = (struct tmesh_engine_value){
		.name = "x", .data = data, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {2, 4}};
	fix->outputs[0] = (struct tmesh_engine_value){
		.name = "y", .data = data + 7, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {2, 4}};
	assert_not_run(fix, -EINVAL, "overlaps input \"x\"");
	fix->outputs[0].in_place = "x";
	assert_not_run(fix, -EINVAL, "other memory, another dtype");
	fix->outputs[0].in_place = NULL;
	fix->outputs[0].data = data + 8;
	assert_ok(dispatch(fix, err));
	/* Two outputs. */
	outputs[0] = fix->outputs[0];
	outputs[1] = outputs[0];
	outputs[1].name = "twice";
	assert_refused(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, outputs, 2, err), -EINVAL,
		       "\"twice\" overlaps output \"y\"");
	outputs[1].in_place = "x";
	outputs[1].data = data;
	assert_ok(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, outputs, 2, err));
}

/* Make a device tensor at @offset of the memory that @token names, by a handle of its own. */
static struct tmesh_engine_tensor *tensor_at(struct fixture *fix, const char *token,
					     uint64_t offset)
{
	struct tmesh_engine_tensor *made;
	struct tmesh_region *region;
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;

	assert_ok(tmesh_region_open(fix->ctx, token, TMESH_READ | TMESH_WRITE, &region, err));
	assert_ok(tmesh_layout_contiguous(&layout, TMESH_FLOAT32, 2, shape_x, err));
	layout.offset = offset;
	assert_ok(tmesh_tensor_wrap(region, &layout, &tensor, err));
	assert_ok(tmesh_engine_tensor_wrap(fix->context, tensor, TMESH_READ | TMESH_WRITE, FLAGS,
					   &made, err));
	tmesh_tensor_unref(tensor);
	tmesh_region_unref(region);
	return made;
}

/* Memory that a process has opened twice has two addresses there. */
UNIT_SET_UP(test_overlap_of_handles)
{
	struct fixture *fix = *state;
	const uint64_t offsets[] = {0, 16, 32};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_engine_tensor *x;
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(fix->ctx, 4096, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ | TMESH_WRITE, token, err));
	x = tensor_at(fix, token, 0);
	fix->inputs[0].tensor = x;
	for (size_t i = 0; i < 3; i++) {
		struct tmesh_engine_tensor *y = tensor_at(fix, token, offsets[i]);

		fix->outputs[0].tensor = y;
		if (offsets[i] < 32)
			assert_not_run(fix, -EINVAL, "overlaps input \"x\"");
		else
			assert_ok(dispatch(fix, err));
		tmesh_engine_tensor_unref(y);
	}
	tmesh_engine_tensor_unref(x);
	tmesh_region_unref(region);
}

UNIT_SET_UP(test_operands)
{
	struct fixture *fix = *state;
	struct tmesh_engine_operand operand = {.size = sizeof(operand)};

	assert_int_equal(tmesh_engine_graph_inputs(fix->graph), 2);
	assert_int_equal(tmesh_engine_graph_outputs(fix->graph), 2);
	assert_ok(tmesh_engine_graph_input(fix->graph, 0, &operand, err));
	assert_string_equal(operand.name, "x");
	assert_string_equal(operand.dims[0], "n");
	assert_null(operand.dims[1]);
	assert_true(operand.shape[0] == -1 && operand.shape[1] == 4 && operand.ndim == 2);
	assert_ok(tmesh_engine_graph_output(fix->graph, 1, &operand, err));
	assert_string_equal(operand.name, "twice");
	assert_refused(tmesh_engine_graph_input(fix->graph, 2, &operand, err), -EINVAL,
		       "no operand 2");
	assert_refused(tmesh_engine_graph_output(fix->graph, 2, &operand, err), -EINVAL,
		       "no operand 2");
}

UNIT_SET_UP(test_engine_failures)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *plain = fix->graph;

	assert_ok(tmesh_engine_graph_open(fix->context, file("fails", "fails"), NULL, &fix->graph,
					  err));
	assert_refused(dispatch(fix, err), -EIO, "as its graph asks");
	assert_int_equal(stats(fix).dispatches, 0);
	tmesh_engine_graph_unref(fix->graph);
	assert_ok(tmesh_engine_graph_open(fix->context, file("elsewhere", "elsewhere"), NULL,
					  &fix->graph, err));
	assert_refused(dispatch(fix, err), -EIO, "memory of its own");
	tmesh_engine_graph_unref(fix->graph);
	fix->graph = plain;
}

/* An engine gives an input's memory for an output that was left to it. The output would end with
 * that memory, and a write to it would change the input. */
UNIT_SET_UP(test_echo)
{
	struct fixture *fix = *state;
	struct tmesh_engine_value output = {.name = "y"};
	float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct tmesh_engine_graph *graph;

	assert_ok(
		tmesh_engine_graph_open(fix->context, file("echoes", "echoes"), NULL, &graph, err));
	for (int own = 0; own < 2; own++) {
		if (own)
			fix->inputs[0] = (struct tmesh_engine_value){.name = "x",
								     .data = data,
								     .dtype = TMESH_FLOAT32,
								     .ndim = 2,
								     .shape = {2, 4}};
		assert_refused(tmesh_engine_dispatch(graph, fix->inputs, 2, &output, 1, err),
			       -EOPNOTSUPP, "\"y\" is the memory of input \"x\"");
		assert_null(output.tensor);
	}
	tmesh_engine_graph_unref(graph);
}

UNIT_SET_UP(test_found)
{
	struct fixture *fix = *state;
	struct tmesh_engine_context *context = NULL;
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts), .library = "none"};

	assert_refused(tmesh_engine_context_create(fix->ctx, "nobody", NULL, &context, err),
		       -EOPNOTSUPP, "tmesh-engine-nobody.so");
	assert_refused(tmesh_engine_context_create(fix->ctx, "../fake", NULL, &context, err),
		       -EINVAL, "small letters");
	assert_refused(tmesh_engine_context_create(fix->ctx, "", NULL, &context, err), -EINVAL,
		       "small letters");
	assert_refused(tmesh_engine_context_create(fix->ctx, NULL, NULL, &context, err), -EINVAL,
		       "small letters");
	assert_refused(tmesh_engine_context_create(fix->ctx, "old", NULL, &context, err), -EPROTO,
		       "this version");
	assert_refused(tmesh_engine_context_create(fix->ctx, "fake", &opts, &context, err),
		       -EOPNOTSUPP, "no library");
	opts = (struct tmesh_engine_context_opts){.size = sizeof(opts), .device_type = 7};
	assert_refused(tmesh_engine_context_create(fix->ctx, "fake", &opts, &context, err), -EINVAL,
		       "type 7");
	opts = (struct tmesh_engine_context_opts){.size = sizeof(opts), .threads = 5000};
	assert_refused(tmesh_engine_context_create(fix->ctx, "fake", &opts, &context, err), -EINVAL,
		       "threads");
	assert_null(context);
	assert_string_equal(tmesh_engine_context_backend(fix->context), "fake");
	assert_string_equal(tmesh_engine_context_version(fix->context), "a fake");
}

/* The child has no thread of the engine's: it may let go of all, and start nothing. */
UNIT_SET_UP(test_fork)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;
	pid_t pid;

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	pid = fork();
	if (!pid) {
		struct tmesh_engine_graph *graph;
		struct tmesh_engine_tensor *tensor;
		float data[8];
		int wrong = 0;

		wrong += tmesh_engine_binding_dispatch(binding, NULL) != -EPERM;
		wrong += dispatch(fix, NULL) != -EPERM;
		wrong += tmesh_engine_graph_open(fix->context, "x", NULL, &graph, NULL) != -EPERM;
		wrong += tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, 0,
						    &tensor, NULL) != -EPERM;
		wrong += tmesh_engine_tensor_read(fix->x, data, 32, NULL) != -EPERM;
		tmesh_engine_binding_unref(binding);
		teardown(state);
		unit_leave(wrong);
	}
	join_child(pid);
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	tmesh_engine_binding_unref(binding);
}

struct runner {
	struct tmesh_engine_binding *binding;
	struct fixture *fix;
	atomic_int failed;
};

static void *run_often(void *data)
{
	struct runner *runner = data;

	for (int i = 0; i < 2000; i++)
		runner->failed |= tmesh_engine_binding_dispatch(runner->binding, NULL);
	return NULL;
}

static void *open_often(void *data)
{
	struct runner *runner = data;
	char path[96];

	snprintf(path, sizeof(path), "%s/graph", folder);
	for (int i = 0; i < 500; i++) {
		struct tmesh_engine_graph *graph;
		struct tmesh_engine_tensor *tensor;

		runner->failed |=
			tmesh_engine_graph_open(runner->fix->context, path, NULL, &graph, NULL);
		runner->failed |= tmesh_engine_tensor_create(runner->fix->context, TMESH_FLOAT32, 2,
							     shape_x, FLAGS, &tensor, NULL);
		tmesh_engine_tensor_destroy(tensor);
		tmesh_engine_tensor_unref(tensor);
		tmesh_engine_graph_unref(graph);
	}
	return NULL;
}

UNIT_SET_UP(test_threads)
{
	struct fixture *fix = *state;
	struct runner runner = {.fix = fix};
	pthread_t threads[4];

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &runner.binding,
				    err));
	for (int i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, i % 2 ? run_often : open_often, &runner),
			0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(runner.failed, 0);
	assert_int_equal(stats(fix).dispatches, 4000);
	tmesh_engine_binding_unref(runner.binding);
}

int main(void)
{
	char command[64];
	int failed;

	assert_non_null(mkdtemp(folder));
	failed = UNIT_RUN("tests", NULL, NULL);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command) || failed;
}
