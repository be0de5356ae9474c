// SPDX-License-Identifier: MIT
/*
 * Every call of the driver fails once, at every place that makes it. The caller gets the call's and
 * the error's name, or succeeds without that call, and nothing leaks. Releasing goes on when one of
 * its calls fails. Malformed refs, regions and descriptors are refused.
 */
#include <limits.h>

#include "cuda_unit.h"

#define UNKNOWN 999

static const char *const symbols[] = {
#define NAME(member, symbol, arguments) #symbol,
	CU_FUNCTIONS(NAME) CU_FUNCTIONS_NEWER(NAME)
#undef NAME
};
#define SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))

static struct bed a, b;
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

/* Memory is released in its context; the memory of a lost context goes with it. */
static void enter_again(void)
{
	standin_fail("cuDevicePrimaryCtxGetState", 0, 0);
	standin_fail("cuCtxGetId", 0, 0);
	standin_fail("cuCtxPushCurrent_v2", 0, 0);
}

static int scenario_host(struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	int rc;

	assert_int_equal(tmesh_region_create(a.ctx, 5000, NULL, &region, NULL), 0);
	rc = tmesh_cuda_register(a.cuda, region, 1, TMESH_READ, 0, &memory, err);
	enter_again();
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
		enter_again();
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
		enter_again();
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
	enter_again();
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

/* The server of a token closes its copies and the connection a moment later. */
static void settle(void)
{
	eventually(stats_of(&a).bytes_used == 0);
	tmesh_cuda_trim(a.cuda);
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

/* A region as another process might describe it. */
static void import_refused(const char *desc, int fd, uint64_t bytes, int code, const char *word)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	unsigned long live = standin_live();
	unsigned int fds = open_fds();

	assert_ok(tmesh_region_from_fd(a.ctx, fd, bytes, NULL, &region, err));
	if (desc)
		assert_ok(tmesh_region_set_description(region, desc, err));
	assert_refused(tmesh_cuda_import(b.cuda, region, NULL, &memory, err), code, word);
	tmesh_region_unref(region);
	assert_int_equal(standin_live(), live);
	assert_int_equal(open_fds(), fds);
}

#define UUID "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a00"
#define CARD(kind, uuid, block, at, of, bytes, more)                           \
	"{\"cuda\":{\"kind\":\"" kind "\",\"uuid\":\"" uuid                    \
	"\",\"driver\":12040,\"block\":\"" block "\",\"at\":" at ",\"of\":" of \
	",\"bytes\":" bytes more "}}"
#define BLOCK "0123456789abcdef"

#define FOREIGN "does not stand for GPU memory (CUDA_ERROR_INVALID_VALUE)"

static void test_strange_regions(void **state)
{
	struct tmesh_error none;

	/* The first run makes the objects that are made once for all, and its own objects are
	 * gone. */
	assert_int_equal(scenario_share(&none), 0);
	settle();
	import_refused(NULL, 0, 4096, -EPROTO, FOREIGN);
	import_refused("[]", 0, 4096, -EPROTO, FOREIGN);
	import_refused("{\"cuda\":{}}", 0, 4096, -EPROTO, FOREIGN);
	import_refused(CARD("vmm", UUID, BLOCK, "0", "2097152", "4096", ""), 0, 4096, -EINVAL,
		       "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE (exported by "
		       "driver API 12040, this process has 13000)");
	import_refused(CARD("vmm", UUID, BLOCK, "0", "2097152", "4096", ""), 0, 8192, -EPROTO,
		       FOREIGN);
	import_refused(CARD("xmm", UUID, BLOCK, "0", "2097152", "4096", ""), 0, 4096, -EPROTO,
		       FOREIGN);
	import_refused(CARD("ipc", UUID, BLOCK, "0", "2097152", "4096", ""), 0, 4096, -EPROTO,
		       FOREIGN);
	import_refused(CARD("vmm", UUID, "0123", "0", "2097152", "4096", ""), 0, 4096, -EPROTO,
		       FOREIGN);
	import_refused(CARD("vmm", UUID, BLOCK, "-1", "2097152", "4096", ""), 0, 4096, -EPROTO,
		       FOREIGN);
	import_refused(CARD("vmm", UUID, BLOCK, "2097152", "2097152", "4096", ""), 0, 4096, -EPROTO,
		       FOREIGN);
	import_refused(CARD("vmm", UUID, BLOCK, "0", "4096", "4096", ""), 0, 4096, -EPROTO,
		       "not of granules of 2097152 (CUDA_ERROR_INVALID_VALUE)");
	import_refused(CARD("vmm", UUID, BLOCK, "0", "2097152", "4096", ",\"event\":\"00\""), 0,
		       4096, -EPROTO, FOREIGN);
	import_refused(
		CARD("vmm", "00000000000000000000000000000007", BLOCK, "0", "2097152", "4096", ""),
		0, 4096, -ENODEV, "CUDA_ERROR_INVALID_DEVICE");
}

/* A good description with some bytes changed, around the descriptor of a real block: an accepted
 * description lies inside the mapping. */
static void test_changed_cards(void **state)
{
	static const char bytes[] = "0123456789{}[]\",:-e.\\/avmipc";
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *first, *memory, *imported;
	struct tmesh_region *region, *changed;
	unsigned int seed = 1, taken = 0;
	unsigned long live;
	int fd;

	/* Place its own memory far behind the block's start. */
	assert_ok(tmesh_cuda_alloc(a.cuda, 0, 7 * MIB, 0, &first, err));
	assert_ok(tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err));
	assert_ok(tmesh_cuda_region(memory, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_ok(tmesh_region_opaque_fd(region, &fd, err));
	assert_ok(tmesh_cuda_import(b.cuda, region, NULL, &imported, err));
	tmesh_cuda_memory_unref(imported);
	live = standin_live();
	for (int i = 0; i < 4000; i++) {
		char desc[sizeof(info.description)], byte;
		/* Change mostly its numbers. */
		const char *from = i % 4 ? strstr(info.description, "\"at\"") : info.description;
		size_t length = i % 4 ? 48 : strlen(info.description);

		memcpy(desc, info.description, sizeof(desc));
		for (int n = 1 + rand_r(&seed) % 2; n; n--)
			desc[(size_t)(from - info.description) + (size_t)rand_r(&seed) % length] =
				bytes[(size_t)rand_r(&seed) % (sizeof(bytes) - 1)];
		assert_ok(tmesh_region_from_fd(a.ctx, fd, 5000, NULL, &changed, err));
		if (!tmesh_region_set_description(changed, desc, NULL) &&
		    !tmesh_cuda_import(b.cuda, changed, NULL, &imported, NULL)) {
			uint64_t at = tmesh_cuda_pointer(imported);

			assert_true(standin_access(0, at, &byte, 1, false));
			assert_true(standin_access(0, at + 4999, &byte, 1, false));
			tmesh_cuda_memory_unref(imported);
			taken++;
		}
		tmesh_region_unref(changed);
		assert_int_equal(standin_live(), live);
	}
	assert_true(taken > 100);
	close(fd);
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_memory_unref(first);
}

/* A description with the name of another block, around a descriptor of other memory: the importer
 * gets the descriptor's memory, not the block that it has mapped already. */
static void test_other_block(void **state)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory[2], *imported[2];
	struct tmesh_region *region[2], *changed;
	unsigned int fds = open_fds();
	char byte = 0;
	int fd;

	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_cuda_alloc(a.cuda, 0, 64 * MIB, 0, &memory[i], err));
		assert_ok(tmesh_cuda_region(memory[i], &region[i], err));
		byte = "ab"[i];
		assert_true(standin_access(0, tmesh_cuda_pointer(memory[i]), &byte, 1, true));
	}
	assert_ok(tmesh_region_info(region[0], &info, err));
	assert_ok(tmesh_region_opaque_fd(region[1], &fd, err));
	assert_ok(tmesh_region_from_fd(a.ctx, fd, 64 * MIB, NULL, &changed, err));
	assert_ok(tmesh_region_set_description(changed, info.description, err));
	assert_ok(tmesh_cuda_import(b.cuda, region[0], NULL, &imported[0], err));
	assert_ok(tmesh_cuda_import(b.cuda, changed, NULL, &imported[1], err));
	for (int i = 0; i < 2; i++) {
		assert_true(standin_access(0, tmesh_cuda_pointer(imported[i]), &byte, 1, false));
		assert_int_equal(byte, "ab"[i]);
	}
	close(fd);
	tmesh_region_unref(changed);
	for (int i = 0; i < 2; i++) {
		tmesh_cuda_memory_unref(imported[i]);
		tmesh_region_unref(region[i]);
		tmesh_cuda_memory_unref(memory[i]);
	}
	settle();
	assert_int_equal(open_fds(), fds);
}

static void test_strange_refs(void **state)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = 9};
	struct tmesh_layout layout = bytes_layout(5000), wrong;
	struct tmesh_cuda_memory *memory, *other;
	char text[TMESH_REF_SIZE], *at;

	assert_refused(tmesh_cuda_open_ref(b.cuda, "{}", 2, NULL, NULL, &memory, &layout, err),
		       -EPROTO, "no \"v\"");
	assert_ok(tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err));
	wrong = bytes_layout(5001);
	assert_refused(tmesh_cuda_share(memory, &wrong, NULL, text, sizeof(text), err), -EINVAL,
		       "");
	assert_refused(tmesh_cuda_share(memory, &layout, NULL, text, 100, err), -ENOSPC, "room");
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), &opts, NULL, &other, &layout, err),
		-ENODEV, "no GPU 9 here: this process sees 2 (CUDA_ERROR_INVALID_DEVICE)");
	/* A container without the device's permission. */
	standin_fail("cuMemImportFromShareableHandle", 800, 0);
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), NULL, NULL, &other, &layout, err),
		-EPERM, "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_PERMITTED");
	opts.device = 1;
	opts.rights = TMESH_WRITE;
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), &opts, NULL, &other, &layout, err),
		-EINVAL, "READ");
	/* It names more memory than there is. */
	at = strstr(text, "\"offset\":0");
	assert_non_null(at);
	at[9] = '9';
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), NULL, NULL, &other, &layout, err),
		-EPROTO, "do not fit the 5000 bytes of its memory (CUDA_ERROR_INVALID_VALUE)");
	at[9] = '0';
	/* After its release, without a holder, no process opens it any more. */
	tmesh_cuda_memory_unref(memory);
	settle();
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), NULL, NULL, &other, &layout, err),
		-ENOENT,
		"freed (CUDA_ERROR_INVALID_HANDLE): no such region: its producer lives and has "
		"released");
	assert_int_equal(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), NULL, NULL, &other, &layout, NULL),
		-ENOENT);
}

/* The same refs when the process sees fewer GPUs, and with an older driver. */
static void test_elsewhere(void **state)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	char text[TMESH_REF_SIZE], foreign_text[2048], byte;
	struct bed c;

	assert_ok(tmesh_cuda_alloc(a.cuda, 1, 5000, 0, &memory, err));
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	standin_set_up("devices=1");
	bed_open(&c, 8 * MIB);
	standin_set_up(NULL);
	assert_refused(tmesh_cuda_open_ref(c.cuda, text, strlen(text), NULL, NULL, &imported,
					   &layout, err),
		       -ENODEV, "(CUDA_ERROR_INVALID_DEVICE; CUDA_VISIBLE_DEVICES?)");
	tmesh_cuda_unref(c.cuda);
	tmesh_ctx_unref(c.ctx);

	standin_set_up("version=12040");
	bed_open(&c, 8 * MIB);
	assert_ok(tmesh_cuda_open_ref(c.cuda, text, strlen(text), NULL, NULL, &imported, &layout,
				      err));
	assert_true(standin_access(1, tmesh_cuda_pointer(imported), &byte, 1, false));
	tmesh_cuda_memory_unref(imported);
	standin_fail("cuMemImportFromShareableHandle", CU_NOT_SUPPORTED, 0);
	assert_refused(
		tmesh_cuda_open_ref(c.cuda, text, strlen(text), NULL, NULL, &imported, &layout,
				    err),
		-EOPNOTSUPP,
		"cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED (exported by driver "
		"API 13000, this process has 12040)");
	layout.device_id = 7;
	assert_int_equal(helper_ask(&foreign, "a", foreign_text), '{');
	standin_fail("cuIpcOpenEventHandle", CU_INVALID_HANDLE, 0);
	assert_refused(tmesh_cuda_open_ref(c.cuda, foreign_text, strlen(foreign_text), NULL, NULL,
					   &imported, &layout, err),
		       -EINVAL,
		       "cuIpcOpenEventHandle: CUDA_ERROR_INVALID_HANDLE (exported by driver API "
		       "13000, this process has 12040)");
	assert_int_equal(layout.device_id, 7);
	for (size_t i = 0; i < SYMBOLS; i++)
		has_failed[i] |= !strcmp(symbols[i], "cuIpcOpenEventHandle");
	assert_int_equal(helper_say(&foreign, "u"), 'u');
	assert_int_equal(helper_ask(&foreign, "i", foreign_text), '{');
	standin_fail("cuIpcOpenMemHandle_v2", CU_INVALID_VALUE, 0);
	assert_refused(
		tmesh_cuda_open_ref(c.cuda, foreign_text, strlen(foreign_text), NULL, NULL,
				    &imported, &layout, err),
		-EINVAL,
		"cuIpcOpenMemHandle: CUDA_ERROR_INVALID_VALUE (exported by driver API 13000, "
		"this process has 12040)");
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_unref(c.cuda);
	tmesh_ctx_unref(c.ctx);
	standin_set_up(NULL);
}

/* A feature that the platform lacks is refused with its name, only by the calls that need it. */
static void test_lacking(void **state)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = 1};
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *other;
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];
	int fd;

	standin_set_up("without=vmm");
	assert_refused(tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err), -EOPNOTSUPP,
		       "cuMemGetAllocationGranularity: CUDA_ERROR_NOT_SUPPORTED");
	standin_set_up("without=posix-fd");
	assert_refused(tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err), -EOPNOTSUPP,
		       "CUDA_ERROR_NOT_SUPPORTED");
	standin_set_up("without=peers,without=dma-buf,without=read-only,without=ipc-event");
	assert_ok(tmesh_cuda_alloc(a.cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_refused(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err), -EOPNOTSUPP,
		       "DMA_BUF_SUPPORTED is 0: CUDA_ERROR_NOT_SUPPORTED");
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	assert_int_equal(stats_of(&a).host_waits, 1);
	assert_refused(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), &opts, NULL, &other, &layout, err),
		-EOPNOTSUPP, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
	opts.device = 0;
	assert_ok(
		tmesh_cuda_open_ref(b.cuda, text, strlen(text), &opts, NULL, &other, &layout, err));
	tmesh_cuda_memory_unref(other);
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_region_create(a.ctx, 5000, NULL, &region, err));
	assert_refused(tmesh_cuda_register(a.cuda, region, 0, TMESH_READ, 0, &memory, err),
		       -EOPNOTSUPP,
		       "READ_ONLY_HOST_REGISTER_SUPPORTED is 0: CUDA_ERROR_NOT_SUPPORTED");
	assert_ok(tmesh_cuda_register(a.cuda, region, 0, TMESH_READ, TMESH_CUDA_OR_STAGE, &memory,
				      err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_STAGED);
	assert_refused(tmesh_cuda_stage(memory, true, err), -EACCES, "for reading");
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_register(a.cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	standin_set_up(NULL);
}

static void watched(struct bed *bed)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(bed->ctx, 4096, NULL, &region, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

static int beds_open(void **state)
{
	bed_open(&a, 8 * MIB);
	bed_open(&b, 8 * MIB);
	/* The thread that releases memory later has descriptors, and stays. */
	watched(&a);
	watched(&b);
	return 0;
}

static int beds_close(void **state)
{
	tmesh_cuda_unref(a.cuda);
	tmesh_ctx_unref(a.ctx);
	tmesh_cuda_unref(b.cuda);
	tmesh_ctx_unref(b.ctx);
	return 0;
}

static int end_foreign(void **state)
{
	helper_end(&foreign);
	return 0;
}

#define beds_test(f)                                            \
	{                                                       \
		"stand-in: " #f, f, beds_open, beds_close, NULL \
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
		beds_test(test_share_vmm),
		beds_test(test_nameless),
		beds_test(test_codes),
		beds_test(test_old_driver),
		beds_test(test_strange_regions),
		beds_test(test_changed_cards),
		beds_test(test_other_block),
		beds_test(test_strange_refs),
		beds_test(test_elsewhere),
		beds_test(test_lacking),
		/* These tests leave objects that nobody owns. */
		beds_test(test_giving_back),
		beds_test(test_every_call),
	};

	foreign = helper_start(RW, -1);
	return cmocka_run_group_tests_name("cuda failures", tests, NULL, end_foreign);
}
