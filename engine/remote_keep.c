// SPDX-License-Identifier: MIT
/*
 * What an engine's process keeps open for a client, beyond the client's death: descriptors whose
 * end others wait for, before they use memory that the engine writes for this client.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "remote.h"

/* The descriptor of @region, to the present link. */
static int tell(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err)
{
	struct wire_cancel words = {.magic = WIRE_MAGIC, .what = WIRE_KEEP};
	struct iovec vector = {.iov_base = &words, .iov_len = sizeof(words)};
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct msghdr message = {.msg_iov = &vector,
				 .msg_iovlen = 1,
				 .msg_control = control.room,
				 .msg_controllen = sizeof(control.room)};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int fd, rc = tmesh_region_opaque_fd(region, &fd, err);
	ssize_t sent;

	if (rc)
		return rc;
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	do
		sent = sendmsg(remote->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
		rc = REMOTE_AGAIN;
	else if (sent < 0)
		rc = tmesh_fail_errno(err, "telling the engine what to keep");
	close(fd);
	return rc;
}

int remote_tell_kept(struct remote *remote, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < remote->kept_count && !rc; i++)
		rc = tell(remote, remote->kept[i], err);
	return rc;
}

/* Those that hung up need no keeping any more. */
static void let_go(struct remote *remote)
{
	size_t left = 0;

	for (size_t i = 0; i < remote->kept_count; i++) {
		bool over = true;
		int fd;

		if (!tmesh_region_opaque_fd(remote->kept[i], &fd, NULL)) {
			over = wire_hung_up(fd);
			close(fd);
		}
		if (over)
			tmesh_region_unref(remote->kept[i]);
		else
			remote->kept[left++] = remote->kept[i];
	}
	remote->kept_count = left;
}

int remote_keep(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err)
{
	uint64_t deadline = remote_deadline(remote);
	struct cancel_hook hook;
	int rc = remote_enter(remote, &hook, deadline, err);

	if (rc)
		return rc;
	let_go(remote);
	if (remote->kept_count == WIRE_KEPT) {
		rc = tmesh_fail(err, -EDQUOT, "an engine keeps at most %d descriptors for a client",
				WIRE_KEPT);
	} else {
		do {
			rc = remote_link(remote, deadline, err);
			if (!rc)
				rc = tell(remote, region, err);
			if (rc == REMOTE_AGAIN)
				remote_unlink(remote);
		} while (rc == REMOTE_AGAIN);
		if (!rc)
			remote->kept[remote->kept_count++] = tmesh_region_ref(region);
	}
	remote_leave(remote, &hook);
	return rc;
}
