/* SPDX-License-Identifier: MIT */
/*
 * Memory whose page faults wait for the test, to stall a call in the middle.
 */
#ifndef TMESH_KSELFTEST_STALL_H
#define TMESH_KSELFTEST_STALL_H

#include <linux/userfaultfd.h>

#include "t.h"

/* A page of zeros. Its first touch waits, or only its first write. */
struct stall {
	int uffd;
	bool writes;
	void *page;
};

static inline int stall_protect(struct stall *s, __u64 mode)
{
	struct uffdio_writeprotect w = {
		.range = {(unsigned long)s->page, PAGE},
		.mode = mode,
	};

	return ioctl(s->uffd, UFFDIO_WRITEPROTECT, &w);
}

static inline struct stall stall_new(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct stall s = {.uffd = syscall(SYS_userfaultfd, O_CLOEXEC)};

	if (s.uffd < 0)
		t_skip("no userfaultfd: %s", strerror(errno));
	REQUIRE_OK(ioctl(s.uffd, UFFDIO_API, &api));
	s.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(s.page != MAP_FAILED);
	return s;
}

static inline void stall_register(struct stall *s, __u64 mode)
{
	struct uffdio_register r = {
		.range = {(unsigned long)s->page, PAGE},
		.mode = mode,
	};

	REQUIRE_OK(ioctl(s->uffd, UFFDIO_REGISTER, &r));
}

static inline struct stall stall_touch(void)
{
	struct stall s = stall_new();

	stall_register(&s, UFFDIO_REGISTER_MODE_MISSING);
	return s;
}

/* Stall the first write to a page that begins with @content. Reads do not wait. */
static inline struct stall stall_write(const void *content, size_t bytes)
{
	struct stall s = stall_new();

	s.writes = true;
	memset(s.page, 0, PAGE);
	memcpy(s.page, content, bytes);
	stall_register(&s, UFFDIO_REGISTER_MODE_WP);
	REQUIRE_OK(stall_protect(&s, UFFDIO_WRITEPROTECT_MODE_WP));
	return s;
}

/* Return once a thread waits. */
static inline void stall_await(const struct stall *s)
{
	struct uffd_msg fault;

	REQUIRE(read(s->uffd, &fault, sizeof(fault)) == sizeof(fault));
}

static inline void stall_end(struct stall *s)
{
	struct uffdio_zeropage zero = {.range = {(unsigned long)s->page, PAGE}};

	if (s->writes)
		CHECK_OK(stall_protect(s, 0));
	else
		CHECK_OK(ioctl(s->uffd, UFFDIO_ZEROPAGE, &zero));
}

/* A call that another thread makes */
struct stall_call {
	pthread_t thread;
	int fd;
	unsigned long cmd;
	void *arg;
	int answer;
};

static inline void *stall_run(void *arg)
{
	struct stall_call *c = arg;

	c->answer = ioctl(c->fd, c->cmd, c->arg) ? errno : 0;
	return NULL;
}

static inline void stall_begin(struct stall_call *c, int fd, unsigned long cmd, void *arg)
{
	*c = (struct stall_call){.fd = fd, .cmd = cmd, .arg = arg};
	REQUIRE(!pthread_create(&c->thread, NULL, stall_run, c));
}

/* Wait for its end. Return its errno, or 0. */
static inline int stall_answer(struct stall_call *c)
{
	pthread_join(c->thread, NULL);
	return c->answer;
}

#endif
