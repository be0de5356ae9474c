/* SPDX-License-Identifier: MIT */
/*
 * Slots: bundles that are replaced in one step.
 *
 * The emulator keeps a polled resource until enif_select() stops it. So the term of a reader holds
 * another resource. When the last term is gone, reading ends. The library's reader allows one
 * thread at a time. A lock serializes calls: it is held on dirty schedulers, and only tried on
 * others.
 */
#include "nif.h"

#include <tmesh/slot.h>

struct slot_end {
	pthread_mutex_t lock; /* guards the next members and calls with the reader */
	struct tmesh_slot_reader *reader;
	bool closed;
	bool selected; /* the emulator polls its descriptor */
	struct context *context;
	struct garbage *garbage;
};

/* The resource of a reader's term. */
struct slot_reader {
	struct slot_end *end;
};

static void drop_reader(void *object)
{
	tmesh_slot_close(object);
}

/* Publishing */

OBJECT_KIND(slot_kind, tmesh_slot, "a slot");

/* slot_create(context, label, max_ref, name | nil) -> {ok, {slot, token}} */
NIF(slot_create)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts)};
	char label[TMESH_LABEL_LEN + 1], name[TMESH_SLOT_NAME_LEN + 1], token[TMESH_TOKEN_SIZE];
	bool named = !enif_is_identical(argv[3], atoms.nil);
	struct context *context;
	struct tmesh_slot *slot;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], label, sizeof(label)) ||
	    !enif_get_uint(env, argv[2], &opts.max_ref))
		return make_refusal(env, -EINVAL,
				    "a slot has a label of at most %d bytes, and a number of bytes",
				    TMESH_LABEL_LEN);
	if (named && !get_text(env, argv[3], name, sizeof(name)))
		return make_refusal(env, -EINVAL, "a slot's name is a string of at most %d bytes",
				    TMESH_SLOT_NAME_LEN);
	opts.label = *label ? label : NULL;
	opts.name = named ? name : NULL;
	if (tmesh_slot_create(context->ctx, &opts, &slot, &err))
		return make_error(env, &err);
	if (tmesh_slot_token(slot, token, &err)) {
		tmesh_slot_unref(slot);
		return make_error(env, &err);
	}
	if (!make_object(env, context, &slot_kind, slot, &term, &err))
		return make_error(env, &err);
	return make_ok(env, enif_make_tuple2(env, term, make_string(env, token)));
}

/* slot_publish(slot, bundle | nil) -> {ok, generation} */
NIF(slot_publish)
{
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_slot *slot;
	struct tmesh_error err;
	uint64_t generation;
	int rc;

	if (!enif_is_identical(argv[1], atoms.nil)) {
		bundle = get_bundle(env, argv[1], NULL, &err);
		if (!bundle)
			return make_error(env, &err);
	}
	slot = get_object(env, argv[0], &slot_kind, NULL, &err);
	rc = slot ? tmesh_slot_publish(slot, bundle, &generation, &err) : err.code;
	tmesh_slot_unref(slot);
	tmesh_bundle_unref(bundle);
	return rc ? make_error(env, &err) : make_ok(env, enif_make_uint64(env, generation));
}

/* slot_generation(slot) -> {ok, generation} */
NIF(slot_generation)
{
	struct tmesh_slot *slot;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	slot = get_object(env, argv[0], &slot_kind, NULL, &err);
	if (!slot)
		return make_error(env, &err);
	term = make_ok(env, enif_make_uint64(env, tmesh_slot_generation(slot)));
	tmesh_slot_unref(slot);
	return term;
}

/* Reading */

/* Release the reader. No call selects on the descriptor any more. */
static void slot_end_release(ErlNifEnv *env, struct slot_end *end)
{
	if (end->reader)
		garbage_put(env, end->garbage, end->reader);
	else
		garbage_free(end->garbage);
	end->reader = NULL;
	end->garbage = NULL;
}

void slot_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call)
{
	slot_end_release(env, object);
}

void slot_end_dtor(ErlNifEnv *env, void *object)
{
	struct slot_end *end = object;

	slot_end_release(env, end);
	enif_release_resource(end->context);
	pthread_mutex_destroy(&end->lock);
}

/* Close the end. The caller does not hold its lock, because the emulator may call slot_end_stop()
 * at once. */
static void close_end(ErlNifEnv *env, struct slot_end *end)
{
	bool closed;
	int fd = -1;

	pthread_mutex_lock(&end->lock);
	closed = end->closed;
	end->closed = true;
	if (!closed && end->selected)
		fd = tmesh_slot_poll_fd(end->reader, NULL);
	else if (!closed)
		slot_end_release(env, end);
	pthread_mutex_unlock(&end->lock);
	if (fd >= 0)
		enif_select(env, fd, ERL_NIF_SELECT_STOP, end, NULL, atoms.undefined);
}

void slot_reader_dtor(ErlNifEnv *env, void *object)
{
	struct slot_reader *reader = object;

	close_end(env, reader->end);
	enif_release_resource(reader->end);
}

/* Both functions take a text that leads to a slot. */
typedef int (*open_fn)(struct tmesh_ctx *ctx, const char *text, struct tmesh_slot_reader **out,
		       struct tmesh_error *err);

static ERL_NIF_TERM open_by(ErlNifEnv *env, const ERL_NIF_TERM argv[], open_fn open, int code,
			    const char *no_text)
{
	char text[TMESH_TOKEN_SIZE];
	struct slot_reader *reader;
	struct context *context;
	struct slot_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], text, sizeof(text)))
		return make_refusal(env, code, "%s", no_text);
	end = enif_alloc_resource(slot_end_type, sizeof(*end));
	*end = (struct slot_end){.context = context, .garbage = garbage_alloc(drop_reader)};
	enif_keep_resource(context);
	pthread_mutex_init(&end->lock, NULL);
	if (!end->garbage)
		refuse(&err, -ENOMEM, "no memory for a slot's reader");
	if (!end->garbage || !begin_opening(context, &err)) {
		enif_release_resource(end);
		return make_error(env, &err);
	}
	if (open(context->ctx, text, &end->reader, &err))
		end->reader = NULL;
	end_opening(context);
	if (!end->reader) {
		enif_release_resource(end);
		return make_error(env, &err);
	}
	reader = enif_alloc_resource(slot_reader_type, sizeof(*reader));
	*reader = (struct slot_reader){.end = end};
	term = make_ok(env, enif_make_resource(env, reader));
	enif_release_resource(reader);
	return term;
}

/* slot_open(context, token) -> {ok, reader} */
NIF(slot_open)
{
	return open_by(env, argv, tmesh_slot_open, -EPROTO, "not a slot's token");
}

/* slot_open_named(context, name) -> {ok, reader} */
NIF(slot_open_named)
{
	_Static_assert(TMESH_SLOT_NAME_LEN < TMESH_TOKEN_SIZE, "room for either");
	return open_by(env, argv, tmesh_slot_open_named, -EINVAL,
		       "a slot's name is a string of at most 63 bytes");
}

static bool get_end(ErlNifEnv *env, ERL_NIF_TERM term, struct slot_end **end,
		    struct tmesh_error *err)
{
	struct slot_reader *reader;

	*end = NULL;
	if (!enif_get_resource(env, term, slot_reader_type, (void **)&reader))
		return refuse(err, -EBADF, "not a slot's reader of this VM") == 0;
	*end = reader->end;
	return true;
}

/* Lock the end of a term, on a dirty scheduler. The caller unlocks it. A reader may wait for a
 * publisher with the lock, so it counts as an open, and so do the calls that wait for the lock.
 * False with @err filled: it was closed, or too many calls wait. */
static bool lock_end(ErlNifEnv *env, ERL_NIF_TERM term, struct slot_end **end,
		     struct tmesh_error *err)
{
	if (!get_end(env, term, end, err) || !begin_opening((*end)->context, err))
		return false;
	pthread_mutex_lock(&(*end)->lock);
	if (!(*end)->closed)
		return true;
	pthread_mutex_unlock(&(*end)->lock);
	end_opening((*end)->context);
	return refuse(err, -EBADF, "the slot's reader was closed") == 0;
}

static void unlock_end(struct slot_end *end)
{
	pthread_mutex_unlock(&end->lock);
	end_opening(end->context);
}

/* Return {ok, {generation, bundle}} of a value that the reader owns. */
static ERL_NIF_TERM make_value(ErlNifEnv *env, struct context *context,
			       struct tmesh_slot_value *value)
{
	struct tmesh_bundle *bundle = tmesh_bundle_ref(tmesh_slot_value_bundle(value));
	ERL_NIF_TERM generation = enif_make_uint64(env, tmesh_slot_value_generation(value));
	ERL_NIF_TERM made = make_bundle(env, context, bundle);
	const ERL_NIF_TERM *field;
	int arity;

	enif_get_tuple(env, made, &arity, &field);
	if (!enif_is_identical(field[0], atoms.ok))
		return made;
	return make_ok(env, enif_make_tuple2(env, generation, field[1]));
}

static NIF(read_now)
{
	struct tmesh_slot_value *value;
	struct slot_end *end;
	struct tmesh_error err;
	ErlNifUInt64 last;
	ERL_NIF_TERM term;

	if (!lock_end(env, argv[0], &end, &err))
		return make_error(env, &err);
	if (tmesh_slot_read(end->reader, &value, &err))
		term = make_error(env, &err);
	else if (enif_get_uint64(env, argv[1], &last) && last &&
		 last == tmesh_slot_value_generation(value))
		term = enif_make_atom(env, "same");
	else
		term = make_value(env, end->context, value);
	unlock_end(end);
	return term;
}

/* slot_read(reader, generation | nil) -> same | {ok, {generation, bundle}}. Only a new value needs
 * a dirty scheduler. */
NIF(slot_read)
{
	struct tmesh_slot_value *value;
	struct slot_end *end;
	struct tmesh_error err;
	ErlNifUInt64 last;
	bool same;

	if (!get_end(env, argv[0], &end, &err))
		return make_error(env, &err);
	if (enif_get_uint64(env, argv[1], &last) && last && !pthread_mutex_trylock(&end->lock)) {
		/* If the slot did not change, reading looks at one word. */
		same = !end->closed && !tmesh_slot_changed(end->reader) &&
		       !tmesh_slot_read(end->reader, &value, &err) &&
		       last == tmesh_slot_value_generation(value);
		pthread_mutex_unlock(&end->lock);
		if (same)
			return enif_make_atom(env, "same");
	}
	return enif_schedule_nif(env, "slot_read", ERL_NIF_DIRTY_JOB_IO_BOUND, read_now, argc,
				 argv);
}

static ERL_NIF_TERM watch(ErlNifEnv *env, struct slot_end *end, ERL_NIF_TERM message)
{
	struct tmesh_error err;
	ErlNifPid self;
	int fd = tmesh_slot_poll_fd(end->reader, &err);
	int changed;

	if (fd < 0)
		return make_error(env, &err);
	changed = tmesh_slot_changed(end->reader);
	/* A message in place of this error would make a reader that watches again loop for ever. */
	if (changed < 0)
		return make_refusal(env, changed,
				    "the slot's publisher is gone: there will be no newer value");
	enif_self(env, &self);
	if (changed) {
		enif_send(env, &self, NULL, message);
		return atoms.ok;
	}
	end->selected = true;
	if (enif_select_read(env, fd, end, &self, message, NULL) < 0)
		return make_refusal(env, -EIO, "the slot cannot be watched");
	return atoms.ok;
}

/* slot_watch(reader, message) -> ok. The message comes once, when there may be a new value. epipe:
 * there is none, and will be none. */
NIF(slot_watch)
{
	struct slot_end *end;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!lock_end(env, argv[0], &end, &err))
		return make_error(env, &err);
	term = watch(env, end, argv[1]);
	unlock_end(end);
	return term;
}

/* slot_close(slot | reader) -> ok, also when repeated */
NIF(slot_close)
{
	struct tmesh_error err;
	struct object *object;
	struct slot_end *end;

	if (find_object(env, argv[0], &slot_kind, &object, &err))
		return close_object(env, argv[0], &slot_kind);
	if (!get_end(env, argv[0], &end, &err))
		return make_error(env, &err);
	close_end(env, end);
	return atoms.ok;
}
