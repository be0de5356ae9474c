/* SPDX-License-Identifier: MIT */
/* A device that imports dma-bufs as it is told: /dev/peer, which the guests load. */
#ifndef TMESH_KSELFTEST_PEER_H
#define TMESH_KSELFTEST_PEER_H

#include <fcntl.h>
#include <sys/ioctl.h>

#include "../vm/peer/peer.h"
#include "t.h"

/* A device with nothing attached, or the test is skipped. */
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

/* Lets go of what was attached: nothing has this descriptor. */
static inline void peer_let_go(int peer)
{
	CHECK_ERR(peer_import(peer, -1, 0), EBADF);
}

#endif
