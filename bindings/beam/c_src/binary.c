/* SPDX-License-Identifier: MIT */
/*
 * From a tensor to a binary.
 *
 * A binary may point into a region only if the region is sealed AND pinned by the binary's own
 * resource. Such a region can neither change, nor shrink, nor be taken away; a fault in a mapping
 * would end the whole VM. Everything else is copied by tmesh_tensor_read(), which raises no signal
 * and counts the copy.
 */
#include "nif.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/populate.h"

/*
 * The emulator reads whole words even if a match asks for less. So it may read up to seven bytes
 * before a binary's first byte or after its last one. Readable guard pages therefore surround the
 * mapping of a region. A multiple of HUGE_BYTES suits every region.
 */
#define HUGE_BYTES (2u << 20)

struct guarded {
	struct tmesh_region *region; /* the pinning region */
	struct tmesh_region *of;     /* the pinned region; its tokens stay good */
	struct tmesh_model *model;   /* the model of the tensors, or NULL */
	void *start;		     /* of the mapping, guards included */
	size_t bytes;
};

static void drop_mapping(void *object)
{
	struct guarded *mapping = object;

	munmap(mapping->start, mapping->bytes);
	tmesh_region_unref(mapping->region);
	tmesh_region_unref(mapping->of);
	tmesh_model_unref(mapping->model);
	enif_free(mapping);
}

/* So often another thread may take the range that the file is to have. */
#define TRIES 8

/*
 * Map a file between its guards: in a range that a reservation shows to be free. MAP_FIXED over the
 * reservation would not do. Before Linux 6.12 it leaves a hole when it fails, which another thread
 * may have taken before this one unmaps it.
 *
 * Return: the first byte, with @mapping filled; MAP_FAILED with errno, and nothing is mapped.
 */
static unsigned char *map_between(struct guarded *mapping, int fd, size_t bytes)
{
	size_t all = bytes + 3 * (size_t)HUGE_BYTES;

	for (int i = 0; i < TRIES; i++) {
		unsigned char *start = mmap(NULL, all, PROT_READ,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		unsigned char *first, *addr;
		int code;

		if (start == MAP_FAILED)
			return MAP_FAILED;
		first = (unsigned char *)(((uintptr_t)start + 2 * HUGE_BYTES - 1) &
					  ~(uintptr_t)(HUGE_BYTES - 1));
		munmap(first, bytes);
		addr = mmap(first, bytes, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
		if (addr == first) {
			mapping->start = start;
			mapping->bytes = all;
			return addr;
		}
		code = addr == MAP_FAILED ? errno : EEXIST;
		/* Before Linux 4.17 the address is only a wish. */
		if (addr != MAP_FAILED)
			munmap(addr, bytes);
		munmap(start, (size_t)(first - start));
		munmap(first + bytes, all - (size_t)(first - start) - bytes);
		errno = code;
		if (code != EEXIST)
			break;
	}
	return MAP_FAILED;
}

/* Map @region, whose reference becomes the mapping's. Return: the mapping, or NULL. */
static struct guarded *map_guarded(struct tmesh_region *region, unsigned char **addr,
				   struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct guarded *mapping;
	int fd = tmesh_region_fd(region);

	if (fd < 0) {
		refuse(err, fd, "the region has no descriptor here");
		return NULL;
	}
	if (tmesh_region_info(region, &info, err))
		return NULL;
	mapping = enif_alloc(sizeof(*mapping));
	if (!mapping) {
		refuse(err, -ENOMEM, "no memory for a binary");
		return NULL;
	}
	*mapping = (struct guarded){.region = region};
	*addr = map_between(mapping, fd, info.alloc_bytes);
	if (*addr != MAP_FAILED)
		return mapping;
	refuse(err, -errno, "the region cannot be mapped: %m");
	enif_free(mapping);
	return NULL;
}

void pinned_dtor(ErlNifEnv *env, void *object)
{
	struct pinned *pinned = object;

	held_remove(&pinned->held);
	if (pinned->start)
		garbage_put(env, pinned->garbage, pinned->mapping);
	else
		garbage_free(pinned->garbage);
}

static ERL_NIF_TERM make_pinned(ErlNifEnv *env, struct pinned *pinned, uint64_t offset,
				uint64_t bytes)
{
	held_used(env, &pinned->held);
	return make_ok(env, enif_make_resource_binary(env, pinned, pinned->start + offset, bytes));
}

/*
 * Fill the holes of a sealed memfd under a binary. The kernel fills a hole on first touch and sends
 * SIGBUS when it cannot: under strict overcommit, or without huge pages. Here such a failure is an
 * error. Holes after the last byte do not matter. The module's regions have no holes: their handles
 * are no memfds.
 */
static int fill_holes(const struct pinned *pinned, uint64_t offset, uint64_t bytes, uint64_t limit,
		      struct tmesh_error *err)
{
	int fd = tmesh_region_fd(pinned->region);
	uint64_t first = offset & ~(uint64_t)(sysconf(_SC_PAGESIZE) - 1);
	uint64_t size, backed, end = offset + bytes;
	struct stat st;

	if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st))
		return 0;
	size = (uint64_t)st.st_size;
	backed = (uint64_t)st.st_blocks * 512;
	/* The binary has no hole: the file has none, or only one, which starts after the binary
	 * and reaches to the end of the file. */
	if (backed >= size ||
	    (end <= backed && lseek(fd, (off_t)backed, SEEK_DATA) < 0 && errno == ENXIO))
		return 0;
	if (limit && size - backed > limit)
		return refuse(err, -EDQUOT,
			      "%llu bytes of the region were never written, more than the "
			      "limit max_shared_memory_mb allows to fill",
			      (unsigned long long)(size - backed));
	if (tmesh_populate((void *)(pinned->start + first), end - first, MADV_POPULATE_READ))
		return refuse(err, -ENOMEM,
			      "no memory for the parts of the region that were "
			      "never written");
	return 0;
}

/*
 * Pin and map a tensor's region.
 *
 * Return: 0 and the caller's reference in @out; -EINVAL (not sealed), -EPERM (the owner refuses
 * pins), -EOPNOTSUPP (a gather view), or an error that prevents a copy, too.
 */
static int pin_region(ErlNifEnv *env, struct tmesh_tensor *tensor, struct pinned **out,
		      struct tmesh_error *err)
{
	struct tmesh_region *region;
	struct guarded *mapping;
	struct pinned *pinned;
	unsigned char *addr;
	int rc;

	rc = tmesh_region_pin(tmesh_tensor_region(tensor), &region, err);
	if (rc)
		return rc;
	mapping = map_guarded(region, &addr, err);
	if (!mapping) {
		tmesh_region_unref(region);
		return err->code;
	}
	mapping->of = tmesh_region_ref(tmesh_tensor_region(tensor));
	pinned = enif_alloc_resource(pinned_type, sizeof(*pinned));
	*pinned = (struct pinned){.garbage = garbage_alloc(drop_mapping)};
	held_add(env, &pinned->held);
	if (!pinned->garbage) {
		drop_mapping(mapping);
		enif_release_resource(pinned);
		return refuse(err, -ENOMEM, "no memory for a binary");
	}
	/* From here on the resource releases region and mapping. */
	pinned->mapping = mapping;
	pinned->region = region;
	pinned->start = addr;
	*out = pinned;
	return 0;
}

/* Pin a model's region once for the tensors of the model. */
static int pin_model(ErlNifEnv *env, struct origin *origin, struct tmesh_tensor *tensor,
		     struct pinned **out, struct tmesh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&origin->lock);
	if (!origin->pinned) {
		rc = pin_region(env, tensor, &origin->pinned, err);
		if (!rc)
			origin->pinned->mapping->model = tmesh_model_ref(origin->model);
	}
	if (!rc) {
		enif_keep_resource(origin->pinned);
		*out = origin->pinned;
	}
	pthread_mutex_unlock(&origin->lock);
	return rc;
}

/* Do as pin_region() for the binary of a contiguous tensor that has bytes. */
static int pin(ErlNifEnv *env, struct handle *handle, struct tmesh_tensor *tensor, uint64_t limit,
	       struct pinned **out, struct tmesh_error *err)
{
	uint64_t offset = tmesh_tensor_layout(tensor)->offset;
	struct origin *origin;
	int rc;

	pthread_mutex_lock(&handle->lock);
	origin = handle->origin;
	if (origin)
		enif_keep_resource(origin);
	pthread_mutex_unlock(&handle->lock);
	rc = origin ? pin_model(env, origin, tensor, out, err) : pin_region(env, tensor, out, err);
	if (origin)
		enif_release_resource(origin);
	if (rc)
		return rc;
	rc = fill_holes(*out, offset, tmesh_tensor_bytes(tensor), limit, err);
	if (rc)
		enif_release_resource(*out);
	return rc;
}

/* Let later binaries share @pinned, unless the handle was released or has one already. */
static void remember(struct handle *handle, struct pinned *pinned)
{
	pthread_mutex_lock(&handle->lock);
	if (handle->tensor && !handle->pinned) {
		enif_keep_resource(pinned);
		handle->pinned = pinned;
	}
	pthread_mutex_unlock(&handle->lock);
}

static int copy(struct tmesh_tensor *tensor, uint64_t limit, ErlNifBinary *binary,
		struct tmesh_error *err)
{
	uint64_t bytes = tmesh_tensor_bytes(tensor);
	int rc;

	if (limit && bytes > limit)
		return refuse(err, -EDQUOT,
			      "a copy of %llu bytes is more than the limit "
			      "max_shared_memory_mb; seal the tensor to use it "
			      "without a copy",
			      (unsigned long long)bytes);
	if (!enif_alloc_binary(bytes, binary))
		return refuse(err, -ENOMEM, "no memory for a copy of %llu bytes",
			      (unsigned long long)bytes);
	rc = tmesh_tensor_read(tensor, binary->data, bytes, err);
	if (rc)
		enif_release_binary(binary);
	return rc;
}

static ERL_NIF_TERM make_binary(ErlNifEnv *env, struct handle *handle, struct tmesh_tensor *tensor,
				bool may_copy)
{
	uint64_t bytes = tmesh_tensor_bytes(tensor);
	uint64_t limit = atomic_load(&handle->context->max_bytes);
	struct pinned *pinned = NULL;
	struct tmesh_error err;
	ErlNifBinary binary;
	ERL_NIF_TERM term;
	int rc;

	if (!bytes) {
		enif_make_new_binary(env, 0, &term);
		return make_ok(env, term);
	}
	if (tmesh_layout_is_contiguous(tmesh_tensor_layout(tensor)))
		rc = pin(env, handle, tensor, limit, &pinned, &err);
	else
		rc = refuse(&err, -EINVAL, "not contiguous");
	if (!rc) {
		remember(handle, pinned);
		term = make_pinned(env, pinned, tmesh_tensor_layout(tensor)->offset, bytes);
		enif_release_resource(pinned);
		return term;
	}
	if (rc != -EINVAL && rc != -EPERM && rc != -EOPNOTSUPP)
		return make_error(env, &err);
	if (!may_copy) {
		char reason[sizeof(err.message)];

		memcpy(reason, err.message, sizeof(reason));
		return make_refusal(env, -EOPNOTSUPP, "this binary would be a copy: %.200s",
				    reason);
	}
	if (copy(tensor, limit, &binary, &err))
		return make_error(env, &err);
	return make_ok(env, enif_make_binary(env, &binary));
}

static NIF(to_binary_dirty)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	bool may_copy;

	if (!get_bool(env, argv[1], "copy", &may_copy, &err))
		return make_error(env, &err);
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	term = make_binary(env, handle, tensor, may_copy);
	tmesh_tensor_unref(tensor);
	return term;
}

/* to_binary(handle, may_copy) -> {ok, binary}. Only the first binary of a handle needs a dirty
 * scheduler; later ones share its mapping. */
NIF(tensor_to_binary)
{
	uint64_t offset = 0, bytes = 0;
	struct pinned *pinned = NULL;
	struct handle *handle;
	ERL_NIF_TERM term;

	if (enif_get_resource(env, argv[0], handle_type, (void **)&handle)) {
		pthread_mutex_lock(&handle->lock);
		pinned = handle->pinned;
		if (pinned) {
			enif_keep_resource(pinned);
			offset = tmesh_tensor_layout(handle->tensor)->offset;
			bytes = tmesh_tensor_bytes(handle->tensor);
		}
		pthread_mutex_unlock(&handle->lock);
		held_used(env, &handle->held);
	}
	if (!pinned)
		return enif_schedule_nif(env, "to_binary", ERL_NIF_DIRTY_JOB_CPU_BOUND,
					 to_binary_dirty, argc, argv);
	term = make_pinned(env, pinned, offset, bytes);
	enif_release_resource(pinned);
	return term;
}
