// SPDX-License-Identifier: GPL-2.0-only
/*
 * Introspection: fdinfo of handles, files in debugfs, tracepoints.
 */
#include <linux/cred.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/seq_file.h>

#include "account.h"
#include "backing.h"
#include "claim.h"
#include "debug.h"
#include "keep.h"
#include "lease.h"
#include "lease_end.h"
#include "region.h"
#include "registry.h"
#include "lease_expiry.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static struct dentry *debug_dir;

/* Print rights in the form "rw-". */
static void tmesh_show_rights(struct seq_file *m, u32 rights)
{
	seq_putc(m, rights & TMESH_RIGHT_READ ? 'r' : '-');
	seq_putc(m, rights & TMESH_RIGHT_WRITE ? 'w' : '-');
	seq_putc(m, rights & TMESH_RIGHT_MANAGE ? 'm' : '-');
}

static const char *tmesh_state_name(u32 state)
{
	if (state & TMESH_STATE_REVOKED)
		return "revoked";
	if (state & TMESH_STATE_LAPSED)
		return "lapsed";
	if (state & TMESH_STATE_POISONED)
		return "poisoned";
	return state & TMESH_STATE_SEALED ? "sealed" : "live";
}

/* Print a label as one word. User space chose it, so escape white space. */
static void tmesh_show_label(struct seq_file *m, const char *label)
{
	seq_escape(m, *label ? label : "-", " \t\n\\");
}

/**
 * tmesh_show_fdinfo() - describe a handle in /proc/PID/fdinfo
 * @m:    the file to print to
 * @file: the handle
 */
void tmesh_show_fdinfo(struct seq_file *m, struct file *file)
{
	const struct tmesh_handle *handle = file->private_data;
	const struct tmesh_claim *claim = &handle->claim;
	const struct tmesh_region *region = claim->region;
	u32 state = READ_ONCE(region->state);
	u64 lease_ns, left_ns;

	if (tmesh_claim_lapsed(claim))
		state |= TMESH_STATE_LAPSED;
	seq_printf(m, "tmesh-region:\t%llu\n", region->id);
	seq_puts(m, "tmesh-label:\t");
	tmesh_show_label(m, region->label);
	seq_puts(m, "\ntmesh-rights:\t");
	tmesh_show_rights(m, claim->rights);
	seq_printf(m, "\ntmesh-pinning:\t%d\n", claim->kind == TMESH_HOLDER_PINNING);
	seq_printf(m, "tmesh-state:\t%s\n", tmesh_state_name(state));
	seq_printf(m, "tmesh-bytes:\t%llu\n", region->bytes);
	seq_printf(m, "tmesh-alloc-bytes:\t%llu\n", (u64)region->nr_pages << PAGE_SHIFT);
	seq_printf(m, "tmesh-huge-bytes:\t%llu\n", region->huge_bytes);
	seq_printf(m, "tmesh-pinned-bytes:\t%llu\n", (u64)READ_ONCE(region->pinned) << PAGE_SHIFT);
	seq_printf(m, "tmesh-cgroup-id:\t%llu\n", region->cgroup_id);
	seq_printf(m, "tmesh-mappings:\t%d\n", atomic_read(&claim->mappings));
	seq_printf(m, "tmesh-policy:\t%s\n",
		   READ_ONCE(claim->policy) & TMESH_POLICY_ZERO ? "zero" : "sigbus");
	tmesh_lease_times(claim, &lease_ns, &left_ns);
	seq_printf(m, "tmesh-lease-ns:\t%llu\n", lease_ns);
	seq_printf(m, "tmesh-lease-left-ns:\t%llu\n", left_ns);
}

/* Return the next region. The position is its id; the header has position 0. */
static struct tmesh_region *tmesh_regions_after(u64 cursor, loff_t *pos)
{
	struct tmesh_region *region;

	do {
		region = tmesh_registry_next(&cursor, true);
	} while (IS_ERR(region));
	*pos = region ? region->id : cursor + 1;
	return region;
}

static void *tmesh_regions_start(struct seq_file *m, loff_t *pos)
{
	return *pos ? tmesh_regions_after(*pos - 1, pos) : SEQ_START_TOKEN;
}

static void tmesh_regions_stop(struct seq_file *m, void *v)
{
	if (v && v != SEQ_START_TOKEN)
		tmesh_region_put(v);
}

static void *tmesh_regions_next(struct seq_file *m, void *v, loff_t *pos)
{
	u64 cursor = v == SEQ_START_TOKEN ? 0 : ((struct tmesh_region *)v)->id;

	tmesh_regions_stop(m, v);
	return tmesh_regions_after(cursor, pos);
}

static int tmesh_regions_show(struct seq_file *m, void *v)
{
	const struct tmesh_region *region = v;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, "id bytes alloc_bytes huge_bytes uid gid mode state handles pinning exports attachments writers pinned_bytes cgroup_id label\n");
		return 0;
	}
	seq_printf(m, "%llu %llu %llu %llu %u %u %04o %s %u %u %u %d %d %llu %llu ", region->id,
		   region->bytes, (u64)region->nr_pages << PAGE_SHIFT, region->huge_bytes,
		   from_kuid_munged(seq_user_ns(m), region->uid),
		   from_kgid_munged(seq_user_ns(m), region->gid), region->mode,
		   tmesh_state_name(READ_ONCE(region->state)), READ_ONCE(region->nr_handles),
		   READ_ONCE(region->nr_pinning), READ_ONCE(region->nr_exports),
		   atomic_read(&region->attachments), atomic_read(&region->writers),
		   (u64)READ_ONCE(region->pinned) << PAGE_SHIFT, region->cgroup_id);
	tmesh_show_label(m, region->label);
	seq_putc(m, '\n');
	return 0;
}

static const struct seq_operations tmesh_regions_sops = {
	.start = tmesh_regions_start,
	.next = tmesh_regions_next,
	.stop = tmesh_regions_stop,
	.show = tmesh_regions_show,
};

DEFINE_SEQ_ATTRIBUTE(tmesh_regions);

static int tmesh_summary_show(struct seq_file *m, void *v)
{
	static const char *const names[TMESH_COUNTS] = {
		[TMESH_BYTES] = "bytes",
		[TMESH_REGIONS] = "regions",
		[TMESH_HANDLES] = "handles",
		[TMESH_PINS] = "pins",
		[TMESH_KEPT_BYTES] = "kept_bytes",
		[TMESH_KEPT_NAMES] = "kept_names",
		[TMESH_FILES] = "files",
		[TMESH_FOREIGN_FILES] = "foreign_files",
	};
	u64 cursor = 0, exports = 0, attachments = 0, revoked = 0, pinned = 0;
	struct tmesh_region *region;
	unsigned int i;
	loff_t pos;

	for (i = 0; i < TMESH_COUNTS; i++)
		seq_printf(m, "%s %llu\n", names[i], tmesh_used(NULL, TMESH_TOTAL, i));
	seq_printf(m, "leases %ld\nlapse_passes %ld\n", tmesh_lease_count(), tmesh_lease_passes());
	seq_printf(m, "settles %ld\n", tmesh_memfd_settles());
	seq_printf(m, "idle_bytes %llu\n", (u64)READ_ONCE(tmesh_kept_idle_pages) << PAGE_SHIFT);
	/* These sums are not maintained; compute them here. */
	while ((region = tmesh_regions_after(cursor, &pos))) {
		cursor = region->id;
		exports += READ_ONCE(region->nr_exports);
		attachments += atomic_read(&region->attachments);
		revoked += !!(READ_ONCE(region->state) & TMESH_STATE_REVOKED);
		pinned += (u64)READ_ONCE(region->pinned) << PAGE_SHIFT;
		tmesh_region_put(region);
		cond_resched();
	}
	seq_printf(m, "exports %llu\nattachments %llu\nrevoked %llu\npinned_bytes %llu\n", exports,
		   attachments, revoked, pinned);
	return 0;
}

DEFINE_SHOW_ATTRIBUTE(tmesh_summary);

static int tmesh_leases_show(struct seq_file *m, void *v)
{
	tmesh_lease_expiry_show(m);
	return 0;
}

DEFINE_SHOW_ATTRIBUTE(tmesh_leases);

void __init tmesh_debug_init(void)
{
	debug_dir = debugfs_create_dir("tmesh", NULL);
	debugfs_create_file("summary", 0400, debug_dir, NULL, &tmesh_summary_fops);
	debugfs_create_file("regions", 0400, debug_dir, NULL, &tmesh_regions_fops);
	debugfs_create_file("leases", 0400, debug_dir, NULL, &tmesh_leases_fops);
}

void tmesh_debug_exit(void)
{
	debugfs_remove_recursive(debug_dir);
}
