/* SPDX-License-Identifier: MIT */
#include "nif.h"

#include <tmesh/hold.h>

static void drop_tensor(void *object)
{
	tmesh_tensor_unref(object);
}

/* Release the objects that a handle keeps beside its tensor. */
static void pinned_release(struct pinned *pinned, struct origin *origin)
{
	if (pinned)
		enif_release_resource(pinned);
	if (origin)
		enif_release_resource(origin);
}

void handle_dtor(ErlNifEnv *env, void *object)
{
	struct handle *handle = object;
	uint64_t bytes = handle->tensor ? tmesh_tensor_bytes(handle->tensor) : 0;

	held_remove(&handle->held);
	pinned_release(handle->pinned, handle->origin);
	enif_release_resource(handle->context);
	if (tmesh_tensor_try_unref(handle->tensor)) {
		garbage_put(env, handle->garbage, handle->tensor);
	} else {
		garbage_free(handle->garbage);
		channels_returned(env, bytes);
	}
	pthread_mutex_destroy(&handle->lock);
}

/* Make an empty handle, or return NULL with @err filled. */
static struct handle *handle_new(ErlNifEnv *env, struct context *context, struct tmesh_error *err)
{
	struct handle *handle = enif_alloc_resource(handle_type, sizeof(*handle));

	*handle = (struct handle){.context = context, .garbage = garbage_alloc(drop_tensor)};
	enif_keep_resource(context);
	pthread_mutex_init(&handle->lock, NULL);
	held_add(env, &handle->held);
	if (handle->garbage)
		return handle;
	refuse(err, -ENOMEM, "no memory for a handle");
	enif_release_resource(handle);
	return NULL;
}

/* Fill @err with the reason why @term is no open handle of this VM. */
static int refuse_handle(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	void *handle;

	if (enif_get_resource(env, term, handle_type, &handle))
		return refuse(err, -EBADF, "the ref was released");
	if (enif_is_ref(env, term))
		return refuse(
			err, -EBADF,
			"the ref was opened by another node, or by an earlier run of this one: "
			"have that node hand it over (grant/2, to_map/1, to_json/1), and open "
			"that");
	return refuse(err, -EBADF, "the ref is only a description: open/2 opens it");
}

/* local(handle) -> ok | an error: no handle of this VM. A released handle is ok. */
NIF(tensor_local)
{
	struct tmesh_error err;
	void *handle;

	if (enif_get_resource(env, argv[0], handle_type, &handle))
		return atoms.ok;
	refuse_handle(env, argv[0], &err);
	return make_error(env, &err);
}

/* Return the caller's reference on the tensor of a handle, or NULL with @err filled. */
struct tmesh_tensor *get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, struct handle **handle,
				struct tmesh_error *err)
{
	struct tmesh_tensor *tensor = NULL;

	if (enif_get_resource(env, term, handle_type, (void **)handle)) {
		pthread_mutex_lock(&(*handle)->lock);
		if ((*handle)->tensor)
			tensor = tmesh_tensor_ref((*handle)->tensor);
		pthread_mutex_unlock(&(*handle)->lock);
		held_used(env, &(*handle)->held);
	}
	if (!tensor)
		refuse_handle(env, term, err);
	return tensor;
}

/*
 * Give back a reference of get_tensor() or of a message. It is the last one if the handle was
 * released during the call. To free memory takes too long for a normal scheduler, so the janitor
 * does it.
 */
void put_tensor(ErlNifEnv *env, struct tmesh_tensor *tensor)
{
	struct garbage *garbage;

	if (!tmesh_tensor_try_unref(tensor))
		return;
	garbage = garbage_alloc(drop_tensor);
	if (garbage)
		garbage_put(env, garbage, tensor);
	else
		tmesh_tensor_unref(tensor);
}

/* Make {handle, ref} for a new tensor, whose reference the handle has. The ref has no token yet:
 * the library's pool can reuse memory that never had one. */
static ERL_NIF_TERM make_described(ErlNifEnv *env, struct handle *handle)
{
	struct tmesh_ref ref = {
		.id = tmesh_region_id(tmesh_tensor_region(handle->tensor)),
		.layout = *tmesh_tensor_layout(handle->tensor),
		.byte_size = tmesh_tensor_bytes(handle->tensor),
	};

	return enif_make_tuple2(env, enif_make_resource(env, handle), make_ref(env, &ref));
}

/* Make {ok, {handle, ref}} for a tensor that was made with these options. */
static ERL_NIF_TERM make_created(ErlNifEnv *env, struct handle *handle,
				 const struct tmesh_region_opts *opts)
{
	/* A large tensor has a region of its own. */
	handle->in_arena = opts->arena && tmesh_region_bytes(tmesh_tensor_region(handle->tensor)) >
						  tmesh_tensor_bytes(handle->tensor);
	return make_ok(env, make_described(env, handle));
}

bool make_handle_of(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		    struct origin *origin, ERL_NIF_TERM *term, struct tmesh_error *err)
{
	struct handle *handle = handle_new(env, context, err);

	if (!handle) {
		put_tensor(env, tensor);
		return false;
	}
	handle->tensor = tensor;
	handle->origin = origin;
	if (origin)
		enif_keep_resource(origin);
	*term = make_described(env, handle);
	enif_release_resource(handle);
	return true;
}

bool make_handle(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		 ERL_NIF_TERM *term, struct tmesh_error *err)
{
	return make_handle_of(env, context, tensor, NULL, term, err);
}

bool same_layout(const struct tmesh_layout *a, const struct tmesh_layout *b)
{
	bool same = a->dtype == b->dtype && a->ndim == b->ndim && a->offset == b->offset;

	for (int32_t i = 0; same && i < a->ndim; i++)
		same = a->shape[i] == b->shape[i] && a->strides[i] == b->strides[i];
	return same;
}

/* Compute the bytes of a contiguous tensor. */
static bool get_bytes(ErlNifEnv *env, ERL_NIF_TERM shape, ERL_NIF_TERM dtype, uint64_t *bytes,
		      struct tmesh_error *err)
{
	struct tmesh_layout layout;
	int64_t dims[TMESH_MAX_DIMS];
	enum tmesh_dtype type;
	int32_t ndim;

	return get_dims(env, shape, "shape", dims, &ndim, err) &&
	       get_dtype(env, dtype, &type, err) &&
	       !tmesh_layout_contiguous(&layout, type, ndim, dims, err) &&
	       !tmesh_layout_check(&layout, INT64_MAX, bytes, err);
}

/* create(context, shape, dtype, region_opts) -> {ok, {handle, ref}} */
static NIF(create)
{
	struct tmesh_region_opts opts;
	int64_t shape[TMESH_MAX_DIMS];
	char label[TMESH_LABEL_LEN + 1];
	struct context *context;
	struct handle *handle;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	int32_t ndim;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_dims(env, argv[1], "shape", shape, &ndim, &err) ||
	    !get_dtype(env, argv[2], &dtype, &err) ||
	    !get_region_opts(env, argv[3], &opts, label, &err))
		return make_error(env, &err);
	handle = handle_new(env, context, &err);
	if (!handle)
		return make_error(env, &err);
	if (tmesh_tensor_create(context->ctx, dtype, ndim, shape, &opts, &handle->tensor, &err))
		term = make_error(env, &err);
	else
		term = make_created(env, handle, &opts);
	enif_release_resource(handle);
	return term;
}

NIF(tensor_create)
{
	struct tmesh_error err;
	uint64_t bytes;

	if (get_bytes(env, argv[1], argv[2], &bytes, &err) && is_quick(env, argv[3], bytes, 0))
		return create(env, argc, argv);
	return enif_schedule_nif(env, "create", ERL_NIF_DIRTY_JOB_IO_BOUND, create, argc, argv);
}

/*
 * put(context, binary, shape, dtype, region_opts, seal) -> {ok, {handle, ref}}
 *
 * The library makes the one copy, straight from the binary. The emulator first aligns a binary that
 * does not start on a byte.
 */
static NIF(put)
{
	struct tmesh_region_opts opts;
	struct tmesh_layout layout;
	int64_t shape[TMESH_MAX_DIMS];
	char label[TMESH_LABEL_LEN + 1];
	struct context *context;
	struct handle *handle;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	ErlNifBinary data;
	ERL_NIF_TERM term;
	uint64_t bytes;
	int32_t ndim;
	bool seal;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_dims(env, argv[2], "shape", shape, &ndim, &err) ||
	    !get_dtype(env, argv[3], &dtype, &err) ||
	    !get_region_opts(env, argv[4], &opts, label, &err) ||
	    !get_bool(env, argv[5], "seal", &seal, &err) ||
	    tmesh_layout_contiguous(&layout, dtype, ndim, shape, &err) ||
	    tmesh_layout_check(&layout, INT64_MAX, &bytes, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &data))
		return make_refusal(env, -EINVAL,
				    "the elements have to be one binary of %llu bytes",
				    (unsigned long long)bytes);
	if (data.size != bytes)
		return make_refusal(env, -EINVAL,
				    "shape and dtype take %llu bytes, and the binary has %llu",
				    (unsigned long long)bytes, (unsigned long long)data.size);
	handle = handle_new(env, context, &err);
	if (!handle)
		return make_error(env, &err);
	opts.flags |= TMESH_REGION_UNSEALED;
	if (tmesh_tensor_put(context->ctx, dtype, ndim, shape, data.data, &opts, &handle->tensor,
			     &err) ||
	    (seal && tmesh_region_seal(tmesh_tensor_region(handle->tensor), &err)))
		term = make_error(env, &err);
	else
		term = make_created(env, handle, &opts);
	enif_release_resource(handle);
	return term;
}

NIF(tensor_put)
{
	ErlNifBinary data;

	if (enif_inspect_binary(env, argv[1], &data) &&
	    is_quick(env, argv[4], data.size, data.size))
		return put(env, argc, argv);
	return enif_schedule_nif(env, "put", ERL_NIF_DIRTY_JOB_CPU_BOUND, put, argc, argv);
}

/*
 * A peer that does not answer holds its dirty scheduler until the context's timeout. File I/O of
 * the whole VM runs on the same schedulers, so only some of them may wait at once. The others give
 * eagain, and the caller tries again without holding a scheduler.
 */
bool begin_opening(struct context *context, struct tmesh_error *err)
{
	if (atomic_fetch_add(&context->opening, 1) < context->max_opening)
		return true;
	end_opening(context);
	refuse(err, -EAGAIN, "too many opens wait for their peers");
	return false;
}

void end_opening(struct context *context)
{
	atomic_fetch_sub(&context->opening, 1);
}

/* open(context, ref, read | write) -> {ok, handle} */
NIF(tensor_open)
{
	struct context *context;
	struct handle *handle;
	struct tmesh_error err;
	struct tmesh_ref ref;
	ERL_NIF_TERM term;
	uint32_t rights;

	if (!get_context(env, argv[0], &context, &err) || !get_ref(env, argv[1], &ref, &err) ||
	    !get_rights(env, argv[2], &rights, &err))
		return make_error(env, &err);
	handle = handle_new(env, context, &err);
	if (!handle)
		return make_error(env, &err);
	if (begin_opening(context, &err)) {
		tmesh_tensor_open(context->ctx, &ref, rights, &handle->tensor, &err);
		end_opening(context);
	}
	term = handle->tensor ? make_ok(env, enif_make_resource(env, handle))
			      : make_open_error(env, rights, &err);
	enif_release_resource(handle);
	return term;
}

/* Describe a tensor through its text. Only there does the library give id and token without
 * looking for other holders. */
static bool describe(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t rights, uint64_t hold_ns,
		     struct handle **handle, struct tmesh_ref *ref, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor = get_tensor(env, term, handle, err);
	char text[TMESH_REF_SIZE];
	int rc;

	if (!tensor)
		return false;
	rc = hold_ns ? tmesh_tensor_ref_hold(tensor, rights, hold_ns, text, sizeof(text), err)
		     : tmesh_tensor_ref_encode(tensor, rights, text, sizeof(text), err);
	tmesh_tensor_unref(tensor);
	return !rc && !tmesh_ref_decode(text, strlen(text), ref, err);
}

/* ref(handle, read | write, nil | hold_ns) -> {ok, ref} */
NIF(tensor_ref)
{
	struct handle *handle;
	struct tmesh_error err;
	struct tmesh_ref ref;
	uint64_t hold_ns;
	uint32_t rights;

	if (!get_rights(env, argv[1], &rights, &err) || !get_hold(env, argv[2], &hold_ns, &err) ||
	    !describe(env, argv[0], rights, hold_ns, &handle, &ref, &err))
		return make_open_error(env, rights, &err);
	return make_ok(env, make_ref(env, &ref));
}

static ERL_NIF_TERM make_name(ErlNifEnv *env, uint64_t id, const char *token)
{
	return make_ok(env,
		       enif_make_tuple2(env, enif_make_uint64(env, id), make_string(env, token)));
}

static ERL_NIF_TERM name_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct handle *handle;
	struct tmesh_error err;
	struct tmesh_ref ref;

	(void)argc;
	if (!describe(env, argv[0], TMESH_READ, 0, &handle, &ref, &err))
		return make_error(env, &err);
	pthread_mutex_lock(&handle->lock);
	handle->id = ref.id;
	memcpy(handle->token, ref.token, sizeof(handle->token));
	pthread_mutex_unlock(&handle->lock);
	return make_name(env, ref.id, ref.token);
}

/*
 * name(handle) -> {ok, {id, token}}, the token to read
 *
 * A sender asks often for the same name, and waking a dirty scheduler takes longer than the rest.
 * So only the first call uses one; later calls return the kept name. If the region was taken back
 * since, opening it by that name fails.
 */
NIF(tensor_name)
{
	char token[TMESH_TOKEN_SIZE] = "";
	struct handle *handle;
	uint64_t id = 0;

	if (enif_get_resource(env, argv[0], handle_type, (void **)&handle)) {
		pthread_mutex_lock(&handle->lock);
		if (handle->tensor) {
			id = handle->id;
			memcpy(token, handle->token, sizeof(token));
		}
		pthread_mutex_unlock(&handle->lock);
	}
	if (*token)
		return make_name(env, id, token);
	return enif_schedule_nif(env, "name", ERL_NIF_DIRTY_JOB_IO_BOUND, name_now, argc, argv);
}

/* seal(handle) -> ok */
NIF(tensor_seal)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	int rc;

	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (handle->in_arena)
		rc = refuse(&err, -EINVAL,
			    "this tensor lies in an arena: its neighbours would be sealed too");
	else
		rc = tmesh_region_seal(tmesh_tensor_region(tensor), &err);
	tmesh_tensor_unref(tensor);
	return rc ? make_error(env, &err) : atoms.ok;
}

static int write_bytes(struct tmesh_tensor *tensor, uint64_t offset, const ErlNifBinary *data,
		       struct tmesh_error *err)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	uint64_t bytes = tmesh_tensor_bytes(tensor);

	if (!tmesh_layout_is_contiguous(layout))
		return refuse(err, -EOPNOTSUPP, "only contiguous tensors can be written by offset");
	if (offset > bytes || data->size > bytes - offset)
		return refuse(err, -EINVAL, "the tensor has %llu bytes, too few for this write",
			      (unsigned long long)bytes);
	return tmesh_region_write(tmesh_tensor_region(tensor), layout->offset + offset, data->data,
				  data->size, err);
}

/* write(handle, offset, binary) -> ok */
NIF(tensor_write)
{
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	ErlNifUInt64 offset;
	ErlNifBinary data;
	ERL_NIF_TERM term;
	int rc;

	if (!enif_get_uint64(env, argv[1], &offset) || !enif_inspect_binary(env, argv[2], &data))
		return make_refusal(env, -EINVAL,
				    "a write wants an offset of at least 0 and a binary");
	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	rc = write_bytes(tensor, offset, &data, &err);
	term = rc ? make_region_error(env, tmesh_tensor_region(tensor), &err) : atoms.ok;
	tmesh_tensor_unref(tensor);
	return term;
}

static ERL_NIF_TERM released(ErlNifEnv *env, const struct handle *handle)
{
	return handle->tied ? enif_make_atom(env, "tied") : atoms.ok;
}

static NIF(release_dirty)
{
	struct tmesh_tensor *tensor;
	struct origin *origin;
	struct handle *handle;
	struct pinned *pinned;

	enif_get_resource(env, argv[0], handle_type, (void **)&handle);
	pthread_mutex_lock(&handle->lock);
	tensor = handle->tensor;
	handle->tensor = NULL;
	/* A binary may have pinned the region again since tensor_release(). */
	pinned = handle->pinned;
	handle->pinned = NULL;
	origin = handle->origin;
	handle->origin = NULL;
	pthread_mutex_unlock(&handle->lock);
	pinned_release(pinned, origin);
	tmesh_tensor_unref(tensor);
	return released(env, handle);
}

/*
 * release(handle) -> ok | tied, also when repeated. Calls in progress and binaries keep their
 * memory. Only the last reference to a region needs a dirty scheduler.
 */
NIF(tensor_release)
{
	struct handle *handle;
	struct tmesh_error err;
	struct origin *origin;
	struct pinned *pinned;
	uint64_t bytes;
	bool dropped;

	if (!enif_get_resource(env, argv[0], handle_type, (void **)&handle)) {
		refuse_handle(env, argv[0], &err);
		return make_error(env, &err);
	}
	pthread_mutex_lock(&handle->lock);
	pinned = handle->pinned;
	handle->pinned = NULL;
	origin = handle->origin;
	handle->origin = NULL;
	bytes = handle->tensor ? tmesh_tensor_bytes(handle->tensor) : 0;
	dropped = !tmesh_tensor_try_unref(handle->tensor);
	if (dropped)
		handle->tensor = NULL;
	pthread_mutex_unlock(&handle->lock);
	pinned_release(pinned, origin);
	if (dropped) {
		channels_returned(env, bytes);
		return released(env, handle);
	}
	return enif_schedule_nif(env, "release", ERL_NIF_DIRTY_JOB_IO_BOUND, release_dirty, argc,
				 argv);
}

/* keep(handle) -> ok. From now on a release of the handle reports `tied`, for Tmesh.Registry. */
NIF(tensor_tie)
{
	struct handle *handle;
	struct tmesh_error err;

	if (!enif_get_resource(env, argv[0], handle_type, (void **)&handle)) {
		refuse_handle(env, argv[0], &err);
		return make_error(env, &err);
	}
	handle->tied = true;
	return atoms.ok;
}

/* ref_encode(ref) -> {ok, json} */
NIF(ref_encode)
{
	char text[TMESH_REF_SIZE];
	struct tmesh_error err;
	struct tmesh_ref ref;

	if (!get_ref(env, argv[0], &ref, &err) || tmesh_ref_encode(&ref, text, sizeof(text), &err))
		return make_error(env, &err);
	return make_ok(env, make_string(env, text));
}

/*
 * ref_from_members({v, id, token, offset, byte_size, shape, dtype, strides, device}) -> {ok, ref}
 *
 * The members are those of a map; token: nil for none.
 */
NIF(ref_from_members)
{
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	char id[32], token[TMESH_TOKEN_SIZE], dtype[32], device[32];
	struct tmesh_ref_members members = {
		.size = sizeof(members),
		.id = id,
		.dtype = dtype,
		.device = device,
		.shape = shape,
		.strides = strides,
	};
	ErlNifUInt64 version, offset, byte_size;
	int32_t nshape, nstrides;
	const ERL_NIF_TERM *field;
	struct tmesh_error err;
	struct tmesh_ref ref;
	int arity;

	if (!enif_get_tuple(env, argv[0], &arity, &field) || arity != 9 ||
	    !enif_get_uint64(env, field[0], &version) || !get_text(env, field[1], id, sizeof(id)) ||
	    !enif_get_uint64(env, field[3], &offset) ||
	    !enif_get_uint64(env, field[4], &byte_size) ||
	    !get_dims(env, field[5], "shape", shape, &nshape, &err) ||
	    !get_text(env, field[6], dtype, sizeof(dtype)) ||
	    !get_dims(env, field[7], "strides", strides, &nstrides, &err) ||
	    !get_text(env, field[8], device, sizeof(device)))
		goto malformed;
	if (!enif_is_identical(field[2], atoms.nil)) {
		if (!get_text(env, field[2], token, sizeof(token)))
			goto malformed;
		members.token = token;
	}
	members.v = version;
	members.offset = offset;
	members.byte_size = byte_size;
	members.shape_count = (size_t)nshape;
	members.strides_count = (size_t)nstrides;
	if (tmesh_ref_from_members(&members, &ref, &err))
		return make_error(env, &err);
	return make_ok(env, make_ref(env, &ref));
malformed:
	return make_refusal(env, -EPROTO, "not a ref: a member is missing or of another type");
}

/* ref_decode(json) -> {ok, ref} */
NIF(ref_decode)
{
	struct tmesh_error err;
	struct tmesh_ref ref;
	ErlNifBinary text;

	if (!enif_inspect_binary(env, argv[0], &text))
		return make_refusal(env, -EPROTO, "a ref's JSON must be a string");
	if (tmesh_ref_decode((const char *)text.data, text.size, &ref, &err))
		return make_error(env, &err);
	return make_ok(env, make_ref(env, &ref));
}
