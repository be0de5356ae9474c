/* SPDX-License-Identifier: MIT */
/*
 * Members of public structures that the bindings show under the members' own names, one table for
 * each structure. A binding adds by hand what it shows in its language's way: enumerations, rights.
 */
#ifndef TMESH_COMMON_SHOWN_H
#define TMESH_COMMON_SHOWN_H

#include <stddef.h>
#include <stdint.h>
#include <tmesh/keep.h>
#include <tmesh/model.h>
#include <tmesh/pages.h>
#include <tmesh/tmesh.h>

enum shown_kind {
	SHOWN_U64,
	SHOWN_U64_OR_NONE, /* 0 is none */
	SHOWN_U32,
	SHOWN_BOOL,
	SHOWN_ID,	    /* 64 bits as 16 hex digits */
	SHOWN_TEXT,	    /* of an array, which ends with a zero */
	SHOWN_TEXT_OR_NONE, /* "" is none */
};

struct shown {
	const char *name;
	uint32_t offset, size;
	enum shown_kind kind;
};

#define SHOWN_TABLE static const struct shown __attribute__((unused))
#define SHOWN_COUNT(table) (sizeof(table) / sizeof((table)[0]))

#define MEMBER(kind, name)                                                                        \
	{                                                                                         \
#name, offsetof(STRUCTURE, name), sizeof(((STRUCTURE *)NULL)->name), SHOWN_##kind \
	}

#define STRUCTURE struct tmesh_stats
SHOWN_TABLE shown_stats[] = {
	MEMBER(U64, bytes_copied),	 MEMBER(U64, copies),
	MEMBER(U64, regions_created),	 MEMBER(U64, regions_opened),
	MEMBER(U64, regions_live),	 MEMBER(U64, bytes_live),
	MEMBER(U64, region_pool_hits),	 MEMBER(U64, region_pool_misses),
	MEMBER(U64, region_pool_bytes),	 MEMBER(U64, tokens_served),
	MEMBER(U64, opens_without_wake), MEMBER(U64, sent_alone),
	MEMBER(U64, huge_bytes),	 MEMBER(U64, huge_given_up),
};
#undef STRUCTURE

/* By hand: backend, backing, node; tensor and fence, which combine several members. */
#define STRUCTURE struct tmesh_region_info
SHOWN_TABLE shown_region_info[] = {
	MEMBER(ID, id),
	MEMBER(TEXT, label),
	MEMBER(TEXT, description),
	MEMBER(U64, bytes),
	MEMBER(U64, alloc_bytes),
	MEMBER(U64, huge_bytes),
	MEMBER(U64, created_ns),
	MEMBER(BOOL, sealed),
	MEMBER(BOOL, revoked),
	MEMBER(BOOL, poisoned),
	MEMBER(BOOL, kept),
	MEMBER(U32, uid),
	MEMBER(U32, gid),
	MEMBER(U32, mode),
	MEMBER(U32, handles),
	MEMBER(U32, pinning_handles),
	MEMBER(U32, exports),
	MEMBER(U32, attachments),
	MEMBER(U32, views),
	MEMBER(U32, hold_ms),
	MEMBER(U64, pinned_bytes),
	MEMBER(U64, fence_value),
	MEMBER(U64, cgroup_id),
};

/* The lease of one handle, beside its region. By hand: rights. */
SHOWN_TABLE shown_region_lease[] = {
	MEMBER(BOOL, lapsed),
	MEMBER(U64, lease_ns),
	MEMBER(U64, lease_left_ns),
};
#undef STRUCTURE

/* By hand: kind, pid, rights, device, view. The region is what was asked for. */
#define STRUCTURE struct tmesh_holder_info
SHOWN_TABLE shown_holder_info[] = {
	MEMBER(TEXT, command),	  MEMBER(U32, uid),	      MEMBER(U32, mappings),
	MEMBER(U32, attachments), MEMBER(U64, offset),	      MEMBER(U64, bytes),
	MEMBER(U64, lease_ns),	  MEMBER(U64, lease_left_ns), MEMBER(U64_OR_NONE, since_ns),
	MEMBER(BOOL, lapsed),	  MEMBER(BOOL, producer),     MEMBER(BOOL, mapped),
};
#undef STRUCTURE

/* By hand: backend, and count, which is called regions. */
#define STRUCTURE struct tmesh_kept_info
SHOWN_TABLE shown_kept_info[] = {
	MEMBER(TEXT, name),
	MEMBER(ID, id),
	MEMBER(U32, held),
	MEMBER(U64, bytes),
	MEMBER(U64_OR_NONE, kept_ns),
	MEMBER(U64_OR_NONE, used_ns),
	MEMBER(U64_OR_NONE, expires_ns),
	MEMBER(U32, uid),
	MEMBER(U32, gid),
	MEMBER(U32, mode),
	MEMBER(U32, handles),
	MEMBER(U64, cgroup_id),
};
#undef STRUCTURE

#define STRUCTURE struct tmesh_page_pool_info
SHOWN_TABLE shown_page_pool_info[] = {
	MEMBER(U64, slabs),   MEMBER(U64, pages),   MEMBER(U64, free),	    MEMBER(U64, cached),
	MEMBER(U64, held),    MEMBER(U64, handles), MEMBER(U64, tickets),   MEMBER(U64, evicted),
	MEMBER(U64, refused), MEMBER(U64, died),    MEMBER(U64, reclaimed),
};
#undef STRUCTURE

#define STRUCTURE struct tmesh_pages_info
SHOWN_TABLE shown_pages_info[] = {
	MEMBER(U64, page_bytes),   MEMBER(U32, page_tokens), MEMBER(U32, slab_pages),
	MEMBER(U32, max_pages),	   MEMBER(U32, devices),     MEMBER(U32, heads),
	MEMBER(U32, spare),	   MEMBER(U64, held),	     MEMBER(U64, copies),
	MEMBER(U64, bytes_copied),
};
#undef STRUCTURE

/* By hand: method, and hash, where it was asked for. */
#define STRUCTURE struct tmesh_model_report
SHOWN_TABLE shown_model_report[] = {
	MEMBER(U64, bytes),	    MEMBER(U64, bytes_read),  MEMBER(U64, bytes_copied),
	MEMBER(U64, tensors_moved), MEMBER(U64, huge_bytes),  MEMBER(U64, ns),
	MEMBER(BOOL, shared),	    MEMBER(U64, direct_rate), MEMBER(U64, buffered_rate),
	MEMBER(TEXT, file_system),  MEMBER(TEXT, reason),     MEMBER(TEXT_OR_NONE, kept),
};
#undef STRUCTURE
#undef MEMBER

#endif /* TMESH_COMMON_SHOWN_H */
