/* SPDX-License-Identifier: MIT */
/* Messages on stdin and stdout: four bytes of length, the most significant first, then JSON. */
#ifndef TMESH_NET_FRAME_H
#define TMESH_NET_FRAME_H

#include <jansson.h>
#include <stddef.h>

/* Read a message into @text, which has room for @size bytes. Return: its bytes; 0 at the end of
 * input; -EPROTO if it is empty or larger, after which no more can be read; -EIO. */
long frame_read(int fd, char *text, size_t size);
/* Return @text as a JSON string, with "?" in place of each byte that is not UTF-8. Such bytes occur
 * in other users' paths and where a message was cut. NULL: no memory. */
json_t *frame_text(const char *text);
/* Write a message, from any thread, one at a time. Take ownership of @message; NULL stands for
 * one that could not be made. Messages are lost when the reader has gone; the end of stdin shows
 * that. */
void frame_write(int fd, json_t *message);

#endif /* TMESH_NET_FRAME_H */
