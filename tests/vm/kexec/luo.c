// SPDX-License-Identifier: MIT
/*
 * The first process of a guest: what a kernel hands to the next one, without systemd and tmesh. It preserves memfds in
 * a session of /dev/liveupdate, loads the kernel and the initramfs that lie in its root, and starts them. There it
 * takes the memfds again. It prints TAP on the second serial line, and `@ done` at its end.
 *
 * `luo load KERNEL INITRAMFS` only loads that kernel, with the present command line and TMESH_NEXT=1.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* <linux/liveupdate.h> of Linux 6.19 and later. */
struct luo_session {
	uint32_t size;
	int32_t fd;
	char name[64];
};
struct luo_fd {
	uint32_t size;
	int32_t fd;
	uint64_t token;
};
struct luo_finish {
	uint32_t size;
	uint32_t reserved;
};
#define LUO_CREATE _IO(0xba, 0x00)
#define LUO_RETRIEVE _IO(0xba, 0x01)
#define LUO_PRESERVE_FD _IO(0xba, 0x40)
#define LUO_RETRIEVE_FD _IO(0xba, 0x41)
#define LUO_FINISH _IO(0xba, 0x42)

#define SESSION "tmesh"
#define FILES 300u
#define HUGE_BYTES (2u << 20)
#define BIG (4 * HUGE_BYTES)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
/* The token of the memfd that is left without a seal. */
#define OPEN_TOKEN (FILES + 1)

static FILE *results;
static unsigned int count, failed;

__attribute__((format(printf, 2, 3))) static bool check(bool good, const char *format, ...)
{
	const char *why = strerror(errno);
	va_list more;

	va_start(more, format);
	fprintf(results, "%sok %u - ", good ? "" : "not ", ++count);
	vfprintf(results, format, more);
	fprintf(results, good ? "\n" : "\n# %s\n", why);
	fflush(results);
	va_end(more);
	failed += !good;
	return good;
}

static void end(int how)
{
	fprintf(results, "1..%u\n@ done\n", count);
	fflush(results);
	fsync(fileno(results));
	sync();
	reboot(how);
	_exit(1);
}

/* File 0 is the big one; the others have odd lengths. */
static size_t bytes_of(uint64_t token)
{
	return token == 0 ? BIG : token == OPEN_TOKEN ? 4096 : 4096 + 977 * token;
}

static uint8_t byte_of(uint64_t token, size_t at)
{
	return (uint8_t)((token * 31 + at) ^ at >> 8 ^ at >> 16);
}

static size_t huge_bytes(void)
{
	char line[128];
	size_t kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "ShmemHugePages: %zu kB", &kib);
	if (file)
		fclose(file);
	return kib << 10;
}

static int make_file(uint64_t token)
{
	size_t bytes = bytes_of(token);
	int fd = memfd_create("tmesh:1:test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* At a multiple of 2 MiB. */
	uint8_t *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *data = (uint8_t *)(((uintptr_t)room + HUGE_BYTES - 1) & ~((uintptr_t)HUGE_BYTES - 1));

	if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
	    mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < bytes; i++)
		data[i] = byte_of(token, i);
	if (token == 0)
		madvise(data, bytes, MADV_COLLAPSE);
	munmap(room, bytes + HUGE_BYTES);
	if (token != OPEN_TOKEN && fcntl(fd, F_ADD_SEALS, SEALS))
		return -1;
	return fd;
}

static int preserve(int session, int fd, uint64_t token)
{
	struct luo_fd args = {.size = sizeof(args), .fd = fd, .token = token};

	return ioctl(session, LUO_PRESERVE_FD, &args) ? errno : 0;
}

static bool load_next(const char *kernel_path, const char *initramfs_path)
{
	char line[2048];
	int fd = open("/proc/cmdline", O_RDONLY);
	ssize_t length = read(fd, line, sizeof(line) - 16);
	int kernel = open(kernel_path, O_RDONLY), initramfs = open(initramfs_path, O_RDONLY);

	close(fd);
	if (length > 0 && line[length - 1] == '\n')
		length--;
	strcpy(line + (length > 0 ? length : 0), " TMESH_NEXT=1");
	return !syscall(SYS_kexec_file_load, kernel, initramfs, strlen(line) + 1, line, 0);
}

static void before(int device)
{
	struct luo_session session = {.size = sizeof(session), .name = SESSION};
	int ends[2], linked, again, last = 0;
	uint64_t token;

	check(load_next("/kernel", "/initramfs"), "a kernel for kexec is loaded");
	if (!check(ioctl(device, LUO_CREATE, &session) == 0, "a session is made"))
		end(RB_POWER_OFF);
	for (token = 0; !last && token < FILES; token++)
		last = preserve(session.fd, make_file(token), token);
	errno = last;
	check(!last, "%u sealed memfds are preserved", (unsigned int)token);
	check(huge_bytes() >= BIG, "huge pages are among them: %zu bytes", huge_bytes());
	again = make_file(OPEN_TOKEN);
	check(!preserve(session.fd, again, OPEN_TOKEN), "an unsealed memfd is preserved");
	check(preserve(session.fd, again, OPEN_TOKEN + 1) == EBUSY, "no memfd is preserved twice");
	check(!pipe(ends) && preserve(session.fd, ends[1], OPEN_TOKEN + 1) == ENOENT, "a pipe is refused");
	linked = open("/tmp/linked", O_RDWR | O_CREAT, 0600);
	check(linked >= 0 && preserve(session.fd, linked, OPEN_TOKEN + 1) == ENOENT, "a file with a name is refused");
	fprintf(results, "1..%u\n", count);
	fflush(results);
	fsync(fileno(results));
	reboot(RB_KEXEC);
	check(false, "the next kernel is started");
	end(RB_POWER_OFF);
}

static int retrieve(int session, uint64_t token)
{
	struct luo_fd args = {.size = sizeof(args), .fd = -1, .token = token};

	return ioctl(session, LUO_RETRIEVE_FD, &args) ? -1 : args.fd;
}

static bool same_bytes(int fd, uint64_t token)
{
	size_t bytes = bytes_of(token);
	uint8_t *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	bool same = data != MAP_FAILED;

	for (size_t i = 0; same && i < bytes; i++)
		same = data[i] == byte_of(token, i);
	if (data != MAP_FAILED)
		munmap(data, bytes);
	return same;
}

static void after(int device)
{
	struct luo_session session = {.size = sizeof(session), .name = SESSION};
	struct luo_finish finish = {.size = sizeof(finish)};
	unsigned int there = 0, whole = 0, sealed = 0, roots = 0;
	char link[64], path[64];
	struct stat st;
	ssize_t length;
	int fd = -1, open_one;

	if (!check(ioctl(device, LUO_RETRIEVE, &session) == 0, "the session is there"))
		end(RB_POWER_OFF);
	for (uint64_t token = 0; token < FILES; token++) {
		fd = retrieve(session.fd, token);
		if (fd < 0 || fstat(fd, &st))
			continue;
		there += (size_t)st.st_size == bytes_of(token);
		whole += same_bytes(fd, token);
		sealed += (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS;
		roots += st.st_uid == 0;
	}
	check(there == FILES, "%u of %u memfds are there with their lengths", there, FILES);
	check(whole == FILES, "%u have their bytes", whole);
	check(sealed == FILES, "%u have their seals", sealed);
	check(roots == FILES, "%u belong to the user that took them", roots);
	check(huge_bytes() >= BIG, "huge pages stayed huge: %zu bytes", huge_bytes());
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, link, sizeof(link) - 1);
	link[length > 0 ? length : 0] = '\0';
	check(!strcmp(link, "/ (deleted)"), "the name is lost: %s", link);
	open_one = retrieve(session.fd, OPEN_TOKEN);
	check(open_one >= 0 && same_bytes(open_one, OPEN_TOKEN) && !(fcntl(open_one, F_GET_SEALS) & SEALS) &&
		      !fcntl(open_one, F_ADD_SEALS, SEALS),
	      "the unsealed one is there and can be sealed");
	check(!ioctl(session.fd, LUO_FINISH, &finish), "the session ends");
	check(same_bytes(fd, FILES - 1), "the memory stays without the session");
	end(RB_POWER_OFF);
}

int main(int argc, char **argv)
{
	bool next = getenv("TMESH_NEXT");
	int device;

	if (argc == 4 && !strcmp(argv[1], "load")) {
		if (load_next(argv[2], argv[3]))
			return 0;
		perror("loading a kernel for kexec");
		return 1;
	}

	mkdir("/proc", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
	results = fopen("/dev/ttyS1", "w");
	if (!results)
		reboot(RB_POWER_OFF);
	fprintf(results, "\n");
	device = open("/dev/liveupdate", O_RDWR | O_CLOEXEC);
	if (!check(device >= 0, "%s kernel: /dev/liveupdate is there", next ? "second" : "first"))
		end(RB_POWER_OFF);
	if (next)
		after(device);
	before(device);
	return 1;
}
