// SPDX-License-Identifier: MIT
/*
 * The stand-in driver's streams and events. A stream is a thread that works off a list; stream 0
 * finishes its work at once. An event is two numbers in shared memory: how often it was recorded,
 * and how many of those its streams have reached. Other processes can therefore wait for it.
 *
 * A stream that captures makes no graph, and forgets the work queued there. A call that the driver
 * forbids meanwhile fails and breaks the capture, as the driver documents it.
 */
#include "standin_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct cell {
	atomic_ulong recorded;
	atomic_ulong reached;
	atomic_bool destroyed; /* by its maker */
};

struct CUevent_st {
	struct CUevent_st *next;
	struct cell *cell;
	int fd; /* INTERPROCESS: of its memory */
	int device;
	bool interprocess;
	bool opened;   /* another process made it */
	bool exported; /* a handle of it was asked for */
	bool captured; /* it was recorded last on a stream that captures */
	bool gone;     /* with its context */
};

struct work {
	struct work *next;
	void (*call)(void *data);
	void *data;
	struct cell *cell;
	unsigned long number; /* of the record to make known, or to wait for */
	bool wait;
	unsigned long long *at, value; /* to write there */
};

struct CUstream_st {
	struct CUstream_st *next;
	int device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct work *first, **last;
	bool busy, stop, blocking, gone;
	int capture, capture_mode;
	pthread_t capturer;
};

static struct CUstream_st *streams;
static struct CUevent_st *events;
static __thread int mode = CU_CAPTURE_MODE_GLOBAL;

static void rest(void)
{
	const struct timespec moment = {.tv_nsec = 200000};

	nanosleep(&moment, NULL);
}

static void reach(struct cell *cell, unsigned long number)
{
	while (atomic_load(&cell->reached) < number)
		rest();
}

static void work_off(struct work *work)
{
	if (work->call)
		work->call(work->data);
	else if (work->at)
		__atomic_store_n(work->at, work->value, __ATOMIC_RELEASE);
	else if (work->wait)
		reach(work->cell, work->number);
	else if (atomic_load(&work->cell->reached) < work->number)
		atomic_store(&work->cell->reached, work->number);
	free(work);
}

static void *run(void *data)
{
	struct CUstream_st *stream = data;
	struct work *work;

	pthread_mutex_lock(&stream->lock);
	for (;;) {
		while (!stream->first && !stream->stop)
			pthread_cond_wait(&stream->changed, &stream->lock);
		work = stream->first;
		if (!work)
			break;
		stream->first = work->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream->busy = true;
		pthread_mutex_unlock(&stream->lock);
		work_off(work);
		pthread_mutex_lock(&stream->lock);
		stream->busy = false;
		pthread_cond_broadcast(&stream->changed);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. */
static bool is_default(cu_stream stream)
{
	return (uintptr_t)stream <= 2;
}

static void add(cu_stream stream, struct work what)
{
	struct work *work = malloc(sizeof(*work));

	*work = what;
	if (is_default(stream)) {
		work_off(work);
		return;
	}
	pthread_mutex_lock(&stream->lock);
	*stream->last = work;
	stream->last = &work->next;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
}

static void drain(cu_stream stream)
{
	pthread_mutex_lock(&stream->lock);
	while (stream->first || stream->busy)
		pthread_cond_wait(&stream->changed, &stream->lock);
	pthread_mutex_unlock(&stream->lock);
}

/* Captures. */

/* Abort at a use of a destroyed stream, which the driver leaves undefined. */
static void look_at_stream(cu_stream stream)
{
	cu_stream known;

	if (is_default(stream))
		return;
	pthread_mutex_lock(&standin_lock);
	for (known = streams; known && known != stream;)
		known = known->next;
	pthread_mutex_unlock(&standin_lock);
	if (!known || stream->gone)
		abort();
}

static bool captures(cu_stream stream)
{
	return !is_default(stream) && stream->capture != CU_CAPTURE_NONE;
}

static cu_result break_capture(cu_stream stream, cu_result rc)
{
	stream->capture = CU_CAPTURE_BROKEN;
	return rc;
}

cu_result cuThreadExchangeStreamCaptureMode(int *other)
{
	int before = mode;

	ENTER("cuThreadExchangeStreamCaptureMode");
	mode = *other;
	*other = before;
	return CU_OK;
}

static bool forbids(cu_stream stream)
{
	if (stream->capture == CU_CAPTURE_NONE || stream->capture_mode == CU_CAPTURE_MODE_RELAXED)
		return false;
	return pthread_equal(stream->capturer, pthread_self()) ||
	       (mode == CU_CAPTURE_MODE_GLOBAL && stream->capture_mode == CU_CAPTURE_MODE_GLOBAL);
}

/* Break each capture that @is true of. */
static cu_result break_all(bool (*is)(cu_stream stream), cu_result code)
{
	cu_result rc = CU_OK;

	pthread_mutex_lock(&standin_lock);
	for (cu_stream stream = streams; stream; stream = stream->next)
		if (is(stream))
			rc = break_capture(stream, code);
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result standin_unsafe(void)
{
	return mode == CU_CAPTURE_MODE_RELAXED ? CU_OK : break_all(forbids, CU_CAPTURE_UNSUPPORTED);
}

static bool captures_here(cu_stream stream)
{
	return stream->device == standin_current() && captures(stream);
}

static bool blocks_here(cu_stream stream)
{
	return captures_here(stream) && stream->blocking;
}

cu_result standin_usable(cu_stream stream)
{
	look_at_stream(stream);
	if (!is_default(stream))
		return stream->device == standin_current() ? CU_OK : CU_INVALID_HANDLE;
	return stream == CU_STREAM_PER_THREAD ? CU_OK : break_all(blocks_here, CU_CAPTURE_IMPLICIT);
}

cu_result cuStreamIsCapturing(cu_stream stream, int *status)
{
	cu_result rc = CU_OK;

	ENTER("cuStreamIsCapturing");
	look_at_stream(stream);
	*status = is_default(stream) ? CU_CAPTURE_NONE : stream->capture;
	pthread_mutex_lock(&standin_lock);
	for (cu_stream other = streams; other && (uintptr_t)stream < 2; other = other->next)
		if (blocks_here(other))
			rc = CU_CAPTURE_IMPLICIT;
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuStreamGetCtx(cu_stream stream, cu_context *context)
{
	ENTER("cuStreamGetCtx");
	look_at_stream(stream);
	*context = standin_context_of(is_default(stream) ? standin_current() : stream->device);
	return CU_OK;
}

/* Called by tests alone. */

cu_result cuStreamBeginCapture_v2(cu_stream stream, int capture_mode)
{
	if (is_default(stream) || stream->capture)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	stream->capture_mode = capture_mode;
	stream->capturer = pthread_self();
	stream->capture = CU_CAPTURE_ACTIVE;
	pthread_mutex_unlock(&standin_lock);
	return CU_OK;
}

cu_result cuStreamEndCapture(cu_stream stream, void **graph)
{
	cu_result rc;

	*graph = NULL;
	pthread_mutex_lock(&standin_lock);
	rc = stream->capture == CU_CAPTURE_ACTIVE ? CU_OK : CU_CAPTURE_INVALIDATED;
	stream->capture = CU_CAPTURE_NONE;
	pthread_mutex_unlock(&standin_lock);
	return rc;
}

cu_result cuStreamCreate(cu_stream *out, unsigned int flags)
{
	cu_stream stream;

	ENTER("cuStreamCreate");
	NEED_CONTEXT();
	stream = calloc(1, sizeof(*stream));
	stream->blocking = !(flags & CU_NON_BLOCKING);
	stream->device = standin_current();
	stream->last = &stream->first;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->changed, NULL);
	pthread_create(&stream->thread, NULL, run, stream);
	pthread_mutex_lock(&standin_lock);
	stream->next = streams;
	streams = stream;
	pthread_mutex_unlock(&standin_lock);
	*out = stream;
	return CU_OK;
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
	cu_stream *at = &streams;

	ENTER("cuStreamDestroy_v2");
	NEED_CONTEXT();
	look_at_stream(stream);
	pthread_mutex_lock(&standin_lock);
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	pthread_mutex_unlock(&standin_lock);
	pthread_mutex_lock(&stream->lock);
	stream->stop = true;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	pthread_join(stream->thread, NULL);
	free(stream);
	return CU_OK;
}

/* Called by tests alone. */
cu_result cuStreamQuery(cu_stream stream)
{
	bool busy;

	pthread_mutex_lock(&stream->lock);
	busy = stream->first || stream->busy;
	pthread_mutex_unlock(&stream->lock);
	return busy ? CU_NOT_READY : CU_OK;
}

cu_result cuLaunchHostFunc(cu_stream stream, void (*call)(void *data), void *data)
{
	cu_result rc = standin_usable(stream);

	if (rc)
		return rc;
	add(stream, (struct work){.call = call, .data = data});
	return CU_OK;
}

cu_result cuStreamSynchronize(cu_stream stream)
{
	ENTER("cuStreamSynchronize");
	if (is_default(stream))
		return standin_usable(stream);
	look_at_stream(stream);
	if (captures(stream))
		return break_capture(stream, CU_CAPTURE_UNSUPPORTED);
	drain(stream);
	return CU_OK;
}

cu_result cuCtxSynchronize(void)
{
	cu_stream all[64];
	int count = 0;
	cu_result rc;

	ENTER("cuCtxSynchronize");
	NEED_CONTEXT();
	rc = break_all(captures_here, CU_CAPTURE_UNSUPPORTED);
	if (rc)
		return rc;
	pthread_mutex_lock(&standin_lock);
	for (cu_stream stream = streams; stream && count < 64; stream = stream->next)
		if (stream->device == standin_current())
			all[count++] = stream;
	pthread_mutex_unlock(&standin_lock);
	while (count--)
		drain(all[count]);
	return CU_OK;
}

static cu_result event_new(cu_event *out, int fd, bool interprocess, bool opened)
{
	cu_event event = calloc(1, sizeof(*event));

	event->fd = fd;
	event->device = standin_current();
	event->interprocess = interprocess;
	event->opened = opened;
	event->cell = mmap(NULL, sizeof(*event->cell), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	pthread_mutex_lock(&standin_lock);
	event->next = events;
	events = event;
	pthread_mutex_unlock(&standin_lock);
	*out = event;
	return CU_OK;
}

cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
	bool interprocess = flags & CU_EVENT_SHARED;
	int fd;

	ENTER("cuEventCreate");
	NEED_CONTEXT();
	if (interprocess && !(flags & CU_EVENT_NO_TIMING))
		return CU_INVALID_VALUE;
	if (interprocess && standin_without("ipc-event"))
		return CU_NOT_SUPPORTED;
	if (interprocess && standin_without("events"))
		return CU_OUT_OF_MEMORY;
	fd = memfd_create("standin-event", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(struct cell)))
		return CU_OPERATING_SYSTEM;
	return event_new(event, fd, interprocess, false);
}

/* Abort at a use that the driver leaves undefined: of a destroyed event, and of an event of another
 * process that its maker has destroyed. */
static void look_at(cu_event event)
{
	cu_event known;

	pthread_mutex_lock(&standin_lock);
	for (known = events; known && known != event;)
		known = known->next;
	pthread_mutex_unlock(&standin_lock);
	if (!known || event->gone || (event->opened && atomic_load(&event->cell->destroyed)))
		abort();
}

/* Queued work that names the event keeps it in the driver; here its memory stays mapped. */
cu_result cuEventDestroy_v2(cu_event event)
{
	cu_event *at = &events;

	ENTER("cuEventDestroy_v2");
	NEED_CONTEXT();
	look_at(event);
	pthread_mutex_lock(&standin_lock);
	while (*at != event)
		at = &(*at)->next;
	*at = event->next;
	pthread_mutex_unlock(&standin_lock);
	if (!event->opened)
		atomic_store(&event->cell->destroyed, true);
	close(event->fd);
	free(event);
	return CU_OK;
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
	cu_result rc;

	ENTER("cuEventRecord");
	look_at(event);
	rc = standin_usable(stream);
	if (!is_default(stream) && stream->device != event->device)
		rc = CU_INVALID_HANDLE;
	else if (captures(stream) && event->interprocess)
		rc = break_capture(stream, CU_CAPTURE_UNSUPPORTED);
	if (rc)
		return rc;
	event->captured = captures(stream);
	if (event->captured)
		return CU_OK;
	add(stream, (struct work){.cell = event->cell,
				  .number = atomic_fetch_add(&event->cell->recorded, 1) + 1});
	return CU_OK;
}

cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned int flags)
{
	cu_result rc = CU_OK;

	ENTER("cuStreamWaitEvent");
	look_at(event);
	look_at_stream(stream);
	/* An event of another device may be waited for. */
	if (is_default(stream))
		rc = standin_usable(stream);
	else if (captures(stream) != event->captured)
		rc = captures(stream) ? break_capture(stream, 905) : 905;
	if (rc || captures(stream))
		return rc;
	add(stream, (struct work){.cell = event->cell,
				  .number = atomic_load(&event->cell->recorded),
				  .wait = true});
	return CU_OK;
}

/* Into registered memory, at an aligned address. */
cu_result cuStreamWriteValue64_v2(cu_stream stream, cu_ptr at, unsigned long long value,
				  unsigned int flags)
{
	cu_result rc;

	ENTER("cuStreamWriteValue64_v2");
	if (standin_without("write-value"))
		return CU_NOT_SUPPORTED;
	rc = standin_usable(stream);
	if (!rc && (flags || at % 8 || !standin_host(standin_current(), (void *)at, 8, true)))
		rc = CU_INVALID_VALUE;
	if (rc || captures(stream))
		return rc;
	add(stream, (struct work){.at = (unsigned long long *)at, .value = value});
	return CU_OK;
}

cu_result cuEventSynchronize(cu_event event)
{
	UNSAFE("cuEventSynchronize");
	look_at(event);
	if (event->captured)
		return CU_CAPTURED_EVENT;
	reach(event->cell, atomic_load(&event->cell->recorded));
	return CU_OK;
}

cu_result cuIpcGetEventHandle(struct cu_ipc_handle *handle, cu_event event)
{
	ENTER("cuIpcGetEventHandle");
	look_at(event);
	if (!event->interprocess)
		return CU_INVALID_HANDLE;
	event->exported = true;
	standin_ipc_fill(handle, STANDIN_IPC_EVENT, event->fd, 0, 0);
	return CU_OK;
}

cu_result cuIpcOpenEventHandle(cu_event *event, struct cu_ipc_handle handle)
{
	struct standin_ipc ipc;
	int fd;

	UNSAFE("cuIpcOpenEventHandle");
	memcpy(&ipc, &handle, sizeof(ipc));
	if (ipc.magic == STANDIN_IPC_EVENT && ipc.pid == getpid())
		return CU_INVALID_CONTEXT;
	if (standin_without("shm"))
		return CU_INVALID_VALUE;
	fd = standin_ipc_open(&ipc, STANDIN_IPC_EVENT);
	return fd < 0 ? CU_INVALID_VALUE : event_new(event, fd, true, true);
}

/* End the exported events of a context that was released. Other events stay, so that a forgotten
 * one is seen. */
void standin_release_events(int device)
{
	for (cu_event event = events; event; event = event->next) {
		if (event->device != device || event->gone || !event->exported)
			continue;
		event->gone = true;
		close(event->fd);
	}
}

void standin_reset_streams(int device)
{
	for (cu_stream stream = streams; stream; stream = stream->next)
		stream->gone |= stream->device == device;
	for (cu_event event = events; event; event = event->next) {
		if (event->device != device || event->gone)
			continue;
		event->gone = true;
		close(event->fd);
	}
}

unsigned long standin_live_streams(void)
{
	unsigned long live = 0;

	pthread_mutex_lock(&standin_lock);
	for (cu_event event = events; event; event = event->next)
		live += !event->gone;
	for (cu_stream stream = streams; stream; stream = stream->next)
		live += !stream->gone;
	pthread_mutex_unlock(&standin_lock);
	return live;
}
