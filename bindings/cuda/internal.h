/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of libtmesh-cuda share.
 *
 * One lock, cuda->lock, guards blocks, the list of memory and its members that change. It is not
 * held during waits for devices or for other processes.
 */
#ifndef TMESH_CUDA_INTERNAL_H
#define TMESH_CUDA_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	atomic_bool lost;	       /* another part of the program has destroyed it */
	struct cu_uuid uuid;
	size_t granule; /* 0: not asked yet */
	struct block *blocks;
	struct chunk *bins[BINS]; /* free chunks of 2^i bytes and more */
	uint64_t freed, waited;	  /* chunks given back in a stream's order; so many are done with */
	struct order *orders;	  /* of which streams: order.c */
	struct values *values;	  /* value.c, under share_lock; NULL: not needed yet */
	bool no_values;		  /* they were refused */
	pthread_mutex_t wait_lock; /* one thread waits for them; before lock */
	cu_stream stream;	   /* the library's own; NULL: not needed yet */
	cu_stream capturing;	   /* a caller named it while it captured */
	unsigned int captures;	   /* that were announced */
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
	bool no_events;
	char nvml[256];
	tmesh_log_fn log;
	void *log_data;

	pthread_mutex_t share_lock; /* one thread at a time makes a region; before lock */
	pthread_mutex_t lock;
	int device_count;
	struct device devices[DEVICES_MAX];
	struct tmesh_cuda_memory *memory; /* all of it, and memory that is pending free */
	struct import *imports;
	struct registration *registrations;
	unsigned int ending;	   /* so many of them the driver did not end yet */
	pthread_cond_t registered; /* one of them has changed */

	/* watch.c */
	pthread_t watcher;
	bool watching, stop;
	uint64_t round;
	int epoll, wake; /* -1: not needed yet */
};

/* Physical memory of this process, from which allocations are taken: block.c */
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
	int fd; /* the block's, which tells it from another one that claims its id */
	int resident, device;
	uint32_t rights, mapped_rights; /* the rights asked for, and those of the mapping */
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
	WAITING,      /* given back here, and the device could not be waited for yet */
	PENDING_FREE, /* given back here, held by others: waits to be alone */
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

	struct tmesh_region *region;	   /* registered, or stands for the memory */
	char token[TMESH_TOKEN_SIZE];	   /* by which it was opened or shared last */
	int watch;			   /* the descriptor that the watcher waits for, or -1 */
	bool slow;			   /* nothing reports its holders: look now and then */
	uint64_t round;			   /* of the watcher in which nothing came of it */
	bool closed;			   /* no process can open the region any more */
	uint64_t lease_ns;		   /* 0: the region has no lease */
	void *host;			   /* STAGED: the region's mapping */
	struct registration *registration; /* HOST */
	uint32_t mapped;		   /* rights that the driver gives kernels */
	unsigned int copies; /* and fillings that go on: the watcher leaves it alone */
	struct chunk *chunk; /* that it is, or is a part of */
	bool ordered;	     /* given back in the order of */
	cu_stream stream;
	struct tmesh_cuda_memory *whole; /* a part's: a reference */
	tmesh_cuda_release_fn release;	 /* a part's */
	void *release_data;
	struct import *import;
	cu_ptr ipc_base;
	cu_external external;

	cu_event event; /* interprocess; NULL: none yet, or there is none */
	bool event_foreign;
	struct exported *exported;	  /* the event is this process's own; counts its users */
	struct tmesh_error event_missing; /* why its producer's is not here; 0: it need not be */
	unsigned int value;		  /* its pair of numbers, from 1; 0: it has none */
	uint64_t recorded;		  /* own memory: shares so far, by share_lock */
	struct tmesh_region *values;	  /* its producer's numbers: in place of the event */
};

/* driver.c */

/* Return 0, or the errno for the result of the driver's function @call, with both names. */
int cuda_check(const struct tmesh_cuda *cuda, cu_result rc, const char *call,
	       struct tmesh_error *err);
/* Return whether the call conflicts with a graph that a stream captures. */
bool cuda_capture_forbids(cu_result rc);
/* Return whether a wait that returned @rc means that no work goes on, or that its context is
 * broken. */
bool cuda_work_has_ended(cu_result rc);
/* Return whether @rc, of a call that failed just now, means that no work goes on and no call will
 * succeed. A kernel has failed, or the driver has ended before this library. */
bool cuda_is_broken(int rc);
int cuda_close_on_exec(int fd, struct tmesh_error *err);
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
/* Return -EPERM in a child that inherited the instance. */
int cuda_check_life(const struct tmesh_cuda *cuda, struct tmesh_error *err);
/* Check that, and that there is such a device. */
int cuda_check_device(const struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Return -ECONNRESET if the device's context, and so all of its memory, was destroyed. */
int cuda_check_context(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Make a device's context current; each success is paired with cuda_leave(). */
int cuda_enter(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Enter to free a driver's object, which would stay if it failed: try once more. */
int cuda_enter_to_free(struct tmesh_cuda *cuda, int device);
void cuda_leave(struct tmesh_cuda *cuda);

/* memory.c */

/* Make the context of the memory's device current. The watcher keeps the mapping until work_end().
 * -ESTALE: the watcher has taken it away. The error begins with @what. */
int work_begin(struct tmesh_cuda_memory *memory, const char *what, struct tmesh_error *err);
void work_end(struct tmesh_cuda_memory *memory);
struct tmesh_cuda_memory *memory_new(struct tmesh_cuda *cuda, enum tmesh_cuda_kind kind, int device,
				     struct tmesh_error *err);
void memory_publish(struct tmesh_cuda_memory *memory, struct tmesh_cuda_memory **out);
/* Remove memory from the list and free it; the lock is not held. */
void memory_end(struct tmesh_cuda_memory *memory);
/* Detach the memory's region and stop watching it; the caller releases it. NULL: it has none. No
 * other thread looks at the region after that. */
struct tmesh_region *memory_detach(struct tmesh_cuda_memory *memory);
/* Free memory that has no reference any more. False: it stays in the list and waits for the device.
 */
bool memory_give_back(struct tmesh_cuda_memory *memory);
/* Take a reference, unless the last one is being dropped. Under the lock. */
bool memory_get(struct tmesh_cuda_memory *memory);

/* register.c; the lock is not held */

/* Get the region mapped with these rights and pinned, by one call or by an earlier one for another
 * device. */
int registration_get(struct tmesh_cuda *cuda, struct tmesh_region *region, uint32_t rights,
		     unsigned int flags, const struct tmesh_cuda_register_opts *opts,
		     struct registration **out, struct tmesh_error *err);
/* Drop a user. The last one unregisters and unmaps the memory, and still has its region. If the
 * driver does not unregister it, the memory stays mapped, and registrations_end() tries again. */
void registration_drop(struct tmesh_cuda *cuda, struct registration *registration);
/* Try again to end registrations without users. False: some stay. */
bool registrations_end(struct tmesh_cuda *cuda);
int registration_pointer(struct tmesh_cuda *cuda, const struct registration *registration,
			 int device, cu_ptr *pointer, struct tmesh_error *err);
uint32_t registration_rights(const struct registration *registration);
/* Return the address of the mapping. */
void *registration_host(const struct registration *registration);
/* Return the length of a registered piece: no copy crosses a multiple of it. */
uint64_t registration_piece(const struct registration *registration);

/* stream.c */

/* Allow this thread's calls during captures, until cuda_restore(). Otherwise as cuda_enter(). */
int cuda_relax(struct tmesh_cuda *cuda, struct tmesh_error *err);
void cuda_restore(struct tmesh_cuda *cuda);
int stream_captures(struct tmesh_cuda *cuda, int device, cu_stream stream, bool *captures,
		    struct tmesh_error *err);
/* Return -EBUSY if the stream captures; the error begins with @what. */
int stream_check(struct tmesh_cuda *cuda, int device, cu_stream stream, const char *what,
		 struct tmesh_error *err);
/* Find out whether the stream's context is the device's. */
int stream_is_of(struct tmesh_cuda *cuda, int device, cu_stream stream, bool *is,
		 struct tmesh_error *err);
/* Wait for all work of the device, whose context is current. -EBUSY: a stream captures. */
int cuda_wait_for_all(struct tmesh_cuda *cuda, int device, struct tmesh_error *err);
/* Wait likewise, also for a context that was made after ours was destroyed. 0: no work goes on, or
 * none ever will, because a kernel has failed. The lock is not held. */
int cuda_synchronize(struct tmesh_cuda *cuda, int device);
/* Copy on the library's own stream, and wait for the copy. The device's context is current. */
int cuda_copy_to_host(struct tmesh_cuda *cuda, int device, void *to, cu_ptr from, uint64_t bytes,
		      struct tmesh_error *err);
int cuda_copy_to_device(struct tmesh_cuda *cuda, int device, cu_ptr to, const void *from,
			uint64_t bytes, struct tmesh_error *err);
int cuda_fill_now(struct tmesh_cuda *cuda, int device, cu_ptr at, uint64_t bytes,
		  struct tmesh_error *err);

/* nvml.c */

/* Return whether it is off: then the driver shuts a device down that no process uses. */
bool nvml_persistence_is_off(const struct tmesh_cuda *cuda, int device);

/* order.c; the lock is not held */

/* Record that the stream's queued work comes before the chunks that are freed next. */
int order_record(struct tmesh_cuda *cuda, int device, cu_stream stream);
/* Wait for all places that were given back so far. */
int order_wait_all(struct tmesh_cuda *cuda, int device);
void order_end(struct tmesh_cuda *cuda, int device);

/* host.c; the lock is not held */
void host_end(struct tmesh_cuda_memory *memory);
uint64_t region_lease_ns(struct tmesh_region *region);

/* block.c */
int block_granule(struct tmesh_cuda *cuda, int device, uint64_t *granule, struct tmesh_error *err);
/* Map @handle at new addresses, for @device and @resident. @rights: in, and what the mapping gives.
 */
int block_map(struct tmesh_cuda *cuda, cu_mem handle, uint64_t bytes, int device, int resident,
	      uint32_t *rights, cu_ptr *base, struct tmesh_error *err);
/* Under the lock. */
void block_free(struct tmesh_cuda_memory *memory);
void block_trim(struct tmesh_cuda *cuda);
int block_export(struct tmesh_cuda *cuda, struct block *block, struct tmesh_error *err);

/* share.c */

/* The memory that a region stands for, as the region's description has it. */
struct card {
	bool waited; /* as the ref says, if there is one: the event need not be there */
	struct cu_uuid uuid;
	bool ipc;
	int version;
	uint64_t block, offset, block_bytes, bytes;
	bool has_event, has_memory, has_value;
	struct cu_ipc_handle event, memory;
	char values[TMESH_TOKEN_SIZE]; /* token of the region that has the value */
	unsigned int value;
};
int card_read(struct tmesh_region *region, struct card *card, struct tmesh_error *err);
/* Make a region for a part that has none yet, described as an array of @layout. Nothing in it
 * belongs to this process. */
int share_region_to_keep(struct tmesh_cuda_memory *part, const struct tmesh_layout *layout,
			 struct tmesh_error *err);
/* Return whether no other process holds or can get the memory; then its region is gone. The lock is
 * not held. */
bool share_settle(struct tmesh_cuda_memory *memory);

/* import.c */
/* Take memory away after its devices are done with it. The mapping ends with the last piece of
 * memory that needs it. Its addresses end with the last piece that has pointers into it. */
void import_release(struct tmesh_cuda_memory *memory);
void import_end(struct tmesh_cuda_memory *memory);
/* Order the work and complete the layout for this process: @layout's offset counts from the memory,
 * and its device has this process's number. */
int import_finish(struct tmesh_cuda_memory *memory, const struct tmesh_ref *ref, cu_stream stream,
		  struct tmesh_layout *layout, struct tmesh_error *err);

/* event.c */
int event_make(struct tmesh_cuda_memory *memory, struct tmesh_error *err);
/* Wait on the host for the stream, and count that. */
int event_host_waits(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err);
/* Destroy the event. Another process's event ends here before the memory's region is released.
 * After that its maker may destroy it, and each operation on it is undefined. */
void event_drop(struct tmesh_cuda_memory *memory);
/* The same, and give back the pair of numbers or the producer's region. */
void event_end(struct tmesh_cuda_memory *memory);
/* Leave the event to its context, for processes that still hold the memory. */
void event_leave(struct tmesh_cuda_memory *memory);
void event_card(const struct tmesh_cuda_memory *memory, struct card *card);
/* Open the producer's event. The resident device's context is current. */
int event_open(struct tmesh_cuda_memory *memory, const struct card *card, struct tmesh_error *err);

/* value.c */

/* Give the memory a pair of numbers, if its device can write them. Under share_lock. */
void value_make(struct tmesh_cuda_memory *memory);
void value_card(const struct tmesh_cuda_memory *memory, struct card *card);
/* Return whether the streams of all shares so far are known, by their numbers, to be done. */
bool value_is_reached(const struct tmesh_cuda_memory *memory);
/* Let the stream write the next number. Under share_lock; the resident device's context is current.
 */
int value_write(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err);
/* Give the pair back, or the producer's region. */
void value_end(struct tmesh_cuda_memory *memory);
void values_end(struct tmesh_cuda *cuda, int device);
/* Open the producer's numbers in place of its event. */
int value_open(struct tmesh_cuda_memory *memory, const struct card *card, struct tmesh_error *err);
/* Wait on the host for the producer's last share, and count that. */
int value_wait(struct tmesh_cuda_memory *memory, struct tmesh_error *err);

/* watch.c */
int watch_start(struct tmesh_cuda *cuda, struct tmesh_error *err);
void watch_stop(struct tmesh_cuda *cuda);
void watch_again(struct tmesh_cuda *cuda);
/* Watch the memory from now on, until before its region is released. */
void watch_add(struct tmesh_cuda_memory *memory);
void watch_remove(struct tmesh_cuda_memory *memory);

#endif /* TMESH_CUDA_INTERNAL_H */
