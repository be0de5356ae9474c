// SPDX-License-Identifier: MIT
/*
 * Attacks by other users: the times of close, exit, lease, open and of a lease's end, undisturbed
 * and under attack. The times are printed, not checked. An attacker that hangs a victim is a
 * failure.
 */
#include <sys/epoll.h>

#include "cgroup.h"
#include "lease.h"
#include "peer.h"

#define ATTACKER 1001
#define VICTIM 1002
#define GROUP 1500
#define MOST 100
#define HANDLES 2000
#define BOUND 4096 /* the most leases of one user that are bound to one process */
#define WATCHES 20000

/* A victim that has not ended by then hangs. */
#define PATIENCE_MS 100000

/* Times of one action, in seconds. */
struct times {
	double all[MOST];
	int n;
};

/* Memory that the processes of a test share. */
static struct shared {
	struct times close, exit, lease, open, revoke, end;
	int inside;
} * shared;

static struct shared *share(void)
{
	void *p = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void tell(const char *attack, const char *action, struct times *t)
{
	if (!t->n)
		return;
	qsort(t->all, t->n, sizeof(t->all[0]), compare);
	t_note("%-12s %-6s median %9.3f ms, maximum %9.3f ms of %d", attack, action,
	       t->all[t->n / 2] * 1000, t->all[t->n - 1] * 1000, t->n);
}

static void tell_all(const char *attack)
{
	tell(attack, "close", &shared->close);
	tell(attack, "exit", &shared->exit);
	tell(attack, "lease", &shared->lease);
	tell(attack, "open", &shared->open);
	tell(attack, "revoke", &shared->revoke);
	tell(attack, "end", &shared->end);
	memset(shared, 0, sizeof(*shared));
}

static void took(struct times *t, double since)
{
	t->all[t->n++ % MOST] = t_now() - since;
}

static int rounds(void)
{
	return t_length(10, MOST);
}

/* A region of the attacker's that the victim may open. */
struct stage {
	int handle;
	__u8 token[TMESH_TOKEN_BYTES];
};

/* Act as a victim, with a region of the attacker. */
static void act(const struct stage *stage)
{
	int dev, fd, status;
	double since;
	pid_t pid;

	t_become(VICTIM, GROUP, 0);
	dev = t_dev();
	for (int i = 0; i < rounds(); i++) {
		fd = REQUIRE_OK(t_derive(stage->handle, R_READ, 0));
		since = t_now();
		close(REQUIRE_OK(lease_call(fd, 0, 60000 * MS, 0, NULL)));
		took(&shared->lease, since);
		since = t_now();
		close(fd);
		took(&shared->close, since);
		pid = t_fork();
		if (!pid) {
			REQUIRE_OK(t_derive(stage->handle, R_READ, 0));
			_exit(0);
		}
		since = t_now();
		REQUIRE(waitpid(pid, &status, 0) == pid);
		took(&shared->exit, since);
		since = t_now();
		fd = REQUIRE_OK(t_open(dev, stage->token, R_READ, 0));
		took(&shared->open, since);
		close(fd);
	}
}

/* Check that a victim ends. */
static void victim_ends(pid_t pid)
{
	struct pollfd p = {.fd = pidfd_of(pid), .events = POLLIN};

	CHECK(poll(&p, 1, PATIENCE_MS) == 1);
	close(p.fd);
}

static void watch_victim(const struct stage *stage, const char *attack, pid_t attacker)
{
	pid_t pid;

	T_CHILD(pid)
		act(stage);
	victim_ends(pid);
	if (attacker > 0)
		kill_and_reap(attacker);
	t_wait(pid);
	tell_all(attack);
}

static struct stage stage_new(int dev)
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .mode = 0660};
	struct stage stage;

	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	stage.handle = c.fd;
	REQUIRE_OK(t_token(stage.handle, R_READ, stage.token));
	return stage;
}

/* List the holders of a region for ever. Above memory.high each call waits for memory. */
static void ask(int handle)
{
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entry_bytes = sizeof(struct tmesh_holder),
		.count = 1 << 20,
	};
	void *room = mmap(NULL, (size_t)h.count * h.entry_bytes, RW,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	REQUIRE(room != MAP_FAILED);
	h.entries = (unsigned long)room;
	while (true) {
		__atomic_store_n(&shared->inside, 1, __ATOMIC_SEQ_CST);
		ioctl(handle, TMESH_HOLDERS, &h);
		h.count = 1 << 20;
	}
}

static void more_files(void)
{
	struct rlimit files = {1 << 16, 1 << 16};

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
}

/* Fork a process above memory.high that lists the holders of a region with many handles. */
static pid_t asker(const struct stage *stage)
{
	pid_t pid;

	cgroup_make(CGROUP, "max");
	pid = t_fork();
	if (pid) {
		while (!__atomic_load_n(&shared->inside, __ATOMIC_SEQ_CST))
			usleep(1000);
		/* By now it is in this call or in the next. */
		usleep(100000);
		return pid;
	}
	cgroup_enter(CGROUP, "max");
	for (int i = 0; i < HANDLES; i++)
		REQUIRE_OK(t_derive(stage->handle, R_READ, 0));
	cgroup_write(CGROUP, "memory.high", "1");
	t_become(ATTACKER, GROUP, 0);
	ask(stage->handle);
	_exit(0);
}

/* Let a child, the attacker, make a region and send its handle. */
static struct stage stage_of_attacker(void)
{
	struct stage stage;
	int sv[2];
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		t_become(ATTACKER, GROUP, 0);
		stage = stage_new(t_dev());
		t_send_fd(sv[1], stage.handle);
		REQUIRE(write(sv[1], stage.token, sizeof(stage.token)) == sizeof(stage.token));
	}
	stage.handle = t_recv_fd(sv[0]);
	REQUIRE(read(sv[0], stage.token, sizeof(stage.token)) == sizeof(stage.token));
	t_wait(pid);
	close(sv[0]);
	close(sv[1]);
	return stage;
}

TEST(memory, "no process waits for the owner of a region whom memory.high holds up")
{
	struct stage stage;

	more_files();
	shared = share();
	stage = stage_of_attacker();
	watch_victim(&stage, "undisturbed", 0);
	watch_victim(&stage, "memory.high", asker(&stage));
	cgroup_remove(CGROUP);
}

/* Fork a process above memory.high that maps an export for a device, again and again. */
static pid_t mapper(int dmabuf)
{
	int peer = open_peer();
	pid_t pid;

	REQUIRE_OK(peer_import(peer, dmabuf, PEER_WAITS));
	cgroup_make(CGROUP, "max");
	pid = t_fork();
	if (pid) {
		close(peer);
		while (!__atomic_load_n(&shared->inside, __ATOMIC_SEQ_CST))
			usleep(1000);
		return pid;
	}
	cgroup_enter(CGROUP, "max");
	cgroup_write(CGROUP, "memory.high", "1");
	while (true) {
		__atomic_store_n(&shared->inside, 1, __ATOMIC_SEQ_CST);
		ioctl(peer, PEER_MAP);
		ioctl(peer, PEER_UNMAP);
	}
}

/* Act as another importer, which closes its device. */
static void watch_importer(int dmabuf, const char *attack, pid_t attacker)
{
	double since;
	pid_t pid;
	int peer;

	T_CHILD(pid)
		for (int i = 0; i < rounds(); i++) {
			peer = open_peer();
			since = t_now();
			REQUIRE_OK(peer_import(peer, dmabuf, 0));
			took(&shared->open, since);
			since = t_now();
			close(peer);
			took(&shared->close, since);
		}
	victim_ends(pid);
	if (attacker > 0)
		kill_and_reap(attacker);
	t_wait(pid);
	tell_all(attack);
}

TEST(importers, "no importer waits for another one whom memory.high holds up")
{
	int dmabuf = export_of_many();

	shared = share();
	watch_importer(dmabuf, "undisturbed", 0);
	watch_importer(dmabuf, "mapper", mapper(dmabuf));
	cgroup_remove(CGROUP);
}

/* Make many leases that end with one process, and a region with many pollers. */
static void flood(int sock)
{
	struct epoll_event e = {.events = EPOLLPRI};
	int fd, ep, pidfd;
	pid_t pid;

	t_become(ATTACKER, ATTACKER, 0);
	fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	ep = REQUIRE_OK(epoll_create1(EPOLL_CLOEXEC));
	for (int i = 0; i < WATCHES; i++) {
		int copy = REQUIRE_OK(dup(fd));

		REQUIRE_OK(epoll_ctl(ep, EPOLL_CTL_ADD, copy, &e));
	}
	pid = sleeper();
	pidfd = pidfd_of(pid);
	for (int i = 0; i < HANDLES; i++) {
		int d = REQUIRE_OK(t_derive(fd, R_READ, 0));

		close(REQUIRE_OK(lease_call(d, TMESH_LEASE_PROCESS, 0, pidfd, NULL)));
	}
	t_say(sock);
	t_hear(sock);
	kill_and_reap(pid);
	t_say(sock);
	t_hear(sock);
}

/* Measure how long a lease lives after the process that it is bound to. */
static void end_of_lease(int dev)
{
	int fd = REQUIRE_OK(t_create(dev, PAGE, 0)), d = REQUIRE_OK(t_derive(fd, R_READ, 0));
	pid_t pid = sleeper();
	struct lease l = lease_bind(d, pid);
	double since;

	kill_and_reap(pid);
	since = t_now();
	REQUIRE(poll(&(struct pollfd){.fd = d}, 1, PATIENCE_MS) == 1);
	took(&shared->end, since);
	lease_unmap(&l);
	close(d);
	close(fd);
}

TEST(leases, "the end of many leases of one user does not put off those of another")
{
	int dev = t_dev(), sv[2];
	pid_t pid;

	more_files();
	shared = share();
	for (int i = 0; i < rounds(); i++)
		end_of_lease(dev);
	tell_all("undisturbed");
	for (int i = 0; i < t_length(1, 10); i++) {
		t_pair(sv);
		T_CHILD(pid)
			flood(sv[1]);
		t_hear(sv[0]);
		t_say(sv[0]);
		for (int k = 0; k < 10; k++)
			end_of_lease(dev);
		t_hear(sv[0]);
		t_say(sv[0]);
		t_wait(pid);
		close(sv[0]);
		close(sv[1]);
	}
	tell_all("flood");
}

/* Bind leases to a victim's process. */
static void bind_to(pid_t victim, int sock)
{
	int fd, handle, lease, pidfd = pidfd_of(victim), n;

	t_become(ATTACKER, ATTACKER, 0);
	fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	for (n = 0; n <= BOUND; n++) {
		handle = REQUIRE_OK(t_derive(fd, R_READ, 0));
		lease = lease_call(handle, TMESH_LEASE_PROCESS, 0, pidfd, NULL);
		if (lease < 0)
			break;
		close(lease);
	}
	CHECK_EQ(n, BOUND);
	t_say(sock);
	t_hear(sock);
}

static void end_of_process(bool attacked)
{
	pid_t pid = sleeper(), attacker;
	double since;
	int sv[2];

	if (attacked) {
		t_pair(sv);
		T_CHILD(attacker)
			bind_to(pid, sv[1]);
		t_hear(sv[0]);
	}
	since = t_now();
	kill_and_reap(pid);
	took(&shared->exit, since);
	if (attacked) {
		t_say(sv[0]);
		t_wait(attacker);
		close(sv[0]);
		close(sv[1]);
	}
}

TEST(bound, "another user's leases that are bound to a process put off its exit by little")
{
	more_files();
	shared = share();
	for (int i = 0; i < rounds(); i++)
		end_of_process(false);
	tell_all("undisturbed");
	for (int i = 0; i < t_length(2, 10); i++)
		end_of_process(true);
	tell_all("bound leases");
}

static void revoke_one(int dev, int holds)
{
	int fd = REQUIRE_OK(t_create(dev, PAGE, 0)), dmabuf, peer;
	pid_t holder = 0;
	double since;

	if (holds >= 0) {
		dmabuf = REQUIRE_OK(t_export(fd, 0, 0, TMESH_EXPORT_WRITE));
		peer = open_peer();
		REQUIRE_OK(peer_import(peer, dmabuf, PEER_TOLD | PEER_LETS_GO | PEER_WRITES));
		holder = peer_hold(holds, dmabuf);
		close(dmabuf);
	}
	since = t_now();
	CHECK_OK(t_revoke(fd));
	took(&shared->revoke, since);
	if (holder) {
		peer_release(holds, holder);
		peer_let_go(peer);
		close(peer);
	}
	close(fd);
}

TEST(reservation, "an owner's revocation does not wait for an importer that keeps its reservation")
{
	int dev = t_dev(), holds = open_peer();

	shared = share();
	for (int i = 0; i < rounds(); i++)
		revoke_one(dev, -1);
	tell_all("undisturbed");
	/* The revocation waits a second until importers are notified. */
	for (int i = 0; i < t_length(2, 10); i++)
		revoke_one(dev, holds);
	tell_all("reservation");
}

/* Map a view that repeats one page as often as it may, and wait. */
static void reader(int handle, int sock)
{
	static struct tmesh_extent again[1024];
	int dev, view;

	t_become(VICTIM, VICTIM, 0);
	dev = t_dev();
	for (size_t i = 0; i < ARRAY_SIZE(again); i++)
		again[i] = t_extent(handle, 0, 1);
	view = REQUIRE_OK(t_gather(dev, again, ARRAY_SIZE(again), R_READ));
	for (int i = 0; i < 1000; i++) {
		char *p = t_map(view, ARRAY_SIZE(again) * PAGE, PROT_READ);

		if (p == MAP_FAILED)
			break;
		for (size_t k = 0; k < ARRAY_SIZE(again); k += 16)
			t_read(p + k * PAGE);
	}
	t_say(sock);
	t_hear(sock);
}

TEST(views, "an owner's revocation takes no longer for a reader's view than for the reader's pages")
{
	int dev = t_dev(), sv[2];
	double since;
	pid_t pid;

	shared = share();
	for (int i = 0; i < t_length(2, 10); i++) {
		int fd = REQUIRE_OK(t_create(dev, PAGE, 0)),
		    r = REQUIRE_OK(t_derive(fd, R_READ, 0));

		t_pair(sv);
		T_CHILD(pid)
			reader(r, sv[1]);
		t_hear(sv[0]);
		since = t_now();
		CHECK_OK(t_revoke(fd));
		took(&shared->revoke, since);
		t_say(sv[0]);
		t_wait(pid);
		close(sv[0]);
		close(sv[1]);
		close(fd);
		close(r);
	}
	tell_all("view");
}
