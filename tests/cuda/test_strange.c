// SPDX-License-Identifier: MIT
/* Malformed refs, regions, descriptions and descriptors are refused; so is what a platform lacks.
 */
#include "cuda_beds.h"

static struct helper foreign; /* another process, with memory of its own */

static void share_once(void)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	char text[TMESH_REF_SIZE];

	assert_ok(tmesh_cuda_alloc(a.cuda, 0, 5000, 0, &memory, err));
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	assert_ok(tmesh_cuda_open_ref(b.cuda, text, strlen(text), NULL, NULL, &imported, &layout,
				      err));
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
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
#define LONG_TOKEN BLOCK BLOCK BLOCK BLOCK BLOCK

#define FOREIGN "does not stand for GPU memory (CUDA_ERROR_INVALID_VALUE)"

STANDIN_ADD(test_strange_regions, beds_open, beds_close)
{
	/* The first run makes the objects that are made once for all, and its own objects are
	 * gone. */
	share_once();
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
		CARD("vmm", UUID, BLOCK, "0", "2097152", "4096", ",\"values\":\"k\",\"value\":-1"),
		0, 4096, -EPROTO, FOREIGN);
	import_refused(CARD("vmm", UUID, BLOCK, "0", "2097152", "4096",
			    ",\"values\":\"" LONG_TOKEN "\",\"value\":0"),
		       0, 4096, -EPROTO, FOREIGN);
	import_refused(
		CARD("vmm", "00000000000000000000000000000007", BLOCK, "0", "2097152", "4096", ""),
		0, 4096, -ENODEV, "CUDA_ERROR_INVALID_DEVICE");
}

/* A good description with some bytes changed, around the descriptor of a real block: an accepted
 * description lies inside the mapping. */
STANDIN_ADD(test_changed_cards, beds_open, beds_close)
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
STANDIN_ADD(test_other_block, beds_open, beds_close)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory[2], *imported[2];
	struct tmesh_region *region[2], *changed;
	unsigned int fds;
	char byte = 0;
	int fd;

	share_once();
	settle();
	fds = open_fds();
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

STANDIN_ADD(test_strange_refs, beds_open, beds_close)
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
STANDIN_ADD(test_elsewhere, beds_open, beds_close)
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
STANDIN_ADD(test_lacking, beds_open, beds_close)
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
	/* Streams of the other process write no numbers, so that its events are needed. */
	set_up_standin("without=write-value");
	foreign = helper_start(RW, -1);
	set_up_standin(NULL);
	return UNIT_RUN("cuda strange", NULL, end_foreign);
}
