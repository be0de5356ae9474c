// SPDX-License-Identifier: MIT
/*
 * Order between streams of different processes, by an interprocess event for each piece of shared
 * memory: its producer records it, consumers' streams wait for it. Where a device has none the
 * producer's host waits for its stream instead, which is counted.
 */
#include "internal.h"

int event_make(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int has = 0;
	int rc = cuda_enter(cuda, memory->resident, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda,
			cuda->driver.device_attribute(&has, CU_ATTR_IPC_EVENT,
						      cuda->devices[memory->resident].handle),
			"cuDeviceGetAttribute", err);
	if (!rc && has)
		rc = cuda_check(cuda,
				cuda->driver.event_create(&memory->event,
							  CU_EVENT_SHARED | CU_EVENT_NO_TIMING),
				"cuEventCreate", err);
	cuda_leave(cuda);
	return rc;
}

void event_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (!memory->event)
		return;
	rc = cuda_enter(cuda, memory->resident, NULL);
	/* A context that was destroyed took its events along: the handle leads to nothing. */
	if (rc != -ECONNRESET)
		cuda->driver.event_destroy(memory->event);
	memory->event = NULL;
	if (!rc)
		cuda_leave(cuda);
}

static int host_waits(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.host_waits++;
	pthread_mutex_unlock(&cuda->lock);
	return cuda_check(cuda, cuda->driver.stream_synchronize(stream), "cuStreamSynchronize",
			  err);
}

/* Somebody else's event cannot be recorded here: then its waiters would take ours for his. */
int tmesh_cuda_record(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		      struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (stream == TMESH_CUDA_NO_STREAM)
		return cuda_check_life(cuda, err);
	rc = cuda_enter(cuda, memory->device, err);
	if (rc)
		return rc;
	if (memory->event && !memory->event_foreign)
		rc = cuda_check(cuda, cuda->driver.event_record(memory->event, stream),
				"cuEventRecord", err);
	else
		rc = host_waits(memory, stream, err);
	cuda_leave(cuda);
	return rc;
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
	if (!memory->event)
		return 0;
	rc = cuda_enter(cuda, memory->device, err);
	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.stream_wait(stream, memory->event, 0),
			"cuStreamWaitEvent", err);
	cuda_leave(cuda);
	return rc;
}
