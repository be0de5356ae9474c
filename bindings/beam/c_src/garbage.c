/* SPDX-License-Identifier: MIT */
/*
 * Objects that destructors leave, until the janitor process drops them in a dirty NIF.
 *
 * Without a living janitor (the application is stopped) an object is dropped at once: late for that
 * scheduler, but never lost.
 */
#include "jobs.h"

static struct {
	pthread_mutex_t lock; /* guards what follows; nothing is called under it */
	struct garbage *first;
	ErlNifPid janitor;
	ERL_NIF_TERM sweep; /* the janitor's message */
	bool has_janitor;
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Return NULL without memory. */
struct garbage *garbage_alloc(void (*drop)(void *object))
{
	struct garbage *garbage = enif_alloc(sizeof(*garbage));

	if (garbage)
		*garbage = (struct garbage){.drop = drop};
	return garbage;
}

/* Free a record that was never put. */
void garbage_free(struct garbage *garbage)
{
	if (garbage)
		enif_free(garbage);
}

static void drop_all(void)
{
	struct garbage *garbage, *next;

	pthread_mutex_lock(&heap.lock);
	garbage = heap.first;
	heap.first = NULL;
	pthread_mutex_unlock(&heap.lock);
	for (; garbage; garbage = next) {
		next = garbage->next;
		garbage->drop(garbage->object);
		enif_free(garbage);
	}
}

/* Leave an object for the next sweep, from any thread, also from one unknown to the VM. */
static void garbage_leave(struct garbage *garbage, void *object)
{
	garbage->object = object;
	pthread_mutex_lock(&heap.lock);
	garbage->next = heap.first;
	heap.first = garbage;
	pthread_mutex_unlock(&heap.lock);
}

/* Do as garbage_leave(), and wake the janitor. A thread of the emulator needs an environment to
 * send a message. The caller has none, so a thread of jobs.c sends it. */
void garbage_leave_anywhere(struct garbage *garbage, void *object)
{
	garbage_leave(garbage, object);
	if (enif_thread_type() == ERL_NIF_THR_UNDEFINED)
		garbage_tell();
	else
		jobs_tell_janitor();
}

/* Wake the janitor from a NIF or a destructor. False: there is none. */
bool garbage_look(ErlNifEnv *env)
{
	ErlNifPid janitor;
	bool has_janitor;

	pthread_mutex_lock(&heap.lock);
	janitor = heap.janitor;
	has_janitor = heap.has_janitor;
	pthread_mutex_unlock(&heap.lock);
	return has_janitor && enif_send(env, &janitor, NULL, enif_make_atom(env, "sweep"));
}

/* Drop an object later, from a destructor. Take @garbage and @object over. */
void garbage_put(ErlNifEnv *env, struct garbage *garbage, void *object)
{
	garbage_leave(garbage, object);
	if (!garbage_look(env))
		drop_all();
}

/* Wake the janitor from a thread unknown to the VM. In other threads the caller wakes it. */
void garbage_tell(void)
{
	ErlNifPid janitor;
	ERL_NIF_TERM sweep;
	bool has_janitor;

	if (enif_thread_type() != ERL_NIF_THR_UNDEFINED)
		return;
	pthread_mutex_lock(&heap.lock);
	janitor = heap.janitor;
	sweep = heap.sweep;
	has_janitor = heap.has_janitor;
	pthread_mutex_unlock(&heap.lock);
	if (has_janitor)
		enif_send(NULL, &janitor, NULL, sweep);
}

/* janitor() -> ok. The calling process receives `sweep` from now on. */
NIF(janitor)
{
	ErlNifPid self;

	enif_self(env, &self);
	pthread_mutex_lock(&heap.lock);
	heap.janitor = self;
	heap.sweep = enif_make_atom(env, "sweep");
	heap.has_janitor = true;
	pthread_mutex_unlock(&heap.lock);
	return atoms.ok;
}

/* sweep() -> [{level, message}]. Drops the objects left here and the regions that channels kept
 * open for them. Returns the library's log. */
NIF(sweep)
{
	drop_all();
	channels_trim(env);
	return log_drain(env);
}
