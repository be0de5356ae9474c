// SPDX-License-Identifier: MIT
/*
 * Order between streams of different processes. Each piece of shared memory has an interprocess
 * event: its producer records it, and consumers' streams wait for it.
 *
 * Without an event the producer's host waits for its stream instead, and the wait is counted. A
 * device may offer no events, the driver may have no more, or the caller may want none. Only
 * processes with the same /dev/shm can open an event; the host of any other waits (value.c). The
 * driver opens no event in the process that made it; the event itself is used there.
 */
#include "internal.h"

/* Events that this process has exported. */
struct exported {
	struct exported *next;
	void *library;
	pid_t pid;		       /* a forked child has none of them */
	unsigned long long context_id; /* nor has a context that was made later */
	struct cu_ipc_handle handle;
	cu_event event;
	unsigned int users;
};

static pthread_mutex_t exported_lock = PTHREAD_MUTEX_INITIALIZER;
static struct exported *exported;

/* Find the event that @handle names among this process's own, and count one more user. */
static struct exported *exported_find(const struct tmesh_cuda_memory *memory,
				      const struct cu_ipc_handle *handle)
{
	const struct tmesh_cuda *cuda = memory->cuda;
	unsigned long long id = cuda->devices[memory->resident].context_id;
	struct exported *found = NULL;

	pthread_mutex_lock(&exported_lock);
	for (struct exported *e = exported; e && !found; e = e->next)
		if (e->library == cuda->library && e->pid == getpid() && e->context_id == id &&
		    !memcmp(&e->handle, handle, sizeof(*handle)))
			found = e;
	if (found)
		found->users++;
	pthread_mutex_unlock(&exported_lock);
	return found;
}

static struct exported *exported_new(const struct tmesh_cuda_memory *memory,
				     const struct cu_ipc_handle *handle, struct tmesh_error *err)
{
	const struct tmesh_cuda *cuda = memory->cuda;
	struct exported *e = calloc(1, sizeof(*e));

	if (!e) {
		tmesh_fail(err, -ENOMEM, "no memory for an event");
		return NULL;
	}
	*e = (struct exported){.library = cuda->library,
			       .pid = getpid(),
			       .handle = *handle,
			       .event = memory->event,
			       .context_id = cuda->devices[memory->resident].context_id,
			       .users = 1};
	pthread_mutex_lock(&exported_lock);
	e->next = exported;
	exported = e;
	pthread_mutex_unlock(&exported_lock);
	return e;
}

/* Drop one user. True: it was the last. */
static bool exported_drop(struct exported *e)
{
	struct exported **at = &exported;
	bool last;

	pthread_mutex_lock(&exported_lock);
	last = --e->users == 0;
	while (last && *at != e)
		at = &(*at)->next;
	if (last)
		*at = e->next;
	pthread_mutex_unlock(&exported_lock);
	if (last)
		free(e);
	return last;
}

/* Make the event. The resident device's context is current. */
static int make(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	const struct cu_driver *driver = &memory->cuda->driver;
	struct cu_ipc_handle handle;
	int rc = cuda_check(
		memory->cuda,
		driver->event_create(&memory->event, CU_EVENT_SHARED | CU_EVENT_NO_TIMING),
		"cuEventCreate", err);

	if (rc) {
		memory->event = NULL;
		return rc;
	}
	rc = cuda_check(memory->cuda, driver->ipc_event_get(&handle, memory->event),
			"cuIpcGetEventHandle", err);
	if (!rc) {
		memory->exported = exported_new(memory, &handle, err);
		rc = memory->exported ? 0 : -ENOMEM;
	}
	if (rc) {
		driver->event_destroy(memory->event);
		memory->event = NULL;
	}
	return rc;
}

int event_make(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_error why = {0};
	int has = 0;
	int rc;

	if (cuda->no_events)
		return 0;
	rc = cuda_enter(cuda, memory->resident, err);
	if (rc)
		return rc;
	rc = cuda_check(cuda,
			cuda->driver.device_attribute(&has, CU_ATTR_IPC_EVENT,
						      cuda->devices[memory->resident].handle),
			"cuDeviceGetAttribute", err);
	if (!rc && has && !make(memory, &why))
		value_make(memory);
	else if (!rc && has)
		cuda_log(cuda, TMESH_LOG_WARN,
			 "no event for memory on GPU %d, so the host waits at each share: %s",
			 memory->resident, why.message);
	cuda_leave(cuda);
	return rc;
}

void event_card(const struct tmesh_cuda_memory *memory, struct card *card)
{
	card->has_event = memory->event != NULL;
	if (card->has_event)
		card->event = memory->exported->handle;
	value_card(memory, card);
}

int event_open(struct tmesh_cuda_memory *memory, const struct card *card, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	memory->exported = exported_find(memory, &card->event);
	if (memory->exported) {
		memory->event = memory->exported->event;
		return 0;
	}
	rc = cuda_check(cuda, cuda->driver.ipc_event_open(&memory->event, card->event),
			"cuIpcOpenEventHandle", err);
	if (rc)
		memory->event = NULL;
	return rc;
}

/* Detach the memory's event. False: there is none, or it has another user. */
static bool detach(struct tmesh_cuda_memory *memory, cu_event *event)
{
	struct exported *e = memory->exported;

	pthread_mutex_lock(&memory->cuda->lock);
	*event = memory->event;
	memory->event = NULL;
	memory->exported = NULL;
	pthread_mutex_unlock(&memory->cuda->lock);
	return *event && (!e || exported_drop(e));
}

void event_drop(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	cu_event event;
	int rc;

	if (!detach(memory, &event))
		return;
	rc = cuda_enter_to_free(cuda, memory->resident);
	/* A destroyed context took its events along. */
	if (rc != -ECONNRESET)
		cuda->driver.event_destroy(event);
	if (!rc)
		cuda_leave(cuda);
}

void event_end(struct tmesh_cuda_memory *memory)
{
	value_end(memory);
	event_drop(memory);
}

void event_leave(struct tmesh_cuda_memory *memory)
{
	cu_event event;

	value_end(memory);
	detach(memory, &event);
}

int event_host_waits(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.host_waits++;
	pthread_mutex_unlock(&cuda->lock);
	return cuda_check(cuda, cuda->driver.stream_synchronize(stream), "cuStreamSynchronize",
			  err);
}

/* Record the event, and let the stream write the memory's number. The event has one record, and
 * numbers are written in the order of the shares. So the stream first waits for the last share,
 * which may be of another stream. */
static int record(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = 0;

	pthread_mutex_lock(&cuda->share_lock);
	if (!value_is_reached(memory))
		rc = cuda_check(cuda, cuda->driver.stream_wait(stream, memory->event, 0),
				"cuStreamWaitEvent", err);
	if (!rc)
		rc = cuda_check(cuda, cuda->driver.event_record(memory->event, stream),
				"cuEventRecord", err);
	if (!rc)
		rc = value_write(memory, stream, err);
	pthread_mutex_unlock(&cuda->share_lock);
	return rc;
}

/* Record the memory's event on @stream. Another process's event cannot be recorded here, because
 * its waiters would take this process's work for their producer's. */
int tmesh_cuda_record(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		      struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool here = false;
	int rc;

	if (stream == TMESH_CUDA_NO_STREAM)
		return cuda_check_life(cuda, err);
	rc = cuda_enter(cuda, memory->device, err);
	if (rc)
		return rc;
	rc = stream_check(cuda, memory->device, stream, "share", err);
	/* An event is recorded on streams of its own context alone. Host memory has none. */
	if (!rc && memory->event && !memory->event_foreign)
		rc = stream_is_of(cuda, memory->resident, stream, &here, err);
	if (!rc && here)
		rc = record(memory, stream, err);
	else if (!rc)
		rc = event_host_waits(memory, stream, err);
	cuda_leave(cuda);
	return rc;
}

/* Return whether there is something to wait for, or the memory was taken back and its event with
 * it. */
static bool needs_wait(struct tmesh_cuda_memory *memory)
{
	bool needs;

	pthread_mutex_lock(&memory->cuda->lock);
	needs = memory->event || memory->values || memory->state != LIVE;
	pthread_mutex_unlock(&memory->cuda->lock);
	return needs;
}

int tmesh_cuda_wait(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (stream == TMESH_CUDA_NO_STREAM)
		return 0;
	if (memory->event_missing.code)
		return tmesh_fail(err, memory->event_missing.code, "%s",
				  memory->event_missing.message);
	/* Without an event the producer has waited itself. */
	if (!needs_wait(memory))
		return 0;
	rc = work_begin(memory, "wait", err);
	if (rc)
		return rc;
	rc = stream_check(cuda, memory->device, stream, "open", err);
	if (!rc && memory->event)
		rc = cuda_check(cuda, cuda->driver.stream_wait(stream, memory->event, 0),
				"cuStreamWaitEvent", err);
	work_end(memory);
	return rc || !memory->values ? rc : value_wait(memory, err);
}
