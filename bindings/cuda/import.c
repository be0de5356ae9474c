// SPDX-License-Identifier: MIT
/* Other processes' memory, mapped here. Each block of another process is mapped once. */
#include "internal.h"

#include <jansson.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>

static int device_of(struct tmesh_cuda *cuda, const struct cu_uuid *uuid, struct tmesh_error *err)
{
	for (int i = 0; i < cuda->device_count; i++)
		if (!memcmp(&cuda->devices[i].uuid, uuid, sizeof(*uuid)))
			return i;
	return tmesh_fail(
		err, -ENODEV,
		"import: the memory is on GPU %02x%02x%02x%02x..., which this process does "
		"not see (CUDA_ERROR_INVALID_DEVICE; CUDA_VISIBLE_DEVICES?)",
		uuid->bytes[0], uuid->bytes[1], uuid->bytes[2], uuid->bytes[3]);
}

/* Return the device that the memory is mapped for. @asked: -1 for the resident one. */
static int device_for(struct tmesh_cuda *cuda, int asked, int resident, struct tmesh_error *err)
{
	int device = asked < 0 ? resident : asked;
	int can = 1;
	int rc = cuda_check_device(cuda, device, err);

	if (!rc && device != resident)
		rc = cuda_check(cuda,
				cuda->driver.device_can_access_peer(&can,
								    cuda->devices[device].handle,
								    cuda->devices[resident].handle),
				"cuDeviceCanAccessPeer", err);
	if (!rc && !can)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"import: GPU %d cannot reach the memory of GPU %d "
				"(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)",
				device, resident);
	return rc ? rc : device;
}

/* Return whether two descriptors are of one open file. A kernel that does not tell has the block
 * mapped once more. */
static bool is_same_file(int a, int b)
{
	pid_t pid = getpid();

	return syscall(SYS_kcmp, pid, pid, KCMP_FILE, (unsigned long)a, (unsigned long)b) == 0;
}

/* Find the mapping of a block. Another process wrote the id, so the descriptor has to be the same
 * too: else one producer could pass its memory off as another producer's. */
static struct import *import_find(struct tmesh_cuda *cuda, const struct import *wanted)
{
	for (struct import *import = cuda->imports; import; import = import->next)
		if (import->id == wanted->id && import->device == wanted->device &&
		    import->resident == wanted->resident && import->rights == wanted->rights &&
		    import->mapped && is_same_file(import->fd, wanted->fd))
			return import;
	return NULL;
}

/* Map the memory of the import's descriptor. The driver has a reference of its own. */
static int map_fd(struct tmesh_cuda *cuda, struct import *import, struct tmesh_error *err)
{
	cu_mem handle;
	int rc = cuda_check(cuda,
			    cuda->driver.import_handle(&handle, (void *)(intptr_t)import->fd,
						       CU_HANDLE_POSIX_FD),
			    "cuMemImportFromShareableHandle", err);

	if (rc)
		return rc;
	import->mapped_rights = import->rights;
	rc = block_map(cuda, handle, import->bytes, import->device, import->resident,
		       &import->mapped_rights, &import->base, err);
	/* The mapping keeps it. */
	cuda->driver.mem_release(handle);
	return rc;
}

/* Map a block for its first user; its descriptor is the import's from here on. */
static int import_new(struct tmesh_cuda *cuda, const struct import *wanted, struct import **out,
		      struct tmesh_error *err)
{
	struct import *import = calloc(1, sizeof(*import));
	int rc = -ENOMEM;

	if (!import) {
		tmesh_fail(err, rc, "no memory");
	} else {
		*import = *wanted;
		rc = map_fd(cuda, import, err);
	}
	if (rc) {
		close(wanted->fd);
		free(import);
		return rc;
	}
	import->users = import->refs = 1;
	import->next = cuda->imports;
	cuda->imports = import;
	cuda->devices[import->device].stats.imported_bytes += import->bytes;
	*out = import;
	return 0;
}

/* Map the block. The caller holds the lock, so that a second import finds the first one's mapping.
 */
static int import_block(struct tmesh_cuda *cuda, struct tmesh_region *region,
			const struct card *card, int device, int resident, uint32_t rights,
			struct import **out, struct tmesh_error *err)
{
	struct import wanted = {.id = card->block,
				.resident = resident,
				.device = device,
				.rights = rights,
				.bytes = card->block_bytes,
				.mapped = true};
	int rc = tmesh_region_opaque_fd(region, &wanted.fd, err);
	struct import *import;

	if (rc)
		return rc;
	import = import_find(cuda, &wanted);
	if (!import)
		return import_new(cuda, &wanted, out, err);
	close(wanted.fd);
	if (import->bytes != wanted.bytes)
		return tmesh_fail(err, -EPROTO,
				  "import: two regions disagree about their block "
				  "(CUDA_ERROR_INVALID_VALUE)");
	import->users++;
	import->refs++;
	*out = import;
	return 0;
}

/* Drop one user of the import, under the lock. */
static void drop_user(struct tmesh_cuda *cuda, struct import *import)
{
	if (--import->users)
		return;
	cuda->driver.unmap(import->base, import->bytes);
	close(import->fd);
	import->mapped = false;
	cuda->devices[import->device].stats.imported_bytes -= import->bytes;
}

static void drop_ref(struct tmesh_cuda *cuda, struct import *import)
{
	struct import **at = &cuda->imports;

	if (--import->refs)
		return;
	while (*at != import)
		at = &(*at)->next;
	*at = import->next;
	cuda->driver.unreserve(import->base, import->bytes);
	free(import);
}

/* Add the versions to an error: kernel and libraries may differ in version between containers. */
static int explain(const struct tmesh_cuda *cuda, const struct card *card, int rc,
		   struct tmesh_error *err)
{
	struct tmesh_error why;

	if (!err || card->version == cuda->version)
		return rc;
	why = *err;
	return tmesh_fail(err, rc, "%.180s (exported by driver API %d, this process has %d)",
			  why.message, card->version, cuda->version);
}

/* Open the producer's event. A process in another container, for example, cannot open it. If the
 * sender of the ref has waited for the memory, no event is needed. Otherwise the host is to wait
 * for the producer's numbers. Without them the import succeeds and tmesh_cuda_wait() reports the
 * reason: a caller may order the work by other means. */
static int open_event(struct tmesh_cuda_memory *memory, const struct card *card,
		      struct tmesh_error *err)
{
	struct tmesh_error *why = &memory->event_missing, inner, other = {0};
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (!card->has_event)
		return 0;
	memory->event_foreign = true;
	rc = cuda_enter(cuda, memory->resident, err);
	if (rc)
		return rc;
	rc = event_open(memory, card, why);
	cuda_leave(cuda);
	if (!rc)
		return 0;
	inner = *why;
	why->code = 0;
	if (card->waited)
		return 0;
	if (!card->has_value)
		tmesh_fail(&other, -EOPNOTSUPP, "its producer writes no wait values");
	if (card->has_value && !value_open(memory, card, &other)) {
		cuda_log(cuda, TMESH_LOG_WARN,
			 "the host waits for the producer of memory on GPU %d, whose event cannot "
			 "be opened: %s",
			 memory->resident, inner.message);
		return 0;
	}
	explain(cuda, card, rc, &inner);
	tmesh_fail(why, rc,
		   "%.110s; %.60s; if the producer has another /dev/shm, set TMESH_CUDA_EVENTS=0 "
		   "there",
		   inner.message, other.message);
	return 0;
}

static int fill(struct tmesh_cuda_memory *memory, struct tmesh_region *region,
		const struct card *card, uint64_t lease_ns, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc = open_event(memory, card, err);

	if (!rc && lease_ns)
		rc = tmesh_lease_set(region, lease_ns, TMESH_TAKEN_SIGBUS, err);
	if (!rc)
		rc = watch_start(cuda, err);
	if (!rc)
		rc = cuda_enter(cuda, memory->device, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	rc = import_block(cuda, region, card, memory->device, memory->resident, memory->rights,
			  &memory->import, err);
	pthread_mutex_unlock(&cuda->lock);
	cuda_leave(cuda);
	return rc;
}

static int import_vmm(struct tmesh_cuda *cuda, struct tmesh_region *region, const struct card *card,
		      const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		      struct tmesh_error *err)
{
	int resident = device_of(cuda, &card->uuid, err);
	struct tmesh_cuda_memory *memory;
	uint64_t granule;
	int device, rc;

	if (resident < 0)
		return resident;
	rc = CUDA_HAS(cuda, import_handle, "cuMemImportFromShareableHandle", err);
	if (!rc)
		rc = block_granule(cuda, resident, &granule, err);
	if (!rc && card->block_bytes % granule)
		rc = tmesh_fail(err, -EPROTO,
				"import: a block of %llu bytes is not of granules of %llu "
				"(CUDA_ERROR_INVALID_VALUE)",
				(unsigned long long)card->block_bytes, (unsigned long long)granule);
	device = rc ? rc : device_for(cuda, opts->device, resident, err);
	if (device < 0)
		return device;
	memory = memory_new(cuda, TMESH_CUDA_IMPORTED, device, err);
	if (!memory)
		return -ENOMEM;
	memory->resident = resident;
	memory->rights = memory->mapped = opts->rights;
	memory->bytes = card->bytes;
	rc = fill(memory, region, card, opts->lease_ns, err);
	if (rc) {
		event_end(memory);
		free(memory);
		return explain(cuda, card, rc, err);
	}
	memory->mapped = memory->import->mapped_rights;
	memory->pointer = memory->import->base + card->offset;
	memory->region = tmesh_region_ref(region);
	memory->lease_ns = region_lease_ns(region);
	watch_add(memory);
	memory_publish(memory, out);
	return 0;
}

/* Open memory by its handle. The device's context is current. */
static int open_ipc(struct tmesh_cuda_memory *memory, const struct card *card,
		    struct tmesh_error *err)
{
	const struct cu_driver *driver = &memory->cuda->driver;
	size_t whole;
	cu_ptr base;
	int rc = cuda_check(memory->cuda,
			    driver->ipc_mem_open(&memory->ipc_base, card->memory,
						 CU_IPC_LAZY_ENABLE_PEER_ACCESS),
			    "cuIpcOpenMemHandle", err);

	/* If the driver knows the length, the card must not claim more. */
	if (!rc && driver->address_range(&base, &whole, memory->ipc_base) == CU_OK &&
	    whole < card->block_bytes) {
		driver->ipc_mem_close(memory->ipc_base);
		rc = tmesh_fail(err, -EPROTO,
				"import: of %llu bytes there are %zu (CUDA_ERROR_INVALID_VALUE)",
				(unsigned long long)card->block_bytes, whole);
	}
	return rc;
}

/* Import memory that other code allocated, by its card. The driver maps it for the current context,
 * and always for writing. */
static int import_ipc(struct tmesh_cuda *cuda, struct tmesh_region *region, const struct card *card,
		      const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		      struct tmesh_error *err)
{
	int resident = device_of(cuda, &card->uuid, err);
	int device = resident < 0 ? resident : device_for(cuda, opts->device, resident, err);
	struct tmesh_cuda_memory *memory;
	int rc;

	if (device < 0)
		return device;
	if (opts->lease_ns)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "import: memory that tmesh did not allocate has no lease: open "
				  "it without one");
	rc = cuda_enter(cuda, device, err);
	if (rc)
		return rc;
	memory = memory_new(cuda, TMESH_CUDA_IPC, device, err);
	rc = memory ? open_ipc(memory, card, err) : -ENOMEM;
	cuda_leave(cuda);
	if (rc) {
		free(memory);
		return explain(cuda, card, rc, err);
	}
	memory->resident = resident;
	memory->rights = opts->rights;
	memory->bytes = card->bytes;
	memory->pointer = memory->ipc_base + card->offset;
	memory->region = tmesh_region_ref(region);
	memory_publish(memory, out);
	return 0;
}

void import_release(struct tmesh_cuda_memory *memory)
{
	struct tmesh_region *region = memory_detach(memory);
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	drop_user(cuda, memory->import);
	pthread_mutex_unlock(&cuda->lock);
	event_drop(memory);
	tmesh_region_unref(region);
}

void import_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	int rc;

	if (memory->kind == TMESH_CUDA_IMPORTED) {
		if (memory->region)
			import_release(memory);
		pthread_mutex_lock(&cuda->lock);
		drop_ref(cuda, memory->import);
		pthread_mutex_unlock(&cuda->lock);
		return;
	}
	rc = cuda_enter_to_free(cuda, memory->device);
	/* As in host_end(). */
	if (rc != -ECONNRESET && memory->kind == TMESH_CUDA_IPC) {
		cuda->driver.ipc_mem_close(memory->ipc_base);
	} else if (rc != -ECONNRESET) {
		cuda->driver.mem_free(memory->pointer);
		cuda->driver.external_destroy(memory->external);
	}
	if (!rc)
		cuda_leave(cuda);
	tmesh_region_unref(memory->region);
}

static int read_opts(const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_import_opts *o,
		     struct tmesh_error *err)
{
	int rc = tmesh_read_sized(o, sizeof(*o), opts, err);

	if (!opts)
		o->device = -1;
	o->size = sizeof(*o);
	if (!o->rights)
		o->rights = TMESH_READ;
	if (!rc && o->rights != TMESH_READ && o->rights != (TMESH_READ | TMESH_WRITE))
		rc = tmesh_fail(
			err, -EINVAL,
			"import: rights 0x%x are neither TMESH_READ nor TMESH_READ | TMESH_WRITE",
			o->rights);
	return rc;
}

static int import(struct tmesh_cuda *cuda, struct tmesh_region *region, bool waited,
		  const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		  struct tmesh_error *err)
{
	struct card card;
	int rc = cuda_check_life(cuda, err);

	if (!rc)
		rc = card_read(region, &card, err);
	if (rc)
		return rc;
	card.waited = waited;
	return card.ipc ? import_ipc(cuda, region, &card, opts, out, err)
			: import_vmm(cuda, region, &card, opts, out, err);
}

int tmesh_cuda_import(struct tmesh_cuda *cuda, struct tmesh_region *region,
		      const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		      struct tmesh_error *err)
{
	struct tmesh_cuda_import_opts o;
	int rc = read_opts(opts, &o, err);

	return rc ? rc : import(cuda, region, false, &o, out, err);
}

/* Find the token's memory if it is open already or is this process's own. */
static struct tmesh_cuda_memory *opened(struct tmesh_cuda *cuda, const char *token,
					const struct tmesh_cuda_import_opts *opts)
{
	struct tmesh_cuda_memory *found = NULL;

	pthread_mutex_lock(&cuda->lock);
	for (struct tmesh_cuda_memory *memory = cuda->memory; memory && !found;
	     memory = memory->next)
		if (memory->state == LIVE && memory->region && !strcmp(memory->token, token) &&
		    !(opts->rights & ~memory->rights) &&
		    (opts->device < 0 || opts->device == memory->device) && memory_get(memory))
			found = memory;
	pthread_mutex_unlock(&cuda->lock);
	return found;
}

/* Return whether the memory belongs to a context. Blocks and imports of them belong to none. */
static bool of_context(const struct tmesh_cuda_memory *memory)
{
	return memory->kind != TMESH_CUDA_OWN && memory->kind != TMESH_CUDA_IMPORTED;
}

int import_finish(struct tmesh_cuda_memory *memory, const struct tmesh_ref *ref, cu_stream stream,
		  struct tmesh_layout *layout, struct tmesh_error *err)
{
	struct tmesh_layout here = ref->layout;
	uint64_t bytes;
	int rc = tmesh_layout_check(&here, memory->bytes, &bytes, err);

	if (rc)
		return tmesh_fail(err, -EPROTO,
				  "the ref's numbers do not fit the %llu bytes of its "
				  "memory (CUDA_ERROR_INVALID_VALUE)",
				  (unsigned long long)memory->bytes);
	here.device_id = memory->resident < 0 ? memory->device : memory->resident;
	here.device_type = TMESH_DEVICE_CUDA;
	rc = tmesh_cuda_wait(memory, stream, err);
	if (!rc)
		*layout = here;
	return rc;
}

static int open_host(struct tmesh_cuda *cuda, const struct tmesh_ref *ref,
		     const struct tmesh_cuda_import_opts *opts, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err)
{
	int device = opts->device < 0 ? 0 : opts->device;
	struct tmesh_region *region;
	int rc = tmesh_region_open(cuda->ctx, ref->token, opts->rights, &region, err);

	if (rc)
		return rc;
	rc = opts->lease_ns ? tmesh_lease_set(region, opts->lease_ns, TMESH_TAKEN_SIGBUS, err) : 0;
	if (!rc)
		rc = tmesh_cuda_register(cuda, region, device, opts->rights, opts->flags, out, err);
	tmesh_region_unref(region);
	return rc;
}

/* Read the ref's member "cuda". A process that passed the ref on may have changed it, so anything
 * unexpected counts as false. */
static void read_member(const char *text, size_t bytes, bool *ipc, bool *waited)
{
	json_t *whole = json_loadb(text, bytes, 0, NULL);
	json_t *member = json_object_get(whole, "cuda");
	const char *kind = json_string_value(json_object_get(member, "kind"));

	*ipc = kind && !strcmp(kind, "ipc");
	*waited = json_is_true(json_object_get(member, "waited"));
	json_decref(whole);
}

/* Report freed memory by the driver's name for it, although the driver was not asked. */
static int freed(int rc, struct tmesh_error *err)
{
	struct tmesh_error why;

	if (!err)
		return rc;
	why = *err;
	return tmesh_fail(err, rc,
			  "open: the GPU memory was freed (CUDA_ERROR_INVALID_HANDLE): %.150s",
			  why.message);
}

static int open_device(struct tmesh_cuda *cuda, const struct tmesh_ref *ref, const char *text,
		       size_t bytes, const struct tmesh_cuda_import_opts *opts,
		       struct tmesh_cuda_memory **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	bool ipc, waited;
	int rc;

	read_member(text, bytes, &ipc, &waited);
	rc = tmesh_region_open(cuda->ctx, ref->token, ipc ? TMESH_READ : TMESH_READ | TMESH_WRITE,
			       &region, err);
	if (rc == -ENOENT || rc == -ESTALE)
		return freed(rc, err);
	if (rc)
		return rc;
	rc = import(cuda, region, waited, opts, out, err);
	tmesh_region_unref(region);
	return rc;
}

int tmesh_cuda_open_ref(struct tmesh_cuda *cuda, const char *text, size_t bytes,
			const struct tmesh_cuda_import_opts *opts, struct CUstream_st *stream,
			struct tmesh_cuda_memory **out, struct tmesh_layout *layout,
			struct tmesh_error *err)
{
	struct tmesh_cuda_import_opts o;
	struct tmesh_cuda_memory *memory;
	struct tmesh_ref ref;
	int rc = cuda_check_life(cuda, err);

	if (!rc)
		rc = read_opts(opts, &o, err);
	if (!rc)
		rc = tmesh_ref_decode(text, bytes, &ref, err);
	if (rc)
		return rc;
	memory = opened(cuda, ref.token, &o);
	if (memory && of_context(memory))
		rc = cuda_check_context(cuda, memory->device, err);
	if (!memory) {
		if (ref.layout.device_type == TMESH_DEVICE_CPU)
			rc = open_host(cuda, &ref, &o, &memory, err);
		else
			rc = open_device(cuda, &ref, text, bytes, &o, &memory, err);
		if (rc)
			return rc;
		pthread_mutex_lock(&cuda->lock);
		memcpy(memory->token, ref.token, sizeof(ref.token));
		pthread_mutex_unlock(&cuda->lock);
	}
	if (!rc)
		rc = import_finish(memory, &ref, stream, layout, err);
	if (rc)
		tmesh_cuda_memory_unref(memory);
	else
		*out = memory;
	return rc;
}
