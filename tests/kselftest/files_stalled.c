// SPDX-License-Identifier: MIT
/*
 * Names that are replaced in the middle of a call: a page fault in the caller's memory, or the lock
 * of a folder, stalls the call.
 */
#include "files.h"
#include "stall.h"

#define FOLDER MOUNT "/0/r"

/* The longest time until a thread waits for a lock */
#define PATIENCE_S 20

static int dev;

static void keep_long(__u32 pages, __u32 flags)
{
	REQUIRE_OK(keep_one(dev, "r", "f", pages * PAGE, 1, 0600, flags));
}

/* A thread of the test, with the number by which /proc knows it */
struct worker {
	pthread_t thread;
	pid_t tid;
	int fd;
	void *memory;
	long answer;
	int error;
	struct stat st;
};

static void begin(struct worker *w, void *(*run)(void *))
{
	REQUIRE(!pthread_create(&w->thread, NULL, run, w));
}

static void started(struct worker *w)
{
	__atomic_store_n(&w->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
}

/* Return once a thread waits without being interruptible, as it does for the lock of a folder. */
static void await_lock(const struct worker *w)
{
	double until = t_now() + PATIENCE_S;
	char path[64], text[64];
	pid_t tid;

	while (t_now() < until) {
		tid = __atomic_load_n(&w->tid, __ATOMIC_SEQ_CST);
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
		if (tid && t_read_file(path, text, sizeof(text)) && strstr(text, ") D "))
			return;
		usleep(1000);
	}
	REQUIRE(!"a thread waits for the lock of the folder");
}

static void *list(void *arg)
{
	struct worker *w = arg;

	w->answer = syscall(SYS_getdents64, w->fd, w->memory, PAGE);
	return NULL;
}

/* Ask for a new file: this takes the lock of the folder alone, although nothing can be created. */
static void *create(void *arg)
{
	struct worker *w = arg;

	started(w);
	w->answer = open(FOLDER "/new", O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
	w->error = errno;
	return NULL;
}

static void *look_up(void *arg)
{
	struct worker *w = arg;

	started(w);
	w->answer = stat(FOLDER "/f", &w->st);
	w->error = errno;
	return NULL;
}

/*
 * A listing stalls under the shared lock of the folder. A creator waits for the lock behind it, and
 * a look-up, which has found the folder already, behind the creator.
 */
TEST(walked, "a walk into a folder that is replaced meanwhile finds the file of the new one")
{
	struct stall stall = stall_touch();
	struct worker lister = {.memory = stall.page}, creator = {0}, looker = {0};

	dev = t_dev();
	mount_here();
	keep_long(1, 0);
	lister.fd = REQUIRE_OK(open(FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	begin(&lister, list);
	stall_await(&stall);
	begin(&creator, create);
	await_lock(&creator);
	begin(&looker, look_up);
	await_lock(&looker);
	keep_long(2, TMESH_KEEP_REPLACE);
	stall_end(&stall);

	pthread_join(lister.thread, NULL);
	pthread_join(creator.thread, NULL);
	pthread_join(looker.thread, NULL);
	CHECK_EQ(creator.answer, -1);
	CHECK_EQ(creator.error, EROFS);
	if (CHECK_EQ(looker.answer, 0))
		CHECK_EQ(looker.st.st_size, 2 * PAGE);
	else
		t_note("%s", strerror(looker.error));
	close(lister.fd);
	unmount_here();
	REQUIRE_OK(kept_drop(dev, "r"));
}

static void *read_table(void *arg)
{
	struct worker *w = arg;

	w->answer = ioctl(dev, TMESH_KEPT_FILES, w->memory);
	w->error = errno;
	return NULL;
}

TEST(read_again, "TMESH_KEPT_FILES reads the new table of a name that is replaced meanwhile")
{
	struct stall stall = stall_touch();
	const struct tmesh_file *file = stall.page;
	char path[8] = "";
	struct tmesh_kept_files k = {
		.size = sizeof(k),
		.name = "r",
		.files = ADDRESS(stall.page),
		.file_count = 1,
		.file_bytes = sizeof(*file),
		.paths = ADDRESS(path),
		.path_bytes = sizeof(path),
	};
	struct worker reader = {.memory = &k};

	dev = t_dev();
	keep_long(1, 0);
	begin(&reader, read_table);
	stall_await(&stall);
	keep_long(2, TMESH_KEEP_REPLACE);
	stall_end(&stall);
	pthread_join(reader.thread, NULL);
	if (!CHECK_EQ(reader.answer, 0))
		t_note("%s", strerror(reader.error));
	CHECK_EQ(k.file_count, 1);
	CHECK_EQ(file->bytes, 2 * PAGE);
	CHECK(!strcmp(path, "f"));
	REQUIRE_OK(kept_drop(dev, "r"));
}
