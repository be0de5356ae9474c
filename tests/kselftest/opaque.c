// SPDX-License-Identifier: MIT
/*
 * TMESH_IMPORT of files that only their driver understands, and TMESH_OPAQUE.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <linux/userfaultfd.h>

#include "lease.h"

static struct tmesh_import last; /* as the kernel left it */

static int import(int dev, int source, __u64 bytes)
{
	last = (struct tmesh_import){.size = sizeof(last), .source = source, .bytes = bytes};
	return ioctl(dev, TMESH_IMPORT, &last) ? -1 : last.fd;
}

static int opaque(int handle)
{
	struct tmesh_opaque o = {.size = sizeof(o)};

	return ioctl(handle, TMESH_OPAQUE, &o) ? -1 : o.fd;
}

static int device(const char *path)
{
	return REQUIRE_OK(open(path, O_RDWR | O_CLOEXEC));
}

static bool same_file(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), 0 /* KCMP_FILE */, a, b) == 0;
}

TEST(import, "a character device's file is held, and given back to who may write")
{
	int dev = t_dev(), zero = device("/dev/zero"), h, fd;
	struct tmesh_info i;
	char c = 1;

	h = REQUIRE_OK(import(dev, zero, 123456));
	CHECK_EQ(last.backing, TMESH_BACKING_OPAQUE);
	CHECK_EQ(last.rights, R_ALL);
	CHECK_EQ(last.bytes, 123456);
	i = t_info(h);
	CHECK_EQ(i.id, last.id);
	CHECK_EQ(i.backing, TMESH_BACKING_OPAQUE);
	CHECK_EQ(i.bytes, 123456);
	CHECK_EQ(i.alloc_bytes, 0);
	CHECK_EQ(i.rights, R_ALL);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 1);
	close(zero);
	fd = REQUIRE_OK(opaque(h));
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(read(fd, &c, 1), 1);
	CHECK_EQ(c, 0);
	CHECK(same_file(fd, REQUIRE_OK(opaque(h))));
	/* The revocation does not take the descriptor away. */
	CHECK_OK(t_revoke(h));
	CHECK_ERR(opaque(h), ESTALE);
	close(h);
	CHECK_EQ(read(fd, &c, 1), 1);
}

TEST(refused, "it cannot be mapped, exported or sealed")
{
	int dev = t_dev(), h = REQUIRE_OK(import(dev, device("/dev/zero"), 4096)), ro;

	CHECK_ERR(t_map(h, PAGE, PROT_READ), EOPNOTSUPP);
	CHECK_ERR(t_export(h, 0, 0, 0), EOPNOTSUPP);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EOPNOTSUPP);
	CHECK_ERR(t_seal(h), EOPNOTSUPP);
	CHECK_ERR(t_derive(h, R_READ, TMESH_DERIVE_PIN), EINVAL);
	ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	CHECK_ERR(opaque(ro), EACCES);
	CHECK_ERR(opaque(REQUIRE_OK(t_create(dev, PAGE, 0))), EOPNOTSUPP);
}

TEST(hand_over, "it goes by token and by socket, and ends with its last holder")
{
	int dev = t_dev(), zero = device("/dev/zero"), h, sv[2];
	__u8 token[TMESH_TOKEN_BYTES];
	pid_t pid;

	h = REQUIRE_OK(import(dev, zero, 1));
	REQUIRE_OK(t_token(h, R_READ | R_WRITE, token));
	t_pair(sv);
	T_CHILD(pid) {
		int by_socket = t_recv_fd(sv[1]);
		int by_token = REQUIRE_OK(t_open(t_dev(), token, R_READ | R_WRITE, 0));

		CHECK(same_file(REQUIRE_OK(opaque(by_socket)), zero));
		CHECK(same_file(REQUIRE_OK(opaque(by_token)), zero));
	}
	t_send_fd(sv[0], h);
	t_wait(pid);
	CHECK_EQ(t_listed(dev), 1);
	close(h);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(leased, "after its lease a handle gives the file away no more; other handles do")
{
	int dev = t_dev(), h = REQUIRE_OK(import(dev, device("/dev/zero"), 1));
	int leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	pid_t pid = sleeper();
	struct lease l = lease_bind(leased, pid);

	CHECK_OK(opaque(leased));
	kill_and_reap(pid);
	await_end(&l, leased);
	CHECK_ERR(opaque(leased), ESTALE);
	CHECK_OK(opaque(h));
}

static void unfit(int fd, const char *what)
{
	int dev = t_dev();

	if (fd < 0) {
		t_note("%s: %s", what, strerrorname_np(errno));
		return;
	}
	if (!CHECK_ERR(import(dev, fd, 0), EOPNOTSUPP))
		t_note("%s was taken", what);
	CHECK_EQ(t_listed(dev), 0);
	close(fd);
	close(dev);
}

TEST(unfit, "other files, which may hold files themselves or be memory, give EOPNOTSUPP")
{
	struct {
		unsigned int words[30]; /* struct io_uring_params */
	} params = {0};
	int sv[2], pipefd[2], dev = t_dev(), h = REQUIRE_OK(t_create(dev, PAGE, 0));
	struct tmesh_import odd = {
		.size = sizeof(odd),
		.source = device("/dev/null"),
		.mode = 0777,
	};
	sigset_t signals;

	CHECK_ERR(import(dev, h, 0), EOPNOTSUPP);
	CHECK_ERR(import(dev, dev, 0), EOPNOTSUPP);
	CHECK_ERR(ioctl(dev, TMESH_IMPORT, &odd), EINVAL);
	CHECK_ERR(import(dev, REQUIRE_OK(open("/dev/null", O_PATH)), 0), EBADF);
	close(h);
	sigemptyset(&signals);
	REQUIRE_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	REQUIRE_OK(pipe(pipefd));
	unfit(sv[0], "a socket");
	unfit(pipefd[0], "a pipe");
	unfit(socket(AF_INET, SOCK_STREAM, 0), "an internet socket");
	unfit(epoll_create1(0), "epoll");
	unfit(eventfd(0, 0), "an eventfd");
	unfit(timerfd_create(CLOCK_MONOTONIC, 0), "a timerfd");
	unfit(signalfd(-1, &signals, 0), "a signalfd");
	unfit(memfd_create("opaque", 0), "a memfd");
	unfit(syscall(SYS_pidfd_open, getpid(), 0), "a pidfd");
	unfit(syscall(SYS_io_uring_setup, 1, &params), "io_uring");
	unfit(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY), "userfaultfd");
	unfit(open("/proc/self/exe", O_RDONLY), "a file");
	unfit(open("/", O_RDONLY), "a directory");
	unfit(open("/dev/nvme0n1", O_RDONLY), "a block device");
	unfit(open("/proc/self/maps", O_RDONLY), "a file of proc");
}

TEST(devices, "files of various drivers are taken, and go")
{
	static const char *const paths[] = {"/dev/null", "/dev/ptmx",	 "/dev/urandom",
					    "/dev/fuse", "/dev/net/tun", "/dev/dri/card0",
					    "/dev/kvm",	 "/dev/video0"};
	int dev = t_dev();

	for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
		int fd = open(paths[i], O_RDWR | O_CLOEXEC), h;

		if (fd < 0)
			continue;
		h = REQUIRE_OK(import(dev, fd, 0));
		close(fd);
		fd = REQUIRE_OK(opaque(h));
		CHECK_OK(close(fd));
		close(h);
	}
	CHECK_EQ(t_listed(dev), 0);
}
