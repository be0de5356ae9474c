// SPDX-License-Identifier: MIT
/*
 * Look-up, open, read, mapping and listing of kept files against drop, replacement, revocation,
 * memory errors, memory pressure and unmount. Any result of a call is accepted, but not wrong
 * bytes. A mistake shows as a report of the kernel, most of all with a module whose unlocks take
 * long (tests/vm/widened).
 */
#include <dirent.h>
#include <sys/sendfile.h>

#include "files.h"

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif
#define OTHER_MOUNT "/files_other"
#define BYTES (16 * PAGE)
#define NAMES 3
#define WORKERS 3
#define PROCESSES 2
#define USER 1000

/* Whether a reader saw bytes that no file had. Shared by all processes. */
static struct shared {
	unsigned int opened, wrong;
} * shared;

static int dev, flags;

static const char *name_of(unsigned int *seed)
{
	static const char *const names[NAMES] = {"a", "b", "c"};

	return names[t_random(seed) % NAMES];
}

/* Each page of a file begins with 1 plus its number, and all other bytes are zeros. */
static void keep_new(unsigned int *seed)
{
	int fd = t_create(dev, BYTES, flags);
	struct kept_files f = {.count = 0};
	unsigned char *p;

	if (fd < 0)
		return;
	p = t_map(fd, BYTES, PROT_READ | PROT_WRITE);
	if (p != MAP_FAILED) {
		for (unsigned int i = 0; i < BYTES / PAGE; i++)
			p[i * PAGE] = i + 1;
		munmap(p, BYTES);
		files_add(&f, "deep/file", 0, 0, BYTES);
		files_add(&f, "empty", 0, 0, 0);
		files_add(&f, "file", 0, 0, BYTES);
		t_seal(fd);
		keep_files(dev, name_of(seed), &fd, 1, &f, 0644, TMESH_KEEP_REPLACE);
	}
	close(fd);
}

/* Open a path of the tree, or one below a folder that is open longer. */
static int open_some(unsigned int *seed)
{
	static const char *const tails[] = {"file", "deep/file", "deep", "empty", "none", "."};
	const char *mount = t_random(seed) % 2 ? MOUNT : OTHER_MOUNT;
	const char *tail = tails[t_random(seed) % ARRAY_SIZE(tails)];
	char path[64];
	int folder, fd;

	snprintf(path, sizeof(path), "%s/%d/%s", mount, USER, name_of(seed));
	if (t_random(seed) % 2) {
		strcat(strcat(path, "/"), tail);
		return open(path, O_RDONLY | O_CLOEXEC);
	}
	folder = open(path, O_PATH | O_CLOEXEC);
	if (folder < 0)
		return -1;
	usleep(t_random(seed) % 2000);
	fd = openat(folder, tail, O_RDONLY | O_CLOEXEC);
	close(folder);
	return fd;
}

static void read_some(int fd, unsigned int *seed)
{
	static __thread unsigned char bytes[4 * PAGE];
	unsigned int first = t_random(seed) % (BYTES / PAGE);
	ssize_t got = pread(fd, bytes, sizeof(bytes), first * PAGE);

	for (ssize_t at = 0; at < got; at += PAGE)
		if (bytes[at] != first + at / PAGE + 1)
			__atomic_add_fetch(&shared->wrong, 1, __ATOMIC_RELAXED);
}

static void map_some(int fd, unsigned int *seed)
{
	int private = t_random(seed) % 2;
	unsigned char *p = mmap(NULL, BYTES, private ? PROT_READ | PROT_WRITE : PROT_READ,
				private ? MAP_PRIVATE : MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return;
	for (int i = 0; i < 4; i++) {
		unsigned char *at = p + t_random(seed) % 16 * PAGE;

		if (private && i == 2)
			t_write(at, 1);
		else
			t_read(at);
	}
	munmap(p, BYTES);
}

static void list_some(int fd)
{
	char bytes[512];

	while (syscall(SYS_getdents64, fd, bytes, sizeof(bytes)) > 0)
		;
}

static void use_some(unsigned int *seed)
{
	int fd = open_some(seed), out[2];

	if (fd < 0)
		return;
	__atomic_add_fetch(&shared->opened, 1, __ATOMIC_RELAXED);
	read_some(fd, seed);
	map_some(fd, seed);
	list_some(fd);
	if (!pipe2(out, O_CLOEXEC | O_NONBLOCK)) {
		sendfile(out[1], fd, (off_t[]){0}, PAGE);
		close(out[0]);
		close(out[1]);
	}
	read_some(fd, seed);
	close(fd);
}

static void revoke_some(unsigned int *seed)
{
	int handle;

	if (kept_open(dev, name_of(seed), R_READ | R_MANAGE, 0, &handle, 1) != 1)
		return;
	t_revoke(handle);
	close(handle);
}

static void step(unsigned int *seed)
{
	switch (t_random(seed) % 12) {
	case 0:
	case 1:
	case 2:
		keep_new(seed);
		break;
	case 3:
		kept_drop(dev, name_of(seed));
		break;
	case 4:
		revoke_some(seed);
		break;
	default:
		use_some(seed);
	}
}

static void *work(void *arg)
{
	unsigned int seed = (unsigned long)arg;

	for (;;)
		step(&seed);
	return NULL;
}

/* Run until killed, with whatever it holds then. */
static pid_t process(unsigned int *seed)
{
	unsigned long own = t_random(seed) | 1;
	pid_t pid = t_fork();
	pthread_t t;

	if (pid)
		return pid;
	t_become(USER, USER, 0);
	dev = t_dev();
	for (int i = 1; i < WORKERS; i++)
		pthread_create(&t, NULL, work, (void *)(own * (i + 1) | 1));
	work((void *)own);
	return -1;
}

static void poison_some(unsigned int *seed)
{
	int fd = open_some(seed);
	unsigned char *p;

	if (fd < 0)
		return;
	p = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) {
		if (!t_read(p + 5 * PAGE))
			madvise(p + 5 * PAGE, PAGE, MADV_HWPOISON);
		munmap(p, BYTES);
	}
	close(fd);
}

/* Unmount, make memory pressure and memory errors, as root and against the users. */
static pid_t system_process(unsigned int *seed)
{
	unsigned int own = t_random(seed) | 1;
	pid_t pid = t_fork();

	if (pid)
		return pid;
	for (unsigned int round = 0;; round++) {
		mount("none", OTHER_MOUNT, "tmesh", 0, NULL);
		usleep(t_random(&own) % 30000);
		if (round % 4 == 0)
			t_write_file("/proc/sys/vm/drop_caches", "2");
		if (round % 8 == 1)
			poison_some(&own);
		use_some(&own);
		if (umount(OTHER_MOUNT))
			umount2(OTHER_MOUNT, MNT_DETACH);
	}
}

static void kill_and_wait(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void mix(int kind)
{
	double until = t_now() + t_length(3, 80);
	pid_t pids[PROCESSES], root;
	unsigned int seed = 3931;

	flags = kind;
	mkdir(OTHER_MOUNT, 0755);
	umount2(OTHER_MOUNT, MNT_DETACH);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	REQUIRE(shared != MAP_FAILED);
	mount_here();
	root = system_process(&seed);
	for (int i = 0; i < PROCESSES; i++)
		pids[i] = process(&seed);
	while (t_now() < until) {
		int i = t_random(&seed) % PROCESSES;

		usleep(200000 + t_random(&seed) % 400000);
		kill_and_wait(pids[i]);
		pids[i] = process(&seed);
	}
	for (int i = 0; i < PROCESSES; i++)
		kill_and_wait(pids[i]);
	kill_and_wait(root);
	umount2(OTHER_MOUNT, MNT_DETACH);
	CHECK_EQ(shared->wrong, 0);
	CHECK(shared->opened > 0);
	t_note("%u files opened", shared->opened);
	t_drop_kept();
	unmount_here();
}

TEST_CALL(pages, "all at once: files in small pages", mix(TMESH_CREATE_NOHUGE))
TEST_CALL(huge_pages, "all at once: files in huge pages, where there are some", mix(0))

/* A name that is replaced is there all the time. */
static void *replace(void *arg)
{
	const bool *end = arg;

	while (!__atomic_load_n(end, __ATOMIC_RELAXED))
		CHECK_OK(keep_one(dev, "r", "f", PAGE, 1, 0600, TMESH_KEEP_REPLACE));
	return NULL;
}

TEST(replaced, "a name that is replaced all the time is found by each look-up")
{
	double until = t_now() + t_length(3, 20);
	struct tmesh_file file;
	struct tmesh_kept_files k;
	unsigned long found = 0;
	bool end = false;
	pthread_t thread;
	struct stat st;
	char path[8];

	dev = t_dev();
	mkdir(OTHER_MOUNT, 0755);
	REQUIRE_OK(keep_one(dev, "r", "f", PAGE, 1, 0600, 0));
	REQUIRE(!pthread_create(&thread, NULL, replace, &end));
	while (t_now() < until && !t_failed()) {
		/* A new mount has no dentry of the user's folder. */
		REQUIRE_OK(mount("none", OTHER_MOUNT, "tmesh", 0, NULL));
		CHECK_OK(stat(OTHER_MOUNT "/0", &st));
		CHECK_OK(stat(OTHER_MOUNT "/0/r", &st));
		k = (struct tmesh_kept_files){
			.size = sizeof(k),
			.name = "r",
			.files = (uintptr_t)&file,
			.file_count = 1,
			.file_bytes = sizeof(file),
			.paths = (uintptr_t)path,
			.path_bytes = sizeof(path),
		};
		CHECK_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
		found++;
		CHECK_OK(umount2(OTHER_MOUNT, 0));
	}
	__atomic_store_n(&end, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	t_note("%lu look-ups", found);
	CHECK_OK(kept_drop(dev, "r"));
}
