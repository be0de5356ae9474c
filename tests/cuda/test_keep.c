// SPDX-License-Identifier: MIT
/* GPU memory under a name: its maker and all its holders are killed, and it is opened again. */
#include "cuda_unit.h"

#include <poll.h>
#include <sys/syscall.h>

#define BYTES 5000

/* Numbers of 4 bytes in 10 columns, of which the second to the last but one are taken. */
static const struct tmesh_layout view = {
	.dtype = TMESH_INT32,
	.ndim = 2,
	.shape = {7, 8},
	.strides = {10, 1},
	.offset = 4,
};

static int keep_up(void **state)
{
	unsetenv("TMESH_KEEPER_BYTES");
	return set_up(state);
}

static void end_keeper(struct tmesh_ctx *ctx)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};
	struct pollfd poller = {.events = POLLIN};

	assert_ok(tmesh_keeper_info(ctx, &info, err));
	if (!info.pid)
		return;
	poller.fd = (int)syscall(SYS_pidfd_open, info.pid, 0);
	assert_int_equal(kill(info.pid, SIGTERM), 0);
	assert_int_equal(poll(&poller, 1, 60000), 1);
	close(poller.fd);
}

static int keep_down(void **state)
{
	end_keeper(((struct bed *)*state)->ctx);
	return tear_down(state);
}

static struct tmesh_cuda_memory *alloc(struct bed *bed, uint32_t flags, char fill)
{
	struct tmesh_cuda_memory *memory;
	char bytes[BYTES];

	memset(bytes, fill, sizeof(bytes));
	assert_ok(tmesh_cuda_alloc(bed->cuda, 1, BYTES, flags, &memory, err));
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), bytes, BYTES, true));
	return memory;
}

static void check_fill(struct tmesh_cuda_memory *memory, char fill)
{
	char bytes[BYTES], all[BYTES];

	memset(all, fill, sizeof(all));
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), bytes, BYTES, false));
	assert_memory_equal(bytes, all, BYTES);
}

static int keep(struct tmesh_cuda_memory *memory, const char *name, struct tmesh_error *err)
{
	return tmesh_cuda_keep(memory, name, &view, NULL, NULL, err);
}

static struct tmesh_cuda_memory *open_kept(struct bed *bed, const char *name, uint32_t rights)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .rights = rights, .device = -1};
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;

	assert_ok(tmesh_cuda_kept_open(bed->cuda, name, TMESH_KEPT_OWN, &opts, &memory, &layout,
				       err));
	assert_int_equal(layout.dtype, view.dtype);
	assert_int_equal(layout.ndim, view.ndim);
	assert_memory_equal(layout.shape, view.shape, 2 * sizeof(*view.shape));
	assert_memory_equal(layout.strides, view.strides, 2 * sizeof(*view.strides));
	assert_int_equal(layout.offset, view.offset);
	assert_int_equal(layout.device_type, TMESH_DEVICE_CUDA);
	assert_int_equal(layout.device_id, 1);
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_IMPORTED);
	assert_int_equal(info_of(memory).rights, rights);
	return memory;
}

static size_t names(struct bed *bed)
{
	struct tmesh_kept_info *infos = NULL;
	size_t count;

	assert_ok(tmesh_kept_list(bed->ctx, &infos, &count, err));
	free(infos);
	return count;
}

/* Run it in a process of its own, which is killed. */
static void killed_after(void (*what)(struct bed *bed))
{
	struct bed bed = {0};
	int status;
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		((standin_start_fn *)standin_symbol("standin_start"))();
		bed_open(&bed, 8 * MIB);
		what(&bed);
		raise(SIGKILL);
	}
	waitpid(pid, &status, 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void make(struct bed *bed)
{
	struct tmesh_cuda_memory *memory = alloc(bed, TMESH_CUDA_ALONE, 'k');

	assert_ok(keep(memory, "weights", err));
}

static void look(struct bed *bed)
{
	check_fill(open_kept(bed, "weights", TMESH_READ), 'k');
}

/* The processes run one after the other: none has an object of another. */
STANDIN_ADD(test_all_are_killed, NULL, NULL)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout = bytes_layout(BYTES);
	struct bed bed_ = {0}, *bed = &bed_;
	char text[TMESH_REF_SIZE], byte = 'w';

	killed_after(make);
	killed_after(look);
	killed_after(look);
	bed_open(bed, 8 * MIB);
	memory = open_kept(bed, "weights", RW);
	check_fill(memory, 'k');
	/* It is the same memory, and not a copy: a write here is seen there. */
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), &byte, 1, true));
	tmesh_cuda_memory_unref(memory);
	memory = open_kept(bed, "weights", TMESH_READ);
	byte = '?';
	assert_false(standin_access(1, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'w');
	/* No stream waits for an event of a dead process. */
	assert_int_equal(standin_calls("cuIpcOpenEventHandle"), 0);
	assert_ok(tmesh_cuda_wait(memory, NULL, err));
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	/* The memory stays while one process holds it; then it is gone. */
	assert_ok(tmesh_kept_drop(bed->ctx, "weights", err));
	byte = '?';
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'w');
	tmesh_cuda_memory_unref(memory);
	assert_refused(tmesh_cuda_kept_open(bed->cuda, "weights", TMESH_KEPT_OWN, NULL, &memory,
					    &layout, err),
		       -ENOENT, "weights");
	end_keeper(bed->ctx);
	bed_close(bed);
}

static void make_pool(struct bed *bed)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(bed->ctx, BYTES, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, "pool", 4, err));
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, TMESH_READ, 0, &memory, err));
	assert_ok(tmesh_keep(bed->ctx, "pool", &region, 1, NULL, err));
}

/* Host memory that was registered, and is kept: its contents stay, and the registration is made
 * anew. */
STANDIN_ADD(test_registered_pool_is_kept, NULL, NULL)
{
	struct tmesh_cuda_memory *memory;
	struct bed bed_ = {0}, *bed = &bed_;
	struct tmesh_region **regions;
	char bytes[4];
	size_t count;

	killed_after(make_pool);
	bed_open(bed, 8 * MIB);
	assert_ok(tmesh_kept_open(bed->ctx, "pool", TMESH_KEPT_OWN, TMESH_READ, &regions, &count,
				  err));
	assert_int_equal(count, 1);
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), 0);
	assert_ok(tmesh_cuda_register(bed->cuda, regions[0], 1, TMESH_READ, 0, &memory, err));
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), 1);
	assert_true(standin_access(1, tmesh_cuda_pointer(memory), bytes, 4, false));
	assert_memory_equal(bytes, "pool", 4);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(regions[0]);
	free(regions);
	assert_ok(tmesh_kept_drop(bed->ctx, "pool", err));
	end_keeper(bed->ctx);
	bed_close(bed);
}

/* Released here, it is not used again while it is kept. */
STANDIN_ADD(test_its_maker_lives, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 'm'), *other;
	uint64_t pointer = tmesh_cuda_pointer(memory);

	assert_ok(keep(memory, "one", err));
	assert_ok(keep(memory, "two", err));
	assert_int_equal(stats_of(bed).bytes_pending_free, 2 * BYTES);
	tmesh_cuda_memory_unref(memory);
	other = alloc(bed, 0, 'o');
	assert_int_not_equal(tmesh_cuda_pointer(other), pointer);
	tmesh_cuda_memory_unref(other);
	memory = open_kept(bed, "one", TMESH_READ);
	check_fill(memory, 'm');
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_kept_drop(bed->ctx, "one", err));
	eventually(stats_of(bed).bytes_pending_free == BYTES);
	memory = open_kept(bed, "two", TMESH_READ);
	check_fill(memory, 'm');
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_kept_drop(bed->ctx, "two", err));
	eventually(stats_of(bed).bytes_pending_free == 0);
	eventually(stats_of(bed).bytes_used == 0);
}

/* Keep a part of an allocation, as a framework's tensor is: a callback reports to the maker when
 * its place is free. */
static void count(void *data)
{
	++*(atomic_int *)data;
}

STANDIN_ADD(test_part, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *whole = alloc(bed, 0, 'p'), *part, *memory;
	struct tmesh_layout layout = bytes_layout(1000), here;
	atomic_int released = 0;

	assert_ok(tmesh_cuda_slice(whole, 512, 1000, count, &released, &part, err));
	assert_ok(tmesh_cuda_keep(part, "part", &layout, TMESH_CUDA_NO_STREAM, NULL, err));
	tmesh_cuda_memory_unref(part);
	tmesh_cuda_memory_unref(whole);
	assert_int_equal(released, 0);
	assert_ok(
		tmesh_cuda_kept_open(bed->cuda, "part", TMESH_KEPT_OWN, NULL, &memory, &here, err));
	assert_int_equal(info_of(memory).bytes, 1000);
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_kept_drop(bed->ctx, "part", err));
	eventually(released == 1);
}

/* The longest description that there is. */
STANDIN_ADD(test_many_axes, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 'x'), *other;
	struct tmesh_layout layout = {.dtype = TMESH_COMPLEX128, .ndim = TMESH_MAX_DIMS}, here;

	for (int i = 0; i < layout.ndim; i++) {
		layout.shape[i] = 1;
		layout.strides[i] = INT64_MIN / 16;
	}
	layout.shape[0] = 0;
	for (int i = 1; i < layout.ndim; i++)
		layout.shape[i] = INT64_MAX;
	assert_ok(tmesh_cuda_keep(memory, "axes", &layout, NULL, NULL, err));
	assert_ok(
		tmesh_cuda_kept_open(bed->cuda, "axes", TMESH_KEPT_OWN, NULL, &other, &here, err));
	assert_memory_equal(here.shape, layout.shape, sizeof(here.shape));
	assert_memory_equal(here.strides, layout.strides, sizeof(here.strides));
	tmesh_cuda_memory_unref(other);
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_kept_drop(bed->ctx, "axes", err));
}

/* Work queued before the call is done when the call returns. */
STANDIN_ADD(test_it_waits_for_the_stream, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 's');
	unsigned long before = standin_calls("cuStreamSynchronize");

	assert_ok(keep(memory, "a", err));
	assert_int_equal(standin_calls("cuStreamSynchronize"), before + 1);
	standin_fail("cuStreamSynchronize", 999, 0);
	assert_refused(keep(memory, "b", err), -EIO, "cuStreamSynchronize");
	assert_int_equal(names(bed), 1);
	assert_ok(tmesh_kept_drop(bed->ctx, "a", err));
	tmesh_cuda_memory_unref(memory);
}

/* After a refusal nothing is kept, and nothing stays. */
STANDIN_ADD(test_refused, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 'r'), *other;
	struct tmesh_keep_opts replace = {.size = sizeof(replace), .flags = TMESH_KEEPING_REPLACE};
	struct tmesh_layout layout = bytes_layout(BYTES + 1), here;
	struct tmesh_region *regions[2], *host;
	int ends[2];

	assert_refused(tmesh_cuda_keep(memory, "a", &layout, NULL, NULL, err), -EINVAL, "");
	assert_refused(keep(memory, "", err), -EINVAL, "name is empty");
	assert_int_equal(names(bed), 0);
	eventually(stats_of(bed).bytes_pending_free == 0);
	assert_ok(keep(memory, "a", err));
	assert_refused(keep(memory, "a", err), -EEXIST, "replace");
	eventually(stats_of(bed).bytes_pending_free == BYTES);
	assert_ok(tmesh_cuda_keep(memory, "a", &view, NULL, &replace, err));
	eventually(stats_of(bed).bytes_pending_free == BYTES);
	other = open_kept(bed, "a", RW);
	assert_refused(keep(other, "b", err), -EINVAL, "its maker keeps it");
	tmesh_cuda_memory_unref(other);
	/* The keeper holds the kept memory, even if a region is reclaimed. */
	assert_ok(tmesh_cuda_reclaim(memory, 0, err));
	check_fill(memory, 'r');
	assert_ok(tmesh_kept_drop(bed->ctx, "a", err));

	/* Host memory has its own verb, and is none of the GPU's. */
	assert_ok(tmesh_region_create(bed->ctx, 4096, NULL, &host, err));
	assert_ok(tmesh_cuda_register(bed->cuda, host, 0, RW, 0, &other, err));
	layout = bytes_layout(4096);
	assert_refused(tmesh_cuda_keep(other, "h", &layout, NULL, NULL, err), -EOPNOTSUPP,
		       "tmesh_keep");
	tmesh_cuda_memory_unref(other);
	assert_ok(tmesh_region_seal(host, err));
	assert_ok(tmesh_keep(bed->ctx, "h", &host, 1, NULL, err));
	assert_refused(
		tmesh_cuda_kept_open(bed->cuda, "h", TMESH_KEPT_OWN, NULL, &other, &here, err),
		-EACCES, "is this GPU memory?");
	tmesh_region_unref(host);

	/* A name kept with other descriptors is not the GPU's either. */
	assert_int_equal(pipe(ends), 0);
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_region_from_fd(bed->ctx, ends[i], MIB, NULL, &regions[i], err));
	assert_ok(tmesh_keep(bed->ctx, "pipes", regions, 2, NULL, err));
	assert_refused(
		tmesh_cuda_kept_open(bed->cuda, "pipes", TMESH_KEPT_OWN, NULL, &other, &here, err),
		-EPROTO, "2 regions");
	assert_ok(tmesh_keep(bed->ctx, "pipes", regions, 1, &replace, err));
	assert_refused(
		tmesh_cuda_kept_open(bed->cuda, "pipes", TMESH_KEPT_OWN, NULL, &other, &here, err),
		-EPROTO, "does not stand for GPU memory");
	/* Its numbers lead outside the memory. */
	assert_ok(tmesh_region_set_description(
		regions[0],
		"{\"v\":1,\"id\":\"0\",\"offset\":0,\"byte_size\":8388608,\"shape\":[8388608],"
		"\"dtype\":\"uint8\",\"strides\":[1],\"device\":\"cuda:0\",\"cuda\":{\"kind\":"
		"\"vmm\","
		"\"uuid\":\"00000000000000000000000000000000\",\"driver\":13000,"
		"\"block\":\"0123456789abcdef\",\"at\":0,\"of\":1048577,\"bytes\":1048577}}",
		err));
	assert_refused(
		tmesh_cuda_kept_open(bed->cuda, "pipes", TMESH_KEPT_OWN, NULL, &other, &here, err),
		-EPROTO, "");
	for (int i = 0; i < 2; i++) {
		tmesh_region_unref(regions[i]);
		close(ends[i]);
	}
	tmesh_cuda_memory_unref(memory);
}

/* Check that persistence mode off names the GPU, and that a GPU unknown to NVML is left out. */
STANDIN_ADD(test_persistence_mode, keep_up, keep_down)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, TMESH_CUDA_ALONE, 'p');
	struct tmesh_layout layout = bytes_layout(BYTES);

	assert_ok(tmesh_cuda_keep(memory, "on", &layout, NULL, NULL, err));
	standin_set_up("without=persistence,without=nvml");
	assert_ok(tmesh_cuda_keep(memory, "unknown", &layout, NULL, NULL, err));
	assert_int_equal(bed->warnings, 0);
	standin_set_up("without=persistence");
	assert_ok(tmesh_cuda_keep(memory, "off", &layout, NULL, NULL, err));
	assert_int_equal(bed->warnings, 1);
	standin_set_up(NULL);
	assert_ok(tmesh_kept_drop(bed->ctx, "on", err));
	assert_ok(tmesh_kept_drop(bed->ctx, "unknown", err));
	assert_ok(tmesh_kept_drop(bed->ctx, "off", err));
	tmesh_cuda_memory_unref(memory);
}

UNIT_MAIN("cuda keep", NULL, NULL)
