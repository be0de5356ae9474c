// SPDX-License-Identifier: MIT
/*
 * One end of a channel. The process that made or opened it owns it, and its end closes it.
 *
 * On a normal scheduler nothing here waits, except for the short busy look that the caller asked
 * for. An operation that cannot be done now gives eagain. After channel_wait, {select, _, ref,
 * ready_input} with the caller's ref says when to try again, also when the end is closed. A region
 * that a message needs is opened on a dirty scheduler.
 */
#include "channel_end.h"

#define SPIN_LEAST_NS 1000u
#define SPIN_MAX_NS 100000u

/* The cost of a region in bytes, beside its size. */
#define REGION_COST (16u << 10)

static bool get_role(ErlNifEnv *env, ERL_NIF_TERM term, enum tmesh_channel_role *role,
		     struct tmesh_error *err)
{
	char name[8] = "";

	enif_get_atom(env, term, name, sizeof(name), ERL_NIF_LATIN1);
	*role = !strcmp(name, "send") ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV;
	if (*role == TMESH_CHANNEL_SEND || !strcmp(name, "recv"))
		return true;
	refuse(err, -EINVAL, "a channel's role is :send or :recv");
	return false;
}

/* {capacity, producers, regions, layouts, writable, max_regions, max_bytes, spin_ns, limit} */
static bool get_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_channel_opts *opts,
		     struct tmesh_error *err)
{
	ErlNifUInt64 max_bytes, spin_ns;
	const ERL_NIF_TERM *field;
	bool writable;
	int arity;

	*opts = (struct tmesh_channel_opts){.size = sizeof(*opts), .flags = TMESH_CHANNEL_NO_OPEN};
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 9 ||
	    !enif_get_uint(env, field[0], &opts->capacity) ||
	    !enif_get_uint(env, field[1], &opts->producers) ||
	    !enif_get_uint(env, field[2], &opts->regions) ||
	    !enif_get_uint(env, field[3], &opts->layouts) ||
	    !enif_get_uint(env, field[5], &opts->max_regions) ||
	    !enif_get_uint64(env, field[6], &max_bytes) ||
	    !enif_get_uint64(env, field[7], &spin_ns) ||
	    !enif_get_uint(env, field[8], &opts->limit)) {
		refuse(err, -EINVAL, "a channel's options are numbers of at least 0");
		return false;
	}
	if (spin_ns > SPIN_MAX_NS) {
		refuse(err, -EINVAL, "spin_us is more than %u, the longest spin of a scheduler",
		       SPIN_MAX_NS / 1000);
		return false;
	}
	opts->max_bytes = max_bytes;
	opts->spin_ns = spin_ns;
	if (!get_bool(env, field[4], "writable", &writable, err))
		return false;
	opts->rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	return true;
}

/* channel_create(context, role, opts) -> {ok, {channel, token}} */
NIF(channel_create)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel_opts opts;
	enum tmesh_channel_role role;
	struct channel_end *end;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err) || !get_role(env, argv[1], &role, &err) ||
	    !get_opts(env, argv[2], &opts, &err))
		return make_error(env, &err);
	end = channel_end_new(context, &opts, &err);
	if (!end)
		return make_error(env, &err);
	if (tmesh_channel_create(context->ctx, role, &opts, &end->channel, &err) ||
	    tmesh_channel_token(end->channel, token, &err))
		term = make_error(env, &err);
	else
		term = make_ok(env, enif_make_tuple2(env, channel_end_term(env, end),
						     make_string(env, token)));
	enif_release_resource(end);
	return term;
}

/* channel_open(context, token, role, opts) -> {ok, channel} */
NIF(channel_open)
{
	struct tmesh_channel_opts opts;
	enum tmesh_channel_role role;
	struct channel_end *end;
	struct context *context;
	struct tmesh_error err;
	ErlNifBinary text;
	char token[TMESH_TOKEN_SIZE] = "";
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err) || !get_role(env, argv[2], &role, &err) ||
	    !get_opts(env, argv[3], &opts, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &text) || text.size >= sizeof(token))
		return make_refusal(env, -EPROTO,
				    "a channel's token is a string as its maker has it");
	memcpy(token, text.data, text.size);
	end = channel_end_new(context, &opts, &err);
	if (!end)
		return make_error(env, &err);
	if (begin_opening(context, &err)) {
		if (tmesh_channel_open(context->ctx, token, role, &opts, &end->channel, &err))
			end->channel = NULL;
		end_opening(context);
	}
	term = end->channel ? make_ok(env, channel_end_term(env, end)) : make_error(env, &err);
	enif_release_resource(end);
	return term;
}

/* Make a message to send. Its tensor is the caller's reference. False: @err is filled. */
static bool get_message(ErlNifEnv *env, ERL_NIF_TERM tensor, ERL_NIF_TERM bytes,
			struct tmesh_message *message, struct tmesh_error *err)
{
	struct handle *handle;
	ErlNifBinary binary;

	*message = (struct tmesh_message){0};
	if (!enif_inspect_binary(env, bytes, &binary) || binary.size > sizeof(message->data)) {
		refuse(err, -EINVAL,
		       "a message's bytes are a binary of at most %zu, %u beside a tensor",
		       sizeof(message->data), TMESH_MESSAGE_TENSOR_BYTES);
		return false;
	}
	memcpy(message->data, binary.data, binary.size);
	message->bytes = (uint32_t)binary.size;
	if (enif_is_identical(tensor, atoms.nil))
		return true;
	message->tensor = get_tensor(env, tensor, &handle, err);
	return message->tensor;
}

static void count_passed(struct channel_end *end, const struct tmesh_tensor *tensor)
{
	atomic_fetch_add_explicit(&end->passed, tmesh_tensor_bytes(tensor) + REGION_COST,
				  memory_order_relaxed);
}

/* Return ok | eagain | an error. The caller keeps the end. */
static ERL_NIF_TERM send_now(ErlNifEnv *env, struct channel_end *end,
			     const struct tmesh_message *message)
{
	struct tmesh_error err;
	int rc = tmesh_channel_try_send(end->channel, message, &err);

	if (!rc && message->tensor && !atomic_load(&end->context->named))
		atomic_store(&end->context->named, true);
	if (!rc && message->tensor)
		count_passed(end, message->tensor);
	if (!rc)
		return atoms.ok;
	return rc == -EAGAIN ? atoms.eagain : make_error(env, &err);
}

/* Return whether @term is a tensor of a context that has given no token yet. The first token
 * starts services, which takes too long for a normal scheduler. */
static bool is_first(ErlNifEnv *env, ERL_NIF_TERM term)
{
	struct handle *handle;

	return enif_get_resource(env, term, handle_type, (void **)&handle) &&
	       !atomic_load_explicit(&handle->context->named, memory_order_relaxed);
}

static NIF(send_message)
{
	struct tmesh_message message;
	struct channel_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!get_message(env, argv[1], argv[2], &message, &err))
		return make_error(env, &err);
	end = channel_end_get(env, argv[0], &err);
	if (end) {
		term = send_now(env, end, &message);
		channel_end_put(env, end);
	} else {
		term = channel_end_refused(env, &err, "channel_send", send_message, argc, argv);
	}
	put_tensor(env, message.tensor);
	return term;
}

/* channel_send(channel, nil | handle, bytes) -> ok | eagain */
NIF(channel_send)
{
	if (is_first(env, argv[1]))
		return enif_schedule_nif(env, "channel_send", ERL_NIF_DIRTY_JOB_IO_BOUND,
					 send_message, argc, argv);
	return send_message(env, argc, argv);
}

/* Return true if @came is the tensor @given; @came is released then. */
static bool is_given(struct tmesh_tensor *came, const struct tmesh_tensor *given)
{
	return came && given &&
	       tmesh_region_id(tmesh_tensor_region(came)) ==
		       tmesh_region_id(tmesh_tensor_region(given)) &&
	       same_layout(tmesh_tensor_layout(came), tmesh_tensor_layout(given)) &&
	       !tmesh_tensor_try_unref(came);
}

/* Return given | {ok, {nil | given | {handle, ref}, bytes}}. The most frequent answer, given,
 * makes no terms. Take over the message's tensor. */
static ERL_NIF_TERM make_message(ErlNifEnv *env, struct channel_end *end,
				 const struct tmesh_message *message,
				 const struct tmesh_tensor *given)
{
	ERL_NIF_TERM tensor = atoms.nil, bytes;
	struct tmesh_error err;

	if (is_given(message->tensor, given)) {
		tensor = atoms.given;
		if (!message->bytes)
			return tensor;
	} else if (message->tensor) {
		count_passed(end, message->tensor);
		if (!make_handle(env, end->context, message->tensor, &tensor, &err))
			return make_error(env, &err);
	}
	memcpy(enif_make_new_binary(env, message->bytes, &bytes), message->data, message->bytes);
	return make_ok(env, enif_make_tuple2(env, tensor, bytes));
}

/* Double the busy look when it finds a message, and halve it when it does not. */
static int receive(struct channel_end *end, struct tmesh_message *message, struct tmesh_error *err)
{
	int rc;

	if (!end->spin_max)
		return tmesh_channel_try_recv(end->channel, message, err);
	rc = tmesh_channel_recv(end->channel, message, (int64_t)end->spin_ns, err);
	if (rc != -ETIMEDOUT) {
		end->spin_ns = 2 * end->spin_ns < end->spin_max ? 2 * end->spin_ns : end->spin_max;
		return rc;
	}
	if (end->spin_ns > SPIN_LEAST_NS)
		end->spin_ns /= 2;
	return tmesh_channel_try_recv(end->channel, message, err);
}

/* Open the region of a message on a dirty scheduler. Only some of them may wait for peers at
 * once. */
static NIF(prepare)
{
	struct context *context;
	struct channel_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term = atoms.again;

	end = channel_end_get(env, argv[0], &err);
	if (!end)
		return make_error(env, &err);
	context = end->context;
	if (atomic_fetch_add(&context->opening, 1) >= context->max_opening)
		term = enif_make_atom(env, "busy");
	else if (tmesh_channel_prepare(end->channel, &err))
		term = make_error(env, &err);
	atomic_fetch_sub(&context->opening, 1);
	channel_end_put(env, end);
	return term;
}

/* Return given | {ok, message} | eagain | again (open its region first) | an error. The caller
 * keeps the end. */
static ERL_NIF_TERM recv_now(ErlNifEnv *env, struct channel_end *end,
			     const struct tmesh_tensor *given)
{
	struct tmesh_message message;
	struct tmesh_error err;
	int rc = receive(end, &message, &err);

	switch (rc) {
	case 0:
		return make_message(env, end, &message, given);
	case -EAGAIN:
		return atoms.eagain;
	case -EINPROGRESS:
		return atoms.again;
	default:
		return make_error(env, &err);
	}
}

/*
 * channel_recv(channel, nil | handle) -> given | {ok, message} | eagain | again (at once) | busy
 * (soon)
 *
 * A message about the handle's own tensor makes no other handle.
 */
NIF(channel_recv)
{
	struct tmesh_tensor *given = NULL;
	struct channel_end *end;
	struct handle *handle;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!enif_is_identical(argv[1], atoms.nil)) {
		given = get_tensor(env, argv[1], &handle, &err);
		if (!given)
			return make_error(env, &err);
	}
	end = channel_end_get(env, argv[0], &err);
	if (end) {
		term = recv_now(env, end, given);
		channel_end_put(env, end);
	} else {
		term = channel_end_refused(env, &err, "channel_recv", channel_recv, argc, argv);
	}
	put_tensor(env, given);
	if (end && enif_is_identical(term, atoms.again))
		return enif_schedule_nif(env, "channel_recv", ERL_NIF_DIRTY_JOB_IO_BOUND, prepare,
					 argc, argv);
	return term;
}

static NIF(call)
{
	struct channel_end *out, *into = NULL;
	struct tmesh_message message;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!get_message(env, argv[2], argv[3], &message, &err))
		return make_error(env, &err);
	out = channel_end_get(env, argv[0], &err);
	if (out)
		into = channel_end_get(env, argv[1], &err);
	term = into ? send_now(env, out, &message)
		    : channel_end_refused(env, &err, "channel_call", call, argc, argv);
	/* Put the end back here, not later: this work runs while the message is on its way. */
	if (out)
		channel_end_put(env, out);
	if (into && enif_is_identical(term, atoms.ok)) {
		term = recv_now(env, into, message.tensor);
		if (enif_is_atom(env, term) && !enif_is_identical(term, atoms.given))
			term = enif_make_tuple2(env, enif_make_atom(env, "sent"), term);
	}
	if (into)
		channel_end_put(env, into);
	put_tensor(env, message.tensor);
	return term;
}

/*
 * channel_call(out, into, nil | handle, bytes) -> given | {ok, message} |
 * {sent, what receiving gave} | eagain (not sent)
 */
NIF(channel_call)
{
	if (is_first(env, argv[2]))
		return enif_schedule_nif(env, "channel_call", ERL_NIF_DIRTY_JOB_IO_BOUND, call,
					 argc, argv);
	return call(env, argc, argv);
}

/* channel_flush(channel) -> ok | full (undelivered messages). Releases the regions of delivered
 * ones. */
NIF(channel_flush)
{
	struct channel_end *end;
	struct tmesh_error err;
	int rc;

	end = channel_end_get(env, argv[0], &err);
	if (!end)
		return make_error(env, &err);
	rc = tmesh_channel_flush(end->channel, 0, &err);
	channel_end_put(env, end);
	if (rc == -ETIMEDOUT)
		return enif_make_atom(env, "full");
	return rc ? make_error(env, &err) : atoms.ok;
}

/* Send @ref in a message of the emulator, or the @whole message itself, when a new try may
 * succeed. The caller keeps the end. */
static ERL_NIF_TERM wait_for(ErlNifEnv *env, struct channel_end *end, ERL_NIF_TERM ref, bool whole)
{
	struct tmesh_error err;
	ErlNifPid self;
	int fd = tmesh_channel_poll_fd(end->channel, &err);

	if (fd == -EOPNOTSUPP)
		return enif_make_atom(env, "full");
	if (fd < 0)
		return make_error(env, &err);
	enif_clear_env(end->env);
	end->ref = enif_make_copy(end->env, ref);
	end->whole = whole;
	end->selected = true;
	end->waits = true;
	atomic_store(&end->waiter, enif_self(env, &self)->pid);
	if (whole)
		enif_select_read(env, fd, end, NULL, ref, NULL);
	else
		enif_select(env, fd, ERL_NIF_SELECT_READ, end, NULL, ref);
	return atoms.ok;
}

/*
 * channel_wait(channel, ref) -> ok | full (no descriptor reports room)
 *
 * Call it after eagain. A message with @ref says when to try again. The caller makes @ref just
 * before, so that the emulator searches only later messages for it.
 */
NIF(channel_wait)
{
	struct channel_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!enif_is_ref(env, argv[1]))
		return make_refusal(env, -EINVAL, "a wait has a reference");
	end = channel_end_get(env, argv[0], &err);
	if (!end)
		return channel_end_refused(env, &err, "channel_wait", channel_wait, argc, argv);
	term = wait_for(env, end, argv[1], false);
	channel_end_put(env, end);
	return term;
}

/*
 * channel_watch(channel, message) -> ok. The message comes once, when there may be something to
 * receive. epipe: the channel is empty, and no sender is left.
 */
NIF(channel_watch)
{
	struct channel_end *end;
	struct tmesh_error err;
	uint64_t waiting;
	ERL_NIF_TERM term;

	end = channel_end_get(env, argv[0], &err);
	if (!end)
		return channel_end_refused(env, &err, "channel_watch", channel_watch, argc, argv);
	/* Check in this order: a sender may send and leave. A message in place of the error would
	 * make a receiver that watches again loop for ever. */
	if (tmesh_channel_gone(end->channel) &&
	    !tmesh_channel_level(end->channel, &waiting, NULL, &err) && !waiting) {
		refuse(&err, -EPIPE, "watch: the channel is empty, and no sender is left");
		term = make_error(env, &err);
	} else {
		term = wait_for(env, end, argv[1], true);
	}
	channel_end_put(env, end);
	return term;
}

/* channel_passed(channel, known) -> {ok, bytes} of tensors that passed this end, and whose refs
 * may be garbage. The caller knows that @known of these bytes are no garbage: they are counted no
 * more. */
NIF(channel_passed)
{
	struct channel *channel;
	ErlNifUInt64 known;
	uint64_t bytes;

	if (!enif_get_resource(env, argv[0], channel_type, (void **)&channel) ||
	    !enif_get_uint64(env, argv[1], &known))
		return make_refusal(env, -EINVAL,
				    "passed: a channel and a number of bytes are needed");
	bytes = atomic_load_explicit(&channel->end->passed, memory_order_relaxed);
	if (known > bytes)
		known = bytes;
	atomic_fetch_sub_explicit(&channel->end->passed, known, memory_order_relaxed);
	return make_ok(env, enif_make_uint64(env, bytes - known));
}

/*
 * channel_gone(channel) -> ok | an error
 *
 * ok: the other end is open, or was never opened, or another process works with this end and will
 * notice. The call makes no other process fail.
 */
NIF(channel_gone)
{
	struct channel *channel;
	bool gone = false;

	if (!enif_get_resource(env, argv[0], channel_type, (void **)&channel))
		return make_refusal(env, -EINVAL, "not a channel");
	if (channel_end_look(channel->end)) {
		gone = tmesh_channel_gone(channel->end->channel);
		channel_end_looked(env, channel->end);
	} else if (channel_end_is_closed(channel->end)) {
		return make_refusal(env, -EBADF, "the channel is closed");
	}
	if (!gone)
		return atoms.ok;
	return make_refusal(env, -EPIPE, "no process is left at the other end of the channel");
}

/* channel_cancel(channel) -> ok. No message comes from now on; one may have come before. */
NIF(channel_cancel)
{
	struct channel_end *end;
	struct tmesh_error err;

	end = channel_end_get(env, argv[0], &err);
	if (!end && err.code == -EINPROGRESS)
		return channel_end_refused(env, &err, "channel_cancel", channel_cancel, argc, argv);
	if (!end)
		return atoms.ok;
	if (end->selected)
		enif_select(env, tmesh_channel_poll_fd(end->channel, &err),
			    ERL_NIF_SELECT_READ | ERL_NIF_SELECT_CANCEL, end, NULL,
			    atoms.undefined);
	channel_end_put(env, end);
	return atoms.ok;
}

/* channel_close(channel) -> ok, also when repeated */
NIF(channel_close)
{
	struct channel *channel;

	if (enif_get_resource(env, argv[0], channel_type, (void **)&channel))
		channel_end_close(env, channel->end);
	return atoms.ok;
}
