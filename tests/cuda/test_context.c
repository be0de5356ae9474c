// SPDX-License-Identifier: MIT
/*
 * A reset of a device. Calls that need the lost context fail. Objects of the lost context are not
 * touched again, even if a new context has its address. Other objects are released as before, and
 * reclaimed from other processes.
 */
#include "cuda_unit.h"

#define DESTROYED \
	"GPU 0 was reset, and what its context had is gone (CUDA_ERROR_CONTEXT_IS_DESTROYED)"

static struct helper foreign; /* who has memory that is not tmesh's */

/* Every call that a context gives objects for, and the calls that need none. */
struct all {
	struct bed c, d;
	struct tmesh_cuda_memory *memory, *imported, *host, *staged, *external, *ipc;
	struct tmesh_region *region, *copied;
	char text[TMESH_REF_SIZE], foreign_text[2048];
	unsigned long calls;
	int fd;
};

/* Calls that take an address, or a handle, of a context's object. */
static unsigned long calls_of_context(void)
{
	return standin_calls("cuMemFree_v2") + standin_calls("cuMemHostUnregister") +
	       standin_calls("cuIpcCloseMemHandle") + standin_calls("cuDestroyExternalMemory") +
	       standin_calls("cuEventDestroy_v2");
}

static void all_open(struct all *all)
{
	struct tmesh_layout layout = bytes_layout(5000);

	bed_open(&all->c, 8 * MIB);
	bed_open(&all->d, 8 * MIB);
	assert_ok(tmesh_cuda_alloc(all->c.cuda, 0, 5000, 0, &all->memory, err));
	assert_ok(tmesh_cuda_share(all->memory, &layout, NULL, all->text, sizeof(all->text), err));
	assert_ok(tmesh_cuda_open_ref(all->d.cuda, all->text, strlen(all->text), NULL, NULL,
				      &all->imported, &layout, err));
	assert_ok(tmesh_cuda_region(all->memory, &all->region, err));
	assert_ok(tmesh_region_opaque_fd(all->region, &all->fd, err));
	tmesh_region_unref(all->region);
	assert_ok(tmesh_cuda_import_fd(all->c.cuda, 0, TMESH_CUDA_OPAQUE_FD, all->fd, 5000,
				       &all->external, err));
	assert_ok(tmesh_region_create(all->c.ctx, 5000, NULL, &all->region, err));
	assert_ok(tmesh_cuda_register(all->c.cuda, all->region, 0, RW, 0, &all->host, err));
	assert_ok(tmesh_region_create(all->c.ctx, 5000, NULL, &all->copied, err));
	standin_set_up("without=host-register");
	assert_ok(tmesh_cuda_register(all->c.cuda, all->copied, 0, RW, TMESH_CUDA_OR_STAGE,
				      &all->staged, err));
	standin_set_up(NULL);
	assert_int_equal(helper_ask(&foreign, "i", all->foreign_text), '{');
	assert_ok(tmesh_cuda_open_ref(all->c.cuda, all->foreign_text, strlen(all->foreign_text),
				      NULL, NULL, &all->ipc, &layout, err));
}

/* It is gone: a mapping that is open already is not given out again either. */
static void all_refused(struct all *all)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *other;
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];

	assert_refused(tmesh_cuda_alloc(all->c.cuda, 0, 1, 0, &other, err), -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_share(all->memory, &layout, NULL, text, sizeof(text), err),
		       -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_wait(all->imported, NULL, err), -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_open_ref(all->d.cuda, all->text, strlen(all->text), NULL, NULL,
					   &other, &layout, err),
		       -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_open_ref(all->c.cuda, all->foreign_text,
					   strlen(all->foreign_text), NULL, NULL, &other, &layout,
					   err),
		       -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_stage(all->staged, true, err), -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_import_fd(all->c.cuda, 0, TMESH_CUDA_OPAQUE_FD, all->fd, 5000,
					    &other, err),
		       -ECONNRESET, DESTROYED);
	assert_refused(tmesh_cuda_register(all->c.cuda, all->region, 0, RW, 0, &other, err),
		       -ECONNRESET, DESTROYED);
	assert_ok(tmesh_region_create(all->c.ctx, 5000, NULL, &region, err));
	assert_refused(tmesh_cuda_register(all->c.cuda, region, 0, RW, 0, &other, err), -ECONNRESET,
		       DESTROYED);
	tmesh_region_unref(region);
}

static void drop_what_is_gone(struct all *all)
{
	close(all->fd);
	tmesh_cuda_memory_unref(all->external);
	tmesh_cuda_memory_unref(all->ipc);
	tmesh_cuda_memory_unref(all->host);
	tmesh_cuda_memory_unref(all->staged);
	tmesh_region_unref(all->copied);
	tmesh_region_unref(all->region);
	assert_int_equal(stats_of(&all->c).registered_bytes, 0);
}

/* Blocks are still there; the importer's library releases them. */
static void all_close(struct all *all)
{
	assert_ok(tmesh_cuda_reclaim(all->memory, 5 * SECOND, err));
	assert_int_equal(tmesh_cuda_touch(all->imported), -ESTALE);
	tmesh_cuda_memory_unref(all->imported);
	tmesh_cuda_memory_unref(all->memory);
	tmesh_cuda_unref(all->c.cuda);
	tmesh_ctx_unref(all->c.ctx);
	tmesh_cuda_unref(all->d.cuda);
	tmesh_ctx_unref(all->d.ctx);
}

/* A process that opens the driver anew has a context again. */
static void anew(void)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	struct bed bed;

	bed_open(&bed, 8 * MIB);
	assert_ok(tmesh_cuda_alloc(bed.cuda, 0, 1, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_region_create(bed.ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_register(bed.cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	tmesh_cuda_unref(bed.cuda);
	tmesh_ctx_unref(bed.ctx);
}

STANDIN_ADD(test_destroyed, NULL, NULL)
{
	unsigned long live, calls;
	struct all all;

	all_open(&all);
	live = standin_live();
	standin_reset(0);
	assert_true(standin_live() < live);
	calls = calls_of_context();
	all_refused(&all);
	drop_what_is_gone(&all);
	all_close(&all);
	eventually(standin_live() == 0);
	assert_int_equal(calls_of_context(), calls);
	anew();
	assert_int_equal(standin_live(), 0);
}

typedef int retain_fn(void **context, int device);
typedef int release_fn(int device);
typedef int push_fn(void *context);
typedef int pop_fn(void **context);
typedef int register_fn(void *addr, size_t bytes, unsigned int flags);
typedef int unregister_fn(void *addr);
typedef int stream_create_fn(struct CUstream_st **out, unsigned int flags);
typedef int stream_destroy_fn(struct CUstream_st *stream);
typedef int launch_fn(struct CUstream_st *stream, void (*call)(void *data), void *data);

/* Another caller's context at the place of the one that was reset. */
static void revive(void)
{
	retain_fn *retain = (retain_fn *)standin_symbol("cuDevicePrimaryCtxRetain");
	void *before, *context;

	assert_int_equal(retain(&before, 0), 0);
	assert_int_equal(((release_fn *)standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0), 0);
	standin_reset(0);
	assert_int_equal(retain(&context, 0), 0);
	assert_ptr_equal(context, before);
	assert_int_equal(((push_fn *)standin_symbol("cuCtxPushCurrent_v2"))(context), 0);
}

static void leave(void)
{
	void *context;

	((pop_fn *)standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((release_fn *)standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
}

static void slow_kernel(void *data)
{
	volatile char *at = data;

	usleep(50000);
	*at;
}

/* The other caller's registration of the same memory stays, and its kernels end before a block
 * goes. */
STANDIN_ADD(test_revived, NULL, NULL)
{
	stream_create_fn *create = (stream_create_fn *)standin_symbol("cuStreamCreate");
	stream_destroy_fn *destroy = (stream_destroy_fn *)standin_symbol("cuStreamDestroy_v2");
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct CUstream_st *stream;
	struct tmesh_region *region;
	unsigned long calls;
	struct all all;
	void *addr;

	all_open(&all);
	region = tmesh_region_ref(all.region);
	assert_ok(tmesh_region_map(region, RW, &addr, err));
	revive();
	assert_int_equal(((register_fn *)standin_symbol("cuMemHostRegister_v2"))(addr, 4096, 1), 0);
	calls = calls_of_context();
	all_refused(&all);
	drop_what_is_gone(&all);
	assert_int_equal(create(&stream, 0), 0);
	launch(stream, slow_kernel, (void *)tmesh_cuda_pointer(all.imported));
	all_close(&all);
	assert_int_equal(calls_of_context(), calls);
	destroy(stream);
	assert_int_equal(((unregister_fn *)standin_symbol("cuMemHostUnregister"))(addr), 0);
	tmesh_region_unref(region);
	leave();
	eventually(standin_live() == 0);
	anew();
	assert_int_equal(standin_live(), 0);
}

/* The driver does not tell once whether kernels of the other context run: a block stays mapped. */
static void unanswered(const char *symbol)
{
	stream_create_fn *create = (stream_create_fn *)standin_symbol("cuStreamCreate");
	stream_destroy_fn *destroy = (stream_destroy_fn *)standin_symbol("cuStreamDestroy_v2");
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	struct bed bed = {0};

	bed_open(&bed, 8 * MIB);
	assert_ok(tmesh_cuda_alloc(bed.cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	revive();
	assert_int_equal(create(&stream, 0), 0);
	launch(stream, slow_kernel, (void *)tmesh_cuda_pointer(memory));
	/* The context is found lost by its number. */
	assert_int_equal(tmesh_cuda_zero(memory, NULL, NULL), -ECONNRESET);
	standin_fail(symbol, 999, 0);
	tmesh_cuda_memory_unref(memory);
	/* The block goes a moment after its memory stops waiting. */
	eventually(stats_of(&bed).bytes_reserved == 0);
	assert_int_equal(stats_of(&bed).bytes_waiting, 0);
	destroy(stream);
	leave();
	bed_close(&bed);
}

STANDIN_ADD(test_revived_and_unanswered, NULL, NULL)
{
	unanswered("cuDevicePrimaryCtxRetain");
	unanswered("cuDevicePrimaryCtxGetState");
}

static void *old_symbol(const char *name)
{
	void *library = dlopen(getenv("TMESH_TEST_OLD_LIBCUDA"), RTLD_NOW);
	void *symbol = library ? dlsym(library, name) : NULL;

	assert_non_null(symbol);
	return symbol;
}

/* A driver that does not number contexts. A context seen to be lost stays lost; one remade in
 * between is taken for the old one. */
STANDIN_ADD(test_revived_on_old_driver, NULL, NULL)
{
	retain_fn *retain = (retain_fn *)old_symbol("cuDevicePrimaryCtxRetain");
	standin_reset_fn *reset = (standin_reset_fn *)old_symbol("standin_reset");
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_OLD_LIBCUDA")};
	struct tmesh_cuda_memory *memory, *same, *other;
	struct tmesh_region *region;
	struct tmesh_cuda *cuda;
	struct tmesh_ctx *ctx;
	void *context;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_cuda_open(ctx, &opts, &cuda, err));
	assert_ok(tmesh_region_create(ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_register(cuda, region, 0, RW, 0, &memory, err));
	reset(0);
	assert_int_equal(retain(&context, 0), 0);
	assert_ok(tmesh_cuda_register(cuda, region, 0, RW, 0, &same, err));
	assert_ptr_equal(same, memory);
	tmesh_cuda_memory_unref(same);
	reset(0);
	assert_refused(tmesh_cuda_register(cuda, region, 0, RW, 0, &other, err), -ECONNRESET,
		       DESTROYED);
	assert_int_equal(retain(&context, 0), 0);
	assert_refused(tmesh_cuda_register(cuda, region, 0, RW, 0, &other, err), -ECONNRESET,
		       DESTROYED);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	tmesh_cuda_unref(cuda);
	tmesh_ctx_unref(ctx);
}

static unsigned int threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Each call of the driver fails for good: nothing is waited for, no thread starts to try again, and
 * nothing is reported. */
static void given_back_to_broken(const char *words)
{
	struct tmesh_cuda_memory *memory, *host;
	struct tmesh_region *region;
	unsigned int before;
	struct bed bed = {0};

	bed_open(&bed, 8 * MIB);
	assert_ok(tmesh_cuda_alloc(bed.cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	before = threads();
	standin_set_up(words);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(&bed).bytes_waiting, 0);
	assert_int_equal(threads(), before);
	standin_set_up(NULL);
	assert_ok(tmesh_region_create(bed.ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_register(bed.cuda, region, 0, RW, 0, &host, err));
	assert_ok(tmesh_cuda_alloc(bed.cuda, 0, 5000, 0, &memory, err));
	standin_set_up(words);
	tmesh_cuda_memory_unref(host);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(&bed).bytes_waiting, 0);
	assert_int_equal(stats_of(&bed).registered_bytes, 0);
	tmesh_region_unref(region);
	tmesh_cuda_unref(bed.cuda);
	tmesh_ctx_unref(bed.ctx);
	assert_int_equal(bed.warnings, 0);
	standin_set_up(NULL);
	standin_reset(0);
}

STANDIN_ADD(test_driver_has_ended, NULL, NULL)
{
	given_back_to_broken("broken=4");
}

STANDIN_ADD(test_kernel_has_failed, NULL, NULL)
{
	given_back_to_broken("broken=719");
}

static int end_foreign(void **state)
{
	helper_end(&foreign);
	return 0;
}

int main(void)
{
	foreign = helper_start(RW, -1);
	return UNIT_RUN("cuda context", NULL, end_foreign);
}
