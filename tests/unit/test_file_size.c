// SPDX-License-Identifier: MIT
/* RLIMIT_FSIZE, which bounds memfds too: a call that would pass it fails, and kills no process. */
#include "common/file_size.h"
#include "unit.h"

#define LIMIT (64u << 10)
#define LARGE (1u << 20)

static void use_little(struct tmesh_ctx *ctx, struct tmesh_region *large)
{
	const struct rlimit little = {LIMIT, LIMIT};
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];
	sigset_t pending;

	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	assert_refused(tmesh_region_create(ctx, LARGE, NULL, &region, err), -EFBIG, "RLIMIT_FSIZE");
	assert_refused(tmesh_region_write(large, LARGE / 2, "x", 1, err), -EFBIG, "RLIMIT_FSIZE");
	assert_refused(tmesh_region_set_description(large, "text", err), -EFBIG, "RLIMIT_FSIZE");
	/* A message to standard error, which may be a file. */
	assert_int_equal(lseek(STDERR_FILENO, LIMIT, SEEK_SET), LIMIT);
	assert_int_equal(tmesh_dprintf(STDERR_FILENO, "%d\n", 1), -1);
	/* Smaller ones are made as before. */
	assert_ok(tmesh_region_create(ctx, LIMIT / 4, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, "x", 1, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	tmesh_region_unref(region);
	assert_int_equal(sigpending(&pending), 0);
	assert_false(sigismember(&pending, SIGXFSZ));
	pthread_sigmask(SIG_BLOCK, NULL, &pending);
	assert_false(sigismember(&pending, SIGXFSZ));
}

static atomic_int handled;

static void count(int signal)
{
	handled++;
}

/* The process gets no signal from the library, whether it handles the signal or not. */
UNIT_CTX(test_limit)
{
	for (int handles = 0; handles < 2; handles++) {
		struct tmesh_region *large;
		pid_t child;

		child = fork();
		if (!child) {
			signal(SIGXFSZ, handles ? count : SIG_DFL);
			assert_ok(tmesh_region_create(*state, LARGE, NULL, &large, err));
			assert_int_equal(dup2(memfd(0, 0), STDERR_FILENO), STDERR_FILENO);
			use_little(*state, large);
			_exit(handled ? 2 : 0);
		}
		join_child(child);
	}
}

UNIT_MAIN("file_size", unit_memfd_setup, NULL)
