// SPDX-License-Identifier: MIT
/*
 * Engines in processes of their own: tmesh-engine (TMESH_ENGINE_PROGRAM) with the engine "fake",
 * which crashes and hangs on demand. The reaction of the library and the program is real.
 */
#include <tmesh/channel.h>

#include "internal.h"
#include "served.h"

static uint64_t copied(struct fixture *fix)
{
	struct tmesh_stats out = {.size = sizeof(out)};

	assert_int_equal(tmesh_stats(fix->ctx, &out), 0);
	return out.bytes_copied;
}

UNIT_SET_UP(test_dispatch)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;
	uint64_t before = copied(fix);

	assert_string_equal(tmesh_engine_context_backend(fix->context), "fake");
	assert_string_equal(tmesh_engine_context_version(fix->context), "a fake");
	assert_int_not_equal(tmesh_engine_context_pid(fix->context), getpid());
	assert_int_equal(kill((pid_t)tmesh_engine_context_pid(fix->context), 0), 0);
	assert_ok(dispatch(fix, err));
	assert_int_equal(copied(fix), before);
	assert_y(fix);
	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	for (int i = 0; i < 100; i++)
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_y(fix);
	tmesh_engine_binding_unref(binding);
}

UNIT_SET_UP(test_operands)
{
	struct fixture *fix = *state;
	struct tmesh_engine_operand operand = {.size = sizeof(operand)};

	assert_int_equal(tmesh_engine_graph_inputs(fix->graph), 2);
	assert_int_equal(tmesh_engine_graph_outputs(fix->graph), 2);
	assert_ok(tmesh_engine_graph_input(fix->graph, 0, &operand, err));
	assert_string_equal(operand.name, "x");
	assert_int_equal(operand.dtype, TMESH_FLOAT32);
	assert_int_equal(operand.ndim, 2);
	assert_int_equal(operand.shape[0], -1);
	assert_int_equal(operand.shape[1], 4);
	assert_string_equal(operand.dims[0], "n");
	assert_null(operand.dims[1]);
}

/* An output that lies on an input: one region in the engine, too, so that its own checks see it. */
UNIT_SET_UP(test_in_place)
{
	struct fixture *fix = *state;
	float x[8];

	fix->outputs[0].tensor = fix->x;
	assert_refused(dispatch(fix, err), -EINVAL, "overlaps input");
	fix->outputs[0].in_place = "x";
	assert_ok(dispatch(fix, err));
	assert_ok(tmesh_engine_tensor_read(fix->x, x, sizeof(x), err));
	assert_true(x[0] == 11 && x[7] == 48);
}

static struct tmesh_engine_value array(const char *name, float *data, int32_t ndim)
{
	struct tmesh_engine_value value = {
		.name = name, .data = data, .dtype = TMESH_FLOAT32, .ndim = ndim, .shape = {2, 4}};

	if (ndim == 1)
		value.shape[0] = 4;
	return value;
}

/* Memory of the caller's and device tensors, in each mixture: copied as much as is the caller's,
 * and counted. */
UNIT_SET_UP(test_arrays)
{
	struct fixture *fix = *state;
	float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40}, y[8];
	const struct tmesh_engine_value arrays[] = {array("x", x, 2), array("b", b, 1),
						    array("y", y, 2)};

	for (int mix = 0; mix < 8; mix++) {
		struct tmesh_engine_value inputs[] = {mix & 1 ? arrays[0] : fix->inputs[0],
						      mix & 2 ? arrays[1] : fix->inputs[1]};
		struct tmesh_engine_value output = mix & 4 ? arrays[2] : fix->outputs[0];
		uint64_t before = copied(fix), bytes = 0;

		memset(y, 0, sizeof(y));
		assert_ok(tmesh_engine_dispatch(fix->graph, inputs, 2, &output, 1, err));
		bytes += (mix & 1 ? sizeof(x) : 0) + (mix & 2 ? sizeof(b) : 0);
		bytes += mix & 4 ? sizeof(y) : 0;
		assert_int_equal(copied(fix) - before, bytes);
		if (mix & 4)
			for (int i = 0; i < 8; i++)
				assert_true(y[i] == x[i] + b[i % 4]);
		else
			assert_y(fix);
	}
}

/* Each run reads and writes the bound arrays in place. */
UNIT_SET_UP(test_bound_arrays)
{
	struct fixture *fix = *state;
	float x[8] = {1}, other[8] = {5}, b[4] = {10, 20, 30, 40}, y[8];
	struct tmesh_engine_value inputs[] = {array("x", x, 2), array("b", b, 1)};
	struct tmesh_engine_value output = array("y", y, 2);
	struct tmesh_engine_binding *binding;

	assert_ok(tmesh_engine_bind(fix->graph, inputs, 2, &output, 1, &binding, err));
	for (int i = 0; i < 4; i++) {
		x[0] = (float)i;
		if (i == 2)
			kill((pid_t)tmesh_engine_context_pid(fix->context), SIGKILL);
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
		assert_true(y[0] == (float)(i + 10) && y[7] == 40);
	}
	inputs[0] = array("x", other, 2);
	assert_ok(tmesh_engine_binding_rebind(binding, inputs, 1, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_true(y[0] == 15);
	assert_ok(tmesh_engine_binding_rebind(binding, fix->inputs, 1, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_true(y[0] == 11);
	assert_ok(tmesh_engine_binding_rebind(binding, inputs, 1, err));
	other[0] = 6;
	assert_ok(tmesh_engine_binding_rebind(binding, inputs, 1, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_true(y[0] == 16);
	tmesh_engine_binding_unref(binding);
	/* An output on an input: both names have one memory. */
	for (int mix = 0; mix < 4; mix++) {
		float *place = x;

		if (mix) {
			struct tmesh_engine_tensor_info info = {.size = sizeof(info)};

			assert_ok(tmesh_engine_tensor_info(fix->x, &info, err));
			place = (float *)info.address;
		}
		place[0] = 1;
		inputs[0] = mix == 0 || mix == 1 ? array("x", place, 2) : fix->inputs[0];
		output = mix == 0 || mix == 2 ? array("y", place, 2) : fix->outputs[0];
		if (mix == 1 || mix == 3)
			output.tensor = fix->x;
		assert_refused(tmesh_engine_dispatch(fix->graph, inputs, 2, &output, 1, err),
			       -EINVAL, "overlaps input");
		output.in_place = "x";
		assert_ok(tmesh_engine_dispatch(fix->graph, inputs, 2, &output, 1, err));
		assert_true(place[0] == 11);
	}
}

/* An output that is left to the engine: a device tensor where its shape follows from the inputs. */
UNIT_SET_UP(test_left_to_engine)
{
	struct fixture *fix = *state;
	struct tmesh_engine_value outputs[] = {{.name = "y"}, {.name = "twice"}};
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_engine_graph *graph;
	struct tmesh_tensor *tensor;
	float y[8];

	for (int i = 0; i < 3; i++) {
		struct tmesh_engine_tensor *before = fix->x;

		outputs[0].tensor = outputs[1].tensor = NULL;
		assert_ok(tmesh_engine_dispatch(fix->graph, fix->inputs, 2, outputs, 2, err));
		assert_ok(tmesh_engine_tensor_read(outputs[0].tensor, y, sizeof(y), err));
		assert_true(y[0] == 11 && y[7] == 48);
		assert_ok(tmesh_engine_tensor_read(outputs[1].tensor, y, sizeof(y), err));
		assert_true(y[0] == 2 && y[7] == 16);
		assert_ok(tmesh_engine_tensor_info(outputs[1].tensor, &info, err));
		assert_int_equal(info.ndim, 2);
		assert_int_equal(info.shape[0], 2);
		assert_refused(tmesh_engine_tensor_export(outputs[1].tensor, &tensor, err), -EACCES,
			       "not made to be exported");
		/* The result of one dispatch is another's input, in its place. */
		fix->inputs[0].tensor = outputs[1].tensor;
		{
			uint64_t none = copied(fix);

			assert_ok(dispatch(fix, err));
			assert_int_equal(copied(fix), none);
		}
		assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
		assert_true(y[0] == 12);
		fix->inputs[0].tensor = before;
		tmesh_engine_tensor_unref(outputs[0].tensor);
		tmesh_engine_tensor_unref(outputs[1].tensor);
	}
	assert_ok(tmesh_engine_stats(fix->context, &stats, err));
	assert_int_equal(stats.outputs_of_engine, 6);
	assert_int_equal(stats.bytes_of_engine, 6 * sizeof(y));
	outputs[0].tensor = NULL;
	assert_ok(tmesh_engine_graph_open(fix->context, file("open", "open"), NULL, &graph, err));
	assert_refused(tmesh_engine_dispatch(graph, fix->inputs, 2, outputs, 1, err), -EOPNOTSUPP,
		       "does not follow");
	tmesh_engine_graph_unref(graph);
	assert_works(fix);
}

UNIT_SET_UP(test_refusals)
{
	struct fixture *fix = *state;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;

	assert_refused(dispatch_of(fix, "fails", err), -EIO, "as its graph asks");
	assert_refused(dispatch_of(fix, "elsewhere", err), -EIO, "memory of its own");
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("broken", "broken"), NULL, &graph, err),
		-EPROTO, "no graph of the fake's");
	assert_refused(tmesh_engine_connect(fix->ctx, "nobody", NULL, &context, err), -ENOENT,
		       "no engine is served as \"nobody\"");
	assert_refused(tmesh_engine_connect(fix->ctx, "../unit", NULL, &context, err), -EINVAL,
		       "small letters");
	assert_works(fix);
}

/* The engine has what it was handed: models below --models, and nothing else of the user's. */
static void test_confined(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph;
	char path[128];
	FILE *out;

	snprintf(path, sizeof(path), "%s/secret", folder);
	out = fopen(path, "w");
	fputs("plain", out);
	fclose(out);
	/* To the fake a file that cannot be opened is none of its own; tmesh-engine knows why. */
	assert_refused(tmesh_engine_graph_open(fix->context, path, NULL, &graph, err), -EACCES,
		       "--models");
	assert_works(fix);
}

UNIT_SET_UP(test_killed_between)
{
	struct fixture *fix = *state;
	struct tmesh_engine_binding *binding;

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	for (int i = 0; i < 3; i++) {
		uint32_t pid = tmesh_engine_context_pid(fix->context);

		assert_ok(tmesh_engine_binding_dispatch(binding, err));
		assert_y(fix);
		assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
		assert_y(fix);
		assert_int_not_equal(tmesh_engine_context_pid(fix->context), pid);
	}
	tmesh_engine_binding_unref(binding);
	assert_works(fix);
}

UNIT_SET_UP(test_crash)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph;

	assert_refused(dispatch_of(fix, "crashes", err), -EPIPE, "died in this call");
	assert_works(fix);
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("bomb", "bomb"), NULL, &graph, err),
		-EPIPE, "died in this call");
	assert_works(fix);
}

/* Here each call has half a second, as far as the engine goes. */
static void test_limit(void **state)
{
	struct fixture fix;

	join_timed(&fix, 0, "hangs");
	/* The call has no deadline: the engine's own limit ends it. */
	assert_refused(dispatch(&fix, err), -EPIPE, "died in this call");
	leave(&fix);
	join_timed(&fix, 0, "plain");
	assert_works_at_last(&fix);
	leave(&fix);
}

/* A call's deadline is its client's own, and its end too. */
UNIT_SET_UP(test_deadline)
{
	struct fixture timed, *fix = *state;
	struct tmesh_error error = {0};

	join_timed(&timed, 400 * MS, "hangs");
	/* A supervisor that gets no turn for a second leaves it at "does not answer". */
	for (int i = 0; i < 100 && !strstr(error.message, "deadline"); i++)
		assert_int_equal(dispatch(&timed, &error), -ETIMEDOUT);
	assert_non_null(strstr(error.message, "deadline"));
	leave(&timed);
	assert_works(fix);
}

UNIT_SET_UP(test_stopped)
{
	struct fixture timed, *fix = *state;

	join_timed(&timed, 200 * MS, "plain");
	assert_works_at_last(&timed);
	assert_int_equal(kill((pid_t)tmesh_engine_context_pid(timed.context), SIGSTOP), 0);
	/* It does not even take the call, so that no side sees a deadline pass in it. */
	assert_refused(dispatch(&timed, err), -ETIMEDOUT, "does not answer");
	assert_int_equal(kill((pid_t)tmesh_engine_context_pid(timed.context), SIGKILL), 0);
	assert_works_at_last(&timed);
	leave(&timed);
	assert_works(fix);
}

static void *hang(void *data)
{
	struct fixture *fix = data;
	struct tmesh_error error;

	return (void *)(intptr_t)dispatch_of(fix, "hangs", &error);
}

static void *wait_behind(void *data)
{
	return (void *)(intptr_t)tmesh_engine_binding_dispatch(data, NULL);
}

/* A call that waits for its turn behind one that hangs is none of its end's. */
UNIT_SET_UP(test_innocent)
{
	struct fixture other, *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_binding *binding;
	pthread_t hangs, waits;
	void *result;

	file("hangs", "hangs"); /* file() is not for two threads */
	join(&other);
	assert_ok(tmesh_engine_bind(other.graph, other.inputs, 2, other.outputs, 1, &binding, err));
	pthread_create(&hangs, NULL, hang, fix);
	await_run(fix);
	pthread_create(&waits, NULL, wait_behind, binding);
	await_waiting(fix, 1);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	pthread_join(hangs, &result);
	assert_int_equal((intptr_t)result, -EPIPE);
	pthread_join(waits, &result);
	assert_int_equal((intptr_t)result, 0);
	assert_y(&other);
	assert_int_not_equal(tmesh_engine_context_pid(other.context), pid);
	tmesh_engine_binding_unref(binding);
	leave(&other);
	assert_works(fix);
}

UNIT_SET_UP(test_too_many)
{
	struct tmesh_engine_context *contexts[CLIENTS], *more;
	struct fixture *fix = *state;

	for (int i = 1; i < CLIENTS; i++)
		assert_ok(tmesh_engine_connect(fix->ctx, "unit", NULL, &contexts[i], err));
	assert_refused(tmesh_engine_connect(fix->ctx, "unit", NULL, &more, err), -EBUSY,
		       "4 clients");
	assert_works(fix);
	for (int i = 1; i < CLIENTS; i++)
		tmesh_engine_context_unref(contexts[i]);
	/* That they are gone is seen when it looks. */
	for (int i = 0; i < 6000 && tmesh_engine_connect(fix->ctx, "unit", NULL, &more, NULL); i++)
		usleep(10000);
	tmesh_engine_context_unref(more);
}

/* The memory of a client is given back when it ends, also when it is killed. */
UNIT_SET_UP(test_given_back)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	unsigned int before = 0, now = 0, own;

	/* libtmesh itself remembers the last 32 processes whose memory it opened. */
	for (int round = 0; round < 60; round++) {
		struct tmesh_engine_binding *binding;
		pid_t child = fork();

		if (!child) {
			struct fixture inner;

			join(&inner);
			tmesh_engine_bind(inner.graph, inner.inputs, 2, inner.outputs, 1, &binding,
					  NULL);
			tmesh_engine_binding_dispatch(binding, NULL);
			raise(SIGKILL);
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		assert_works(fix);
		/* The dead are seen when it looks. */
		for (int i = 0; i < 6000; i++) {
			now = files_of(pid);
			if (round < 40 || now <= before)
				break;
			usleep(10000);
		}
		if (round == 39) {
			usleep(50000);
			before = files_of(pid);
		}
	}
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	assert_true(now <= before);
	own = unit_open_fds();
	for (int round = 0; round < 5; round++) {
		struct fixture inner;

		join(&inner);
		assert_works(&inner);
		leave(&inner);
	}
	/* A descriptor that a thread had not closed yet when it was counted is gone then. */
	for (int i = 0; i < 6000 && unit_open_fds() > own; i++)
		usleep(10000);
	assert_true(unit_open_fds() <= own);
}

/* A client that speaks the protocol badly is dropped, and the others go on. */
static void hostile(struct fixture *fix, int kind, unsigned int seed)
{
	struct tmesh_channel *requests = NULL, *replies = NULL;
	struct wire_request words = {.op = WIRE_RUN, .number = 1};
	struct tmesh_message message = {.bytes = sizeof(words)};
	struct tmesh_region *region = NULL;
	struct wire_page *page = NULL;
	struct wire_welcome welcome;
	struct tmesh_ctx *ctx;
	int fd = raw(fix);
	void *data;

	assert_int_equal(recv(fd, &welcome, sizeof(welcome), 0), sizeof(welcome));
	assert_int_equal(welcome.code, 0);
	if (kind == 4) { /* more to keep than it may */
		for (int i = 0; i <= WIRE_KEPT && send_fds(fd, fd, 1); i++)
			;
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
		return;
	}
	if (kind == 0) { /* words where none belong */
		assert_int_equal(send(fd, "hello", 5, MSG_NOSIGNAL), 5);
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
		return;
	}
	ctx = ctx_of_engine(fix);
	assert_ok(tmesh_channel_open(ctx, welcome.requests, TMESH_CHANNEL_SEND, NULL, &requests,
				     err));
	assert_ok(tmesh_region_open(ctx, welcome.page, TMESH_READ | TMESH_WRITE, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &data, err));
	page = data;
	if (kind == 1) /* a message of another length */
		message.bytes = 7;
	if (kind == 2) /* floods, and reads no reply */
		assert_ok(tmesh_channel_open(ctx, welcome.replies, TMESH_CHANNEL_RECV, NULL,
					     &replies, err));
	for (int i = 0; i < (kind == 2 ? 1000 : 200); i++) {
		memcpy(message.data, &words, sizeof(words));
		if (tmesh_channel_send(requests, &message, 2000 * (int64_t)MS, NULL))
			break;
		words.number++;
		if (kind != 3)
			continue;
		/* Random requests with random texts. */
		words.op = (uint32_t)rand_r(&seed) % 7;
		words.id = rand_r(&seed) % 4 ? (uint32_t)rand_r(&seed) % 3 : ~0u;
		words.bytes = (uint32_t)rand_r(&seed) % 300;
		words.deadline = rand_r(&seed) % 9 ? 0 : 1;
		if (rand_r(&seed) % 50 == 0)
			words.bytes = ~0u;
		for (uint32_t at = 0; at < 300; at += 4) {
			uint32_t value = (uint32_t)rand_r(&seed) % (at % 8 ? 9 : 70000);

			memcpy(page->text + at, &value, sizeof(value));
		}
		if (rand_r(&seed) % 2) {
			struct wire text = {.text = page->text, .bytes = WIRE_TEXT};

			wire_put_text(&text,
				      rand_r(&seed) % 2 ? "/dev/null" : file("graph", "plain"));
			wire_put_u32(&text, (uint32_t)rand_r(&seed) % 3);
			wire_put_u32(&text, (uint32_t)rand_r(&seed) % 2);
			wire_put_u32(&text, (uint32_t)rand_r(&seed) % 2);
			wire_put_u32(&text, (uint32_t)rand_r(&seed) % 2);
			words.op = WIRE_GRAPH_OPEN;
			words.bytes = (uint32_t)text.at;
		}
	}
	if (kind != 3) /* it is dropped */
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	tmesh_region_unref(region);
	tmesh_channel_unref(requests);
	tmesh_channel_unref(replies);
	tmesh_ctx_unref(ctx);
	close(fd);
}

UNIT_SET_UP(test_hostile)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);

	for (int kind = 0; kind < 3; kind++) {
		hostile(fix, kind, 0);
		assert_works(fix);
	}
	hostile(fix, 4, 0);
	assert_works(fix);
	for (unsigned int seed = 0; seed < 20; seed++) {
		hostile(fix, 3, seed);
		assert_works(fix);
	}
	/* The same process: none of it was a crash. */
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* A producer that gives its region another's id: a request names both. */
UNIT_SET_UP(test_forged_id)
{
	struct fixture *fix = *state;
	struct wire_tensor tensors[3];
	char room[4096];
	struct wire wire = {.text = room, .bytes = sizeof(room)};

	for (int i = 0; i < 2; i++) {
		tensors[i] = (struct wire_tensor){.write = i};
		assert_ok(tmesh_tensor_create(fix->ctx, TMESH_FLOAT32, 1, shape_b, NULL,
					      &tensors[i].tensor, err));
	}
	tensors[2] = tensors[0];
	if (!unit_on_kernel())
		tmesh_tensor_region(tensors[1].tensor)->id =
			tmesh_region_id(tmesh_tensor_region(tensors[0].tensor));
	assert_ok(wire_put_tensors(&wire, tensors, 3, err));
	wire.at = 0;
	assert_int_equal(wire_get_u32(&wire), 2);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(tensors[i].tensor);
}

/* Requests that are well made as far as they go, and then wrong in one place. */
UNIT_SET_UP(test_lies)
{
	struct fixture *fix = *state;
	struct tmesh_tensor *tensor;
	struct wire_tensor tensors[2];
	struct wire_tensor *out;
	size_t count, regions;
	char room[4096];

	assert_ok(tmesh_engine_tensor_export(fix->x, &tensor, err));
	tensors[0] = (struct wire_tensor){.tensor = tensor};
	tensors[1] = (struct wire_tensor){.tensor = tensor, .write = true};
	for (int lie = 0; lie < 6; lie++) {
		struct wire wire = {.text = room, .bytes = sizeof(room)};
		size_t layouts;

		assert_ok(wire_put_tensors(&wire, tensors, 2, err));
		layouts = wire.at - 2 * (4 + 4 + 8 + 4 + 4 + 16);
		wire = (struct wire){.text = room, .bytes = wire.at};
		if (lie == 1) /* a region that was not named */
			room[layouts] = 1;
		if (lie == 2) /* past the region's end */
			room[layouts + 8 + 4] = 1;
		if (lie == 3) /* no such dtype */
			room[layouts + 16] = 99;
		if (lie == 4) /* too many dimensions */
			room[layouts + 20] = 9;
		if (lie == 5) /* written to, and the region is not */
			room[4] = 0;
		if (!lie) {
			assert_ok(wire_get_tensors(&wire, fix->ctx, 8, 8, &out, &count, &regions,
						   err));
			assert_int_equal(count, 2);
			assert_int_equal(regions, 1);
			/* Both are in one region, so at one address. */
			assert_ptr_equal(tmesh_tensor_region(out[0].tensor),
					 tmesh_tensor_region(out[1].tensor));
			wire_tensors_free(out, count);
			wire.at = 0;
			assert_refused(wire_get_tensors(&wire, fix->ctx, 8, 0, &out, &count,
							&regions, err),
				       -EDQUOT, "may open 0 more");
			for (size_t bytes = 0; bytes < wire.bytes; bytes += 3) {
				struct wire part = {.text = room, .bytes = bytes};

				assert_int_equal(wire_get_tensors(&part, fix->ctx, 8, 8, &out,
								  &count, &regions, NULL),
						 -EPROTO);
			}
			continue;
		}
		assert_int_not_equal(
			wire_get_tensors(&wire, fix->ctx, 8, 8, &out, &count, &regions, NULL), 0);
	}
	tmesh_tensor_unref(tensor);
}

UNIT_SET_UP(test_program)
{
	static const char *const wrong[] = {"--clients=0", "--limit=x", "--threads=1.5", "No-Name",
					    "--unknown"};
	char line[64];
	int end, status;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		char *argv[] = {(char *)"tmesh-engine", (char *)wrong[i], NULL};
		pid_t pid = run_program(argv, &end, line, sizeof(line));

		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(WEXITSTATUS(status), 2);
		assert_string_equal(line, "");
		close(end);
	}
	for (int i = 0; i < 3; i++) {
		/* A name that is taken, an engine that does not start, one that does not exist. */
		char *argv[] = {(char *)"tmesh-engine",
				(char *)(i == 2 ? "--engine=none" : "--engine=fake"),
				(char *)(i == 1 ? "--library=none" : "--threads=1"),
				(char *)(i == 0 ? "unit" : "other"), NULL};
		pid_t pid = run_program(argv, &end, line, sizeof(line));

		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(WEXITSTATUS(status), 1);
		assert_string_equal(line, "");
		close(end);
	}
	assert_works(*state);
}

/* A supervisor that is killed takes its engine along, and the name is free at once. */
UNIT_SET_UP(test_supervisor_killed)
{
	char *argv[] = {(char *)"tmesh-engine", (char *)"--engine=fake", (char *)"second", NULL};
	struct tmesh_engine_context *context;
	struct fixture *fix = *state;
	int end, status;
	char line[64];
	pid_t pid;

	for (int i = 0; i < 2; i++) {
		pid = run_program(argv, &end, line, sizeof(line));
		assert_string_equal(line, "ready second\n");
		assert_ok(tmesh_engine_connect(fix->ctx, "second", NULL, &context, err));
		kill(pid, i ? SIGTERM : SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		for (int n = 0; n < 6000 && !kill((pid_t)tmesh_engine_context_pid(context), 0); n++)
			usleep(10000);
		assert_int_equal(kill((pid_t)tmesh_engine_context_pid(context), 0), -1);
		tmesh_engine_context_unref(context);
		close(end);
	}
}

/* A signal that nohup, or a shell for its background programs, has ignored does not end it. */
UNIT_SET_UP(test_ignored_signals)
{
	char *argv[] = {(char *)"tmesh-engine", (char *)"--engine=fake", (char *)"second", NULL};
	const int numbers[] = {SIGINT, SIGHUP};
	struct tmesh_engine_context *context;
	struct fixture *fix = *state;
	char line[64];
	int end;

	for (size_t i = 0; i < 2; i++) {
		struct sigaction ignored = {.sa_handler = SIG_IGN}, before;
		int status;
		pid_t pid;

		sigaction(numbers[i], &ignored, &before);
		pid = run_program(argv, &end, line, sizeof(line));
		sigaction(numbers[i], &before, NULL);
		assert_string_equal(line, "ready second\n");
		kill(pid, numbers[i]);
		for (int n = 0; n < 10; n++) {
			assert_ok(tmesh_engine_connect(fix->ctx, "second", NULL, &context, err));
			tmesh_engine_context_unref(context);
		}
		assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
		kill(pid, SIGTERM);
		join_child(pid);
		close(end);
	}
}

int main(void)
{
	const struct CMUnitTest hasty[] = {TEST(test_limit)};
	const struct CMUnitTest confined[] = {TEST_SET_UP(test_confined)};
	int failed;

	if (make_folder())
		return 1;
	failed = UNIT_RUN("served", serve, unserve);
	served_limit = "--limit=0.5";
	failed += cmocka_run_group_tests_name("served, in haste", hasty, serve, unserve);
	served_limit = "--limit=600";
	if (syscall(SYS_landlock_create_ruleset, NULL, 0, 1) < 1)
		failed += UNIT_SKIP(confined, "this kernel has no Landlock");
	else
		failed += cmocka_run_group_tests_name("served, confined", confined, serve, unserve);
	return remove_folder() || failed;
}
