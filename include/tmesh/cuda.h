/* SPDX-License-Identifier: MIT */
/*
 * CUDA: GPU memory between processes, and regions of host memory on the GPU. A library of its own,
 * libtmesh-cuda, which loads the driver (libcuda.so.1) at run time. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 *
 * Whatever the driver refuses is said with the name of the call and of the CUDA error:
 *
 *   -ENODEV      no driver, no GPU, or not that one
 *   -ENOMEM      CUDA_ERROR_OUT_OF_MEMORY
 *   -EOPNOTSUPP  CUDA_ERROR_NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED
 *   -EPERM       CUDA_ERROR_NOT_PERMITTED
 *   -EINVAL      CUDA_ERROR_INVALID_VALUE, INVALID_HANDLE, ...
 *   -EBUSY       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
 *   -ECONNRESET  the device's context was destroyed, whether or not it was made anew since; drivers
 *                before CUDA 12 do not tell what was made anew (docs/cuda.md)
 *   -EIO         anything else
 *
 * The driver does not survive fork(): in the child, whatever was opened before gives -EPERM, and
 * giving it back there lets go of descriptors alone.
 *
 * Device numbers are those of this process's driver. Contexts are the devices' primary ones, as
 * the CUDA runtime and the frameworks use them. Pointers are device pointers; a stream is a
 * CUstream (cudaStream_t), NULL the default one.
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

/* In a stream's place: the caller has seen to the order himself. Nothing is recorded, and neither a
 * stream nor the host waits. */
#define TMESH_CUDA_NO_STREAM ((struct CUstream_st *)(intptr_t)-1)

struct tmesh_cuda_opts {
	size_t size;	      /* sizeof(struct tmesh_cuda_opts) */
	const char *library;  /* of the driver; NULL: libcuda.so.1 */
	uint64_t block_bytes; /* that small allocations share; 0: 32 MiB */
	tmesh_log_fn log;     /* NULL: nothing is logged. Fallbacks are logged at WARN */
	void *log_data;
};

/* Load the driver. Return: 0; -ENODEV (no driver, no GPU; the message says which). */
int tmesh_cuda_open(struct tmesh_ctx *ctx, const struct tmesh_cuda_opts *opts,
		    struct tmesh_cuda **out, struct tmesh_error *err);
/* This process's own, for parts that do not know of each other: opened by the first call, with
 * default options and a context of its own, and never closed. Not a reference. */
int tmesh_cuda_default(struct tmesh_cuda **out, struct tmesh_error *err);
struct tmesh_cuda *tmesh_cuda_ref(struct tmesh_cuda *cuda);
/* Memory keeps it alive. */
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

/* What a device can do: tried here and now, said by the driver, or not tried. */
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

/* Fills @caps, an array of TMESH_CUDA_CAPS. Tries with one granule of memory. */
int tmesh_cuda_caps(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_cap *caps,
		    struct tmesh_error *err);

/* What a piece of memory is. */
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
	uint32_t rights;  /* of what kernels may do */
	bool taken;	  /* it was taken back: the pointer leads to nothing any more */
	uint64_t pointer; /* device pointer */
	uint64_t bytes;
	uint64_t region; /* id of the region that stands for it; 0: none yet */
};
int tmesh_cuda_info(struct tmesh_cuda_memory *memory, struct tmesh_cuda_info *info,
		    struct tmesh_error *err);
uint64_t tmesh_cuda_pointer(const struct tmesh_cuda_memory *memory);

struct tmesh_cuda_memory *tmesh_cuda_memory_ref(struct tmesh_cuda_memory *memory);
/*
 * The last one gives it back, after all work of its devices: unregistered, unmapped, freed. What
 * other processes still hold of memory that was allocated here is not used again before they let
 * go or end.
 */
void tmesh_cuda_memory_unref(struct tmesh_cuda_memory *memory);
/*
 * The same in the order of @stream, when nothing but work that was queued there uses the memory any
 * more: nobody waits. Its place is used again by tmesh_cuda_alloc_on() of the same stream at once,
 * and for others when the device was waited for. Memory that was shared, or is not of this kind, is
 * waited for as by tmesh_cuda_memory_unref(). A stream is destroyed when its work is done.
 */
void tmesh_cuda_memory_unref_on(struct tmesh_cuda_memory *memory, struct CUstream_st *stream);

enum tmesh_cuda_flags {
	TMESH_CUDA_OR_STAGE = 1 << 0, /* register: a copy on the device when the driver refuses */
	TMESH_CUDA_OR_HOST = 1 << 1,  /* alloc: a host region when the device has no memory left */
	TMESH_CUDA_ALONE = 1 << 2, /* alloc: in a block of its own: others never see a neighbour */
};

/*
 * Register a region of host memory with the driver, for kernels on @device. @rights is READ or
 * READ | WRITE; a region that is sealed or cannot be written is registered read-only, which takes
 * a device that can. The region must not be sealed with a writable mapping afterwards. Its lease
 * is touched for as long as it is registered. When it lapses all the same, or the region is taken
 * back, the library waits for the device, unregisters and lets go of the region.
 *
 * With OR_STAGE, where the driver refuses: a copy on the device, which tmesh_cuda_stage() brings
 * up to date; logged, and counted in tmesh_cuda_stats(). The driver moves it through pinned memory
 * of its own, as it does all that is copied from memory which is not registered.
 * Return: 0; -EINVAL, -EACCES, -EPERM, -ESTALE as tmesh_region_map(), and the driver's errors.
 */
int tmesh_cuda_register(struct tmesh_cuda *cuda, struct tmesh_region *region, int device,
			uint32_t rights, uint32_t flags, struct tmesh_cuda_memory **out,
			struct tmesh_error *err);
/* STAGED memory: copy all of it from the region to the device, or with @back the other way. */
int tmesh_cuda_stage(struct tmesh_cuda_memory *memory, bool back, struct tmesh_error *err);

/*
 * Memory on a device, aligned to 512 bytes, uninitialized. -ENOMEM when there is none; with
 * OR_HOST a registered region of host memory instead, logged and counted.
 */
int tmesh_cuda_alloc(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
		     struct tmesh_cuda_memory **out, struct tmesh_error *err);
/* The same, to be used in the order of @stream first. */
int tmesh_cuda_alloc_on(struct tmesh_cuda *cuda, int device, uint64_t bytes, uint32_t flags,
			struct CUstream_st *stream, struct tmesh_cuda_memory **out,
			struct tmesh_error *err);
/*
 * A part of memory that was allocated here, which is shared, reclaimed and given back by itself: a
 * tensor in a segment of a framework's allocator. When the part was given back here and no other
 * process holds it any more, @release (may be NULL) is called with @data, from any thread: then its
 * place may be used again. Until then it keeps @memory.
 * Return: 0; -EINVAL (outside, or no memory that was allocated here), -ENOMEM.
 */
typedef void (*tmesh_cuda_release_fn)(void *data);
int tmesh_cuda_part(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
		    tmesh_cuda_release_fn release, void *data, struct tmesh_cuda_memory **out,
		    struct tmesh_error *err);
/* The memory, not a part of it, that has this device pointer, with a reference; @offset into it.
 * -ENOENT. */
int tmesh_cuda_find(struct tmesh_cuda *cuda, uint64_t pointer, struct tmesh_cuda_memory **out,
		    uint64_t *offset, struct tmesh_error *err);
/* Give blocks that nobody uses back to the driver. */
void tmesh_cuda_trim(struct tmesh_cuda *cuda);

struct tmesh_cuda_stats {
	size_t size;		  /* in: sizeof(struct tmesh_cuda_stats) */
	uint64_t bytes_used;	  /* allocated and not given back */
	uint64_t bytes_reserved;  /* in blocks of the driver's memory */
	uint64_t bytes_lingering; /* given back here, still held by other processes */
	uint64_t blocks;
	uint64_t allocs;
	uint64_t reused; /* of them without a new block */
	uint64_t imported_bytes;
	uint64_t registered_bytes;
	uint64_t staged_copies; /* from here on: fallbacks */
	uint64_t staged_bytes;
	uint64_t host_fallbacks;
	uint64_t host_waits; /* times the host waited because there are no interprocess events */
	uint64_t taken;	     /* pieces of memory that were taken back */
};
/* @device -1: all together. */
int tmesh_cuda_stats(struct tmesh_cuda *cuda, int device, struct tmesh_cuda_stats *stats);

/*
 * The region that stands for device memory, made on first demand: an opaque one, of @memory's
 * length. With tmesh_region_send() it goes by socket; with its token, by ref. It is the memory's;
 * unref what this returns. Handing it over gives others the whole block that the memory lies in,
 * which other allocations share unless it was made with ALONE.
 * Return: 0; -EOPNOTSUPP (the device exports no descriptors; EXTERNAL memory); -ESTALE.
 */
int tmesh_cuda_region(struct tmesh_cuda_memory *memory, struct tmesh_region **out,
		      struct tmesh_error *err);

struct tmesh_cuda_import_opts {
	size_t size;	   /* sizeof(struct tmesh_cuda_import_opts) */
	uint32_t rights;   /* of kernels; 0: READ */
	int device;	   /* that kernels run on; -1: the resident one */
	uint64_t lease_ns; /* 0: none. Without a touch for so long it is taken away here */
};

/*
 * Map another process's memory, which @region stands for, for @opts->device and for the device
 * that has it. The region must give WRITE: the driver's descriptors know no less; what READ
 * promises is kept by the mapping. Takes a reference of its own on @region.
 * Return: 0; -EPROTO (the region stands for something else); -ENODEV (a GPU that is not here, or
 * hidden); -ESTALE; -EOPNOTSUPP (no peer access); the driver's errors.
 */
int tmesh_cuda_import(struct tmesh_cuda *cuda, struct tmesh_region *region,
		      const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		      struct tmesh_error *err);

/*
 * A ref, as in tmesh/tensor.h, of a tensor in @memory: what @stream does up to now is awaited by
 * who opens it. @layout->offset counts from the memory's start, the device is filled in. The ref
 * has one member more, "cuda", which says how the memory is handed over, and of imported memory
 * that its sender has waited.
 * Room for TMESH_REF_SIZE bytes is enough; on failure @text may have been written to. -EOPNOTSUPP
 * of STAGED memory: share its region; else as tmesh_cuda_region() and tmesh_region_token().
 * -ENOSPC.
 */
int tmesh_cuda_share(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		     struct CUstream_st *stream, char *text, size_t size, struct tmesh_error *err);
/*
 * The same for memory that this library did not allocate, such as cudaMalloc()'s, by cuIpc: its
 * owner must keep it until all who opened the ref are done; the ref says "ipc". @region receives
 * what the ref's token names: the token is good until it is released.
 */
int tmesh_cuda_share_ipc(struct tmesh_cuda *cuda, uint64_t pointer,
			 const struct tmesh_layout *layout, struct CUstream_st *stream, char *text,
			 size_t size, struct tmesh_region **region, struct tmesh_error *err);

/*
 * Open a ref: memory and layout, whose offset counts from the memory's start. What @stream does
 * from now on waits for what the producer's did before it shared. Opening again what is open gives
 * the same memory. A ref to host memory is registered, as tmesh_cuda_register() does it. Also
 * -ENOENT as tmesh_region_open(); -EPROTO.
 */
int tmesh_cuda_open_ref(struct tmesh_cuda *cuda, const char *text, size_t bytes,
			const struct tmesh_cuda_import_opts *opts, struct CUstream_st *stream,
			struct tmesh_cuda_memory **out, struct tmesh_layout *layout,
			struct tmesh_error *err);

/* For regions that are handed over without a ref: the two halves of what share and open do. */
int tmesh_cuda_record(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		      struct tmesh_error *err);
/* Refused with the driver's error where the producer's event cannot be opened, as in another
 * container may be; with TMESH_CUDA_NO_STREAM nothing is needed of it. */
int tmesh_cuda_wait(struct tmesh_cuda_memory *memory, struct CUstream_st *stream,
		    struct tmesh_error *err);

/* 0; -ESTALE: it was taken back. Touches the lease. */
int tmesh_cuda_touch(struct tmesh_cuda_memory *memory);

/*
 * Take memory that was allocated here back from all other processes: their libraries wait for
 * their devices, unmap and close. Its tokens die. -ETIMEDOUT after @timeout_ns: the message names
 * who still holds it. -EINVAL: not allocated here.
 */
int tmesh_cuda_reclaim(struct tmesh_cuda_memory *memory, uint64_t timeout_ns,
		       struct tmesh_error *err);

/* DLPack, as in tmesh/tensor.h: with the resident device, and a reference on @memory. */
int tmesh_cuda_to_dlpack(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
			 struct DLManagedTensor **out, struct tmesh_error *err);
int tmesh_cuda_to_dlpack_versioned(struct tmesh_cuda_memory *memory,
				   const struct tmesh_layout *layout, uint32_t max_major,
				   struct DLManagedTensorVersioned **out, struct tmesh_error *err);

/*
 * A dma-buf over whole pages of memory that was allocated here, with ALONE; @bytes 0: to the end.
 * With tmesh_region_from_dmabuf() it becomes a region that devices import. The caller owns @fd.
 * Whoever holds it keeps the block after @memory is given back; no reclaim reaches it.
 * Return: 0; -EINVAL (not ALONE; outside; no whole pages), -EOPNOTSUPP (not allocated here; the
 * device makes none), and the driver's errors.
 */
int tmesh_cuda_export_dmabuf(struct tmesh_cuda_memory *memory, uint64_t offset, uint64_t bytes,
			     int *fd, struct tmesh_error *err);

enum tmesh_cuda_fd {
	TMESH_CUDA_OPAQUE_FD = 1,
	TMESH_CUDA_DMABUF_FD = 2, /* few platforms: -EOPNOTSUPP elsewhere */
};
/* Memory of an export by CUDA or Vulkan, or of a dma-buf. @fd stays the caller's. */
int tmesh_cuda_import_fd(struct tmesh_cuda *cuda, int device, enum tmesh_cuda_fd type, int fd,
			 uint64_t bytes, struct tmesh_cuda_memory **out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_CUDA_H */
