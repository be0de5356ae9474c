// SPDX-License-Identifier: MIT
/* Regions: the rules that both backends share; ctx->ops has the backend's own operations. */
#include "common/foreign.h"
#include "held.h"
#include "tensor_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint32_t tmesh_region_rights(const struct tmesh_region *region)
{
	return region->rights;
}

uint64_t tmesh_region_bytes(const struct tmesh_region *region)
{
	return region->bytes;
}

uint64_t tmesh_region_id(const struct tmesh_region *region)
{
	return region->id;
}

bool tmesh_region_inherited(const struct tmesh_region *region)
{
	return region->life != tmesh_fork_life();
}

/* Return the region's lock. In a child it is the context's, which is known to be free: a thread of
 * the parent's may have held an inherited region's lock. */
static pthread_mutex_t *mutex_of(struct tmesh_region *region)
{
	return tmesh_region_inherited(region) ? &region->ctx->lock : &region->lock;
}

void tmesh_region_lock(struct tmesh_region *region)
{
	pthread_mutex_lock(mutex_of(region));
}

void tmesh_region_unlock(struct tmesh_region *region)
{
	pthread_mutex_unlock(mutex_of(region));
}

void tmesh_region_set_shared(struct tmesh_region *region)
{
	atomic_store_explicit(&region->shared, true, memory_order_relaxed);
}

int tmesh_region_may_here(struct tmesh_region *region, uint32_t rights, const char *what,
			  struct tmesh_error *err)
{
	uint32_t missing;

	if (TMESH_NEED(err, region))
		return -EINVAL;
	missing = rights & ~region->rights;
	if (tmesh_region_inherited(region))
		return tmesh_fail(err, -EPERM,
				  "%s: the region was inherited through fork(); open it in this "
				  "process, by a ref or token that was taken before the fork",
				  what);
	if (missing)
		return tmesh_fail(err, -EACCES, "%s: this handle does not have the right to%s%s%s",
				  what, missing & TMESH_READ ? " read" : "",
				  missing & TMESH_WRITE ? " write" : "",
				  missing & TMESH_MANAGE ? " manage" : "");
	if (tmesh_lease_lapsed_here(region))
		return tmesh_fail(err, -ESTALE, "%s: this handle's lease is over", what);
	return 0;
}

/* Check the rights. A private view is only for this process to map, read and write. */
int tmesh_region_may(struct tmesh_region *region, uint32_t rights, const char *what,
		     struct tmesh_error *err)
{
	if (region && region->private && !tmesh_region_inherited(region))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"%s: a private view belongs to this process alone; put its contents "
			"into a new region to share them",
			what);
	return tmesh_region_may_here(region, rights, what, err);
}

/* The huge pages of a region with align_huge. */
#define HUGE_BYTES ((uint64_t)2 << 20)

static int check_range(const struct tmesh_region *region, uint64_t offset, uint64_t bytes,
		       struct tmesh_error *err)
{
	if (offset > region->bytes || bytes > region->bytes - offset)
		return tmesh_fail(err, -EINVAL,
				  "%llu bytes at %llu are not inside the region's %llu",
				  (unsigned long long)bytes, (unsigned long long)offset,
				  (unsigned long long)region->bytes);
	return 0;
}

struct tmesh_region *tmesh_region_new(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	/* Not calloc(): glibc's goes past the thread's own free blocks, at 2 us more. */
	struct tmesh_region *region = malloc(sizeof(*region));

	if (!region) {
		tmesh_fail(err, -ENOMEM, "no memory for a region object");
		return NULL;
	}
	memset(region, 0, sizeof(*region));
	atomic_init(&region->refs, 1);
	pthread_mutex_init(&region->lock, NULL);
	region->copies = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
	region->ctx = ctx;
	region->life = tmesh_fork_life();
	region->forks = tmesh_fork_count();
	region->fd = region->memfd.device = region->memfd.revoke_pipe = -1;
	region->opts.node = -1;
	region->opts.mode = 0600;
	return region;
}

void tmesh_region_destroy(struct tmesh_region *region)
{
	tmesh_region_drop_mapping(region);
	tmesh_memfd_unguard(region);
	tmesh_lease_forget(region);
	/* Another file's may have its number. */
	if (region->fd >= 0 && (!region->memfd.ino || tmesh_memfd_has_file(region)))
		close(region->fd);
	tmesh_opaque_close(region);
	free(region->memfd.huge_map);
	pthread_rwlock_destroy(&region->copies);
	pthread_mutex_destroy(&region->lock);
	free(region);
}

void tmesh_region_publish(struct tmesh_region *region, struct tmesh_region **out)
{
	tmesh_ctx_ref(region->ctx);
	tmesh_live_add(region);
	*out = region;
}

/* Return the share of max_bytes that a region of @bytes uses. */
static uint64_t charge_of(uint64_t bytes)
{
	uint64_t page = tmesh_page_bytes();

	return (bytes + page - 1) & ~(page - 1);
}

static int charge(struct tmesh_ctx *ctx, uint64_t amount, struct tmesh_error *err)
{
	uint64_t used = atomic_load(&ctx->bytes_owned);
	uint64_t limit = atomic_load(&ctx->max_bytes);

	do {
		if (amount > limit || used > limit - amount)
			return tmesh_fail(err, -EDQUOT,
					  "%llu more bytes pass this context's limit of %llu "
					  "(max_bytes), of which %llu are in use",
					  (unsigned long long)amount, (unsigned long long)limit,
					  (unsigned long long)used);
	} while (!atomic_compare_exchange_weak(&ctx->bytes_owned, &used, used + amount));
	return 0;
}

/* Make a region object, and the backend's part of it. */
static int make_new(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
		    struct tmesh_region **out, struct tmesh_error *err)
{
	int rc = tmesh_spare_files(ctx, err);
	struct tmesh_region *region;

	if (rc)
		return rc;
	region = tmesh_region_new(ctx, err);
	if (!region)
		return -ENOMEM;
	strcpy(region->label, opts->label);
	region->opts = *opts;
	region->opts.label = region->label;
	region->rights = TMESH_RIGHTS_ALL;
	region->bytes = bytes;
	region->created = true;
	rc = ctx->ops->create(region, bytes, err);
	if (rc) {
		tmesh_region_destroy(region);
		return rc;
	}
	tmesh_count(ctx, COUNT_CREATED, 1);
	*out = region;
	return 0;
}

static int make_charged(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err)
{
	uint64_t amount = charge_of(bytes);
	int rc = charge(ctx, amount, err);

	if (rc)
		return rc;
	rc = make_new(ctx, bytes, opts, out, err);
	if (rc)
		atomic_fetch_sub(&ctx->bytes_owned, amount);
	else
		(*out)->charged = amount;
	return rc;
}

/* Make a region, or take one from the pool. The pool's region was charged for as many pages or, if
 * it has huge pages, for about as many. */
static int make(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
		struct tmesh_region **out, struct tmesh_error *err)
{
	int rc;

	*out = NULL;
	if (atomic_load(&ctx->bytes_owned) <= atomic_load(&ctx->max_bytes))
		*out = tmesh_region_pool_get(ctx, bytes, opts);
	if (*out) {
		atomic_fetch_add(&ctx->bytes_owned, charge_of(bytes) - (*out)->charged);
		(*out)->charged = charge_of(bytes);
		return 0;
	}
	rc = make_charged(ctx, bytes, opts, out, err);
	return tmesh_region_pool_yields(ctx, rc) ? make_charged(ctx, bytes, opts, out, err) : rc;
}

int tmesh_region_begin(struct tmesh_ctx *ctx, const struct tmesh_region_opts *opts,
		       struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = tmesh_ctx_enter(ctx, err);

	if (!rc)
		rc = tmesh_spare_files(ctx, err);
	if (rc)
		return rc;
	region = tmesh_region_new(ctx, err);
	if (!region)
		return -ENOMEM;
	strcpy(region->label, opts->label);
	region->opts = *opts;
	region->opts.label = region->label;
	*out = region;
	return 0;
}

int tmesh_region_opened(struct tmesh_region *region, int rc, struct tmesh_region **out)
{
	if (rc) {
		/* It may be another file that the other process handed over. */
		if (region->fd >= 0)
			close(region->fd);
		region->fd = -1;
		tmesh_region_destroy(region);
		return rc;
	}
	tmesh_count(region->ctx, COUNT_OPENED, 1);
	tmesh_region_publish(region, out);
	return 0;
}

int tmesh_region_create(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region_opts o;
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = tmesh_read_region_opts(opts, &o, err);
	if (rc)
		return rc;
	if (bytes == 0)
		return tmesh_fail(err, -EINVAL, "bytes is 0: a region has at least one byte");
	if (bytes > TMESH_BYTES_MAX)
		return tmesh_fail(err, -EOVERFLOW, "%llu bytes are more than a file can have",
				  (unsigned long long)bytes);
	rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = make(ctx, bytes, &o, &region, err);
	if (!rc)
		tmesh_region_publish(region, out);
	return rc;
}

int tmesh_region_from_memfd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			    const struct tmesh_region_opts *opts, struct tmesh_region **out,
			    struct tmesh_error *err)
{
	struct tmesh_region_opts o;
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = tmesh_read_region_opts(opts, &o, err);
	if (rc)
		return rc;
	if (o.flags & ~(uint32_t)(TMESH_REGION_GID | TMESH_REGION_NO_PIN))
		return tmesh_fail(err, -EINVAL,
				  "a region over a memfd takes only the flags GID and NO_PIN");
	rc = tmesh_region_begin(ctx, &o, &region, err);
	if (rc)
		return rc;
	return tmesh_region_opened(region, ctx->ops->from_memfd(region, fd, bytes, err), out);
}

struct tmesh_region *tmesh_region_ref(struct tmesh_region *region)
{
	atomic_fetch_add_explicit(&region->refs, 1, memory_order_relaxed);
	return region;
}

void tmesh_region_unref(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx;

	if (!region || atomic_fetch_sub_explicit(&region->refs, 1, memory_order_acq_rel) != 1)
		return;
	ctx = region->ctx;
	region->charged = tmesh_live_remove(region);
	if (!tmesh_region_inherited(region)) {
		tmesh_hold_forget(region);
		ctx->ops->release(region);
	}
	if (!tmesh_region_pool_put(region)) {
		atomic_fetch_sub(&ctx->bytes_owned, region->charged);
		tmesh_region_destroy(region);
	}
	tmesh_ctx_unref(ctx);
}

/* Prepare the region for copies into it, for as long as it lives. After that the lock need not be
 * held. */
static int write_ready(struct tmesh_region *region, bool mapped, struct tmesh_error *err)
{
	int rc;

	tmesh_region_lock(region);
	if (region->sealed)
		rc = tmesh_fail(err, -EPERM, "write: the region is sealed");
	else if (mapped)
		rc = tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, err);
	else
		rc = region->ctx->ops->write_ready(region, err);
	if (!rc)
		atomic_fetch_add(&region->writers, 1);
	tmesh_region_unlock(region);
	return rc;
}

static int write_now(struct tmesh_region *region, uint64_t offset, const void *data, uint64_t bytes,
		     bool mapped, struct tmesh_error *err)
{
	const struct tmesh_backend_ops *ops = region->ctx->ops;
	int rc = 0;

	if (mapped && ops->populate)
		rc = ops->populate(region, offset, bytes, err);
	if (mapped && !rc)
		tmesh_copy((uint8_t *)region->addr + offset, data, bytes);
	else if (!mapped)
		rc = ops->write_cold(region, offset, data, bytes, err);
	/* A mapping of memory that was taken and reads as zeros accepts writes that no process
	 * sees. */
	if (!rc && region->zeros && ops->events(region) & TMESH_EVENT_TAKEN)
		rc = tmesh_fail(err, -ESTALE,
				"write: the region was taken back, or this handle's lease is over");
	return rc;
}

/* Fill a part of the region. A seal waits for copies, so that it does not make the mapping
 * read-only under them. Nothing else waits: tokens and descriptors can be given meanwhile. */
int tmesh_region_fill(struct tmesh_region *region, uint64_t offset, const void *data,
		      uint64_t bytes, struct tmesh_error *err)
{
	bool mapped = region->warm || region->memfd.align_huge || region->private;
	int rc;

	pthread_rwlock_rdlock(&region->copies);
	rc = write_ready(region, mapped, err);
	if (!rc) {
		rc = write_now(region, offset, data, bytes, mapped, err);
		atomic_fetch_sub(&region->writers, 1);
	}
	pthread_rwlock_unlock(&region->copies);
	return rc;
}

int tmesh_region_pack(struct tmesh_region *region, uint64_t offset, const void *data,
		      const struct tmesh_layout *layout, uint64_t bytes, struct tmesh_error *err)
{
	int rc;

	pthread_rwlock_rdlock(&region->copies);
	rc = write_ready(region, true, err);
	if (!rc) {
		if (region->ctx->ops->populate)
			rc = region->ctx->ops->populate(region, offset, bytes, err);
		if (!rc)
			tmesh_pack((uint8_t *)region->addr + offset, data, layout);
		atomic_fetch_sub(&region->writers, 1);
	}
	pthread_rwlock_unlock(&region->copies);
	return rc;
}

int tmesh_region_populate(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			  struct tmesh_error *err)
{
	int rc = tmesh_region_may_here(region, TMESH_WRITE, "populate", err);

	if (!rc)
		rc = check_range(region, offset, bytes, err);
	if (!rc && bytes && region->sealed)
		rc = tmesh_fail(err, -EPERM, "populate: the region is sealed");
	if (rc || bytes == 0 || !region->ctx->ops->populate)
		return rc;
	if (region->memfd.align_huge) {
		bytes = (offset + bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
		offset = offset / HUGE_BYTES * HUGE_BYTES;
		bytes -= offset;
	}
	/* From now on the caller decides which pages are taken. */
	atomic_store(&region->memfd.prepared, true);
	pthread_rwlock_rdlock(&region->copies);
	rc = write_ready(region, true, err);
	if (!rc) {
		rc = region->ctx->ops->populate(region, offset, bytes, err);
		atomic_fetch_sub(&region->writers, 1);
	}
	pthread_rwlock_unlock(&region->copies);
	return rc;
}

int tmesh_region_write(struct tmesh_region *region, uint64_t offset, const void *data,
		       uint64_t bytes, struct tmesh_error *err)
{
	int rc = tmesh_region_may_here(region, TMESH_WRITE, "write", err);

	if (!rc)
		rc = check_range(region, offset, bytes, err);
	if (!rc && bytes)
		rc = TMESH_NEED(err, data);
	if (rc || bytes == 0)
		return rc;
	rc = tmesh_region_fill(region, offset, data, bytes, err);
	if (!rc)
		tmesh_count_copy(region->ctx, bytes);
	return rc;
}

/* Read by the mapping, which alone has a private view's own pages. The view is pinned, so reading
 * raises no signal. */
static int read_mapped(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		       struct tmesh_error *err)
{
	int rc;

	tmesh_region_lock(region);
	rc = tmesh_region_map_locked(region, PROT_READ, err);
	tmesh_region_unlock(region);
	if (!rc)
		memcpy(data, (const char *)region->addr + offset, bytes);
	return rc;
}

int tmesh_region_fetch(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		       struct tmesh_error *err)
{
	int rc = tmesh_region_may_here(region, TMESH_READ, "read", err);

	if (!rc)
		rc = check_range(region, offset, bytes, err);
	if (!rc && bytes)
		rc = TMESH_NEED(err, data);
	if (rc || bytes == 0)
		return rc;
	if (region->private)
		rc = read_mapped(region, offset, data, bytes, err);
	else
		rc = region->ctx->ops->read(region, offset, data, bytes, err);
	return rc;
}

int tmesh_region_read(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		      struct tmesh_error *err)
{
	int rc = tmesh_region_fetch(region, offset, data, bytes, err);

	if (!rc && bytes)
		tmesh_count_copy(region->ctx, bytes);
	return rc;
}

int tmesh_region_seal(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc = tmesh_region_may(region, TMESH_MANAGE, "seal", err);

	if (rc)
		return rc;
	pthread_rwlock_wrlock(&region->copies);
	tmesh_region_lock(region);
	if (!region->sealed) {
		rc = region->ctx->ops->seal(region, err);
		if (!rc)
			region->sealed = true;
	}
	tmesh_region_unlock(region);
	pthread_rwlock_unlock(&region->copies);
	return rc;
}

bool tmesh_region_is_sealed(struct tmesh_region *region)
{
	if (!region->private && !region->sealed && region->ctx->ops->is_sealed(region))
		region->sealed = true;
	return region->sealed;
}

int tmesh_region_revoke_id(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_error *err)
{
	int rc = tmesh_ctx_enter(ctx, err);

	if (rc)
		return rc;
	if (!ctx->ops->revoke_id)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "revoke region %016" PRIx64 ": memory of a memfd cannot be taken "
				  "back by its id; it needs the module",
				  id);
	return ctx->ops->revoke_id(ctx, id, err);
}

int tmesh_region_revoke(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc = tmesh_region_may(region, TMESH_MANAGE, "revoke", err);

	return rc ? rc : region->ctx->ops->revoke(region, err);
}

int tmesh_region_reclaim(struct tmesh_region *region, int64_t timeout_ns,
			 struct tmesh_reclaim_report *report, struct tmesh_error *err)
{
	struct tmesh_reclaim_report there;
	int rc = tmesh_region_may(region, TMESH_MANAGE, "reclaim", err), wrote = 0;

	if (rc)
		return rc;
	rc = region->ctx->ops->reclaim(region, timeout_ns < 0 ? INT64_MAX : (uint64_t)timeout_ns,
				       &there, err);
	if (report && (!rc || rc == -ETIMEDOUT || rc == -EINTR))
		wrote = tmesh_write_sized(report, &there, sizeof(there), err);
	return wrote ? wrote : rc;
}

int tmesh_region_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			 struct tmesh_error *err)
{
	const uint32_t awaited = TMESH_EVENT_TAKEN | TMESH_EVENT_ALONE | TMESH_EVENT_POISONED;

	if (TMESH_NEED(err, region, wait))
		return -EINVAL;
	if (!events || (events & ~awaited))
		return tmesh_fail(err, -EINVAL,
				  "poll: events 0x%x are not made of TMESH_EVENT_TAKEN, "
				  "TMESH_EVENT_ALONE and TMESH_EVENT_POISONED",
				  events);
	if (tmesh_region_inherited(region))
		return tmesh_region_may(region, 0, "poll", err);
	return region->ctx->ops->poll_fd(region, events, wait, err);
}

uint32_t tmesh_region_events(struct tmesh_region *region)
{
	return region->ctx->ops->events(region);
}

int tmesh_region_export_dmabuf(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			       uint32_t rights, int *fd, struct tmesh_error *err)
{
	uint64_t page = tmesh_page_bytes();
	int rc;

	if (rights != TMESH_READ && rights != (TMESH_READ | TMESH_WRITE))
		return tmesh_fail(
			err, -EINVAL,
			"export: rights 0x%x are neither TMESH_READ nor TMESH_READ | TMESH_WRITE",
			rights);
	rc = tmesh_region_may(region, rights, "export", err);
	if (!rc)
		rc = TMESH_NEED(err, fd);
	if (rc)
		return rc;
	if (offset % page || bytes % page)
		return tmesh_fail(err, -EINVAL,
				  "export: offset %llu and length %llu are not whole pages",
				  (unsigned long long)offset, (unsigned long long)bytes);
	if (offset >= region->alloc || bytes > region->alloc - offset)
		return tmesh_fail(err, -EINVAL,
				  "export: %llu bytes at %llu are not inside the region's %llu",
				  (unsigned long long)bytes, (unsigned long long)offset,
				  (unsigned long long)region->alloc);
	bytes = bytes ? bytes : region->alloc - offset;
	rc = region->ctx->ops->export_dmabuf(region, offset, bytes, rights, fd, err);
	if (tmesh_region_pool_yields(region->ctx, rc))
		rc = region->ctx->ops->export_dmabuf(region, offset, bytes, rights, fd, err);
	if (!rc)
		tmesh_region_set_shared(region);
	return rc;
}

int tmesh_region_token(struct tmesh_region *region, uint32_t rights, char *token,
		       struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, token);

	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_region_may(region, rights, "token", err);
	if (!rc)
		rc = tmesh_refuse_sealed_gift(region, rights, "token", err);
	if (rc)
		return rc;
	rc = region->ctx->ops->token(region, rights, token, err);
	if (tmesh_region_pool_yields(region->ctx, rc))
		rc = region->ctx->ops->token(region, rights, token, err);
	if (!rc && !(rights == TMESH_READ && region->lent))
		tmesh_region_set_shared(region);
	return rc;
}

static int open_new(struct tmesh_ctx *ctx, const struct tmesh_token_fields *token, uint32_t rights,
		    struct tmesh_question *question, struct tmesh_region **out,
		    struct tmesh_error *err)
{
	int rc = tmesh_spare_files(ctx, err);
	struct tmesh_region *region;

	if (rc)
		return rc;
	region = tmesh_region_new(ctx, err);
	if (!region)
		return -ENOMEM;
	region->rights = rights;
	region->question = question;
	rc = ctx->ops->open_token(region, token, rights, err);
	region->question = NULL;
	return tmesh_region_opened(region, rc, out);
}

int tmesh_region_open(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
		      struct tmesh_region **out, struct tmesh_error *err)
{
	return tmesh_region_open_asking(ctx, token, rights, NULL, out, err);
}

int tmesh_region_open_asking(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
			     struct tmesh_question *question, struct tmesh_region **out,
			     struct tmesh_error *err)
{
	struct tmesh_token_fields parts;
	int rc = TMESH_NEED(err, ctx, token, out);

	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_token_parse(token, &parts, err);
	if (!rc && parts.backend != ctx->ops->backend)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"the token is of the %s backend and this context of %s; open a "
				"context with that backend",
				tmesh_backend_name(parts.backend),
				tmesh_backend_name(ctx->ops->backend));
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (rc)
		return rc;
	rc = open_new(ctx, &parts, rights, question, out, err);
	return tmesh_region_pool_yields(ctx, rc) ? open_new(ctx, &parts, rights, question, out, err)
						 : rc;
}

int tmesh_region_set_description(struct tmesh_region *region, const char *text,
				 struct tmesh_error *err)
{
	size_t bytes = text ? strnlen(text, TMESH_DESCRIPTION_LEN + 1) : 0;
	int rc = tmesh_region_may(region, TMESH_MANAGE, "describe", err);

	if (rc)
		return rc;
	if (bytes > TMESH_DESCRIPTION_LEN)
		return tmesh_fail(err, -EINVAL, "the description is longer than %d bytes",
				  TMESH_DESCRIPTION_LEN);
	tmesh_region_lock(region);
	if (region->sealed)
		rc = tmesh_refuse_description(region, err);
	else
		rc = region->ctx->ops->set_description(region, text, (uint32_t)bytes, err);
	tmesh_region_unlock(region);
	return rc;
}

int tmesh_region_info(struct tmesh_region *region, struct tmesh_region_info *info,
		      struct tmesh_error *err)
{
	struct tmesh_region_info *all;
	int rc = TMESH_NEED(err, region, info);

	if (rc)
		return rc;
	all = calloc(1, sizeof(*all));
	if (!all)
		return tmesh_fail(err, -ENOMEM, "no memory to describe the region");
	rc = region->ctx->ops->info(region, all, err);
	if (!rc)
		rc = tmesh_write_sized(info, all, sizeof(*all), err);
	free(all);
	return rc;
}

int tmesh_region_fd(struct tmesh_region *region)
{
	int rc = TMESH_NEED(NULL, region);

	if (rc)
		return rc;
	if (tmesh_region_inherited(region))
		return -EPERM;
	tmesh_region_set_shared(region);
	if (region->ctx->ops->fd_told)
		rc = region->ctx->ops->fd_told(region, NULL);
	return rc ? rc : region->fd;
}
