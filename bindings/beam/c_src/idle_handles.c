/* SPDX-License-Identifier: MIT */
/*
 * Processes that may have a handle, or a binary that points into a region. Known are the first that
 * got it, and the last that used it or got a binary.
 *
 * The emulator does not know how much memory a handle or, since OTP 27, such a binary refers to. It
 * collects no garbage of an idle process. Tmesh.Idle does it for the processes known here.
 */
#include "nif.h"

/* The most handles that one call looks at; the next call continues after them. */
#define LOOKS 4096

static struct {
	pthread_mutex_t lock; /* guards the ring */
	struct held ring;
} known = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.ring = {.next = &known.ring, .previous = &known.ring},
};

static void append(struct held *held)
{
	held->next = &known.ring;
	held->previous = known.ring.previous;
	held->previous->next = held;
	known.ring.previous = held;
}

static void cut(struct held *held)
{
	held->next->previous = held->previous;
	held->previous->next = held->next;
}

void held_add(ErlNifEnv *env, struct held *held)
{
	ErlNifPid self = {0};

	enif_self(env, &self);
	atomic_init(&held->maker, self.pid);
	atomic_init(&held->user, self.pid);
	pthread_mutex_lock(&known.lock);
	append(held);
	pthread_mutex_unlock(&known.lock);
}

void held_remove(struct held *held)
{
	pthread_mutex_lock(&known.lock);
	cut(held);
	pthread_mutex_unlock(&known.lock);
}

void held_used(ErlNifEnv *env, struct held *held)
{
	ErlNifPid self;

	if (enif_self(env, &self))
		atomic_store_explicit(&held->user, self.pid, memory_order_relaxed);
}

/* held_by() -> [pid], with duplicates */
NIF(held_by)
{
	ERL_NIF_TERM list = enif_make_list(env, 0), last = 0;
	struct held *held, *end;

	pthread_mutex_lock(&known.lock);
	held = known.ring.next;
	end = known.ring.previous;
	for (int looks = 0; held != &known.ring && looks < LOOKS; looks++) {
		const ERL_NIF_TERM pids[] = {
			atomic_load_explicit(&held->maker, memory_order_relaxed),
			atomic_load_explicit(&held->user, memory_order_relaxed),
		};
		struct held *next = held->next;
		bool over = held == end;

		for (int i = 0; i < 2; i++) {
			const ErlNifPid pid = {pids[i]};

			if (pids[i] != last && pids[i])
				list = enif_make_list_cell(env, enif_make_pid(env, &pid), list);
			last = pids[i];
		}
		cut(held);
		append(held);
		if (over)
			break;
		held = next;
	}
	pthread_mutex_unlock(&known.lock);
	return list;
}
