// SPDX-License-Identifier: MIT
/* Registering with a host that is loaded already: standin.c, which is no XLA. */
#include "unit.h"

#include <dlfcn.h>

#include "host.h"

#define F32 11

static const char *standin; /* its path */
static void (*standin_set)(int major, size_t struct_size, const char *refuses);
static unsigned int (*standin_count)(void);
static struct XLA_FFI_Error *(*standin_call)(const char *name, struct XLA_FFI_CallFrame *frame);

UNIT(test_not_loaded)
{
	assert_refused(tmesh_xla_register(NULL, err), -ENOENT,
		       "libxla_extension.so is not loaded in this process");
	assert_refused(tmesh_xla_register(standin, err), -ENOENT, "is not loaded");
	assert_refused(tmesh_xla_register("libc.so.6", err), -EOPNOTSUPP, "GetXlaFfiApi");
}

UNIT(test_registers)
{
	void *library = dlopen(standin, RTLD_NOW | RTLD_LOCAL);
	float value = 7;
	int64_t count = 1;
	struct host host;

	assert_non_null(library);
	*(void **)&standin_set = dlsym(library, "standin_set");
	*(void **)&standin_count = dlsym(library, "standin_count");
	*(void **)&standin_call = dlsym(library, "standin_call");

	standin_set(1, 0, NULL);
	assert_refused(tmesh_xla_register(standin, err), -EOPNOTSUPP, "speaks FFI 1.2");
	standin_set(0, offsetof(struct ffi_api, add_handler), NULL);
	assert_refused(tmesh_xla_register(standin, err), -EOPNOTSUPP, "another version");
	standin_set(0, 0, "tmesh_push");
	assert_refused(tmesh_xla_register(standin, err), -EPROTO,
		       "XLA refused the handler tmesh_push: the stand-in says: no such thing here");
	assert_int_equal(standin_count(), 0);
	standin_set(0, 0, NULL);
	assert_ok(tmesh_xla_register(standin, err));
	assert_ok(tmesh_xla_register(standin, err));
	assert_int_equal(standin_count(), 2);

	host_init(&host, "nobody", 0);
	host_operand(&host, F32, &value, 1, &count);
	assert_non_null(standin_call("tmesh_push", (struct XLA_FFI_CallFrame *)&host.frame));
	assert_int_equal(host_error.code, FFI_NOT_FOUND);
	host_init(&host, "nobody", 0);
	host_result(&host, F32, &value, 1, &count);
	assert_non_null(standin_call("tmesh_pop", (struct XLA_FFI_CallFrame *)&host.frame));
	assert_int_equal(host_error.code, FFI_NOT_FOUND);
}

int main(void)
{
	standin = getenv("TMESH_TEST_XLA_STANDIN");
	return UNIT_RUN("tests", NULL, NULL);
}
