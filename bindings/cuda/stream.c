// SPDX-License-Identifier: MIT
/*
 * Streams, and graphs that they capture. During a capture the driver forbids calls that have
 * nothing to do with it, and a forbidden call breaks the capture. Therefore calls are made in the
 * relaxed mode, and copies go to a stream of the library's own. A device that is known to capture
 * is not waited for.
 *
 * The driver reports a capture on a blocking stream. The library knows another capture only if a
 * caller named its stream in a call, or announced it by tmesh_cuda_capture_begin().
 */
#include "internal.h"

static __thread struct {
	unsigned int depth;
	int before; /* the mode that the thread had */
} relaxed;

int cuda_relax(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	int rc;

	if (!cuda->driver.capture_mode || relaxed.depth++)
		return 0;
	relaxed.before = CU_CAPTURE_MODE_RELAXED;
	rc = cuda_check(cuda, cuda->driver.capture_mode(&relaxed.before),
			"cuThreadExchangeStreamCaptureMode", err);
	if (rc)
		relaxed.depth--;
	return rc;
}

void cuda_restore(struct tmesh_cuda *cuda)
{
	if (cuda->driver.capture_mode && --relaxed.depth == 0)
		cuda->driver.capture_mode(&relaxed.before);
}

/* Remember a stream that captures, and forget one that does so no longer: its owner may destroy it.
 */
static void remember(struct tmesh_cuda *cuda, int device, cu_stream stream, bool captures)
{
	struct device *d = &cuda->devices[device];

	pthread_mutex_lock(&cuda->lock);
	if (captures)
		d->capturing = stream;
	else if (d->capturing == stream)
		d->capturing = NULL;
	pthread_mutex_unlock(&cuda->lock);
}

int stream_captures(struct tmesh_cuda *cuda, int device, cu_stream stream, bool *captures,
		    struct tmesh_error *err)
{
	int status = CU_CAPTURE_NONE;
	cu_result rc = CU_OK;

	if (cuda->driver.stream_is_capturing && stream != TMESH_CUDA_NO_STREAM)
		rc = cuda->driver.stream_is_capturing(stream, &status);
	*captures = rc == CU_CAPTURE_IMPLICIT || (!rc && status != CU_CAPTURE_NONE);
	if (rc && rc != CU_CAPTURE_IMPLICIT)
		return cuda_check(cuda, rc, "cuStreamIsCapturing", err);
	if (rc != CU_CAPTURE_IMPLICIT)
		remember(cuda, device, stream, *captures);
	return 0;
}

int stream_check(struct tmesh_cuda *cuda, int device, cu_stream stream, const char *what,
		 struct tmesh_error *err)
{
	bool captures;
	int rc = stream_captures(cuda, device, stream, &captures, err);

	if (!rc && captures)
		rc = tmesh_fail(err, -EBUSY,
				"%s: the stream captures a graph: end the capture first, or give "
				"TMESH_CUDA_NO_STREAM (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)",
				what);
	return rc;
}

int stream_is_of(struct tmesh_cuda *cuda, int device, cu_stream stream, bool *is,
		 struct tmesh_error *err)
{
	cu_context context = cuda->devices[device].context;
	int rc = 0;

	/* The default streams are those of the current context. */
	if (cuda->driver.stream_ctx && (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD)
		rc = cuda_check(cuda, cuda->driver.stream_ctx(stream, &context), "cuStreamGetCtx",
				err);
	*is = context == cuda->devices[device].context;
	return rc;
}

/* Return whether a stream that a caller named still captures, and forget those that do not. */
static bool named_captures(struct tmesh_cuda *cuda, int device)
{
	struct device *d = &cuda->devices[device];
	int status = CU_CAPTURE_NONE;
	cu_stream stream;
	bool announced;

	pthread_mutex_lock(&cuda->lock);
	announced = d->captures > 0;
	stream = d->capturing;
	pthread_mutex_unlock(&cuda->lock);
	if (announced || !stream)
		return announced;
	if (cuda->driver.stream_is_capturing(stream, &status) == CU_OK && status != CU_CAPTURE_NONE)
		return true;
	remember(cuda, device, stream, false);
	return false;
}

/* Wait with a context of the device current. @done: the driver's answer, if it was asked. */
static int wait_here(struct tmesh_cuda *cuda, int device, cu_result *done, struct tmesh_error *err)
{
	bool captures = named_captures(cuda, device);
	int rc = 0;

	*done = CU_NOT_READY;
	if (!captures)
		rc = stream_captures(cuda, device, CU_STREAM_LEGACY, &captures, err);
	if (rc)
		return rc;
	if (captures)
		return tmesh_fail(err, -EBUSY,
				  "cannot wait for GPU %d: a stream captures a graph: end the "
				  "capture first (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)",
				  device);
	*done = cuda->driver.ctx_synchronize();
	if (cuda_capture_forbids(*done))
		cuda_log(cuda, TMESH_LOG_WARN,
			 "a stream of GPU %d captured a graph, and waiting for the GPU has broken "
			 "the capture: announce captures by tmesh_cuda_capture_begin()",
			 device);
	return cuda_check(cuda, *done, "cuCtxSynchronize", err);
}

int cuda_wait_for_all(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	cu_result done;

	return wait_here(cuda, device, &done, err);
}

/* Wait for a context that was made after ours was destroyed. Blocks outlive a context, so that one
 * may use them. @done: as in wait_here(). */
static int wait_for_other(struct tmesh_cuda *cuda, int device, cu_result *done)
{
	const struct cu_driver *driver = &cuda->driver;
	cu_device handle = cuda->devices[device].handle;
	cu_context context;
	unsigned int flags;
	int active = 0, rc;

	*done = driver->primary_state(handle, &flags, &active);
	if (*done || !active)
		return cuda_check(cuda, *done, "cuDevicePrimaryCtxGetState", NULL);
	*done = driver->primary_retain(&context, handle);
	if (*done)
		return cuda_check(cuda, *done, "cuDevicePrimaryCtxRetain", NULL);
	*done = CU_NOT_READY;
	rc = driver->ctx_push(context) ? -EIO : 0;
	if (!rc) {
		rc = wait_here(cuda, device, done, NULL);
		driver->ctx_pop(&context);
	}
	driver->primary_release(handle);
	return rc;
}

int cuda_synchronize(struct tmesh_cuda *cuda, int device)
{
	cu_result done = CU_NOT_READY;
	int rc = cuda_relax(cuda, NULL);

	if (rc)
		return cuda_is_broken(rc) ? 0 : rc;
	rc = cuda_enter(cuda, device, NULL);
	if (cuda_is_broken(rc)) {
		done = CU_OK;
	} else if (rc == -ECONNRESET) {
		rc = wait_for_other(cuda, device, &done);
	} else if (!rc) {
		rc = wait_here(cuda, device, &done, NULL);
		cuda_leave(cuda);
	}
	cuda_restore(cuda);
	return cuda_work_has_ended(done) ? 0 : rc;
}

/* Return the library's own stream. The device's context is current. */
static int own_stream(struct tmesh_cuda *cuda, int device, cu_stream *stream,
		      struct tmesh_error *err)
{
	struct device *d = &cuda->devices[device];
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (!d->stream)
		rc = cuda_check(cuda, cuda->driver.stream_create(&d->stream, CU_NON_BLOCKING),
				"cuStreamCreate", err);
	*stream = d->stream;
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

static int finish(struct tmesh_cuda *cuda, cu_stream stream, int rc, struct tmesh_error *err)
{
	/* Also after an error: part of it may be under way. */
	int waited = cuda_check(cuda, cuda->driver.stream_synchronize(stream),
				"cuStreamSynchronize", rc ? NULL : err);

	/* After a failed wait the copy may go on, and the caller frees its memory. A broken context
	 * fails again, and copies nothing more. */
	if (waited)
		cuda->driver.stream_synchronize(stream);
	return rc ? rc : waited;
}

int cuda_copy_to_host(struct tmesh_cuda *cuda, int device, void *to, cu_ptr from, uint64_t bytes,
		      struct tmesh_error *err)
{
	cu_stream stream;
	int rc = own_stream(cuda, device, &stream, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.copy_to_host(to, from, bytes, stream),
			"cuMemcpyDtoHAsync", err);
	return finish(cuda, stream, rc, err);
}

int cuda_copy_to_device(struct tmesh_cuda *cuda, int device, cu_ptr to, const void *from,
			uint64_t bytes, struct tmesh_error *err)
{
	cu_stream stream;
	int rc = own_stream(cuda, device, &stream, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.copy_to_device(to, from, bytes, stream),
			"cuMemcpyHtoDAsync", err);
	return finish(cuda, stream, rc, err);
}

int cuda_fill_now(struct tmesh_cuda *cuda, int device, cu_ptr at, uint64_t bytes,
		  struct tmesh_error *err)
{
	cu_stream stream;
	int rc = own_stream(cuda, device, &stream, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.fill(at, 0, bytes, stream), "cuMemsetD8Async", err);
	return finish(cuda, stream, rc, err);
}

int tmesh_cuda_capture_begin(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	int rc = cuda_check_device(cuda, device, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	cuda->devices[device].captures++;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

int tmesh_cuda_capture_end(struct tmesh_cuda *cuda, int device, struct tmesh_error *err)
{
	int rc = cuda_check_device(cuda, device, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	if (cuda->devices[device].captures)
		cuda->devices[device].captures--;
	else
		rc = tmesh_fail(err, -EINVAL, "capture: none was announced for GPU %d", device);
	pthread_mutex_unlock(&cuda->lock);
	named_captures(cuda, device);
	watch_again(cuda);
	return rc;
}
