// SPDX-License-Identifier: MIT
/* Device memory between processes: refs, sockets, kills of either side, reclaiming. */
#include "cuda_pair.h"

#define DECLARE(member, symbol, arguments) cu_result symbol arguments;
CU_FUNCTIONS_NEWER(DECLARE)

typedef int push_fn(void *context);
typedef int retain_fn(void **context, int device);

STANDIN_ADD(test_two_processes, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 1, 5000, 'a');
	struct tmesh_ref ref;
	char text[TMESH_REF_SIZE];

	share(memory, text);
	assert_ok(tmesh_ref_decode(text, strlen(text), &ref, err));
	assert_int_equal(ref.layout.device_type, TMESH_DEVICE_CUDA);
	assert_int_equal(ref.layout.device_id, 1);
	assert_int_equal(ref.byte_size, 5000);
	assert_non_null(strstr(text, "\"cuda\":{\"kind\":\"vmm\"}"));
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_say(&helpers[0], "w"), 'W');
	assert_int_equal(first_of(memory), 'W');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	tmesh_cuda_memory_unref(memory);
	/* The server of the token closes its copy a moment later. */
	eventually(stats_of(bed).bytes_pending_free == 0);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Kernels of the other GPU reach it, and so do those of the GPU that has it; read-only stays
 * read-only. */
STANDIN_ADD(test_peer_and_rights, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(TMESH_READ, 0));
	struct tmesh_cuda_memory *memory = alloc(bed, 1, 5000, 'a');
	char text[TMESH_REF_SIZE];

	share(memory, text);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_say(&helpers[0], "w"), 'E');
	assert_int_equal(helper_say(&helpers[0], "R"), 'a');
	assert_int_equal(first_of(memory), 'a');
	tmesh_cuda_memory_unref(memory);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* A received tensor is sent on. Its maker may leave first, and every receiver keeps it. */
STANDIN_ADD(test_sent_on, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	char text[2048];

	share(memory, text);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_ask(&helpers[0], "s", text), '{');
	assert_int_equal(helper_say(&helpers[1], text), 'a');
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(bed).bytes_pending_free, 5000);
	bed_close(bed);
	assert_int_equal(helper_say(&helpers[0], "r"), 'a');
	assert_int_equal(helper_say(&helpers[0], "w"), 'W');
	helper_kill(&helpers[0]);
	assert_int_equal(helper_say(&helpers[1], "r"), 'W');
	helper_end(&helpers[1]);
}

/* Its first producer is dead, and so is the event of that producer. */
STANDIN_ADD(test_sent_on_by_the_bereaved, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	char text[2048], on[TMESH_REF_SIZE];

	assert_int_equal(helper_ask(&helpers[0], "a", text), '{');
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), NULL, NULL, &memory, &layout,
				      err));
	helper_kill(&helpers[0]);
	share(memory, on);
	assert_non_null(strstr(on, "\"waited\":true"));
	assert_int_equal(helper_say(&helpers[1], on), 'a');
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(helper_say(&helpers[1], "r"), 'a');
	helper_end(&helpers[1]);
	bed_close(bed);
}

/* Memory that others hold is used again only after they release it or are killed. */
STANDIN_ADD(test_pending_free, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a'), *next;
	uint64_t at = tmesh_cuda_pointer(memory);
	char text[TMESH_REF_SIZE];

	share(memory, text);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_say(&helpers[1], text), 'a');
	tmesh_cuda_memory_unref(memory);
	next = alloc(bed, 0, 5000, 'b');
	assert_int_not_equal(tmesh_cuda_pointer(next), at);
	assert_int_equal(helper_say(&helpers[0], "r"), 'a');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	usleep(20000);
	assert_int_equal(stats_of(bed).bytes_pending_free, 5000);
	helper_kill(&helpers[1]);
	eventually(stats_of(bed).bytes_pending_free == 0);
	tmesh_cuda_memory_unref(next);
	next = alloc(bed, 0, 5000, 'c');
	assert_int_equal(tmesh_cuda_pointer(next), at);
	tmesh_cuda_memory_unref(next);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* An unopened ref costs nothing once the memory is released. */
STANDIN_ADD(test_dropped, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	char text[TMESH_REF_SIZE], answer[2048];
	struct tmesh_error told;

	share(memory, text);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(bed).bytes_used, 0);
	assert_int_equal(helper_ask(&helpers[0], text, answer), 'E');
	memcpy(&told, answer + 1, sizeof(told));
	assert_int_equal(told.code, -ENOENT);
	assert_non_null(strstr(told.message, "(CUDA_ERROR_INVALID_HANDLE)"));
	helper_end(&helpers[0]);
	bed_close(bed);
}

static void count_release(void *data)
{
	atomic_fetch_add((atomic_int *)data, 1);
}

/* A framework's way: a segment is one allocation, and its tensors are released one by one. */
STANDIN_ADD(test_part, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 100000, 'a'), *part, *found;
	atomic_int released = 0;
	char text[TMESH_REF_SIZE], byte = 'p';
	uint64_t offset;
	int fd;

	assert_true(standin_access(0, tmesh_cuda_pointer(memory) + 5120, &byte, 1, true));
	assert_refused(tmesh_cuda_slice(memory, 95001, 5000, NULL, NULL, &part, err), -EINVAL,
		       "outside");
	assert_refused(tmesh_cuda_slice(memory, 0, 0, NULL, NULL, &part, err), -EINVAL, "outside");
	for (int i = 0; i < 2; i++) {
		assert_ok(
			tmesh_cuda_slice(memory, 5120, 5000, count_release, &released, &part, err));
		assert_ok(
			tmesh_cuda_find(bed->cuda, tmesh_cuda_pointer(part), &found, &offset, err));
		assert_ptr_equal(found, memory);
		assert_int_equal(offset, 5120);
		tmesh_cuda_memory_unref(found);
		share(part, text);
		assert_int_equal(helper_say(&helpers[i], text), 'p');
		tmesh_cuda_memory_unref(part);
		assert_int_equal(stats_of(bed).bytes_pending_free, 5000);
		assert_int_equal(released, i);
		if (i)
			helper_kill(&helpers[i]);
		else
			helper_say(&helpers[i], "u");
		eventually(released == i + 1);
		assert_int_equal(stats_of(bed).bytes_pending_free, 0);
	}
	/* No process has opened it, so it is released at once. And it keeps the segment. */
	assert_ok(tmesh_cuda_slice(memory, 5120, 5000, count_release, &released, &part, err));
	assert_refused(tmesh_cuda_export_dmabuf(part, 0, 0, &fd, err), -EOPNOTSUPP, "allocated");
	share(part, text);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(first_of(part), 'p');
	tmesh_cuda_memory_unref(part);
	assert_int_equal(released, 3);
	assert_int_equal(stats_of(bed).bytes_used, 0);
	assert_int_equal(helper_say(&helpers[0], text), 'E');
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Interrupt the thread that reclaims. */
static atomic_uint interrupts;

static void interrupted(int number)
{
	atomic_fetch_add(&interrupts, 1);
}

struct reclaimer {
	struct tmesh_cuda_memory *memory;
	int rc;
};

static void *reclaim(void *data)
{
	struct reclaimer *reclaimer = data;

	reclaimer->rc = tmesh_cuda_reclaim(reclaimer->memory, 60 * SECOND, NULL);
	return NULL;
}

STANDIN_ADD(test_reclaim, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a'), *other;
	struct reclaimer reclaimer = {.memory = memory};
	struct sigaction act = {.sa_handler = interrupted};
	struct tmesh_error told = {0};
	pthread_t thread;
	char text[TMESH_REF_SIZE], answer[2048], pid[16];

	share(memory, text);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_ok(tmesh_cuda_reclaim(memory, 60 * SECOND, err));
	assert_int_equal(helper_say(&helpers[0], "r"), 'T');
	assert_int_equal(helper_ask(&helpers[0], text, answer), 'E');
	memcpy(&told, answer + 1, sizeof(told));
	if (!strstr(told.message, "(CUDA_ERROR_INVALID_HANDLE)"))
		fail_msg("\"%s\"", told.message);
	/* It belongs to the owner as before, and can be shared anew. */
	assert_int_equal(first_of(memory), 'a');
	share(memory, text);
	assert_int_equal(helper_say(&helpers[1], text), 'a');
	/* A stopped holder cannot release the memory: an error names it, until it is killed. */
	kill(helpers[1].pid, SIGSTOP);
	waitpid(helpers[1].pid, NULL, WUNTRACED);
	assert_int_equal(tmesh_cuda_reclaim(memory, SECOND / 20, &told), -ETIMEDOUT);
	snprintf(pid, sizeof(pid), "%d (", (int)helpers[1].pid);
	if (!strstr(told.message, pid))
		fail_msg("\"%s\" does not name %s", told.message, pid);
	/* While one thread waits for the stopped holder, others share memory. */
	sigaction(SIGUSR1, &act, NULL);
	pthread_create(&thread, NULL, reclaim, &reclaimer);
	/* Signals do not end the wait. */
	for (unsigned int seen = 0; seen < 5; seen = atomic_load(&interrupts)) {
		pthread_kill(thread, SIGUSR1);
		usleep(1000);
	}
	other = alloc(bed, 0, 5000, 'o');
	share(other, text);
	tmesh_cuda_memory_unref(other);
	helper_kill(&helpers[1]);
	pthread_join(thread, NULL);
	assert_int_equal(reclaimer.rc, 0);
	assert_ok(tmesh_cuda_reclaim(memory, 60 * SECOND, err));
	tmesh_cuda_memory_unref(memory);
	helper_end(&helpers[0]);
	bed_close(bed);
}

STANDIN_ADD(test_own_ref, NULL, NULL)
{
	struct pair pair;
	struct tmesh_cuda_memory *memory, *same, *imported, *again, *neighbour, *second;
	struct tmesh_layout layout;
	char text[TMESH_REF_SIZE], other[TMESH_REF_SIZE];

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	neighbour = alloc(&pair.a, 0, 700, 'n');
	share(memory, text);
	share(neighbour, other);
	assert_ok(tmesh_cuda_open_ref(pair.a.cuda, text, strlen(text), NULL, NULL, &same, &layout,
				      err));
	assert_ptr_equal(same, memory);
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &imported,
				      &layout, err));
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &again, &layout,
				      err));
	assert_ptr_equal(again, imported);
	/* Two refs into one block map it once. */
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, other, strlen(other), NULL, NULL, &second,
				      &layout, err));
	assert_int_equal(tmesh_cuda_pointer(second) - tmesh_cuda_pointer(imported),
			 tmesh_cuda_pointer(neighbour) - tmesh_cuda_pointer(memory));
	assert_int_equal(stats_of(&pair.b).imported_bytes, 8 * MIB);
	assert_int_equal(first_of(second), 'n');
	tmesh_cuda_memory_unref(same);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(again);
	assert_int_equal(first_of(second), 'n');
	tmesh_cuda_memory_unref(second);
	assert_int_equal(stats_of(&pair.b).imported_bytes, 0);
	tmesh_cuda_memory_unref(neighbour);
	tmesh_cuda_memory_unref(memory);
	pair_close(&pair);
}

/* A forked child cannot use the memory, and its release takes nothing from the parent. */
static int in_child(struct pair *pair, struct tmesh_cuda_memory *memory,
		    struct tmesh_cuda_memory *imported)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *other;
	struct tmesh_region *region;
	struct tmesh_error why;
	char text[TMESH_REF_SIZE];
	uint64_t offset;

	if (tmesh_cuda_alloc(pair->a.cuda, 0, 1, 0, &other, &why) != -EPERM ||
	    !strstr(why.message, "fork"))
		return 1;
	if (tmesh_cuda_share(imported, &layout, NULL, text, sizeof(text), NULL) != -EPERM ||
	    tmesh_cuda_reclaim(memory, 0, NULL) != -EPERM ||
	    tmesh_cuda_slice(memory, 0, 1, NULL, NULL, &other, NULL) != -EPERM ||
	    tmesh_cuda_info(memory, &info, NULL) != -EPERM || tmesh_cuda_touch(imported) != -EPERM)
		return 2;
	if (tmesh_cuda_find(pair->a.cuda, tmesh_cuda_pointer(memory), &other, &offset, NULL) !=
		    -EPERM ||
	    tmesh_region_create(pair->a.ctx, 1, NULL, &region, NULL) ||
	    tmesh_cuda_register(pair->a.cuda, region, 0, RW, 0, &other, NULL) != -EPERM)
		return 3;
	tmesh_region_unref(region);
	tmesh_cuda_trim(pair->a.cuda);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_unref(pair->b.cuda);
	tmesh_cuda_unref(pair->a.cuda);
	return 0;
}

STANDIN_ADD(test_forked, NULL, NULL)
{
	struct pair pair;
	struct tmesh_cuda_memory *memory, *imported;
	struct tmesh_layout layout;
	char text[TMESH_REF_SIZE];
	int status;

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	share(memory, text);
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &imported,
				      &layout, err));
	if (fork() == 0)
		_exit(in_child(&pair, memory, imported));
	wait(&status);
	assert_int_equal(status, 0);
	assert_int_equal(first_of(imported), 'a');
	/* The importer gets the request as before, and releases the memory. */
	assert_ok(tmesh_cuda_reclaim(memory, 60 * SECOND, err));
	assert_int_equal(tmesh_cuda_touch(imported), -ESTALE);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	pair_close(&pair);
}

STANDIN_ADD(test_by_socket, NULL, NULL)
{
	struct pair pair;
	struct tmesh_cuda_memory *memory, *imported;
	struct tmesh_region *region, *got;
	int ends[2];

	pair_open(&pair);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	memory = alloc(&pair.a, 1, 5000, 'a');
	assert_ok(tmesh_cuda_region(memory, &region, err));
	assert_ok(tmesh_cuda_record(memory, NULL, err));
	assert_ok(tmesh_region_send(region, ends[0], RW, err));
	tmesh_region_unref(region);
	assert_ok(tmesh_region_recv(pair.b.ctx, ends[1], &got, err));
	assert_ok(tmesh_cuda_import(pair.b.cuda, got, NULL, &imported, err));
	assert_ok(tmesh_cuda_wait(imported, NULL, err));
	tmesh_region_unref(got);
	assert_int_equal(first_of(imported), 'a');
	assert_int_equal(info_of(imported).resident, 1);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	close(ends[0]);
	close(ends[1]);
	pair_close(&pair);
}

/* The importer has a lease of its own: it releases untouched memory. */
STANDIN_ADD(test_import_lease, NULL, NULL)
{
	struct tmesh_cuda_import_opts opts = {
		.size = sizeof(opts), .device = -1, .lease_ns = 3 * SECOND};
	struct pair pair;
	struct tmesh_cuda_memory *memory, *imported;
	struct tmesh_layout layout;
	char text[TMESH_REF_SIZE], byte;

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	share(memory, text);
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), &opts, NULL, &imported,
				      &layout, err));
	/* For longer than the lease, and with time for a busy machine to be late. */
	for (int i = 0; i < 20; i++) {
		usleep(225000);
		assert_int_equal(tmesh_cuda_touch(imported), 0);
	}
	eventually(info_of(imported).taken);
	eventually(stats_of(&pair.b).imported_bytes == 0);
	assert_int_equal(tmesh_cuda_touch(imported), -ESTALE);
	assert_false(standin_access(0, tmesh_cuda_pointer(imported), &byte, 1, false));
	tmesh_cuda_memory_unref(memory);
	/* At once, or when the owner looks again. */
	eventually(stats_of(&pair.a).bytes_pending_free == 0);
	tmesh_cuda_memory_unref(imported);
	pair_close(&pair);
}

/* A device without read-only mappings maps for writing, and reports it. */
STANDIN_ADD(test_no_read_only_mappings, NULL, NULL)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	char text[TMESH_REF_SIZE], byte = 'x';
	struct pair pair;

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	standin_set_up("without=prot-read");
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &imported,
				      &layout, err));
	assert_int_equal(info_of(imported).rights, TMESH_READ);
	assert_int_equal(info_of(imported).mapped_rights, RW);
	assert_int_equal(pair.b.warnings, 1);
	assert_int_equal(first_of(imported), 'a');
	assert_refused(tmesh_cuda_write(imported, 0, &byte, 1, err), -EACCES, "reading");
	tmesh_cuda_memory_unref(imported);
	standin_set_up(NULL);
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &imported,
				      &layout, err));
	assert_int_equal(info_of(imported).mapped_rights, TMESH_READ);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	pair_close(&pair);
}

/* Once; there is room for longer texts. */
static void replace(char *text, const char *old, const char *new)
{
	char *at = strstr(text, old);

	assert_non_null(at);
	memmove(at + strlen(new), at + strlen(old), strlen(at + strlen(old)) + 1);
	memcpy(at, new, strlen(new));
}

/* Memory of the VMM calls whose maker did not ask for a descriptor. */
static void test_not_exportable(struct bed *bed)
{
	struct cu_alloc_prop prop = {.type = CU_ALLOCATION_PINNED,
				     .location = {.type = CU_LOCATION_DEVICE}};
	struct cu_access access = {.location = prop.location, .flags = CU_ACCESS_READ_WRITE};
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_region *region;
	char text[TMESH_REF_SIZE];
	cu_ptr at;
	cu_mem mem;

#define DRIVER(name) ((__typeof__(&(name)))standin_symbol(#name))
	assert_int_equal(DRIVER(cuMemCreate)(&mem, 2 * MIB, &prop, 0), 0);
	assert_int_equal(DRIVER(cuMemAddressReserve)(&at, 2 * MIB, 0, 0, 0), 0);
	assert_int_equal(DRIVER(cuMemMap)(at, 2 * MIB, 0, mem, 0), 0);
	assert_int_equal(DRIVER(cuMemSetAccess)(at, 2 * MIB, &access, 1), 0);
	assert_refused(tmesh_cuda_share_ipc(bed->cuda, at, &layout, NULL, text, sizeof(text),
					    &region, err),
		       -EINVAL, "made without a POSIX descriptor");
	DRIVER(cuMemUnmap)(at, 2 * MIB);
	DRIVER(cuMemAddressFree)(at, 2 * MIB);
	DRIVER(cuMemRelease)(mem);
}

STANDIN_ADD(test_ipc, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	retain_fn *retain = (retain_fn *)standin_symbol("cuDevicePrimaryCtxRetain");
	push_fn *push = (push_fn *)standin_symbol("cuCtxPushCurrent_v2");
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *ours;
	char text[TMESH_REF_SIZE], answer[2048], byte = 'i';
	unsigned long long pointer;
	struct tmesh_region *region;
	unsigned long synced;
	void *context;

	assert_int_equal(retain(&context, 0), 0);
	assert_int_equal(push(context), 0);
	assert_int_equal(((int (*)(unsigned long long *, size_t))standin_symbol("cuMemAlloc_v2"))(
				 &pointer, 10000),
			 0);
	assert_true(standin_access(0, pointer + 512, &byte, 1, true));
	assert_ok(tmesh_cuda_share_ipc(bed->cuda, pointer + 512, &layout, NULL, text, sizeof(text),
				       &region, err));
	assert_non_null(strstr(text, "\"cuda\":{\"kind\":\"ipc\"}"));
	assert_int_equal(helper_say(&helpers[0], text), 'i');
	/* The driver opens no handle of its own process. */
	assert_refused(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), NULL, NULL, &memory,
					   &layout, err),
		       -ECONNRESET, "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT");
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	/* A carrier of the ref may have put spaces in. */
	replace(text, "\"ipc\"", " \"ipc\"");
	assert_int_equal(helper_say(&helpers[0], text), 'i');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	assert_ok(tmesh_region_info(region, &info, err));
	replace(info.description, "\"of\":2097152", "\"of\":2097153");
	assert_ok(tmesh_region_set_description(region, info.description, err));
	assert_int_equal(helper_ask(&helpers[0], text, answer), 'E');
	assert_non_null(strstr(answer + 1 + offsetof(struct tmesh_error, message),
			       "of 2097153 bytes there are 2097152 (CUDA_ERROR_INVALID_VALUE)"));
	tmesh_region_unref(region);
	synced = standin_calls("cuStreamSynchronize");
	assert_ok(tmesh_cuda_share_ipc(bed->cuda, pointer, &layout, TMESH_CUDA_NO_STREAM, text,
				       sizeof(text), &region, err));
	tmesh_region_unref(region);
	assert_int_equal(standin_calls("cuStreamSynchronize"), synced);
	/* Memory of the VMM calls, as PyTorch's expandable segments are, is shared by a
	 * descriptor. */
	ours = alloc(bed, 0, 5000, 'a');
	assert_ok(tmesh_cuda_share_ipc(bed->cuda, tmesh_cuda_pointer(ours), &layout, NULL, text,
				       sizeof(text), &region, err));
	assert_non_null(strstr(text, "\"cuda\":{\"kind\":\"vmm\"}"));
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_say(&helpers[0], "w"), 'W');
	assert_int_equal(first_of(ours), 'W');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	tmesh_region_unref(region);
	test_not_exportable(bed);
	/* Memory of cudaMallocAsync(), for which the driver has neither. */
	standin_fail("cuIpcGetMemHandle", CU_INVALID_VALUE, 0);
	standin_fail("cuMemRetainAllocationHandle", CU_INVALID_VALUE, 0);
	assert_refused(tmesh_cuda_share_ipc(bed->cuda, pointer, &layout, NULL, text, sizeof(text),
					    &region, err),
		       -EINVAL, "cudaMallocAsync() or managed: share a copy");
	assert_refused(tmesh_cuda_share_ipc(bed->cuda, 4096, &layout, NULL, text, sizeof(text),
					    &region, err),
		       -EINVAL, "cuPointerGetAttribute: CUDA_ERROR_INVALID_VALUE");
	tmesh_cuda_memory_unref(ours);
	((int (*)(unsigned long long))standin_symbol("cuMemFree_v2"))(pointer);
	((push_fn *)standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Memory of cuIpc is opened for the GPU that its kernels run on. The driver maps it for writing,
 * and the caller's rights are what is reported. */
STANDIN_ADD(test_ipc_for_a_device, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = 1};
	struct DLManagedTensor *managed;
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	struct tmesh_cuda_info info;
	char text[2048], byte;

	assert_int_equal(helper_ask(&helpers[0], "i", text), '{');
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory, &layout,
				      err));
	info = info_of(memory);
	assert_int_equal(info.device, 1);
	assert_int_equal(info.resident, 0);
	assert_true(standin_access(1, info.pointer, &byte, 1, false));
	assert_int_equal(info.rights, TMESH_READ);
	assert_int_equal(info.mapped_rights, RW);
	assert_refused(tmesh_cuda_to_dlpack(memory, &layout, &managed, err), -EACCES, "read-only");
	tmesh_cuda_memory_unref(memory);
	opts.device = 2;
	assert_refused(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory,
					   &layout, err),
		       -ENODEV, "no GPU 2");
	opts.device = 1;
	standin_set_up("without=peers");
	assert_refused(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory,
					   &layout, err),
		       -EOPNOTSUPP, "cannot reach the memory of GPU 0");
	standin_set_up(NULL);
	opts.rights = RW;
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory, &layout,
				      err));
	assert_int_equal(info_of(memory).rights, RW);
	tmesh_cuda_memory_unref(memory);
	opts.lease_ns = SECOND;
	assert_refused(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory,
					   &layout, err),
		       -EOPNOTSUPP, "no lease");
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Host memory by the same call: it registers the region of a ref. */
STANDIN(test_host_ref)
{
	int64_t shape = 100;
	struct tmesh_tensor *tensor;
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	char text[TMESH_REF_SIZE], bytes[100] = "xyz", byte;
	struct bed *bed = *state;

	assert_ok(tmesh_tensor_put(bed->ctx, TMESH_UINT8, 1, &shape, bytes, NULL, &tensor, err));
	assert_ok(tmesh_tensor_ref_encode(tensor, TMESH_READ, text, sizeof(text), err));
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), NULL, NULL, &memory, &layout,
				      err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_HOST);
	assert_true(
		standin_access(0, tmesh_cuda_pointer(memory) + layout.offset + 1, &byte, 1, false));
	assert_int_equal(byte, 'y');
	tmesh_cuda_memory_unref(memory);
	tmesh_tensor_unref(tensor);
}

/* A pool of host memory whose owner dies. The registrations of others go on, and the memory is
 * registered again as long as a process holds it. The owner's registration ended with its process.
 */
STANDIN_ADD(test_owner_of_registered_memory_is_killed, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .rights = RW};
	struct tmesh_cuda_memory *memory, *late;
	struct tmesh_layout layout;
	struct tmesh_region *region;
	char text[2048], byte;

	assert_int_equal(helper_ask(&helpers[0], "h", text), '{');
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), &opts, NULL, &memory, &layout,
				      err));
	assert_int_equal(info_of(memory).kind, TMESH_CUDA_HOST);
	assert_ok(tmesh_cuda_region(memory, &region, err));
	helper_kill(&helpers[0]);
	/* A round of the watcher, which registering wakes. */
	assert_ok(tmesh_cuda_register(bed->cuda, region, 1, RW, 0, &late, err));
	assert_int_equal(tmesh_cuda_touch(memory), 0);
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'h');
	byte = 'H';
	assert_true(standin_access(1, tmesh_cuda_pointer(late), &byte, 1, true));
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_memory_unref(late);
	assert_int_equal(stats_of(bed).registered_bytes, 0);
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	assert_true(standin_access(0, tmesh_cuda_pointer(memory), &byte, 1, false));
	assert_int_equal(byte, 'H');
	assert_int_equal(stats_of(bed).taken, 0);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
	bed_close(bed);
}

UNIT_MAIN("cuda share", NULL, NULL)
