/* SPDX-License-Identifier: MIT */
/*
 * One end of a channel. It belongs to the process that made or opened it and ends with that one.
 *
 * What the emulator polls it keeps until it is told to stop. So terms hold another resource: when
 * nobody has that any more, the end is closed.
 *
 * Nothing here waits on a normal scheduler but for the short busy look that was asked for: what
 * cannot be done now gives eagain. After channel_wait, {select, _, ref, ready_input} with the
 * caller's ref says when to try again: when the end is closed, too. A region that a message needs
 * is opened on a dirty scheduler.
 */
#include "nif.h"

#include <errno.h>
#include <string.h>

#define SPIN_LEAST_NS 1000u
#define SPIN_MAX_NS 100000u

/* Of an end's state: somebody works with it, and others are refused; so they are while the waiter,
 * who is to come back, lives; it was closed. */
#define END_USED 1u
#define END_AWAITED 2u
#define END_CLOSED 4u

struct channel_end {
	atomic_uint state;
	struct tmesh_channel *channel;
	bool selected; /* the emulator has had its descriptor */
	bool waits;    /* who works with it is the waiter when that is done */
	_Atomic ERL_NIF_TERM waiter;
	ErlNifEnv *env;		 /* of what follows */
	ERL_NIF_TERM ref;	 /* in the message that the waiter is told by */
	uint64_t spin_max;	 /* 0: none */
	uint64_t spin_ns;	 /* what it is worth at present */
	struct context *context; /* whose limits apply */
	struct garbage *garbage;
};

/* What terms hold. */
struct channel {
	struct channel_end *end;
};

static void drop_channel(void *object)
{
	tmesh_channel_unref(object);
}

/* Nobody works with it, nor selects on its descriptor, any more. */
static void let_go(ErlNifEnv *env, struct channel_end *end)
{
	if (end->channel)
		garbage_put(env, end->garbage, end->channel);
	else
		garbage_free(end->garbage);
	end->channel = NULL;
	end->garbage = NULL;
}

void channel_end_dtor(ErlNifEnv *env, void *object)
{
	struct channel_end *end = object;

	let_go(env, end);
	if (end->env)
		enif_free_env(end->env);
	enif_release_resource(end->context);
}

void channel_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call)
{
	let_go(env, object);
}

/* It is closed, and nobody works with it any more. */
static void finish(ErlNifEnv *env, struct channel_end *end)
{
	ErlNifPid waiter = {atomic_load(&end->waiter)};

	if (atomic_load(&end->state) & END_AWAITED)
		enif_send(env, &waiter, NULL,
			  enif_make_tuple4(env, enif_make_atom(env, "select"),
					   enif_make_resource(env, end),
					   enif_make_copy(env, end->ref),
					   enif_make_atom(env, "ready_input")));
	if (end->selected)
		enif_select(env, tmesh_channel_poll_fd(end->channel, NULL), ERL_NIF_SELECT_STOP,
			    end, NULL, atoms.undefined);
	else
		let_go(env, end);
}

/* Once; whoever works with it at this moment finishes it. */
static void close_end(ErlNifEnv *env, struct channel_end *end)
{
	if (!(atomic_fetch_or(&end->state, END_CLOSED) & (END_USED | END_CLOSED)))
		finish(env, end);
}

void channel_end_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor)
{
	close_end(env, object);
}

void channel_dtor(ErlNifEnv *env, void *object)
{
	struct channel *channel = object;

	close_end(env, channel->end);
	enif_release_resource(channel->end);
}

static void put_end(ErlNifEnv *env, struct channel_end *end)
{
	unsigned int change = end->waits ? END_USED | END_AWAITED : END_USED;

	end->waits = false;
	if (atomic_fetch_xor(&end->state, change) & END_CLOSED)
		finish(env, end);
}

/* Of an end that is awaited: whether by another process than this, which lives. */
static bool is_others(ErlNifEnv *env, struct channel_end *end)
{
	ErlNifPid waiter = {atomic_load(&end->waiter)}, self;

	enif_self(env, &self);
	return enif_compare_pids(&waiter, &self) && enif_is_process_alive(env, &waiter);
}

/* The open end of a term, to be put back, or NULL with @err filled. */
static struct channel_end *get_end(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct channel *channel;
	struct channel_end *end;
	unsigned int state;

	if (!enif_get_resource(env, term, channel_type, (void **)&channel)) {
		refuse(err, -EINVAL, "not a channel");
		return NULL;
	}
	end = channel->end;
	state = atomic_load(&end->state);
	if (!(state & END_AWAITED) || !is_others(env, end)) {
		state &= END_AWAITED;
		if (atomic_compare_exchange_strong(&end->state, &state, END_USED))
			return end;
	}
	refuse(err, state & END_CLOSED ? -EBADF : -EBUSY, "%s",
	       state & END_CLOSED ? "the channel is closed"
				  : "another process uses this end of the channel");
	return NULL;
}

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

/* {slots, producers, regions, layouts, writable, max_regions, max_bytes, spin_ns, limit} */
static bool get_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_channel_opts *opts,
		     struct tmesh_error *err)
{
	ErlNifUInt64 max_bytes, spin_ns;
	const ERL_NIF_TERM *field;
	bool writable;
	int arity;

	*opts = (struct tmesh_channel_opts){.size = sizeof(*opts), .flags = TMESH_CHANNEL_NO_OPEN};
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 9 ||
	    !enif_get_uint(env, field[0], &opts->slots) ||
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
		refuse(err, -EINVAL, "spin_us is more than %u: schedulers are for everybody",
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

/* An end without a channel yet, or NULL with @err filled. */
static struct channel_end *end_new(struct context *context, const struct tmesh_channel_opts *opts,
				   struct tmesh_error *err)
{
	struct channel_end *end = enif_alloc_resource(channel_end_type, sizeof(*end));

	*end = (struct channel_end){.context = context,
				    .env = enif_alloc_env(),
				    .garbage = garbage_alloc(drop_channel)};
	end->spin_max = end->spin_ns = opts->spin_ns;
	enif_keep_resource(context);
	if (end->garbage && end->env)
		return end;
	refuse(err, -ENOMEM, "no memory for a channel");
	enif_release_resource(end);
	return NULL;
}

/* The term of an end, which closes it when it is garbage. */
static ERL_NIF_TERM make_end(ErlNifEnv *env, struct channel_end *end)
{
	struct channel *channel = enif_alloc_resource(channel_type, sizeof(*channel));
	ERL_NIF_TERM term;
	ErlNifPid self;

	enif_keep_resource(end);
	*channel = (struct channel){.end = end};
	term = enif_make_resource(env, channel);
	enif_release_resource(channel);
	enif_self(env, &self);
	enif_monitor_process(env, end, &self, NULL);
	return term;
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
	end = end_new(context, &opts, &err);
	if (!end)
		return make_error(env, &err);
	if (tmesh_channel_create(context->ctx, role, &opts, &end->channel, &err) ||
	    tmesh_channel_token(end->channel, token, &err))
		term = make_error(env, &err);
	else
		term = make_ok(env,
			       enif_make_tuple2(env, make_end(env, end), make_string(env, token)));
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
	if (!enif_inspect_binary(env, argv[1], &text) || text.size >= sizeof(token)) {
		refuse(&err, -EPROTO, "a channel's token is a string as its maker has it");
		return make_error(env, &err);
	}
	memcpy(token, text.data, text.size);
	end = end_new(context, &opts, &err);
	if (!end)
		return make_error(env, &err);
	if (tmesh_channel_open(context->ctx, token, role, &opts, &end->channel, &err))
		term = make_error(env, &err);
	else
		term = make_ok(env, make_end(env, end));
	enif_release_resource(end);
	return term;
}

/* A message to be sent: its tensor is the caller's reference. False: @err is filled. */
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

/* ok | eagain | an error; the end is the caller's. */
static ERL_NIF_TERM send_now(ErlNifEnv *env, struct channel_end *end,
			     const struct tmesh_message *message)
{
	struct tmesh_error err;
	int rc = tmesh_channel_try_send(end->channel, message, &err);

	if (!rc && message->tensor && !atomic_load(&end->context->named))
		atomic_store(&end->context->named, true);
	if (!rc)
		return atoms.ok;
	return rc == -EAGAIN ? atoms.eagain : make_error(env, &err);
}

/* Whether @term is a tensor of a context that has given no token yet: what has to be started for
 * the first one takes too long for a normal scheduler. */
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
	end = get_end(env, argv[0], &err);
	if (end) {
		term = send_now(env, end, &message);
		put_end(env, end);
	} else {
		term = make_error(env, &err);
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

/* True: @came is the tensor @given, and was let go. */
static bool is_given(struct tmesh_tensor *came, const struct tmesh_tensor *given)
{
	return came && given &&
	       tmesh_region_id(tmesh_tensor_region(came)) ==
		       tmesh_region_id(tmesh_tensor_region(given)) &&
	       same_layout(tmesh_tensor_layout(came), tmesh_tensor_layout(given)) &&
	       !tmesh_tensor_try_unref(came);
}

/* given | {ok, {nil | given | {handle, ref}, bytes}}: the answer that is waited for most makes no
 * terms. Takes over the message's tensor. */
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
	} else if (message->tensor &&
		   !make_handle(env, end->context, message->tensor, &tensor, &err)) {
		return make_error(env, &err);
	}
	memcpy(enif_make_new_binary(env, message->bytes, &bytes), message->data, message->bytes);
	return make_ok(env, enif_make_tuple2(env, tensor, bytes));
}

/* The busy look is doubled where it finds something and halved where it does not. */
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

/* On a dirty scheduler, of which only some may wait for peers at once. */
static NIF(prepare)
{
	struct context *context;
	struct channel_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term = atoms.again;

	end = get_end(env, argv[0], &err);
	if (!end)
		return make_error(env, &err);
	context = end->context;
	if (atomic_fetch_add(&context->opening, 1) >= context->max_opening)
		term = enif_make_atom(env, "busy");
	else if (tmesh_channel_prepare(end->channel, &err))
		term = make_error(env, &err);
	atomic_fetch_sub(&context->opening, 1);
	put_end(env, end);
	return term;
}

/* given | {ok, message} | eagain | again (open its region first) | an error; the end is the
 * caller's. */
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
 * channel_recv(channel, nil | handle) -> given | {ok, message} | eagain | again (at once) |
 * busy (soon)
 *
 * Of a message about the handle's own tensor no other handle is made.
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
	end = get_end(env, argv[0], &err);
	if (end) {
		term = recv_now(env, end, given);
		put_end(env, end);
	} else {
		term = make_error(env, &err);
	}
	put_tensor(env, given);
	if (enif_is_identical(term, atoms.again))
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
	out = get_end(env, argv[0], &err);
	if (out)
		into = get_end(env, argv[1], &err);
	term = into ? send_now(env, out, &message) : make_error(env, &err);
	/* Not later: it is done while the message is on its way. */
	if (out)
		put_end(env, out);
	if (into && enif_is_identical(term, atoms.ok)) {
		term = recv_now(env, into, message.tensor);
		if (enif_is_atom(env, term) && !enif_is_identical(term, atoms.given))
			term = enif_make_tuple2(env, enif_make_atom(env, "sent"), term);
	}
	if (into)
		put_end(env, into);
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

/* channel_flush(channel) -> ok | full (messages are still there). Lets go of their regions. */
NIF(channel_flush)
{
	struct channel_end *end;
	struct tmesh_error err;
	int rc;

	end = get_end(env, argv[0], &err);
	if (!end)
		return make_error(env, &err);
	rc = tmesh_channel_flush(end->channel, 0, &err);
	put_end(env, end);
	if (rc == -ETIMEDOUT)
		return enif_make_atom(env, "full");
	return rc ? make_error(env, &err) : atoms.ok;
}

/* What is asked for of an end that is the caller's. */
static ERL_NIF_TERM wait_for(ErlNifEnv *env, struct channel_end *end, ERL_NIF_TERM ref)
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
	end->selected = true;
	end->waits = true;
	atomic_store(&end->waiter, enif_self(env, &self)->pid);
	enif_select(env, fd, ERL_NIF_SELECT_READ, end, NULL, ref);
	return atoms.ok;
}

/*
 * channel_wait(channel, ref) -> ok | full (no descriptor tells of room)
 *
 * After eagain: a message with @ref says when it is worth to try again. The caller made it just
 * before, so that the emulator looks for it among later messages alone.
 */
NIF(channel_wait)
{
	struct channel_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!enif_is_ref(env, argv[1])) {
		refuse(&err, -EINVAL, "a wait has a reference");
		return make_error(env, &err);
	}
	end = get_end(env, argv[0], &err);
	if (!end)
		return make_error(env, &err);
	term = wait_for(env, end, argv[1]);
	put_end(env, end);
	return term;
}

/* channel_cancel(channel) -> ok. No message comes any more; one may have come. */
NIF(channel_cancel)
{
	struct channel_end *end;
	struct tmesh_error err;

	end = get_end(env, argv[0], &err);
	if (!end)
		return atoms.ok;
	if (end->selected)
		enif_select(env, tmesh_channel_poll_fd(end->channel, &err),
			    ERL_NIF_SELECT_READ | ERL_NIF_SELECT_CANCEL, end, NULL,
			    atoms.undefined);
	put_end(env, end);
	return atoms.ok;
}

/* channel_close(channel) -> ok, again and again */
NIF(channel_close)
{
	struct channel *channel;

	if (enif_get_resource(env, argv[0], channel_type, (void **)&channel))
		close_end(env, channel->end);
	return atoms.ok;
}
