// SPDX-License-Identifier: MIT
/*
 * Handing over device memory: the region that stands for it, the region's description, and refs.
 *
 * The description is the ref of an array of bytes, so that tmeshctl shows it as one. Its member
 * "cuda" tells importers which memory the descriptor is.
 */
#include "common/others.h"
#include "internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>

#define HEX(bytes) (2 * (bytes) + 1)

static bool from_hex(void *bytes, const char *text, size_t count)
{
	return text && strlen(text) == 2 * count && tmesh_unhex(bytes, text, count);
}

/* Return the member "cuda" for importers; NULL: no memory. */
static char *card_text(const struct card *card)
{
	char uuid[HEX(16)], block[HEX(8)], event[HEX(64)], memory[HEX(64)];
	json_t *cuda;
	char *text;

	tmesh_hex(uuid, card->uuid.bytes, 16);
	snprintf(block, sizeof(block), "%016" PRIx64, card->block);
	cuda = json_pack("{s:s, s:s, s:i, s:s, s:I, s:I, s:I}", "kind", card->ipc ? "ipc" : "vmm",
			 "uuid", uuid, "driver", card->version, "block", block, "at",
			 (json_int_t)card->offset, "of", (json_int_t)card->block_bytes, "bytes",
			 (json_int_t)card->bytes);
	if (card->has_event) {
		tmesh_hex(event, card->event.bytes, sizeof(card->event.bytes));
		json_object_set_new(cuda, "event", json_string(event));
	}
	if (card->has_memory) {
		tmesh_hex(memory, card->memory.bytes, sizeof(card->memory.bytes));
		json_object_set_new(cuda, "memory", json_string(memory));
	}
	if (card->has_value) {
		json_object_set_new(cuda, "values", json_string(card->values));
		json_object_set_new(cuda, "value", json_integer(card->value));
	}
	text = cuda ? json_dumps(cuda, JSON_COMPACT) : NULL;
	json_decref(cuda);
	return text;
}

/* Write the card into the description. @layout: of the array in it; NULL: its bytes. */
static int card_write(struct tmesh_region *region, int device, const struct card *card,
		      const struct tmesh_layout *layout, struct tmesh_error *err)
{
	int64_t bytes = (int64_t)card->bytes;
	struct tmesh_ref ref = {.id = tmesh_region_id(region)};
	char whole[TMESH_DESCRIPTION_LEN], *text;
	size_t length, more;
	int rc = 0;

	if (layout)
		ref.layout = *layout;
	else
		rc = tmesh_layout_contiguous(&ref.layout, TMESH_UINT8, 1, &bytes, err);
	ref.layout.device_type = TMESH_DEVICE_CUDA;
	ref.layout.device_id = device;
	if (!rc)
		rc = tmesh_layout_check(&ref.layout, card->bytes, &ref.byte_size, err);
	if (!rc)
		rc = tmesh_ref_encode(&ref, whole, sizeof(whole), err);
	if (rc)
		return rc;
	text = card_text(card);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a description");
	/* In place of the last brace. Both have their bounds, which are far from the room's. */
	length = strlen(whole) - 1;
	more = (size_t)snprintf(whole + length, sizeof(whole) - length, ",\"cuda\":%s}", text);
	free(text);
	if (more >= sizeof(whole) - length)
		return tmesh_fail(err, -ENOSPC, "the description has no room");
	return tmesh_region_set_description(region, whole, err);
}

/* Read the card. Another process wrote it, so every member is checked here; the mapping checks its
 * claims about memory. */
static bool read_members(json_t *cuda, struct card *card)
{
	const char *kind, *uuid, *block, *event = NULL, *memory = NULL, *values = NULL;
	json_int_t at, of, bytes, value = 0;

	if (json_unpack(cuda, "{s:s, s:s, s:i, s:s, s:I, s:I, s:I, s?s, s?s, s?s, s?I}", "kind",
			&kind, "uuid", &uuid, "driver", &card->version, "block", &block, "at", &at,
			"of", &of, "bytes", &bytes, "event", &event, "memory", &memory, "values",
			&values, "value", &value))
		return false;
	card->ipc = !strcmp(kind, "ipc");
	card->has_event = event;
	card->has_memory = memory;
	card->has_value = values;
	if ((!card->ipc && strcmp(kind, "vmm")) || !from_hex(card->uuid.bytes, uuid, 16) ||
	    strlen(block) != 16 || strspn(block, "0123456789abcdef") != 16 ||
	    (event && !from_hex(card->event.bytes, event, sizeof(card->event.bytes))) ||
	    (memory && !from_hex(card->memory.bytes, memory, sizeof(card->memory.bytes))) ||
	    card->ipc != card->has_memory ||
	    (values && (strlen(values) >= sizeof(card->values) || value < 0 || value > INT_MAX)))
		return false;
	if (at < 0 || bytes < 1 || of < bytes || at > of - bytes)
		return false;
	card->block = strtoull(block, NULL, 16);
	card->offset = (uint64_t)at;
	card->block_bytes = (uint64_t)of;
	card->bytes = (uint64_t)bytes;
	card->value = (unsigned int)value;
	snprintf(card->values, sizeof(card->values), "%s", values ? values : "");
	return true;
}

int card_read(struct tmesh_region *region, struct card *card, struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	int rc = tmesh_region_info(region, &info, err);
	json_t *whole;
	bool good;

	if (rc)
		return rc;
	*card = (struct card){0};
	whole = json_loads(info.description, JSON_REJECT_DUPLICATES, NULL);
	good = read_members(json_object_get(whole, "cuda"), card);
	json_decref(whole);
	if (!good || (!card->ipc && card->bytes != tmesh_region_bytes(region)))
		return tmesh_fail(err, -EPROTO,
				  "import: the region does not stand for GPU memory "
				  "(CUDA_ERROR_INVALID_VALUE)");
	return 0;
}

/* Make the region that stands for @memory. The caller holds share_lock. @kept: the layout of the
 * array if the region is to be kept, NULL if it is to be shared. A kept region has no event:
 * processes that open it have no producer to wait for. */
static int make_region(struct tmesh_cuda_memory *memory, const struct tmesh_layout *kept,
		       struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "cuda"};
	struct tmesh_cuda *cuda = memory->cuda;
	struct block *block = memory->chunk->block;
	struct card card = {
		.uuid = cuda->devices[memory->resident].uuid,
		.version = cuda->version,
		.block = block->id,
		.offset = memory->pointer - block->base,
		.block_bytes = block->bytes,
		.bytes = memory->bytes,
	};
	struct tmesh_region *region;
	int rc = CUDA_HAS(cuda, export_handle, "cuMemExportToShareableHandle", err);

	if (!rc && !kept && !memory->event)
		rc = event_make(memory, err);
	if (rc)
		return rc;
	if (!kept)
		event_card(memory, &card);
	rc = cuda_relax(cuda, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	rc = block_export(cuda, block, err);
	pthread_mutex_unlock(&cuda->lock);
	cuda_restore(cuda);
	if (!rc)
		rc = tmesh_region_from_fd(cuda->ctx, block->fd, memory->bytes, &opts, &region, err);
	if (rc)
		return rc;
	rc = card_write(region, memory->resident, &card, kept, err);
	if (!rc)
		rc = watch_start(cuda, err);
	if (rc) {
		tmesh_region_unref(region);
		return rc;
	}
	pthread_mutex_lock(&cuda->lock);
	memory->region = region;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

int tmesh_cuda_region(struct tmesh_cuda_memory *memory, struct tmesh_region **out,
		      struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = cuda_check_life(cuda, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->share_lock);
	if (memory->kind == TMESH_CUDA_OWN && !memory->region)
		rc = make_region(memory, NULL, err);
	pthread_mutex_lock(&cuda->lock);
	if (!rc && memory->state != LIVE)
		rc = tmesh_fail(err, -ESTALE, "share: the memory was taken back");
	else if (!rc && !memory->region)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"share: this memory was imported by a descriptor; only the process "
				"that allocated it can share it");
	else if (!rc)
		*out = tmesh_region_ref(memory->region);
	pthread_mutex_unlock(&cuda->lock);
	pthread_mutex_unlock(&cuda->share_lock);
	return rc;
}

int share_region_to_keep(struct tmesh_cuda_memory *part, const struct tmesh_layout *layout,
			 struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = part->cuda;
	int rc;

	pthread_mutex_lock(&cuda->share_lock);
	rc = make_region(part, layout, err);
	pthread_mutex_unlock(&cuda->share_lock);
	return rc;
}

/* Return whether no other process has the memory: it is alone, then revoked so that none can open
 * it, and still alone. */
bool share_settle(struct tmesh_cuda_memory *memory)
{
	struct tmesh_region *region = memory->region;

	if (!region)
		return true;
	if (!memory->closed) {
		if (!(tmesh_region_events(region) & TMESH_EVENT_ALONE))
			return false;
		tmesh_region_revoke(region, NULL);
		watch_remove(memory);
		/* No descriptor reports the holders of revoked memory, so the watcher looks at
		 * times. */
		memory->closed = memory->slow = true;
	}
	if (!(tmesh_region_events(region) & TMESH_EVENT_ALONE))
		return false;
	tmesh_region_unref(memory_detach(memory));
	return true;
}

/* Add to the ref's text a member that says how the memory is handed over. */
static int add_member(char *text, size_t size, const char *kind, bool waited,
		      struct tmesh_error *err)
{
	char member[64];
	size_t length = strlen(text), more;

	more = (size_t)snprintf(member, sizeof(member), ",\"cuda\":{\"kind\":\"%s\"%s}}", kind,
				waited ? ",\"waited\":true" : "");
	if (length + more > size)
		return tmesh_fail(err, -ENOSPC, "the ref needs %zu bytes, there is room for %zu",
				  length + more, size);
	memcpy(text + length - 1, member, more + 1);
	return 0;
}

/* Write a region's ref. @kind: how memory on a GPU is handed over; NULL: it is host memory. */
static int share(struct tmesh_region *region, uint32_t rights, const struct tmesh_layout *layout,
		 uint64_t bytes, int device, const char *kind, bool waited, char *text, size_t size,
		 char *token, struct tmesh_error *err)
{
	struct tmesh_ref ref = {.layout = *layout, .id = tmesh_region_id(region)};
	int rc = tmesh_layout_check(layout, bytes, &ref.byte_size, err);

	ref.layout.device_type = kind ? TMESH_DEVICE_CUDA : TMESH_DEVICE_CPU;
	ref.layout.device_id = kind ? device : 0;
	if (!rc)
		rc = tmesh_region_token(region, rights, ref.token, err);
	if (!rc)
		rc = tmesh_ref_encode(&ref, text, size, err);
	if (!rc && kind)
		rc = add_member(text, size, kind, waited, err);
	if (!rc)
		memcpy(token, ref.token, sizeof(ref.token));
	return rc;
}

int tmesh_cuda_share(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		     struct CUstream_st *stream, char *text, size_t size, struct tmesh_error *err)
{
	bool host = memory->resident < 0;
	uint32_t rights = host ? memory->rights : TMESH_READ | TMESH_WRITE;
	const char *kind = memory->kind == TMESH_CUDA_IPC ? "ipc" : "vmm";
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	int rc;

	if (memory->kind == TMESH_CUDA_STAGED)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "share: this is a copy on the device; share its region");
	rc = tmesh_cuda_region(memory, &region, err);
	if (rc)
		return rc;
	if (memory->kind == TMESH_CUDA_IPC)
		rights = TMESH_READ;
	rc = share(region, rights, layout, memory->bytes, memory->resident, host ? NULL : kind,
		   memory->event_foreign, text, size, token, err);
	tmesh_region_unref(region);
	if (rc)
		return rc;
	pthread_mutex_lock(&memory->cuda->lock);
	memcpy(memory->token, token, sizeof(token));
	pthread_mutex_unlock(&memory->cuda->lock);
	return tmesh_cuda_record(memory, stream, err);
}

/* Check that one allocation covers the range: each address has the handle of its mapping. */
static int check_one_handle(struct tmesh_cuda *cuda, cu_mem handle, cu_ptr last,
			    struct tmesh_error *err)
{
	cu_mem other;
	int rc = cuda_check(cuda, cuda->driver.retain_handle(&other, (void *)last),
			    "cuMemRetainAllocationHandle", err);

	if (rc)
		return rc;
	cuda->driver.mem_release(other);
	if (other != handle)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"share: the memory consists of several allocations of the driver: "
				"share a copy, or memory of this library");
	return rc;
}

static int export_fd(struct tmesh_cuda *cuda, cu_mem handle, int *fd, struct tmesh_error *err)
{
	int rc = cuda_check(cuda, cuda->driver.export_handle(fd, handle, CU_HANDLE_POSIX_FD, 0),
			    "cuMemExportToShareableHandle", err);
	struct tmesh_error why;

	if (rc) {
		if (!err)
			return rc;
		why = *err;
		return tmesh_fail(err, rc,
				  "share: the memory was made without a POSIX descriptor, so no "
				  "process can be given it: %.120s",
				  why.message);
	}
	rc = cuda_close_on_exec(*fd, err);
	if (rc)
		close(*fd);
	return rc;
}

/* Say what the memory may be for which the driver has neither kind of handle. */
static int no_handle(int rc, struct tmesh_error *err)
{
	struct tmesh_error why;

	if (rc != -EINVAL || !err)
		return rc;
	why = *err;
	return tmesh_fail(err, rc,
			  "share: the driver gives no handle for this memory, which may be of "
			  "cudaMallocAsync() or managed: share a copy, or memory of this library: "
			  "%.80s",
			  why.message);
}

static int export_foreign(struct tmesh_cuda *cuda, cu_ptr base, size_t bytes, struct card *card,
			  int *fd, struct tmesh_error *err)
{
	cu_mem handle;
	int rc = cuda_check(cuda, cuda->driver.retain_handle(&handle, (void *)base),
			    "cuMemRetainAllocationHandle", err);

	if (rc)
		return no_handle(rc, err);
	rc = check_one_handle(cuda, handle, base + bytes - 1, err);
	if (!rc)
		rc = tmesh_random(&card->block, sizeof(card->block), err);
	if (!rc)
		rc = export_fd(cuda, handle, fd, err);
	if (rc)
		*fd = -1;
	cuda->driver.mem_release(handle);
	return rc;
}

/* Describe the memory at @pointer as other processes will find it. @fd: its descriptor, or -1 if it
 * has none. The resident device's context is current. */
static int describe_foreign(struct tmesh_cuda *cuda, cu_ptr pointer, struct card *card, int *fd,
			    struct tmesh_error *err)
{
	size_t whole;
	cu_ptr base;
	int rc = cuda_check(cuda, cuda->driver.address_range(&base, &whole, pointer),
			    "cuMemGetAddressRange", err);

	if (rc)
		return rc;
	card->version = cuda->version;
	card->offset = pointer - base;
	card->block_bytes = whole;
	card->bytes = whole - card->offset;
	*fd = -1;
	rc = cuda_check(cuda, cuda->driver.ipc_mem_get(&card->memory, pointer), "cuIpcGetMemHandle",
			err);
	card->ipc = card->has_memory = !rc;
	/* Memory of the VMM calls has no such handle, but a descriptor, if its maker wished so. */
	if (rc == -EINVAL && cuda->driver.retain_handle)
		rc = export_foreign(cuda, base, whole, card, fd, err);
	return rc;
}

static int foreign_region(struct tmesh_cuda *cuda, const struct card *card, int fd,
			  struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "cuda ipc"};

	return card->ipc ? tmesh_region_create(cuda->ctx, 1, &opts, out, err)
			 : tmesh_region_from_fd(cuda->ctx, fd, card->bytes, &opts, out, err);
}

int tmesh_cuda_share_ipc(struct tmesh_cuda *cuda, uint64_t pointer,
			 const struct tmesh_layout *layout, struct CUstream_st *stream, char *text,
			 size_t size, struct tmesh_region **out, struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	struct card card = {0};
	int device = 0, fd = -1;
	int rc = cuda_check(
		cuda, cuda->driver.pointer_attribute(&device, CU_POINTER_ATTR_DEVICE, pointer),
		"cuPointerGetAttribute", err);

	if (!rc)
		rc = cuda_enter(cuda, device, err);
	if (rc)
		return rc;
	rc = stream_check(cuda, device, stream, "share", err);
	if (!rc)
		rc = describe_foreign(cuda, pointer, &card, &fd, err);
	/* tmesh records no event for memory that it did not allocate, so wait for the work. */
	if (!rc && stream != TMESH_CUDA_NO_STREAM)
		rc = cuda_check(cuda, cuda->driver.stream_synchronize(stream),
				"cuStreamSynchronize", err);
	cuda_leave(cuda);
	card.uuid = cuda->devices[device].uuid;
	if (!rc)
		rc = foreign_region(cuda, &card, fd, &region, err);
	if (fd >= 0)
		close(fd);
	if (rc)
		return rc;
	rc = card_write(region, device, &card, NULL, err);
	if (!rc)
		rc = share(region, card.ipc ? TMESH_READ : TMESH_READ | TMESH_WRITE, layout,
			   card.bytes, device, card.ipc ? "ipc" : "vmm", false, text, size, token,
			   err);
	if (rc)
		tmesh_region_unref(region);
	else
		*out = region;
	return rc;
}

static int still_held(struct tmesh_cuda *cuda, struct tmesh_region *region, struct tmesh_error *err)
{
	struct tmesh_holder_info *holders = NULL;
	char text[160];
	size_t count = 0;

	if (tmesh_holders(cuda->ctx, tmesh_region_id(region), &holders, &count, NULL))
		count = 0;
	tmesh_name_others(holders, count, "processes that cannot be seen from here", text,
			  sizeof(text));
	free(holders);
	return tmesh_fail(err, -ETIMEDOUT, "reclaim: still held by %s", text);
}

/* Revoke the region and wait for its holders, which see the revocation and release it themselves.
 */
static int take_back(struct tmesh_cuda *cuda, struct tmesh_region *region, uint64_t timeout_ns,
		     struct tmesh_error *err)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	uint64_t start = tmesh_now_ns();
	int rc = tmesh_region_revoke(region, err);

	if (rc && rc != -ESTALE)
		return rc;
	while (!(tmesh_region_events(region) & TMESH_EVENT_ALONE)) {
		if (tmesh_now_ns() - start >= timeout_ns)
			return still_held(cuda, region, err);
		nanosleep(&moment, NULL);
	}
	return 0;
}

int tmesh_cuda_reclaim(struct tmesh_cuda_memory *memory, int64_t timeout_ns,
		       struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct tmesh_region *region = NULL, *gone = NULL;
	int rc = cuda_check_life(cuda, err);

	if (rc)
		return rc;
	if (memory->kind != TMESH_CUDA_OWN)
		return tmesh_fail(err, -EINVAL, "reclaim: the memory was not allocated here");
	pthread_mutex_lock(&cuda->share_lock);
	pthread_mutex_lock(&cuda->lock);
	if (memory->region)
		region = tmesh_region_ref(memory->region);
	pthread_mutex_unlock(&cuda->lock);
	pthread_mutex_unlock(&cuda->share_lock);
	if (!region)
		return 0;
	rc = take_back(cuda, region, timeout_ns < 0 ? INT64_MAX : (uint64_t)timeout_ns, err);
	pthread_mutex_lock(&cuda->lock);
	if (!rc && memory->region == region) {
		gone = region;
		memory->region = NULL;
		memory->token[0] = '\0';
	}
	pthread_mutex_unlock(&cuda->lock);
	tmesh_region_unref(gone);
	tmesh_region_unref(region);
	return rc;
}
