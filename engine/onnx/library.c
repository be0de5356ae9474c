// SPDX-License-Identifier: MIT
/*
 * Find ONNX Runtime's library at run time. Debian's file name includes the version, so the loader
 * does not find it by the plain name.
 */
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>

#include "onnx_internal.h"

#define HELP                                                                                      \
	"install libonnxruntime1.21 (Debian 13) or Python's package onnxruntime (the extra onnx " \
	"of libtmesh), and name the library's file in TMESH_ONNXRUNTIME if it is not found"

static void *find_library(const char *given, struct tmesh_error *err)
{
	static const char *const names[] = {"libonnxruntime.so", "libonnxruntime.so.1"};
	static const char *const places[] = {"/usr/local/lib/libonnxruntime.so.*",
					     "/usr/lib/*/libonnxruntime.so.*",
					     "/usr/lib*/libonnxruntime.so.*"};
	void *library = NULL;
	glob_t found = {0};

	if (!given)
		given = secure_getenv("TMESH_ONNXRUNTIME");
	if (given) {
		library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
		if (!library)
			tmesh_fail(err, -EOPNOTSUPP, "ONNX Runtime: %s", dlerror());
		return library;
	}
	for (size_t i = 0; !library && i < sizeof(names) / sizeof(*names); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
		glob(places[i], i ? GLOB_APPEND : 0, NULL, &found);
	for (size_t i = 0; !library && i < found.gl_pathc; i++)
		library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
	globfree(&found);
	if (!library)
		tmesh_fail(err, -EOPNOTSUPP, "libonnxruntime was not found: " HELP);
	return library;
}

int onnx_library(const char *path, struct ort_api *ort, const char **version,
		 struct tmesh_error *err)
{
	void *library = find_library(path, err);
	const struct ort_api_base *(*base)(void);
	const void *const *table;

	if (!library)
		return -EOPNOTSUPP;
	*(void **)&base = dlsym(library, "OrtGetApiBase");
	if (!base || !base()) {
		dlclose(library);
		return tmesh_fail(err, -EOPNOTSUPP,
				  "%.160s is not ONNX Runtime: it has no OrtGetApiBase",
				  path ? path : "libonnxruntime");
	}
	*version = base()->version();
	table = base()->get_api(ORT_VERSION);
	if (!table) {
		/* Report before dlclose(), which unmaps the version's text. */
		tmesh_fail(err, -EOPNOTSUPP,
			   "ONNX Runtime %.20s is too old: 1.%d or later is needed", *version,
			   ORT_VERSION);
		dlclose(library);
		return -EOPNOTSUPP;
	}
	/* The library is never closed: its threads would crash. */
#define FIND(name, symbol, place, result, arguments) *(const void **)&ort->name = table[place];
	ORT_FUNCTIONS(FIND)
#undef FIND
	return 0;
}
