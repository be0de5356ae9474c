// SPDX-License-Identifier: MIT
/*
 * A channel's calls on threads that must not wait: they give no memory back, and do not wait for
 * another thread's copy. The functions below stand in for the C library's.
 */
#include <semaphore.h>
#include <valgrind/valgrind.h>

#include "channels.h"

#include <tmesh/hold.h>

#define BYTES (1u << 20)

static pthread_t caller;
static atomic_uint unmapped_by_caller, unmapped_by_others;

/* The watch stands still as it gives the first back, so that the others wait for it. */
static atomic_bool watch_stands;

int munmap(void *addr, size_t bytes)
{
	while (bytes >= BYTES && caller && !pthread_equal(pthread_self(), caller) &&
	       atomic_load(&watch_stands))
		usleep(100);
	if (bytes >= BYTES && caller)
		atomic_fetch_add(pthread_equal(pthread_self(), caller) ? &unmapped_by_caller
								       : &unmapped_by_others,
				 1);
	return (int)syscall(SYS_munmap, addr, bytes);
}

/* Copies stand still in the middle: the kernel's as it begins, ours at a page that cannot be read.
 */
static sem_t in_the_middle, go_on;
static atomic_bool stops;
static void *no_page;

static void stand_still(void)
{
	sem_post(&in_the_middle);
	while (sem_wait(&go_on))
		;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	if (atomic_exchange(&stops, false))
		stand_still();
	return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

static void at_the_page(int signal)
{
	stand_still();
	if (mprotect(no_page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ))
		_exit(1);
}

static struct tmesh_tensor *tensor(struct tmesh_ctx *ctx)
{
	const int64_t shape[] = {BYTES};
	struct tmesh_tensor *made = NULL;
	void *addr;

	assert_ok(tmesh_tensor_create(ctx, TMESH_UINT8, 1, shape, NULL, &made, err));
	assert_ok(tmesh_tensor_data(made, TMESH_READ | TMESH_WRITE, &addr, err));
	return made;
}

static void receive(struct tmesh_channel *from)
{
	struct tmesh_message message;

	assert_ok(tmesh_channel_recv(from, &message, PATIENCE, err));
	tmesh_tensor_unref(message.tensor);
}

static void test_who_gives_back(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 1};
	struct tmesh_ctx *ctx = new_ctx(), *far = new_ctx();
	struct tmesh_channel *from, *to;
	struct tmesh_tensor *tensors[8];
	struct tmesh_region *made, *opened;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_channel_create(far, RECV, &opts, &from, err));
	assert_ok(tmesh_channel_token(from, token, err));
	assert_ok(tmesh_channel_open(ctx, token, SEND, NULL, &to, err));
	for (uint32_t n = 0; n < 8; n++)
		tensors[n] = tensor(ctx);
	/* Each send lets go of what was sent before it. */
	caller = pthread_self();
	atomic_store(&watch_stands, true);
	for (uint32_t n = 0; n < 8; n++) {
		struct tmesh_message message = {.tensor = tensors[n]};

		assert_ok(tmesh_channel_try_send(to, &message, err));
		tmesh_tensor_unref(message.tensor);
		receive(from);
	}
	/* Nor does who makes or opens something then. */
	assert_ok(tmesh_region_create(ctx, 1, NULL, &made, err));
	assert_ok(tmesh_region_token(made, TMESH_READ, token, err));
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &opened, err));
	/* Nor who waits until all were received, which lets go of the last. */
	assert_ok(tmesh_channel_flush(to, PATIENCE, err));
	assert_int_equal(unmapped_by_caller, 0);
	assert_int_equal(unmapped_by_others, 0);
	atomic_store(&watch_stands, false);
	tmesh_region_unref(opened);
	tmesh_region_unref(made);
	while (atomic_load(&unmapped_by_others) < 8)
		usleep(1000);
	caller = 0;
	tmesh_channel_unref(to);
	tmesh_channel_unref(from);
	tmesh_ctx_unref(far);
	tmesh_ctx_unref(ctx);
}

struct copy {
	struct tmesh_region *region;
	const void *data;
	int rc, sealed;
};

static void *write_to(void *data)
{
	struct copy *copy = data;

	copy->rc = tmesh_region_write(copy->region, 0, copy->data, BYTES, NULL);
	return NULL;
}

static void *seal(void *data)
{
	struct copy *copy = data;

	copy->sealed = tmesh_region_seal(copy->region, NULL);
	return NULL;
}

/* With a copy that stands still these come back, or the test does not. */
static void do_what_must_not_wait(struct tmesh_region *region)
{
	struct pair p = pair_make(RECV, NULL);
	struct tmesh_message message = {0};
	struct tmesh_region *same;
	struct tmesh_layout layout;
	const int64_t shape[] = {1};
	char token[TMESH_TOKEN_SIZE], ref[TMESH_REF_SIZE];
	void *addr;

	assert_ok(tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, shape, err));
	assert_ok(tmesh_tensor_wrap(region, &layout, &message.tensor, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_tensor_ref_encode(message.tensor, TMESH_READ, ref, sizeof(ref), err));
	assert_ok(tmesh_tensor_ref_hold(message.tensor, TMESH_READ, 1, ref, sizeof(ref), err));
	assert_ok(tmesh_channel_try_send(p.other, &message, err));
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	tmesh_region_unmap(region, TMESH_READ);
	assert_ok(tmesh_region_open(region->ctx, token, TMESH_READ, &same, err));
	tmesh_region_unref(same);
	tmesh_tensor_unref(message.tensor);
	receive(p.maker);
	pair_end(&p);
}

static void check_copy(struct copy *copy)
{
	pthread_t writer, sealer;
	char *got = malloc(BYTES);

	assert_int_equal(pthread_create(&writer, NULL, write_to, copy), 0);
	while (sem_wait(&in_the_middle))
		;
	do_what_must_not_wait(copy->region);
	/* A seal does wait: what it seals is whole. */
	assert_int_equal(pthread_create(&sealer, NULL, seal, copy), 0);
	sem_post(&go_on);
	pthread_join(writer, NULL);
	pthread_join(sealer, NULL);
	if (copy->rc != -EPERM) {
		assert_int_equal(copy->rc, 0);
		assert_int_equal(copy->sealed, 0);
		assert_ok(tmesh_region_read(copy->region, 0, got, BYTES, err));
		assert_memory_equal(got, copy->data, BYTES);
	}
	free(got);
}

static void test_copy_by_descriptor(void **state)
{
	struct tmesh_ctx *ctx = new_ctx();
	char *data = malloc(BYTES);
	struct copy copy = {.data = data};

	if (unit_on_kernel()) {
		/* By process_vm_writev(), which the other test has. */
		free(data);
		tmesh_ctx_unref(ctx);
		return;
	}
	memset(data, 'x', BYTES);
	assert_ok(tmesh_region_create(ctx, BYTES, NULL, &copy.region, err));
	atomic_store(&stops, true);
	check_copy(&copy);
	tmesh_region_unref(copy.region);
	tmesh_ctx_unref(ctx);
	free(data);
}

static void test_copy_by_mapping(void **state)
{
	struct tmesh_ctx *ctx = new_ctx();
	char *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct copy copy = {.data = data};
	struct sigaction action = {.sa_handler = at_the_page}, before;

	assert_true(data != MAP_FAILED);
	memset(data, 'y', BYTES);
	no_page = data + BYTES / 2;
	assert_int_equal(mprotect(no_page, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE), 0);
	assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
	assert_ok(tmesh_region_create(ctx, BYTES, NULL, &copy.region, err));
	copy.region->warm = true;
	check_copy(&copy);
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	tmesh_region_unref(copy.region);
	tmesh_ctx_unref(ctx);
	munmap(data, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_who_gives_back),
		TEST(test_copy_by_descriptor),
	};
	const struct CMUnitTest faulting[] = {TEST(test_copy_by_mapping)};
	int failed;

	sem_init(&in_the_middle, 0, 0);
	sem_init(&go_on, 0, 0);
	failed = cmocka_run_group_tests_name("channel_callers", tests, NULL, NULL);
	if (RUNNING_ON_VALGRIND)
		return failed + UNIT_SKIP(faulting, "valgrind goes on behind a copy that faulted "
						    "with registers of before it");
	return failed + cmocka_run_group_tests_name("channel_callers", faulting, NULL, NULL);
}
