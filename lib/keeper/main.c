// SPDX-License-Identifier: MIT
/*
 * tmesh-keeper: keeps sealed regions of one user without a holder. One thread, one loop. Clients
 * are processes of the same user and are not trusted: each has a bounded part of everything, and
 * none is waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"
#include "common/folder.h"
#include "common/standard.h"
#include "store.h"

/* Without anything to keep, a keeper that was started by need ends after so long. */
#define IDLE_NS UINT64_C(10000000000)
/* Descriptors for everything but kept regions. */
#define SPARE_FDS 256
/* The part of the other descriptors that may be lent (shown.c), and the most. */
#define LENT_PART 8
#define LENT_MOST 1024
/* A process waited for memory for 150 ms of 2 s. An unprivileged process may watch in steps of 2 s.
 */
#define PRESSURE "some 150000 2000000"
/* Memory is short if less than this part of it is available. Pressure alone does not show that: the
 * waiting processes may be at a limit of their own, or wait for a disk. */
#define SHORT 8

/* The pause after the last descriptor was used up. */
#define REST_NS UINT64_C(10000000)

struct keeper {
	struct service service;
	struct store store;
	struct client clients[CLIENTS];
	struct shown shown;
	int dir, lock, listener, pressure;
	uint64_t rests_until; /* no client is accepted before; 0: at once */
	uint32_t lent;	      /* descriptors for what is lent (shown.c) */
	bool by_need;	      /* not systemd's */
	sigset_t signals;     /* those that are let in while it waits */
};

static volatile sig_atomic_t told_to_end;

static void keeper_end(int signal)
{
	told_to_end = 1;
}

/* Print why the keeper does not start, on stdout, which is its starter's pipe. */
static int refuse(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	fflush(stdout);
	return 1;
}

static uint64_t default_limit(void)
{
	struct sysinfo info;

	sysinfo(&info);
	return (uint64_t)info.totalram * info.mem_unit / 2;
}

/* Read digits alone: the 4 of 4G would be a limit that lets nothing be kept. */
static bool read_limit(const char *text, uint64_t *limit)
{
	char *end;

	if (!text || !*text) {
		*limit = default_limit();
		return true;
	}
	errno = 0;
	*limit = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && *limit && *limit <= INT64_MAX)
		return true;
	/* To stdout, as refuse() does. */
	printf("the limit is \"%.40s\"; it is a number of bytes (TMESH_KEEPER_BYTES, --limit)\n",
	       text);
	return false;
}

static int open_dir(const char *path)
{
	struct stat st;
	uid_t owner;
	int dir, rc = tmesh_make_folder(path, &owner);

	if (rc) {
		errno = -rc;
		return -1;
	}
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 || fstat(dir, &st))
		return -1;
	if (st.st_uid != geteuid() || (st.st_mode & 077)) {
		errno = EACCES;
		return -1;
	}
	return dir;
}

static int set_lock(int fd, bool wait)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
}

/* Return whether @fd is of the same lock file as @lock, and has the lock. */
static bool has_lock(int fd, int lock)
{
	struct stat had, now;

	return fd >= 0 && !fstat(fd, &had) && !fstat(lock, &now) && had.st_dev == now.st_dev &&
	       had.st_ino == now.st_ino && !set_lock(fd, false);
}

/*
 * Take the lock, which makes this process the keeper until it ends. A keeper under systemd has had
 * it since its first life. It waits for one that was started by need, whose groups end with it.
 * Return a descriptor, or -1 with errno.
 */
static int take_lock(const struct keeper *keeper)
{
	int before = store_lock();
	int lock = openat(keeper->dir, TMESH_KEEPER_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
			  0600);
	int rc;

	if (lock < 0)
		return -1;
	if (has_lock(before, lock)) {
		close(lock);
		return before;
	}
	rc = set_lock(lock, false);
	if (rc && keeper->store.socket >= 0 && errno == EAGAIN) {
		store_waiting(&keeper->store);
		rc = set_lock(lock, true);
	}
	if (!rc) {
		store_keep_lock(&keeper->store, lock);
		return lock;
	}
	close(lock);
	return -1;
}

static int listen_at(int dir)
{
	struct sockaddr_un address;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	/* The lock is ours, so any socket here is an old one. */
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
	if (bind(fd, (struct sockaddr *)&address,
		 tmesh_rundir_address(dir, TMESH_KEEPER_SOCKET, &address)) == 0 &&
	    listen(fd, CLIENTS) == 0)
		return fd;
	close(fd);
	return -1;
}

static int watch_pressure(void)
{
	int fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd >= 0 && write(fd, PRESSURE, sizeof(PRESSURE)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Return whether memory is short. If the file cannot be read, assume so: then the kernel's report
 * alone counts. */
static bool is_short(void)
{
	unsigned long long total, available;
	FILE *file = fopen("/proc/meminfo", "re");
	int got = 0;

	if (file) {
		got = fscanf(file, "MemTotal: %llu kB MemFree: %*u kB MemAvailable: %llu", &total,
			     &available);
		fclose(file);
	}
	return got != 2 || available < total / SHORT;
}

static int added(void *data, struct group *group)
{
	struct keeper *keeper = data;
	int rc = store_add(&keeper->store, group);

	if (!rc)
		shown_add(&keeper->shown, group);
	return rc;
}

static void removed(void *data, struct group *group)
{
	struct keeper *keeper = data;

	shown_remove(&keeper->shown, group, table_find(&keeper->service.table, group->name));
	store_remove(&keeper->store, group);
}

static void looks(void *data, struct group *group)
{
	struct keeper *keeper = data;

	shown_reclaim(&keeper->shown, group);
}

static void shows(void *data, struct group *group, bool shown)
{
	struct keeper *keeper = data;

	if (shown)
		shown_add(&keeper->shown, group);
	else
		shown_remove(&keeper->shown, group, false);
}

static void looked(void *data)
{
	struct keeper *keeper = data;

	shown_lend(&keeper->shown, keeper->service.table.groups, keeper->service.table.names);
}

static unsigned int places_of(const struct keeper *keeper, pid_t pid)
{
	unsigned int count = 0;

	for (int i = 0; i < CLIENTS; i++)
		count += keeper->clients[i].fd >= 0 && keeper->clients[i].pid == pid;
	return count;
}

/* Return the client to disconnect for a new one: of the process with the most clients, the one that
 * was idle for longest. So no process locks others out by connections. */
static struct client *first_to_go(struct keeper *keeper)
{
	struct client *found = NULL;
	unsigned int most = 0;

	for (int i = 0; i < CLIENTS; i++) {
		struct client *client = &keeper->clients[i];
		unsigned int places = client->fd < 0 ? 0 : places_of(keeper, client->pid);

		if (places > most ||
		    (places && places == most && client->deadline < found->deadline)) {
			found = client;
			most = places;
		}
	}
	return found;
}

static struct client *free_place(struct keeper *keeper)
{
	struct client *client;

	for (int i = 0; i < CLIENTS; i++)
		if (keeper->clients[i].fd < 0)
			return &keeper->clients[i];
	client = first_to_go(keeper);
	client_end(client);
	return client;
}

/* Free a descriptor for the client that waits: disconnect another, or look again later. */
static void accept_failed(struct keeper *keeper)
{
	struct client *client = first_to_go(keeper);

	if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
		return;
	if (client)
		client_end(client);
	else
		keeper->rests_until = tmesh_now_ns() + REST_NS;
}

static void take_client(struct keeper *keeper)
{
	int fd = accept4(keeper->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (fd < 0)
		accept_failed(keeper);
	else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid())
		close(fd);
	else
		client_begin(free_place(keeper), fd, peer.pid);
}

/* Return the nearer of two times; 0 is never. */
static uint64_t sooner(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

/* List the descriptors in use. poll() refuses more places than RLIMIT_NOFILE. */
static nfds_t list_polls(const struct keeper *keeper, struct pollfd polls[CLIENTS + 2],
			 uint64_t *deadline)
{
	nfds_t count = 2;

	polls[0] = (struct pollfd){.fd = keeper->rests_until ? -1 : keeper->listener,
				   .events = POLLIN};
	polls[1] = (struct pollfd){.fd = keeper->pressure, .events = POLLPRI};
	*deadline = sooner(*deadline, keeper->rests_until);
	for (int i = 0; i < CLIENTS; i++) {
		const struct client *client = &keeper->clients[i];

		if (client->fd < 0)
			continue;
		polls[count++] =
			(struct pollfd){.fd = client->fd, .events = client_waits_for(client)};
		*deadline = sooner(*deadline, client->deadline);
	}
	return count;
}

static short events_of(const struct pollfd *polls, nfds_t count, int fd)
{
	for (nfds_t i = 2; i < count; i++)
		if (polls[i].fd == fd)
			return polls[i].revents;
	return 0;
}

static void step(struct keeper *keeper, uint64_t deadline)
{
	struct pollfd polls[CLIENTS + 2];
	struct timespec left;
	nfds_t count = list_polls(keeper, polls, &deadline);

	if (deadline) {
		int ms = tmesh_poll_ms(deadline);

		left = (struct timespec){ms / 1000, ms % 1000 * 1000000L};
	}
	if (ppoll(polls, count, deadline ? &left : NULL, &keeper->signals) < 0)
		return;
	if (tmesh_now_ns() >= keeper->rests_until)
		keeper->rests_until = 0;
	if (polls[1].revents & POLLPRI && is_short())
		table_evict(&keeper->service.table, tmesh_now_ns());
	for (int i = 0; i < CLIENTS; i++)
		if (keeper->clients[i].fd >= 0)
			client_step(&keeper->clients[i], &keeper->service,
				    events_of(polls, count, keeper->clients[i].fd));
	if (polls[0].revents)
		take_client(keeper);
}

static bool is_idle(const struct keeper *keeper)
{
	for (int i = 0; i < CLIENTS; i++)
		if (keeper->clients[i].fd >= 0)
			return false;
	return keeper->service.table.names == 0;
}

static void keeper_run(struct keeper *keeper)
{
	uint64_t idle_since = 0;

	while (!told_to_end) {
		uint64_t now = tmesh_now_ns();
		uint64_t deadline = table_expire(&keeper->service.table, now);

		if (!keeper->by_need || !is_idle(keeper)) {
			idle_since = 0;
		} else {
			idle_since = idle_since ? idle_since : now;
			if (now - idle_since >= IDLE_NS)
				return;
			deadline = sooner(deadline, idle_since + IDLE_NS);
		}
		step(keeper, deadline);
	}
}

static void set_signals(void)
{
	struct sigaction action = {.sa_handler = keeper_end}, before;

	sigaction(SIGTERM, &action, NULL);
	/* A shell ignores it for programs that it starts in the background; keep it so. */
	if (!sigaction(SIGINT, NULL, &before) && before.sa_handler != SIG_IGN)
		sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* A file that would pass RLIMIT_FSIZE is an error of one call. */
	signal(SIGXFSZ, SIG_IGN);
	/* A process opened a file during a look at its holders, which needs no action. */
	signal(SIGIO, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
}

/* Let signals end the keeper only while it waits. A signal between the check whether to end and the
 * wait would otherwise be missed. */
static void hold_signals(struct keeper *keeper)
{
	sigset_t held;

	sigemptyset(&held);
	sigaddset(&held, SIGTERM);
	sigaddset(&held, SIGINT);
	sigprocmask(SIG_BLOCK, &held, &keeper->signals);
}

static uint64_t raise_fds(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	getrlimit(RLIMIT_NOFILE, &limit);
	return limit.rlim_cur > 2 * SPARE_FDS ? limit.rlim_cur - SPARE_FDS : limit.rlim_cur / 2;
}

/*
 * Go on in a child with a session of its own. This process ends when the child can be connected to,
 * or has failed. Return, in the child, the descriptor for its report.
 */
static int go_on_alone(void)
{
	int ends[2], status = 1;
	char byte;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) || (pid = fork()) < 0)
		exit(refuse("starting"));
	if (!pid) {
		close(ends[0]);
		setsid();
		return ends[1];
	}
	close(ends[1]);
	if (read(ends[0], &byte, 1) == 1)
		_exit(0);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void tell_starter(int starter)
{
	int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; fd < 3; fd++)
		dup2(nowhere, fd);
	close(nowhere);
	if (write(starter, "", 1) != 1)
		told_to_end = 1;
	close(starter);
}

static int usage(int status)
{
	fprintf(status ? stderr : stdout,
		"usage: tmesh-keeper [--daemon] [--limit BYTES] DIRECTORY\n\n"
		"Keep regions of this user in memory. Clients find it in DIRECTORY, tmesh's\n"
		"runtime directory. --daemon returns once it runs, and ends it when it keeps "
		"nothing.\n");
	return status ? status : tmesh_end_output("tmesh-keeper");
}

/* Choose the first id at random. Programs know a group by its id, also when this keeper and its
 * groups are gone, so another life must not give the same ids. New ids are higher than those of the
 * groups that are there, because ids show the order. */
static void begin_ids(struct table *table)
{
	uint64_t random;

	if (tmesh_random(&random, sizeof(random), NULL))
		random = tmesh_now_ns();
	table->last_id += 1 + (random & UINT64_C(0xffffffffff));
}

static int serve(struct keeper *keeper)
{
	struct table *table = &keeper->service.table;
	struct group *group;
	int starter = keeper->by_need ? go_on_alone() : -1;

	set_signals();
	table->max_fds = raise_fds();
	keeper->lent =
		table->max_fds / LENT_PART < LENT_MOST ? table->max_fds / LENT_PART : LENT_MOST;
	table->max_fds -= keeper->lent;
	keeper->lock = take_lock(keeper);
	/* Another keeper has the lock, which is no error. Or a signal ended the wait for it. */
	if (keeper->lock < 0)
		return errno == EAGAIN || errno == EINTR ? 0
							 : refuse("locking the runtime directory");
	hold_signals(keeper);
	store_adopt(&keeper->store, table, keeper->lock, tmesh_now_ns());
	begin_ids(table);
	store_settle(&keeper->store, table);
	/* A group that an earlier life gave up may be back, because systemd had not removed it yet.
	 */
	while (table->used > table->limit && table_evict(table, tmesh_now_ns()))
		;
	keeper->listener = listen_at(keeper->dir);
	if (keeper->listener < 0)
		return refuse("listening in the runtime directory");
	if (keeper->by_need)
		tell_starter(starter);
	shown_begin(&keeper->shown, keeper->dir, keeper->lent);
	for (group = table->groups; group; group = group->next)
		shown_add(&keeper->shown, group);
	looked(keeper);
	keeper->pressure = watch_pressure();
	if (keeper->pressure >= 0)
		keeper->service.flags |= TMESH_KEEPER_PRESSURE;
	store_ready(&keeper->store);
	if (chdir("/"))
		return 1;
	keeper_run(keeper);
	shown_end(&keeper->shown);
	unlinkat(keeper->dir, TMESH_KEEPER_SOCKET, 0);
	/* Reading all files may take minutes: no client waits for that. */
	close(keeper->listener);
	for (int i = 0; i < CLIENTS; i++)
		if (keeper->clients[i].fd >= 0)
			client_end(&keeper->clients[i]);
	store_before_kexec(&keeper->store, table);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {{"daemon", no_argument, NULL, 'd'},
					      {"limit", required_argument, NULL, 'l'},
					      {"help", no_argument, NULL, 'h'},
					      {NULL, 0, NULL, 0}};
	static struct keeper keeper;
	const char *limit = getenv("TMESH_KEEPER_BYTES");
	struct table *table = &keeper.service.table;
	int key;

	tmesh_fill_standard();
	while ((key = getopt_long(argc, argv, "dl:h", longs, NULL)) != -1) {
		if (key == 'd')
			keeper.by_need = true;
		else if (key == 'l')
			limit = optarg;
		else
			return usage(key == 'h' ? 0 : 2);
	}
	if (optind + 1 != argc)
		return usage(2);
	if (keeper.by_need && !inherited_reset())
		return 1;
	if (!read_limit(limit, &table->limit))
		return 2;
	table->added = added;
	table->removed = removed;
	table->looks = looks;
	table->looked = looked;
	table->shows = shows;
	table->data = &keeper;
	for (int i = 0; i < CLIENTS; i++)
		keeper.clients[i].fd = -1;
	keeper.dir = open_dir(argv[optind]);
	if (keeper.dir < 0)
		return refuse("the runtime directory");
	if (store_open(&keeper.store))
		keeper.service.flags |= TMESH_KEEPER_STORED;
	return serve(&keeper);
}
