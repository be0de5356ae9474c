// SPDX-License-Identifier: MIT
/* A client: its objects and its requests. Nothing that it sends is trusted. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "process.h"

#define MAX_GRAPHS 1024
#define MAX_BINDINGS 16384
#define MAX_OPERANDS 65536

/* The regions that a graph keeps open, as long as the client has it or a binding of it. */
struct source {
	size_t refs, regions;
};

/* An object of a client by number, a graph or a binding, and how many regions it keeps open. A
 * binding keeps at most one for each operand, however often it is rebound. */
struct thing {
	void *object;
	struct source *source;
	size_t regions, operands; /* of a binding only */
	uint64_t tokens;	  /* that one run of it takes in */
};

struct things {
	struct thing *all;
	uint32_t room, max;
};

struct client {
	const struct service *service;
	struct caller caller;
	int socket;
	struct tmesh_channel *requests, *replies;
	struct tmesh_tensor *page_tensor;
	struct wire_page *page;
	struct things graphs, bindings;
	size_t regions; /* how many more it may open */
};

static int things_add(struct things *things, const struct thing *thing, uint32_t *id,
		      struct tmesh_error *err)
{
	uint32_t room = things->room ? 2 * things->room : 16;
	struct thing *more;

	for (*id = 0; *id < things->room; ++*id)
		if (!things->all[*id].object)
			goto found;
	if (room > things->max)
		return tmesh_fail(err, -EDQUOT,
				  "one client may have at most %u open at a time: close one first",
				  things->max);
	more = reallocarray(things->all, room, sizeof(*more));
	if (!more)
		return tmesh_fail(err, -ENOMEM, "no memory for another graph or binding");
	memset(more + things->room, 0, (room - things->room) * sizeof(*more));
	things->all = more;
	things->room = room;
found:
	things->all[*id] = *thing;
	thing->source->refs++;
	return 0;
}

static void *things_get(const struct things *things, uint32_t id)
{
	return id < things->room ? things->all[id].object : NULL;
}

static void drop_source(struct client *client, struct source *source)
{
	if (--source->refs)
		return;
	client->regions += source->regions;
	free(source);
}

static void drop_graph(struct client *client, uint32_t id)
{
	struct tmesh_engine_graph *graph = things_get(&client->graphs, id);

	if (!graph)
		return;
	tmesh_engine_graph_unref(graph);
	drop_source(client, client->graphs.all[id].source);
	client->graphs.all[id].object = NULL;
}

static void drop_binding(struct client *client, uint32_t id)
{
	struct tmesh_engine_binding *binding = things_get(&client->bindings, id);

	if (!binding)
		return;
	tmesh_engine_binding_unref(binding);
	client->regions += client->bindings.all[id].regions;
	drop_source(client, client->bindings.all[id].source);
	client->bindings.all[id].object = NULL;
}

/* Describe a graph's inputs, then its outputs, for the client's plug-in. */
static int describe(const struct tmesh_engine_graph *graph, struct wire *text,
		    struct tmesh_error *err)
{
	for (int side = 0; side < 2; side++) {
		size_t count =
			side ? tmesh_engine_graph_outputs(graph) : tmesh_engine_graph_inputs(graph);

		wire_put_u32(text, (uint32_t)count);
		for (size_t i = 0; i < count; i++) {
			struct tmesh_engine_operand operand = {.size = sizeof(operand)};
			int rc = (side ? tmesh_engine_graph_output
				       : tmesh_engine_graph_input)(graph, i, &operand, err);

			if (rc)
				return rc;
			wire_put_text(text, operand.name);
			wire_put_u32(text, operand.dtype);
			wire_put_u32(text, (uint32_t)operand.ndim);
			for (int32_t n = 0; n < operand.ndim; n++) {
				wire_put_u64(text, (uint64_t)operand.shape[n]);
				wire_put_text(text, operand.dims[n]);
			}
		}
	}
	if (text->wrong)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the graph's inputs and outputs need more than %u bytes to be "
				  "described",
				  WIRE_TEXT);
	return 0;
}

/* Open the tensors of a request. The client may be slow to give its memory. */
static int get_tensors(struct client *client, struct wire *request, struct wire_tensor **tensors,
		       size_t *count, size_t *regions, struct tmesh_error *err)
{
	int rc;

	/* Allow time for each region that the client may still open. */
	calls_wait(client->service->calls, client->regions * client->service->patience_ns);
	rc = wire_get_tensors(request, client->service->ctx, MAX_OPERANDS, client->regions, tensors,
			      count, regions, err);
	if (!rc)
		return calls_go_on(client->service->calls, err);
	calls_go_on(client->service->calls, NULL);
	return rc;
}

/* Explain why a file could not be read. An engine's library does not know about Landlock. */
static int explain(const char *path, int rc, struct tmesh_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd >= 0)
		close(fd);
	else if (errno == EACCES)
		return tmesh_fail(
			err, -EACCES,
			"tmesh-engine may not read %.150s: it reads what its user may, below "
			"its folders alone (--models, or models where a program starts it)",
			path);
	return rc;
}

static int add_graph(struct client *client, struct tmesh_engine_graph *graph, size_t regions,
		     uint32_t *id, struct tmesh_error *err)
{
	struct source *source = calloc(1, sizeof(*source));
	struct thing thing = {.object = graph, .source = source};
	int rc;

	if (!source)
		return tmesh_fail(err, -ENOMEM, "no memory for another graph");
	source->regions = regions;
	rc = things_add(&client->graphs, &thing, id, err);
	if (rc)
		free(source);
	else
		client->regions -= regions;
	return rc;
}

static int open_graph(struct client *client, struct wire *request, struct wire *reply, uint32_t *id,
		      struct tmesh_error *err)
{
	const char *path = wire_get_text(request);
	uint32_t flags = wire_get_u32(request);
	size_t count = wire_get_u32(request), tensor_count = 0, regions = 0;
	struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .flags = flags, .weight_count = count};
	struct tmesh_engine_weight *weights = NULL;
	struct wire_tensor *tensors = NULL;
	struct tmesh_engine_graph *graph;
	int rc = 0;

	if (request->wrong || *path != '/' || count > MAX_OPERANDS)
		return tmesh_fail(err, -EPROTO, "the client sent a malformed request for a graph");
	weights = calloc(count + 1, sizeof(*weights));
	if (!weights)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", count);
	for (size_t i = 0; i < count; i++)
		weights[i].name = wire_get_text(request);
	rc = get_tensors(client, request, &tensors, &tensor_count, &regions, err);
	if (!rc && tensor_count != count)
		rc = tmesh_fail(err, -EPROTO, "%zu names of weights, and %zu tensors", count,
				tensor_count);
	for (size_t i = 0; !rc && i < count; i++)
		weights[i].tensor = tensors[i].tensor;
	opts.weights = weights;
	if (!rc) {
		rc = tmesh_engine_graph_open(client->service->context, path, &opts, &graph, err);
		if (rc)
			rc = explain(path, rc, err);
	}
	wire_tensors_free(tensors, tensor_count);
	free(weights);
	if (rc)
		return rc;
	rc = describe(graph, reply, err);
	if (!rc)
		rc = add_graph(client, graph, regions, id, err);
	if (rc)
		tmesh_engine_graph_unref(graph);
	return rc;
}

/* Count the elements of the first input whose name means token numbers. */
static uint64_t count_tokens(const struct tmesh_engine_value *inputs, size_t count,
			     const struct wire_tensor *tensors)
{
	static const char *const names[] = {"token", "tokens", "input_ids"};

	for (size_t i = 0; i < count; i++) {
		for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
			const struct tmesh_layout *layout = tmesh_tensor_layout(tensors[i].tensor);
			uint64_t elements = 1;

			if (strcmp(inputs[i].name, names[n]) != 0)
				continue;
			for (int32_t dim = 0; dim < layout->ndim; dim++)
				elements *= (uint64_t)layout->shape[dim];
			return elements;
		}
	}
	return 0;
}

static int make_values(struct client *client, const struct wire_tensor *tensors, size_t count,
		       struct tmesh_engine_value *values, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++)
		rc = tmesh_engine_tensor_wrap(client->service->context, tensors[i].tensor,
					      TMESH_READ | (tensors[i].write ? TMESH_WRITE : 0), 0,
					      &values[i].tensor, err);
	return rc;
}

static int bind_values(struct client *client, uint32_t graph_id, struct wire *request, uint32_t *id,
		       struct tmesh_error *err)
{
	struct tmesh_engine_graph *graph = things_get(&client->graphs, graph_id);
	size_t inputs = wire_get_u32(request), count = wire_get_u32(request), tensor_count = 0;
	struct tmesh_engine_binding *binding;
	struct wire_tensor *tensors = NULL;
	struct tmesh_engine_value *values;
	struct thing thing;
	uint64_t tokens = 0;
	size_t regions = 0;
	int rc;

	if (!graph || request->wrong || inputs > count || count > MAX_OPERANDS)
		return tmesh_fail(err, -EPROTO,
				  "the client sent a malformed request for a binding");
	values = calloc(count + 1, sizeof(*values));
	if (!values)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu operands", count);
	for (size_t i = 0; i < count; i++) {
		values[i].name = wire_get_text(request);
		values[i].in_place = wire_get_text(request);
		if (!*values[i].in_place)
			values[i].in_place = NULL;
	}
	rc = get_tensors(client, request, &tensors, &tensor_count, &regions, err);
	if (!rc && tensor_count != count)
		rc = tmesh_fail(err, -EPROTO, "%zu operands, and %zu tensors", count, tensor_count);
	if (!rc)
		rc = make_values(client, tensors, count, values, err);
	if (!rc)
		rc = tmesh_engine_bind(graph, values, inputs, values + inputs, count - inputs,
				       &binding, err);
	if (!rc)
		tokens = count_tokens(values, inputs, tensors);
	for (size_t i = 0; i < count; i++)
		if (values[i].tensor)
			tmesh_engine_tensor_unref(values[i].tensor);
	wire_tensors_free(tensors, tensor_count);
	free(values);
	if (rc)
		return rc;
	thing = (struct thing){.object = binding,
			       .source = client->graphs.all[graph_id].source,
			       .regions = regions,
			       .operands = count,
			       .tokens = tokens};
	rc = things_add(&client->bindings, &thing, id, err);
	if (rc)
		tmesh_engine_binding_unref(binding);
	else
		client->regions -= regions;
	return rc;
}

static int rebind_values(struct client *client, uint32_t id, struct wire *request,
			 struct tmesh_error *err)
{
	struct tmesh_engine_binding *binding = things_get(&client->bindings, id);
	size_t count = wire_get_u32(request), tensor_count = 0, regions = 0;
	struct wire_tensor *tensors = NULL;
	struct tmesh_engine_value *values;
	struct thing *thing;
	int rc;

	if (!binding || request->wrong || count > MAX_OPERANDS)
		return tmesh_fail(err, -EPROTO, "a malformed request to rebind");
	values = calloc(count + 1, sizeof(*values));
	if (!values)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu operands", count);
	for (size_t i = 0; i < count; i++)
		values[i].name = wire_get_text(request);
	rc = get_tensors(client, request, &tensors, &tensor_count, &regions, err);
	if (!rc && tensor_count != count)
		rc = tmesh_fail(err, -EPROTO, "%zu operands, and %zu tensors", count, tensor_count);
	if (!rc)
		rc = make_values(client, tensors, count, values, err);
	if (!rc)
		rc = tmesh_engine_binding_rebind(binding, values, count, err);
	for (size_t i = 0; i < count; i++)
		if (values[i].tensor)
			tmesh_engine_tensor_unref(values[i].tensor);
	wire_tensors_free(tensors, tensor_count);
	free(values);
	if (rc)
		return rc;
	thing = &client->bindings.all[id];
	if (regions > thing->operands - thing->regions)
		regions = thing->operands - thing->regions;
	thing->regions += regions;
	client->regions -= regions;
	return 0;
}

static int client_run(struct client *client, uint32_t id,
		      struct tmesh_engine_cancellable *cancellable, struct tmesh_error *err)
{
	struct tmesh_engine_binding *binding = things_get(&client->bindings, id);

	if (!binding)
		return tmesh_fail(err, -EPROTO, "the client named a binding that does not exist");
	return tmesh_engine_binding_dispatch_cancellable(binding, cancellable, err);
}

/* Perform a request; @text is a copy of its text. */
static int perform(struct client *client, const struct wire_request *request, struct wire *text,
		   struct tmesh_engine_cancellable *cancellable, struct wire_reply *reply,
		   struct tmesh_error *err)
{
	struct wire answer = {.text = client->page->text, .bytes = WIRE_TEXT};
	int rc;

	switch (request->op) {
	case WIRE_GRAPH_OPEN:
		rc = open_graph(client, text, &answer, &reply->id, err);
		reply->bytes = (uint32_t)answer.at;
		return rc;
	case WIRE_BIND:
		return bind_values(client, request->id, text, &reply->id, err);
	case WIRE_REBIND:
		return rebind_values(client, request->id, text, err);
	case WIRE_RUN:
		return client_run(client, request->id, cancellable, err);
	default:
		return tmesh_fail(err, -EPROTO, "an unknown request (%u)", request->op);
	}
}

static int answer(struct client *client, const struct wire_reply *reply)
{
	struct tmesh_message message = {.bytes = sizeof(*reply)};

	memcpy(message.data, reply, sizeof(*reply));
	/* The channel has room for every reply that a client can wait for. A client that never
	 * reads is dropped. */
	return tmesh_channel_try_send(client->replies, &message, NULL) ? -EPIPE : 1;
}

static int work(struct client *client, const struct wire_request *request,
		struct tmesh_engine_cancellable *cancellable, struct wire_reply *reply,
		struct tmesh_error *err)
{
	struct wire text = {.bytes = request->bytes};
	int rc;

	if (request->bytes > WIRE_TEXT)
		return tmesh_fail(err, -EPROTO, "a request of %u bytes: at most %u", request->bytes,
				  WIRE_TEXT);
	if (request->deadline && request->deadline <= tmesh_now_ns())
		return tmesh_fail(err, -ETIMEDOUT,
				  "the deadline had passed when the call's turn came");
	text.text = malloc(text.bytes + 1);
	if (!text.text)
		return tmesh_fail(err, -ENOMEM, "no memory for a request of %zu bytes", text.bytes);
	memcpy(text.text, client->page->text, text.bytes);
	rc = perform(client, request, &text, cancellable, reply, err);
	free(text.text);
	return rc;
}

/* Take a call's turn. The reply to a cancelled call has no text, because the client owns the page
 * again. */
static int turn(struct client *client, const struct wire_request *request)
{
	struct call call = {.number = request->number,
			    .until = request->deadline,
			    .stops = request->op == WIRE_RUN};
	struct wire_reply reply = {.number = request->number};
	struct tmesh_error err = {0};
	int rc;

	if (call.stops && things_get(&client->bindings, request->id))
		call.tokens = client->bindings.all[request->id].tokens;
	reply.code = calls_begin(client->service->calls, &client->caller, &call, &err);
	if (reply.code)
		return answer(client, &reply);
	atomic_store(&client->page->begun, request->number);
	reply.code = work(client, request, call.cancellable, &reply, &err);
	if (reply.code) {
		reply.bytes = (uint32_t)strnlen(err.message, sizeof(err.message) - 1);
		memcpy(client->page->text, err.message, reply.bytes);
	}
	calls_ran(client->service->calls, reply.code);
	rc = answer(client, &reply);
	calls_end(client->service->calls);
	return rc;
}

int client_turn(struct client *client)
{
	struct wire_request request;
	struct tmesh_message message;
	int rc = tmesh_channel_try_recv(client->requests, &message, NULL);

	if (rc == -EAGAIN)
		return 0;
	if (!rc && message.tensor)
		tmesh_tensor_unref(message.tensor);
	if (rc || message.tensor || message.bytes != sizeof(request))
		return -EPIPE;
	memcpy(&request, message.data, sizeof(request));
	client->caller.seen = request.number;
	if (request.op == WIRE_GRAPH_CLOSE || request.op == WIRE_UNBIND) {
		/* Closing a session can take long. */
		calls_busy(client->service->calls);
		(request.op == WIRE_UNBIND ? drop_binding : drop_graph)(client, request.id);
		calls_idle(client->service->calls);
		return 1;
	}
	return turn(client, &request);
}

int client_notifier(const struct client *client)
{
	return tmesh_channel_poll_fd(client->requests, NULL);
}

int client_socket(const struct client *client)
{
	return client->socket;
}

static int make_page(struct client *client, char *token, struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts),
					       .label = "tmesh-engine client"};
	const int64_t bytes = sizeof(struct wire_page);
	void *data;
	int rc = tmesh_tensor_create(client->service->ctx, TMESH_UINT8, 1, &bytes, &opts,
				     &client->page_tensor, err);

	if (!rc)
		rc = tmesh_tensor_data(client->page_tensor, TMESH_READ | TMESH_WRITE, &data, err);
	if (!rc)
		rc = tmesh_region_token(tmesh_tensor_region(client->page_tensor),
					TMESH_READ | TMESH_WRITE, token, err);
	if (!rc)
		client->page = data;
	return rc;
}

static int send_words(int socket, const struct wire_welcome *words)
{
	return send(socket, words, sizeof(*words), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(*words)
		       ? 0
		       : -EPIPE;
}

static void say_no(int socket, int code, const char *message)
{
	struct wire_welcome words = {.magic = WIRE_MAGIC, .code = code, .pid = (uint32_t)getpid()};

	snprintf(words.message, sizeof(words.message), "%s", message);
	send_words(socket, &words);
}

int client_new(const struct service *service, int socket, struct client **out,
	       struct tmesh_error *err)
{
	struct tmesh_engine_context *context = service->context;
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 1, .layouts = 1};
	struct wire_welcome words = {.magic = WIRE_MAGIC, .pid = (uint32_t)getpid()};
	struct client *client = calloc(1, sizeof(*client));
	int rc;

	if (!client) {
		client_refuse(socket, -ENOMEM, "the engine has no memory for another client");
		return tmesh_fail(err, -ENOMEM, "no memory for a client");
	}
	client->service = service;
	client->socket = socket;
	client->regions = service->max_regions;
	client->graphs.max = MAX_GRAPHS;
	client->bindings.max = MAX_BINDINGS;
	snprintf(words.backend, sizeof(words.backend), "%s", tmesh_engine_context_backend(context));
	snprintf(words.version, sizeof(words.version), "%s", tmesh_engine_context_version(context));
	rc = tmesh_channel_create(service->ctx, TMESH_CHANNEL_RECV, &opts, &client->requests, err);
	if (!rc)
		rc = tmesh_channel_create(service->ctx, TMESH_CHANNEL_SEND, &opts, &client->replies,
					  err);
	if (!rc)
		rc = tmesh_channel_token(client->requests, words.requests, err);
	if (!rc)
		rc = tmesh_channel_token(client->replies, words.replies, err);
	if (!rc)
		rc = make_page(client, words.page, err);
	if (!rc && client_notifier(client) < 0)
		rc = tmesh_fail(err, -EMFILE, "no descriptor for a client's notifier");
	if (!rc && calls_add(service->calls, &client->caller, socket, client->page))
		rc = tmesh_fail(err, -ENOMEM, "a client's socket cannot be listened to");
	if (!rc)
		rc = send_words(socket, &words);
	/* Give a reason: a client without one connects again and again. */
	if (rc && rc != -EPIPE)
		say_no(socket, rc, err->message);
	if (rc)
		client_free(client);
	else
		*out = client;
	return rc;
}

void client_free(struct client *client)
{
	calls_remove(client->service->calls, &client->caller);
	for (uint32_t i = 0; i < client->bindings.room; i++)
		drop_binding(client, i);
	for (uint32_t i = 0; i < client->graphs.room; i++)
		drop_graph(client, i);
	free(client->bindings.all);
	free(client->graphs.all);
	if (client->requests)
		tmesh_channel_unref(client->requests);
	if (client->replies)
		tmesh_channel_unref(client->replies);
	tmesh_tensor_unref(client->page_tensor);
	close(client->socket);
	free(client);
}

void client_refuse(int socket, int code, const char *message)
{
	say_no(socket, code, message);
	close(socket);
}
