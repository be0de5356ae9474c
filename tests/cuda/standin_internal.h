/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the stand-in driver share. */
#ifndef TMESH_STANDIN_INTERNAL_H
#define TMESH_STANDIN_INTERNAL_H

#include <pthread.h>
#include <stdint.h>

#include "driver_api.h"
#include "standin.h"

#define STANDIN_DEVICES 8
#define STANDIN_WITHOUT 8
#define STANDIN_MAX 4096
#define STANDIN_GRANULE (2u << 20)

struct standin_setup {
	int devices, broken;
	unsigned long long bytes, pin_bytes;
	int version;
	char node[256];
	unsigned int without_count;
	char without[STANDIN_WITHOUT][24];
	unsigned int with_count;
	char with[STANDIN_WITHOUT][24];
};
extern struct standin_setup standin;
extern pthread_mutex_t standin_lock;

#define CU_DECLARE(member, symbol, arguments) cu_result symbol arguments;
CU_FUNCTIONS(CU_DECLARE)
CU_FUNCTIONS_NEWER(CU_DECLARE)
#undef CU_DECLARE

/* Called by tests alone. */
cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode);
cu_result cuStreamEndCapture(cu_stream stream, void **graph);
cu_result cuMemcpyHtoD_v2(cu_ptr to, const void *from, size_t bytes);
cu_result cuMemcpyDtoH_v2(void *to, cu_ptr from, size_t bytes);
cu_result cuStreamQuery(cu_stream stream);
cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
cu_result cuLaunchHostFunc(cu_stream stream, void (*call)(void *data), void *data);
cu_result cuCtxGetDevice(cu_device *device);
cu_result cuMemFreeAsync(cu_ptr ptr, cu_stream stream);
cu_result cuMemFreeAsync_ptsz(cu_ptr ptr, cu_stream stream);
cu_result cuGetProcAddress(const char *name, void **function, int version,
			   unsigned long long flags);
cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
			      unsigned long long flags, int *status);

/* Count the call, and let it fail if a test has asked for that. */
int standin_enter(const char *symbol);
#define ENTER(symbol)                              \
	do {                                       \
		int code_ = standin_enter(symbol); \
                                                   \
		if (code_)                         \
			return code_;              \
	} while (0)

bool standin_may_access(int device, unsigned long long ptr, size_t bytes, bool write);
bool standin_without(const char *name);
bool standin_with(const char *name);
/* Return CU_NOT_PERMITTED to a process that the devices' node does not let in. */
cu_result standin_permitted(void);
/* Return the device of this thread's context, which need not be active; -1 when it has none. */
int standin_current(void);
/* Return the error of a call that needs a context and finds none, or finds a destroyed one. */
cu_result standin_context(void);
#define NEED_CONTEXT()                               \
	do {                                         \
		cu_result none_ = standin_context(); \
                                                     \
		if (none_)                           \
			return none_;                \
	} while (0)
/* Check a call that a capture forbids, unless this thread's mode is relaxed. It breaks the
 * captures. */
cu_result standin_unsafe(void);
#define UNSAFE(symbol)                  \
	do {                            \
		cu_result no_;          \
                                        \
		ENTER(symbol);          \
		no_ = standin_unsafe(); \
		if (no_)                \
			return no_;     \
	} while (0)
/* Work on a stream: the legacy default stream waits for blocking streams, which may capture. */
cu_result standin_usable(cu_stream stream);
cu_context standin_context_of(int device);
/* Return whether all of it is registered host memory that the device may touch in this way. */
bool standin_host(int device, const void *addr, size_t bytes, bool write);
/* Drop the memory that belonged to the device's context. Call it under the lock. */
void standin_reset_memory(int device);
void standin_reset_streams(int device);
void standin_release_events(int device);
unsigned long standin_live_memory(void);
unsigned long standin_live_streams(void);

standin_fail_fn standin_fail;
standin_during_fn standin_during;
standin_set_up_fn standin_set_up;
standin_start_fn standin_start;
standin_calls_fn standin_calls;
standin_live_fn standin_live;
standin_access_fn standin_access;
standin_reset_fn standin_reset;
standin_copied_on_write_fn standin_copied_on_write;
/* Count those of the range. @read: the driver copies from it, else it pins it. */
void standin_look_for_private(const void *addr, size_t bytes, bool read);

/*
 * An IPC handle: the place where its maker keeps the memory. Real handles are opaque; like them
 * these end with their maker.
 */
struct standin_ipc {
	uint32_t magic;
	int32_t pid;
	int32_t fd;
	int32_t device;
	uint64_t ino;
	uint64_t bytes;
};
#define STANDIN_IPC_MEM 0x4d504953u
#define STANDIN_IPC_EVENT 0x45504953u
/* Return a descriptor of the handle's memory, or -1. */
int standin_ipc_open(const struct standin_ipc *ipc, uint32_t magic);
void standin_ipc_fill(struct cu_ipc_handle *handle, uint32_t magic, int fd, int device,
		      uint64_t bytes);

#endif /* TMESH_STANDIN_INTERNAL_H */
