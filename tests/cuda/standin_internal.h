/* SPDX-License-Identifier: MIT */
/* What the files of the stand-in driver share. */
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
	int devices;
	unsigned long long bytes;
	int version;
	bool dmabuf_import;
	char node[256];
	unsigned int without_count;
	char without[STANDIN_WITHOUT][16];
};
extern struct standin_setup standin;
extern pthread_mutex_t standin_lock;

#define CU_DECLARE(member, symbol, arguments) cu_result symbol arguments;
CU_FUNCTIONS(CU_DECLARE)
CU_FUNCTIONS_NEWER(CU_DECLARE)
#undef CU_DECLARE

/* Called by tests alone. */
cu_result cuStreamCreate(cu_stream *out, unsigned int flags);
cu_result cuStreamDestroy_v2(cu_stream stream);
cu_result cuStreamQuery(cu_stream stream);
cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
cu_result cuLaunchHostFunc(cu_stream stream, void (*call)(void *data), void *data);

/* Count the call, and let it fail when it is to. */
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
/* CU_NOT_PERMITTED to whom the devices' node does not let in. */
cu_result standin_permitted(void);
/* Device of this thread's context, which need not be active; -1 when it has none. */
int standin_current(void);
/* What calls say that need a context, and find none or a destroyed one. */
cu_result standin_context(void);
#define NEED_CONTEXT()                               \
	do {                                         \
		cu_result none_ = standin_context(); \
                                                     \
		if (none_)                           \
			return none_;                \
	} while (0)
/* All of it is registered host memory that a device may touch so. */
bool standin_host(const void *addr, size_t bytes, bool write);
/* What the device's context had goes with it. Under the lock. */
void standin_reset_memory(int device);
void standin_reset_streams(int device);
unsigned long standin_live_memory(void);
unsigned long standin_live_streams(void);

standin_fail_fn standin_fail;
standin_during_fn standin_during;
standin_set_up_fn standin_set_up;
standin_calls_fn standin_calls;
standin_live_fn standin_live;
standin_access_fn standin_access;
standin_reset_fn standin_reset;

/*
 * What an IPC handle says: where its maker keeps the memory. The real ones are the driver's
 * secret; like them these end with the maker.
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
/* A descriptor of what the handle names, or -1. */
int standin_ipc_open(const struct standin_ipc *ipc, uint32_t magic);
void standin_ipc_fill(struct cu_ipc_handle *handle, uint32_t magic, int fd, int device,
		      uint64_t bytes);

#endif /* TMESH_STANDIN_INTERNAL_H */
