/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver's ABI as far as this library speaks it: the names and numbers of the driver's
 * functions, types and constants are facts of its binary interface. No toolkit is needed to build
 * or to run; where there is one, tests/cuda/test_abi.c compares.
 */
#ifndef TMESH_CUDA_DRIVER_API_H
#define TMESH_CUDA_DRIVER_API_H

#include <stddef.h>

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_ptr; /* CUdeviceptr */
typedef unsigned long long cu_mem; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUextMemory_st *cu_external;

enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_DEINITIALIZED = 4,
	CU_STUB_LIBRARY = 34,
	CU_DEVICE_UNAVAILABLE = 46,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201,
	CU_MAP_FAILED = 205,
	CU_ALREADY_MAPPED = 208,
	CU_NOT_MAPPED = 211,
	CU_PEER_ACCESS_UNSUPPORTED = 217,
	CU_OPERATING_SYSTEM = 304,
	CU_INVALID_HANDLE = 400,
	CU_NOT_READY = 600,
	CU_ILLEGAL_ADDRESS = 700,
	CU_LAUNCH_TIMEOUT = 702,
	CU_CONTEXT_IS_DESTROYED = 709,
	CU_ASSERT = 710,
	CU_HOST_ALREADY_REGISTERED = 712,
	CU_HOST_NOT_REGISTERED = 713,
	CU_HARDWARE_STACK_ERROR = 714,
	CU_LAUNCH_FAILED = 719,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_SYSTEM_NOT_READY = 802,
	CU_SYSTEM_DRIVER_MISMATCH = 803,
	/* From here to CAPTURE_WRONG_THREAD: a stream's capture of a graph forbids the call. */
	CU_CAPTURE_UNSUPPORTED = 900,
	CU_CAPTURE_INVALIDATED = 901,
	CU_CAPTURE_IMPLICIT = 906,
	CU_CAPTURED_EVENT = 907,
	CU_CAPTURE_WRONG_THREAD = 908,
	CU_UNKNOWN = 999,
};

/* Attributes of a device. */
enum {
	CU_ATTR_UNIFIED_ADDRESSING = 41,
	CU_ATTR_HOST_POINTER = 91, /* registered memory has one address on host and device */
	CU_ATTR_HOST_REGISTER = 99,
	CU_ATTR_HOST_PAGE_TABLES = 100, /* the device minds the process's page tables */
	CU_ATTR_VMM = 102,
	CU_ATTR_POSIX_FD = 103,
	CU_ATTR_VMM_RDMA = 110, /* cuMemCreate() takes the flag */
	CU_ATTR_READ_ONLY_HOST_REGISTER = 113,
	CU_ATTR_WRITE_VALUE = 122, /* streams write 64-bit values */
	CU_ATTR_DMA_BUF = 124,
	CU_ATTR_IPC_EVENT = 125,
};

enum {
	CU_HOST_REGISTER_PORTABLE = 1,
	CU_HOST_REGISTER_DEVICEMAP = 2,
	CU_HOST_REGISTER_READ_ONLY = 8,
};

enum {
	CU_POINTER_ATTR_IPC_CAPABLE = 10,
	CU_POINTER_ATTR_DEVICE = 9,
	CU_POINTER_ATTR_BUFFER_ID = 7,
	CU_POINTER_ATTR_RDMA = 15,
};

enum {
	CU_EVENT_NO_TIMING = 2,
	CU_EVENT_SHARED = 4,
};

#define CU_STREAM_LEGACY ((cu_stream)1)
#define CU_STREAM_PER_THREAD ((cu_stream)2)
#define CU_NON_BLOCKING 1
#define CU_CAPTURE_MODE_GLOBAL 0
#define CU_CAPTURE_MODE_RELAXED 2
#define CU_CAPTURE_NONE 0
#define CU_CAPTURE_ACTIVE 1
#define CU_CAPTURE_BROKEN 2
#define CU_IPC_LAZY_ENABLE_PEER_ACCESS 1
#define CU_GRANULARITY_MINIMUM 0
#define CU_ALLOCATION_PINNED 1
#define CU_HANDLE_POSIX_FD 1
#define CU_LOCATION_DEVICE 1
#define CU_ACCESS_READ 1
#define CU_ACCESS_READ_WRITE 3
#define CU_RANGE_DMA_BUF_FD 1
#define CU_RANGE_FLAG_PCIE 1
#define CU_EXTERNAL_OPAQUE_FD 1
#define CU_EXTERNAL_DMABUF_FD 9

struct cu_location {
	int type;
	int id;
};

struct cu_alloc_prop {
	int type;
	int handle_types;
	struct cu_location location;
	void *win32;
	unsigned char compression;
	unsigned char rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct cu_access {
	struct cu_location location;
	int flags;
};

struct cu_uuid {
	unsigned char bytes[16];
};

struct cu_ipc_handle { /* of memory and of events alike */
	unsigned char bytes[64];
};

struct cu_external_desc {
	int type;
	union {
		int fd;
		void *two_pointers[2];
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
};

struct cu_external_range {
	unsigned long long offset;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
};

/*
 * Every driver function that is called: X(member, symbol, arguments). The second list has functions
 * that older drivers lack; a caller checks that its function is there.
 */
#define CU_FUNCTIONS(X)                                                                           \
	X(init, cuInit, (unsigned int flags))                                                     \
	X(driver_version, cuDriverGetVersion, (int *version))                                     \
	X(error_name, cuGetErrorName, (cu_result code, const char **name))                        \
	X(device_count, cuDeviceGetCount, (int *count))                                           \
	X(device_get, cuDeviceGet, (cu_device * device, int ordinal))                             \
	X(device_name, cuDeviceGetName, (char *name, int size, cu_device device))                 \
	X(device_uuid, cuDeviceGetUuid, (struct cu_uuid * uuid, cu_device device))                \
	X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, cu_device device))                 \
	X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, cu_device device))  \
	X(device_can_access_peer, cuDeviceCanAccessPeer,                                          \
	  (int *can, cu_device device, cu_device peer))                                           \
	X(primary_retain, cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))     \
	X(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                      \
	X(primary_state, cuDevicePrimaryCtxGetState,                                              \
	  (cu_device device, unsigned int *flags, int *active))                                   \
	X(ctx_push, cuCtxPushCurrent_v2, (cu_context context))                                    \
	X(ctx_pop, cuCtxPopCurrent_v2, (cu_context * context))                                    \
	X(ctx_synchronize, cuCtxSynchronize, (void))                                              \
	X(host_register, cuMemHostRegister_v2, (void *addr, size_t bytes, unsigned int flags))    \
	X(host_unregister, cuMemHostUnregister, (void *addr))                                     \
	X(host_device_pointer, cuMemHostGetDevicePointer_v2,                                      \
	  (cu_ptr * ptr, void *addr, unsigned int flags))                                         \
	X(mem_alloc, cuMemAlloc_v2, (cu_ptr * ptr, size_t bytes))                                 \
	X(mem_free, cuMemFree_v2, (cu_ptr ptr))                                                   \
	X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                   \
	  (cu_ptr to, const void *from, size_t bytes, cu_stream stream))                          \
	X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                     \
	  (void *to, cu_ptr from, size_t bytes, cu_stream stream))                                \
	X(fill, cuMemsetD8Async, (cu_ptr at, unsigned char byte, size_t bytes, cu_stream stream)) \
	X(stream_create, cuStreamCreate, (cu_stream * stream, unsigned int flags))                \
	X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                 \
	X(stream_synchronize, cuStreamSynchronize, (cu_stream stream))                            \
	X(stream_wait, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned int flags)) \
	X(event_create, cuEventCreate, (cu_event * event, unsigned int flags))                    \
	X(event_destroy, cuEventDestroy_v2, (cu_event event))                                     \
	X(event_record, cuEventRecord, (cu_event event, cu_stream stream))                        \
	X(event_synchronize, cuEventSynchronize, (cu_event event))                                \
	X(ipc_event_get, cuIpcGetEventHandle, (struct cu_ipc_handle * handle, cu_event event))    \
	X(ipc_event_open, cuIpcOpenEventHandle, (cu_event * event, struct cu_ipc_handle handle))  \
	X(ipc_mem_get, cuIpcGetMemHandle, (struct cu_ipc_handle * handle, cu_ptr ptr))            \
	X(ipc_mem_open, cuIpcOpenMemHandle_v2,                                                    \
	  (cu_ptr * ptr, struct cu_ipc_handle handle, unsigned int flags))                        \
	X(ipc_mem_close, cuIpcCloseMemHandle, (cu_ptr ptr))                                       \
	X(address_range, cuMemGetAddressRange_v2, (cu_ptr * base, size_t * bytes, cu_ptr ptr))    \
	X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, cu_ptr ptr))

#define CU_FUNCTIONS_NEWER(X)                                                                    \
	X(device_uuid_v2, cuDeviceGetUuid_v2, (struct cu_uuid * uuid, cu_device device))         \
	X(stream_ctx, cuStreamGetCtx, (cu_stream stream, cu_context * context))                  \
	X(stream_is_capturing, cuStreamIsCapturing, (cu_stream stream, int *status))             \
	X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                          \
	X(write_value, cuStreamWriteValue64_v2,                                                  \
	  (cu_stream stream, cu_ptr at, unsigned long long value, unsigned int flags))           \
	X(ctx_id, cuCtxGetId, (cu_context context, unsigned long long *id))                      \
	X(granularity, cuMemGetAllocationGranularity,                                            \
	  (size_t * bytes, const struct cu_alloc_prop *prop, int flags))                         \
	X(mem_create, cuMemCreate,                                                               \
	  (cu_mem * mem, size_t bytes, const struct cu_alloc_prop *prop,                         \
	   unsigned long long flags))                                                            \
	X(mem_release, cuMemRelease, (cu_mem mem))                                               \
	X(reserve, cuMemAddressReserve,                                                          \
	  (cu_ptr * ptr, size_t bytes, size_t alignment, cu_ptr addr, unsigned long long flags)) \
	X(unreserve, cuMemAddressFree, (cu_ptr ptr, size_t bytes))                               \
	X(map, cuMemMap,                                                                         \
	  (cu_ptr ptr, size_t bytes, size_t offset, cu_mem mem, unsigned long long flags))       \
	X(unmap, cuMemUnmap, (cu_ptr ptr, size_t bytes))                                         \
	X(set_access, cuMemSetAccess,                                                            \
	  (cu_ptr ptr, size_t bytes, const struct cu_access *access, size_t count))              \
	X(retain_handle, cuMemRetainAllocationHandle, (cu_mem * mem, void *addr))                \
	X(export_handle, cuMemExportToShareableHandle,                                           \
	  (void *handle, cu_mem mem, int type, unsigned long long flags))                        \
	X(import_handle, cuMemImportFromShareableHandle, (cu_mem * mem, void *handle, int type)) \
	X(range_handle, cuMemGetHandleForAddressRange,                                           \
	  (void *handle, cu_ptr ptr, size_t bytes, int type, unsigned long long flags))          \
	X(external_import, cuImportExternalMemory,                                               \
	  (cu_external * external, const struct cu_external_desc *desc))                         \
	X(external_map, cuExternalMemoryGetMappedBuffer,                                         \
	  (cu_ptr * ptr, cu_external external, const struct cu_external_range *range))           \
	X(external_destroy, cuDestroyExternalMemory, (cu_external external))

struct cu_driver {
#define CU_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
	CU_FUNCTIONS(CU_MEMBER)
	CU_FUNCTIONS_NEWER(CU_MEMBER)
#undef CU_MEMBER
};

#endif /* TMESH_CUDA_DRIVER_API_H */
