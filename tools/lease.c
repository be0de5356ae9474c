// SPDX-License-Identifier: MIT
/* tmeshctl lease: a handle that ends, for a command or for inspection. */
#include <poll.h>
#include <sys/syscall.h>

#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"period", 'p', "SECONDS", "lapse without a touch for so long (default: 5)"},
	{"process", 'P', "PID", "end with this process too; without --period only then"},
	{"writable", 'w', NULL, "the handle may write"},
	{"zero", 'z', NULL, "taken memory reads as zeros instead of raising SIGBUS"},
	{NULL},
};

struct terms {
	uint64_t seconds;
	int pid; /* 0: none */
	uint32_t rights;
	enum tmesh_taken taken;
};

static int put_lease(struct tmesh_region *region, const struct terms *terms)
{
	uint64_t ns = terms->seconds * UINT64_C(1000000000);
	struct tmesh_error err;
	int pidfd, rc;

	if (!terms->pid) {
		rc = tmesh_lease_set(region, ns, terms->taken, &err);
	} else {
		pidfd = (int)syscall(SYS_pidfd_open, terms->pid, 0);
		if (pidfd < 0) {
			char what[48];

			snprintf(what, sizeof(what), "process %d", terms->pid);
			return complain_errno(what);
		}
		rc = tmesh_lease_bind(region, pidfd, ns, terms->taken, &err);
		close(pidfd);
	}
	return rc ? complain("leasing", &err) : STATUS_OK;
}

/* Wait until the lease lapses, without using the handle, and print that. */
static int await_lapse(struct tmesh_region *region)
{
	struct pollfd poller = {.fd = tmesh_region_fd(region)};
	enum tmesh_lease_status state;

	/* Poll every 100 ms: on memfd the library keeps the time, and no descriptor signals the
	 * end. */
	while ((state = tmesh_lease_state(region)) == TMESH_LEASE_IS_LIVE) {
		if (poll(&poller, 1, 100) < 0 && errno != EINTR)
			return complain_errno("waiting for the lease");
	}
	printf("%s\n", state == TMESH_LEASE_IS_REVOKED ? "revoked" : "lapsed");
	return STATUS_OK;
}

static int run_verb_lease(const struct verb *verb, int argc, char **argv)
{
	struct terms terms = {.rights = TMESH_READ};
	struct tmesh_region *region;
	char variable[32], **command;
	char *variables[] = {variable, NULL};
	struct tmesh_ctx *ctx;
	struct target target;
	int key, status;

	command = split_command(verb, &argc, argv);
	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'p':
			terms.seconds = seconds_option(verb, optarg);
			break;
		case 'P':
			terms.pid = (int)number_option(verb, optarg, "a process id", 1, INT32_MAX);
			break;
		case 'w':
			terms.rights |= TMESH_WRITE;
			break;
		case 'z':
			terms.taken = TMESH_TAKEN_ZERO;
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0])
		usage_error(verb, "a lease is put on a handle, which needs a token");

	status = open_target(&target, terms.rights, &ctx, &region);
	if (status)
		return status;
	status = put_lease(region, &terms);
	if (!status && command) {
		/* Waiting for a command blocks these signals; without a command they end the
		 * tool. */
		hold_signals();
		snprintf(variable, sizeof(variable), "TMESH_HANDLE_FD=%d", tmesh_region_fd(region));
		status = run_command(command, variables, tmesh_region_fd(region));
	} else if (!status) {
		status = await_lapse(region);
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_lease = {"lease", "TOKEN [-- COMMAND [ARGUMENT...]]",
				"open a region for a limited time", options, run_verb_lease};
