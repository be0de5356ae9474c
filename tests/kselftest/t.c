// SPDX-License-Identifier: MIT
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <dirent.h>
#include <linux/dma-buf.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include "t.h"

#define CASES_MAX 64
/* A test that takes longer hangs, and so does one that waits longer for a message. */
#define CASE_SECONDS 1200
#define WORD_SECONDS 300
/* The longest time until objects of a dead process are gone: sockets and rings close late. */
#define SETTLE_SECONDS 120

enum {
	EXIT_FAILED = 1,
	EXIT_SKIPPED = 4
};

static struct {
	const char *title;
	void (*fn)(void);
} cases[CASES_MAX];
static int ncases;

/* The result that a test and its children report to the process that runs the tests */
struct verdict {
	int failed;
	char skipped[200];
};

static struct verdict alone, *verdict = &alone;

void t_add(const char *title, void (*fn)(void))
{
	if (ncases == CASES_MAX)
		abort();
	cases[ncases].title = title;
	cases[ncases++].fn = fn;
}

void t_note(const char *fmt, ...)
{
	char line[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	printf("# %s\n", line);
	fflush(stdout);
}

static bool fail(const char *file, int line, const char *what, const char *but)
{
	__atomic_add_fetch(&verdict->failed, 1, __ATOMIC_RELAXED);
	t_note("%s:%d: %s: %s", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, what,
	       but);
	return false;
}

bool t_check(bool ok, const char *what, const char *file, int line)
{
	return ok || fail(file, line, what, "is not so");
}

bool t_check_eq(long long got, long long want, const char *what, const char *file, int line)
{
	char but[80];

	if (got == want)
		return true;
	snprintf(but, sizeof(but), "is %lld (%#llx), not %lld", got, got, want);
	return fail(file, line, what, but);
}

bool t_check_ok(long ret, const char *what, const char *file, int line)
{
	return ret != -1 || fail(file, line, what, strerrorname_np(errno));
}

bool t_check_err(long ret, int want, const char *what, const char *file, int line)
{
	char but[80];

	if (ret == -1 && errno == want)
		return true;
	snprintf(but, sizeof(but), "gives %s, not %s",
		 ret == -1 ? strerrorname_np(errno) : "success", strerrorname_np(want));
	return fail(file, line, what, but);
}

void t_give_up(const char *but, const char *what, const char *file, int line)
{
	fail(file, line, what, but);
	exit(EXIT_FAILED);
}

void t_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(verdict->skipped, sizeof(verdict->skipped), fmt, ap);
	va_end(ap);
	exit(EXIT_SKIPPED);
}

bool t_failed(void)
{
	return verdict->failed;
}

static bool length_is(const char *word)
{
	const char *length = getenv("TMESH_TEST_LENGTH");

	return length && !strcmp(length, word);
}

bool t_full(void)
{
	return length_is("full");
}

long t_length(long some, long full)
{
	return t_full() ? full : length_is("brief") ? (some + 2) / 3 : some;
}

/* Count the regions that are left, as root. Regions end a moment after their holders. */
static int leftovers(int before)
{
	double until = t_now() + SETTLE_SECONDS;
	int dev = t_dev(), now;

	while ((now = t_listed(dev)) > before && t_now() < until)
		usleep(20000);
	close(dev);
	return now - before;
}

/* Drop kept regions, so that the next test does not see them. */
void t_drop_kept(void)
{
	struct tmesh_kept k;
	struct tmesh_kept_list l = {
		.size = sizeof(l),
		.entries = (__u64)(unsigned long)&k,
		.entry_bytes = sizeof(k),
		.count = 1,
	};
	int dev = t_dev();

	while (!ioctl(dev, TMESH_KEPT_LIST, &l) && l.count) {
		struct tmesh_kept_drop d = {.size = sizeof(d), .flags = TMESH_KEPT_ID, .id = k.id};

		ioctl(dev, TMESH_KEPT_DROP, &d);
	}
	close(dev);
}

/*
 * Global settings that tests may change: limits, and the mode of the device, which tests open as
 * several users. The parent process restores both, because a test may be killed.
 */
static const char *const limits[] = {
	"max_bytes_per_uid",
	"max_regions_per_uid",
	"max_handles_per_uid",
	"max_pins_per_uid",
	"max_kept_bytes_per_uid",
	"max_kept_names_per_uid",
	"max_files_per_uid",
	"max_foreign_files_per_uid",
	"max_bytes_per_ipc_ns",
	"max_regions_per_ipc_ns",
	"max_handles_per_ipc_ns",
	"max_pins_per_ipc_ns",
	"max_kept_bytes_per_ipc_ns",
	"max_kept_names_per_ipc_ns",
	"max_files_per_ipc_ns",
	"max_bytes",
	"max_regions",
	"max_handles",
	"max_pins",
	"max_kept_bytes",
	"max_kept_names",
	"max_files",
};

static struct {
	unsigned long long limits[ARRAY_SIZE(limits)];
	mode_t mode;
} settings;

static void save_settings(void)
{
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
		settings.limits[i] = t_limit(limits[i]);
	REQUIRE_OK(stat("/dev/tmesh", &st));
	settings.mode = st.st_mode & 07777;
}

static void restore_settings(mode_t mode)
{
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
		if (t_limit(limits[i]) != settings.limits[i])
			t_set_limit(limits[i], settings.limits[i]);
	REQUIRE_OK(chmod("/dev/tmesh", mode));
}

static bool run_case(int i, int before)
{
	bool good;
	int status = 0, left;
	pid_t pid;

	memset(verdict, 0, sizeof(*verdict));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		alarm(CASE_SECONDS);
		cases[i].fn();
		exit(verdict->failed ? EXIT_FAILED : EXIT_SUCCESS);
	}
	setpgid(pid, pid);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		exit(EXIT_FAILED);
	kill(-pid, SIGKILL);
	restore_settings(0666);
	if (WIFSIGNALED(status))
		t_note("%s by signal %d", cases[i].title, WTERMSIG(status));

	left = leftovers(before);
	if (left > 0)
		t_note("%s: left %d regions behind", cases[i].title, left);
	if (left > 0)
		t_drop_kept();
	good = left <= 0 && !verdict->failed && WIFEXITED(status) &&
	       WEXITSTATUS(status) != EXIT_FAILED;
	printf("%s %d - %s%s%s\n", good ? "ok" : "not ok", i + 1, cases[i].title,
	       verdict->skipped[0] ? " # SKIP " : "", verdict->skipped);
	fflush(stdout);
	return good;
}

int t_main(void)
{
	int before, dev = open("/dev/tmesh", O_RDWR | O_CLOEXEC);
	const char *only = getenv("TMESH_CASE");
	bool good = true;

	if (dev < 0) {
		printf("1..0 # SKIP /dev/tmesh: %s\n", strerror(errno));
		return EXIT_SKIPPED;
	}
	before = t_listed(dev);
	close(dev);
	verdict = mmap(NULL, sizeof(*verdict), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	if (verdict == MAP_FAILED)
		return EXIT_FAILED;
	t_catch_faults();
	save_settings();
	restore_settings(0666);
	printf("TAP version 13\n1..%d\n", ncases);
	for (int i = 0; i < ncases; i++)
		if (!only || atoi(only) == i + 1)
			good &= run_case(i, before);
	restore_settings(settings.mode);
	return good ? EXIT_SUCCESS : EXIT_FAILED;
}

/* A program with arguments of its own has its own main(). */
__attribute__((weak)) int main(void)
{
	return t_main();
}

pid_t t_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	REQUIRE(pid >= 0);
	return pid;
}

void t_exit(void)
{
	fflush(stdout);
	_exit(0);
}

void t_wait(pid_t pid)
{
	int status;

	REQUIRE(waitpid(pid, &status, 0) == pid);
	if (WIFSIGNALED(status))
		t_note("child ended by signal %d", WTERMSIG(status));
	CHECK(WIFEXITED(status));
}

bool t_alone(void)
{
	pid_t pid = t_fork();

	if (pid)
		t_wait(pid);
	return !pid;
}

void t_become(uid_t uid, gid_t gid, gid_t extra)
{
	REQUIRE_OK(setgroups(extra ? 1 : 0, &extra));
	REQUIRE_OK(setresgid(gid, gid, gid));
	REQUIRE_OK(setresuid(uid, uid, uid));
	/* Otherwise /proc/self would still belong to root. */
	REQUIRE_OK(prctl(PR_SET_DUMPABLE, 1));
}

void t_pair(int sv[2])
{
	struct timeval patience = {.tv_sec = WORD_SECONDS};

	REQUIRE_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv));
	for (int i = 0; i < 2; i++)
		REQUIRE_OK(setsockopt(sv[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
}

void t_say(int sock)
{
	REQUIRE(send(sock, "", 1, MSG_NOSIGNAL) == 1);
}

void t_hear(int sock)
{
	char c;

	REQUIRE(recv(sock, &c, 1, 0) == 1);
}

void t_send_fd(int sock, int fd)
{
	char c = 0, room[CMSG_SPACE(sizeof(fd))] = {0};
	struct iovec io = {&c, 1};
	struct msghdr msg = {
		.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = room,
		.msg_controllen = sizeof(room),
	};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	REQUIRE(sendmsg(sock, &msg, MSG_NOSIGNAL) == 1);
}

int t_recv_fd(int sock)
{
	char c, room[CMSG_SPACE(sizeof(int))];
	struct iovec io = {&c, 1};
	struct msghdr msg = {
		.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = room,
		.msg_controllen = sizeof(room),
	};
	struct cmsghdr *cmsg;
	int fd;

	REQUIRE(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == 1);
	cmsg = CMSG_FIRSTHDR(&msg);
	REQUIRE(cmsg && cmsg->cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(cmsg), sizeof(fd));
	return fd;
}

static __thread sigjmp_buf after_fault;
static __thread volatile sig_atomic_t expecting_fault;

static void on_fault(int sig)
{
	if (!expecting_fault) {
		signal(sig, SIG_DFL);
		return;
	}
	expecting_fault = 0;
	siglongjmp(after_fault, sig);
}

void t_catch_faults(void)
{
	struct sigaction sa = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};

	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
}

int t_read(const volatile void *p)
{
	int sig = sigsetjmp(after_fault, 0);

	if (!sig) {
		expecting_fault = 1;
		(void)*(const volatile unsigned char *)p;
	}
	expecting_fault = 0;
	return sig;
}

int t_write(volatile void *p, unsigned char value)
{
	int sig = sigsetjmp(after_fault, 0);

	if (!sig) {
		expecting_fault = 1;
		*(volatile unsigned char *)p = value;
	}
	expecting_fault = 0;
	return sig;
}

int t_count_fds(void)
{
	struct stat st;
	DIR *dir;
	int n = 0;

	/* Since 6.2 the size of the directory is the number, so no inodes have to be made. */
	REQUIRE_OK(stat("/proc/self/fd", &st));
	if (st.st_size)
		return st.st_size;
	dir = opendir("/proc/self/fd");
	REQUIRE(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

long t_smaps(const void *p, const char *field)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long start, end, at = (unsigned long)p;
	size_t len = strlen(field);
	bool inside = false;
	char line[512];
	long kb = -1;

	REQUIRE(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= at && at < end;
		else if (inside && !strncmp(line, field, len) && line[len] == ':')
			kb = atol(line + len + 1);
	}
	fclose(f);
	return kb;
}

bool t_file_value(const char *path, const char *key, char *value, size_t room)
{
	FILE *f = fopen(path, "re");
	size_t len = strlen(key);
	char line[512];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *at = line + len;

		if (strncmp(line, key, len) || !strchr(": \t", *at))
			continue;
		at += strspn(at, ": \t");
		at[strcspn(at, "\n")] = 0;
		snprintf(value, room, "%s", at);
		found = true;
	}
	if (f)
		fclose(f);
	return found;
}

/*
 * Count the kB mapped by PMDs. Touch the memory first: on 6.1 smaps leaves out PMDs that NUMA
 * balancing has just marked.
 */
long t_pmd_mapped(const volatile void *p, size_t bytes)
{
	long kb = 0;

	for (int tries = 0; tries < 5 && kb != (long)(bytes / 1024); tries++) {
		for (size_t i = 0; i < bytes; i += HUGE)
			(void)((const volatile unsigned char *)p)[i];
		kb = t_smaps((const void *)p, "FilePmdMapped");
	}
	return kb;
}

long t_meminfo(const char *field)
{
	char value[64];

	REQUIRE(t_file_value("/proc/meminfo", field, value, sizeof(value)));
	return atol(value);
}

bool t_write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text);
}

bool t_read_file(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, room - 1);
	close(fd);
	if (n < 0)
		return false;
	text[n] = 0;
	return true;
}

bool t_kernel_at_least(int major, int minor)
{
	struct utsname u;
	int a, b;

	REQUIRE(!uname(&u) && sscanf(u.release, "%d.%d", &a, &b) == 2);
	return a > major || (a == major && b >= minor);
}

double t_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

unsigned int t_random(unsigned int *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

int t_dev(void)
{
	return REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC));
}

struct tmesh_caps_query t_caps(int dev)
{
	struct tmesh_caps_query q = {.size = sizeof(q)};

	REQUIRE_OK(ioctl(dev, TMESH_CAPS, &q));
	return q;
}

bool t_has_huge(int dev)
{
	return t_caps(dev).features & TMESH_FEATURE_HUGE;
}

int t_create(int dev, __u64 bytes, __u32 flags)
{
	struct tmesh_create c = {.size = sizeof(c), .flags = flags, .bytes = bytes};

	return ioctl(dev, TMESH_CREATE, &c) ? -1 : c.fd;
}

int t_derive(int handle, __u32 rights, __u32 flags)
{
	struct tmesh_derive d = {.size = sizeof(d), .flags = flags, .rights = rights};

	return ioctl(handle, TMESH_DERIVE, &d) ? -1 : d.fd;
}

int t_token(int handle, __u32 rights, __u8 token[TMESH_TOKEN_BYTES])
{
	struct tmesh_token t = {.size = sizeof(t), .rights = rights};

	if (ioctl(handle, TMESH_TOKEN, &t))
		return -1;
	memcpy(token, t.token, sizeof(t.token));
	return 0;
}

int t_open(int dev, const __u8 token[TMESH_TOKEN_BYTES], __u32 rights, __u32 flags)
{
	struct tmesh_open o = {.size = sizeof(o), .flags = flags, .rights = rights};

	memcpy(o.token, token, sizeof(o.token));
	return ioctl(dev, TMESH_OPEN, &o) ? -1 : o.fd;
}

int t_seal(int handle)
{
	struct tmesh_seal s = {.size = sizeof(s)};

	return ioctl(handle, TMESH_SEAL, &s);
}

int t_revoke(int handle)
{
	struct tmesh_revoke r = {.size = sizeof(r)};

	return ioctl(handle, TMESH_REVOKE, &r);
}

int t_export(int handle, __u64 offset, __u64 bytes, __u32 flags)
{
	struct tmesh_export e = {
		.size = sizeof(e),
		.flags = flags,
		.offset = offset,
		.bytes = bytes,
	};

	return ioctl(handle, TMESH_EXPORT, &e) ? -1 : e.fd;
}

int t_sync_cpu(int dmabuf, __u64 flags)
{
	struct dma_buf_sync s = {.flags = flags};

	return ioctl(dmabuf, DMA_BUF_IOCTL_SYNC, &s);
}

struct tmesh_extent t_extent(int handle, __u64 first, __u64 pages)
{
	return (struct tmesh_extent){
		.handle = handle,
		.offset = first * PAGE,
		.bytes = pages * PAGE,
	};
}

int t_gather(int dev, const struct tmesh_extent *extents, __u32 count, __u32 rights)
{
	struct tmesh_gather g = {
		.size = sizeof(g),
		.extents = (__u64)(unsigned long)extents,
		.count = count,
		.rights = rights,
	};

	return ioctl(dev, TMESH_GATHER, &g) ? -1 : g.fd;
}

struct tmesh_info t_info(int handle)
{
	struct tmesh_info i = {.size = sizeof(i)};

	REQUIRE_OK(ioctl(handle, TMESH_INFO, &i));
	return i;
}

int t_listed(int dev)
{
	struct tmesh_info some[64] = {0};
	struct tmesh_list l = {.more = 1};
	int n = 0;

	while (l.more) {
		__u64 cursor = l.cursor;

		l = (struct tmesh_list){
			.size = sizeof(l),
			.cursor = cursor,
			.entries = (__u64)(unsigned long)some,
			.entry_bytes = sizeof(some[0]),
			.count = ARRAY_SIZE(some),
		};
		REQUIRE_OK(ioctl(dev, TMESH_LIST, &l));
		n += l.count;
	}
	return n;
}

void *t_map(int fd, size_t bytes, int prot)
{
	return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
}

unsigned long long t_limit(const char *name)
{
	char path[100], text[40];

	snprintf(path, sizeof(path), "/proc/sys/dev/tmesh/%s", name);
	REQUIRE(t_read_file(path, text, sizeof(text)));
	return strtoull(text, NULL, 10);
}

void t_set_limit(const char *name, unsigned long long value)
{
	char path[100], text[40];

	snprintf(path, sizeof(path), "/proc/sys/dev/tmesh/%s", name);
	snprintf(text, sizeof(text), "%llu\n", value);
	REQUIRE(t_write_file(path, text));
}
