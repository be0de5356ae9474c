// SPDX-License-Identifier: MIT
/*
 * Open sessions, by their sources. A session that no graph uses stays for later graphs, until newer
 * ones displace it.
 *
 * A session enters the list when a thread begins to open it. That thread holds no lock meanwhile. A
 * call for the same session waits for it; calls for other sessions go on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "gpu.h"
#include "identity.h"
#include "remote.h"

/* Another thread's opening ended for a reason of its own: try again. */
#define SESSION_AGAIN (-ERESTART)

/* The identity of a file, unless its owner sets its times back. */
struct identity {
	uint64_t device, inode, size;
	int64_t mtime[2], ctime[2];
	uint64_t flags, weights;
};

/* One for each weight, after the identity. The weight's name and a zero follow it. */
struct weight_key {
	struct memory_identity memory;
	uint64_t offset;
	int64_t dtype, ndim, shape[TMESH_MAX_DIMS];
};

static int identify(const char *path, struct identity *out, struct tmesh_error *err)
{
	struct stat st;

	if (stat(path, &st)) {
		int code = errno;

		return tmesh_fail(err, -code, "%.180s: %s", path, strerror(code));
	}
	if (!S_ISREG(st.st_mode))
		return tmesh_fail(err, -EINVAL, "%.180s is not a regular file", path);
	out->device = st.st_dev;
	out->inode = st.st_ino;
	out->size = st.st_size;
	out->mtime[0] = st.st_mtim.tv_sec;
	out->mtime[1] = st.st_mtim.tv_nsec;
	out->ctime[0] = st.st_ctim.tv_sec;
	out->ctime[1] = st.st_ctim.tv_nsec;
	return 0;
}

static int check_weight(const struct tmesh_engine_weight *weights, size_t i,
			struct tmesh_error *err)
{
	const struct tmesh_engine_weight *weight = &weights[i];

	if (!weight->name || !weight->tensor)
		return tmesh_fail(err, -EINVAL, "weight %zu has no %s", i,
				  weight->name ? "tensor" : "name");
	for (size_t n = 0; n < i; n++)
		if (!strcmp(weights[n].name, weight->name))
			return tmesh_fail(err, -EINVAL, "weight \"%.100s\" was given twice",
					  weight->name);
	if (!tmesh_layout_is_contiguous(tmesh_tensor_layout(weight->tensor)))
		return tmesh_fail(err, -EINVAL,
				  "weight \"%.100s\" has strides, and engines take contiguous "
				  "ones: copy it first",
				  weight->name);
	if (!tmesh_region_is_sealed(tmesh_tensor_region(weight->tensor)))
		return tmesh_fail(err, -EINVAL,
				  "weight \"%.100s\" is not sealed: others could write to it while "
				  "graphs run; seal it first",
				  weight->name);
	return 0;
}

static int make_key(const struct identity *identity, const struct tmesh_engine_weight *weights,
		    size_t count, void **out, size_t *bytes, struct tmesh_error *err)
{
	size_t need = sizeof(*identity);
	char *key, *at;

	for (size_t i = 0; i < count; i++)
		need += sizeof(struct weight_key) + strlen(weights[i].name) + 1;
	at = key = malloc(need);
	if (!key)
		return tmesh_fail(err, -ENOMEM, "no memory for a session");
	*out = key;
	at = mempcpy(at, identity, sizeof(*identity));
	for (size_t i = 0; i < count; i++) {
		const struct tmesh_layout *layout = tmesh_tensor_layout(weights[i].tensor);
		struct weight_key weight;
		int rc;

		memset(&weight, 0, sizeof(weight));
		weight.offset = layout->offset;
		weight.dtype = layout->dtype;
		weight.ndim = layout->ndim;
		rc = memory_identify(tmesh_tensor_region(weights[i].tensor), &weight.memory, err);
		if (rc)
			return rc;
		memcpy(weight.shape, layout->shape, (size_t)layout->ndim * sizeof(*layout->shape));
		at = mempcpy(at, &weight, sizeof(weight));
		at = stpcpy(at, weights[i].name) + 1;
	}
	*bytes = need;
	return 0;
}

static void session_free(struct tmesh_engine_context *context, struct session *session)
{
	if (session->plugin.handle)
		context->plugin->session_close(context->engine, &session->plugin);
	for (size_t i = 0; i < session->weight_count; i++)
		tmesh_tensor_unref(session->weights[i]);
	for (size_t i = 0; session->copies && i < session->weight_count; i++)
		if (session->copies[i])
			gpu_unref(session->copies[i]);
	free(session->copies);
	free(session->weights);
	free(session->path);
	free(session->key);
	free(session);
}

/* Free sessions without the lock, because closing one can take long. */
static void sessions_free(struct tmesh_engine_context *context, struct session *first)
{
	struct session *next;

	for (; first; first = next) {
		next = first->next;
		session_free(context, first);
	}
}

/* Copy a weight to the GPU and use the copy's address. */
static int copy_weight(struct tmesh_engine_context *context, struct plugin_array *array,
		       struct tmesh_cuda_memory **copy, struct tmesh_error *err)
{
	uint64_t bytes;
	int rc;

	if (__builtin_add_overflow(array->bytes, context->plugin->behind, &bytes))
		return tmesh_fail(err, -ENOMEM, "no memory for a weight of %llu bytes",
				  (unsigned long long)array->bytes);
	rc = gpu_memory_alloc(context->device.device_id, bytes, false, copy, err);
	if (!rc)
		rc = gpu_write(*copy, array->data, array->bytes, err);
	if (rc)
		return rc;
	atomic_fetch_add(&context->counters.writes, 1);
	atomic_fetch_add(&context->counters.bytes_written, array->bytes);
	array->host = array->data;
	array->data = gpu_address(*copy);
	return 0;
}

static int open_plugin(struct tmesh_engine_context *context, struct session *session,
		       const char *path, const struct tmesh_engine_graph_opts *opts,
		       struct tmesh_error *err)
{
	struct plugin_session_opts given = {
		.path = path,
		.prepack = opts->flags & TMESH_ENGINE_PREPACK,
		.weight_count = opts->weight_count,
	};
	struct plugin_array *arrays = calloc(opts->weight_count + 1, sizeof(*arrays));
	int rc = 0;

	session->weights = calloc(opts->weight_count + 1, sizeof(struct tmesh_tensor *));
	if (engine_on_gpu(context))
		session->copies = calloc(opts->weight_count + 1, sizeof(*session->copies));
	if (!arrays || !session->weights || (engine_on_gpu(context) && !session->copies))
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	for (size_t i = 0; !rc && i < opts->weight_count; i++) {
		struct tmesh_tensor *tensor = opts->weights[i].tensor;
		const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);

		arrays[i] = (struct plugin_array){
			.name = opts->weights[i].name,
			.bytes = tmesh_tensor_bytes(tensor),
			.dtype = layout->dtype,
			.ndim = layout->ndim,
			.shape = layout->shape,
			.tensor = tensor,
		};
		rc = tmesh_tensor_data(tensor, TMESH_READ, &arrays[i].data, err);
		if (!rc)
			session->weights[session->weight_count++] = tmesh_tensor_ref(tensor);
		if (!rc && session->copies)
			rc = copy_weight(context, &arrays[i], &session->copies[i], err);
	}
	given.weights = arrays;
	if (!rc)
		rc = context->plugin->session_open(context->engine, &given, &session->plugin, err);
	free(arrays);
	return rc;
}

/* Open a session. Called without the lock. */
static int session_open(struct tmesh_engine_context *context, struct session *session,
			const struct tmesh_engine_graph_opts *opts, const struct identity *before,
			struct tmesh_error *err)
{
	struct identity after = *before;
	int rc = open_plugin(context, session, session->path, opts, err);

	if (!rc)
		rc = identify(session->path, &after, err);
	if (!rc && memcmp(before, &after, sizeof(after)))
		rc = tmesh_fail(err, -ESTALE, "%.180s changed while it was read: open it again",
				session->path);
	return rc;
}

/* Move idle sessions that should close to @gone, with the lock. These are sessions that cannot be
 * opened again, and those beyond the limit, least recently used first. */
static void evict(struct tmesh_engine_context *context, struct session **gone)
{
	struct session **at = &context->sessions, *session;
	size_t idle = 0, regions = 0;

	while ((session = *at)) {
		bool once = !session->graphs && session->once, full;

		full = context->keep_regions && regions + session->regions > context->keep_regions;
		if (session->graphs || (!once && !full && ++idle <= context->keep)) {
			regions += session->graphs ? 0 : session->regions;
			at = &session->next;
			continue;
		}
		*at = session->next;
		session->next = *gone;
		*gone = session;
		if (!once)
			atomic_fetch_add(&context->counters.sessions_evicted, 1);
	}
}

/* A copy of an idle session's key, to check its file: another thread may close the session
 * meanwhile. */
struct look {
	struct look *next;
	char *path;
	size_t key_bytes;
	char key[]; /* an identity first */
};

/* Return whether the file is gone or replaced. Then the session cannot be opened again. */
static bool outlived(const struct look *look)
{
	struct identity now;

	memcpy(&now, look->key, sizeof(now));
	return identify(look->path, &now, NULL) || memcmp(look->key, &now, sizeof(now));
}

/* Copy the keys of all idle sessions, with the lock. A lack of memory leaves some to the next
 * check. */
static struct look *looks_new(const struct tmesh_engine_context *context)
{
	struct look *first = NULL;

	for (const struct session *s = context->sessions; s; s = s->next) {
		struct look *look = s->graphs ? NULL : malloc(sizeof(*look) + s->key_bytes);

		if (!look)
			continue;
		look->path = strdup(s->path);
		look->key_bytes = s->key_bytes;
		memcpy(look->key, s->key, s->key_bytes);
		look->next = first;
		first = look;
	}
	return first;
}

/* Keep the sessions whose files are gone or replaced. Called without the lock. */
static void look_at(struct look **at)
{
	struct look *look;

	while ((look = *at)) {
		if (look->path && outlived(look)) {
			at = &look->next;
			continue;
		}
		*at = look->next;
		free(look->path);
		free(look);
	}
}

/* Close idle sessions whose files are gone. Called with the lock, which is released meanwhile: a
 * file system that hangs blocks only this thread. For sessions that become idle during the check,
 * the checking thread checks again. */
static void sessions_look(struct tmesh_engine_context *context, struct session **gone)
{
	context->look_again = true;
	if (context->looking)
		return;
	context->looking = true;
	while (context->look_again) {
		struct look *looks = looks_new(context), *next;

		context->look_again = false;
		if (!looks)
			break;
		pthread_mutex_unlock(&context->lock);
		look_at(&looks);
		pthread_mutex_lock(&context->lock);
		for (; looks; looks = next) {
			for (struct session *s = context->sessions; s; s = s->next)
				if (s->key_bytes == looks->key_bytes &&
				    !memcmp(s->key, looks->key, s->key_bytes))
					s->once = true;
			next = looks->next;
			free(looks->path);
			free(looks);
		}
		evict(context, gone);
	}
	context->looking = false;
}

/* Find a session, with the lock, and mark it as the most recently used. */
static struct session *session_find(struct tmesh_engine_context *context, const void *key,
				    size_t bytes)
{
	for (struct session **at = &context->sessions; *at; at = &(*at)->next) {
		struct session *session = *at;

		if (session->key_bytes != bytes || memcmp(session->key, key, bytes))
			continue;
		*at = session->next;
		session->next = context->sessions;
		context->sessions = session;
		return session;
	}
	return NULL;
}

/* Wait until another thread has opened the session, or return its error. Called with the lock,
 * which is released meanwhile. */
static int wait_for(struct tmesh_engine_context *context, struct session *session,
		    struct tmesh_error *err)
{
	int late = 0, rc = 0;

	/* A signal handler interrupted this thread's own opening. */
	if (session->opening && pthread_equal(session->owner, pthread_self()))
		return tmesh_fail(err, -EDEADLK, "this thread's own opening of %.150s waits below",
				  session->path);
	while (session->opening && !late && !rc) {
		late = cancel_cond_wait(&context->opened, &context->lock);
		rc = cancel_check(err);
	}
	if (session->opening && rc)
		return rc;
	if (session->opening)
		return tmesh_fail(err, -ETIMEDOUT,
				  "another call that opens %.150s did not end before the deadline: "
				  "give a later one",
				  session->path);
	if (session->failed == -ECANCELED || session->failed == -EDEADLK)
		return SESSION_AGAIN;
	if (session->failed)
		return tmesh_fail(err, session->failed, "%s", session->why.message);
	return 0;
}

/* Drop a graph from the session, with the lock. The last graph of a session that failed to open
 * moves it to @gone. */
static void leave(struct session *session, struct session **gone)
{
	if (--session->graphs || !session->failed)
		return;
	session->next = *gone;
	*gone = session;
}

/* Open a session and add it to the list. Called with the lock, which is released meanwhile. */
static int open_first(struct tmesh_engine_context *context, struct session *session,
		      const struct tmesh_engine_graph_opts *opts, const struct identity *identity,
		      struct tmesh_error *err)
{
	struct session **at;
	int rc;

	session->opening = true;
	session->owner = pthread_self();
	session->next = context->sessions;
	context->sessions = session;
	pthread_mutex_unlock(&context->lock);
	rc = session_open(context, session, opts, identity, &session->why);
	pthread_mutex_lock(&context->lock);
	session->opening = false;
	session->failed = rc;
	pthread_cond_broadcast(&context->opened);
	if (!rc) {
		atomic_fetch_add(&context->counters.sessions_opened, 1);
		return 0;
	}
	for (at = &context->sessions; *at != session; at = &(*at)->next)
		;
	*at = session->next;
	return tmesh_fail(err, rc, "%s", session->why.message);
}

/* Make a session that is not in the list. */
static int session_new(const char *path, const struct identity *identity,
		       const struct tmesh_engine_graph_opts *opts, struct session **out,
		       struct tmesh_error *err)
{
	struct session *session = calloc(1, sizeof(*session));
	int rc = 0;

	if (session)
		session->path = strdup(path);
	if (!session || !session->path)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a session");
	if (!rc)
		rc = make_key(identity, opts->weights, opts->weight_count, &session->key,
			      &session->key_bytes, err);
	for (size_t i = 0; !rc && i < opts->weight_count; i++)
		session->regions += !i || tmesh_tensor_region(opts->weights[i].tensor) !=
						  tmesh_tensor_region(opts->weights[i - 1].tensor);
	if (!rc) {
		*out = session;
		return 0;
	}
	if (session) {
		free(session->path);
		free(session->key);
	}
	free(session);
	return rc;
}

/* Use a session that is open or being opened. Called with the lock, which is released meanwhile. */
static int share(struct tmesh_engine_context *context, struct session *session,
		 struct session **gone, struct tmesh_error *err)
{
	int rc;

	session->graphs++;
	rc = wait_for(context, session, err);
	if (rc)
		leave(session, gone);
	else
		atomic_fetch_add(&context->counters.session_hits, 1);
	return rc;
}

/* Return the session in the list, or open @made. Called with the lock, which is released
 * meanwhile. */
static int get(struct tmesh_engine_context *context, struct session *made,
	       const struct tmesh_engine_graph_opts *opts, const struct identity *identity,
	       struct session **out, struct session **gone, struct tmesh_error *err)
{
	int rc = 0;

	*out = session_find(context, made->key, made->key_bytes);
	if (!*out) {
		sessions_look(context, gone);
		/* Another thread may have begun to open it meanwhile. */
		*out = session_find(context, made->key, made->key_bytes);
	}
	while (*out && (rc = share(context, *out, gone, err)) == SESSION_AGAIN)
		*out = session_find(context, made->key, made->key_bytes);
	if (*out) {
		made->next = *gone;
		*gone = made;
		return rc;
	}
	*out = made;
	made->graphs++;
	rc = open_first(context, made, opts, identity, err);
	if (rc)
		leave(made, gone);
	return rc;
}

int engine_session_get(struct tmesh_engine_context *context, const char *path,
		       const struct tmesh_engine_graph_opts *opts, struct session **out,
		       struct tmesh_error *err)
{
	struct session *made, *gone = NULL;
	struct identity identity;
	uint64_t before;
	int rc = 0;

	memset(&identity, 0, sizeof(identity));
	identity.flags = opts->flags;
	identity.weights = opts->weight_count;
	for (size_t i = 0; !rc && i < opts->weight_count; i++)
		rc = check_weight(opts->weights, i, err);
	if (!rc)
		rc = identify(path, &identity, err);
	if (!rc)
		rc = session_new(path, &identity, opts, &made, err);
	if (rc)
		return rc;
	before = deadline_enter(remote_deadline(context->remote));
	pthread_mutex_lock(&context->lock);
	rc = get(context, made, opts, &identity, out, &gone, err);
	pthread_mutex_unlock(&context->lock);
	deadline_enter(before);
	sessions_free(context, gone);
	return rc;
}

void engine_session_put(struct tmesh_engine_context *context, struct session *session)
{
	struct session *gone = NULL;

	pthread_mutex_lock(&context->lock);
	session->graphs--;
	sessions_look(context, &gone);
	evict(context, &gone);
	pthread_mutex_unlock(&context->lock);
	sessions_free(context, gone);
}

size_t engine_sessions_open(struct tmesh_engine_context *context)
{
	size_t count = 0;

	pthread_mutex_lock(&context->lock);
	for (const struct session *session = context->sessions; session; session = session->next)
		count += !session->opening;
	pthread_mutex_unlock(&context->lock);
	return count;
}

void engine_sessions_close(struct tmesh_engine_context *context)
{
	sessions_free(context, context->sessions);
}
