// SPDX-License-Identifier: MIT
/* Framing, as Erlang's ports want it ({packet, 4}). */
#include "frame.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/utf8.h"

/* Return the number of bytes read, which is less than @bytes at the end of input; -EIO. */
static long read_all(int fd, void *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = read(fd, (char *)data + done, bytes - done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -EIO;
		if (!got)
			break;
		done += got;
	}
	return done;
}

long frame_read(int fd, char *text, size_t size)
{
	uint32_t head = 0;
	long got = read_all(fd, &head, sizeof(head));
	size_t bytes = be32toh(head);

	if (got <= 0)
		return got;
	if (got != sizeof(head) || !bytes || bytes > size)
		return -EPROTO;
	got = read_all(fd, text, bytes);
	return got == (long)bytes || got < 0 ? got : -EPROTO;
}

static void write_all(int fd, const void *data, size_t bytes)
{
	while (bytes) {
		ssize_t put = write(fd, data, bytes);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return;
		data = (const char *)data + put;
		bytes -= put;
	}
}

json_t *frame_text(const char *text)
{
	char *clean = strdup(text);
	size_t left = strlen(text), at = 0;
	json_t *value;

	if (!clean)
		return NULL;
	for (;;) {
		size_t good = tmesh_utf8_span(clean + at, left, true);

		at += good;
		left -= good;
		if (!left)
			break;
		clean[at] = '?';
	}
	value = json_string(clean);
	free(clean);
	return value;
}

void frame_write(int fd, json_t *message)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	size_t bytes = message ? json_dumpb(message, NULL, 0, JSON_COMPACT) : 0;
	char *text = bytes ? malloc(sizeof(uint32_t) + bytes) : NULL;
	uint32_t head = htobe32(bytes);

	/* A requester without an answer would wait for ever. */
	if (!text)
		abort();
	memcpy(text, &head, sizeof(head));
	json_dumpb(message, text + sizeof(head), bytes, JSON_COMPACT);
	json_decref(message);
	pthread_mutex_lock(&lock);
	write_all(fd, text, sizeof(head) + bytes);
	pthread_mutex_unlock(&lock);
	free(text);
}
