// SPDX-License-Identifier: MIT
/* The capabilities of the memfd backend on this machine. */
#include "memfd.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void dmabuf(struct tmesh_ctx *ctx)
{
	tmesh_cap_set(ctx, CAP_DMABUF_EXPORT_SEALED, TMESH_CAP_NO,
		      "udmabuf makes only writable dma-bufs, so sealed memory has none; load the "
		      "tmesh module");
	if (access("/dev/udmabuf", R_OK | W_OK) == 0)
		tmesh_cap_set(ctx, CAP_DMABUF_EXPORT, TMESH_CAP_COOPERATIVE,
			      "through /dev/udmabuf, writable only");
	else if (errno == EACCES)
		tmesh_cap_set(ctx, CAP_DMABUF_EXPORT, TMESH_CAP_NO,
			      "no permission on /dev/udmabuf; its group (often kvm) may use it");
	else
		tmesh_cap_set(
			ctx, CAP_DMABUF_EXPORT, TMESH_CAP_NO,
			"there is no /dev/udmabuf: load the udmabuf module, or the tmesh module");
}

static void huge_pages(struct tmesh_ctx *ctx)
{
	static const char pool[] = "HUGE takes pages of vm.nr_hugepages where there are any";
	const char *why;

	switch (tmesh_huge_way(&why)) {
	case TMESH_HUGE_TOUCH:
		tmesh_cap_set(ctx, CAP_HUGE_PAGES, TMESH_CAP_ENFORCED,
			      "shared memory takes 2 MiB pages on request");
		break;
	case TMESH_HUGE_COLLAPSE:
		tmesh_cap_set(ctx, CAP_HUGE_PAGES, TMESH_CAP_ENFORCED,
			      "2 MiB pages are made by MADV_COLLAPSE, as far as free memory is not "
			      "scattered");
		break;
	case TMESH_HUGE_NO:
		tmesh_cap_set(ctx, CAP_HUGE_PAGES, TMESH_CAP_NO, "%s; %s", why, pool);
		break;
	}
}

static void numa(struct tmesh_ctx *ctx)
{
	int mode;

	if (syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0)
		tmesh_cap_set(ctx, CAP_NUMA, TMESH_CAP_ENFORCED,
			      "the kernel, by the file's policy");
	else
		tmesh_cap_set(ctx, CAP_NUMA, TMESH_CAP_NO,
			      "the kernel has no NUMA policies, or a container forbids them");
}

void tmesh_memfd_caps(struct tmesh_ctx *ctx)
{
	bool proc = access("/proc/self/fd", R_OK | X_OK) == 0;

	tmesh_cap_set(ctx, CAP_ZERO_COPY, TMESH_CAP_ENFORCED, "the kernel: all map the same pages");
	tmesh_cap_set(ctx, CAP_CRASH_CLEANUP, TMESH_CAP_ENFORCED,
		      "the kernel: memory without a name ends with its last holder");
	tmesh_cap_set(ctx, CAP_READ_ONLY, proc ? TMESH_CAP_COOPERATIVE : TMESH_CAP_NO,
		      proc ? "a process of the same user could reopen the memory for writing; seal "
			     "it, or load the tmesh module"
			   : "read-only descriptors need /proc, which is not mounted");
	tmesh_cap_set(ctx, CAP_SEAL, proc ? TMESH_CAP_ENFORCED : TMESH_CAP_NO,
		      proc ? "the kernel: F_SEAL_WRITE"
			   : "sealing mapped memory needs /proc, which is not mounted");
	tmesh_cap_set(ctx, CAP_SEAL_DEVICES, TMESH_CAP_COOPERATIVE,
		      "a seal waits for devices that have the pages, later ones are not looked at; "
		      "load the tmesh module");
	tmesh_cap_set(ctx, CAP_REVOKE, TMESH_CAP_NO,
		      "a memfd cannot be taken back; load the tmesh module");
	tmesh_cap_set(ctx, CAP_PIN, TMESH_CAP_ENFORCED,
		      "the kernel: nothing takes sealed memory from its holders");
	tmesh_cap_set(ctx, CAP_HOLDERS, proc ? TMESH_CAP_COOPERATIVE : TMESH_CAP_NO,
		      proc ? "what /proc shows of processes that this user may see; load the tmesh "
			     "module "
			     "to see all"
			   : "/proc is not mounted");
	dmabuf(ctx);
	huge_pages(ctx);
	numa(ctx);
	tmesh_cap_set(ctx, CAP_QUOTA, TMESH_CAP_COOPERATIVE,
		      "only this context's max_bytes, and the memory control group; load the tmesh "
		      "module for limits per user");
	tmesh_cap_set(ctx, CAP_DIRECT_IO, TMESH_CAP_ENFORCED, "the kernel: ordinary shared pages");
	tmesh_cap_set(
		ctx, CAP_OPEN_WITHOUT_WAKE, proc ? TMESH_CAP_COOPERATIVE : TMESH_CAP_NO,
		proc ? "for producers of this user in this PID namespace; others are asked by "
		       "socket"
		     : "/proc is not mounted: producers are asked by socket");
	tmesh_cap_set(ctx, CAP_LEASE, TMESH_CAP_COOPERATIVE,
		      "the library releases the memory; only the module can take mappings away");
	tmesh_cap_set(ctx, CAP_USER_MEMORY, TMESH_CAP_NO, "pinning memory needs the module");
	tmesh_cap_set(ctx, CAP_IMPORT, TMESH_CAP_NO, "importing dma-bufs needs the module");
	tmesh_cap_set(ctx, CAP_GATHER, TMESH_CAP_NO, "gather views need the module");
	tmesh_cap_set(ctx, CAP_FENCE, TMESH_CAP_NO,
		      "a producer's end could not be reported; load the tmesh module");
}
