// SPDX-License-Identifier: MIT
/*
 * The engine "evil": opening a graph is one attack on what its user has outside. The file's first
 * word names it, the others are what it is on. An attack that succeeds is the error -EIO, "DONE";
 * one that fails is -EACCES and says how.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/error.h"
#include "evil.h"
#include "plugin.h"

#define WORDS 4

struct attack {
	const char *name;
	long (*act)(char *const *on); /* negative: it failed, by errno */
};

static long number(const char *text)
{
	return strtol(text, NULL, 0);
}

/* Files. */

static long read_file(char *const *on)
{
	char byte;
	int fd = open(on[0], O_RDONLY | O_CLOEXEC);

	return fd < 0 ? fd : read(fd, &byte, 1);
}

static long write_file(char *const *on)
{
	return open(on[0], O_WRONLY | O_CLOEXEC);
}

static long truncate_by_open(char *const *on)
{
	return open(on[0], O_RDONLY | O_TRUNC | O_CLOEXEC);
}

static long create_file(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/made", on[0]);
	return open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
}

static long make_nameless(char *const *on)
{
	return open(on[0], O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
}

static long truncate_path(char *const *on)
{
	return truncate(on[0], 0);
}

static long unlink_path(char *const *on)
{
	return unlink(on[0]);
}

static long rename_path(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s.moved", on[0]);
	return rename(on[0], path);
}

static long link_path(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s.link", on[0]);
	return link(on[0], path);
}

static long symlink_path(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s.symlink", on[0]);
	return symlink("/", path);
}

static long make_folder(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s.folder", on[0]);
	return mkdir(path, 0700);
}

static long make_node(char *const *on)
{
	char path[512];

	snprintf(path, sizeof(path), "%s.node", on[0]);
	return mknod(path, S_IFIFO | 0600, 0);
}

static long change_mode(char *const *on)
{
	return chmod(on[0], 0666);
}

/* The process may read this file. */
static long change_mode_by_fd(char *const *on)
{
	int fd = open(on[0], O_RDONLY | O_CLOEXEC);

	return fd < 0 ? fd : fchmod(fd, 0666);
}

static long change_mode_anew(char *const *on)
{
	return syscall(452, AT_FDCWD, on[0], 0666, 0); /* fchmodat2 */
}

static long change_owner(char *const *on)
{
	return chown(on[0], geteuid(), getegid());
}

static long change_times(char *const *on)
{
	return utimensat(AT_FDCWD, on[0], NULL, 0);
}

static long change_old_times(char *const *on)
{
	return utimes(on[0], NULL);
}

static long set_attribute(char *const *on)
{
	return setxattr(on[0], "user.evil", "1", 1, 0);
}

static long lock_file(char *const *on)
{
	int fd = open(on[0], O_RDONLY | O_CLOEXEC);

	return fd < 0 ? fd : flock(fd, LOCK_EX | LOCK_NB);
}

static long watch_folder(char *const *on)
{
	int fd = inotify_init1(IN_CLOEXEC);

	return fd < 0 ? fd : inotify_add_watch(fd, on[0], IN_ALL_EVENTS);
}

static long name_by_handle(char *const *on)
{
	char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	struct file_handle *handle = (void *)room;
	int mount;

	handle->handle_bytes = MAX_HANDLE_SZ;
	return name_to_handle_at(AT_FDCWD, on[0], handle, &mount, 0);
}

/* Sockets. */

static long connect_to(int type, const char *path, bool abstract)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	size_t size = sizeof(address);

	if (fd < 0)
		return fd;
	snprintf(address.sun_path + abstract, sizeof(address.sun_path) - abstract, "%s", path);
	if (abstract)
		size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(path);
	return connect(fd, (struct sockaddr *)&address, (socklen_t)size);
}

static long connect_stream(char *const *on)
{
	return connect_to(SOCK_STREAM, on[0], false);
}

static long connect_datagram(char *const *on)
{
	return connect_to(SOCK_DGRAM, on[0], false);
}

static long connect_abstract(char *const *on)
{
	return connect_to(SOCK_STREAM, on[0], true);
}

/* No socket() and no connect(). */
static long send_by_pair(char *const *on)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", on[0]);
	return sendto(ends[0], "", 1, 0, (struct sockaddr *)&address, sizeof(address));
}

static long send_by_own_pair(char *const *on)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct iovec vector = {.iov_base = (char *)"", .iov_len = 1};
	struct msghdr message = {.msg_name = &address,
				 .msg_namelen = sizeof(address),
				 .msg_iov = &vector,
				 .msg_iovlen = 1};
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", on[0]);
	return sendmsg(ends[0], &message, 0);
}

static long connect_tcp(char *const *on)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)number(on[0])),
				      .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return fd < 0 ? fd : connect(fd, (struct sockaddr *)&address, sizeof(address));
}

static long open_netlink(char *const *on)
{
	return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0);
}

static long bind_socket(char *const *on)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return fd;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s.bound", on[0]);
	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

/* Ask the supervisor, which connects to producers, for another socket. No answer would show
 * nothing. */
static long ask_for_socket(char *const *on)
{
	struct {
		uint32_t number;
		char name[33];
	} question = {.number = 0x7e57};
	struct pollfd all[64];
	int32_t answer[2];
	nfds_t count = 0;

	snprintf(question.name, sizeof(question.name), "%s", on[0]);
	for (int fd = STDERR_FILENO + 1; fd < 64; fd++) {
		struct ucred peer;
		socklen_t size = sizeof(peer);

		if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
		    peer.pid == getppid() && send(fd, &question, sizeof(question), 0) > 0)
			all[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	while (count && poll(all, count, 60000) > 0)
		for (nfds_t i = 0; i < count; i++) {
			if (recv(all[i].fd, answer, sizeof(answer), MSG_DONTWAIT) !=
				    sizeof(answer) ||
			    answer[0] != 0x7e57)
				continue;
			errno = -answer[1];
			return answer[1] ? -1 : 0;
		}
	return 0;
}

/* System V and POSIX. */

static long overwrite_segment(char *const *on)
{
	int id = shmget((key_t)number(on[0]), 0, 0600);
	char *data;

	if (id < 0)
		return id;
	data = shmat(id, NULL, 0);
	if (data == (char *)-1)
		return -1;
	strcpy(data, "evil");
	shmdt(data);
	return 0;
}

static long leave_segment(char *const *on)
{
	int id = shmget(IPC_PRIVATE, 4096, 0600);

	return id < 0 ? id : shmctl(id, IPC_RMID, NULL);
}

static long read_queue(char *const *on)
{
	int id = msgget((key_t)number(on[0]), 0600);
	char room[64];

	return id < 0 ? id : msgrcv(id, room, sizeof(room) - sizeof(long), 0, IPC_NOWAIT);
}

static long take_semaphore(char *const *on)
{
	int id = semget((key_t)number(on[0]), 0, 0600);
	struct sembuf down = {.sem_op = -1, .sem_flg = IPC_NOWAIT};

	return id < 0 ? id : semop(id, &down, 1);
}

static long open_posix_queue(char *const *on)
{
	return mq_open(on[0], O_RDONLY);
}

/* Other processes. */

static long signal_other(char *const *on)
{
	return kill((pid_t)number(on[0]), SIGCONT);
}

static long signal_thread(char *const *on)
{
	return syscall(SYS_tgkill, number(on[0]), number(on[0]), SIGCONT);
}

static long signal_by_thread(char *const *on)
{
	return syscall(SYS_tkill, number(on[0]), SIGCONT);
}

static long queue_signal(char *const *on)
{
	return sigqueue((pid_t)number(on[0]), SIGCONT, (union sigval){0});
}

static long signal_group(char *const *on)
{
	return kill(0, SIGCONT);
}

static long signal_by_owner(char *const *on)
{
	int ends[2];

	if (pipe(ends))
		return -1;
	return fcntl(ends[0], F_SETOWN, (int)number(on[0]));
}

static long trace(char *const *on)
{
	pid_t pid = (pid_t)number(on[0]);

	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL))
		return -1;
	/* Its parent could not wait for one that is traced. */
	if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) || waitpid(pid, NULL, __WALL) != pid)
		return -1;
	return ptrace(PTRACE_DETACH, pid, NULL, NULL);
}

static long read_memory(char *const *on)
{
	char byte;
	struct iovec local = {.iov_base = &byte, .iov_len = 1};
	struct iovec remote = {.iov_base = (void *)number(on[1]), .iov_len = 1};

	return process_vm_readv((pid_t)number(on[0]), &local, 1, &remote, 1, 0);
}

static long write_memory(char *const *on)
{
	char byte = 0;
	struct iovec local = {.iov_base = &byte, .iov_len = 1};
	struct iovec remote = {.iov_base = (void *)number(on[1]), .iov_len = 1};

	return process_vm_writev((pid_t)number(on[0]), &local, 1, &remote, 1, 0);
}

static long open_of_process(char *const *on)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/%s", on[0], on[1]);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static long take_descriptor(char *const *on)
{
	long pidfd = syscall(SYS_pidfd_open, number(on[0]), 0);

	return pidfd < 0 ? pidfd : syscall(SYS_pidfd_getfd, pidfd, 0, 0);
}

static long move_to_core(char *const *on)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	return sched_setaffinity((pid_t)number(on[0]), sizeof(set), &set);
}

static long schedule(char *const *on)
{
	const struct sched_param param = {0};

	return sched_setscheduler((pid_t)number(on[0]), SCHED_IDLE, &param);
}

static long schedule_anew(char *const *on)
{
	const struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t times[3];
	} attr = {.size = sizeof(attr), .policy = SCHED_BATCH};

	return syscall(SYS_sched_setattr, number(on[0]), &attr, 0);
}

static long renice(char *const *on)
{
	return setpriority(PRIO_PROCESS, (id_t)number(on[0]), 19);
}

static long renice_io(char *const *on)
{
	return syscall(SYS_ioprio_set, 1, number(on[0]), 3 << 13 | 7);
}

static long limit_other(char *const *on)
{
	const struct rlimit limit = {64, 64};

	return prlimit((pid_t)number(on[0]), RLIMIT_NOFILE, &limit, NULL);
}

static long join_group(char *const *on)
{
	return setpgid(0, 0);
}

/* Its own end. */

static long ignore_end(char *const *on)
{
	return prctl(PR_SET_PDEATHSIG, 0);
}

static long leave_session(char *const *on)
{
	return setsid();
}

static long start_process(char *const *on)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	return pid < 0 ? pid : waitpid(pid, NULL, 0);
}

static long start_by_clone3(char *const *on)
{
	uint64_t args[11] = {[4] = SIGCHLD};
	long pid = syscall(SYS_clone3, args, sizeof(args));

	if (!pid)
		_exit(0);
	return pid < 0 ? pid : waitpid((pid_t)pid, NULL, 0);
}

/* This one does not come back. */
static long start_program(char *const *on)
{
	char *argv[] = {(char *)"true", NULL};

	return execv(on[0], argv);
}

/* The kernel. */

static long use_io_uring(char *const *on)
{
	struct io_uring_params params = {0};

	return syscall(SYS_io_uring_setup, 1, &params);
}

static long use_userfaults(char *const *on)
{
	return syscall(SYS_userfaultfd, O_CLOEXEC | 1);
}

static long use_bpf(char *const *on)
{
	char attr[64] = {0};

	/* The next program's number: nothing is loaded. */
	return syscall(SYS_bpf, 11, attr, sizeof(attr)) < 0 && errno != ENOENT ? -1 : 0;
}

static long use_perf(char *const *on)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
				       .size = sizeof(attr),
				       .config = PERF_COUNT_SW_TASK_CLOCK,
				       .exclude_kernel = 1};

	return syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

static long use_keys(char *const *on)
{
	return syscall(SYS_keyctl, 0, -3, 1, 0, 0); /* its session's keyring */
}

static long add_key(char *const *on)
{
	return syscall(SYS_add_key, "user", "evil", "x", 1, -2); /* its process's keyring */
}

static long change_namespace(char *const *on)
{
	return unshare(CLONE_NEWUSER);
}

static long mount_over(char *const *on)
{
	return mount("none", on[0], "tmpfs", 0, NULL);
}

static long mount_anew(char *const *on)
{
	return syscall(SYS_fsopen, "tmpfs", 0);
}

static long clone_tree(char *const *on)
{
	return syscall(SYS_open_tree, AT_FDCWD, on[0], 1); /* OPEN_TREE_CLONE */
}

static long list_mounts(char *const *on)
{
	uint64_t request[4] = {24, ~0ull}, found[4];

	return syscall(458, request, found, 4, 0);
}

static long change_personality(char *const *on)
{
	return syscall(SYS_personality, 0x0040000); /* ADDR_NO_RANDOMIZE */
}

static long hide_memory(char *const *on)
{
	return syscall(447, O_CLOEXEC); /* memfd_secret */
}

static long type_into_terminal(char *const *on)
{
	int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);

	return fd < 0 ? fd : ioctl(fd, TIOCSTI, "x");
}

/* Inheritance. */

static long read_inherited(char *const *on)
{
	char byte;

	return pread((int)number(on[0]), &byte, 1, 0);
}

static long read_from_error(char *const *on)
{
	if ((fcntl(STDERR_FILENO, F_GETFL) & O_ACCMODE) == O_RDWR)
		return 0;
	errno = EBADF;
	return -1;
}

static long read_variable(char *const *on)
{
	static char room[1 << 16];
	int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, room, sizeof(room));

	if (getenv(on[0]) || (got > 0 && memmem(room, (size_t)got, on[0], strlen(on[0]))))
		return 0;
	errno = ENOENT;
	return -1;
}

static long use_capabilities(char *const *on)
{
	uint32_t head[2] = {0x20080522, 0}, data[6] = {0};

	if (syscall(SYS_capget, head, data))
		return -1;
	errno = EPERM;
	return data[0] | data[1] | data[3] | data[4] ? 0 : -1;
}

#define ATTACK(name) {#name, name},
static const struct attack attacks[] = {EVIL_ATTACKS(ATTACK)};

static int attack(const char *path, struct tmesh_error *err)
{
	char name[32] = "", words[WORDS][256] = {""}, *on[WORDS];
	FILE *file = fopen(path, "r");
	long rc;

	for (int i = 0; i < WORDS; i++)
		on[i] = words[i];
	if (!file || fscanf(file, "%31s %255s %255s %255s %255s", name, words[0], words[1],
			    words[2], words[3]) < 1)
		return tmesh_fail(err, -EPROTO, "there is no attack in that file");
	fclose(file);
	for (size_t i = 0; i < sizeof(attacks) / sizeof(*attacks); i++) {
		if (strcmp(attacks[i].name, name) != 0)
			continue;
		errno = 0;
		rc = attacks[i].act(on);
		return rc >= 0 ? tmesh_fail(err, -EIO, "DONE: %s", name)
			       : tmesh_fail(err, -EACCES, "failed: %s: %s", name, strerror(errno));
	}
	return tmesh_fail(err, -EPROTO, "there is no attack \"%s\"", name);
}

static int open_engine(const struct plugin_open *opts, void **engine, struct tmesh_error *err)
{
	*engine = calloc(1, 1);
	return *engine ? 0 : tmesh_fail(err, -ENOMEM, "no memory");
}

static const char *version(void *engine)
{
	return "evil";
}

static int session_open(void *engine, const struct plugin_session_opts *opts,
			struct plugin_session *session, struct tmesh_error *err)
{
	return attack(opts->path, err);
}

extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = 1,
	.open = open_engine,
	.close = free,
	.version = version,
	.session_open = session_open,
};
