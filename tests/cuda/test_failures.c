// SPDX-License-Identifier: MIT
/*
 * Every call of the driver fails once, at every place that makes it. The caller gets the call's and
 * the error's name, or succeeds without that call, and nothing leaks. Releasing goes on when one of
 * its calls fails.
 */
#include <limits.h>

#include "cuda_beds.h"

#define UNKNOWN 999

static const char *const symbols[] = {
#define NAME(member, symbol, arguments) #symbol,
	CU_FUNCTIONS(NAME) CU_FUNCTIONS_NEWER(NAME)
#undef NAME
};
#define SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))

static bool has_failed[SYMBOLS]; /* in some test */
static struct helper foreign;	 /* who has memory that is not tmesh's */

static int scenario_open(struct tmesh_error *err)
{
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_LIBCUDA")};
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	char byte;
	int rc = tmesh_cuda_open(a.ctx, &opts, &cuda, err);

	if (rc)
		return rc;
	/* The first use of a device. */
	rc = tmesh_cuda_alloc(cuda, 0, 1, 0, &memory, err);
	if (!rc) {
		rc = tmesh_cuda_read(memory, 0, &byte, 1, err);
		tmesh_cuda_memory_unref(memory);
	}
	tmesh_cuda_unref(cuda);
	return rc;
}

static struct CUstream_st *stream;

/* Released in a stream's order, and used again in none. */
static int scenario_ordered(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	int rc = tmesh_cuda_alloc_on(a.cuda, 0, 5000, 0, stream, &memory, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_zero(memory, stream, err);
	tmesh_cuda_memory_unref_on(memory, stream);
	if (!rc)
		rc = tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err);
	if (!rc)
		tmesh_cuda_memory_unref(memory);
	return rc;
}

static int scenario_share(struct tmesh_error *err)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = 1};
	struct tmesh_cuda_memory *memory, *imported = NULL;
	struct tmesh_layout layout = bytes_layout(5000);
	char text[TMESH_REF_SIZE];
	int rc = tmesh_cuda_alloc(a.cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_zero(memory, NULL, err);
	if (!rc)
		rc = tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err);
	if (!rc)
		rc = tmesh_cuda_open_ref(b.cuda, text, strlen(text), &opts, NULL, &imported,
					 &layout, err);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	return rc;
}

static int scenario_host(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	int rc;

	assert_int_equal(tmesh_region_create(a.ctx, 5000, NULL, &region, NULL), 0);
	rc = tmesh_cuda_register(a.cuda, region, 1, TMESH_READ, 0, &memory, err);
	if (!rc)
		tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	return rc;
}

static int scenario_info(struct tmesh_error *err)
{
	struct tmesh_cuda_device_info info = {.size = sizeof(info)};

	return tmesh_cuda_device_info(a.cuda, 1, &info, err);
}

static int scenario_staged(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	int rc;

	standin_set_up("without=host-register");
	assert_int_equal(tmesh_region_create(a.ctx, 5000, NULL, &region, NULL), 0);
	rc = tmesh_cuda_register(a.cuda, region, 0, RW, TMESH_CUDA_OR_STAGE, &memory, err);
	if (!rc) {
		rc = tmesh_cuda_stage(memory, true, err);
		tmesh_cuda_memory_unref(memory);
	}
	tmesh_region_unref(region);
	standin_set_up(NULL);
	return rc;
}

/* Without events the host waits. */
static int scenario_without_events(struct tmesh_error *err)
{
	int rc;

	standin_set_up("without=ipc-event");
	rc = scenario_share(err);
	standin_set_up(NULL);
	return rc;
}

static int scenario_opaque(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory, *external;
	struct tmesh_region *region;
	int fd;
	int rc = tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_region(memory, &region, err);
	if (!rc) {
		assert_int_equal(tmesh_region_opaque_fd(region, &fd, NULL), 0);
		rc = tmesh_cuda_import_fd(a.cuda, 1, TMESH_CUDA_OPAQUE_FD, fd, 4096, &external,
					  err);
		if (!rc)
			tmesh_cuda_memory_unref(external);
		close(fd);
		tmesh_region_unref(region);
	}
	tmesh_cuda_memory_unref(memory);
	return rc;
}

static unsigned long long foreign_memory;

static int scenario_share_ipc(struct tmesh_error *err)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];
	int rc = tmesh_cuda_share_ipc(a.cuda, foreign_memory, &layout, NULL, text, sizeof(text),
				      &region, err);

	if (!rc)
		tmesh_region_unref(region);
	return rc;
}

static struct tmesh_cuda_memory *vmm_memory;

static int scenario_share_vmm(struct tmesh_error *err)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];
	int rc = tmesh_cuda_share_ipc(a.cuda, tmesh_cuda_pointer(vmm_memory), &layout, NULL, text,
				      sizeof(text), &region, err);

	if (!rc)
		tmesh_region_unref(region);
	return rc;
}

static int scenario_open_ipc(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	char text[2048];
	int rc;

	assert_int_equal(helper_ask(&foreign, "i", text), '{');
	rc = tmesh_cuda_open_ref(a.cuda, text, strlen(text), NULL, NULL, &memory, &layout, err);
	if (!rc)
		tmesh_cuda_memory_unref(memory);
	return rc;
}

static int scenario_dmabuf(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory, *external;
	int fd;
	int rc = tmesh_cuda_alloc(a.cuda, 0, 4096, TMESH_CUDA_ALONE, &memory, err);

	if (rc)
		return rc;
	rc = tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err);
	if (!rc) {
		rc = tmesh_cuda_import_fd(a.cuda, 1, TMESH_CUDA_OPAQUE_FD, fd, 4096, &external,
					  err);
		/* A dma-buf of udmabuf is no export of the stand-in's. */
		if (!rc)
			tmesh_cuda_memory_unref(external);
		else if (strstr(err->message, "CUDA_ERROR_INVALID_VALUE"))
			rc = 0;
		close(fd);
	}
	tmesh_cuda_memory_unref(memory);
	return rc;
}

/* Memory of another process, whose streams write no numbers. */
static int scenario_open_event(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory = NULL;
	struct tmesh_layout layout;
	char text[2048];
	int rc;

	assert_int_equal(helper_ask(&foreign, "a", text), '{');
	rc = tmesh_cuda_open_ref(a.cuda, text, strlen(text), NULL, NULL, &memory, &layout, err);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(helper_say(&foreign, "u"), 'u');
	return rc;
}

/* Return whether the call releases. When such a call fails, the release goes on. */
static bool gives_back(const char *symbol)
{
	static const char *const those[] = {
		"cuMemRelease",
		"cuMemUnmap",
		"cuMemAddressFree",
		"cuMemHostUnregister",
		"cuEventDestroy_v2",
		"cuCtxPopCurrent_v2",
		"cuMemFree_v2",
		"cuIpcCloseMemHandle",
		"cuDestroyExternalMemory",
		"cuCtxSynchronize",
		"cuDevicePrimaryCtxRelease_v2",
		"cuStreamDestroy_v2",
	};

	for (size_t i = 0; i < sizeof(those) / sizeof(those[0]); i++)
		if (!strcmp(symbol, those[i]))
			return true;
	return false;
}

static bool is_more(unsigned long live, unsigned int fds)
{
	for (int i = 0; i < 60000 && (standin_live() > live || open_fds() > fds); i++)
		usleep(1000);
	return standin_live() > live || open_fds() > fds;
}

static void all_fail(int (*scenario)(struct tmesh_error *err))
{
	struct tmesh_error err = {0};
	unsigned long live, failed = 0;
	unsigned int fds;

	/* The first run makes the objects that are made once for all. */
	assert_int_equal(scenario(&err), 0);
	settle();
	live = standin_live();
	fds = open_fds();
	for (size_t i = 0; i < SYMBOLS; i++) {
		for (unsigned int skip = 0; skip < 100; skip++) {
			unsigned long before = standin_calls(symbols[i]);
			char name[64];
			int rc;

			if (gives_back(symbols[i]))
				break;
			standin_fail(symbols[i], UNKNOWN, skip);
			rc = scenario(&err);
			standin_fail(symbols[i], 0, 0);
			if (standin_calls(symbols[i]) - before <= skip)
				break;
			has_failed[i] = true;
			settle();
			if (is_more(live, fds))
				fail_msg("%s failing at call %u: %lu objects, %u descriptors",
					 symbols[i], skip, standin_live() - live, open_fds() - fds);
			/* cuFoo_v2 is called cuFoo. */
			snprintf(name, sizeof(name), "%s", symbols[i]);
			if (strstr(name, "_v2"))
				*strstr(name, "_v2") = '\0';
			if (rc && (!strstr(err.message, name) ||
				   !strstr(err.message, "CUDA_ERROR_UNKNOWN")))
				fail_msg("%s: \"%s\"", symbols[i], err.message);
			failed += !!rc;
		}
	}
	assert_true(failed);
}

static void test_open(void **state)
{
	all_fail(scenario_open);
}

static void test_share(void **state)
{
	all_fail(scenario_share);
}

static void test_host(void **state)
{
	all_fail(scenario_host);
}

static void test_ordered(void **state)
{
	void *context;

	((int (*)(void **, int))standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))standin_symbol("cuCtxPushCurrent_v2"))(context);
	((int (*)(struct CUstream_st **, unsigned int))standin_symbol("cuStreamCreate"))(&stream,
											 0);
	all_fail(scenario_ordered);
	tmesh_cuda_trim(a.cuda);
	((int (*)(struct CUstream_st *))standin_symbol("cuStreamDestroy_v2"))(stream);
	((int (*)(void **))standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
}

static void test_dmabuf(void **state)
{
	all_fail(scenario_dmabuf);
}

static void test_info(void **state)
{
	all_fail(scenario_info);
}

static void test_staged(void **state)
{
	all_fail(scenario_staged);
}

static void test_without_events(void **state)
{
	all_fail(scenario_without_events);
}

static void test_opaque(void **state)
{
	all_fail(scenario_opaque);
}

static void test_share_ipc(void **state)
{
	foreign_memory = standin_alloc(5000);
	all_fail(scenario_share_ipc);
	standin_free(foreign_memory);
}

static void test_share_vmm(void **state)
{
	assert_ok(tmesh_cuda_alloc(b.cuda, 0, 5000, TMESH_CUDA_ALONE, &vmm_memory, err));
	all_fail(scenario_share_vmm);
	tmesh_cuda_memory_unref(vmm_memory);
}

static void test_open_ipc(void **state)
{
	all_fail(scenario_open_ipc);
}

static void test_open_event(void **state)
{
	all_fail(scenario_open_event);
}

/* The error has no name, or the driver does not give it. */
static void test_nameless(void **state)
{
	struct tmesh_cuda_memory *memory;

	standin_fail("cuMemCreate", CU_OPERATING_SYSTEM, 0);
	standin_fail("cuGetErrorName", UNKNOWN, 0);
	assert_refused(tmesh_cuda_alloc(a.cuda, 0, 1, 0, &memory, err), -EIO,
		       "cuMemCreate: CUDA error 304");
	standin_fail("cuMemCreate", 12345, 0);
	assert_refused(tmesh_cuda_alloc(a.cuda, 0, 1, 0, &memory, err), -EIO,
		       "cuMemCreate: CUDA error 12345");
	for (size_t i = 0; i < SYMBOLS; i++)
		has_failed[i] |= !strcmp(symbols[i], "cuGetErrorName");
}

/* Check that only the memory whose release failed stays. */
static void goes_on(int (*scenario)(struct tmesh_error *err), size_t symbol)
{
	void *context;

	for (unsigned int skip = 0; skip < 100; skip++) {
		unsigned long before = standin_calls(symbols[symbol]), live = standin_live();
		struct tmesh_error err = {0};
		int rc;

		standin_fail(symbols[symbol], UNKNOWN, skip);
		rc = scenario(&err);
		settle();
		standin_fail(symbols[symbol], 0, 0);
		if (standin_calls(symbols[symbol]) - before <= skip)
			break;
		has_failed[symbol] = true;
		/* A call that is asked to wait reports why it could not. */
		if (rc && !strstr(err.message, "cuCtxSynchronize"))
			fail_msg("%s failing at call %u: \"%s\"", symbols[symbol], skip,
				 err.message);
		/* At most the memory, its mapping and the mapping's addresses. */
		if (is_more(live + 3, UINT_MAX))
			fail_msg("%s failing at call %u leaves %lu objects", symbols[symbol], skip,
				 standin_live() - live);
		if (!strcmp(symbols[symbol], "cuCtxPopCurrent_v2"))
			((int (*)(void **))standin_symbol("cuCtxPopCurrent_v2"))(&context);
	}
}

static void test_giving_back(void **state)
{
	static int (*const scenarios[])(struct tmesh_error * err) = {
		scenario_share,	   scenario_staged, scenario_opaque,
		scenario_open_ipc, scenario_host,   scenario_open,
	};

	struct tmesh_error none;

	/* Make the objects that are made once for all. */
	assert_int_equal(scenario_share(&none), 0);
	settle();
	for (size_t i = 0; i < SYMBOLS; i++)
		for (size_t j = 0; gives_back(symbols[i]) && j < 6; j++)
			goes_on(scenarios[j], i);
}

/* Each of these has its errno, and a message with the remedy. */
static void test_codes(void **state)
{
	static const struct {
		int code;
		int error;
		const char *word;
	} codes[] = {
		{3, -EPERM, "forked"},	      {900, -EBUSY, "capture"},
		{901, -EBUSY, "capture"},     {902, -EBUSY, "capture"},
		{903, -EBUSY, "capture"},     {904, -EBUSY, "capture"},
		{905, -EBUSY, "capture"},     {906, -EBUSY, "capture"},
		{907, -EBUSY, "capture"},     {908, -EBUSY, "capture"},
		{719, -EIO, "LAUNCH_FAILED"}, {700, -EIO, "start the process again"},
	};
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_LIBCUDA")};
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		standin_fail("cuMemCreate", codes[i].code, 0);
		assert_refused(tmesh_cuda_alloc(a.cuda, 0, 1, 0, &memory, err), codes[i].error,
			       codes[i].word);
	}
	standin_fail("cuInit", 3, 0);
	assert_refused(tmesh_cuda_open(a.ctx, &opts, &cuda, err), -EPERM,
		       "cuInit: CUDA_ERROR_NOT_INITIALIZED");
}

/* Calls made only to drivers that lack the newer call. */
static void test_old_driver(void **state)
{
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_OLD_LIBCUDA")};
	void *library = dlopen(opts.library, RTLD_NOW);
	struct tmesh_cuda *cuda;

	((standin_fail_fn *)dlsym(library, "standin_fail"))("cuDeviceGetUuid", UNKNOWN, 0);
	assert_refused(tmesh_cuda_open(a.ctx, &opts, &cuda, err), -EIO, "cuDeviceGetUuid");
	for (size_t i = 0; i < SYMBOLS; i++)
		has_failed[i] |= !strcmp(symbols[i], "cuDeviceGetUuid");
}

static void test_every_call(void **state)
{
	for (size_t i = 0; i < SYMBOLS; i++)
		if (!has_failed[i])
			fail_msg("no test has let %s fail", symbols[i]);
}

static void set_up_standin(const char *words)
{
	((standin_set_up_fn *)standin_symbol("standin_set_up"))(words);
}

static int end_foreign(void **state)
{
	helper_end(&foreign);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		beds_test(test_open),
		beds_test(test_share),
		beds_test(test_host),
		beds_test(test_dmabuf),
		beds_test(test_ordered),
		beds_test(test_info),
		beds_test(test_staged),
		beds_test(test_without_events),
		beds_test(test_opaque),
		beds_test(test_share_ipc),
		beds_test(test_open_ipc),
		beds_test(test_open_event),
		beds_test(test_share_vmm),
		beds_test(test_nameless),
		beds_test(test_codes),
		beds_test(test_old_driver),
		/* These tests leave objects without an owner. */
		beds_test(test_giving_back),
		beds_test(test_every_call),
	};

	set_up_standin("without=write-value");
	foreign = helper_start(RW, -1);
	set_up_standin(NULL);
	return cmocka_run_group_tests_name("cuda failures", tests, NULL, end_foreign);
}
