// SPDX-License-Identifier: MIT
/*
 * A sequence as one piece of memory: address space is reserved once, and its blocks' pages are
 * mapped into it, runs of neighbours at once. Nothing is copied. The mapping follows the table: it
 * shows no page that the sequence does not have. A handle's regions for other processes are here
 * too.
 */
#include "pages_internal.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Map blocks [from, to) on @device to their place in the view. */
static int map_run(struct tmesh_seq *seq, uint32_t device, uint32_t from, uint32_t to,
		   struct tmesh_error *err)
{
	const struct pages_shape *shape = &seq->pages->shape;
	uint32_t page = seq->table[from];
	struct tmesh_region *region = seq->pages->regions[page / shape->slab_pages][device];
	void *at = mmap(seq->views[device].addr + from * shape->page_bytes,
			(to - from) * shape->page_bytes, PROT_READ, MAP_SHARED | MAP_FIXED,
			tmesh_region_fd(region),
			(off_t)(page % shape->slab_pages * shape->page_bytes));

	if (at == MAP_FAILED)
		return tmesh_fail_errno(err, "mapping a sequence's blocks in a row");
	return 0;
}

static int map_blocks(struct tmesh_seq *seq, uint32_t device, uint32_t from, uint32_t to,
		      struct tmesh_error *err)
{
	const struct pages_shape *shape = &seq->pages->shape;
	uint32_t end;
	int rc = 0;

	if (from == to)
		return 0;
	for (uint32_t at = from; at < to && !rc; at = end) {
		end = at + 1;
		while (end < to && seq->table[end] == seq->table[end - 1] + 1 &&
		       seq->table[end] % shape->slab_pages)
			end++;
		rc = map_run(seq, device, at, end, err);
	}
	/* A forked child holds no pages, and must not see their later contents. */
	if (!rc && madvise(seq->views[device].addr + from * shape->page_bytes,
			   (to - from) * shape->page_bytes, MADV_DONTFORK))
		rc = tmesh_fail_errno(err, "mapping a sequence's blocks in a row");
	return rc;
}

/*
 * Unmap blocks from @from on, and reserve their addresses. If the process has as many mappings as
 * it may (vm.max_map_count), the kernel refuses the reservation but still unmaps: then the view
 * ends at @from. Return: 0, or a negative errno if they are still mapped.
 */
static int unmap_blocks(struct tmesh_seq *seq, uint32_t device, uint32_t from)
{
	struct seq_view *view = &seq->views[device];
	uint64_t page = seq->pages->shape.page_bytes;
	uint8_t *at = view->addr + from * page;

	if (from >= view->room ||
	    mmap(at, (view->room - from) * page, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
		return 0;
	if (munmap(at, (view->room - from) * page))
		return -errno;
	view->room = from;
	return 0;
}

int view_update(struct tmesh_seq *seq, uint32_t from, uint32_t to, struct tmesh_error *err)
{
	int rc = 0;

	for (uint32_t d = 0; d < seq->pages->shape.devices && !rc; d++)
		if (seq->views[d].addr)
			rc = map_blocks(seq, d, from, to, err);
	return rc;
}

int view_cut(struct tmesh_seq *seq, uint32_t count)
{
	int rc = 0;

	for (uint32_t d = 0; d < seq->pages->shape.devices && !rc; d++)
		if (seq->views[d].addr)
			rc = unmap_blocks(seq, d, count);
	return rc;
}

int view_has_room(const struct tmesh_seq *seq, uint32_t count, struct tmesh_error *err)
{
	for (uint32_t d = 0; d < seq->pages->shape.devices; d++)
		if (seq->views[d].addr && count > seq->views[d].room)
			return tmesh_fail(
				err, -EINVAL,
				"the sequence's view has room for %u blocks, not for %u: say "
				"at the first view how many tokens it will have, or fork the "
				"sequence",
				seq->views[d].room, count);
	return 0;
}

void view_free(struct tmesh_seq *seq)
{
	/* In a forked child others may live at the addresses. */
	for (uint32_t d = 0; d < TMESH_PAGES_MAX_DEVICES && seq->pages->life == model_life(); d++)
		if (seq->views[d].room)
			munmap(seq->views[d].addr,
			       seq->views[d].room * seq->pages->shape.page_bytes);
}

static uint64_t view_room(const struct tmesh_seq *seq, uint64_t max_tokens)
{
	uint32_t tokens = seq->pages->shape.page_tokens;

	return max_tokens / tokens + (max_tokens % tokens != 0);
}

static int view_new(struct tmesh_seq *seq, uint32_t device, uint64_t max_tokens,
		    struct tmesh_error *err)
{
	const struct pages_shape *shape = &seq->pages->shape;
	struct seq_view *view = &seq->views[device];
	uint64_t room = view_room(seq, max_tokens);
	uint8_t *addr;
	int rc;

	if (!room || room > TMESH_PAGES_MAX_SEQ || room < seq->count)
		return tmesh_fail(
			err, -EINVAL,
			"max_tokens is %llu: no tokens, more than a sequence can have, or "
			"fewer than it has",
			(unsigned long long)max_tokens);
	addr = pages_address_space(room * shape->page_bytes);
	if (!addr)
		return tmesh_fail_errno(err, "address space for a sequence in one piece");
	*view = (struct seq_view){.addr = addr, .room = (uint32_t)room};
	rc = map_blocks(seq, device, 0, seq->count, err);
	if (rc) {
		munmap(addr, room * shape->page_bytes);
		view->addr = NULL;
	}
	return rc;
}

int tmesh_seq_view(struct tmesh_seq *seq, uint32_t device, uint64_t max_tokens, const void **addr,
		   struct tmesh_error *err)
{
	int rc = pages_enter(seq->pages, err);

	if (rc)
		return rc;
	if (device >= seq->pages->shape.devices)
		rc = tmesh_fail(err, -EINVAL, "there is no device %u", device);
	else if (!seq->views[device].addr)
		rc = view_new(seq, device, max_tokens, err);
	else if (view_room(seq, max_tokens) > seq->views[device].room)
		rc = tmesh_fail(
			err, -EINVAL,
			"max_tokens is %llu, and the sequence has a view with room for %u "
			"blocks of %u tokens: give the first view the final number, or fork "
			"the sequence",
			(unsigned long long)max_tokens, seq->views[device].room,
			seq->pages->shape.page_tokens);
	if (!rc)
		*addr = seq->views[device].addr;
	pages_leave(seq->pages);
	return rc;
}

static int gather(struct tmesh_seq *seq, uint32_t device, struct tmesh_region **out,
		  struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "sequence"};
	const struct pages_shape *shape = &seq->pages->shape;
	struct tmesh_gather_extent *extents;
	int rc;

	if (device >= shape->devices || !seq->count)
		return tmesh_fail(err, -EINVAL,
				  "the pool has no device %u, or the sequence no block", device);
	extents = calloc(seq->count, sizeof(*extents));
	if (!extents)
		return tmesh_fail(err, -ENOMEM, "no memory for a list of %u blocks", seq->count);
	for (uint32_t i = 0; i < seq->count; i++)
		extents[i] = (struct tmesh_gather_extent){
			.region = seq->pages->regions[seq->table[i] / shape->slab_pages][device],
			.offset = seq->table[i] % shape->slab_pages * shape->page_bytes,
			.bytes = shape->page_bytes,
		};
	rc = tmesh_region_gather(seq->pages->ctx, extents, seq->count, TMESH_READ, &opts, out, err);
	free(extents);
	return rc;
}

int tmesh_seq_gather(struct tmesh_seq *seq, uint32_t device, struct tmesh_region **out,
		     struct tmesh_error *err)
{
	int rc = pages_enter(seq->pages, err);

	if (rc)
		return rc;
	rc = gather(seq, device, out, err);
	pages_leave(seq->pages);
	return rc;
}

int tmesh_pages_slab(struct tmesh_pages *pages, uint32_t slab, uint32_t device,
		     struct tmesh_region **out, struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	if (slab >= pages->slabs || device >= pages->shape.devices)
		rc = tmesh_fail(err, -EINVAL, "the pool has %u slabs on each of %u devices",
				pages->slabs, pages->shape.devices);
	else if (!pages->regions[slab][device])
		rc = tmesh_fail(err, -ENOENT, "this handle had no page of slab %u so far", slab);
	else
		*out = tmesh_region_ref(pages->regions[slab][device]);
	pages_leave(pages);
	return rc;
}

int tmesh_pages_lifeline(struct tmesh_pages *pages, struct tmesh_region **out,
			 struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = model_listener_region(pages->ctx, pages->socket.fd, "lifeline of pages", out, err);
	pages_leave(pages);
	return rc;
}
