// SPDX-License-Identifier: MIT
/* Places that graphs share, with the memory that each graph claims there. Idle graphs give theirs
 * up. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "placed_internal.h"

#define NS 1000000000ull
#define PAUSE_NS 1000000ull

static uint64_t monotonic(void *data)
{
	return tmesh_now_ns();
}

int places_enter(const struct tmesh_places *places, struct tmesh_error *err)
{
	return engine_enter(places->all[0].context, err);
}

uint64_t places_now(const struct tmesh_places *places)
{
	return places->now_ns(places->data);
}

bool places_due(const struct tmesh_placed *placed)
{
	const struct tmesh_places *places = placed->places;
	uint64_t used = atomic_load(&placed->used), now = places_now(places);

	return atomic_load(&placed->held) && places->idle_ns != PLACES_NEVER && now > used &&
	       now - used >= places->idle_ns;
}

static void places_free(struct tmesh_places *places)
{
	for (size_t i = 0; places->all && i < places->count; i++)
		tmesh_engine_context_unref(places->all[i].context);
	free(places->all);
	free(places->used);
	/* The condition is not destroyed: in a forked child, threads of the parent may seem to wait
	 * on it. */
	free(places);
}

/* Return when the first graph is due. Called with the lock. */
static uint64_t next_due(const struct tmesh_places *places)
{
	uint64_t due = PLACES_NEVER;

	for (const struct tmesh_placed *p = places->graphs; p; p = p->next)
		if (atomic_load(&p->held) && p->used + places->idle_ns < due)
			due = p->used + places->idle_ns;
	return due;
}

uint64_t places_pause(const struct tmesh_places *places)
{
	return places->idle_ns / 8 > PAUSE_NS ? places->idle_ns / 8 : PAUSE_NS;
}

static void *sweep(void *data)
{
	struct tmesh_places *places = data;
	bool mine;

	pthread_mutex_lock(&places->lock);
	while (!places->stop) {
		uint64_t now = places_now(places), due = next_due(places);
		struct timespec until;

		if (due <= now) {
			pthread_mutex_unlock(&places->lock);
			tmesh_places_sweep(places, NULL, NULL);
			pthread_mutex_lock(&places->lock);
			/* A graph that runs, or whose values cannot be copied, is still due: pause
			 * before the next try. */
			now = places_now(places);
			due = next_due(places);
			if (due < now + places_pause(places))
				due = now + places_pause(places);
		}
		if (places->stop)
			break;
		if (due == PLACES_NEVER) {
			pthread_cond_wait(&places->wake, &places->lock);
			continue;
		}
		until.tv_sec = (time_t)(due / NS);
		until.tv_nsec = (long)(due % NS);
		pthread_cond_timedwait(&places->wake, &places->lock, &until);
	}
	/* This thread dropped the last reference, so no other thread joins it. */
	mine = !places->swept;
	pthread_mutex_unlock(&places->lock);
	if (mine)
		places_free(places);
	return NULL;
}

static int start(struct tmesh_places *places, struct tmesh_error *err)
{
	sigset_t all, before;
	int code;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	code = pthread_create(&places->sweeper, NULL, sweep, places);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	places->swept = !code;
	return code ? tmesh_fail(err, -code, "no thread for places: %s", strerror(code)) : 0;
}

static struct tmesh_places *places_new(size_t count)
{
	struct tmesh_places *places = calloc(1, sizeof(*places));
	pthread_condattr_t clock;

	if (!places)
		return NULL;
	places->refs = 1;
	places->life = engine_life();
	places->now_ns = monotonic;
	places->idle_ns = PLACES_NEVER;
	pthread_mutex_init(&places->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&places->wake, &clock);
	pthread_condattr_destroy(&clock);
	places->all = calloc(count, sizeof(*places->all));
	places->used = calloc(count, sizeof(*places->used));
	if (places->all && places->used)
		return places;
	places_free(places);
	return NULL;
}

int places_of_contexts(struct tmesh_engine_context *const *contexts, size_t count,
		       struct tmesh_places **out, struct tmesh_error *err)
{
	struct tmesh_places *places = places_new(count);

	if (!places)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu places", count);
	for (; places->count < count; places->count++)
		places->all[places->count] = (struct tmesh_places_place){
			.context = tmesh_engine_context_ref(contexts[places->count]),
			.node = PLACES_HOME};
	*out = places;
	return 0;
}

static int check_opts(const struct tmesh_places_opts *opts, struct tmesh_error *err)
{
	if (!opts->places || !opts->place_count || opts->place_count > TMESH_PLACEMENT_MAX_PLACES)
		return tmesh_fail(err, -EINVAL, "1 to %d places are given, not %zu",
				  TMESH_PLACEMENT_MAX_PLACES, opts->place_count);
	for (size_t i = 0; i < opts->place_count; i++)
		if (!opts->places[i].context || opts->places[i].node < PLACES_HOME ||
		    opts->places[i].reserved)
			return tmesh_fail(err, -EINVAL,
					  "place %zu: a context is given, a node or -1, and "
					  "reserved is 0",
					  i);
	return 0;
}

int tmesh_places_create(const struct tmesh_places_opts *opts, struct tmesh_places **out,
			struct tmesh_error *err)
{
	struct tmesh_places_opts given;
	struct tmesh_places *places;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (!rc)
		rc = check_opts(&given, err);
	if (rc)
		return rc;
	places = places_new(given.place_count);
	if (!places)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu places", given.place_count);
	places->idle_ns = given.idle_ns ?: PLACES_IDLE_NS;
	for (; places->count < given.place_count; places->count++) {
		places->all[places->count] = given.places[places->count];
		tmesh_engine_context_ref(given.places[places->count].context);
	}
	if (given.now_ns) {
		places->now_ns = given.now_ns;
		places->data = given.data;
	} else if (places->idle_ns != PLACES_NEVER) {
		rc = start(places, err);
	}
	if (rc)
		places_free(places);
	else
		*out = places;
	return rc;
}

struct tmesh_places *tmesh_places_ref(struct tmesh_places *places)
{
	atomic_fetch_add(&places->refs, 1);
	return places;
}

void tmesh_places_unref(struct tmesh_places *places)
{
	bool join;

	if (!places || atomic_fetch_sub(&places->refs, 1) > 1)
		return;
	/* A forked child does not have the thread. */
	if (!places->swept || places->life != engine_life()) {
		places_free(places);
		return;
	}
	join = !pthread_equal(pthread_self(), places->sweeper);
	pthread_mutex_lock(&places->lock);
	places->stop = true;
	places->swept = join;
	pthread_cond_broadcast(&places->wake);
	pthread_mutex_unlock(&places->lock);
	if (join) {
		pthread_join(places->sweeper, NULL);
		places_free(places);
	} else {
		pthread_detach(places->sweeper);
	}
}

void places_add(struct tmesh_places *places, struct tmesh_placed *placed)
{
	pthread_mutex_lock(&places->lock);
	placed->next = places->graphs;
	places->graphs = placed;
	pthread_cond_broadcast(&places->wake);
	pthread_mutex_unlock(&places->lock);
}

void places_remove(struct tmesh_places *places, struct tmesh_placed *placed)
{
	if (places->life != engine_life())
		return;
	pthread_mutex_lock(&places->lock);
	for (struct tmesh_placed **at = &places->graphs; *at; at = &(*at)->next) {
		if (*at != placed)
			continue;
		*at = placed->next;
		break;
	}
	for (size_t i = 0; i < places->count; i++)
		places->used[i] -= placed->claims[i];
	pthread_mutex_unlock(&places->lock);
}

int places_claim(struct tmesh_placed *placed, const uint64_t *wanted, struct tmesh_error *err)
{
	struct tmesh_places *places = placed->places;
	int rc = 0;

	pthread_mutex_lock(&places->lock);
	for (size_t i = 0; !rc && i < places->count; i++) {
		uint64_t others = places->used[i] - placed->claims[i];
		uint64_t room = places->all[i].memory ?: UINT64_MAX;

		if (wanted[i] > placed->claims[i] && wanted[i] > room - others)
			rc = tmesh_fail(err, -ENOSPC,
					"place %zu has %llu bytes, of which other graphs have "
					"%llu: this one needs %llu there",
					i, (unsigned long long)places->all[i].memory,
					(unsigned long long)others, (unsigned long long)wanted[i]);
	}
	for (size_t i = 0; !rc && i < places->count; i++) {
		places->used[i] += wanted[i] - placed->claims[i];
		placed->claims[i] = wanted[i];
	}
	/* A graph that takes its places again becomes due later: wake the thread. */
	pthread_cond_broadcast(&places->wake);
	pthread_mutex_unlock(&places->lock);
	return rc;
}

/* Take a reference, unless the last one is being dropped. */
static bool try_ref(struct tmesh_placed *placed)
{
	unsigned int refs = atomic_load(&placed->refs);

	while (refs && !atomic_compare_exchange_weak(&placed->refs, &refs, refs + 1))
		;
	return refs;
}

static struct tmesh_placed **list_due(struct tmesh_places *places, size_t *count)
{
	struct tmesh_placed **list;
	size_t all = 0;

	pthread_mutex_lock(&places->lock);
	for (struct tmesh_placed *p = places->graphs; p; p = p->next)
		all++;
	list = calloc(all + 1, sizeof(struct tmesh_placed *));
	*count = 0;
	for (struct tmesh_placed *p = places->graphs; list && p; p = p->next)
		if (places_due(p) && try_ref(p))
			list[(*count)++] = p;
	pthread_mutex_unlock(&places->lock);
	return list;
}

int tmesh_places_sweep(struct tmesh_places *places, uint32_t *given_up, struct tmesh_error *err)
{
	struct tmesh_placed **list;
	uint32_t count = 0;
	size_t due = 0;
	int rc = places_enter(places, err);

	if (rc)
		return rc;
	list = list_due(places, &due);
	if (!list)
		return tmesh_fail(err, -ENOMEM, "no memory for a list of graphs");
	for (size_t i = 0; i < due; i++) {
		bool done;
		int one = placed_give_up(list[i], &done, rc ? NULL : err);

		count += done;
		rc = rc ?: one;
		tmesh_placed_unref(list[i]);
	}
	free(list);
	if (given_up)
		*given_up = count;
	return rc;
}

int tmesh_places_used(struct tmesh_places *places, size_t index, uint64_t *out,
		      struct tmesh_error *err)
{
	/* In a forked child the lock may stay locked for ever. */
	int rc = places_enter(places, err);

	if (rc)
		return rc;
	if (index >= places->count)
		return tmesh_fail(err, -EINVAL, "there is no place %zu of %zu", index,
				  places->count);
	pthread_mutex_lock(&places->lock);
	*out = places->used[index];
	pthread_mutex_unlock(&places->lock);
	return 0;
}

int tmesh_places_stats(struct tmesh_places *places, struct tmesh_places_stats *out,
		       struct tmesh_error *err)
{
	struct tmesh_places_stats stats = {
		.moves = places->moves,
		.given_up = places->given_up,
		.reacquired = places->reacquired,
		.copies = places->copies,
		.bytes_copied = places->bytes_copied,
	};
	int rc = places_enter(places, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&places->lock);
	for (const struct tmesh_placed *p = places->graphs; p; p = p->next)
		stats.held += atomic_load(&p->held);
	pthread_mutex_unlock(&places->lock);
	return tmesh_write_sized(out, &stats, sizeof(stats), err);
}
