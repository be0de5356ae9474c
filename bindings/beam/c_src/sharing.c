/* SPDX-License-Identifier: MIT */
/*
 * Operations on a region beside reading and writing. Its holder can take it back, lease it, wait
 * for its producer, join parts of several regions, and hand it over by dma-bufs and sockets.
 */
#include "nif.h"

#include <sys/syscall.h>
#include <unistd.h>

static ERL_NIF_TERM done(ErlNifEnv *env, struct tmesh_tensor *tensor, int rc,
			 const struct tmesh_error *err)
{
	ERL_NIF_TERM term =
		rc ? make_region_error(env, tmesh_tensor_region(tensor), err) : atoms.ok;

	tmesh_tensor_unref(tensor);
	return term;
}

/*
 * A wait holds a dirty scheduler for at most a hundredth of a second, so that the waiting process
 * can be killed. Few waits run at once. The others give eagain, and their callers try again without
 * holding a scheduler.
 */
#define SLICE_NS 10000000u

static bool begin_waiting(struct context *context, struct tmesh_error *err)
{
	unsigned int most = context->max_opening > 1 ? context->max_opening / 2 : 1;

	if (atomic_fetch_add(&context->waiting, 1) < most)
		return true;
	atomic_fetch_sub(&context->waiting, 1);
	refuse(err, -EAGAIN, "enough dirty schedulers wait already");
	return false;
}

static bool get_slice(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *ns, struct tmesh_error *err)
{
	ErlNifUInt64 value;

	*ns = 0;
	if (!enif_get_uint64(env, term, &value)) {
		refuse(err, -EINVAL, "a wait has a number of nanoseconds");
		return false;
	}
	*ns = value < SLICE_NS ? value : SLICE_NS;
	return true;
}

/* revoke(handle) -> ok */
NIF(region_revoke)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;

	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	return done(env, tensor, tmesh_region_revoke(tmesh_tensor_region(tensor), &err), &err);
}

/* reclaim(handle, ns) -> ok | {used, {pinned_bytes, exports, attachments}, why} */
NIF(reclaim)
{
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	uint64_t ns;
	int rc;

	if (!get_slice(env, argv[1], &ns, &err))
		return make_error(env, &err);
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (!begin_waiting(handle->context, &err))
		return done(env, tensor, err.code, &err);
	rc = tmesh_region_reclaim(tmesh_tensor_region(tensor), ns, &report, &err);
	atomic_fetch_sub(&handle->context->waiting, 1);
	if (rc != -ETIMEDOUT && rc != -EINTR)
		return done(env, tensor, rc, &err);
	tmesh_tensor_unref(tensor);
	return enif_make_tuple3(env, enif_make_atom(env, "used"),
				enif_make_tuple3(env, enif_make_uint64(env, report.pinned_bytes),
						 enif_make_uint(env, report.exports),
						 enif_make_uint(env, report.attachments)),
				make_string(env, err.message));
}

/* lease(handle, ns, pid | 0) -> ok. After a lease has lapsed, reads give zeros, never a signal. */
NIF(lease)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	int pid, pidfd, rc;
	ErlNifUInt64 ns;

	if (!enif_get_uint64(env, argv[1], &ns) || !enif_get_int(env, argv[2], &pid) || pid < 0)
		return make_refusal(env, -EINVAL,
				    "a lease has a number of nanoseconds, and a process's number");
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (!pid) {
		rc = tmesh_lease_set(tmesh_tensor_region(tensor), ns, TMESH_TAKEN_ZERO, &err);
		return done(env, tensor, rc, &err);
	}
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return done(env, tensor,
			    refuse(&err, errno == ESRCH ? -ENOENT : -errno,
				   "process %d cannot be watched: %m", pid),
			    &err);
	rc = tmesh_lease_bind(tmesh_tensor_region(tensor), pidfd, ns, TMESH_TAKEN_ZERO, &err);
	close(pidfd);
	return done(env, tensor, rc, &err);
}

/* touch(handle) -> ok. No system call. */
NIF(touch)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	int rc;

	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	rc = tmesh_lease_touch(tmesh_tensor_region(tensor));
	if (rc)
		refuse(&err, rc, "the lease has lapsed, or the region was taken back");
	return done(env, tensor, rc, &err);
}

/* fence_signal(handle, value) -> ok */
NIF(fence_signal)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	ErlNifUInt64 value;

	if (!enif_get_uint64(env, argv[1], &value))
		return make_refusal(env, -EINVAL, "a fence's value is a number of 64 bits");
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	return done(env, tensor, tmesh_fence_signal(tmesh_tensor_region(tensor), value, &err),
		    &err);
}

/* fence_wait(handle, value, ns) -> {ok, reached} */
NIF(fence_wait)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	uint64_t ns, reached = 0;
	ErlNifUInt64 value;
	int rc;

	if (!enif_get_uint64(env, argv[1], &value))
		return make_refusal(env, -EINVAL, "a fence's value is a number of 64 bits");
	if (!get_slice(env, argv[2], &ns, &err))
		return make_error(env, &err);
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (!begin_waiting(handle->context, &err))
		return done(env, tensor, err.code, &err);
	rc = tmesh_fence_wait(tmesh_tensor_region(tensor), value, (int64_t)ns, &reached, &err);
	atomic_fetch_sub(&handle->context->waiting, 1);
	if (rc)
		return done(env, tensor, rc, &err);
	tmesh_tensor_unref(tensor);
	return make_ok(env, enif_make_uint64(env, reached));
}

int describe_region(struct tmesh_region *region, struct tmesh_layout *layout,
		    struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_ref ref;
	int64_t bytes;
	int rc;

	rc = tmesh_region_info(region, &info, err);
	if (rc)
		return rc;
	bytes = (int64_t)info.bytes;
	if (tmesh_ref_decode(info.description, strlen(info.description), &ref, NULL))
		return tmesh_layout_contiguous(layout, TMESH_UINT8, 1, &bytes, err);
	*layout = ref.layout;
	return 0;
}

static bool wrap(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
		 const struct tmesh_layout *layout, ERL_NIF_TERM *term, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;

	return !tmesh_tensor_wrap(region, layout, &tensor, err) &&
	       make_handle(env, context, tensor, term, err);
}

bool wrap_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
		 ERL_NIF_TERM *term, struct tmesh_error *err)
{
	struct tmesh_layout layout;

	return !describe_region(region, &layout, err) &&
	       wrap(env, context, region, &layout, term, err);
}

ERL_NIF_TERM tensor_of_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
			      ERL_NIF_TERM shape, ERL_NIF_TERM dtype, uint64_t offset)
{
	int64_t dims[TMESH_MAX_DIMS];
	struct tmesh_layout layout;
	enum tmesh_dtype type;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	int32_t ndim;
	bool good;

	if (enif_is_identical(shape, atoms.nil)) {
		good = wrap_region(env, context, region, &term, &err);
	} else {
		good = get_dims(env, shape, "shape", dims, &ndim, &err) &&
		       get_dtype(env, dtype, &type, &err) &&
		       !tmesh_layout_contiguous(&layout, type, ndim, dims, &err);
		layout.offset = offset;
		good = good && wrap(env, context, region, &layout, &term, &err);
	}
	tmesh_region_unref(region);
	return good ? make_ok(env, term) : make_error(env, &err);
}

static void drop_extents(struct tmesh_gather_extent *extents, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		tmesh_region_unref(extents[i].region);
	enif_free(extents);
}

/* Read {handle, offset, bytes}. The extent has a reference on its region. */
static bool get_extent(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_gather_extent *extent,
		       struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	ErlNifUInt64 offset, bytes;
	const ERL_NIF_TERM *field;
	struct handle *handle;
	int arity;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 3 ||
	    !enif_get_uint64(env, field[1], &offset) || !enif_get_uint64(env, field[2], &bytes))
		return refuse(err, -EINVAL, "a part is a ref, or a ref, an offset and bytes") == 0;
	tensor = get_tensor(env, field[0], &handle, err);
	if (!tensor)
		return false;
	*extent = (struct tmesh_gather_extent){
		.region = tmesh_region_ref(tmesh_tensor_region(tensor)),
		.offset = offset,
		.bytes = bytes,
	};
	tmesh_tensor_unref(tensor);
	return true;
}

/* gather(context, [{handle, offset, bytes}], rights, shape | nil, dtype, region_opts)
 * -> {ok, {handle, ref}} */
NIF(gather)
{
	struct tmesh_gather_extent *extents;
	char label[TMESH_LABEL_LEN + 1];
	struct tmesh_region_opts opts;
	struct tmesh_region *region;
	ERL_NIF_TERM head, list = argv[1];
	struct context *context;
	struct tmesh_error err;
	unsigned int length, count = 0;
	uint32_t rights;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_rights(env, argv[2], &rights, &err) ||
	    !get_region_opts(env, argv[5], &opts, label, &err))
		return make_error(env, &err);
	if (!enif_get_list_length(env, list, &length))
		return make_refusal(env, -EINVAL, "parts must be a list");
	extents = enif_alloc((length + (size_t)1) * sizeof(*extents));
	if (!extents)
		return make_refusal(env, -ENOMEM, "no memory for a list of %u parts", length);
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!get_extent(env, head, &extents[count], &err)) {
			drop_extents(extents, count);
			return make_error(env, &err);
		}
		count++;
	}
	if (tmesh_region_gather(context->ctx, extents, count, rights, &opts, &region, &err)) {
		unsigned int sealed = 0;

		while (sealed < count && !tmesh_region_is_sealed(extents[sealed].region))
			sealed++;
		head = sealed < count ? make_region_error(env, extents[sealed].region, &err)
				      : make_error(env, &err);
		drop_extents(extents, count);
		return head;
	}
	drop_extents(extents, count);
	return tensor_of_region(env, context, region, argv[3], argv[4], 0);
}

void descriptor_dtor(ErlNifEnv *env, void *object)
{
	struct descriptor *descriptor = object;
	int fd = atomic_exchange(&descriptor->fd, -1);

	if (fd >= 0)
		close(fd);
}

/* export_dmabuf(handle, offset, bytes, rights) -> {ok, {descriptor, fd}} */
NIF(export_dmabuf)
{
	struct descriptor *descriptor;
	struct tmesh_tensor *tensor;
	ErlNifUInt64 offset, bytes;
	struct handle *handle;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	uint32_t rights;
	int fd, rc;

	if (!get_rights(env, argv[3], &rights, &err))
		return make_error(env, &err);
	if (!enif_get_uint64(env, argv[1], &offset) || !enif_get_uint64(env, argv[2], &bytes))
		return make_refusal(env, -EINVAL, "offset and bytes must be numbers of at least 0");
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	rc = tmesh_region_export_dmabuf(tmesh_tensor_region(tensor), offset, bytes, rights, &fd,
					&err);
	if (rc)
		return done(env, tensor, rc, &err);
	tmesh_tensor_unref(tensor);
	descriptor = enif_alloc_resource(descriptor_type, sizeof(*descriptor));
	atomic_init(&descriptor->fd, fd);
	term = enif_make_tuple2(env, enif_make_resource(env, descriptor), enif_make_int(env, fd));
	enif_release_resource(descriptor);
	return make_ok(env, term);
}

/* descriptor_close(descriptor) -> ok, also when repeated */
NIF(descriptor_close)
{
	struct descriptor *descriptor;

	if (!enif_get_resource(env, argv[0], descriptor_type, (void **)&descriptor))
		return make_refusal(env, -EBADF, "not a descriptor of this VM");
	descriptor_dtor(env, descriptor);
	return atoms.ok;
}

bool get_fd(ErlNifEnv *env, ERL_NIF_TERM term, int *fd, struct tmesh_error *err)
{
	struct descriptor *descriptor;

	if (enif_get_resource(env, term, descriptor_type, (void **)&descriptor))
		*fd = atomic_load(&descriptor->fd);
	else if (!enif_get_int(env, term, fd))
		*fd = -1;
	if (*fd < 0)
		refuse(err, -EBADF, "not an open descriptor");
	return *fd >= 0;
}

/* from_dmabuf(context, fd | descriptor, shape | nil, dtype, region_opts) -> {ok, {handle, ref}} */
NIF(from_dmabuf)
{
	char label[TMESH_LABEL_LEN + 1];
	struct tmesh_region_opts opts;
	struct tmesh_region *region;
	struct context *context;
	struct tmesh_error err;
	int fd;

	if (!get_context(env, argv[0], &context, &err) || !get_fd(env, argv[1], &fd, &err) ||
	    !get_region_opts(env, argv[4], &opts, label, &err) ||
	    tmesh_region_from_dmabuf(context->ctx, fd, &opts, &region, &err))
		return make_error(env, &err);
	return tensor_of_region(env, context, region, argv[2], argv[3], 0);
}

/* hand_over(handle, socket, rights) -> ok */
NIF(hand_over)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	uint32_t rights;
	int socket, rc;

	if (!get_fd(env, argv[1], &socket, &err) || !get_rights(env, argv[2], &rights, &err))
		return make_error(env, &err);
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (!begin_opening(handle->context, &err))
		return done(env, tensor, err.code, &err);
	rc = tmesh_region_send(tmesh_tensor_region(tensor), socket, rights, &err);
	end_opening(handle->context);
	return done(env, tensor, rc, &err);
}

/* tensor_recv(context, socket, shape | nil, dtype, offset) -> {ok, {handle, ref}} */
NIF(tensor_recv)
{
	struct tmesh_region *region;
	struct context *context;
	struct tmesh_error err;
	ErlNifUInt64 offset;
	int socket, rc;

	if (!get_context(env, argv[0], &context, &err) || !get_fd(env, argv[1], &socket, &err))
		return make_error(env, &err);
	if (!enif_get_uint64(env, argv[4], &offset))
		return make_refusal(env, -EINVAL, "offset must be a number of at least 0");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_region_recv(context->ctx, socket, &region, &err);
	end_opening(context);
	if (rc)
		return make_error(env, &err);
	return tensor_of_region(env, context, region, argv[2], argv[3], offset);
}
