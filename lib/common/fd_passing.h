/* SPDX-License-Identifier: MIT */
/* Messages with descriptors on Unix sockets. */
#ifndef TMESH_COMMON_FD_PASSING_H
#define TMESH_COMMON_FD_PASSING_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

/* The most descriptors that one call sends or receives: SCM_MAX_FD of the kernel. */
#define TMESH_FDS_MOST 253

/* More bytes of a control buffer, for what a socket's options make the kernel put before the
 * descriptors. It is the sender's credentials, process or label, and a time. */
#define TMESH_FDS_BESIDE 512
#define TMESH_SO_PASSPIDFD 76 /* of Linux 6.5: SCM_PIDFD comes with each message */

/* Send a message with @count descriptors, by sendmsg() with @flags and MSG_NOSIGNAL. Return: the
 * bytes sent, or a negative errno, never -EINTR. */
ssize_t tmesh_fds_send(int socket, const void *data, size_t bytes, const int *fds,
		       unsigned int count, int flags);

struct tmesh_fds {
	int *fds;
	unsigned int room;  /* at most TMESH_FDS_MOST; 0: descriptors that come are closed */
	unsigned int count; /* grows by those that came */
	bool any_socket;    /* a caller's, whose options may add credentials, a label or a time */
	/*
	 * 0, or an error. It is -EPROTO if the message has more descriptors than @room, a file that
	 * a process may serve (tmesh_foreign_may_be_served()), or anything else that is not
	 * expected. It is -EMFILE if this process has no number for one of them, or has too many
	 * that it cannot close (tmesh_foreign_room()).
	 */
	int problem;
	bool cut; /* the message is longer than @bytes */
};

/*
 * Receive a message by recvmsg() with @flags and MSG_CMSG_CLOEXEC. Descriptors in excess, and files
 * that a process may serve, are closed without waiting. All others are the caller's, also when
 * @got->problem is set: closing them never blocks. Return: the bytes received, or a negative errno,
 * never -EINTR.
 */
ssize_t tmesh_fds_recv(int socket, void *data, size_t bytes, struct tmesh_fds *got, int flags);

/*
 * Close the descriptor of the sender's process (SCM_PIDFD) if @control has it. The kernel adds it
 * to each message as long as the socket has TMESH_SO_PASSPIDFD, which any process with the socket
 * can set. Return: whether @control had it.
 */
bool tmesh_fds_close_process(const struct cmsghdr *control);

#endif /* TMESH_COMMON_FD_PASSING_H */
