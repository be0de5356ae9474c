// SPDX-License-Identifier: MIT
/* Kept regions on memfd, by a keeper of the test's own (TMESH_KEEPER): what is kept comes back when
 * everybody who had it is gone, within the limit, and whatever clients do. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "keeper.h"
#include "memfd.h"
#include "unit.h"

#define MIB (1u << 20)

static pid_t keeper_pid(struct tmesh_ctx *ctx)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	assert_ok(tmesh_keeper_info(ctx, &info, err));
	return info.pid;
}

/* The keeper is no child of ours: it is gone when its pidfd says so. */
static void end_keeper(struct tmesh_ctx *ctx, int signal)
{
	pid_t pid = keeper_pid(ctx);
	struct pollfd poller = {.events = POLLIN};

	if (!pid)
		return;
	poller.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(poller.fd >= 0);
	assert_int_equal(kill(pid, signal), 0);
	assert_int_equal(poll(&poller, 1, 10000), 1);
	close(poller.fd);
}

static int setup(void **state)
{
	unsetenv("TMESH_KEEPER_BYTES");
	return unit_ctx_setup(state);
}

static int teardown(void **state)
{
	end_keeper(*state, SIGTERM);
	return unit_ctx_teardown(state);
}

static struct tmesh_region *sealed(struct tmesh_ctx *ctx, uint64_t bytes, uint8_t fill)
{
	struct tmesh_region *region;
	uint8_t *memory;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, (void **)&memory, err));
	memset(memory, fill, bytes);
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	assert_ok(tmesh_region_seal(region, err));
	return region;
}

static void keep_new(struct tmesh_ctx *ctx, const char *name, uint64_t bytes, uint8_t fill)
{
	struct tmesh_region *region = sealed(ctx, bytes, fill);

	assert_ok(tmesh_keep(ctx, name, &region, 1, NULL, err));
	tmesh_region_unref(region);
}

static struct tmesh_region *open_one(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_region **regions, *region;
	size_t count;

	assert_ok(tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err));
	assert_int_equal(count, 1);
	region = regions[0];
	free(regions);
	return region;
}

static void check_fill(struct tmesh_region *region, uint8_t fill)
{
	uint8_t *memory;

	assert_true(tmesh_region_is_sealed(region));
	assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&memory, err));
	for (uint64_t i = 0; i < tmesh_region_bytes(region); i += 511)
		assert_int_equal(memory[i], fill);
	tmesh_region_unmap(region, TMESH_READ);
}

static void check_kept(struct tmesh_ctx *ctx, const char *name, uint8_t fill)
{
	struct tmesh_region *region = open_one(ctx, name);

	check_fill(region, fill);
	tmesh_region_unref(region);
}

static bool is_kept(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_region **regions;
	size_t count;
	int rc = tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL);

	if (rc) {
		assert_int_equal(rc, -ENOENT);
		return false;
	}
	while (count)
		tmesh_region_unref(regions[--count]);
	free(regions);
	return true;
}

/* A process that says by a pipe when it has done @work, and is killed then. */
static void killed_after(void (*work)(struct tmesh_ctx *ctx))
{
	int ends[2], status;
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (!pid) {
		struct tmesh_ctx *ctx;

		if (tmesh_ctx_open(NULL, &ctx, NULL))
			unit_leave(1);
		work(ctx);
		if (write(ends[1], "x", 1) != 1)
			unit_leave(1);
		pause();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	close(ends[0]);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void keep_weights(struct tmesh_ctx *ctx)
{
	keep_new(ctx, "weights", MIB, 7);
}

static void use_weights(struct tmesh_ctx *ctx)
{
	check_kept(ctx, "weights", 7);
}

static void test_outlives(void **state)
{
	assert_false(is_kept(*state, "weights"));
	killed_after(keep_weights);
	check_kept(*state, "weights", 7);
	/* A reader that is killed takes nothing along. */
	killed_after(use_weights);
	check_kept(*state, "weights", 7);
}

static void keep_model(struct tmesh_ctx *ctx)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "w"}, {.name = "b"}};
	struct tmesh_bundle *bundle;

	for (int i = 0; i < 2; i++) {
		entries[i].region = sealed(ctx, 4096, (uint8_t)(i + 1));
		assert_ok(tmesh_layout_contiguous(&entries[i].layout, TMESH_INT8, 1,
						  (int64_t[]){4096}, err));
	}
	assert_ok(tmesh_bundle_create(ctx, entries, 2, NULL, &bundle, err));
	assert_ok(tmesh_keep_bundle(ctx, "model", bundle, NULL, err));
}

static void test_bundle(void **state)
{
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_tensor *tensor;
	uint8_t *data;

	killed_after(keep_model);
	assert_ok(tmesh_kept_open_bundle(*state, "model", TMESH_KEPT_OWN, &bundle, err));
	assert_int_equal(tmesh_bundle_count(bundle), 2);
	assert_ok(tmesh_bundle_tensor(bundle, 1, &tensor, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, err));
	assert_int_equal(data[4095], 2);
	tmesh_tensor_unref(tensor);
	tmesh_bundle_unref(bundle);
	keep_new(*state, "no model", 4096, 1);
	bundle = NULL;
	assert_refused(tmesh_kept_open_bundle(*state, "no model", TMESH_KEPT_OWN, &bundle, err),
		       -EPROTO, "index");
	assert_null(bundle);
}

static void test_names(void **state)
{
	struct tmesh_keep_opts replace = {.size = sizeof(replace), .flags = TMESH_KEEPING_REPLACE};
	struct tmesh_region *region = sealed(*state, 4096, 1), *other = sealed(*state, 4096, 2);
	char longest[TMESH_KEPT_NAME_LEN + 2];

	memset(longest, 'n', sizeof(longest));
	longest[TMESH_KEPT_NAME_LEN + 1] = '\0';
	assert_refused(tmesh_keep(*state, "", &region, 1, NULL, err), -EINVAL, "name");
	assert_refused(tmesh_keep(*state, NULL, &region, 1, NULL, err), -EINVAL, "name");
	assert_refused(tmesh_keep(*state, longest, &region, 1, NULL, err), -EINVAL, "longer");
	assert_refused(tmesh_keep(*state, "a\nb", &region, 1, NULL, err), -EINVAL, "control");
	longest[TMESH_KEPT_NAME_LEN] = '\0';
	assert_ok(tmesh_keep(*state, longest, &region, 1, NULL, err));
	assert_refused(tmesh_keep(*state, longest, &other, 1, NULL, err), -EEXIST, "replace");
	assert_refused(tmesh_keep(*state, "b", &region, 1, NULL, err), -EBUSY, "another name");
	check_kept(*state, longest, 1);
	assert_ok(tmesh_keep(*state, longest, &other, 1, &replace, err));
	check_kept(*state, longest, 2);
	/* The same again, with a region that was in the old one. */
	assert_ok(tmesh_keep(*state, longest, (struct tmesh_region *[]){other, region}, 2, &replace,
			     err));
	assert_ok(tmesh_kept_drop(*state, longest, err));
	assert_refused(tmesh_kept_drop(*state, longest, err), -ENOENT, "nothing is kept");
	assert_false(is_kept(*state, longest));
	/* Nothing of it is left: the region may have another name now. */
	assert_ok(tmesh_keep(*state, "b", &region, 1, NULL, err));
	tmesh_region_unref(region);
	tmesh_region_unref(other);
}

static void test_refused(void **state)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .flags = 8};
	struct tmesh_region *region, *reader, *none[1], **regions = NULL;
	struct tmesh_ctx *other;
	size_t count = 0;

	assert_ok(tmesh_region_create(*state, 4096, NULL, &region, err));
	assert_refused(tmesh_keep(*state, "a", &region, 1, NULL, err), -EINVAL, "not sealed");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EINVAL, "flags");
	opts.flags = 0;
	opts.mode = 0777;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EINVAL, "mode");
	opts.mode = 0640;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EOPNOTSUPP, "module");
	assert_refused(tmesh_keep(*state, "a", none, 0, NULL, err), -EINVAL, "1 to");
	assert_refused(tmesh_keep(*state, "a", none, TMESH_KEPT_MAX_REGIONS + 1, NULL, err),
		       -EINVAL, "1 to");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_ok(tmesh_keep(*state, "a", &reader, 1, NULL, err));
	assert_ok(tmesh_kept_drop(*state, "a", err));
	assert_refused(
		tmesh_keep(*state, "a", (struct tmesh_region *[]){region, region}, 2, NULL, err),
		-EINVAL, "region 1");
	assert_ok(tmesh_ctx_open(NULL, &other, err));
	assert_refused(tmesh_keep(other, "a", &region, 1, NULL, err), -EINVAL, "another context");
	tmesh_ctx_unref(other);
	assert_false(is_kept(*state, "a"));
	assert_ok(tmesh_keep(*state, "a", &region, 1, NULL, err));
	assert_refused(tmesh_kept_open(*state, "a", TMESH_KEPT_OWN, TMESH_READ | TMESH_WRITE,
				       &regions, &count, err),
		       -EACCES, "rights");
	assert_refused(tmesh_kept_open(*state, "a", TMESH_KEPT_OWN, 0, &regions, &count, err),
		       -EINVAL, "READ");
	assert_refused(
		tmesh_kept_open(*state, "a", geteuid() + 1, TMESH_READ, &regions, &count, err),
		-EOPNOTSUPP, "module");
	assert_null(regions);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

static void test_list(void **state)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .lifetime_ns = UINT64_MAX / 4};
	struct tmesh_kept_info *infos = NULL;
	struct tmesh_region *region;
	size_t count = 1;

	/* Without a keeper nothing is kept, and asking starts none. */
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(count, 0);
	free(infos);
	assert_int_equal(keeper_pid(*state), 0);

	keep_new(*state, "first", MIB, 1);
	region = sealed(*state, 4096, 2);
	assert_ok(tmesh_keep(*state, "second", &region, 1, &opts, err));
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(count, 2);
	assert_string_equal(infos[0].name, "first");
	assert_string_equal(infos[1].name, "second");
	assert_int_equal(infos[0].held, 0);
	assert_int_equal(infos[1].held, 1);
	assert_true(infos[0].bytes >= MIB && infos[0].bytes < MIB + 65536);
	assert_int_equal(infos[0].expires_ns, 0);
	assert_true(infos[1].expires_ns > infos[1].kept_ns);
	assert_true(infos[0].id < infos[1].id);
	assert_int_equal(infos[0].count, 1);
	free(infos);
	/* A mapping holds as much as a descriptor. */
	tmesh_region_unref(region);
	region = open_one(*state, "first");
	check_fill(region, 1);
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(infos[0].held, 1);
	assert_int_equal(infos[1].held, 0);
	free(infos);
	tmesh_region_unref(region);
}

static void test_limit(void **state)
{
	struct tmesh_region *big, *held;
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	setenv("TMESH_KEEPER_BYTES", "3400000", 1);
	keep_new(*state, "one", MIB, 1);
	keep_new(*state, "two", MIB, 2);
	keep_new(*state, "three", MIB, 3);
	assert_ok(tmesh_keeper_info(*state, &info, err));
	assert_int_equal(info.max_bytes, 3400000);
	assert_int_equal(info.names, 3);
	/* Used last, so the next is the oldest. */
	check_kept(*state, "one", 1);
	keep_new(*state, "four", MIB, 4);
	assert_true(is_kept(*state, "one"));
	assert_false(is_kept(*state, "two"));
	/* What is held stays, however old. */
	held = open_one(*state, "three");
	check_kept(*state, "one", 1);
	check_kept(*state, "four", 4);
	keep_new(*state, "five", MIB, 5);
	assert_true(is_kept(*state, "three"));
	assert_false(is_kept(*state, "one"));
	/* Too much with what is held: refused, and nothing has gone. */
	big = sealed(*state, 3 * MIB, 6);
	assert_refused(tmesh_keep(*state, "big", &big, 1, NULL, err), -EDQUOT, "3400000");
	assert_true(is_kept(*state, "three"));
	assert_true(is_kept(*state, "four"));
	assert_true(is_kept(*state, "five"));
	tmesh_region_unref(held);
	assert_ok(tmesh_keep(*state, "big", &big, 1, NULL, err));
	assert_false(is_kept(*state, "three"));
	assert_false(is_kept(*state, "four"));
	tmesh_region_unref(big);
	/* More than the limit itself. */
	big = sealed(*state, 4 * MIB, 6);
	assert_refused(tmesh_keep(*state, "bigger", &big, 1, NULL, err), -EDQUOT, "limit");
	assert_true(is_kept(*state, "big"));
	tmesh_region_unref(big);
}

static void test_expires(void **state)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .lifetime_ns = 50000000};
	struct tmesh_region *region = sealed(*state, 4096, 1);
	struct tmesh_kept_info *infos;
	size_t count;

	keep_new(*state, "stays", 4096, 2);
	assert_ok(tmesh_keep(*state, "goes", &region, 1, &opts, err));
	do {
		assert_ok(tmesh_kept_list(*state, &infos, &count, err));
		free(infos);
	} while (count == 2);
	assert_false(is_kept(*state, "goes"));
	assert_true(is_kept(*state, "stays"));
	/* Who holds it has it as before. */
	check_fill(region, 1);
	tmesh_region_unref(region);
}

/* The keeper is killed: who holds memory keeps it, the rest is gone, and a new one starts. */
static void test_keeper_killed(void **state)
{
	struct tmesh_region *region;

	keep_new(*state, "held", 4096, 1);
	keep_new(*state, "not held", 4096, 2);
	region = open_one(*state, "held");
	end_keeper(*state, SIGKILL);
	check_fill(region, 1);
	assert_false(is_kept(*state, "held"));
	assert_false(is_kept(*state, "not held"));
	keep_new(*state, "again", 4096, 3);
	check_kept(*state, "again", 3);
	tmesh_region_unref(region);
}

static void test_not_started(void **state)
{
	struct tmesh_region *region = sealed(*state, 4096, 1);
	char *keeper = strdup(getenv("TMESH_KEEPER"));

	setenv("TMESH_KEEPER", "/nowhere/tmesh-keeper", 1);
	assert_refused(tmesh_keep(*state, "a", &region, 1, NULL, err), -ENOENT, "TMESH_KEEPER");
	/* One that runs and is no keeper. */
	setenv("TMESH_KEEPER", "/bin/false", 1);
	assert_refused(tmesh_keep(*state, "a", &region, 1, NULL, err), -ENOENT, "could not start");
	setenv("TMESH_KEEPER", keeper, 1);
	assert_ok(tmesh_keep(*state, "a", &region, 1, NULL, err));
	free(keeper);
	tmesh_region_unref(region);
}

/* A descriptor that only its driver understands: here a pipe's. */
static void keep_opaque(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "gpu", 3), 3);
	assert_ok(tmesh_region_from_fd(ctx, ends[0], MIB, NULL, &region, err));
	assert_ok(tmesh_keep(ctx, "opaque", &region, 1, NULL, err));
}

static void test_opaque(void **state)
{
	struct tmesh_region **regions;
	size_t count;
	char text[4] = "";
	int fd;

	killed_after(keep_opaque);
	assert_ok(tmesh_kept_open(*state, "opaque", TMESH_KEPT_OWN, TMESH_READ | TMESH_WRITE,
				  &regions, &count, err));
	assert_int_equal(tmesh_region_bytes(regions[0]), MIB);
	assert_ok(tmesh_region_opaque_fd(regions[0], &fd, err));
	assert_int_equal(read(fd, text, 3), 3);
	assert_string_equal(text, "gpu");
	close(fd);
	tmesh_region_unref(regions[0]);
	free(regions);
}

/* A file of exactly its length has a path for who knows only files. */
static void test_path(void **state)
{
	int fd = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct tmesh_region *region;
	char path[4096], text[16] = "";
	struct stat st;

	assert_int_equal(write(fd, "contents", 8), 8);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	assert_ok(tmesh_region_from_memfd(*state, fd, 0, NULL, &region, err));
	close(fd);
	assert_ok(tmesh_keep(*state, "model.bin", &region, 1, NULL, err));
	tmesh_region_unref(region);
	snprintf(path, sizeof(path), "%s/kept/model.bin", getenv("TMESH_RUNTIME_DIR"));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 8);
	fd = open(path, O_RDONLY);
	assert_int_equal(read(fd, text, sizeof(text)), 8);
	assert_string_equal(text, "contents");
	close(fd);
	assert_ok(tmesh_kept_drop(*state, "model.bin", err));
	assert_int_equal(lstat(path, &st), -1);
}

/* Hostile clients. */

static int connected(struct tmesh_ctx *ctx)
{
	struct timeval patience = {.tv_sec = 10};
	int fd;

	assert_ok(tmesh_keeper_connect(ctx, true, &fd, err));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

static struct tmesh_keeper_request keep_request(const char *name, uint32_t count)
{
	struct tmesh_keeper_request request = {
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.op = TMESH_KEEPER_KEEP,
		.count = count,
		.rights = TMESH_READ,
	};

	strcpy(request.name, name);
	return request;
}

/* Sends one region message as a liar would, and gives the keeper's answer. */
static int32_t answer_to(struct tmesh_ctx *ctx, const struct tmesh_wire_region *wire,
			 const int *fds, unsigned int count)
{
	struct tmesh_keeper_request request = keep_request("evil", 1);
	struct tmesh_keeper_reply reply;
	int fd = connected(ctx);

	assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request));
	assert_int_equal(tmesh_wire_send(fd, wire, sizeof(*wire), fds, count, 0), 0);
	assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
	close(fd);
	assert_false(is_kept(ctx, "evil"));
	return reply.status;
}

static int memfd_of(uint64_t bytes, unsigned int seals)
{
	int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void test_lying_regions(void **state)
{
	const struct tmesh_wire_region good = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = TMESH_READ,
		.kind = TMESH_KIND_FOREIGN,
		.id = 1,
		.bytes = 4096,
	};
	struct tmesh_wire_region wire = good;
	unsigned int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int file = memfd_of(4096, all), loose = memfd_of(4096, 0),
	    writable = memfd_of(4096, F_SEAL_SHRINK | F_SEAL_GROW);
	int folder = open("/", O_RDONLY | O_DIRECTORY), null = open("/dev/null", O_RDWR);
	int fds[4] = {file, file, file, file};

	assert_int_equal(answer_to(*state, &good, &loose, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &writable, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &folder, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &null, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, NULL, 0), -EPROTO);
	assert_int_equal(answer_to(*state, &good, fds, 2), -EPROTO);
	wire.bytes = 4097;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.bytes = UINT64_MAX;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.bytes = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire = good;
	wire.kind = 0; /* with a trailer, for which there is no room */
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.kind = 1u << 30;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	/* An opaque region whose leash is no pipe. */
	wire.kind = TMESH_KIND_OPAQUE | TMESH_KIND_FOREIGN;
	assert_int_equal(answer_to(*state, &wire, fds, 2), -EINVAL);
	wire = good;
	wire.rights = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	wire = good;
	wire.backend = TMESH_BACKEND_KERNEL;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	wire = good;
	wire.magic = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	/* Memory of another user's, where we can have some. */
	if (geteuid() == 0) {
		int theirs = memfd_of(4096, all);

		assert_int_equal(fchown(theirs, 12345, 12345), 0);
		assert_int_equal(answer_to(*state, &good, &theirs, 1), -EINVAL);
		close(theirs);
	}
	close(file);
	close(loose);
	close(writable);
	close(folder);
	close(null);
	assert_false(is_kept(*state, "evil"));
}

/* Requests that are none end the connection, and nobody else's. */
static void test_lying_requests(void **state)
{
	struct tmesh_keeper_request good = keep_request("evil", 1), request;
	char junk[4096] = "junk";
	struct tmesh_keeper_reply reply;
	int fd;

	keep_new(*state, "mine", 4096, 1);
#define REFUSES(change)                                                                    \
	do {                                                                               \
		request = good;                                                            \
		change;                                                                    \
		fd = connected(*state);                                                    \
		assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request)); \
		assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);                         \
		close(fd);                                                                 \
	} while (0)
	REFUSES(request.magic = 0);
	REFUSES(request.version = 99);
	REFUSES(request.op = 0);
	REFUSES(request.op = 6);
	REFUSES(memset(request.name, 'x', sizeof(request.name)));
	REFUSES(request.name[0] = '\0');
	REFUSES(request.name[60] = 'x');
	REFUSES(strcpy(request.name, "\x1b[2J"));
#undef REFUSES
#define ANSWERS(change, code)                                                              \
	do {                                                                               \
		request = good;                                                            \
		change;                                                                    \
		fd = connected(*state);                                                    \
		assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request)); \
		assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));       \
		assert_int_equal(reply.status, code);                                      \
		close(fd);                                                                 \
	} while (0)
	ANSWERS(request.count = 0, -EINVAL);
	ANSWERS(request.count = TMESH_KEPT_MAX_REGIONS + 1, -EINVAL);
	ANSWERS(request.count = UINT32_MAX, -EINVAL);
	ANSWERS(request.flags = 2, -EINVAL);
	ANSWERS((request.op = TMESH_KEEPER_OPEN, strcpy(request.name, "mine"), request.rights = 99),
		-EACCES);
#undef ANSWERS
	fd = connected(*state);
	assert_int_equal(send(fd, junk, sizeof(junk), 0), sizeof(junk));
	assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);
	close(fd);
	/* Descriptors where none belong. */
	fd = connected(*state);
	assert_int_equal(tmesh_wire_send(fd, &good, sizeof(good), (int[]){0, 1}, 2, 0), 0);
	assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);
	close(fd);
	check_kept(*state, "mine", 1);
}

/* Clients that stop in the middle: what they began is nobody's, and others are served. */
static void test_silent_clients(void **state)
{
	struct tmesh_keeper_request request = keep_request("half", 2);
	struct tmesh_region *region = sealed(*state, 4096, 1);
	int fds[40];

	for (int i = 0; i < 40; i++) {
		fds[i] = connected(*state);
		if (i % 2)
			assert_int_equal(send(fds[i], &request, sizeof(request), 0),
					 sizeof(request));
		if (i % 4 == 3)
			assert_ok(tmesh_region_send(region, fds[i], TMESH_READ, err));
	}
	keep_new(*state, "whole", 4096, 2);
	check_kept(*state, "whole", 2);
	assert_false(is_kept(*state, "half"));
	for (int i = 0; i < 40; i++)
		close(fds[i]);
	check_kept(*state, "whole", 2);
	/* The region that they gave is in no group. */
	assert_ok(tmesh_keep(*state, "half", &region, 1, NULL, err));
	tmesh_region_unref(region);
}

/* A name that many want: one has it; with REPLACE the last has it; whole in either case. */
#define RACERS 8
static void race(struct tmesh_ctx *parent, bool replace, int *won)
{
	pid_t pids[RACERS];

	*won = 0;
	for (int i = 0; i < RACERS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			struct tmesh_keep_opts opts = {
				.size = sizeof(opts),
				.flags = replace ? TMESH_KEEPING_REPLACE : 0,
			};
			struct tmesh_region *pair[2];
			struct tmesh_ctx *ctx;
			int rc = tmesh_ctx_open(NULL, &ctx, NULL);

			if (rc)
				unit_leave(9);
			pair[0] = sealed(ctx, 4096, (uint8_t)(i + 1));
			pair[1] = sealed(ctx, 4096, (uint8_t)(i + 1));
			for (int k = 0; !rc && k < (replace ? 20 : 1); k++)
				rc = tmesh_keep(ctx, "raced", pair, 2, &opts, NULL);
			unit_leave(rc == 0 ? 0 : rc == -EEXIST ? 1 : 2);
		}
	}
	for (int i = 0; i < RACERS; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
		*won += WEXITSTATUS(status) == 0;
	}
}

static void test_race(void **state)
{
	struct tmesh_region **regions;
	uint8_t first, second;
	size_t count;
	int won;

	/* Nobody has started the keeper yet: that is raced too. */
	for (int replace = 0; replace < 2; replace++) {
		race(*state, replace, &won);
		assert_int_equal(won, replace ? RACERS : 1);
		assert_ok(tmesh_kept_open(*state, "raced", TMESH_KEPT_OWN, TMESH_READ, &regions,
					  &count, err));
		assert_int_equal(count, 2);
		assert_ok(tmesh_region_read(regions[0], 0, &first, 1, err));
		assert_ok(tmesh_region_read(regions[1], 4095, &second, 1, err));
		assert_int_equal(first, second);
		tmesh_region_unref(regions[0]);
		tmesh_region_unref(regions[1]);
		free(regions);
	}
}

/* As many regions as there can be under one name. */
static void test_many(void **state)
{
	enum {
		MANY = 300
	};
	struct tmesh_region *regions[MANY], **got;
	unsigned int fds;
	size_t count;

	for (int i = 0; i < MANY; i++)
		regions[i] = sealed(*state, 1, (uint8_t)i);
	assert_ok(tmesh_keep(*state, "many", regions, MANY, NULL, err));
	for (int i = 0; i < MANY; i++)
		tmesh_region_unref(regions[i]);
	fds = unit_open_fds();
	assert_ok(tmesh_kept_open(*state, "many", TMESH_KEPT_OWN, TMESH_READ, &got, &count, err));
	assert_int_equal(count, MANY);
	for (int i = 0; i < MANY; i++) {
		check_fill(got[i], (uint8_t)i);
		tmesh_region_unref(got[i]);
	}
	free(got);
	assert_int_equal(unit_open_fds(), fds);
}

/* Keepers that lie: a listener of ours in its place. */
static void lie(struct tmesh_ctx *ctx, const void *answer, size_t bytes, bool with_region)
{
	struct sockaddr_un address;
	struct tmesh_keeper_request request;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), dir, fd;
	struct tmesh_region **regions = NULL;
	struct tmesh_kept_info *infos = NULL;
	size_t count = 0;
	int status;
	pid_t pid;

	pthread_mutex_lock(&ctx->lock);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	pthread_mutex_unlock(&ctx->lock);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address,
			      tmesh_rundir_address(dir, TMESH_KEEPER_SOCKET, &address)),
			 0);
	assert_int_equal(listen(listener, 4), 0);
	pid = fork();
	if (!pid) {
		for (int i = 0; i < 2; i++) {
			fd = accept(listener, NULL, NULL);
			if (recv(fd, &request, sizeof(request), 0) < 0)
				unit_leave(1);
			send(fd, answer, bytes, MSG_NOSIGNAL);
			if (with_region)
				send(fd, "not a region, nor a row of a list", 33, MSG_NOSIGNAL);
			close(fd);
		}
		unit_leave(0);
	}
	assert_true(tmesh_kept_open(ctx, "a", TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL) <
		    0);
	assert_true(tmesh_kept_list(ctx, &infos, &count, NULL) < 0);
	assert_null(regions);
	assert_null(infos);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(listener);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
}

static void test_lying_keeper(void **state)
{
	const struct tmesh_keeper_reply good = {
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.count = 1,
	};
	struct tmesh_keeper_reply reply = good;

	lie(*state, "short", 5, false);
	lie(*state, "", 0, false);
	reply.magic = 0;
	lie(*state, &reply, sizeof(reply), false);
	reply = good;
	reply.status = 5;
	lie(*state, &reply, sizeof(reply), false);
	reply.status = INT32_MIN;
	lie(*state, &reply, sizeof(reply), false);
	lie(*state, &good, sizeof(good), false);
	lie(*state, &good, sizeof(good), true);
	reply = good;
	reply.count = UINT32_MAX;
	lie(*state, &reply, sizeof(reply), true);
}

#define KEEP_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		KEEP_TEST(test_outlives),	KEEP_TEST(test_bundle),
		KEEP_TEST(test_names),		KEEP_TEST(test_refused),
		KEEP_TEST(test_list),		KEEP_TEST(test_limit),
		KEEP_TEST(test_expires),	KEEP_TEST(test_keeper_killed),
		KEEP_TEST(test_not_started),	KEEP_TEST(test_opaque),
		KEEP_TEST(test_path),		KEEP_TEST(test_lying_regions),
		KEEP_TEST(test_lying_requests), KEEP_TEST(test_silent_clients),
		KEEP_TEST(test_race),		KEEP_TEST(test_many),
		KEEP_TEST(test_lying_keeper),
	};

	return cmocka_run_group_tests(tests, unit_memfd_setup, NULL);
}
