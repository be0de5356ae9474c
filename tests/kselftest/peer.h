/* SPDX-License-Identifier: MIT */
/*
 * /dev/peer, a device that imports dma-bufs by ioctl. The guests load its module.
 */
#ifndef TMESH_KSELFTEST_PEER_H
#define TMESH_KSELFTEST_PEER_H

#include "../vm/peer/peer.h"
#include "t.h"

/* Open a device with nothing attached, or skip the test. */
static inline int open_peer(void)
{
	int peer = open("/dev/peer", O_RDWR | O_CLOEXEC);

	if (peer < 0)
		t_skip("no /dev/peer");
	return peer;
}

static inline int peer_import(int peer, int dmabuf, __u32 flags)
{
	struct peer_import i = {.dmabuf = dmabuf, .flags = flags};

	return ioctl(peer, PEER_IMPORT, &i);
}

/* Fork a process that holds the reservation of a dma-buf until peer_release(). */
static inline pid_t peer_hold(int peer, int dmabuf)
{
	pid_t pid = t_fork();

	if (!pid) {
		ioctl(peer, PEER_HOLD, dmabuf);
		_exit(0);
	}
	while (ioctl(peer, PEER_HELD) != 1)
		usleep(1000);
	return pid;
}

static inline void peer_release(int peer, pid_t holder)
{
	CHECK_OK(ioctl(peer, PEER_LET));
	t_wait(holder);
}

/* Parts of a view that a device's table cannot merge, because two pages alternate */
#define PEER_PARTS (1u << 16)

/* Export a view for which each device needs a table of megabytes. */
static inline int export_of_many(void)
{
	struct tmesh_extent *parts = malloc(PEER_PARTS * sizeof(*parts));
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, 2 * PAGE, TMESH_CREATE_NOHUGE)), view;

	REQUIRE(parts);
	for (unsigned int i = 0; i < PEER_PARTS; i++)
		parts[i] = t_extent(fd, i % 2, 1);
	view = REQUIRE_OK(t_gather(dev, parts, PEER_PARTS, R_READ));
	free(parts);
	return REQUIRE_OK(t_export(view, 0, 0, 0));
}

/* Detach everything: no dma-buf has this descriptor. */
static inline void peer_let_go(int peer)
{
	CHECK_ERR(peer_import(peer, -1, 0), EBADF);
}

#endif
