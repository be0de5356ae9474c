// SPDX-License-Identifier: MIT
/*
 * The pieces of a fetch that are under way, in a ring of reused buffers. The fetching thread
 * requests them and sums them up in order; a second thread then writes them into the region.
 * Receiving into the region itself takes several times as long, because each fresh page would fault
 * in the middle of a receive. And a lack of memory is an error here; there it would be a signal.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "net_internal.h"

struct net_window {
	struct tmesh_region *region;
	uint8_t *memory;
	size_t size;
	unsigned int count; /* of buffers */
	unsigned int asked; /* pieces, all counted from the beginning; of the fetching thread */
	bool threaded;
	pthread_t writer;

	pthread_mutex_t lock;
	pthread_cond_t summed_more, written_more;
	unsigned int summed, written;
	bool end;
	int rc;
	struct tmesh_error err;

	struct net_piece pieces[NET_PIECES];
};

/* Write the next piece. Called with the lock, which is released meanwhile. */
static void write_piece(struct net_window *window)
{
	struct net_piece *piece = &window->pieces[window->written % window->count];
	struct tmesh_error err = {0};
	int rc;

	pthread_mutex_unlock(&window->lock);
	rc = tmesh_region_write(window->region, piece->offset, piece->memory, piece->bytes, &err);
	pthread_mutex_lock(&window->lock);
	window->rc = rc;
	window->err = err;
	window->written++;
	pthread_cond_signal(&window->written_more);
}

static void *writer(void *data)
{
	struct net_window *window = data;

	pthread_mutex_lock(&window->lock);
	for (;;) {
		while (window->written == window->summed && !window->end)
			pthread_cond_wait(&window->summed_more, &window->lock);
		if (window->end || window->rc)
			break;
		write_piece(window);
	}
	pthread_mutex_unlock(&window->lock);
	return NULL;
}

int net_window_open(struct tmesh_region *region, bool touch, struct net_window **out,
		    struct tmesh_error *err)
{
	uint64_t bytes = tmesh_region_bytes(region);
	uint64_t pieces = (bytes - 1) / NET_PIECE_BYTES + 1;
	struct net_window *window = calloc(1, sizeof(*window));

	if (!window)
		return tmesh_fail(err, -ENOMEM, "no memory for a fetch");
	window->region = region;
	window->count = pieces < NET_PIECES ? pieces : NET_PIECES;
	window->size = pieces > 1 ? (size_t)window->count * NET_PIECE_BYTES : bytes;
	window->memory = mmap(NULL, window->size, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (window->memory == MAP_FAILED) {
		free(window);
		return tmesh_fail(err, -ENOMEM, "no memory for a fetch");
	}
	/* Only an optimisation: without it there are a few faults more. */
	madvise(window->memory, window->size, MADV_HUGEPAGE);
	if (touch)
		memset(window->memory, 0, window->size);
	for (unsigned int i = 0; i < window->count; i++)
		window->pieces[i].memory = window->memory + (size_t)i * NET_PIECE_BYTES;
	pthread_mutex_init(&window->lock, NULL);
	pthread_cond_init(&window->summed_more, NULL);
	pthread_cond_init(&window->written_more, NULL);
	/* If no thread can be created the fetching thread writes. */
	window->threaded = pieces > 2 && !pthread_create(&window->writer, NULL, writer, window);
	*out = window;
	return 0;
}

void net_window_close(struct net_window *window, bool idle)
{
	if (window->threaded) {
		pthread_mutex_lock(&window->lock);
		window->end = true;
		pthread_cond_signal(&window->summed_more);
		pthread_mutex_unlock(&window->lock);
		pthread_join(window->writer, NULL);
	}
	pthread_mutex_destroy(&window->lock);
	pthread_cond_destroy(&window->summed_more);
	pthread_cond_destroy(&window->written_more);
	/* If not idle, libfabric may still write to it. */
	if (idle) {
		munmap(window->memory, window->size);
		free(window);
	}
}

void *net_window_memory(struct net_window *window, size_t *size)
{
	*size = window->size;
	return window->memory;
}

struct net_piece *net_window_room(struct net_window *window)
{
	struct net_piece *piece = &window->pieces[window->asked % window->count];
	bool room;

	pthread_mutex_lock(&window->lock);
	room = window->asked - window->written < window->count;
	pthread_mutex_unlock(&window->lock);
	return room ? piece : NULL;
}

void net_window_asked(struct net_window *window)
{
	window->pieces[window->asked++ % window->count].come = false;
}

struct net_piece *net_window_next(struct net_window *window)
{
	/* Only this thread changes summed. */
	struct net_piece *piece = &window->pieces[window->summed % window->count];

	return window->summed != window->asked && piece->come ? piece : NULL;
}

void net_window_summed(struct net_window *window)
{
	pthread_mutex_lock(&window->lock);
	window->summed++;
	if (window->threaded)
		pthread_cond_signal(&window->summed_more);
	else if (!window->rc)
		write_piece(window);
	pthread_mutex_unlock(&window->lock);
}

void net_window_again(struct net_window *window)
{
	window->asked = window->summed;
}

int net_window_wait(struct net_window *window, unsigned int pieces, struct tmesh_error *err)
{
	int rc;

	pthread_mutex_lock(&window->lock);
	while (!window->rc && window->summed - window->written > pieces)
		pthread_cond_wait(&window->written_more, &window->lock);
	rc = window->rc;
	if (rc)
		*err = window->err;
	pthread_mutex_unlock(&window->lock);
	return rc;
}
