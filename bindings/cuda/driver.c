// SPDX-License-Identifier: MIT
/* The driver: loaded at run time, and its errors in our words. */
#include "internal.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

void cuda_log(const struct tmesh_cuda *cuda, enum tmesh_log_level level, const char *fmt, ...)
{
	char message[512];
	va_list args;

	if (!cuda->log)
		return;
	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	cuda->log(cuda->log_data, level, message);
}

static int errno_of(cu_result rc)
{
	switch (rc) {
	case CU_OUT_OF_MEMORY:
		return -ENOMEM;
	case CU_NO_DEVICE:
	case CU_INVALID_DEVICE:
	case CU_STUB_LIBRARY:
	case CU_SYSTEM_NOT_READY:
	case CU_SYSTEM_DRIVER_MISMATCH:
		return -ENODEV;
	case CU_NOT_SUPPORTED:
	case CU_PEER_ACCESS_UNSUPPORTED:
		return -EOPNOTSUPP;
	case CU_NOT_PERMITTED:
	case CU_NOT_INITIALIZED:
		return -EPERM;
	case CU_INVALID_VALUE:
	case CU_INVALID_HANDLE:
	case CU_ALREADY_MAPPED:
	case CU_NOT_MAPPED:
	case CU_HOST_NOT_REGISTERED:
		return -EINVAL;
	case CU_DEVICE_UNAVAILABLE:
	case CU_HOST_ALREADY_REGISTERED:
		return -EBUSY;
	case CU_INVALID_CONTEXT:
	case CU_CONTEXT_IS_DESTROYED:
	case CU_DEINITIALIZED:
		return -ECONNRESET;
	default:
		return cuda_capture_forbids(rc) ? -EBUSY : -EIO;
	}
}

bool cuda_capture_forbids(cu_result rc)
{
	return rc >= CU_CAPTURE_UNSUPPORTED && rc <= CU_CAPTURE_WRONG_THREAD;
}

bool cuda_work_has_ended(cu_result rc)
{
	return rc == CU_OK || rc == CU_ILLEGAL_ADDRESS || rc == CU_LAUNCH_TIMEOUT ||
	       rc == CU_CONTEXT_IS_DESTROYED || rc == CU_ASSERT || rc == CU_DEINITIALIZED ||
	       (rc >= CU_HARDWARE_STACK_ERROR && rc <= CU_LAUNCH_FAILED);
}

/* Return the remedy that the message ends with; "": the name of the error says it. */
static const char *remedy(cu_result rc)
{
	switch (rc) {
	case CU_NOT_INITIALIZED:
		return ": a process that was forked from one that used CUDA cannot use it: start a "
		       "new program (multiprocessing: \"spawn\")";
	case CU_STUB_LIBRARY:
		return ": the toolkit's stub was loaded: take its folder out of LD_LIBRARY_PATH";
	case CU_DEVICE_UNAVAILABLE:
		return ": another process has the GPU alone: end it, or allow more of them "
		       "(nvidia-smi -c DEFAULT)";
	case CU_NO_DEVICE:
		return ": CUDA_VISIBLE_DEVICES may hide it; start a container with --gpus all";
	case CU_SYSTEM_NOT_READY:
		return ": start the service that the machine's GPUs need (nvidia-fabricmanager)";
	case CU_SYSTEM_DRIVER_MISMATCH:
		return ": libcuda and the kernel's driver have different versions: restart the "
		       "machine after an update";
	default:
		break;
	}
	if (cuda_capture_forbids(rc))
		return ": a stream captures a graph: end the capture first";
	if (rc != CU_OK && rc != CU_CONTEXT_IS_DESTROYED && rc != CU_DEINITIALIZED &&
	    cuda_work_has_ended(rc))
		return ": a kernel has failed, and no CUDA call of this process will succeed: "
		       "start the process again";
	return "";
}

static __thread cu_result failed; /* with which this thread's last failing call has */

bool cuda_is_broken(int rc)
{
	return rc && rc == errno_of(failed) && failed != CU_CONTEXT_IS_DESTROYED &&
	       cuda_work_has_ended(failed);
}

int cuda_check(const struct tmesh_cuda *cuda, cu_result rc, const char *call,
	       struct tmesh_error *err)
{
	const char *name = NULL;

	if (rc == CU_OK)
		return 0;
	failed = rc;
	if (cuda->driver.error_name(rc, &name) || !name)
		return tmesh_fail(err, errno_of(rc), "%s: CUDA error %d%s", call, rc, remedy(rc));
	return tmesh_fail(err, errno_of(rc), "%s: %s%s", call, name, remedy(rc));
}

/* Set close-on-exec on a descriptor that the driver made, as it does not promise to. A program that
 * another thread starts before this call still gets the descriptor. */
int cuda_close_on_exec(int fd, struct tmesh_error *err)
{
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
		return 0;
	return tmesh_fail(err, -errno, "cannot set FD_CLOEXEC on descriptor %d of the driver", fd);
}

static int find_all(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	const char *missing = NULL;

	/* dlsym() gives a pointer to data, which POSIX lets be one to a function. */
#define FIND(member, symbol, arguments) \
	*(void **)&cuda->driver.member = dlsym(cuda->library, #symbol);
#define NEED(member, symbol, arguments) \
	FIND(member, symbol, arguments) \
	if (!cuda->driver.member)       \
		missing = #symbol;
	CU_FUNCTIONS(NEED)
	CU_FUNCTIONS_NEWER(FIND)
#undef NEED
#undef FIND
	if (missing)
		return tmesh_fail(err, -ENODEV,
				  "the CUDA driver has no %s and is too old: install one of CUDA "
				  "11 or later",
				  missing);
	return 0;
}

int cuda_load(struct tmesh_cuda *cuda, const char *library, struct tmesh_error *err)
{
	int rc;

	cuda->library = dlopen(library ? library : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!cuda->library)
		return tmesh_fail(err, -ENODEV,
				  "there is no CUDA driver: %.130s: install NVIDIA's, or start a "
				  "container with --gpus all",
				  dlerror());
	rc = find_all(cuda, err);
	if (!rc)
		rc = cuda_check(cuda, cuda->driver.init(0), "cuInit", err);
	if (!rc)
		rc = cuda_check(cuda, cuda->driver.driver_version(&cuda->version),
				"cuDriverGetVersion", err);
	return rc;
}
