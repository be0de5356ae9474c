// SPDX-License-Identifier: MIT
/* Regions of host memory that kernels use. */
#include <pthread.h>

#include "cuda_unit.h"

static struct tmesh_region *region_of(struct bed *bed, const char *text)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(bed->ctx, 3 * 4096 + 5, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, text, strlen(text), err));
	return region;
}

static void test_registered(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory, *again;
	struct tmesh_cuda_info info;
	char byte;
	void *addr;

	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &memory, err));
	info = info_of(memory);
	assert_int_equal(info.kind, TMESH_CUDA_HOST);
	assert_int_equal(info.device, 1);
	assert_int_equal(info.resident, -1);
	assert_int_equal(info.bytes, 3 * 4096 + 5);
	assert_true(standin_access(1, info.pointer + 1, &byte, 1, false));
	assert_int_equal(byte, 'b');
	byte = 'X';
	assert_true(standin_access(1, info.pointer + 1, &byte, 1, true));
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_int_equal(((char *)addr)[1], 'X');
	/* Once more is the same. */
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, TMESH_READ, 0, &again, err));
	assert_ptr_equal(again, memory);
	assert_int_equal(stats_of(bed).registered_bytes, 3 * 4096 + 5);
	tmesh_cuda_memory_unref(again);
	assert_true(standin_access(1, info.pointer, &byte, 1, false));
	tmesh_cuda_memory_unref(memory);
	assert_false(standin_access(1, info.pointer, &byte, 1, false));
	assert_int_equal(stats_of(bed).registered_bytes, 0);
	assert_int_equal(standin_calls("cuMemHostRegister_v2"),
			 standin_calls("cuMemHostUnregister"));
	tmesh_region_unref(region);
}

static void test_read_only(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc"), *reader;
	struct tmesh_cuda_memory *memory;
	char byte = 'X';

	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_refused(tmesh_cuda_register(bed->cuda, reader, 0, RW, 0, &memory, err), -EACCES,
		       "write");
	assert_ok(tmesh_cuda_register(bed->cuda, reader, 0, TMESH_READ, 0, &memory, err));
	assert_false(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_refused(tmesh_cuda_zero(memory, NULL, err), -EACCES, "reading");
	assert_refused(tmesh_cuda_write(memory, 0, &byte, 1, err), -EACCES, "reading");
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'a');
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(reader);

	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -EPERM,
		       "sealed");
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

/* A long copy keeps nobody else from anything. */
static void while_copying(void *data)
{
	struct bed *bed = data;
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 1, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
}

static void test_staged(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda_stats stats;
	char byte;

	standin_fail("cuMemHostRegister_v2", 801, 0);
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -EOPNOTSUPP,
		       "cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED");
	assert_int_equal(bed->warnings, 0);
	standin_fail("cuMemHostRegister_v2", 801, 0);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, TMESH_CUDA_OR_STAGE, &memory, err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_STAGED);
	assert_int_equal(bed->warnings, 1);
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'a');
	byte = 'Z';
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_ok(tmesh_region_read(region, 0, &byte, 1, err));
	assert_int_equal(byte, 'a');
	standin_during("cuMemcpyDtoH_v2", while_copying, bed);
	alarm(300);
	assert_ok(tmesh_cuda_stage(memory, true, err));
	alarm(0);
	assert_ok(tmesh_region_read(region, 0, &byte, 1, err));
	assert_int_equal(byte, 'Z');
	stats = stats_of(bed);
	assert_int_equal(stats.staged_copies, 2);
	assert_int_equal(stats.staged_bytes, 2 * (3 * 4096 + 5));
	tmesh_cuda_memory_unref(memory);
	/* A stage that fails too says its own reason and leaves nothing. */
	standin_fail("cuMemHostRegister_v2", 801, 0);
	standin_fail("cuMemAlloc_v2", 2, 0);
	assert_refused(
		tmesh_cuda_register(bed->cuda, region, 0, RW, TMESH_CUDA_OR_STAGE, &memory, err),
		-ENOMEM, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
	tmesh_region_unref(region);
}

static bool on_module(const struct bed *bed)
{
	return tmesh_ctx_backend(bed->ctx) == TMESH_BACKEND_KERNEL;
}

/* As long as it is registered its lease is touched; when it is over all the same, it goes. */
static void test_lease(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory;
	/* Four touches of it may come late before it lapses: on a busy machine threads do. */
	const useconds_t period = 3000000;
	char byte;

	assert_ok(tmesh_lease_set(region, period * 1000ull, TMESH_TAKEN_SIGBUS, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	usleep(3 * period / 2);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_IS_LIVE);
	assert_int_equal(tmesh_cuda_touch(memory), 0);
	tmesh_cuda_memory_unref(memory);
	eventually(tmesh_lease_state(region) == TMESH_LEASE_HAS_LAPSED);
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -ESTALE,
		       "lease");
	tmesh_region_unref(region);

	/* It lapses under the registration: this process was stopped for longer. */
	region = region_of(bed, "abc");
	assert_ok(tmesh_lease_set(region, period * 1000ull, TMESH_TAKEN_SIGBUS, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	if (fork() == 0) {
		kill(getppid(), SIGSTOP);
		usleep(9 * period / 4);
		kill(getppid(), SIGCONT);
		_exit(0);
	}
	eventually(tmesh_cuda_touch(memory) == -ESTALE);
	waitpid(-1, NULL, 0);
	eventually(stats_of(bed).taken == 1);
	assert_false(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_true(info_of(memory).taken);
	assert_refused(tmesh_cuda_zero(memory, NULL, err), -ESTALE, "taken back");
	assert_refused(tmesh_cuda_write(memory, 0, "x", 1, err), -ESTALE, "taken back");
	assert_int_equal(stats_of(bed).registered_bytes, 0);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

/* Taken back by its owner, who has another handle on it. */
static void test_revoked(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc"), *lent;
	struct tmesh_cuda_memory *memory, *late;
	char byte;

	assert_ok(tmesh_region_derive(region, RW, &lent, err));
	assert_ok(tmesh_cuda_register(bed->cuda, lent, 0, RW, 0, &memory, err));
	if (!on_module(bed)) {
		assert_refused(tmesh_region_revoke(region, err), -EOPNOTSUPP, "");
		assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	} else {
		assert_ok(tmesh_region_revoke(region, err));
		eventually(stats_of(bed).taken == 1);
		assert_false(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
		assert_true(info_of(memory).taken);
		assert_int_equal(tmesh_cuda_touch(memory), -ESTALE);
		assert_refused(tmesh_cuda_register(bed->cuda, lent, 0, RW, 0, &late, err), -ESTALE,
			       "revoked");
	}
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
	assert_int_equal(stats_of(bed).registered_bytes, 0);
}

/* Given back while the watcher goes round, which it does for every registration: it looks at no
 * region that is gone. */
static void *register_often(void *data)
{
	struct bed *bed = data;
	/* A guest takes forty seconds for a thousand. */
	const int rounds = on_module(bed) ? 200 : 1000;

	for (int i = 0; i < rounds; i++) {
		struct tmesh_region *region;
		struct tmesh_cuda_memory *memory;
		struct tmesh_cuda_info info = {.size = sizeof(info)};

		if (tmesh_region_create(bed->ctx, 4096, NULL, &region, NULL) ||
		    tmesh_lease_set(region, 60 * SECOND, TMESH_TAKEN_SIGBUS, NULL) ||
		    tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, NULL))
			return data;
		tmesh_region_unref(region);
		tmesh_cuda_info(memory, &info, NULL);
		tmesh_cuda_memory_unref(memory);
	}
	return NULL;
}

static void test_given_back_under_the_watcher(void **state)
{
	pthread_t threads[3];
	void *failed;

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_often, *state), 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
}

static bool is_dmabuf(int fd)
{
	char path[32], target[16] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return readlink(path, target, sizeof(target) - 1) > 0 && !strncmp(target, "/dmabuf:", 8);
}

/* Device memory on its way to other devices: a region that the module imports, good after the
 * memory was given back. The stand-in has a dma-buf where the kernel makes them of memfds. */
static void test_device_memory_as_region(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	char byte = 'd';
	void *addr;
	int fd;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(memory) + 4096, &byte, 1, true));
	assert_ok(tmesh_cuda_export_dmabuf(memory, 4096, 8192, &fd, err));
	if (!on_module(bed) || !is_dmabuf(fd)) {
		assert_refused(tmesh_region_from_dmabuf(bed->ctx, fd, NULL, &region, err),
			       on_module(bed) ? -EINVAL : -EOPNOTSUPP, "dma-buf");
	} else {
		assert_ok(tmesh_region_from_dmabuf(bed->ctx, fd, NULL, &region, err));
		tmesh_cuda_memory_unref(memory);
		memory = NULL;
		assert_ok(tmesh_region_info(region, &info, err));
		assert_int_equal(info.backing, TMESH_BACKED_BY_DMABUF);
		assert_int_equal(info.bytes, 8192);
		assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
		assert_int_equal(*(char *)addr, 'd');
		tmesh_region_unref(region);
	}
	close(fd);
	tmesh_cuda_memory_unref(memory);
}

static void test_refused(void **state)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory, *other = (void *)state;

	assert_refused(tmesh_cuda_register(bed->cuda, region, 2, RW, 0, &memory, err), -ENODEV,
		       "no GPU 2");
	assert_refused(tmesh_cuda_register(bed->cuda, region, -1, RW, 0, &memory, err), -ENODEV,
		       "no GPU -1");
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, TMESH_WRITE, 0, &memory, err),
		       -EINVAL, "READ");
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 8, &memory, err), -EINVAL,
		       "0x8");
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	/* For another device the driver has to take it a second time. */
	assert_refused(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &other, err), -EBUSY,
		       "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
	assert_ptr_equal(other, state);
	assert_refused(tmesh_cuda_stage(memory, false, err), -EINVAL, "no copy");
	tmesh_cuda_memory_unref(memory);
	standin_reset(0);
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -ECONNRESET,
		       "CUDA_ERROR_CONTEXT_IS_DESTROYED");
	tmesh_region_unref(region);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		standin_test(test_registered), standin_test(test_read_only),
		standin_test(test_staged),     standin_test(test_lease),
		standin_test(test_revoked),    standin_test(test_given_back_under_the_watcher),
		standin_test(test_refused),    standin_test(test_device_memory_as_region),
	};

	return cmocka_run_group_tests_name("cuda host", tests, NULL, NULL);
}
