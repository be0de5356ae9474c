// SPDX-License-Identifier: MIT
/*
 * Registrations: a region's mapping that the driver has pinned, once for all devices. Each device
 * has a pointer of its own to it. The driver is given pieces, since it refuses 512 GiB in one call.
 *
 * A registration that a thread is at work on is busy: the others that want the same region wait.
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

/* Unregister the first @bytes, the last piece first. The device's context is current. */
static void unpin(struct tmesh_cuda *cuda, const struct registration *r, uint64_t bytes)
{
	while (bytes) {
		bytes -= bytes % r->piece ? bytes % r->piece : r->piece;
		cuda->driver.host_unregister((char *)r->host + bytes);
	}
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
	uint64_t done = 0;
	int rc = cuda_enter(cuda, r->device, err);

	if (rc)
		return rc;
	rc = report_progress(opts, 0, r->bytes, err);
	while (!rc && done < r->bytes) {
		uint64_t now = least(r->piece, r->bytes - done);

		rc = cuda_check(cuda,
				cuda->driver.host_register((char *)r->host + done, now, flags),
				"cuMemHostRegister", err);
		if (rc)
			break;
		done += now;
		rc = report_progress(opts, done, r->bytes, err);
	}
	if (rc)
		unpin(cuda, r, done);
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
static struct registration *registration_find(struct tmesh_cuda *cuda, struct tmesh_region *region,
					      uint32_t rights)
{
	for (struct registration *r = cuda->registrations; r; r = r->next)
		if (r->region == region && !(rights & ~r->rights) && !r->lost)
			return r;
	return NULL;
}

/* Join the region's registration as one more user, or list @new, which is busy then. */
static struct registration *join(struct tmesh_cuda *cuda, struct registration *new)
{
	struct registration *r;

	pthread_mutex_lock(&cuda->lock);
	while ((r = registration_find(cuda, new->region, new->rights)) && r->busy)
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

void registration_drop(struct tmesh_cuda *cuda, struct registration *r)
{
	struct tmesh_region *region = r->region;
	bool last, lost;
	int rc;

	pthread_mutex_lock(&cuda->lock);
	last = --r->users == 0;
	lost = r->lost;
	r->busy |= last;
	pthread_mutex_unlock(&cuda->lock);
	if (!last)
		return;
	rc = lost ? -ECONNRESET : cuda_enter(cuda, r->device, NULL);
	/* A destroyed context took its registrations along. */
	if (rc != -ECONNRESET)
		unpin(cuda, r, r->bytes);
	if (!rc)
		cuda_leave(cuda);
	tmesh_region_unmap(region, r->rights);
	pthread_mutex_lock(&cuda->lock);
	unlist(cuda, r);
	pthread_mutex_unlock(&cuda->lock);
	free(r);
}

/* Finish a registration: others can use it from now on, or it never was. */
static void settle(struct tmesh_cuda *cuda, struct registration *r, bool made)
{
	pthread_mutex_lock(&cuda->lock);
	r->busy = false;
	if (made)
		pthread_cond_broadcast(&cuda->registered);
	else
		unlist(cuda, r);
	pthread_mutex_unlock(&cuda->lock);
}

static int make(struct tmesh_cuda *cuda, struct registration *r, unsigned int flags,
		const struct tmesh_cuda_register_opts *opts, struct tmesh_error *err)
{
	int rc = tmesh_region_map(r->region, r->rights, &r->host, err);

	if (!rc) {
		rc = pin(cuda, r, flags, opts, err);
		if (rc)
			tmesh_region_unmap(r->region, r->rights);
	}
	settle(cuda, r, !rc);
	return rc;
}

int registration_get(struct tmesh_cuda *cuda, struct tmesh_region *region, uint32_t rights,
		     unsigned int flags, const struct tmesh_cuda_register_opts *opts,
		     struct registration **out, struct tmesh_error *err)
{
	uint64_t page = tmesh_page_bytes();
	struct registration *new = calloc(1, sizeof(*new)), *r;
	int rc = 0;

	if (!new)
		return tmesh_fail(err, -ENOMEM, "no memory");
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
	if (r == new)
		rc = make(cuda, r, flags, opts, err);
	if (r != new || rc)
		free(new);
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
