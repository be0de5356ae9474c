/* SPDX-License-Identifier: MIT */
/*
 * CUDA: GPU memory between processes, and regions of host memory on the GPU. A library of its own,
 * libtmesh-cuda, which loads the driver (libcuda.so.1) at run time. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 * Maturity: never run on the real thing.
 *
 * Errors of the driver: the message names the driver's call and the CUDA error.
 *
 *   -ENODEV      no driver, no GPU, or not that one
 *   -ENOMEM      CUDA_ERROR_OUT_OF_MEMORY
 *   -EOPNOTSUPP  CUDA_ERROR_NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED
 *   -EPERM       CUDA_ERROR_NOT_PERMITTED; NOT_INITIALIZED (the process was forked from one that
 *                used CUDA)
 *   -EINVAL      CUDA_ERROR_INVALID_VALUE, INVALID_HANDLE, ...
 *   -EBUSY       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED; STREAM_CAPTURE_UNSUPPORTED to
 *                STREAM_CAPTURE_WRONG_THREAD (900 to 908: a stream captures a graph);
 *                DEVICE_UNAVAILABLE (another process has the GPU alone)
 *   -ECONNRESET  the device's context was destroyed, and perhaps made anew. Drivers before CUDA 12
 *                do not report which objects were made anew (docs/reference/cuda.md)
 *   -EIO         anything else
 *
 * The driver does not survive fork(). In the child, objects that were opened before give -EPERM;
 * dropping the last reference there only closes descriptors.
 *
 * Device numbers are those of this process's driver. The library uses the devices' primary
 * contexts, as the CUDA runtime and the frameworks do. Pointers are device pointers. A stream is a
 * CUstream (cudaStream_t); NULL is the default stream.
 */
#ifndef TMESH_CUDA_H
#define TMESH_CUDA_H

#include <tmesh/tmesh.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_cuda;
struct tmesh_cuda_memory;
struct CUstream_st;

/* In place of a stream: the caller orders the work itself. No event is recorded, and neither a
 * stream nor the host waits. */
#define TMESH_CUDA_NO_STREAM ((struct CUstream_st *)(intptr_t)-1)

struct tmesh_cuda_opts {
	size_t size;	      /* sizeof(struct tmesh_cuda_opts) */
	const char *library;  /* of the driver; NULL: libcuda.so.1 */
	uint64_t block_bytes; /* that small allocations share; 0: 32 MiB */
	tmesh_log_fn log;     /* NULL: nothing is logged. Fallbacks are logged at WARN */
	void *log_data;
	uint32_t flags;	  /* TMESH_CUDA_NO_EVENTS */
	const char *nvml; /* library that knows of persistence mode; NULL: libnvidia-ml.so.1 */
};

enum tmesh_cuda_open_flags {
	/* Hand memory over without events: the host waits for the stream at each share, which is
	 * counted (host_waits). The driver finds events by /dev/shm. A consumer in a container that
	 * has another one waits on its host instead. It needs this flag if the device cannot write
	 * wait values. */
	TMESH_CUDA_NO_EVENTS = 1 << 0,
};

/* Load the driver. Return: 0; -ENODEV (no driver, no GPU; the message says which). */
int tmesh_cuda_open(struct tmesh_ctx *ctx, const struct tmesh_cuda_opts *opts,
		    struct tmesh_cuda **out, struct tmesh_error *err);
/* One object for the whole process, for parts that do not know of each other. The first call opens
 * it with default options and a context of its own; it is never closed. TMESH_CUDA_EVENTS=0 in the
 * environment adds TMESH_CUDA_NO_EVENTS. @out is not a reference. */
int tmesh_cuda_default(struct tmesh_cuda **out, struct tmesh_error *err);
struct tmesh_cuda *tmesh_cuda_ref(struct tmesh_cuda *cuda);
/* Memory keeps the object alive. */
void tmesh_cuda_unref(struct tmesh_cuda *cuda);

struct tmesh_cuda_device_info {
	size_t size; /* in: sizeof(struct tmesh_cuda_device_info) */
	uint64_t bytes;
	int driver_version; /* 13000: 13.0 */
	uint8_t uuid[16];
	char name[64];
};
int tmesh_cuda_device_count(const struct tmesh_cuda *cuda);
int tmesh_cuda_device_info(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_device_info *info,
			   struct tmesh_error *err);

/* The state of a device's ability: tried by this call, reported by the driver, or not tried. */
enum tmesh_cuda_level {
	TMESH_CUDA_NOT_TRIED = 0,
	TMESH_CUDA_NOT_SUPPORTED = 1,
	TMESH_CUDA_WORKS = 2,
};

struct tmesh_cuda_cap {
	const char *name; /* host-register, host-register-read-only, vmm, posix-fd, gpudirect-rdma,
			   * dma-buf-export, dma-buf-import, opaque-fd-import, peer-access,
			   * ipc-event, ipc-memory */
	enum tmesh_cuda_level level;
	char reason[160]; /* why not; else how it is known */
};
#define TMESH_CUDA_CAPS 11

/* Fills @caps, an array of @count elements of @cap_bytes, as the caller was compiled. Tries with
 * one granule of memory. Those that this library does not know have the name "unknown". */
int tmesh_cuda_caps_sized(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *caps,
			  size_t count, size_t cap_bytes, struct tmesh_error *err);

/* @caps is an array of TMESH_CUDA_CAPS. */
static inline int tmesh_cuda_caps(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *caps,
				  struct tmesh_error *err)
{
	return tmesh_cuda_caps_sized(cuda, device, caps, TMESH_CUDA_CAPS,
				     sizeof(struct tmesh_cuda_cap), err);
}

/* The kind of a piece of memory. */
enum tmesh_cuda_kind {
	TMESH_CUDA_HOST = 1,	 /* a region of host memory, registered */
	TMESH_CUDA_STAGED = 2,	 /* a copy of such a region on the device */
	TMESH_CUDA_OWN = 3,	 /* allocated here */
	TMESH_CUDA_IMPORTED = 4, /* of another process */
	TMESH_CUDA_IPC = 5,	 /* of another process, by cuIpc: not allocated by this library */
	TMESH_CUDA_EXTERNAL = 6, /* by tmesh_cuda_import_fd() */
};

struct tmesh_cuda_info {
	size_t size; /* in: sizeof(struct tmesh_cuda_info) */
	enum tmesh_cuda_kind kind;
	int device;	  /* that it is mapped for */
	int resident;	  /* that has the memory; -1: host memory */
	uint32_t rights;  /* that kernels are to keep to */
	bool taken;	  /* it was taken back: the pointer is no longer valid */
	uint64_t pointer; /* device pointer */
	uint64_t bytes;
	uint64_t region; /* id of the region that stands for it; 0: none yet */
	/* Rights that the driver gives to kernels: more than @rights if a device has no read-only
	 * memory. A kernel that writes to the memory changes it for all other processes. */
	uint32_t mapped_rights;
	/* HOST: no copy of the driver's may cross a multiple of this (tmesh_cuda_register_with());
	 * kernels may. 0: no such limit. */
	uint64_t piece_bytes;
};
int tmesh_cuda_info(struct tmesh_cuda_memory *memory, struct tmesh_cuda_info *info,
		    struct tmesh_error *err);
uint64_t tmesh_cuda_pointer(const struct tmesh_cuda_memory *memory);

struct tmesh_cuda_memory *tmesh_cuda_memory_ref(struct tmesh_cuda_memory *memory);
/*
 * The last reference waits for all work of the memory's devices and then unregisters, unmaps or
 * frees the memory. If a device cannot be waited for, since a stream captures a graph or the driver
 * fails, a thread of the library does all this later. If other processes still hold memory that was
 * allocated here, it is not used again before they release it or end.
 */
void tmesh_cuda_memory_unref(struct tmesh_cuda_memory *memory);
/*
 * Drop the reference in the order of @stream, if only work that is queued there still uses the
 * memory. The call does not wait. tmesh_cuda_alloc_on() with the same stream can use the memory
 * again at once, other allocations after a wait for the device. For memory that was shared or was
 * not allocated here, the call waits as tmesh_cuda_memory_unref() does. Destroy a stream only when
 * its work is done.
 */
void tmesh_cuda_memory_unref_on(struct tmesh_cuda_memory *memory, struct CUstream_st *stream);

enum tmesh_cuda_flags {
	TMESH_CUDA_OR_STAGE = 1 << 0, /* register: a copy on the device when the driver refuses */
	TMESH_CUDA_OR_HOST = 1 << 1,  /* alloc: a host region when the device has no memory left */
	TMESH_CUDA_ALONE = 1 << 2, /* alloc: in a block of its own: others never see a neighbour */
	/* register for READ: map the region for writing where the device takes no read-only memory.
	 * The handle must give WRITE, and the region must not be sealed. */
	TMESH_CUDA_OR_WRITABLE = 1 << 3,
};

/*
 * Register a region of host memory with the driver, for kernels on @device. @rights is READ or
 * READ | WRITE. A region that is registered for writing must not be sealed. A region is pinned
 * once, whatever number of devices it is registered for. The library touches the region's lease as
 * long as the region is registered. If the lease lapses anyway, or the region is taken back, the
 * library waits for the device, unregisters the region and releases it.
 *
 * For READ the library asks for a read-only registration. Some devices have none (the driver's
 * attribute READ_ONLY_HOST_REGISTER_SUPPORTED is 0). For them the library tries in this order:
 *
 *   a plain registration of the read-only mapping, if the device minds the process's page tables;
 *   with OR_WRITABLE, registration of a writable mapping, logged, and counted as writable_instead.
 *   OR_STAGE allows a copy on the device, logged, and counted as staged_copies.
 *
 * tmesh_cuda_stage() updates such a copy. The driver copies through its own pinned memory.
 *
 * A sealed region has no writable mapping: on such a device only OR_STAGE makes it usable. OR_STAGE
 * also makes a copy when the driver refuses registration for any other reason.
 *
 * Return: 0; -EOPNOTSUPP (no read-only registration, and no flag helps); -EBUSY (for WRITE: this
 * process has registered it for reading alone, and has to release that first); -EINVAL, -EACCES,
 * -EPERM, -ESTALE as tmesh_region_map(), and the driver's errors.
 */
int tmesh_cuda_register(struct tmesh_cuda *cuda, struct tmesh_region *region, int device,
			uint32_t rights, uint32_t flags, struct tmesh_cuda_memory **out,
			struct tmesh_error *err);

struct tmesh_cuda_register_opts {
	size_t size; /* sizeof(struct tmesh_cuda_register_opts) */
	int device;
	uint32_t rights; /* 0: READ */
	uint32_t flags;
	/* The most that one call of the driver gets, rounded up to 2 MiB; 0: 64 GiB. Drivers refuse
	 * 512 GiB and more in one call. */
	uint64_t piece_bytes;
	/* Called by the registering thread before the first piece and after each one. Any result
	 * but 0 cancels: the pieces registered by then are unregistered. It may call this library,
	 * but does not register the same region. It may fork(): the child calls exec() or _exit().
	 * NULL: none. */
	int (*progress)(void *data, uint64_t done, uint64_t bytes);
	void *data;
};
/* The same, piece by piece. Return: -ECANCELED (@progress said so), and as above. */
int tmesh_cuda_register_with(struct tmesh_cuda *cuda, struct tmesh_region *region,
			     const struct tmesh_cuda_register_opts *opts,
			     struct tmesh_cuda_memory **out, struct tmesh_error *err);
/* STAGED memory: copy all of it from the region to the device, or with @back the other way. */
int tmesh_cuda_stage(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err);

/*
 * Allocate memory on a device, aligned to 512 bytes and not initialized. If the device has no
 * memory left: -ENOMEM, or with OR_HOST a registered region of host memory, logged and counted.
 */
int tmesh_cuda_alloc(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
		     struct tmesh_cuda_memory **out, struct tmesh_error *err);
/* The same; the first use of the memory must be in the order of @stream. */
int tmesh_cuda_alloc_on(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
			struct CUstream_st *stream, struct tmesh_cuda_memory **out,
			struct tmesh_error *err);
/*
 * Fill all of it with zeros, in the order of @stream: work that is queued there later finds them.
 * Return: 0; -EACCES (it is for reading), -ESTALE (it was taken back), and the driver's errors.
 */
int tmesh_cuda_zero(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err);
/*
 * Copy @bytes of it, from @offset on, to @data in host memory, or from there. Both first wait for
 * all work of the device, of every stream, and are done when they return; with @bytes 0 they wait
 * alone. The driver copies through its own pinned memory. Return: 0; -EINVAL (outside), -EACCES
 * (write: it is for reading), -ESTALE (it was taken back), and the driver's errors.
 */
int tmesh_cuda_read(struct tmesh_cuda_memory *memory, uint64_t offset, void *data, uint64_t bytes,
		    struct tmesh_error *err);
int tmesh_cuda_write(struct tmesh_cuda_memory *memory, uint64_t offset, const void *data,
		     uint64_t bytes, struct tmesh_error *err);
/*
 * Make a part of memory that was allocated here. It is shared, reclaimed and released on its own,
 * like a tensor in a segment of a framework's allocator. The part keeps @memory alive. When its
 * last reference here is gone and no other process holds it, the library calls @release (may be
 * NULL) with @data, from any thread, also its own. Then the place may be used again. @release calls
 * nothing of this library, and may fork(): the child calls exec() or _exit().
 *
 * Return: 0; -EINVAL (outside, or no memory that was allocated here), -ENOMEM.
 */
typedef void (*tmesh_cuda_release_fn)(void *data);
int tmesh_cuda_slice(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
		     tmesh_cuda_release_fn release, void *data, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err);
/* Find the memory (not a part of it) that contains @pointer, at @offset. The caller owns the
 * reference in @out. Return: 0; -ENOENT. */
int tmesh_cuda_find(struct tmesh_cuda *cuda, uint64_t pointer, struct tmesh_cuda_memory **out,
		    uint64_t *offset, struct tmesh_error *err);
/*
 * Announce that streams of @device will capture a graph, until tmesh_cuda_capture_end(). While a
 * stream captures, waiting for the device breaks the capture. The library therefore does not wait.
 * Memory that is given back stays mapped until the capture has ended (bytes_waiting), and calls
 * that cannot do without waiting fail with -EBUSY. The library itself sees a capture on a stream
 * that blocks the default stream, and one on a stream that it is given in a call. It asks the
 * driver about such a stream: destroy it after a later call with the stream, or after
 * tmesh_cuda_capture_end(). Frameworks capture on other streams: announce these. Calls nest. Any
 * thread may call both.
 *
 * Return: 0; -ENODEV; -EINVAL (end: none is announced).
 */
int tmesh_cuda_capture_begin(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
int tmesh_cuda_capture_end(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Give empty blocks back to the driver. */
void tmesh_cuda_trim(struct tmesh_cuda *cuda);

struct tmesh_cuda_stats {
	size_t size;		     /* in: sizeof(struct tmesh_cuda_stats) */
	uint64_t bytes_used;	     /* allocated and not given back */
	uint64_t bytes_reserved;     /* in blocks of the driver's memory */
	uint64_t bytes_pending_free; /* given back here, still held by other processes */
	uint64_t blocks;
	uint64_t allocs;
	uint64_t reused; /* of them without a new block */
	uint64_t imported_bytes;
	uint64_t registered_bytes;
	uint64_t staged_copies; /* from here on: fallbacks */
	uint64_t staged_bytes;
	uint64_t host_fallbacks;
	uint64_t host_waits;	   /* times the host waited because it has no interprocess event */
	uint64_t taken;		   /* pieces of memory that were taken back */
	uint64_t writable_instead; /* fallback: registered for writing where READ was asked for */
	uint64_t bytes_waiting;	   /* given back here while the device could not be waited for */
};
/* @device -1: the sum of all devices. */
int tmesh_cuda_stats(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_stats *stats);

/*
 * The region that stands for device memory: an opaque region of @memory's length, made by the first
 * call. tmesh_region_send() hands it over by socket, its token by ref. The caller owns the
 * reference in @out. A receiver gets the whole block that the memory lies in; other allocations may
 * lie in the same block, unless the memory was made with ALONE.
 *
 * Return: 0; -EOPNOTSUPP (the device exports no descriptors; EXTERNAL memory); -ESTALE.
 */
int tmesh_cuda_region(struct tmesh_cuda_memory *memory, struct tmesh_region **out,
		      struct tmesh_error *err);

struct tmesh_cuda_import_opts {
	size_t size;	 /* sizeof(struct tmesh_cuda_import_opts) */
	uint32_t rights; /* of kernels; 0: READ */
	int device;	 /* that kernels run on; -1: the resident one */
	/* 0: none. Without a touch for this time the memory is unmapped here. Memory of cuIpc has
	 * none: -EOPNOTSUPP. */
	uint64_t lease_ns;
	uint32_t flags; /* OR_STAGE, OR_WRITABLE: how a ref to host memory is registered */
};

/*
 * Map another process's memory, for which @region stands, for @opts->device and for the device
 * where it resides. The region must give WRITE, because the driver's descriptors always do; READ is
 * enforced by the mapping. The memory takes its own reference on @region.
 *
 * Return: 0; -EPROTO (the region stands for something else); -ENODEV (a GPU that is not here, or
 * hidden); -ESTALE; -EOPNOTSUPP (no peer access); the driver's errors.
 */
int tmesh_cuda_import(struct tmesh_cuda *cuda, struct tmesh_region *region,
		      const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		      struct tmesh_error *err);

/*
 * Write a ref (tmesh/tensor.h) of a tensor in @memory to @text. A process that opens the ref waits
 * for the work that is queued on @stream now. @layout->offset counts from the start of the memory;
 * the call fills in the device. The ref has one more member, "cuda", which says how the memory is
 * handed over and, for imported memory, that its sender has waited. TMESH_REF_SIZE bytes are
 * enough.
 *
 * Return: 0; -EOPNOTSUPP (STAGED memory: share its region instead); -ENOSPC; errors as
 * tmesh_cuda_region() and tmesh_region_token(). After an error @text may have been written to.
 */
int tmesh_cuda_share(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		     struct CUstream_st *stream, char *text, size_t size, struct tmesh_error *err);
/*
 * Write a ref of memory that this library did not allocate. Memory of cudaMalloc() goes by cuIpc:
 * the owner must keep it until all processes that opened the ref are done. The ref has "ipc".
 * Memory of the VMM calls, such as PyTorch's expandable segments, goes by a descriptor, if it was
 * made exportable. The driver keeps it for the processes that opened the ref, which has "vmm".
 * @region receives the region of the ref's token; the token is valid until it is released.
 */
int tmesh_cuda_share_ipc(struct tmesh_cuda *cuda, uint64_t pointer,
			 const struct tmesh_layout *layout, struct CUstream_st *stream, char *text,
			 size_t size, struct tmesh_region **region, struct tmesh_error *err);

/*
 * Open a ref: gives the memory and the layout, whose offset counts from the start of the memory.
 * Work that is queued on @stream from now on waits for the work of the producer's stream before the
 * ref was made, as by tmesh_cuda_wait(). A ref that is open already gives the same memory. Host
 * memory is registered, as by tmesh_cuda_register().
 *
 * Return: 0; errors as tmesh_cuda_import(), tmesh_cuda_wait(), tmesh_cuda_register() and
 * tmesh_region_open(); -EPROTO.
 */
int tmesh_cuda_open_ref(struct tmesh_cuda *cuda, const char *text, size_t bytes,
			const struct tmesh_cuda_import_opts *opts, struct CUstream_st *stream,
			struct tmesh_cuda_memory **out, struct tmesh_layout *layout,
			struct tmesh_error *err);

/*
 * Keep memory that was allocated here under @name (tmesh/keep.h). It stays when this process and
 * every other holder are gone, however they ended. It ends when the name is dropped
 * (tmesh_kept_drop(), in any context of the user's) or its time is over. @layout is that of the
 * array in it, as in tmesh_cuda_share(); a process that opens the name gets it. The host waits for
 * the work that is queued on @stream, and then for the memory's device.
 *
 * GPU memory cannot be sealed: a process that opens the name for writing changes the memory of all
 * others. The memory does not count in the limit of kept bytes, and is not given up when memory is
 * short. The kept descriptor is that of the memory's whole block: allocate the memory with ALONE,
 * or its neighbours' memory stays as well. While the name is kept, memory that is given back here
 * is pending free; tmesh_cuda_reclaim() does not reach it. One memory may be kept under several
 * names.
 *
 * The driver may shut a GPU down that no process uses, and its memory with it, unless the GPU's
 * persistence mode is on. If it is known to be off, this is logged.
 *
 * Return: 0; -EINVAL (not allocated here; the name), -EOPNOTSUPP (host memory, staged memory; the
 * device exports no descriptors), as tmesh_layout_check(), tmesh_cuda_region() and tmesh_keep();
 * the driver's errors.
 */
int tmesh_cuda_keep(struct tmesh_cuda_memory *memory, const char *name,
		    const struct tmesh_layout *layout, struct CUstream_st *stream,
		    const struct tmesh_keep_opts *opts, struct tmesh_error *err);
/*
 * Open the memory under a kept name of user @uid (TMESH_KEPT_OWN: the caller's; memfd: no other),
 * mapped as by tmesh_cuda_import(). The call does not wait: tmesh_cuda_keep() has waited for the
 * work queued before it. The memory may be shared on, after its maker's death too.
 *
 * Return: 0; -ENOENT (nothing is kept there), -EPROTO (no GPU memory), -EACCES (the same, or not
 * for this user); errors as tmesh_kept_open() and tmesh_cuda_import().
 */
int tmesh_cuda_kept_open(struct tmesh_cuda *cuda, const char *name, uid_t uid,
			 const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
			 struct tmesh_layout *layout, struct tmesh_error *err);

/* For regions that are handed over without a ref: the ordering of tmesh_cuda_share() (record) and
 * of tmesh_cuda_open_ref() (wait). */
int tmesh_cuda_record(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		      struct tmesh_error *err);
/* If the producer's event cannot be opened, for example from another container, the host waits for
 * the producer's stream. That is logged, and counted as host_waits. With TMESH_CUDA_NO_STREAM
 * nothing waits. Return: 0; the driver's error for the event, if the producer's device writes no
 * wait values; -EOWNERDEAD (the host waited, and the producer ended before its work was done);
 * -ESTALE (the memory was taken back meanwhile). */
int tmesh_cuda_wait(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err);

/* Touch the lease. Return: 0; -ESTALE (the memory was taken back). */
int tmesh_cuda_touch(struct tmesh_cuda_memory *memory);

/*
 * Take memory that was allocated here back from all other processes: their libraries wait for their
 * devices, unmap the memory and release it. Its tokens become invalid.
 *
 * Signals do not end the wait. @timeout_ns 0: do not wait; negative: no limit.
 *
 * Return: 0; -ETIMEDOUT after @timeout_ns (the message names the processes that still hold it);
 * -EINVAL (not allocated here).
 */
int tmesh_cuda_reclaim(struct tmesh_cuda_memory *memory, int64_t timeout_ns,
		       struct tmesh_error *err);

/* DLPack, as in tmesh/tensor.h: with the resident device, and a reference on @memory. */
int tmesh_cuda_to_dlpack(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
			 struct DLManagedTensor **out, struct tmesh_error *err);
int tmesh_cuda_to_dlpack_versioned(struct tmesh_cuda_memory *memory,
				   const struct tmesh_layout *layout, uint32_t max_major,
				   struct DLManagedTensorVersioned **out, struct tmesh_error *err);

/*
 * Make a dma-buf of whole pages of memory that was allocated here with ALONE; @bytes 0: to the end.
 * With tmesh_region_from_dmabuf() it becomes a region that devices import. The caller owns @fd.
 * A process that holds @fd keeps the block after @memory is given back; no reclaim reaches it.
 * Return: 0; -EINVAL (not ALONE; outside; no whole pages), -EOPNOTSUPP (not allocated here; the
 * device makes none), and the driver's errors.
 */
int tmesh_cuda_export_dmabuf(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
			     int *fd, struct tmesh_error *err);

enum tmesh_cuda_fd {
	TMESH_CUDA_OPAQUE_FD = 1,
	TMESH_CUDA_DMABUF_FD = 2, /* few platforms: -EOPNOTSUPP elsewhere */
};
/* Import memory that CUDA or Vulkan has exported, or a dma-buf. The caller still owns @fd. */
int tmesh_cuda_import_fd(struct tmesh_cuda *cuda, int device, enum tmesh_cuda_fd type, int fd,
			 uint64_t bytes, struct tmesh_cuda_memory **out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_CUDA_H */
