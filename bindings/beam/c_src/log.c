/* SPDX-License-Identifier: MIT */
/*
 * Lines of the library's log. The library logs from any thread; the janitor fetches the lines and
 * gives them to Logger. A full buffer drops the newest line and counts it, so that a noisy peer
 * costs nothing.
 */
#include "nif.h"

#include <stdio.h>
#include <unistd.h>

#include "common/file_size.h"

#define LINES 32
#define LINE_SIZE 256

static struct {
	pthread_mutex_t lock;
	unsigned int count;
	unsigned int lost;
	enum tmesh_log_level levels[LINES];
	char lines[LINES][LINE_SIZE];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A tmesh_log_fn. */
void log_keep(void *data, enum tmesh_log_level level, const char *message)
{
	pthread_mutex_lock(&kept.lock);
	if (kept.count == LINES) {
		kept.lost++;
	} else {
		kept.levels[kept.count] = level;
		snprintf(kept.lines[kept.count], LINE_SIZE, "%s", message);
		kept.count++;
	}
	pthread_mutex_unlock(&kept.lock);
	if (level <= TMESH_LOG_WARN)
		garbage_tell();
}

static ERL_NIF_TERM make_line(ErlNifEnv *env, enum tmesh_log_level level, const char *text)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	return enif_make_tuple2(env, enif_make_atom(env, names[level]), make_string(env, text));
}

/* Return the lines, oldest first. */
ERL_NIF_TERM log_drain(ErlNifEnv *env)
{
	ERL_NIF_TERM list = enif_make_list(env, 0);
	char text[64];

	pthread_mutex_lock(&kept.lock);
	if (kept.lost) {
		snprintf(text, sizeof(text), "%u more lines were not kept", kept.lost);
		list = enif_make_list_cell(env, make_line(env, TMESH_LOG_WARN, text), list);
	}
	while (kept.count) {
		kept.count--;
		list = enif_make_list_cell(
			env, make_line(env, kept.levels[kept.count], kept.lines[kept.count]), list);
	}
	kept.lost = 0;
	pthread_mutex_unlock(&kept.lock);
	return list;
}

/*
 * Print the last warnings, such as lost messages, to stderr when the VM ends and no process fetches
 * lines any more. The library's own destructor waits for receivers and may still warn. It has no
 * priority, so it runs before this one.
 */
__attribute__((destructor(101))) static void tell_what_is_left(void)
{
	pthread_mutex_lock(&kept.lock);
	for (unsigned int i = 0; i < kept.count; i++)
		if (kept.levels[i] <= TMESH_LOG_WARN)
			tmesh_dprintf(STDERR_FILENO, "tmesh: process %d: %s\n", (int)getpid(),
				      kept.lines[i]);
	kept.count = 0;
	pthread_mutex_unlock(&kept.lock);
}
