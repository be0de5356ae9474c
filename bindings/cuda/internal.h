/* SPDX-License-Identifier: MIT */
/*
 * What the files of libtmesh-cuda share.
 *
 * One lock, cuda->lock, guards blocks, the list of memory and what can change in it. It is not
 * held while devices are waited for, nor while another process is.
 */
#ifndef TMESH_CUDA_INTERNAL_H
#define TMESH_CUDA_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#pragma GCC visibility push(default)
#include <tmesh/cuda.h>
#pragma GCC visibility pop

#include "common/clock.h"
#include "common/error.h"
#include "common/hex.h"
#include "common/page.h"
#include "common/random.h"
#include "common/sized.h"
#include "driver_api.h"

#define DEVICES_MAX 64
#define ALIGNMENT 512u
#define BINS 64

struct device {
	cu_device handle;
	cu_context context;	       /* NULL: not needed yet */
	unsigned long long context_id; /* of drivers that number them */
	atomic_bool lost;	       /* somebody has destroyed it */
	struct cu_uuid uuid;
	size_t granule; /* 0: not asked yet */
	struct block *blocks;
	struct chunk *bins[BINS]; /* free chunks of 2^i bytes and more */
	uint64_t freed, waited;	  /* chunks given back in a stream's order; so many are done with */
	struct tmesh_cuda_stats stats;
};

struct tmesh_cuda {
	atomic_uint refs;
	pid_t pid; /* that it is of: a forked child's copy is of no use */
	struct tmesh_ctx *ctx;
	void *library;
	struct cu_driver driver;
	int version;
	uint64_t block_bytes;
	tmesh_log_fn log;
	void *log_data;

	pthread_mutex_t share_lock; /* one thread at a time makes a region; before lock */
	pthread_mutex_t lock;
	int device_count;
	struct device devices[DEVICES_MAX];
	struct tmesh_cuda_memory *memory; /* all of it, and what lingers */
	struct import *imports;

	/* watch.c */
	pthread_t watcher;
	bool watching, stop;
	int epoll, wake; /* -1: not needed yet */
};

/* Physical memory of this process, in which allocations lie: block.c */
struct block {
	struct block *next;
	int device;
	uint64_t id; /* by which importers know it again */
	cu_mem handle;
	cu_ptr base;
	uint64_t bytes;
	uint64_t used;
	int fd;	    /* of its export, -1 until shared */
	bool alone; /* for one allocation */
	struct chunk *chunks;
};

/* A part of a block, given out or free. */
struct chunk {
	struct chunk *before, *behind; /* in the block */
	struct chunk *previous, *next; /* in a bin, when free */
	struct block *block;
	uint64_t offset, bytes;
	bool free;
	uint64_t freed;	  /* free: until the device has waited for this one, work may go on, */
	cu_stream stream; /* of this stream; NO_STREAM: of several */
};

/* Physical memory of another process, mapped once for all that is imported of it: import.c */
struct import {
	struct import *next;
	uint64_t id;
	int resident, device;
	uint32_t rights;
	cu_ptr base;
	uint64_t bytes;
	bool mapped;
	unsigned int users; /* pieces of memory that need the mapping */
	unsigned int refs;  /* pieces of memory that were mapped by it: keep its addresses */
};

enum state {
	LIVE,
	TAKING, /* the watcher is at it, without the lock */
	TAKEN,
	LINGERING, /* given back here, held by others: waits to be alone */
};

struct tmesh_cuda_memory {
	atomic_uint refs;
	struct tmesh_cuda *cuda;
	struct tmesh_cuda_memory *next;
	enum tmesh_cuda_kind kind;
	enum state state;
	int device, resident;
	uint32_t rights;
	cu_ptr pointer;
	uint64_t bytes;

	struct tmesh_region *region;  /* registered, or stands for the memory */
	char token[TMESH_TOKEN_SIZE]; /* by which it was opened or shared last */
	int watch;		      /* the descriptor that the watcher waits for, or -1 */
	bool slow;		      /* there is none: look now and then */
	bool closed;		      /* nobody can open the region any more */
	uint64_t lease_ns;	      /* 0: the region has no lease */
	void *host;		      /* HOST, STAGED: the region's mapping */
	unsigned int copies;	      /* and fillings that go on: the watcher leaves it alone */
	struct chunk *chunk;	      /* that it is, or is a part of */
	bool ordered;		      /* given back in the order of */
	cu_stream stream;
	struct tmesh_cuda_memory *whole; /* a part's: a reference */
	tmesh_cuda_release_fn release;	 /* a part's */
	void *release_data;
	struct import *import;
	cu_ptr ipc_base;
	cu_external external;

	cu_event event; /* interprocess; NULL: none yet, or there is none */
	bool event_foreign;
	struct tmesh_error event_missing; /* why its producer's is not here; 0: it need not be */
};

/* driver.c */

/* 0, or the errno for what the driver's function @call returned, with both names. */
int cuda_check(const struct tmesh_cuda *cuda, cu_result rc, const char *call,
	       struct tmesh_error *err);
void cuda_log(const struct tmesh_cuda *cuda, enum tmesh_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int cuda_load(struct tmesh_cuda *cuda, const char *library, struct tmesh_error *err);
/* The function, or -EOPNOTSUPP from a driver that is too old. */
#define CUDA_HAS(cuda, member, symbol, err)                                                \
	((cuda)->driver.member ? 0                                                         \
			       : tmesh_fail(err, -EOPNOTSUPP,                              \
					    "the driver is too old: API %d has no " symbol \
					    " (CUDA_ERROR_NOT_FOUND)",                     \
					    (cuda)->version))

/* cuda.c */

bool cuda_inherited(const struct tmesh_cuda *cuda);
/* -EPERM in a child that inherited it. */
int cuda_check_life(const struct tmesh_cuda *cuda, struct tmesh_error *err);
/* The same, and that there is such a device. */
int cuda_check_device(const struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* -ECONNRESET when its context was destroyed, and all that it had; 0 too where none was needed. */
int cuda_check_context(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Make a device's context current; each success is paired with cuda_leave(). */
int cuda_enter(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
void cuda_leave(struct tmesh_cuda *cuda);
/* The same for work on memory, whose mapping the watcher does not take away until work_end().
 * -ESTALE: it has; the error begins with @what. */
int work_begin(struct tmesh_cuda_memory *memory, const char *what, struct tmesh_error *err);
void work_end(struct tmesh_cuda_memory *memory);
/* Wait for whatever the device does, also for a context that was made after ours was destroyed. */
void cuda_synchronize(struct tmesh_cuda *cuda, int device);
struct tmesh_cuda_memory *memory_new(struct tmesh_cuda *cuda, enum tmesh_cuda_kind kind, int device,
				     struct tmesh_error *err);
void memory_publish(struct tmesh_cuda_memory *memory, struct tmesh_cuda_memory **out);
/* Out of the list and gone; the lock is not held. */
void memory_end(struct tmesh_cuda_memory *memory);
/* Its region, not watched any more, for the caller to let go of; NULL: it has none. From the moment
 * that this returns nobody else looks at it. */
struct tmesh_region *memory_detach(struct tmesh_cuda_memory *memory);
/* A further reference, unless the last one is being given back. Under the lock. */
bool memory_get(struct tmesh_cuda_memory *memory);

/* host.c; the lock is not held */
void host_end(struct tmesh_cuda_memory *memory);
uint64_t region_lease_ns(struct tmesh_region *region);

/* block.c */
int block_granule(struct tmesh_cuda *cuda, int device, uint64_t *granule, struct tmesh_error *err);
/* Map @handle at new addresses, for @device and @resident. */
int block_map(struct tmesh_cuda *cuda, cu_mem handle, uint64_t bytes, int device, int resident,
	      uint32_t rights, cu_ptr *base, struct tmesh_error *err);
void block_unmap(struct tmesh_cuda *cuda, cu_ptr base, uint64_t bytes);
/* For what was given back in a stream's order. Not under the lock. */
void block_wait(struct tmesh_cuda *cuda, int device);
/* Under the lock. */
void block_free(struct tmesh_cuda_memory *memory);
void block_trim(struct tmesh_cuda *cuda);
int block_export(struct tmesh_cuda *cuda, struct block *block, struct tmesh_error *err);

/* share.c */

/* What a region says of the memory it stands for. */
struct card {
	bool waited; /* as the ref says, if there is one: the event need not be there */
	struct cu_uuid uuid;
	bool ipc;
	int version;
	uint64_t block, offset, block_bytes, bytes;
	bool has_event, has_memory;
	struct cu_ipc_handle event, memory;
};
int card_read(struct tmesh_region *region, struct card *card, struct tmesh_error *err);
/* The region of a part that has none yet, described as an array of @layout, with nothing of this
 * process's in it. */
int share_region_to_keep(struct tmesh_cuda_memory *part, const struct tmesh_layout *layout,
			 struct tmesh_error *err);
/* Nobody else holds it, and nobody will: then its region is gone. Not under the lock. */
bool share_settle(struct tmesh_cuda_memory *memory);

/* import.c */
/* Its devices are done. The mapping goes with the last piece of memory that needs it, and its
 * addresses with the last that has pointers into it. */
void import_take(struct tmesh_cuda_memory *memory);
void import_end(struct tmesh_cuda_memory *memory);
/* By the card of memory that others allocated. */
int import_ipc(struct tmesh_cuda *cuda, struct tmesh_region *region, const struct card *card,
	       struct tmesh_cuda_memory **out, struct tmesh_error *err);
/* Order, and what the array in it is here: @layout's offset is one into the memory, its device's
 * number that of this process. */
int import_finish(struct tmesh_cuda_memory *memory, const struct tmesh_ref *ref, cu_stream stream,
		  struct tmesh_layout *layout, struct tmesh_error *err);
int import_vmm(struct tmesh_cuda *cuda, struct tmesh_region *region, const struct card *card,
	       const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
	       struct tmesh_error *err);

/* event.c */
int event_make(struct tmesh_cuda_memory *memory, struct tmesh_error *err);
void event_end(struct tmesh_cuda_memory *memory);

/* watch.c */
int watch_start(struct tmesh_cuda *cuda, struct tmesh_error *err);
void watch_stop(struct tmesh_cuda *cuda);
void watch_again(struct tmesh_cuda *cuda);
/* From now on, and until before its region is let go of. */
void watch_add(struct tmesh_cuda_memory *memory);
void watch_remove(struct tmesh_cuda_memory *memory);

#endif /* TMESH_CUDA_INTERNAL_H */
