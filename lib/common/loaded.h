/* SPDX-License-Identifier: MIT */
/* Our libraries that are loaded when they are first needed: their calls, by name. */
#ifndef TMESH_COMMON_LOADED_H
#define TMESH_COMMON_LOADED_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <tmesh/context.h>

struct tmesh_loaded_call {
	const char *name;
	void **where;
};

/*
 * Load @library for as long as the process runs, and find each call. The message says that @what
 * needs it, and that @remedy installs it. Return: 0; -EOPNOTSUPP with @err filled, if it is not
 * installed or is another version.
 */
static inline int tmesh_loaded_find(const char *library, const char *what, const char *remedy,
				    const struct tmesh_loaded_call *calls, size_t count,
				    struct tmesh_error *err)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	err->code = -EOPNOTSUPP;
	if (!handle) {
		snprintf(err->message, sizeof(err->message), "%s: %s; install %s", what, dlerror(),
			 remedy);
		return err->code;
	}
	/* dlsym() gives a pointer to data, which POSIX lets be one to a function. */
	for (size_t i = 0; i < count; i++) {
		*calls[i].where = dlsym(handle, calls[i].name);
		if (*calls[i].where)
			continue;
		snprintf(err->message, sizeof(err->message),
			 "%s: %.100s has no %s: it is another version; install %s", what, library,
			 calls[i].name, remedy);
		dlclose(handle);
		return err->code;
	}
	return 0;
}

#endif /* TMESH_COMMON_LOADED_H */
