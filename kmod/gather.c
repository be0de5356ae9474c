// SPDX-License-Identifier: GPL-2.0-only
/*
 * Gather views: a region that shows parts of other regions one after the other.
 *
 * A view lists pages of its sources and has no references on them. Instead it has a claim on each
 * source, which holds the source. A view is revoked when one of its sources is.
 */
#include <linux/bitmap.h>
#include <linux/file.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "account.h"
#include "account.h"
#include "claim.h"
#include "create.h"
#include "drain.h"
#include "gather.h"
#include "handle.h"
#include "mem.h"
#include "poison.h"
#include "region.h"
#include "revoke.h"
#include "trace.h"
#include "ucmd.h"

/**
 * struct tmesh_link - a view's claim on a source
 * @claim: on the source
 * @view:  the view; no reference: a view frees its links before it ends
 * @node:  in the view's list of links
 * @among: in the source's list @gathers; guarded by its claims_lock
 */
struct tmesh_link {
	struct tmesh_claim claim;
	struct tmesh_region *view;
	struct list_head node;
	struct list_head among;
};

/**
 * struct tmesh_view - the memory of a view
 * @mem:   the list of pages
 * @links: to its sources
 */
struct tmesh_view {
	struct tmesh_mem mem;
	struct list_head links;
};

/**
 * struct tmesh_source - a source of a view that is being created
 * @plain: the link shared by handles without a lease
 * @taken: bitmap of its pages that the view has already
 */
struct tmesh_source {
	struct tmesh_link *plain;
	unsigned long *taken;
};

/**
 * struct tmesh_part - adjacent pages of a source
 * @region: the source, which a link holds
 * @first:  first page
 * @nr:     number of pages
 */
struct tmesh_part {
	struct tmesh_region *region;
	unsigned long first;
	unsigned long nr;
};

/**
 * struct tmesh_gathering - a view that is being created
 * @view:     its region
 * @rights:   TMESH_RIGHT_READ, TMESH_RIGHT_WRITE
 * @by_fd:    links by descriptor, for the descriptors seen so far
 * @sources:  struct tmesh_source by the id of the region
 * @links:    to its sources
 * @parts:    the parts that it will show
 * @nr_parts: number of parts
 * @nr_pages: number of pages in all parts
 * @again:    number of extents that repeat a page
 * @user:     the user charged for @parts and for the bitmaps of @sources
 * @bytes:    their length
 * @charged:  the whole pages of @bytes
 */
struct tmesh_gathering {
	struct tmesh_region *view;
	u32 rights;
	struct xarray by_fd;
	struct xarray sources;
	struct list_head links;
	struct tmesh_part *parts;
	u32 nr_parts;
	unsigned long nr_pages;
	u32 again;
	struct tmesh_user *user;
	u64 bytes;
	u64 charged;
};

static struct tmesh_link *to_link(const struct tmesh_claim *claim)
{
	return container_of(claim, struct tmesh_link, claim);
}

/* Free links. Takes the claims_lock of each source in turn. */
static void tmesh_links_free(struct list_head *links)
{
	struct tmesh_link *link, *next;

	list_for_each_entry_safe(link, next, links, node) {
		tmesh_claim_fini(&link->claim);
		cond_resched();
	}
	INIT_LIST_HEAD(links);
}

static void tmesh_gather_release(struct tmesh_mem *mem)
{
	struct tmesh_view *view = container_of(mem, struct tmesh_view, mem);

	tmesh_links_free(&view->links);
	tmesh_mem_fini(mem);
	kfree(view);
}

/* Let each source look for bad pages. The links live as long as the memory. */
static void tmesh_gather_ask_sources(struct tmesh_mem *mem)
{
	struct tmesh_view *view = container_of(mem, struct tmesh_view, mem);
	const struct tmesh_link *link;

	list_for_each_entry(link, &view->links, node) {
		tmesh_poison_found(link->claim.region);
		cond_resched();
	}
}

static const struct tmesh_backing_ops tmesh_gather_ops = {
	.backing = TMESH_BACKING_GATHER,
	.borrowed = true,
	.release = tmesh_gather_release,
	.poisoned = tmesh_gather_ask_sources,
};

static void tmesh_gather_counted(struct tmesh_claim *claim, int by)
{
	struct tmesh_region *source = claim->region;

	lockdep_assert_held(&source->claims_lock);
	WRITE_ONCE(source->nr_gathers, source->nr_gathers + by);
	if (by > 0)
		list_add(&to_link(claim)->among, &source->gathers);
	else
		list_del(&to_link(claim)->among);
}

/*
 * Limit the views of a source: its revocation revokes all of them. The slots are shared fairly
 * among users.
 */
static int tmesh_gather_check(const struct tmesh_claim *claim, const struct tmesh_claim *through)
{
	const struct tmesh_region *source = claim->region;
	const struct tmesh_link *link;
	unsigned int foreign = 0, own = 0;

	lockdep_assert_held(&source->claims_lock);
	if (source->nr_gathers >= TMESH_GATHER_VIEWS)
		return -EDQUOT;
	if (uid_eq(claim->uid, source->uid))
		return 0;
	list_for_each_entry(link, &source->gathers, among) {
		foreign += !uid_eq(link->claim.uid, source->uid);
		own += uid_eq(link->claim.uid, claim->uid);
	}
	return tmesh_shared_fairly(TMESH_GATHER_VIEWS, foreign, own) ? 0 : -EDQUOT;
}

/*
 * Take a reference on the view of a link. The source's claims_lock keeps the view from freeing the
 * link. A view without references is ending.
 */
static struct tmesh_region *tmesh_gather_hold(const struct tmesh_claim *claim)
{
	struct tmesh_region *view = NULL;

	mutex_lock(&claim->region->claims_lock);
	if (!list_empty(&claim->node) && kref_get_unless_zero(&to_link(claim)->view->ref))
		view = to_link(claim)->view;
	mutex_unlock(&claim->region->claims_lock);
	return view;
}

/* Revoke the view, because its source was revoked or the lease of this link has lapsed. */
static void tmesh_gather_cut(struct tmesh_claim *claim)
{
	struct tmesh_region *view = tmesh_gather_hold(claim);

	if (!view)
		return;
	mutex_lock_nested(&view->cut_lock, SINGLE_DEPTH_NESTING);
	tmesh_revoke_all(view);
	mutex_unlock(&view->cut_lock);
	tmesh_region_put_later(view);
}

static void tmesh_gather_free(struct tmesh_claim *claim)
{
	kfree(to_link(claim));
}

/* Let the view look for bad pages, because its source has some. */
static void tmesh_gather_poisoned(const struct tmesh_claim *claim)
{
	struct tmesh_region *view = tmesh_gather_hold(claim);

	if (!view)
		return;
	tmesh_poison_found(view);
	tmesh_region_put_later(view);
}

static void tmesh_gather_describe(const struct tmesh_claim *claim, struct tmesh_holder *holder)
{
	holder->view = to_link(claim)->view->id;
}

static bool tmesh_gather_in_use(const struct tmesh_claim *claim)
{
	struct tmesh_region *view = to_link(claim)->view;
	bool in_use;

	mutex_lock(&view->uses_lock);
	in_use = !list_empty(&view->uses);
	mutex_unlock(&view->uses_lock);
	return in_use;
}

static const struct tmesh_claim_ops tmesh_gather_claim_ops = {
	.writes = true,
	.counted = tmesh_gather_counted,
	.check = tmesh_gather_check,
	.cut = tmesh_gather_cut,
	.free = tmesh_gather_free,
	.describe = tmesh_gather_describe,
	.poisoned = tmesh_gather_poisoned,
	.in_use = tmesh_gather_in_use,
};

/*
 * Charge memory that is freed at the end of the call, in whole pages, rounded down. The caller's
 * memory may stall the call for ever.
 */
static int tmesh_gather_charge(struct tmesh_gathering *g, u64 bytes)
{
	u64 charge = (g->bytes + bytes) & PAGE_MASK;
	int rc;

	rc = tmesh_exchange(g->user, TMESH_BYTES, g->charged, charge);
	if (rc)
		return rc;
	g->bytes += bytes;
	g->charged = charge;
	return 0;
}

static struct tmesh_source *tmesh_gather_source(struct tmesh_gathering *g,
						const struct tmesh_region *region)
{
	struct tmesh_source *source = xa_load(&g->sources, region->id);
	size_t longs = BITS_TO_LONGS(region->nr_pages);
	int rc;

	if (source)
		return source;
	rc = tmesh_gather_charge(g, longs * sizeof(long));
	if (rc)
		return ERR_PTR(rc);
	source = kzalloc(sizeof(*source), TMESH_GFP);
	if (!source)
		return ERR_PTR(-ENOMEM);
	rc = -ENOMEM;
	source->taken = kvcalloc(longs, sizeof(long), TMESH_GFP);
	if (!source->taken)
		goto free;
	rc = xa_err(xa_store(&g->sources, region->id, source, TMESH_GFP));
	if (!rc)
		return source;
	kvfree(source->taken);
free:
	kfree(source);
	return ERR_PTR(rc);
}

/* Link the view to the region of a handle. The link shares the handle's lease. */
static struct tmesh_link *tmesh_gather_link(struct tmesh_gathering *g,
					    const struct tmesh_handle *handle)
{
	const struct tmesh_claim *through = &handle->claim;
	struct tmesh_region *region = through->region;
	struct tmesh_source *source;
	struct tmesh_link *link;
	int rc;

	rc = tmesh_claim_allows(through, g->rights);
	if (rc)
		return ERR_PTR(rc);
	if (region->backing == TMESH_BACKING_GATHER)
		return ERR_PTR(-ELOOP);
	if (region->backing != TMESH_BACKING_PAGES)
		return ERR_PTR(-EOPNOTSUPP);
	source = tmesh_gather_source(g, region);
	if (IS_ERR(source))
		return ERR_CAST(source);
	if (source->plain && !READ_ONCE(through->lease))
		return source->plain;
	link = kzalloc(sizeof(*link), TMESH_GFP);
	if (!link)
		return ERR_PTR(-ENOMEM);
	tmesh_claim_init(&link->claim, &tmesh_gather_claim_ops, region, TMESH_HOLDER_GATHER,
			 g->rights, NULL);
	link->view = g->view;
	list_add_tail(&link->node, &g->links);
	rc = tmesh_claim_add(&link->claim, through);
	if (rc)
		return ERR_PTR(rc);
	if (!link->claim.lease)
		source->plain = link;
	return link;
}

/*
 * Return the link for a descriptor. Look each descriptor up once: another thread may replace it
 * meanwhile.
 */
static struct tmesh_link *tmesh_gather_resolve(struct tmesh_gathering *g, s32 fd)
{
	struct tmesh_link *link = xa_load(&g->by_fd, (u32)fd);
	const struct tmesh_handle *handle;
	struct file *file;
	int rc;

	if (link)
		return link;
	file = fget(fd);
	if (!file)
		return ERR_PTR(-EBADF);
	handle = tmesh_handle_of(file);
	link = handle ? tmesh_gather_link(g, handle) : ERR_PTR(-EINVAL);
	fput(file);
	if (IS_ERR(link))
		return link;
	rc = xa_err(xa_store(&g->by_fd, (u32)fd, link, TMESH_GFP));
	return rc ? ERR_PTR(rc) : link;
}

static int tmesh_gather_add(struct tmesh_gathering *g, const struct tmesh_extent *extent)
{
	unsigned long first = extent->offset >> PAGE_SHIFT, nr = extent->bytes >> PAGE_SHIFT;
	struct tmesh_part *last = g->nr_parts ? &g->parts[g->nr_parts - 1] : NULL;
	const struct tmesh_source *source;
	struct tmesh_region *region;
	struct tmesh_link *link;

	if (extent->pad || !nr || !PAGE_ALIGNED(extent->offset | extent->bytes))
		return -EINVAL;
	link = tmesh_gather_resolve(g, extent->handle);
	if (IS_ERR(link))
		return PTR_ERR(link);
	region = link->claim.region;
	if (first > region->nr_pages || nr > region->nr_pages - first)
		return -EINVAL;
	/* The length must also be a valid file size. */
	if (check_add_overflow(g->nr_pages, nr, &g->nr_pages) ||
	    g->nr_pages > LLONG_MAX >> PAGE_SHIFT)
		return -EINVAL;
	source = xa_load(&g->sources, region->id);
	if (find_next_bit(source->taken, first + nr, first) < first + nr) {
		if (g->rights & TMESH_RIGHT_WRITE)
			return -EINVAL;
		g->again++;
	}
	bitmap_set(source->taken, first, nr);
	if (last && last->region == region && last->first + last->nr == first)
		last->nr += nr;
	else
		g->parts[g->nr_parts++] = (struct tmesh_part){ region, first, nr };
	return 0;
}

static int tmesh_gather_read(struct tmesh_gathering *g, const struct tmesh_gather *cmd)
{
	struct tmesh_extent some[16];
	u32 done, n, i;
	int rc;

	for (done = 0; done < cmd->count; done += n) {
		n = min_t(u32, cmd->count - done, ARRAY_SIZE(some));
		if (copy_from_user(some, u64_to_user_ptr(cmd->extents) + done * sizeof(some[0]),
				   n * sizeof(some[0])))
			return -EFAULT;
		for (i = 0; i < n; i++) {
			rc = tmesh_gather_add(g, &some[i]);
			if (rc)
				return rc;
		}
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/*
 * Copy a part of a source's page list, in pieces: page faults need the source's lock. *@pmd becomes
 * false if the memory is not made of huge folios.
 */
static int tmesh_gather_copy(const struct tmesh_part *part, struct page **pages, bool *pmd)
{
	struct tmesh_region *region = part->region;
	unsigned long done, step;

	for (done = 0; done < part->nr; done += step) {
		if (fatal_signal_pending(current) || down_read_killable(&region->lock))
			return -EINTR;
		if (!region->mem) {
			up_read(&region->lock);
			return -ESTALE;
		}
		step = min_t(unsigned long, part->nr - done, TMESH_PIECE);
		memcpy(pages + done, region->mem->pages + part->first + done,
		       step * sizeof(*pages));
		*pmd = *pmd && region->mem->pmd;
		up_read(&region->lock);
		cond_resched();
	}
	return 0;
}

/*
 * Copy the page lists of the sources. If a source is revoked from now on, the view is revoked too,
 * so the copied pages are never used.
 */
static int tmesh_gather_fill(const struct tmesh_gathering *g, struct tmesh_mem *mem)
{
	bool pmd = IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) && mem->nr_pages >= TMESH_HUGE_PAGES;
	const struct tmesh_part *part;
	unsigned long done = 0;
	int rc;

	for (part = g->parts; part < g->parts + g->nr_parts; part++) {
		pmd = pmd && IS_ALIGNED(part->first, TMESH_HUGE_PAGES) &&
		      IS_ALIGNED(done, TMESH_HUGE_PAGES);
		rc = tmesh_gather_copy(part, mem->pages + done, &pmd);
		if (rc)
			return rc;
		done += part->nr;
	}
	/*
	 * A use takes one reference on a folio for each part. Without repeats there are at most
	 * TMESH_HUGE_PAGES parts of one folio.
	 */
	mem->named = g->rights & TMESH_RIGHT_WRITE ?
			     min_t(unsigned long, g->nr_parts, TMESH_HUGE_PAGES) : g->nr_parts;
	mem->pmd = pmd;
	mem->nr_huge = pmd ? mem->nr_pages / TMESH_HUGE_PAGES : 0;
	return 0;
}

static struct tmesh_mem *tmesh_gather_mem(struct tmesh_gathering *g, struct tmesh_user *user)
{
	struct tmesh_view *view;
	int rc;

	view = kzalloc(sizeof(*view), TMESH_GFP);
	if (!view)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&view->links);
	rc = tmesh_mem_init(&view->mem, &tmesh_gather_ops, user, g->nr_pages);
	if (rc)
		goto free;
	rc = tmesh_gather_fill(g, &view->mem);
	if (rc) {
		tmesh_mem_fini(&view->mem);
		goto free;
	}
	list_splice_init(&g->links, &view->links);
	return &view->mem;

free:
	kfree(view);
	return ERR_PTR(rc);
}

static int tmesh_gather_make(struct tmesh_gathering *g, const struct tmesh_gather *cmd,
			     struct tmesh_birth *birth)
{
	int rc;

	rc = tmesh_gather_charge(g, cmd->count * sizeof(*g->parts));
	if (rc)
		return rc;
	g->parts = kvmalloc_array(cmd->count, sizeof(*g->parts), TMESH_GFP);
	if (!g->parts)
		return -ENOMEM;
	rc = tmesh_gather_read(g, cmd);
	if (rc)
		return rc;
	g->view->nr_pages = g->nr_pages;
	g->view->bytes = (u64)g->nr_pages << PAGE_SHIFT;
	g->view->repeats = g->again ? g->again + 1 : 0;
	return tmesh_birth_handle(birth, tmesh_gather_mem(g, birth->user),
				  g->rights | TMESH_RIGHT_MANAGE);
}

/* Free the links that the view has not taken over before the view may end: they point to it. */
static void tmesh_gather_end(struct tmesh_gathering *g)
{
	struct tmesh_source *source;
	unsigned long id;

	tmesh_links_free(&g->links);
	xa_for_each(&g->sources, id, source) {
		kvfree(source->taken);
		kfree(source);
		cond_resched();
	}
	xa_destroy(&g->sources);
	xa_destroy(&g->by_fd);
	kvfree(g->parts);
	tmesh_uncharge(g->user, TMESH_BYTES, g->charged);
}

/**
 * tmesh_ioctl_gather() - TMESH_GATHER
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_gather(struct tmesh_ucmd *ucmd)
{
	struct tmesh_gather *cmd = ucmd->cmd;
	struct tmesh_spec spec = TMESH_SPEC(cmd);
	struct tmesh_gathering g = { .rights = cmd->rights };
	struct tmesh_birth birth;
	int rc;

	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	if (cmd->rights & TMESH_RIGHT_MANAGE || !cmd->count || cmd->count > TMESH_GATHER_MAX)
		return -EINVAL;
	/* The length is known after all parts have been read. */
	spec.bytes = 0;
	rc = tmesh_birth_begin(&birth, &spec);
	if (rc)
		return rc;
	g.view = birth.region;
	g.user = birth.user;
	tmesh_drain_init_view(g.view);
	INIT_LIST_HEAD(&g.links);
	xa_init_flags(&g.by_fd, XA_FLAGS_ACCOUNT);
	xa_init_flags(&g.sources, XA_FLAGS_ACCOUNT);
	rc = tmesh_gather_make(&g, cmd, &birth);
	if (!rc) {
		cmd->fd = birth.fd;
		cmd->id = g.view->id;
		cmd->bytes = g.view->bytes;
		rc = tmesh_respond(ucmd, sizeof(*cmd));
	}
	if (!rc)
		trace_tmesh_gather(cmd->id, cmd->bytes, g.nr_parts, cmd->rights);
	tmesh_gather_end(&g);
	return tmesh_birth_end(&birth, rc);
}
