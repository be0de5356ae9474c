// SPDX-License-Identifier: MIT
/*
 * The code of the module that a process reaches, by KCOV. It is counted as pairs of places reached
 * one after the other, which distinguishes the first turn of a loop from the second.
 */
#include <stdint.h>
#include <linux/kcov.h>

#include "fuzz.h"

#define TRACE_WORDS (64 << 10)
#define TEXT_MAX (1 << 20)

struct fuzz_cover {
	/* Shared by all workers. */
	unsigned char *pairs;  /* FUZZ_PAIRS: reached so far */
	unsigned char *places; /* TEXT_MAX: reached so far, by their offset in .text */
	/* Private to a worker */
	uint64_t text, *trace;
	unsigned int *run_of; /* the last run in which a pair was reached */
	unsigned int run;
};

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

struct fuzz_cover *fuzz_cover(void)
{
	struct fuzz_cover *c;
	char text[32];

	if (access("/sys/kernel/debug/kcov", F_OK) ||
	    !t_read_file("/sys/module/tmesh/sections/.text", text, sizeof(text)))
		return NULL;
	c = calloc(1, sizeof(*c));
	REQUIRE(c);
	c->text = strtoull(text, NULL, 16);
	c->pairs = shared(FUZZ_PAIRS);
	c->places = shared(TEXT_MAX);
	return c;
}

void fuzz_cover_attach(struct fuzz_cover *c)
{
	int fd = REQUIRE_OK(open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC));

	REQUIRE_OK(ioctl(fd, KCOV_INIT_TRACE, TRACE_WORDS));
	c->trace = mmap(NULL, TRACE_WORDS * sizeof(*c->trace), PROT_READ | PROT_WRITE, MAP_SHARED,
			fd, 0);
	REQUIRE(c->trace != MAP_FAILED);
	REQUIRE_OK(ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC));
	c->run_of = calloc(FUZZ_PAIRS, sizeof(*c->run_of));
	REQUIRE(c->run_of);
}

void fuzz_cover_begin(struct fuzz_cover *c)
{
	c->run++;
	__atomic_store_n(&c->trace[0], 0, __ATOMIC_RELAXED);
}

int fuzz_cover_end(struct fuzz_cover *c, unsigned short fresh[FUZZ_PAIRS])
{
	uint64_t count = __atomic_load_n(&c->trace[0], __ATOMIC_RELAXED), before = 0;
	int found = 0;

	for (uint64_t i = 1; i <= count; i++) {
		uint64_t place = c->trace[i] - c->text;
		unsigned short pair = before * 31 ^ place;

		before = place;
		c->run_of[pair] = c->run;
		if (place < TEXT_MAX)
			c->places[place] = 1;
		if (!__atomic_exchange_n(&c->pairs[pair], 1, __ATOMIC_RELAXED))
			fresh[found++] = pair;
	}
	return found;
}

bool fuzz_cover_has(const struct fuzz_cover *c, const unsigned short *pairs, int count)
{
	while (count && c->run_of[pairs[count - 1]] == c->run)
		count--;
	return !count;
}

void fuzz_cover_forget(struct fuzz_cover *c)
{
	memset(c->pairs, 0, FUZZ_PAIRS);
}

int fuzz_cover_save(const struct fuzz_cover *c, FILE *to)
{
	int count = 0;

	for (int place = 0; place < TEXT_MAX; place++) {
		if (!c->places[place])
			continue;
		fprintf(to, "%#x\n", place);
		count++;
	}
	return count;
}
