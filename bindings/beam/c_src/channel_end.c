// SPDX-License-Identifier: MIT
/*
 * Ends of channels: which process may use an end, which ends are open, and how an end is closed.
 *
 * The emulator keeps a polled resource until enif_select() stops it. So terms hold another
 * resource, struct channel. When the last term is gone, the end is closed.
 */
#include "channel_end.h"

#include <sched.h>

/* Bits of an end's state. END_USED: a call works with the end, and others are refused.
 * END_AWAITED: the waiter will come back; others are refused while it lives. END_CLOSED: it was
 * closed. END_LOOKED_AT: a call looks at it for a moment, and others wait. */
#define END_USED 1u
#define END_AWAITED 2u
#define END_CLOSED 4u
#define END_LOOKED_AT 8u

/* The janitor looks at once when a tensor of this many bytes was released. */
#define LARGE (1u << 20)

/* The open ends. Each of them holds a reference on itself. */
static struct {
	pthread_mutex_t lock; /* guards the ring; nothing is called under it */
	struct channel_end ring;
	unsigned int count;
} open_ends = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.ring = {.next = &open_ends.ring, .previous = &open_ends.ring},
};

static void append(struct channel_end *end)
{
	end->next = &open_ends.ring;
	end->previous = open_ends.ring.previous;
	end->previous->next = end;
	open_ends.ring.previous = end;
}

static void cut(struct channel_end *end)
{
	end->next->previous = end->previous;
	end->previous->next = end->next;
}

static void drop_channel(void *object)
{
	tmesh_channel_unref(object);
}

/* Release the channel. No call works with the end or selects on its descriptor any more. */
static void channel_end_release(ErlNifEnv *env, struct channel_end *end)
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

	channel_end_release(env, end);
	if (end->env)
		enif_free_env(end->env);
	enif_release_resource(end->context);
}

void channel_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call)
{
	channel_end_release(env, object);
}

/* Finish a closed end that no call works with any more. */
static void finish(ErlNifEnv *env, struct channel_end *end)
{
	ErlNifPid waiter = {atomic_load(&end->waiter)};
	ERL_NIF_TERM message;

	if (atomic_load(&end->state) & END_AWAITED) {
		message = enif_make_copy(env, end->ref);
		if (!end->whole)
			message = enif_make_tuple4(env, enif_make_atom(env, "select"),
						   enif_make_resource(env, end), message,
						   enif_make_atom(env, "ready_input"));
		enif_send(env, &waiter, NULL, message);
	}
	if (end->selected)
		enif_select(env, tmesh_channel_poll_fd(end->channel, NULL), ERL_NIF_SELECT_STOP,
			    end, NULL, atoms.undefined);
	else
		channel_end_release(env, end);
}

/* Close the end once. A call that works with it at this moment finishes it. */
void channel_end_close(ErlNifEnv *env, struct channel_end *end)
{
	unsigned int before;

	pthread_mutex_lock(&open_ends.lock);
	before = atomic_fetch_or(&end->state, END_CLOSED);
	if (!(before & END_CLOSED)) {
		cut(end);
		open_ends.count--;
	}
	pthread_mutex_unlock(&open_ends.lock);
	if (!(before & (END_USED | END_CLOSED | END_LOOKED_AT)))
		finish(env, end);
	/* An open end holds a reference on itself. The caller has one, too. */
	if (!(before & END_CLOSED))
		enif_release_resource(end);
}

void channel_end_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor)
{
	channel_end_close(env, object);
}

void channel_dtor(ErlNifEnv *env, void *object)
{
	enif_release_resource(((struct channel *)object)->end);
}

/* Return whether a watch has not sent its message yet. Only by cancelling it the emulator tells;
 * the watch begins anew then. */
static bool watch_goes_on(ErlNifEnv *env, struct channel_end *end)
{
	int fd = tmesh_channel_poll_fd(end->channel, NULL);
	int rc = enif_select(env, fd, ERL_NIF_SELECT_READ | ERL_NIF_SELECT_CANCEL, end, NULL,
			     atoms.undefined);

	if (rc < 0 || !(rc & ERL_NIF_SELECT_READ_CANCELLED))
		return false;
	enif_select_read(env, fd, end, NULL, enif_make_copy(env, end->ref), NULL);
	return true;
}

void channel_end_put(ErlNifEnv *env, struct channel_end *end)
{
	bool waits = end->waits || (end->watched && watch_goes_on(env, end));
	unsigned int change = waits ? END_USED | END_AWAITED : END_USED;

	end->waits = false;
	end->watched = false;
	if (atomic_fetch_xor(&end->state, change) & END_CLOSED)
		finish(env, end);
}

bool channel_end_look(struct channel_end *end)
{
	unsigned int state = atomic_load(&end->state) & END_AWAITED;

	return atomic_compare_exchange_strong(&end->state, &state, state | END_LOOKED_AT);
}

void channel_end_looked(ErlNifEnv *env, struct channel_end *end)
{
	if (atomic_fetch_and(&end->state, ~END_LOOKED_AT) & END_CLOSED)
		finish(env, end);
}

bool channel_end_is_closed(const struct channel_end *end)
{
	return atomic_load(&end->state) & END_CLOSED;
}

/* Return the next end, and make it the last of the ring, or return NULL. The caller gets a
 * reference. @mine: no call worked with it, so the caller may. */
static struct channel_end *next_end(bool *mine)
{
	struct channel_end *end;

	pthread_mutex_lock(&open_ends.lock);
	end = open_ends.ring.next;
	if (end == &open_ends.ring) {
		pthread_mutex_unlock(&open_ends.lock);
		return NULL;
	}
	cut(end);
	append(end);
	enif_keep_resource(end);
	*mine = channel_end_look(end);
	pthread_mutex_unlock(&open_ends.lock);
	return end;
}

/*
 * Release the regions that ends keep open without need. A process whose received or sent tensors
 * are garbage, and which does not use its channel again, has no other occasion.
 */
void channels_trim(ErlNifEnv *env)
{
	struct channel_end *end;
	unsigned int count;
	bool mine;

	pthread_mutex_lock(&open_ends.lock);
	count = open_ends.count;
	pthread_mutex_unlock(&open_ends.lock);
	while (count-- && (end = next_end(&mine))) {
		if (mine) {
			tmesh_channel_trim(end->channel);
			channel_end_looked(env, end);
		}
		enif_release_resource(end);
	}
}

/* A handle has released a tensor that a channel, for example, may hold still. For a small tensor
 * the janitor's next look is soon enough. */
void channels_returned(ErlNifEnv *env, uint64_t bytes)
{
	bool any;

	if (bytes < LARGE)
		return;
	pthread_mutex_lock(&open_ends.lock);
	any = open_ends.count > 0;
	pthread_mutex_unlock(&open_ends.lock);
	if (any)
		garbage_look(env);
}

/* Return whether this process waits at an awaited end. */
static bool is_ours(ErlNifEnv *env, struct channel_end *end)
{
	ErlNifPid waiter = {atomic_load(&end->waiter)}, self;

	enif_self(env, &self);
	return enif_compare_pids(&waiter, &self) == 0;
}

/* Return whether another living process waits at an awaited end. */
static bool is_others(ErlNifEnv *env, struct channel_end *end)
{
	ErlNifPid waiter = {atomic_load(&end->waiter)};

	return !is_ours(env, end) && enif_is_process_alive(env, &waiter);
}

struct channel_end *channel_end_get(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct channel *channel;
	struct channel_end *end;
	unsigned int state;

	if (!enif_get_resource(env, term, channel_type, (void **)&channel)) {
		refuse(err, -EINVAL, "not a channel");
		return NULL;
	}
	end = channel->end;
	do {
		while ((state = atomic_load(&end->state)) & END_LOOKED_AT) {
			if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
				refuse(err, -EINPROGRESS, "another call looks at the channel");
				return NULL;
			}
			sched_yield();
		}
		if (!(state & END_AWAITED) || !is_others(env, end)) {
			state &= END_AWAITED;
			if (atomic_compare_exchange_strong(&end->state, &state, END_USED)) {
				end->watched = state && end->whole && is_ours(env, end);
				return end;
			}
		}
	} while (state & END_LOOKED_AT);
	refuse(err, state & END_CLOSED ? -EBADF : -EBUSY, "%s",
	       state & END_CLOSED ? "the channel is closed"
				  : "another process uses this end of the channel");
	return NULL;
}

ERL_NIF_TERM channel_end_refused(ErlNifEnv *env, const struct tmesh_error *err, const char *name,
				 ERL_NIF_TERM (*nif)(ErlNifEnv *, int, const ERL_NIF_TERM[]),
				 int argc, const ERL_NIF_TERM argv[])
{
	if (err->code != -EINPROGRESS)
		return make_error(env, err);
	return enif_schedule_nif(env, name, ERL_NIF_DIRTY_JOB_IO_BOUND, nif, argc, argv);
}

/* Make an end without a channel yet, or return NULL with @err filled. */
struct channel_end *channel_end_new(struct context *context, const struct tmesh_channel_opts *opts,
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

/* Make the term of an end, which stays open until it is closed or this process ends. */
ERL_NIF_TERM channel_end_term(ErlNifEnv *env, struct channel_end *end)
{
	struct channel *channel = enif_alloc_resource(channel_type, sizeof(*channel));
	ERL_NIF_TERM term;
	ErlNifPid self;

	enif_keep_resource(end);
	*channel = (struct channel){.end = end};
	pthread_mutex_lock(&open_ends.lock);
	append(end);
	open_ends.count++;
	pthread_mutex_unlock(&open_ends.lock);
	term = enif_make_resource(env, channel);
	enif_release_resource(channel);
	enif_self(env, &self);
	enif_keep_resource(end);
	/* If the process has ended already, no other process closes the end. */
	if (enif_monitor_process(env, end, &self, NULL))
		channel_end_close(env, end);
	return term;
}
