// SPDX-License-Identifier: MIT
/*
 * Find ggml's library at run time. If the CPU backend is separate, as on Debian, it is in
 * ggml/backends* beside the library.
 */
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml_internal.h"

#define HELP                                                                               \
	"install libggml0 (Debian) or Python's package libggml-python (the extra ggml of " \
	"libtmesh), and name the library's file in TMESH_GGML if it is not found"

static void *find_library(const char *given, struct tmesh_error *err)
{
	static const char *const names[] = {"libggml.so.0", "libggml.so"};
	void *library = NULL;

	if (!given)
		given = secure_getenv("TMESH_GGML");
	if (given) {
		library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
		if (!library)
			tmesh_fail(err, -EOPNOTSUPP, "ggml: %s", dlerror());
		return library;
	}
	for (size_t i = 0; !library && i < sizeof(names) / sizeof(*names); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		tmesh_fail(err, -EOPNOTSUPP, "libggml was not found: " HELP);
	return library;
}

static void silent(unsigned int level, const char *text, void *data)
{
}

/* Load the backends that are separate from the library. */
static void load_backends(const struct ggml_api *api)
{
	char own[PATH_MAX], pattern[PATH_MAX + 32];
	glob_t found = {0};
	Dl_info info;

	if (!dladdr(*(void *const *)&api->backend_init_by_type, &info) || !info.dli_fname ||
	    !realpath(info.dli_fname, own) || !strrchr(own, '/'))
		return;
	*strrchr(own, '/') = '\0';
	snprintf(pattern, sizeof(pattern), "%s/ggml/backends*", own);
	if (!glob(pattern, GLOB_ONLYDIR, NULL, &found) && found.gl_pathc)
		api->backend_load_all_from_path(found.gl_pathv[found.gl_pathc - 1]);
	globfree(&found);
}

int ggml_library(const char *path, struct ggml_api *api, struct tmesh_error *err)
{
	void *library = find_library(path, err);
	struct ggml_backend *backend;
	const char *missing = NULL;

	if (!library)
		return -EOPNOTSUPP;
#define FIND(name, result, arguments)                         \
	*(void **)&api->name = dlsym(library, "ggml_" #name); \
	if (!api->name)                                       \
		missing = "ggml_" #name;
	GGML_FUNCTIONS(FIND)
#undef FIND
#define FIND(name, symbol, result, arguments)           \
	*(void **)&api->name = dlsym(library, #symbol); \
	if (!api->name)                                 \
		missing = #symbol;
	GGUF_FUNCTIONS(FIND)
#undef FIND
	if (missing) {
		dlclose(library);
		return tmesh_fail(err, -EOPNOTSUPP, "%.160s is not ggml, or too old: it has no %s",
				  path ? path : "libggml", missing);
	}
	/* The library stays loaded. Its log is silenced, because each call returns its error. */
	api->log_set(silent, NULL);
	backend = api->backend_init_by_type(GGML_DEVICE_CPU, NULL);
	if (!backend) {
		load_backends(api);
		backend = api->backend_init_by_type(GGML_DEVICE_CPU, NULL);
	}
	if (!backend)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "ggml has no backend for the CPU: install ggml's own backends");
	api->backend_free(backend);
	return 0;
}
