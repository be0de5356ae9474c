// SPDX-License-Identifier: MIT
/*
 * Lifelines: descriptors that an engine's process keeps open for a client, even after the client's
 * death. Other processes wait for their end before they use memory that the engine writes for this
 * client.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/fd_passing.h"
#include "remote.h"

/* Send the descriptor of @region on the current link. */
static int lifeline_send(struct remote *remote, struct tmesh_region *region,
			 struct tmesh_error *err)
{
	struct wire_cancel words = {.magic = WIRE_MAGIC, .what = WIRE_LIFELINE};
	int fd, rc = tmesh_region_opaque_fd(region, &fd, err);
	ssize_t sent;

	if (rc)
		return rc;
	sent = tmesh_fds_send(remote->socket, &words, sizeof(words), &fd, 1, MSG_DONTWAIT);
	if (sent == -EPIPE || sent == -ECONNRESET) {
		rc = REMOTE_AGAIN;
	} else if (sent < 0) {
		errno = (int)-sent;
		rc = tmesh_fail_errno(err, "giving the engine a lifeline");
	}
	close(fd);
	return rc;
}

int remote_tell_kept(struct remote *remote, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < remote->kept_count && !rc; i++)
		rc = lifeline_send(remote, remote->kept[i], err);
	return rc;
}

/* Drop lifelines whose other end hung up. */
static void lifelines_release(struct remote *remote)
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

static int lifeline_add(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err)
{
	int rc = 0;

	lifelines_release(remote);
	if (remote->kept_count == WIRE_KEPT) {
		rc = tmesh_fail(err, -EDQUOT, "an engine keeps at most %d descriptors for a client",
				WIRE_KEPT);
	} else {
		do {
			rc = remote_link(remote, err);
			if (!rc)
				rc = lifeline_send(remote, region, err);
			if (rc == REMOTE_AGAIN)
				remote_unlink(remote);
		} while (rc == REMOTE_AGAIN);
		if (!rc)
			remote->kept[remote->kept_count++] = tmesh_region_ref(region);
	}
	return rc;
}

int remote_lifeline(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err)
{
	uint64_t before = deadline_enter(remote_deadline(remote));
	struct cancel_hook hook;
	int rc = remote_enter(remote, &hook, err);

	if (!rc) {
		rc = lifeline_add(remote, region, err);
		remote_leave(remote, &hook);
	}
	deadline_enter(before);
	return rc;
}
