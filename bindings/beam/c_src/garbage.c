/* SPDX-License-Identifier: MIT */
/*
 * What destructors leave behind, until the janitor process drops it in a dirty NIF.
 *
 * Without a living janitor (the application is stopped) it is dropped where it falls: late
 * for that scheduler, but never lost.
 */
#include "nif.h"

static struct {
	pthread_mutex_t lock; /* guards what follows; nothing is called under it */
	struct garbage *first;
	ErlNifPid janitor;
	ERL_NIF_TERM sweep; /* what it is told */
	bool has_janitor;
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Return: NULL without memory. */
struct garbage *garbage_alloc(void (*drop)(void *object))
{
	struct garbage *garbage = enif_alloc(sizeof(*garbage));

	if (garbage)
		*garbage = (struct garbage){.drop = drop};
	return garbage;
}

/* For one that was never put. */
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

/* From any thread, also one that the VM does not know: it lies here until the next sweep. */
void garbage_leave(struct garbage *garbage, void *object)
{
	garbage->object = object;
	pthread_mutex_lock(&heap.lock);
	garbage->next = heap.first;
	heap.first = garbage;
	pthread_mutex_unlock(&heap.lock);
}

/* From a destructor: takes @garbage and @object over. */
void garbage_put(ErlNifEnv *env, struct garbage *garbage, void *object)
{
	ErlNifPid janitor;
	bool has_janitor;

	garbage_leave(garbage, object);
	pthread_mutex_lock(&heap.lock);
	janitor = heap.janitor;
	has_janitor = heap.has_janitor;
	pthread_mutex_unlock(&heap.lock);
	if (!has_janitor || !enif_send(env, &janitor, NULL, enif_make_atom(env, "sweep")))
		drop_all();
}

/* From a thread that the VM does not know the janitor is told to look now; others' callers do. */
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

/* janitor() -> ok. The calling process is told `sweep` from now on. */
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

/* sweep() -> [{level, message}]. Drops what lies here; gives the library's log. */
NIF(sweep)
{
	drop_all();
	return log_take(env);
}
