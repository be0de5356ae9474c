// SPDX-License-Identifier: MIT
/*
 * Registrations: a region's mapping that the driver has pinned, once for all devices. Each device
 * has a pointer of its own to it. A process has one mapping of a region, whatever its rights, and
 * the driver pins it once. The driver is given pieces, since it refuses 512 GiB in one call.
 *
 * A registration that a thread is at work on is busy: the others that want the same region wait.
 *
 * A registration that the driver does not end stays mapped, because the driver could still use its
 * pages. It is ended later: by the watcher, before the next registration, or with the library.
 */
#include "internal.h"

#define PIECE_BYTES (64ull << 30)
#define PIECE_ALIGN (2ull << 20) /* a huge page is not cut */

struct registration {
	struct registration *next;
	struct tmesh_region *region; /* its users have references on it */
	uint32_t rights;	     /* of the mapping */
	void *host;
	uint64_t bytes, piece;
	int device; /* the device whose context made it */
	unsigned int users;
	bool busy, lost;
	bool ending;	 /* it has no users, and the driver did not end it yet */
	uint64_t pinned; /* so many bytes are registered, from the first on */
};

static uint64_t piece_of(uint64_t asked)
{
	uint64_t piece = asked ? asked : PIECE_BYTES;

	return piece > UINT64_MAX - PIECE_ALIGN ? PIECE_BYTES
						: (piece + PIECE_ALIGN - 1) & ~(PIECE_ALIGN - 1);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Return whether a call that returned @rc has left the memory without a registration. */
static bool is_unregistered(cu_result rc)
{
	return rc == CU_HOST_NOT_REGISTERED || cuda_work_has_ended(rc);
}

/* Unregister the pieces, the last one first. The device's context is current. */
static int unpin(struct tmesh_cuda *cuda, struct registration *r, struct tmesh_error *err)
{
	while (r->pinned) {
		uint64_t last = r->pinned % r->piece ? r->pinned % r->piece : r->piece;
		cu_result rc = cuda->driver.host_unregister((char *)r->host + r->pinned - last);

		if (!is_unregistered(rc))
			return cuda_check(cuda, rc, "cuMemHostUnregister", err);
		r->pinned -= last;
	}
	return 0;
}

static int report_progress(const struct tmesh_cuda_register_opts *opts, uint64_t done,
			   uint64_t bytes, struct tmesh_error *err)
{
	if (!opts->progress || !opts->progress(opts->data, done, bytes))
		return 0;
	return tmesh_fail(err, -ECANCELED,
			  "register: cancelled by the caller after %llu of %llu bytes",
			  (unsigned long long)done, (unsigned long long)bytes);
}

static int pin(struct tmesh_cuda *cuda, struct registration *r, unsigned int flags,
	       const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	int rc = cuda_enter(cuda, r->device, err);

	if (rc)
		return rc;
	rc = report_progress(opts, 0, r->bytes, err);
	while (!rc && r->pinned < r->bytes) {
		uint64_t now = least(r->piece, r->bytes - r->pinned);

		rc = cuda_check(cuda,
				cuda->driver.host_register((char *)r->host + r->pinned, now, flags),
				"cuMemHostRegister", err);
		if (rc)
			break;
		r->pinned += now;
		rc = report_progress(opts, r->pinned, r->bytes, err);
	}
	cuda_leave(cuda);
	return rc;
}

/* Under the lock. */
static void unlist(struct tmesh_cuda *cuda, struct registration *r)
{
	struct registration **at = &cuda->registrations;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	pthread_cond_broadcast(&cuda->registered);
}

/* Under the lock. */
static struct registration *registration_find(struct tmesh_cuda *cuda, struct tmesh_region *region)
{
	for (struct registration *r = cuda->registrations; r; r = r->next)
		if (r->region == region && !r->lost && !r->ending)
			return r;
	return NULL;
}

/* Join the region's registration as one more user, or list @new, which is busy then. */
static struct registration *join(struct tmesh_cuda *cuda, struct registration *new)
{
	struct registration *r;

	pthread_mutex_lock(&cuda->lock);
	while ((r = registration_find(cuda, new->region)) && r->busy)
		pthread_cond_wait(&cuda->registered, &cuda->lock);
	if (!r) {
		r = new;
		r->next = cuda->registrations;
		cuda->registrations = r;
	}
	r->users++;
	pthread_mutex_unlock(&cuda->lock);
	return r;
}

/* Return whether the registration is lost with its context, for all devices. */
static bool is_lost(struct tmesh_cuda *cuda, struct registration *r)
{
	if (cuda_check_context(cuda, r->device, NULL) != -ECONNRESET)
		return false;
	pthread_mutex_lock(&cuda->lock);
	r->lost = true;
	pthread_mutex_unlock(&cuda->lock);
	return true;
}

/* End the registration in its context. The driver lists CUDA_ERROR_INVALID_CONTEXT for
 * cuMemHostUnregister(), so the call is not made without one. */
static int end_pins(struct tmesh_cuda *cuda, struct registration *r, struct tmesh_error *err)
{
	int rc = r->lost || !r->pinned ? -ECONNRESET : cuda_enter(cuda, r->device, err);

	/* A destroyed context took its registrations along, and a broken one uses no pages. */
	if (rc)
		return rc == -ECONNRESET || cuda_is_broken(rc) ? 0 : rc;
	rc = unpin(cuda, r, err);
	cuda_leave(cuda);
	return rc;
}

/* End a busy registration without users, and free it. False: it stays, for another try. */
static bool end(struct tmesh_cuda *cuda, struct registration *r, struct tmesh_error *why)
{
	struct tmesh_region *region = r->region;
	bool was = r->ending;
	int rc = end_pins(cuda, r, why);

	if (rc && !was) {
		/* Its users have gone, and the mapping has to stay. */
		tmesh_region_ref(region);
		cuda_log(cuda, TMESH_LOG_WARN,
			 "%llu bytes stay registered with GPU %d, which is tried again: %s",
			 (unsigned long long)r->pinned, r->device, why->message);
	}
	if (!rc)
		tmesh_region_unmap(region, r->rights);
	pthread_mutex_lock(&cuda->lock);
	r->busy = false;
	r->ending = rc != 0;
	cuda->ending += (int)r->ending - (int)was;
	if (!rc)
		unlist(cuda, r);
	else
		pthread_cond_broadcast(&cuda->registered);
	pthread_mutex_unlock(&cuda->lock);
	if (rc)
		return false;
	free(r);
	if (was)
		tmesh_region_unref(region);
	return true;
}

/* End it, at once or later. */
static void end_soon(struct tmesh_cuda *cuda, struct registration *r)
{
	struct tmesh_error why = {0};

	if (!end(cuda, r, &why))
		watch_again(cuda);
}

void registration_drop(struct tmesh_cuda *cuda, struct registration *r)
{
	bool last;

	pthread_mutex_lock(&cuda->lock);
	last = --r->users == 0;
	r->busy |= last;
	pthread_mutex_unlock(&cuda->lock);
	if (last)
		end_soon(cuda, r);
}

/* Find a registration that is to be ended, of @region or of any, behind @skip others. Under the
 * lock. */
static struct registration *find_ending(struct tmesh_cuda *cuda, const struct tmesh_region *region,
					unsigned int skip)
{
	for (struct registration *r = cuda->ending ? cuda->registrations : NULL; r; r = r->next)
		if (r->ending && (!region || r->region == region) && !skip--)
			return r;
	return NULL;
}

bool registrations_end(struct tmesh_cuda *cuda)
{
	unsigned int stay = 0;
	struct registration *r;

	for (;;) {
		struct tmesh_error why;
		bool busy;

		pthread_mutex_lock(&cuda->lock);
		r = find_ending(cuda, NULL, stay);
		busy = r && r->busy;
		if (r)
			r->busy = true;
		pthread_mutex_unlock(&cuda->lock);
		if (!r)
			return !stay;
		stay += busy || !end(cuda, r, &why);
	}
}

/* End what is left of earlier registrations of the region, whose mapping has one address. */
static int end_earlier(struct tmesh_cuda *cuda, const struct tmesh_region *region,
		       struct tmesh_error *err)
{
	struct tmesh_error why = {0};
	struct registration *r;
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	while (!rc && (r = find_ending(cuda, region, 0))) {
		if (r->busy) {
			pthread_cond_wait(&cuda->registered, &cuda->lock);
			continue;
		}
		r->busy = true;
		pthread_mutex_unlock(&cuda->lock);
		if (!end(cuda, r, &why))
			rc = tmesh_fail(err, -EBUSY,
					"register: an earlier registration of the region has not "
					"ended; try again: %.120s",
					why.message);
		pthread_mutex_lock(&cuda->lock);
	}
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

/* Let others use the registration from now on. */
static void settle(struct tmesh_cuda *cuda, struct registration *r)
{
	pthread_mutex_lock(&cuda->lock);
	r->busy = false;
	pthread_cond_broadcast(&cuda->registered);
	pthread_mutex_unlock(&cuda->lock);
}

/* Map and pin the region. If that fails, @r is gone. */
static int make(struct tmesh_cuda *cuda, struct registration *r, unsigned int flags,
		const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	int rc = tmesh_region_map(r->region, r->rights, &r->host, err);

	if (rc) {
		pthread_mutex_lock(&cuda->lock);
		unlist(cuda, r);
		pthread_mutex_unlock(&cuda->lock);
		free(r);
		return rc;
	}
	rc = pin(cuda, r, flags, opts, err);
	if (!rc) {
		settle(cuda, r);
		return 0;
	}
	/* Others wait for it, and none has it. */
	r->users = 0;
	end_soon(cuda, r);
	return rc;
}

int registration_get(struct tmesh_cuda *cuda, struct tmesh_region *region, uint32_t rights,
		     unsigned int flags, const struct tmesh_cuda_register_opts *opts,
		     struct registration **out, struct tmesh_error *err)
{
	uint64_t page = tmesh_page_bytes();
	struct registration *new = calloc(1, sizeof(*new)), *r;
	int rc = new ? end_earlier(cuda, region, err) : tmesh_fail(err, -ENOMEM, "no memory");

	if (rc) {
		free(new);
		return rc;
	}
	/* In whole pages: the mapping has them, and the driver pins no less. */
	*new = (struct registration){
		.region = region,
		.rights = rights,
		.bytes = (tmesh_region_bytes(region) + page - 1) & ~(page - 1),
		.piece = piece_of(opts->piece_bytes),
		.device = opts->device,
		.busy = true,
	};
	while ((r = join(cuda, new)) != new &&is_lost(cuda, r))
		registration_drop(cuda, r);
	if (r == new) {
		rc = make(cuda, r, flags, opts, err);
	} else {
		free(new);
		if (rights & ~r->rights) {
			rc = tmesh_fail(err, -EBUSY,
					"register: this process has registered the region for "
					"reading alone: release that first, or register it for "
					"writing at first");
			registration_drop(cuda, r);
		}
	}
	if (!rc)
		*out = r;
	return rc;
}

/* Check that the driver maps it as one range, as kernels expect. */
static int in_one_range(struct tmesh_cuda *cuda, const struct registration *r, cu_ptr first,
			struct tmesh_error *err)
{
	for (uint64_t at = r->piece; at < r->bytes; at += r->piece) {
		cu_ptr next;
		int rc = cuda_check(
			cuda, cuda->driver.host_device_pointer(&next, (char *)r->host + at, 0),
			"cuMemHostGetDevicePointer", err);

		if (rc)
			return rc;
		if (next != first + at)
			return tmesh_fail(err, -EOPNOTSUPP,
					  "register: the device does not address the pieces of "
					  "%llu bytes in one range: make smaller regions",
					  (unsigned long long)r->piece);
	}
	return 0;
}

int registration_pointer(struct tmesh_cuda *cuda, const struct registration *r, int device,
			 cu_ptr *pointer, struct tmesh_error *err)
{
	int rc = cuda_enter(cuda, device, err);

	if (rc)
		return rc;
	rc = cuda_check(cuda, cuda->driver.host_device_pointer(pointer, r->host, 0),
			"cuMemHostGetDevicePointer", err);
	if (!rc)
		rc = in_one_range(cuda, r, *pointer, err);
	cuda_leave(cuda);
	return rc;
}

uint32_t registration_rights(const struct registration *r)
{
	return r->rights;
}

void *registration_host(const struct registration *r)
{
	return r->host;
}

uint64_t registration_piece(const struct registration *r)
{
	return least(r->piece, r->bytes);
}
