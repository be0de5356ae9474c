// SPDX-License-Identifier: MIT
/* Confine a process without an engine, and print which of its attempts were denied. */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"

struct result {
	int rc;
	unsigned int proved;
	struct tmesh_error err;
};

static void try_all(struct result *result)
{
	const struct options none = {.backend = ""};

	result->rc = shed_rights(true, &result->err);
	if (!result->rc)
		result->rc = confine(&none, -1, &result->err);
	if (!result->rc)
		result->rc = prove_rights(&result->err);
	if (!result->rc)
		result->rc = filter_calls(&result->err);
	if (!result->rc)
		result->rc = prove_confined(&result->proved, &result->err);
}

int check(void)
{
	struct result result = {0};
	int ends[2];
	pid_t pid;

	if (pipe(ends) || (pid = fork()) < 0) {
		perror("tmesh-engine: a process to be confined");
		return 1;
	}
	if (!pid) {
		try_all(&result);
		_exit(write(ends[1], &result, sizeof(result)) != sizeof(result));
	}
	close(ends[1]);
	if (read(ends[0], &result, sizeof(result)) != sizeof(result)) {
		result.rc = -EIO;
		tmesh_fail(&result.err, -EIO, "the process died");
	}
	close(ends[0]);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (result.rc) {
		printf("not confined: %s\n", result.err.message);
		return EXIT_UNCONFINED;
	}
	printf("confined: files by Landlock (ABI %d), system calls by seccomp; %u of %u attempts "
	       "from "
	       "inside were denied\n",
	       confine_abi(), result.proved, result.proved);
	return 0;
}
