// SPDX-License-Identifier: MIT
/* Regions of host memory that kernels use. */
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include "cuda_unit.h"

static __thread int watches_fail; /* so many calls of this thread */

/* In place of the C library's. */
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && watches_fail && watches_fail--) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

static bool is_large; /* the machine has 4 TiB */

int sysinfo(struct sysinfo *info)
{
	int rc = (int)syscall(SYS_sysinfo, info);

	if (!rc && is_large)
		info->totalram = (4ull << 40) / info->mem_unit;
	return rc;
}

static struct tmesh_region *region_of(struct bed *bed, const char *text)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(bed->ctx, 3 * 4096 + 5, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, text, strlen(text), err));
	return region;
}

STANDIN(test_registered)
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

STANDIN(test_read_only)
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

/* A process has one mapping of a region, and the driver registers it once. */
STANDIN(test_for_reading_then_for_writing)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	unsigned long before = standin_calls("cuMemHostRegister_v2");
	struct tmesh_cuda_memory *reading, *writing;
	char byte = 'x';

	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &reading, err));
	for (int device = 0; device < 2; device++)
		assert_refused(tmesh_cuda_register(bed->cuda, region, device, RW, 0, &writing, err),
			       -EBUSY, "release that first");
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), before + 1);
	tmesh_cuda_memory_unref(reading);
	assert_int_equal(stats_of(bed).registered_bytes, 0);

	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &writing, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, TMESH_READ, 0, &reading, err));
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), before + 2);
	assert_ok(tmesh_cuda_write(writing, 0, &byte, 1, err));
	assert_true(standin_access(1, tmesh_cuda_pointer(reading), &byte, 1, false));
	assert_int_equal(byte, 'x');
	tmesh_cuda_memory_unref(writing);
	tmesh_cuda_memory_unref(reading);
	assert_int_equal(stats_of(bed).registered_bytes, 0);
	tmesh_region_unref(region);
}

/* The driver registers it once, and every device has a pointer to it. */
STANDIN(test_two_devices)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	unsigned long before = standin_calls("cuMemHostRegister_v2");
	struct tmesh_cuda_memory *zero, *one;
	uint64_t pointer;
	char byte;

	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &zero, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &one, err));
	assert_ptr_not_equal(zero, one);
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), before + 1);
	tmesh_cuda_memory_unref(zero);
	assert_true(standin_access(1, tmesh_cuda_pointer(one), &byte, 1, false));
	assert_int_equal(byte, 'a');
	pointer = tmesh_cuda_pointer(one);
	tmesh_cuda_memory_unref(one);
	assert_false(standin_access(1, pointer, &byte, 1, false));
	assert_int_equal(stats_of(bed).registered_bytes, 0);

	/* A registration is lost with its context; then it is made anew. */
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &zero, err));
	standin_reset(0);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &one, err));
	assert_true(standin_access(1, tmesh_cuda_pointer(one), &byte, 1, false));
	tmesh_cuda_memory_unref(zero);
	assert_true(standin_access(1, tmesh_cuda_pointer(one), &byte, 1, false));
	tmesh_cuda_memory_unref(one);
	tmesh_region_unref(region);
}

/* GPUs without read-only memory: sealed weights are copied, memory that its owner lets others write
 * is not. The library reports both. */
STANDIN(test_no_read_only_memory)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory;
	char byte = 'X';

	standin_set_up("without=read-only");
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &memory, err),
		       -EOPNOTSUPP, "TMESH_CUDA_OR_WRITABLE or OR_STAGE");
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, TMESH_CUDA_OR_WRITABLE,
				      &memory, err));
	assert_int_equal(bed->warnings, 1);
	assert_int_equal(stats_of(bed).writable_instead, 1);
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_HOST);
	assert_int_equal(info_of(memory).rights, TMESH_READ);
	assert_int_equal(info_of(memory).mapped_rights, RW);
	assert_refused(tmesh_cuda_write(memory, 0, &byte, 1, err), -EACCES, "reading");
	tmesh_cuda_memory_unref(memory);

	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, TMESH_CUDA_OR_WRITABLE,
					   &memory, err),
		       -EOPNOTSUPP, "not for writing either");
	assert_int_equal(stats_of(bed).writable_instead, 1);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ,
				      TMESH_CUDA_OR_WRITABLE | TMESH_CUDA_OR_STAGE, &memory, err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_STAGED);
	assert_int_equal(bed->warnings, 2);
	assert_int_equal(stats_of(bed).staged_copies, 1);
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'a');
	tmesh_cuda_memory_unref(memory);

	/* A GPU that uses the host's page tables needs neither. */
	standin_set_up("without=read-only,with=host-page-tables");
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &memory, err));
	assert_int_equal(info_of(memory).mapped_rights, TMESH_READ);
	assert_false(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	tmesh_cuda_memory_unref(memory);
	/* The attribute allows it, and the call fails. */
	standin_set_up(NULL);
	tmesh_region_unref(region);
	region = region_of(bed, "abc");
	standin_fail("cuMemHostRegister_v2", 801, 0);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, TMESH_CUDA_OR_WRITABLE,
				      &memory, err));
	assert_int_equal(info_of(memory).mapped_rights, RW);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(bed->warnings, 3);
	tmesh_region_unref(region);
}

struct pieces {
	uint64_t done, bytes;
	unsigned int calls, last;
};

static int on_piece(void *data, uint64_t done, uint64_t bytes)
{
	struct pieces *pieces = data;

	pieces->done = done;
	pieces->bytes = bytes;
	return ++pieces->calls == pieces->last;
}

static bool on_module(const struct bed *bed)
{
	return tmesh_ctx_backend(bed->ctx) == TMESH_BACKEND_KERNEL;
}

/* Pieces have 64 GiB unless a caller chooses, far from what drivers refuse in one call. The pages
 * of the region are never touched. */
STANDIN(test_usual_pieces)
{
	struct bed *bed = *state;
	const uint64_t piece = 64ull << 30, bytes = 512ull << 30;
	unsigned long calls = standin_calls("cuMemHostRegister_v2");
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;

	/* The module knows the machine's memory by itself. */
	if (on_module(bed))
		return;
	is_large = true;
	assert_ok(tmesh_region_create(bed->ctx, bytes, NULL, &region, err));
	is_large = false;
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &memory, err));
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), calls + bytes / piece);
	assert_int_equal(info_of(memory).piece_bytes, piece);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

STANDIN(test_pieces)
{
	struct bed *bed = *state;
	struct pieces pieces = {0};
	struct tmesh_cuda_register_opts opts = {.size = sizeof(opts),
						.rights = RW,
						.piece_bytes = MIB + 1,
						.progress = on_piece,
						.data = &pieces};
	unsigned long registered, live;
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	char text[8] = "";

	standin_set_up("pin=3");
	assert_ok(tmesh_region_create(bed->ctx, 5 * MIB, NULL, &region, err));
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -ENOMEM,
		       "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY");
	registered = standin_calls("cuMemHostRegister_v2");
	assert_ok(tmesh_cuda_register_with(bed->cuda, region, &opts, &memory, err));
	assert_int_equal(standin_calls("cuMemHostRegister_v2"), registered + 3);
	assert_int_equal(pieces.calls, 4);
	assert_int_equal(pieces.done, 5 * MIB);
	assert_int_equal(pieces.bytes, 5 * MIB);
	assert_int_equal(info_of(memory).piece_bytes, 2 * MIB);
	/* A copy over the edge takes several of the driver's copies. */
	assert_ok(tmesh_cuda_zero(memory, NULL, err));
	assert_ok(tmesh_cuda_write(memory, 4 * MIB - 4, "abcdefgh", 8, err));
	assert_ok(tmesh_cuda_read(memory, 4 * MIB - 4, text, 8, err));
	assert_memory_equal(text, "abcdefgh", 8);
	tmesh_cuda_memory_unref(memory);

	/* Nothing stays registered, however the mapping ends. */
	live = standin_live();
	for (pieces.last = 1; pieces.last < 5; pieces.last++) {
		pieces.calls = 0;
		assert_refused(tmesh_cuda_register_with(bed->cuda, region, &opts, &memory, err),
			       -ECANCELED, "cancelled by the caller");
		assert_int_equal(pieces.done,
				 pieces.last == 4 ? 5 * MIB : (pieces.last - 1) * 2 * MIB);
		assert_int_equal(standin_live(), live);
	}
	for (unsigned int skip = 0; skip < 3; skip++) {
		pieces.calls = 0;
		standin_fail("cuMemHostRegister_v2", 2, skip);
		assert_refused(tmesh_cuda_register_with(bed->cuda, region, &opts, &memory, err),
			       -ENOMEM, "cuMemHostRegister");
		assert_int_equal(standin_live(), live);
	}
	opts.size = 3;
	assert_refused(tmesh_cuda_register_with(bed->cuda, region, &opts, &memory, err), -EINVAL,
		       "size");
	tmesh_region_unref(region);
}

/* A long copy blocks no other call. */
static void while_copying(void *data)
{
	struct bed *bed = data;
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 1, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
}

STANDIN(test_staged)
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
	standin_during("cuMemcpyDtoHAsync_v2", while_copying, bed);
	alarm(300);
	assert_ok(tmesh_cuda_stage(memory, true, err));
	alarm(0);
	assert_ok(tmesh_region_read(region, 0, &byte, 1, err));
	assert_int_equal(byte, 'Z');
	stats = stats_of(bed);
	assert_int_equal(stats.staged_copies, 2);
	assert_int_equal(stats.staged_bytes, 2 * (3 * 4096 + 5));
	tmesh_cuda_memory_unref(memory);
	/* A stage that fails too reports its own reason and leaves nothing. */
	standin_fail("cuMemHostRegister_v2", 801, 0);
	standin_fail("cuMemAlloc_v2", 2, 0);
	assert_refused(
		tmesh_cuda_register(bed->cuda, region, 0, RW, TMESH_CUDA_OR_STAGE, &memory, err),
		-ENOMEM, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
	tmesh_region_unref(region);
}

/* A registration touches the lease of its region; if the lease ends all the same, the registration
 * goes. */
STANDIN(test_lease)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory;
	/* Four touches may come late before it lapses: threads of a busy machine are late. */
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

	/* The lease lapses under the registration: this process was stopped for longer. */
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

/* Reclaimed by its owner, who has another handle on it. */
STANDIN(test_revoked)
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

/* Regions are released while the watcher goes round, which it does for every registration: it looks
 * at no region that is gone. */
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

STANDIN(test_given_back_under_the_watcher)
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

/* Device memory on its way to other devices: a region that the module imports, valid after the
 * memory was released. The stand-in has a dma-buf if the kernel makes them of memfds. */
STANDIN(test_device_memory_as_region)
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

/* A copy from a private view, which is only read, is not one from a writable mapping. */
STANDIN(test_private_view)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc"), *view;
	unsigned long long before = standin_copied_on_write();
	struct tmesh_cuda_memory *memory;
	char byte;
	void *at;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_private(region, &view, err));
	standin_set_up("without=host-register");
	assert_ok(tmesh_cuda_register(bed->cuda, view, 0, TMESH_READ, TMESH_CUDA_OR_STAGE, &memory,
				      err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_STAGED);
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'a');
	assert_int_equal(standin_copied_on_write(), before);
	/* The program writes to it, and so must the copy. */
	assert_ok(tmesh_region_map(view, RW, &at, err));
	*(char *)at = 'Q';
	assert_ok(tmesh_cuda_stage(memory, false, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'Q');
	assert_int_equal(standin_copied_on_write(), before + 3 * 4096 + 5);
	tmesh_cuda_memory_unref(memory);
	standin_set_up(NULL);
	/* The kernel copies what is pinned of it, and nothing of the region. */
	before = standin_copied_on_write();
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, TMESH_READ, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(standin_copied_on_write(), before);
	assert_ok(tmesh_cuda_register(bed->cuda, view, 0, TMESH_READ, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(standin_copied_on_write(), before + 4 * 4096);
	tmesh_region_unref(view);
	tmesh_region_unref(region);
}

/* A context that cannot be made current when memory is released: the registration ends later, and
 * the driver is not asked without a context, in which it refuses. */
STANDIN(test_unregistered_in_its_context)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	unsigned long calls = standin_calls("cuMemHostUnregister");
	struct tmesh_cuda_memory *memory;
	uint64_t pointer;
	char byte;

	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &memory, err));
	pointer = tmesh_cuda_pointer(memory);
	tmesh_region_unref(region);
	/* The first is for the wait for the device. */
	standin_fail("cuCtxPushCurrent_v2", CU_OUT_OF_MEMORY, 1);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(bed->warnings, 1);
	assert_int_equal(stats_of(bed).registered_bytes, 0);
	eventually(!standin_access(1, pointer, &byte, 1, false));
	assert_int_equal(standin_calls("cuMemHostUnregister"), calls + 1);
}

/* Memory that the driver does not unregister stays mapped, because the driver could use it. */
STANDIN(test_not_unregistered)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_register_opts opts = {
		.size = sizeof(opts), .rights = RW, .piece_bytes = 2 * MIB};
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *large;
	uint64_t pointer;
	char byte;

	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	pointer = tmesh_cuda_pointer(memory);
	standin_set_up("without=host-unregister");
	tmesh_cuda_memory_unref(memory);
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -EBUSY,
		       "try again: cuMemHostUnregister: CUDA_ERROR_UNKNOWN");
	tmesh_region_unref(region);
	assert_true(standin_access(0, pointer, &byte, 1, false));
	assert_int_equal(byte, 'a');
	assert_int_equal(bed->warnings, 1);
	/* Some of its pieces are unregistered, and then no more. */
	assert_ok(tmesh_region_create(bed->ctx, 5 * MIB, NULL, &large, err));
	standin_set_up(NULL);
	assert_ok(tmesh_cuda_register_with(bed->cuda, large, &opts, &memory, err));
	standin_fail("cuMemHostUnregister", 999, 1);
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_register_with(bed->cuda, large, &opts, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(large);
	eventually(!standin_access(0, pointer, &byte, 1, false));
}

/* The user has no watches left. */
STANDIN(test_no_watches)
{
	struct bed *bed = *state;
	struct tmesh_region *region = region_of(bed, "abc");
	struct tmesh_cuda_memory *memory;
	unsigned int fds = open_fds();

	watches_fail = 1;
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -ENOSPC,
		       "cannot watch leases");
	assert_int_equal(watches_fail, 0);
	/* The set of watches stays for the next try. */
	assert_int_equal(open_fds(), fds + 1);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

STANDIN(test_refused)
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
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 16, &memory, err), -EINVAL,
		       "0x10");
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	assert_ptr_equal(other, state);
	assert_refused(tmesh_cuda_stage(memory, false, err), -EINVAL, "no copy");
	tmesh_cuda_memory_unref(memory);
	standin_reset(0);
	assert_refused(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err), -ECONNRESET,
		       "CUDA_ERROR_CONTEXT_IS_DESTROYED");
	tmesh_region_unref(region);
}

UNIT_MAIN("cuda host", NULL, NULL)
