// SPDX-License-Identifier: MIT
/* Register the handlers with the XLA that this process has loaded. JAX registers handlers by a call
 * of its own; EXLA expects a library to register them itself. */
#include "call.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* The C++ name of xla::ffi::GetXlaFfiApi(), which XLA exports. */
#define GET_API "_ZN3xla3ffi12GetXlaFfiApiEv"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct ffi_api *registered; /* the API that has the handlers */

static int find_api(const char *library, const struct ffi_api **api, struct tmesh_error *err)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	const struct ffi_api *(*get)(void) = NULL;

	if (!handle)
		return tmesh_fail(
			err, -ENOENT,
			"%.100s is not loaded in this process: load the library that has XLA "
			"first, EXLA for example",
			library);
	/* dlsym() gives a pointer to data, which POSIX lets be one to a function. */
	*(void **)&get = dlsym(handle, GET_API);
	*api = get ? get() : NULL;
	if (!get)
		dlclose(handle);
	if (!*api)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "%.100s has no %s, by which handlers are registered: another "
				  "version of XLA is needed",
				  library, GET_API);
	if ((*api)->version.major != FFI_MAJOR ||
	    (*api)->struct_size <
		    offsetof(struct ffi_api, add_handler) + sizeof((*api)->add_handler))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"%.100s speaks FFI %d.%d, and libtmesh-xla %d.%d: another version "
			"of one of them is needed",
			library, (*api)->version.major, (*api)->version.minor, FFI_MAJOR,
			FFI_MINOR);
	return 0;
}

static int add(const struct ffi_api *api, const char *name,
	       struct XLA_FFI_Error *(*handler)(struct XLA_FFI_CallFrame *),
	       struct tmesh_error *err)
{
	struct ffi_handler_args args = {
		.struct_size = sizeof(args),
		.name = {name, strlen(name)},
		.platform = {"Host", strlen("Host")},
		.execute = handler,
	};
	struct ffi_error_message_args message = {.struct_size = sizeof(message)};
	struct ffi_error_destroy_args destroy = {.struct_size = sizeof(destroy)};
	int rc;

	message.error = destroy.error = api->add_handler(&args);
	if (!message.error)
		return 0;
	api->error_message(&message);
	rc = tmesh_fail(err, -EPROTO, "XLA refused the handler %s: %.160s", name, message.message);
	api->error_destroy(&destroy);
	return rc;
}

int tmesh_xla_register(const char *library, struct tmesh_error *err)
{
	const struct ffi_api *api = NULL;
	int rc;

	pthread_mutex_lock(&lock);
	rc = find_api(library ? library : TMESH_XLA_HOST_LIBRARY, &api, err);
	if (!rc && api != registered) {
		rc = add(api, "tmesh_push", tmesh_xla_push, err);
		if (!rc)
			rc = add(api, "tmesh_pop", tmesh_xla_pop, err);
		if (!rc)
			registered = api;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}
