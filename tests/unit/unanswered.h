/* SPDX-License-Identifier: MIT */
/*
 * A file whose server does not answer: /proc/self/status stands for it, and close() of it waits
 * until the server answers, which is when a test says so. The test's own thread is never to wait.
 */
#ifndef TMESH_UNIT_UNANSWERED_H
#define TMESH_UNIT_UNANSWERED_H

#include "closes.h"
#include "common/foreign.h"
#include "unit.h"

static struct {
	struct stat st;
	pthread_t main;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool answers;
	atomic_uint asked; /* by close() */
	int fd;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The test's own one is none. By /proc, so that another thread may just be closing it. */
static inline bool server_has(int fd)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return fd != server.fd && !stat(path, &st) && st.st_dev == server.st.st_dev &&
	       st.st_ino == server.st.st_ino;
}

/* Descriptors of the file that were given here, and are not closed. */
static inline unsigned int server_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned int count = 0;

	while ((entry = readdir(dir)))
		count += server_has(atoi(entry->d_name));
	closedir(dir);
	return count;
}

static inline void ask_server(int fd)
{
	if (!server_has(fd))
		return;
	if (pthread_equal(pthread_self(), server.main)) {
		fprintf(stderr, "# close() waits for who serves the file\n");
		abort();
	}
	pthread_mutex_lock(&server.lock);
	server.asked++;
	pthread_cond_broadcast(&server.changed);
	while (!server.answers)
		pthread_cond_wait(&server.changed, &server.lock);
	pthread_mutex_unlock(&server.lock);
}

static inline int server_start_with(int fd)
{
	server.fd = fd;
	server.main = pthread_self();
	pthread_mutex_lock(&server.lock);
	server.answers = false;
	pthread_mutex_unlock(&server.lock);
	server.asked = 0;
	unit_before_close = ask_server;
	return server.fd < 0 || fstat(server.fd, &server.st);
}

static inline int server_start(void **state)
{
	return server_start_with(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
}

/* All are closed that wait. */
static inline void server_answers(void)
{
	pthread_mutex_lock(&server.lock);
	server.answers = true;
	pthread_cond_broadcast(&server.changed);
	pthread_mutex_unlock(&server.lock);
	while (server_files())
		usleep(1000);
	assert_true(tmesh_foreign_room(tmesh_giver_of(geteuid(), getpid())));
}

static inline int server_end(void **state)
{
	unit_before_close = NULL;
	close(server.fd);
	return 0;
}

#endif /* TMESH_UNIT_UNANSWERED_H */
