// SPDX-License-Identifier: MIT
/*
 * Regions that stand for a descriptor which only its driver understands, on memfd. Such a region's
 * own file is a card: it has the name and the description, and is found in /proc like others. No
 * byte of it is ever touched. The descriptor and a revocation pipe go with it.
 *
 * The revocation pipe is a pipe that its maker has filled. The maker keeps the read end, each other
 * holder a write end. So poll() informs both sides, also about processes that were killed:
 *
 *  maker   POLLHUP   no other process holds the region
 *  holder  POLLOUT   there is room in the pipe again: it was emptied, to take the region back
 *          POLLERR   the maker is gone; the region is its holders' now
 */
#include "common/foreign.h"
#include "common/others.h"
#include "held.h"
#include "memfd.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static short poll_once(int fd, short events)
{
	struct pollfd poller = {.fd = fd, .events = events};

	return poll(&poller, 1, 0) < 0 ? 0 : poller.revents;
}

static bool is_maker(const struct tmesh_region *region)
{
	return region->memfd.revoke_pipe_made;
}

static void enlist(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;

	pthread_mutex_lock(&ctx->lock);
	region->memfd.opaque_next = ctx->memfd.opaque;
	ctx->memfd.opaque = region;
	pthread_mutex_unlock(&ctx->lock);
}

static void delist(struct tmesh_region *region)
{
	struct tmesh_region **at = &region->ctx->memfd.opaque;

	pthread_mutex_lock(&region->ctx->lock);
	while (*at != region)
		at = &(*at)->memfd.opaque_next;
	*at = region->memfd.opaque_next;
	pthread_mutex_unlock(&region->ctx->lock);
}

static int make_revoke_pipe(struct tmesh_region *region, struct tmesh_error *err)
{
	static const char fill[4096];
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return tmesh_fail_errno(err, "making a pipe that shows the region's holders");
	/* A larger one is filled as well. */
	fcntl(ends[1], F_SETPIPE_SZ, (int)tmesh_page_bytes());
	while (write(ends[1], fill, sizeof(fill)) > 0)
		;
	close(ends[1]);
	region->memfd.revoke_pipe = ends[0];
	region->memfd.revoke_pipe_made = true;
	enlist(region);
	return 0;
}

int tmesh_opaque_create(struct tmesh_region *region, int fd, struct tmesh_error *err)
{
	region->memfd.device = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (region->memfd.device < 0)
		return errno == EBADF ? tmesh_fail(err, -EBADF, "%d is not an open descriptor", fd)
				      : tmesh_fail_errno(err, "duplicating a descriptor");
	return make_revoke_pipe(region, err);
}

unsigned int tmesh_opaque_count(const struct tmesh_wire_region *wire)
{
	/* The module's handles are one descriptor each, whatever they stand for. */
	if (wire->backend != TMESH_BACKEND_MEMFD || !(wire->kind & TMESH_KIND_OPAQUE))
		return 0;
	return wire->rights & TMESH_WRITE ? 2 : 1;
}

int tmesh_opaque_handles(struct tmesh_region *region, uint32_t rights, int *fds,
			 struct tmesh_error *err)
{
	int rc;

	fds[0] = is_maker(region) ? tmesh_reopen(region->ctx, region->memfd.revoke_pipe,
						 O_WRONLY | O_NONBLOCK, err)
				  : fcntl(region->memfd.revoke_pipe, F_DUPFD_CLOEXEC, 0);
	if (fds[0] < 0)
		return is_maker(region)
			       ? fds[0]
			       : tmesh_fail_errno(
					 err,
					 "duplicating the pipe that tells of the region's end");
	if (!(rights & TMESH_WRITE))
		return 1;
	fds[1] = fcntl(region->memfd.device, F_DUPFD_CLOEXEC, 0);
	if (fds[1] >= 0)
		return 2;
	rc = tmesh_fail_errno(err, "duplicating a descriptor");
	close(fds[0]);
	return rc;
}

void tmesh_opaque_adopt(struct tmesh_region *region, const int *fds, unsigned int count)
{
	region->memfd.revoke_pipe = fds[0];
	region->memfd.device = count > 1 ? fds[1] : -1;
	enlist(region);
}

static void close_both(struct tmesh_region *region)
{
	int fds[] = {region->memfd.revoke_pipe, region->memfd.device};

	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0 && region->memfd.revoke_pipe_made)
			close(fds[i]);
		else if (fds[i] >= 0)
			tmesh_foreign_close(fds[i], TMESH_GIVER_UNKNOWN);
	region->memfd.revoke_pipe = region->memfd.device = -1;
}

void tmesh_opaque_close(struct tmesh_region *region)
{
	if (region->memfd.revoke_pipe >= 0)
		delist(region);
	close_both(region);
}

/* Close the pipes in a child. Otherwise the region would seem to have a living maker, or another
 * holder, as long as the child runs. */
void tmesh_opaque_forked(struct tmesh_ctx *ctx)
{
	for (struct tmesh_region *region = ctx->memfd.opaque; region;
	     region = region->memfd.opaque_next)
		close_both(region);
	ctx->memfd.opaque = NULL;
}

int tmesh_opaque_refuse(const struct tmesh_region *region, const char *what,
			struct tmesh_error *err)
{
	if (!(region->kind & TMESH_KIND_OPAQUE))
		return 0;
	return tmesh_fail(err, -EOPNOTSUPP,
			  "%s: the region stands for a descriptor; there is no memory", what);
}

/* Return whether the region was taken back. No process refills a holder's end of the revocation
 * pipe, so this stays true. */
static bool taken(const struct tmesh_region *region)
{
	if (is_maker(region))
		return region->memfd.taken_back;
	return poll_once(region->memfd.revoke_pipe, POLLOUT) & POLLOUT;
}

int tmesh_memfd_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err)
{
	if (!(region->kind & TMESH_KIND_OPAQUE))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the region is memory; it stands for no descriptor");
	if (taken(region))
		return tmesh_fail(err, -ESTALE,
				  "asking for the descriptor: the region was taken back");
	*fd = fcntl(region->memfd.device, F_DUPFD_CLOEXEC, 0);
	return *fd < 0 ? tmesh_fail_errno(err, "duplicating a descriptor") : 0;
}

int tmesh_memfd_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			struct tmesh_error *err)
{
	if (!(region->kind & TMESH_KIND_OPAQUE))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "poll: a memfd's memory has no events; they need the module");
	if (events & TMESH_EVENT_POISONED)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "poll: memory errors are not reported on memfd; load the module");
	/* The maker gets no event for its own action. */
	if (events & (is_maker(region) ? TMESH_EVENT_TAKEN : TMESH_EVENT_ALONE))
		return tmesh_fail(err, -EOPNOTSUPP,
				  is_maker(region)
					  ? "poll: the region is this process's to take back"
					  : "poll: only a region's maker can wait until it has no "
					    "other holder");
	*wait = is_maker(region) ? 0 : POLLOUT;
	return region->memfd.revoke_pipe;
}

uint32_t tmesh_memfd_events(struct tmesh_region *region)
{
	uint32_t events = 0;
	short seen;

	if (!(region->kind & TMESH_KIND_OPAQUE))
		return 0;
	if (taken(region))
		events |= TMESH_EVENT_TAKEN;
	seen = poll_once(region->memfd.revoke_pipe, 0);
	if (is_maker(region) && (seen & POLLHUP))
		events |= TMESH_EVENT_ALONE;
	if (!is_maker(region) && (seen & POLLERR))
		events |= TMESH_EVENT_ORPHANED;
	return events;
}

/* Revoke the region. Its tokens end first, so a process that opens one later gets nothing. Then the
 * pipe informs the processes that hold it. */
int tmesh_memfd_revoke(struct tmesh_region *region, struct tmesh_error *err)
{
	char rest[4096];

	if (!(region->kind & TMESH_KIND_OPAQUE))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "revoke: memory of a memfd cannot be taken back; it needs the "
				  "module");
	if (!is_maker(region))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "revoke: without the module only the process that made the "
				  "region takes it back");
	tmesh_region_lock(region);
	pthread_mutex_lock(&region->ctx->lock);
	region->memfd.taken_back = true;
	tmesh_server_forget(region);
	tmesh_hold_revoke(region);
	pthread_mutex_unlock(&region->ctx->lock);
	while (read(region->memfd.revoke_pipe, rest, sizeof(rest)) > 0)
		;
	tmesh_region_unlock(region);
	return 0;
}

static int still_held(struct tmesh_region *region, struct tmesh_error *err)
{
	struct tmesh_holder_info *holders = NULL;
	char text[128];
	size_t count = 0;

	if (tmesh_proc_holders(region->ctx, region->id, &holders, &count, NULL))
		count = 0;
	tmesh_name_others(holders, count, "this process itself, or one that cannot be seen here",
			  text, sizeof(text));
	free(holders);
	return tmesh_fail(err, -ETIMEDOUT, "reclaim: processes still hold the memory: %s", text);
}

/* Revoke the region and wait until its holders have released it. Nothing forces them. */
int tmesh_memfd_reclaim(struct tmesh_region *region, uint64_t timeout_ns,
			struct tmesh_reclaim_report *report, struct tmesh_error *err)
{
	struct pollfd poller = {.fd = region->memfd.revoke_pipe};
	uint64_t deadline = tmesh_now_ns() + timeout_ns;
	int rc = tmesh_memfd_revoke(region, err);

	*report = (struct tmesh_reclaim_report){.size = sizeof(*report)};
	if (rc)
		return rc;
	if (deadline < timeout_ns)
		deadline = UINT64_MAX;
	rc = poll(&poller, 1, tmesh_poll_ms(deadline));
	if (rc < 0)
		return tmesh_fail_errno(err, "reclaim");
	return rc ? 0 : still_held(region, err);
}
