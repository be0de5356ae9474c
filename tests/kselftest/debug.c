// SPDX-License-Identifier: MIT
/*
 * Introspection for administrators: debugfs and tracepoints.
 */
#include <sys/vfs.h>
#include <linux/dma-buf.h>
#include <linux/magic.h>

#include "drm.h"
#include "peer.h"
#include "lease.h"
#include "t.h"

#define DEBUGFS "/sys/kernel/debug"
#define SUMMARY DEBUGFS "/tmesh/summary"
#define REGIONS DEBUGFS "/tmesh/regions"

static void need_filesystem(const char *path, long magic)
{
	struct statfs fs;

	if (statfs(path, &fs) || fs.f_type != magic)
		t_skip("nothing is mounted at %s", path);
}

static unsigned long long summary(const char *what)
{
	char value[40];

	REQUIRE(t_file_value(SUMMARY, what, value, sizeof(value)));
	return strtoull(value, NULL, 10);
}

TEST(permissions, "debugfs: only root reads, no process writes")
{
	static const char *const names[] = {SUMMARY, REGIONS};
	struct stat st;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		REQUIRE_OK(stat(names[i], &st));
		CHECK_EQ(st.st_mode, S_IFREG | 0400);
		CHECK_EQ(st.st_uid, 0);
	}
}

TEST(summary, "debugfs: summary counts what all users hold")
{
	unsigned long long regions, bytes, handles, pins, exports, revoked;
	int dev = t_dev(), fd, export, sv[2];
	pid_t pid;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	regions = summary("regions");
	bytes = summary("bytes");
	handles = summary("handles");
	pins = summary("pins");
	exports = summary("exports");
	revoked = summary("revoked");
	CHECK_EQ(summary("attachments"), 0);
	CHECK_EQ(summary("pinned_bytes"), 0);
	t_pair(sv);
	T_CHILD(pid) {
		t_become(1001, 1001, 0);
		REQUIRE_OK(t_create(t_dev(), 3 * PAGE, 0));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	fd = REQUIRE_OK(t_create(dev, PAGE + 1, 0));
	CHECK_EQ(summary("regions"), regions + 2);
	CHECK_EQ(summary("bytes"), bytes + 5 * PAGE);
	CHECK_EQ(summary("handles"), handles + 2);
	CHECK_EQ(summary("pins"), pins);
	export = REQUIRE_OK(t_export(fd, 0, 0, 0));
	CHECK_EQ(summary("exports"), exports + 1);
	t_say(sv[0]);
	t_wait(pid);
	CHECK_EQ(summary("regions"), regions + 1);
	REQUIRE_OK(t_revoke(fd));
	CHECK_EQ(summary("bytes"), bytes);
	CHECK_EQ(summary("revoked"), revoked + 1);
	close(export);
	close(fd);
	CHECK_EQ(summary("exports"), exports);
	CHECK_EQ(summary("revoked"), revoked);
	CHECK_EQ(summary("regions"), regions);
}

/* Read the line of a region without its line break. */
static void line_of(__u64 id, char *line, size_t room)
{
	FILE *f = fopen(REGIONS, "re");
	int found = 0;
	char next[400];

	REQUIRE(f);
	while (fgets(next, sizeof(next), f)) {
		if (strtoull(next, NULL, 10) != id)
			continue;
		next[strcspn(next, "\n")] = 0;
		snprintf(line, room, "%s", next);
		found++;
	}
	fclose(f);
	REQUIRE(found == 1);
}

TEST(line, "debugfs: regions has a line of a region, which follows it")
{
	struct tmesh_create c = {
		.size = sizeof(c),
		.bytes = 10000,
		.mode = 0640,
		.label = "two words",
	};
	int dev = t_dev(), writable;
	char line[400], want[400];
	__u64 id;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	id = c.id;
	REQUIRE_OK(t_derive(c.fd, R_READ, 0));
	REQUIRE_OK(t_export(c.fd, 0, 0, 0));
	writable = REQUIRE_OK(t_export(c.fd, 0, 0, TMESH_EXPORT_WRITE));
	line_of(id, line, sizeof(line));
	snprintf(want, sizeof(want),
		 "%llu 10000 12288 0 0 0 0640 live 2 0 2 0 1 0 %llu two\\040words", id,
		 t_info(c.fd).cgroup_id);
	if (!CHECK(!strcmp(line, want)))
		t_note("%s", line);

	close(writable);
	REQUIRE_OK(t_seal(c.fd));
	REQUIRE_OK(t_derive(c.fd, R_READ, TMESH_DERIVE_PIN));
	line_of(id, line, sizeof(line));
	snprintf(want, sizeof(want),
		 "%llu 10000 12288 0 0 0 0640 sealed 3 1 1 0 0 0 %llu two\\040words", id,
		 t_info(c.fd).cgroup_id);
	if (!CHECK(!strcmp(line, want)))
		t_note("%s", line);
}

TEST(all_lines, "debugfs: regions shows each of many regions once, in order of id")
{
	enum {
		MANY = 300
	};
	static __u64 ids[MANY];
	int dev = t_dev(), n = 0;
	char line[400];
	FILE *f;

	need_filesystem(DEBUGFS, DEBUGFS_MAGIC);
	for (int i = 0; i < MANY; i++)
		ids[i] = t_info(REQUIRE_OK(t_create(dev, PAGE, 0))).id;
	f = fopen(REGIONS, "re");
	REQUIRE(f && fgets(line, sizeof(line), f));
	CHECK(!strncmp(line, "id bytes ", 9));
	while (fgets(line, sizeof(line), f)) {
		__u64 id = strtoull(line, NULL, 10);

		if (id < ids[0])
			continue;
		if (n < MANY)
			CHECK_EQ(id, ids[n]);
		n++;
	}
	fclose(f);
	CHECK_EQ(n, MANY);
}

/* Tracepoints, in a trace of our own */

#define TRACEFS "/sys/kernel/tracing"
#define TRACE TRACEFS "/instances/tmesh-test"

/* Count the lines of a trace that end in a text. */
static int times(const char *path, const char *what)
{
	FILE *f = fopen(path, "re");
	char line[400];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, what) != NULL;
	if (f)
		fclose(f);
	return n;
}

/* Count the times that a process has passed a probe for CAP_SYS_ADMIN. */
static int probed(pid_t pid, const char *probe)
{
	FILE *f = fopen(TRACE "/trace", "re");
	char line[400], who[24];
	int n = 0;

	snprintf(who, sizeof(who), "-%d ", pid);
	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, who) && strstr(line, probe) && strstr(line, "cap=21");
	if (f)
		fclose(f);
	return n;
}

struct event {
	const char *name, *more;
	int times; /* 0: at least once */
};

static void trace_begin(void)
{
	need_filesystem(TRACEFS, TRACEFS_MAGIC);
	REQUIRE_OK(mkdir(TRACE, 0700));
	/*
	 * Recording the names of tasks enables tracepoints of the scheduler. That patches code
	 * which the other CPU is running, and emulators do not always survive this.
	 */
	CHECK(t_write_file(TRACE "/trace_options", "norecord-cmd"));
	CHECK(t_write_file(TRACE "/events/tmesh/enable", "1"));
}

static void trace_end(__u64 id, const struct event *wants, size_t n)
{
	CHECK(t_write_file(TRACE "/events/tmesh/enable", "0"));
	for (size_t i = 0; i < n; i++) {
		char want[120];
		int found;

		snprintf(want, sizeof(want), "tmesh_%s: id=%llu%s", wants[i].name, id,
			 wants[i].more);
		found = times(TRACE "/trace", want);
		if (!CHECK(wants[i].times ? found == wants[i].times : found > 0))
			t_note("%d times: %s", found, want);
	}
	CHECK_OK(rmdir(TRACE));
}

#define PROBES TRACEFS "/kprobe_events"

TEST(audit, "lists do not ask for a capability in a way that audit logs tell of")
{
	pid_t pid;

	need_filesystem(TRACEFS, TRACEFS_MAGIC);
	if (access(PROBES, F_OK))
		t_skip("this kernel has no kprobes");
	REQUIRE_OK(mkdir(TRACE, 0700));
	CHECK(t_write_file(TRACE "/trace_options", "norecord-cmd"));
	CHECK(t_write_file(PROBES, "p:tmesh_test/told capable cap=%di:s32\n"
				   "p:tmesh_test/quiet ns_capable_noaudit cap=%si:s32\n"));
	CHECK(t_write_file(TRACE "/events/tmesh_test/enable", "1"));
	T_CHILD(pid) {
		struct tmesh_kept_list k = {.size = sizeof(k)};

		t_become(1001, 1001, 0);
		CHECK_EQ(t_listed(t_dev()), 0);
		CHECK_OK(ioctl(t_dev(), TMESH_KEPT_LIST, &k));
	}
	t_wait(pid);
	CHECK(t_write_file(TRACE "/events/tmesh_test/enable", "0"));
	CHECK_EQ(probed(pid, "told: "), 0);
	CHECK(probed(pid, "quiet: ") >= 2);
	CHECK_OK(rmdir(TRACE));
	CHECK(t_write_file(PROBES, "\n"));
}

TEST(traces, "each tracepoint fires once for what it tells of")
{
	static const struct event wants[] = {
		{"create", " bytes=10000 huge_bytes=0 backing=1\n", 1},
		{"open", " rights=0x3 pinning=0\n", 1},
		{"derive", " rights=0x1 pinning=1\n", 1},
		{"close", "\n", 3},
		{"map", " offset=4096 bytes=8192 writable=0\n", 1},
		{"fault", " offset=4096 bytes=8192 gone=0\n", 1},
		{"fault", " offset=8192 bytes=0 gone=1\n", 1},
		{"signal", " value=7\n", 1},
		{"wait", " value=7 reached=7 result=0\n", 1},
		{"export", " offset=4096 bytes=8192 writable=1\n", 1},
		{"seal", " result=-16\n", 1},
		{"seal", " result=0\n", 1},
		{"revoke", "\n", 1},
		{"drain", " pinned_bytes=0\n", 1},
		{"free", "\n", 1},
	};
	struct tmesh_signal s = {.size = sizeof(s), .value = 7};
	struct tmesh_wait w = {.size = sizeof(w), .value = 7};
	__u8 token[TMESH_TOKEN_BYTES];
	int dev = t_dev(), fd, second, export;
	__u64 id;
	char *p;

	trace_begin();
	CHECK_OK(fd = t_create(dev, 10000, 0));
	id = t_info(fd).id;
	CHECK_OK(t_token(fd, R_READ | R_WRITE, token));
	CHECK_OK(second = t_open(dev, token, R_READ | R_WRITE, 0));
	close(second);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	CHECK(p != MAP_FAILED && !t_read(p));
	CHECK_OK(ioctl(fd, TMESH_SIGNAL, &s));
	CHECK_OK(ioctl(fd, TMESH_WAIT, &w));
	CHECK_OK(export = t_export(fd, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_seal(fd), EBUSY);
	close(export);
	CHECK_OK(t_seal(fd));
	CHECK_OK(second = t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	close(second);
	CHECK_OK(t_revoke(fd));
	CHECK_EQ(t_read(p + PAGE), SIGBUS);
	munmap(p, 2 * PAGE);
	close(fd);
	trace_end(id, wants, ARRAY_SIZE(wants));
}

TEST(traces_lease, "the tracepoints of leases and of zeros after them")
{
	static const struct event wants[] = {
		{"lease", " period_ns=10000000 process=0\n", 1},
		{"lapse", " period_ns=10000000 process=0\n", 1},
		{"fault", " offset=0 bytes=4096 gone=1\n", 1},
	};
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	char *p = t_map(fd, PAGE, RW);
	struct lease l;

	trace_begin();
	CHECK_OK(policy(fd, TMESH_POLICY_ZERO));
	l = lease_put(fd, TMESH_LEASE_MIN_NS);
	await_end(&l, fd);
	CHECK_EQ(t_read(p), 0);
	trace_end(t_info(fd).id, wants, ARRAY_SIZE(wants));
}

TEST(traces_device, "the tracepoints of devices, and what they keep of a revoked region")
{
	static const struct event wants[] = {
		{"attach", " device=vgem", 1},
		{"dma_map", " device=vgem offset=4096 bytes=8192 direction=0\n", 1},
		{"drain", " pinned_bytes=8192\n", 0},
		{"dma_unmap", " device=vgem offset=4096 bytes=8192 direction=0\n", 1},
		{"detach", " device=vgem", 1},
		{"drain", " pinned_bytes=0\n", 1},
	};
	int vgem = open_vgem(), fd = REQUIRE_OK(t_create(t_dev(), 10000, TMESH_CREATE_NOHUGE));
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = 60000000000,
	};
	int export, gem;

	if (t_kernel_at_least(6, 13))
		t_skip("this kernel's vgem maps nothing");
	trace_begin();
	CHECK_OK(export = t_export(fd, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	CHECK_OK(gem = vgem_import(vgem, export));
	CHECK_OK(t_revoke(fd));
	CHECK_OK(vgem_close(vgem, gem));
	close(export);
	CHECK_OK(ioctl(fd, TMESH_REVOKE, &r));
	trace_end(t_info(fd).id, wants, ARRAY_SIZE(wants));
}

TEST(traces_view, "the tracepoint of views")
{
	static const struct event wants[] = {
		{"create", " bytes=12288 huge_bytes=0 backing=6\n", 1},
		{"gather", " bytes=12288 parts=2 rights=0x1\n", 1},
	};
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, 4 * PAGE, 0)), view;
	struct tmesh_extent parts[] = {t_extent(fd, 3, 1), t_extent(fd, 0, 2)};

	trace_begin();
	CHECK_OK(view = t_gather(dev, parts, 2, R_READ));
	trace_end(t_info(view).id, wants, ARRAY_SIZE(wants));
}

/* Count the times that a process has begun to wait for a driver's fence. */
static int waits(pid_t pid)
{
	char line[400], who[24];
	FILE *f = fopen(TRACE "/trace", "re");
	int n = 0;

	snprintf(who, sizeof(who), "-%d ", pid);
	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, who) && strstr(line, ": dma_fence_wait_start: ");
	if (f)
		fclose(f);
	return n;
}

/* Put a fence of vgem on a buffer, or on an export of tmesh. vgem signals it on request. */
static __u32 fence_on(int vgem, int gem)
{
	struct vgem_fence_attach a = {.handle = gem, .flags = VGEM_FENCE_WRITE};

	REQUIRE_OK(ioctl(vgem, VGEM_FENCE_ATTACH, &a));
	return a.out_fence;
}

TEST(waits_once, "a revocation waits for the work of an export once, whatever comes to it later")
{
	int vgem = open_vgem(), other = open_vgem(), fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	int export = REQUIRE_OK(t_export(fd, 0, 0, TMESH_EXPORT_WRITE)), buffer, sv[2];
	int idle = REQUIRE_OK(t_export(fd, 0, 0, 0));
	struct dma_buf_export_sync_file out = {.flags = DMA_BUF_SYNC_RW};
	struct dma_buf_import_sync_file in = {.flags = DMA_BUF_SYNC_WRITE};
	struct vgem_fence_signal first = {0}, second = {0};
	__u32 gem = vgem_create(other, 4 * MB);
	siginfo_t ended = {0};
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		t_hear(sv[1]);
		CHECK_OK(t_revoke(fd));
	}
	trace_begin();
	CHECK(t_write_file(TRACE "/events/dma_fence/dma_fence_wait_start/enable", "1"));
	buffer = vgem_export(other, gem, 0);
	second.fence = fence_on(other, gem);
	REQUIRE_OK(ioctl(buffer, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &out));
	/* vgem signals it by itself after ten seconds. */
	first.fence = fence_on(vgem, REQUIRE_OK(vgem_import(vgem, export)));
	t_say(sv[0]);
	while (!waits(pid) && !waitid(P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT) &&
	       !ended.si_pid)
		usleep(10000);
	in.fd = out.fd;
	CHECK_OK(ioctl(export, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in));
	CHECK_OK(ioctl(vgem, VGEM_FENCE_SIGNAL, &first));
	t_wait(pid);
	CHECK_EQ(waits(pid), 1);
	CHECK_OK(ioctl(other, VGEM_FENCE_SIGNAL, &second));
	close(idle);
	CHECK(t_write_file(TRACE "/events/dma_fence/dma_fence_wait_start/enable", "0"));
	trace_end(t_info(fd).id, NULL, 0);
}

static int drains(__u64 id)
{
	char what[60];

	snprintf(what, sizeof(what), "tmesh_drain: id=%llu ", id);
	return times(TRACE "/trace", what);
}

/* Return the time of the module's n-th look, in seconds of the trace. */
static double look_at(__u64 id, int n)
{
	FILE *f = fopen(TRACE "/trace", "re");
	char line[400], what[60], *at = NULL;
	double when = 0;

	snprintf(what, sizeof(what), ": tmesh_drain: id=%llu ", id);
	while (n && f && fgets(line, sizeof(line), f)) {
		at = strstr(line, what);
		n -= at != NULL;
	}
	if (at && !n) {
		*at = 0;
		when = strtod(strrchr(line, ' '), NULL);
	}
	if (f)
		fclose(f);
	return when;
}

static void await_looks(__u64 id, int n)
{
	for (int i = 0; i < 6000 && drains(id) < n; i++)
		usleep(20000);
	CHECK(drains(id) >= n);
}

TEST(drain_sleeps, "memory that only devices have is not looked at until one lets go")
{
	int fd = REQUIRE_OK(t_create(t_dev(), 4 * PAGE, TMESH_CREATE_NOHUGE)), pipes[2], looks;
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = 60000000000,
	};
	int peer = open_peer(), export = REQUIRE_OK(t_export(fd, 0, 2 * PAGE, TMESH_EXPORT_WRITE));
	unsigned char *p = t_map(fd, 4 * PAGE, PROT_READ | PROT_WRITE);
	__u64 id = t_info(fd).id;
	struct iovec io = {p + 3 * PAGE, PAGE};

	REQUIRE(p != MAP_FAILED);
	trace_begin();
	CHECK_OK(peer_import(peer, export, PEER_WRITES));
	CHECK_OK(t_revoke(fd));
	looks = drains(id);
	CHECK(looks > 0);
	/* By now it would have looked six times without the growing delay. */
	usleep(700000);
	CHECK_EQ(drains(id), looks);
	peer_let_go(peer);
	CHECK_OK(ioctl(fd, TMESH_REVOKE, &r));
	CHECK_EQ(r.pinned_bytes, 0);
	close(export);
	close(fd);

	/*
	 * The end of a pin gives no notification: the module looks again with a delay that doubles
	 * each time.
	 */
	munmap(p, 4 * PAGE);
	fd = REQUIRE_OK(t_create(t_dev(), 4 * PAGE, TMESH_CREATE_NOHUGE));
	io.iov_base = t_map(fd, PAGE, PROT_READ | PROT_WRITE);
	id = t_info(fd).id;
	REQUIRE_OK(pipe(pipes));
	REQUIRE(!t_write(io.iov_base, 1) && vmsplice(pipes[1], &io, 1, 0) == (ssize_t)PAGE);
	CHECK_OK(t_revoke(fd));
	looks = drains(id);
	await_looks(id, looks + 6);
	CHECK(look_at(id, looks + 6) - look_at(id, looks + 5) > 0.2);
	close(pipes[0]);
	close(pipes[1]);
	CHECK_OK(ioctl(fd, TMESH_REVOKE, &r));
	CHECK(t_write_file(TRACE "/events/tmesh/enable", "0"));
	CHECK_OK(rmdir(TRACE));
}
