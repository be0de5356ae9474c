/* SPDX-License-Identifier: MIT */
/* Libraries of ours that are loaded when somebody asks for what they do: their calls, by name. */
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
 * Load @library for as long as the process runs, and find each call. @what needs it, for the
 * message. Return: 0; -EOPNOTSUPP with @err filled: it is not installed, or another version.
 */
static inline int tmesh_loaded_find(const char *library, const char *what,
				    const struct tmesh_loaded_call *calls, size_t count,
				    struct tmesh_error *err)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	err->code = -EOPNOTSUPP;
	if (!handle) {
		snprintf(err->message, sizeof(err->message), "%s: %s", what, dlerror());
		return err->code;
	}
	/* dlsym() gives a pointer to data, which POSIX lets be one to a function. */
	for (size_t i = 0; i < count; i++) {
		*calls[i].where = dlsym(handle, calls[i].name);
		if (*calls[i].where)
			continue;
		snprintf(err->message, sizeof(err->message),
			 "%s: %.100s has no %s: it is another version", what, library,
			 calls[i].name);
		dlclose(handle);
		return err->code;
	}
	return 0;
}

#endif /* TMESH_COMMON_LOADED_H */
