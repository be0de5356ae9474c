// SPDX-License-Identifier: MIT
/* A line of progress for a slow copy, on a terminal. */
#include <time.h>

#include "tmeshctl.h"

#define PATIENCE_NS 300000000u /* faster work shows no progress */
#define INTERVAL_NS 100000000u

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void progress_begin(struct progress *progress, const char *what, uint64_t total)
{
	*progress = (struct progress){
		.what = what,
		.total = total,
		.began_ns = now_ns(),
		.terminal = isatty(STDERR_FILENO),
	};
	progress->shown_ns = progress->began_ns + PATIENCE_NS - INTERVAL_NS;
}

void progress_update(struct progress *progress, uint64_t done)
{
	char amount[16], whole[16], rate[16];
	uint64_t now;

	if (!progress->terminal)
		return;
	now = now_ns();
	if (now < progress->shown_ns + INTERVAL_NS)
		return;
	progress->shown_ns = now;
	progress->shown = true;
	human_bytes((uint64_t)((double)done * 1e9 / (double)(now - progress->began_ns)), rate);
	if (progress->total)
		fprintf(stderr, "\r%s: %3u%% %s of %s, %s/s\033[K", progress->what,
			(unsigned int)((double)done * 100 / (double)progress->total),
			human_bytes(done, amount), human_bytes(progress->total, whole), rate);
	else
		fprintf(stderr, "\r%s: %s, %s/s\033[K", progress->what, human_bytes(done, amount),
			rate);
}

void progress_end(struct progress *progress)
{
	if (progress->shown)
		fprintf(stderr, "\r\033[K");
}
