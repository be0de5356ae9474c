// SPDX-License-Identifier: MIT
/*
 * Debian 12's libfabric loads libinfinipath, which replaces the handlers of SIGINT, SIGILL,
 * SIGABRT, SIGBUS, SIGSEGV and SIGTERM in every process. Its handlers end the process with status 1
 * on SIGINT and SIGTERM; on the others they write a file NAME-PID,HOST.btr to the working
 * directory. Reset these signals to their default. A handler that the program has set since stays.
 */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>

#include "net_internal.h"

static bool theirs(const struct sigaction *action)
{
	union {
		void (*call)(int);
		const void *place;
	} handler = {.call = action->sa_handler};
	Dl_info info;

	return handler.place && dladdr(handler.place, &info) && info.dli_fname &&
	       strstr(info.dli_fname, "/libinfinipath.so");
}

void net_signals_give_back(void)
{
	static const int signals[] = {SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV, SIGTERM};
	struct sigaction action;

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &action) && theirs(&action))
			signal(signals[i], SIG_DFL);
}
