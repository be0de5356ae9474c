/* SPDX-License-Identifier: MIT */
/* Messages on stdin and stdout: four bytes of length, the most significant first, then JSON. */
#ifndef TMESH_NET_FRAME_H
#define TMESH_NET_FRAME_H

#include <jansson.h>
#include <stddef.h>

/* Return: the message's bytes, @text has room for @size; 0 at the end of input; -EPROTO for one
 * that is empty or larger, after which no more can be read; -EIO. */
long frame_read(int fd, char *text, size_t size);
/* From any thread, one message at a time. Takes @message, NULL for one that could not be made. What
 * nobody reads any more is lost: the end of input tells of it. */
void frame_write(int fd, json_t *message);

#endif /* TMESH_NET_FRAME_H */
