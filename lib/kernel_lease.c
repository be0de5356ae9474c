// SPDX-License-Identifier: MIT
/* Part of the kernel backend: leases, reclaiming, fences. */
#include "kernel.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert((int)TMESH_LEASE_IS_LIVE == TMESH_LEASE_LIVE &&
		       (int)TMESH_LEASE_HAS_LAPSED == TMESH_LEASE_LAPSED &&
		       (int)TMESH_LEASE_IS_REVOKED == TMESH_LEASE_REVOKED,
	       "states are the module's");

int tmesh_kernel_lease_set(struct tmesh_region *region, uint64_t ns, int pidfd,
			   struct tmesh_error *err)
{
	struct tmesh_lease lease = {
		.size = sizeof(lease),
		.flags = pidfd >= 0 ? TMESH_LEASE_PROCESS : 0,
		.period_ns = ns,
		.pidfd = pidfd >= 0 ? pidfd : 0,
	};

	if (ioctl(region->fd, TMESH_LEASE, &lease)) {
		switch (errno) {
		case EBUSY:
			return tmesh_fail(err, -EBUSY, "lease: this handle has one already");
		case EINVAL:
			return tmesh_fail(
				err, -EINVAL,
				region->pinning ? "lease: a pinning handle cannot have one"
				: pidfd >= 0 ? "lease: the descriptor is not the pidfd of a process"
					     : "lease: a period is 10 ms to 1 h");
		case EOPNOTSUPP:
			return tmesh_fail(err, -EOPNOTSUPP,
					  "lease: the mappings of this region belong to another "
					  "file and cannot be taken away");
		case ESRCH:
			return tmesh_fail(err, -ESRCH, "lease: that process has ended");
		default:
			return tmesh_kernel_fail(err, "lease");
		}
	}
	/* It is mapped when it is first touched, perhaps by another process. */
	close(lease.fd);
	return 0;
}

int tmesh_kernel_lease_map(struct tmesh_region *region, struct tmesh_lease_pages *pages,
			   struct tmesh_error *err)
{
	struct tmesh_lease lease = {.size = sizeof(lease), .flags = TMESH_LEASE_GET};
	size_t page = tmesh_page_bytes();
	void *touch, *state;
	int rc = 0;

	/* -ENODATA: there is none. */
	if (ioctl(region->fd, TMESH_LEASE, &lease))
		return tmesh_kernel_fail(err, "lease");
	touch = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, lease.fd, 0);
	state = mmap(NULL, page, PROT_READ, MAP_SHARED, lease.fd, (off_t)page);
	if (touch == MAP_FAILED || state == MAP_FAILED) {
		rc = tmesh_fail_errno(err, "mapping a lease");
		if (touch != MAP_FAILED)
			munmap(touch, page);
		if (state != MAP_FAILED)
			munmap(state, page);
	} else {
		pages->touch = touch;
		pages->state = state;
	}
	close(lease.fd);
	return rc;
}

int tmesh_kernel_when_taken(struct tmesh_region *region, enum tmesh_taken taken,
			    struct tmesh_error *err)
{
	struct tmesh_policy policy = {
		.size = sizeof(policy),
		.flags = taken == TMESH_TAKEN_ZERO ? TMESH_POLICY_ZERO : 0,
	};

	if (ioctl(region->fd, TMESH_POLICY, &policy))
		return tmesh_kernel_fail(err, "setting what a touch of taken memory does");
	return 0;
}

/* List the users of the memory: "device, view 0123, ...". */
static void name_users(char *text, size_t bytes, const struct tmesh_holder *holders, uint32_t count)
{
	size_t used = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < count && used < bytes; i++) {
		const char *comma = used ? ", " : "";

		if (holders[i].kind == TMESH_HOLDER_DEVICE)
			used += (size_t)snprintf(text + used, bytes - used, "%s%.31s", comma,
						 holders[i].device);
		else if (holders[i].kind == TMESH_HOLDER_GATHER)
			used += (size_t)snprintf(text + used, bytes - used, "%sview %016llx", comma,
						 (unsigned long long)holders[i].view);
	}
}

int tmesh_kernel_reclaim(struct tmesh_region *region, uint64_t timeout_ns,
			 struct tmesh_reclaim_report *report, struct tmesh_error *err)
{
	struct tmesh_holder holders[8];
	struct tmesh_revoke revoke = {
		.size = sizeof(revoke),
		.flags = TMESH_REVOKE_WAIT,
		.entries = (uintptr_t)holders,
		.entry_bytes = sizeof(holders[0]),
		.count = 8,
		.timeout_ns = timeout_ns,
	};
	int code = ioctl(region->fd, TMESH_REVOKE, &revoke) ? errno : 0;
	char who[128];

	if (code && code != ETIMEDOUT && code != EINTR) {
		errno = code;
		return code == EBUSY ? tmesh_kernel_pinned(&revoke, holders, 8, err)
				     : tmesh_kernel_fail(err, "reclaim");
	}
	*report = (struct tmesh_reclaim_report){
		.pinned_bytes = revoke.pinned_bytes,
		.exports = revoke.exports,
		.attachments = revoke.attachments,
	};
	if (!code)
		return 0;
	name_users(who, sizeof(who), holders, revoke.count < 8 ? revoke.count : 8);
	return tmesh_fail(err, -code,
			  "reclaim: %llu bytes are still in use: %u dma-bufs, %u devices%s%s",
			  (unsigned long long)revoke.pinned_bytes, revoke.exports,
			  revoke.attachments, *who ? ": " : ", or I/O in flight", who);
}

int tmesh_kernel_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			 struct tmesh_error *err)
{
	*wait = 0;
	if (events & TMESH_EVENT_ALONE)
		*wait |= POLLOUT;
	if (events & TMESH_EVENT_POISONED)
		*wait |= POLLPRI;
	return region->fd;
}

uint32_t tmesh_kernel_events(struct tmesh_region *region)
{
	struct pollfd poller = {.fd = region->fd, .events = POLLOUT | POLLPRI};
	struct tmesh_info info;
	uint32_t events = 0;

	if (poll(&poller, 1, 0) < 0)
		return 0;
	if (poller.revents & POLLHUP)
		events |= TMESH_EVENT_TAKEN;
	if (poller.revents & POLLPRI)
		events |= TMESH_EVENT_POISONED;
	/* For a region that was taken back, poll() does not report whether it is alone. */
	if (poller.revents & POLLOUT ||
	    ((events & TMESH_EVENT_TAKEN) && !tmesh_kernel_info(region->fd, &info) &&
	     info.handles + info.exports == 1))
		events |= TMESH_EVENT_ALONE;
	return events;
}

int tmesh_kernel_signal(struct tmesh_region *region, uint64_t value, struct tmesh_error *err)
{
	struct tmesh_signal signal = {.size = sizeof(signal), .value = value};

	if (!ioctl(region->fd, TMESH_SIGNAL, &signal))
		return 0;
	if (errno == EINVAL)
		return tmesh_fail(err, -EINVAL, "signal: %llu is not more than the fence has",
				  (unsigned long long)value);
	return errno == EBUSY ? tmesh_fail(err, -EBUSY, "signal: the region has a producer")
			      : tmesh_kernel_fail(err, "signal");
}

int tmesh_kernel_wait(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		      uint64_t *reached, struct tmesh_error *err)
{
	struct tmesh_wait wait = {
		.size = sizeof(wait),
		.value = value,
		.timeout_ns = timeout_ns,
	};
	int code = ioctl(region->fd, TMESH_WAIT, &wait) ? errno : 0;

	switch (code) {
	case 0:
		*reached = wait.value;
		return 0;
	case ETIMEDOUT:
	case EOWNERDEAD:
	case EINTR:
		*reached = wait.value;
		return tmesh_fail(err, -code, "the fence is at %llu, not at %llu%s",
				  (unsigned long long)wait.value, (unsigned long long)value,
				  code == EOWNERDEAD ? ", and its producer is gone" : "");
	default:
		return tmesh_kernel_fail(err, "waiting for a fence");
	}
}
