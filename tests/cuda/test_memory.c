// SPDX-License-Identifier: MIT
/* Device memory in one process: blocks and chunks, DLPack, dma-bufs, devices' abilities. */
#include "cuda_unit.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "common/dlpack_abi.h"

static struct tmesh_cuda_memory *alloc(struct bed *bed, int device, uint64_t bytes)
{
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc(bed->cuda, device, bytes, 0, &memory, err));
	return memory;
}

STANDIN(test_chunks)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *a = alloc(bed, 0, 1), *b = alloc(bed, 0, 1000), *c;
	struct tmesh_cuda_stats stats = stats_of(bed);
	uint64_t at = tmesh_cuda_pointer(a), offset;

	assert_int_equal(stats.blocks, 1);
	assert_int_equal(stats.bytes_reserved, 8 * MIB);
	assert_int_equal(stats.bytes_used, 512 + 1024);
	assert_int_equal(stats.allocs, 2);
	assert_int_equal(stats.reused, 1);
	assert_int_equal(tmesh_cuda_pointer(b), at + 512);
	assert_ok(tmesh_cuda_find(bed->cuda, at + 600, &c, &offset, err));
	assert_ptr_equal(c, b);
	assert_int_equal(offset, 88);
	tmesh_cuda_memory_unref(c);
	assert_refused(tmesh_cuda_find(bed->cuda, at + 1512, &c, &offset, err), -ENOENT, "0x");
	/* A hole is filled again, and neighbours become one. */
	tmesh_cuda_memory_unref(a);
	a = alloc(bed, 0, 512);
	assert_int_equal(tmesh_cuda_pointer(a), at);
	tmesh_cuda_memory_unref(a);
	tmesh_cuda_memory_unref(b);
	a = alloc(bed, 0, 8 * MIB);
	assert_int_equal(tmesh_cuda_pointer(a), at);
	assert_int_equal(stats_of(bed).blocks, 1);
	/* One empty block stays, until it is trimmed. */
	b = alloc(bed, 0, 1);
	tmesh_cuda_memory_unref(a);
	tmesh_cuda_memory_unref(b);
	assert_int_equal(stats_of(bed).blocks, 1);
	tmesh_cuda_trim(bed->cuda);
	stats = stats_of(bed);
	assert_int_equal(stats.blocks + stats.bytes_reserved + stats.bytes_used, 0);
}

STANDIN(test_devices)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *a = alloc(bed, 0, 100), *b = alloc(bed, 1, 100);
	struct tmesh_cuda_device_info info = {.size = sizeof(info)};
	char byte = 'x';

	assert_int_equal(tmesh_cuda_device_count(bed->cuda), 2);
	assert_ok(tmesh_cuda_device_info(bed->cuda, 1, &info, err));
	assert_string_equal(info.name, "stand-in 1");
	assert_int_equal(info.driver_version, 13000);
	assert_true(standin_access(0, tmesh_cuda_pointer(a), &byte, 1, true));
	assert_false(standin_access(1, tmesh_cuda_pointer(a), &byte, 1, true));
	assert_true(standin_access(1, tmesh_cuda_pointer(b), &byte, 1, true));
	assert_int_equal(info_of(b).resident, 1);
	tmesh_cuda_memory_unref(a);
	tmesh_cuda_memory_unref(b);
}

/* A driver that can tell instances of one GPU apart numbers them. */
STANDIN(test_instances)
{
	struct tmesh_cuda_device_info one = {.size = sizeof(one)}, two = {.size = sizeof(two)};
	struct bed *bed = *state, mig;

	standin_set_up("with=mig");
	bed_open(&mig, 8 * MIB);
	assert_ok(tmesh_cuda_device_info(mig.cuda, 0, &one, err));
	assert_ok(tmesh_cuda_device_info(mig.cuda, 1, &two, err));
	assert_memory_not_equal(one.uuid, two.uuid, sizeof(one.uuid));
	tmesh_cuda_unref(mig.cuda);
	tmesh_ctx_unref(mig.ctx);
	assert_int_equal(tmesh_cuda_device_count(bed->cuda), 2);
}

/* Count the descriptors that a program started now would inherit. */
static unsigned int inherited(void)
{
	unsigned int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	return count;
}

STANDIN(test_no_descriptor_is_inherited)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory;
	unsigned int before = inherited();
	struct tmesh_region *region;
	int fd;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_ok(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err));
	assert_int_equal(inherited(), before);
	assert_ok(tmesh_cuda_region(memory, &region, err));
	assert_int_equal(inherited(), before);
	close(fd);
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(memory);
}

/* Many sizes in random order: never two at one place, and all memory is returned. */
STANDIN(test_random)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *have[200] = {NULL};
	unsigned int seed = 1;

	for (int round = 0; round < 5000; round++) {
		size_t i = (size_t)rand_r(&seed) % 200;
		struct tmesh_cuda_info mine;

		if (have[i]) {
			tmesh_cuda_memory_unref(have[i]);
			have[i] = NULL;
			continue;
		}
		have[i] = alloc(bed, 0, 1 + (uint64_t)rand_r(&seed) % 300000);
		mine = info_of(have[i]);
		assert_int_equal(mine.pointer % 512, 0);
		for (size_t j = 0; j < 200; j++) {
			struct tmesh_cuda_info other;

			if (!have[j] || j == i)
				continue;
			other = info_of(have[j]);
			assert_true(mine.pointer + mine.bytes <= other.pointer ||
				    other.pointer + other.bytes <= mine.pointer);
		}
	}
	for (size_t i = 0; i < 200; i++)
		tmesh_cuda_memory_unref(have[i]);
	assert_int_equal(stats_of(bed).bytes_used, 0);
	assert_int_equal(stats_of(bed).blocks, 1);
}

STANDIN(test_alone)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *a, *b = alloc(bed, 0, 1);

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 1, TMESH_CUDA_ALONE, &a, err));
	assert_int_equal(stats_of(bed).bytes_reserved, 10 * MIB);
	tmesh_cuda_memory_unref(a);
	assert_int_equal(stats_of(bed).bytes_reserved, 8 * MIB);
	tmesh_cuda_memory_unref(b);
}

static void assert_byte(struct tmesh_cuda_memory *memory, uint64_t at, char want)
{
	char byte = '?';

	assert_true(standin_access(0, tmesh_cuda_pointer(memory) + at, &byte, 1, false));
	assert_int_equal(byte, want);
}

STANDIN(test_zero)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *a = alloc(bed, 0, 1024), *part;
	char text[1024];

	memset(text, 'x', sizeof(text));
	assert_true(standin_access(0, tmesh_cuda_pointer(a), text, sizeof(text), true));
	assert_ok(tmesh_cuda_slice(a, 100, 200, NULL, NULL, &part, err));
	assert_ok(tmesh_cuda_zero(part, NULL, err));
	assert_byte(a, 99, 'x');
	assert_byte(a, 100, 0);
	assert_byte(a, 299, 0);
	assert_byte(a, 300, 'x');
	tmesh_cuda_memory_unref(part);
	standin_fail("cuMemsetD8Async", 2, 0);
	assert_refused(tmesh_cuda_zero(a, NULL, err), -ENOMEM,
		       "cuMemsetD8Async: CUDA_ERROR_OUT_OF_MEMORY");
	assert_byte(a, 1023, 'x');
	assert_ok(tmesh_cuda_zero(a, NULL, err));
	assert_byte(a, 0, 0);
	assert_byte(a, 1023, 0);
	tmesh_cuda_memory_unref(a);
}

STANDIN(test_read_write)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *a = alloc(bed, 0, 1024), *part;
	char text[1024], got[1024];

	memset(text, 'x', sizeof(text));
	assert_ok(tmesh_cuda_write(a, 0, text, sizeof(text), err));
	assert_ok(tmesh_cuda_slice(a, 100, 200, NULL, NULL, &part, err));
	assert_ok(tmesh_cuda_write(part, 10, "yz", 2, err));
	assert_ok(tmesh_cuda_read(a, 109, got, 4, err));
	assert_memory_equal(got, "xyzx", 4);
	assert_ok(tmesh_cuda_read(a, 1023, got, 1, err));
	/* A part has its own end. */
	assert_refused(tmesh_cuda_write(part, 199, "yz", 2, err), -EINVAL, "2 bytes at 199");
	assert_refused(tmesh_cuda_read(part, 201, got, 0, err), -EINVAL, "outside");
	assert_refused(tmesh_cuda_read(part, UINT64_MAX, got, 2, err), -EINVAL, "outside");
	assert_refused(tmesh_cuda_read(part, 2, got, UINT64_MAX, err), -EINVAL, "outside");
	assert_ok(tmesh_cuda_read(a, 299, got, 2, err));
	assert_memory_equal(got, "xx", 2);
	/* It waits before it reads, and after it has written. */
	for (int write = 0; write < 2; write++) {
		unsigned long before = standin_calls("cuCtxSynchronize");

		assert_ok(write ? tmesh_cuda_write(a, 0, text, 1, err)
				: tmesh_cuda_read(a, 0, got, 1, err));
		assert_int_equal(standin_calls("cuCtxSynchronize") - before, 1);
	}
	assert_ok(tmesh_cuda_read(a, 1024, NULL, 0, err));
	standin_fail("cuMemcpyDtoHAsync_v2", 1, 0);
	assert_refused(tmesh_cuda_read(a, 0, got, 1, err), -EINVAL, "cuMemcpyDtoH");
	standin_fail("cuMemcpyHtoDAsync_v2", 2, 0);
	assert_refused(tmesh_cuda_write(a, 0, text, 1, err), -ENOMEM, "cuMemcpyHtoD");
	standin_fail("cuCtxSynchronize", 2, 0);
	assert_refused(tmesh_cuda_read(a, 0, got, 1, err), -ENOMEM, "cuCtxSynchronize");
	standin_fail("cuStreamSynchronize", 2, 0);
	assert_refused(tmesh_cuda_write(a, 0, text, 1, err), -ENOMEM, "cuStreamSynchronize");
	tmesh_cuda_memory_unref(part);
	tmesh_cuda_memory_unref(a);
}

STANDIN(test_no_memory)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *most = alloc(bed, 0, 246 * MIB), *rest, *more;
	char byte = 'h';

	assert_refused(tmesh_cuda_alloc(bed->cuda, 0, 11 * MIB, 0, &more, err), -ENOMEM,
		       "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY");
	/* A whole block does not fit, but the requested bytes do. */
	rest = alloc(bed, 0, 9 * MIB);
	assert_refused(tmesh_cuda_alloc(bed->cuda, 0, 3 * MIB, 0, &more, err), -ENOMEM, "OUT_OF");
	assert_int_equal(bed->warnings, 0);
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 3 * MIB, TMESH_CUDA_OR_HOST, &more, err));
	assert_int_equal(bed->warnings, 1);
	assert_int_equal(stats_of(bed).host_fallbacks, 1);
	assert_int_equal(info_of(more).kind, TMESH_CUDA_HOST);
	assert_true(standin_access(0, tmesh_cuda_pointer(more), &byte, 1, true));
	tmesh_cuda_memory_unref(more);
	tmesh_cuda_memory_unref(rest);
	tmesh_cuda_memory_unref(most);
	assert_refused(tmesh_cuda_alloc(bed->cuda, 0, 0, 0, &more, err), -EINVAL, "0 bytes");
	assert_refused(tmesh_cuda_alloc(bed->cuda, 0, UINT64_MAX, 0, &more, err), -EOVERFLOW,
		       "no size");
	assert_refused(tmesh_cuda_alloc(bed->cuda, 7, 1, 0, &more, err), -ENODEV, "no GPU 7");
	assert_refused(tmesh_cuda_alloc(bed->cuda, 0, 1, 1, &more, err), -EINVAL, "0x1");
}

STANDIN(test_dlpack)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 1, 4096);
	struct DLManagedTensorVersioned *versioned;
	struct DLManagedTensor *managed;
	struct tmesh_layout layout = bytes_layout(4000);

	layout.offset = 96;
	assert_ok(tmesh_cuda_to_dlpack(memory, &layout, &managed, err));
	assert_ok(tmesh_cuda_to_dlpack_versioned(memory, &layout, 1, &versioned, err));
	assert_int_equal((uintptr_t)managed->dl_tensor.data, tmesh_cuda_pointer(memory) + 96);
	assert_int_equal(managed->dl_tensor.device.type, 2);
	assert_int_equal(managed->dl_tensor.device.id, 1);
	assert_int_equal(managed->dl_tensor.shape[0], 4000);
	assert_int_equal(versioned->flags, 0);
	/* In any order; the memory lives as long as the last holder. */
	tmesh_cuda_memory_unref(memory);
	managed->deleter(managed);
	assert_int_equal(stats_of(bed).bytes_used, 4096);
	versioned->deleter(versioned);
	assert_int_equal(stats_of(bed).bytes_used, 0);
	memory = alloc(bed, 1, 4096);
	layout.offset = 97;
	assert_refused(tmesh_cuda_to_dlpack(memory, &layout, &managed, err), -EINVAL, "");
	assert_refused(tmesh_cuda_to_dlpack_versioned(memory, &layout, 0, &versioned, err),
		       -EOPNOTSUPP, "version 1");
	tmesh_cuda_memory_unref(memory);
}

/* The holder of a dma-buf keeps its memory, whatever is allocated and released later. */
STANDIN(test_dmabuf)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory, *next;
	char byte = 'd', *at;
	int fd;

	memory = alloc(bed, 0, 8192);
	assert_refused(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err), -EINVAL, "ALONE");
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_ok(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err));
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &next, err));
	byte = 'n';
	assert_true(standin_access(0, tmesh_cuda_pointer(next), &byte, 1, true));
	at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(at != MAP_FAILED);
	assert_int_equal(*at, 'd');
	munmap(at, 4096);
	close(fd);
	tmesh_cuda_memory_unref(next);
}

STANDIN(test_descriptors)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory, *external;
	struct tmesh_region *region;
	unsigned int before;
	char byte = 'q';
	int fd, own;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_ok(tmesh_cuda_export_dmabuf(memory, 4096, 8192, &fd, err));
	close(fd);
	assert_refused(tmesh_cuda_export_dmabuf(memory, 1, 4096, &fd, err), -EINVAL,
		       "whole pages (CUDA_ERROR_INVALID_VALUE)");
	assert_refused(tmesh_cuda_export_dmabuf(memory, 0, 3 * MIB, &fd, err), -EINVAL,
		       "outside the memory's 2097152 bytes (CUDA_ERROR_INVALID_VALUE)");
	/* A driver or platform without the flag gets a second call without it. */
	standin_fail("cuMemGetHandleForAddressRange", 1, 0);
	assert_ok(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err));
	close(fd);
	standin_fail("cuMemGetHandleForAddressRange", 800, 0);
	assert_refused(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err), -EPERM,
		       "cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_PERMITTED");

	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_ok(tmesh_cuda_region(memory, &region, err));
	assert_ok(tmesh_region_opaque_fd(region, &own, err));
	before = open_fds();
	assert_ok(tmesh_cuda_import_fd(bed->cuda, 1, TMESH_CUDA_OPAQUE_FD, own, 2 * MIB, &external,
				       err));
	byte = 0;
	assert_true(standin_access(1, tmesh_cuda_pointer(external), &byte, 1, false));
	assert_int_equal(byte, 'q');
	tmesh_cuda_memory_unref(external);
	assert_refused(tmesh_cuda_import_fd(bed->cuda, 1, TMESH_CUDA_DMABUF_FD, own, 2 * MIB,
					    &external, err),
		       -EOPNOTSUPP, "cuImportExternalMemory: CUDA_ERROR_NOT_SUPPORTED");
	assert_refused(tmesh_cuda_import_fd(bed->cuda, 1, TMESH_CUDA_OPAQUE_FD, 0, 2 * MIB,
					    &external, err),
		       -EINVAL, "CUDA_ERROR_INVALID_VALUE");
	assert_refused(tmesh_cuda_import_fd(bed->cuda, 1, TMESH_CUDA_OPAQUE_FD, own, 3 * MIB,
					    &external, err),
		       -EINVAL, "CUDA_ERROR_INVALID_VALUE");
	assert_refused(tmesh_cuda_import_fd(bed->cuda, 1, 7, own, 1, &external, err), -EINVAL,
		       "say what");
	assert_refused(
		tmesh_cuda_import_fd(bed->cuda, 1, TMESH_CUDA_OPAQUE_FD, -1, 1, &external, err),
		-EBADF, "-1 is not an open descriptor (CUDA_ERROR_INVALID_VALUE)");
	assert_int_equal(open_fds(), before);
	close(own);
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(memory);
}

/* On platforms that take dma-bufs. The driver keeps nothing of the descriptor. */
STANDIN(test_dmabuf_import)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory, *external;
	unsigned int before;
	char byte = 'd';
	int fd;

	standin_set_up("with=dma-buf-import");
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 2 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, true));
	assert_ok(tmesh_cuda_export_dmabuf(memory, 0, 0, &fd, err));
	before = open_fds();
	assert_ok(tmesh_cuda_import_fd(bed->cuda, 0, TMESH_CUDA_DMABUF_FD, fd, 2 * MIB, &external,
				       err));
	assert_int_equal(info_of(external).kind, TMESH_CUDA_EXTERNAL);
	byte = 0;
	assert_true(standin_access(0, tmesh_cuda_pointer(external), &byte, 1, false));
	assert_int_equal(byte, 'd');
	tmesh_cuda_memory_unref(external);
	assert_int_equal(open_fds(), before);
	assert_refused(tmesh_cuda_import_fd(bed->cuda, 0, TMESH_CUDA_DMABUF_FD, fd, 3 * MIB,
					    &external, err),
		       -EINVAL, "cuImportExternalMemory: CUDA_ERROR_INVALID_VALUE");
	assert_refused(
		tmesh_cuda_import_fd(bed->cuda, 0, TMESH_CUDA_DMABUF_FD, 0, 4096, &external, err),
		-EINVAL, "cuImportExternalMemory: CUDA_ERROR_INVALID_VALUE");
	assert_int_equal(open_fds(), before);
	close(fd);
	tmesh_cuda_memory_unref(memory);
}

static const struct tmesh_cuda_cap *cap(const struct tmesh_cuda_cap *caps, const char *name)
{
	for (int i = 0; i < TMESH_CUDA_CAPS; i++)
		if (!strcmp(caps[i].name, name))
			return &caps[i];
	fail_msg("no %s", name);
	return NULL;
}

STANDIN(test_caps)
{
	struct bed *bed = *state;
	struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS];

	assert_ok(tmesh_cuda_caps(bed->cuda, 1, caps, err));
	for (int i = 0; i < TMESH_CUDA_CAPS; i++)
		assert_int_equal(caps[i].level, !strcmp(caps[i].name, "dma-buf-import")
							? TMESH_CUDA_NOT_SUPPORTED
							: TMESH_CUDA_WORKS);
	assert_non_null(strstr(cap(caps, "dma-buf-import")->reason, "CUDA_ERROR_NOT_SUPPORTED"));
	standin_fail("cuMemHostRegister_v2", 801, 0);
	standin_fail("cuMemCreate", 800, 0);
	assert_ok(tmesh_cuda_caps(bed->cuda, 1, caps, err));
	assert_int_equal(cap(caps, "host-register")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_non_null(strstr(cap(caps, "host-register")->reason, "CUDA_ERROR_NOT_SUPPORTED"));
	assert_int_equal(cap(caps, "host-register-read-only")->level, TMESH_CUDA_WORKS);
	assert_int_equal(cap(caps, "vmm")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "posix-fd")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "dma-buf-export")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "dma-buf-import")->level, TMESH_CUDA_NOT_TRIED);
	assert_int_equal(cap(caps, "opaque-fd-import")->level, TMESH_CUDA_NOT_TRIED);
	assert_int_equal(cap(caps, "ipc-event")->level, TMESH_CUDA_WORKS);
	standin_set_up("with=dma-buf-import,without=ipc-memory,without=peers");
	standin_fail("cuImportExternalMemory", CU_INVALID_VALUE, 1);
	assert_ok(tmesh_cuda_caps(bed->cuda, 1, caps, err));
	assert_int_equal(cap(caps, "dma-buf-import")->level, TMESH_CUDA_WORKS);
	assert_int_equal(cap(caps, "opaque-fd-import")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "ipc-memory")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "peer-access")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_refused(tmesh_cuda_caps(bed->cuda, 2, caps, err), -ENODEV, "no GPU 2");
}

/* NICs and disks reach the memory if the driver can make it so; else it is made without. */
static bool for_rdma(struct tmesh_cuda_memory *memory)
{
	int (*attribute)(int *value, int name, unsigned long long pointer);
	int can = -1;

	*(void **)&attribute = standin_symbol("cuPointerGetAttribute");
	assert_int_equal(attribute(&can, CU_POINTER_ATTR_RDMA, tmesh_cuda_pointer(memory)), 0);
	return can;
}

STANDIN(test_rdma)
{
	struct bed *bed = *state;
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 100);
	struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS];

	assert_true(for_rdma(memory));
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_trim(bed->cuda);
	standin_set_up("without=rdma");
	memory = alloc(bed, 0, 100);
	assert_false(for_rdma(memory));
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_caps(bed->cuda, 0, caps, err));
	assert_int_equal(cap(caps, "gpudirect-rdma")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_non_null(strstr(cap(caps, "gpudirect-rdma")->reason,
			       "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED is 0"));
	assert_int_equal(cap(caps, "vmm")->level, TMESH_CUDA_WORKS);
	/* An older driver, which does not know the attribute. */
	tmesh_cuda_trim(bed->cuda);
	standin_fail("cuDeviceGetAttribute", CU_INVALID_VALUE, 0);
	memory = alloc(bed, 0, 100);
	assert_false(for_rdma(memory));
	tmesh_cuda_memory_unref(memory);
}

/* Each message of the first call ends with what to do. */
STANDIN(test_no_driver)
{
	static const struct {
		int code, error;
		const char *remedy;
	} starts[] = {
		{34, -ENODEV, "LD_LIBRARY_PATH"},	{46, -EBUSY, "nvidia-smi -c DEFAULT"},
		{100, -ENODEV, "CUDA_VISIBLE_DEVICES"}, {802, -ENODEV, "nvidia-fabricmanager"},
		{803, -ENODEV, "restart the machine"},
	};
	struct bed *bed = *state;
	struct tmesh_cuda_opts opts = {.size = sizeof(opts), .library = "/nowhere/libcuda.so.1"};
	struct tmesh_cuda *cuda;

	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -ENODEV, "no CUDA driver");
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -ENODEV, "--gpus all");
	opts.library = "libc.so.6";
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -ENODEV,
		       "too old: install one of CUDA 11");
	opts.library = getenv("TMESH_TEST_LIBCUDA");
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		standin_fail("cuInit", starts[i].code, 0);
		assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), starts[i].error,
			       starts[i].remedy);
	}
	opts.library = getenv("TMESH_TEST_LIBCUDA");
	standin_fail("cuInit", 100, 0);
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -ENODEV,
		       "cuInit: CUDA_ERROR_NO_DEVICE");
	standin_fail("cuDeviceGetUuid_v2", 803, 1);
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -ENODEV,
		       "cuDeviceGetUuid: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
	opts.size = 3;
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -EINVAL, "size");
}

/* Without VMM, external memory and dma-bufs there are still regions. */
STANDIN(test_old_driver)
{
	struct bed *bed = *state;
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_OLD_LIBCUDA")};
	struct tmesh_cuda_cap caps[TMESH_CUDA_CAPS];
	struct tmesh_cuda_memory *memory, *own;
	struct tmesh_region *region;
	struct tmesh_cuda *cuda;

	assert_ok(tmesh_cuda_open(bed->ctx, &opts, &cuda, err));
	assert_refused(tmesh_cuda_alloc(cuda, 0, 1, 0, &memory, err), -EOPNOTSUPP,
		       "API 13000 has no cuMemGetAllocationGranularity (CUDA_ERROR_NOT_FOUND)");
	assert_refused(tmesh_cuda_import_fd(cuda, 0, TMESH_CUDA_OPAQUE_FD, 0, 1, &memory, err),
		       -EOPNOTSUPP, "no cuImportExternalMemory (CUDA_ERROR_NOT_FOUND)");
	own = alloc(bed, 0, 100);
	assert_ok(tmesh_cuda_region(own, &region, err));
	assert_refused(tmesh_cuda_import(cuda, region, NULL, &memory, err), -EOPNOTSUPP,
		       "no cuMemImportFromShareableHandle (CUDA_ERROR_NOT_FOUND)");
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(own);
	assert_ok(tmesh_region_create(bed->ctx, 100, NULL, &region, err));
	assert_ok(tmesh_cuda_register(cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	assert_ok(tmesh_cuda_caps(cuda, 0, caps, err));
	assert_int_equal(cap(caps, "host-register")->level, TMESH_CUDA_WORKS);
	assert_int_equal(cap(caps, "ipc-memory")->level, TMESH_CUDA_WORKS);
	assert_int_equal(cap(caps, "vmm")->level, TMESH_CUDA_NOT_SUPPORTED);
	assert_int_equal(cap(caps, "opaque-fd-import")->level, TMESH_CUDA_NOT_TRIED);
	tmesh_cuda_unref(cuda);
}

UNIT_MAIN("cuda memory", NULL, NULL)
