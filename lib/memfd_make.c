// SPDX-License-Identifier: MIT
/*
 * How a memfd region comes to its file: made anew, from a memfd or a descriptor that was made
 * elsewhere, or handed over by another process.
 */
#include "memfd.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) & ~(to - 1);
}

static bool whole_huge_pages(const struct tmesh_region *region)
{
	return region->align_huge || (region->kind & TMESH_KIND_HUGETLB);
}

uint64_t tmesh_memfd_alloc(const struct tmesh_region *region, uint64_t bytes)
{
	return round_up(bytes, whole_huge_pages(region) ? TMESH_HUGE_BYTES : tmesh_page_bytes());
}

/* Of a memfd that we have not made: in whole pages of its own. */
static uint64_t foreign_alloc(const struct tmesh_region *region, const struct stat *st)
{
	return round_up(region->bytes, tmesh_memfd_page(region->kind, st));
}

static int check_opts(const struct tmesh_region_opts *opts, struct tmesh_error *err)
{
	if (opts->mode != 0600)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "memfd regions are for one user: mode 0%o needs the module",
				  opts->mode);
	if (opts->linger_ms)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "memfd regions end with their last holder: linger_ms needs the "
				  "module");
	return 0;
}

/* A memfd takes any size, and whoever fills it is killed when memory ends: what can never be
 * filled is refused now. The machine is asked again before that, as it may have got more. */
static int check_memory(struct tmesh_ctx *ctx, uint64_t bytes, struct tmesh_error *err)
{
	struct sysinfo info;
	uint64_t memory;

	if (bytes <= atomic_load_explicit(&ctx->memory, memory_order_relaxed))
		return 0;
	sysinfo(&info);
	memory = ((uint64_t)info.totalram + info.totalswap) * info.mem_unit;
	atomic_store_explicit(&ctx->memory, memory, memory_order_relaxed);
	if (bytes <= memory)
		return 0;
	return tmesh_fail(err, -ENOMEM,
			  "%llu bytes are more than this machine's memory and swap, "
			  "%llu bytes",
			  (unsigned long long)bytes, (unsigned long long)memory);
}

/* A new file for the region, not larger than needed and never to change in size. */
static int make_file(struct tmesh_region *region, unsigned int flags, struct tmesh_error *err)
{
	struct tmesh_memfd_name parts = {.id = region->id, .bytes = region->bytes};
	bool huge = region->kind & TMESH_KIND_HUGETLB;
	char name[TMESH_MEMFD_NAME];
	uint64_t size;

	region->alloc = tmesh_memfd_alloc(region, region->bytes);
	size = region->alloc + tmesh_memfd_trailer_bytes(region->kind);
	memcpy(parts.label, region->label, sizeof(parts.label));
	tmesh_memfd_name_format(name, &parts);
	region->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (region->fd < 0)
		return tmesh_fail_errno(err,
					huge ? "making a memfd of huge pages" : "making a memfd");
	if (ftruncate(region->fd, (off_t)size))
		return errno == EINVAL || errno == EFBIG
			       ? tmesh_fail(err, -EOVERFLOW,
					    "%llu bytes are more than a memfd takes",
					    (unsigned long long)size)
			       : tmesh_fail_errno(err, "ftruncate of a memfd");
	/* A memfd's mode is 0777: any user who is handed it read-only could reopen it. */
	if (fchmod(region->fd, 0600))
		return tmesh_fail_errno(err, "fchmod of a memfd");
	if (fcntl(region->fd, F_ADD_SEALS, TMESH_SEALS_FIXED))
		return tmesh_fail_errno(err, "sealing the size of a memfd");
	if ((region->opts.flags & TMESH_REGION_GID) &&
	    fchown(region->fd, (uid_t)-1, region->opts.gid))
		return tmesh_fail_errno(err, "giving the region to the group");
	return 0;
}

static void unmake_file(struct tmesh_region *region)
{
	tmesh_region_drop_mapping(region);
	if (region->fd >= 0)
		close(region->fd);
	region->fd = -1;
}

static int map_for_writing(struct tmesh_region *region, struct tmesh_error *err)
{
	return tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, err);
}

/* HUGE is a demand: the pages are taken now, from the pool of huge pages if it has enough,
 * else from shared memory that becomes huge. */
static int make_huge(struct tmesh_region *region, struct tmesh_error *err)
{
	const char *why;

	region->kind |= TMESH_KIND_HUGETLB;
	if (make_file(region, MFD_HUGETLB | MFD_HUGE_2MB, NULL) == 0 &&
	    map_for_writing(region, NULL) == 0)
		return 0;
	unmake_file(region);
	region->kind &= ~TMESH_KIND_HUGETLB;
	region->align_huge = true;
	if (tmesh_huge_shmem(&why) && make_file(region, 0, NULL) == 0 &&
	    map_for_writing(region, NULL) == 0 &&
	    madvise(region->addr, region->alloc, MADV_POPULATE_WRITE) == 0 &&
	    tmesh_huge_mapped(region->addr) == region->alloc)
		return 0;
	return tmesh_fail(err, -ENOMEM,
			  "no 2 MiB pages for %llu bytes: the pool (vm.nr_hugepages) has not "
			  "enough, and %s",
			  (unsigned long long)region->bytes,
			  *why ? why : "free memory is too scattered for huge pages");
}

static int bind_node(struct tmesh_region *region, struct tmesh_error *err)
{
	unsigned long mask[1024 / (8 * sizeof(unsigned long))] = {0};
	int node = region->opts.node;
	int rc = map_for_writing(region, err);

	if (rc)
		return rc;
	mask[(size_t)node / (8 * sizeof(*mask))] |= 1ul << ((size_t)node % (8 * sizeof(*mask)));
	/* On shared memory the policy is the file's: it holds for all who map or write it. */
	if (syscall(SYS_mbind, region->addr, region->alloc, MPOL_BIND, mask, 8 * sizeof(mask),
		    MPOL_MF_MOVE | MPOL_MF_STRICT) == 0)
		return 0;
	if (errno == EINVAL)
		return tmesh_fail(err, -EINVAL, "there is no NUMA node %d with memory", node);
	return tmesh_fail_errno(err, "moving the memory to its NUMA node");
}

/* What its maker fills, as a put does, lies in huge pages unasked, where there may be any: each
 * takes a fraction of the time of its 512 small ones. Not where they would waste memory. */
static bool wants_huge(const struct tmesh_region_opts *opts, uint64_t bytes)
{
	uint64_t unused = round_up(bytes, TMESH_HUGE_BYTES) - bytes;
	bool filled = (opts->flags & TMESH_REGION_UNINITIALIZED) && unused <= bytes / 8;
	const char *why;

	return bytes >= TMESH_HUGE_BYTES && (filled || (opts->flags & TMESH_REGION_TRY_HUGE)) &&
	       tmesh_huge_shmem(&why);
}

int tmesh_memfd_create(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err)
{
	const struct tmesh_region_opts *opts = &region->opts;
	int rc = check_opts(opts, err);

	if (!rc)
		rc = check_memory(region->ctx, bytes, err);
	if (rc)
		return rc;
	region->id = tmesh_new_id(region->ctx);
	region->reopens = true;
	if (opts->flags & TMESH_REGION_NO_PIN)
		region->kind |= TMESH_KIND_NO_PIN;
	if (opts->flags & TMESH_REGION_HUGE) {
		rc = make_huge(region, err);
	} else {
		region->align_huge = wants_huge(opts, bytes);
		rc = make_file(region, 0, err);
	}
	if (!rc && (opts->flags & TMESH_REGION_NODE))
		rc = bind_node(region, err);
	return rc;
}

/* The context's user may open it for reading and writing. */
static bool is_ours(const struct tmesh_ctx *ctx, const struct stat *st)
{
	return st->st_uid == ctx->uid && (st->st_mode & 0600) == 0600;
}

int tmesh_memfd_from_memfd(struct tmesh_region *region, int fd, uint64_t bytes,
			   struct tmesh_error *err)
{
	int rc = check_opts(&region->opts, err);
	int seals, mode;
	struct stat st;

	if (rc)
		return rc;
	if (region->opts.flags & TMESH_REGION_GID)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the group of a memfd made elsewhere is its maker's to set");
	mode = fcntl(fd, F_GETFL);
	if (mode < 0)
		return tmesh_fail(err, -EBADF, "%d is not an open descriptor", fd);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || fstat(fd, &st))
		return tmesh_fail(err, -EINVAL, "the descriptor is not a memfd's");
	if ((seals & TMESH_SEALS_FIXED) != TMESH_SEALS_FIXED)
		return tmesh_fail(err, -EINVAL,
				  "the memfd is not sealed with F_SEAL_SHRINK and F_SEAL_GROW: its "
				  "pages could vanish under a reader");
	if (st.st_size == 0 || bytes > (uint64_t)st.st_size)
		return tmesh_fail(err, -EINVAL, "the memfd has only %lld bytes",
				  (long long)st.st_size);
	if ((mode & O_ACCMODE) == O_WRONLY)
		return tmesh_fail(err, -EINVAL, "the descriptor cannot be read");
	region->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (region->fd < 0)
		return tmesh_fail_errno(err, "duplicating the memfd's descriptor");
	region->kind = TMESH_KIND_FOREIGN;
	if (region->opts.flags & TMESH_REGION_NO_PIN)
		region->kind |= TMESH_KIND_NO_PIN;
	if (tmesh_memfd_is_hugetlb(fd))
		region->kind |= TMESH_KIND_HUGETLB;
	region->reopens = is_ours(region->ctx, &st);
	region->dev = st.st_dev;
	region->ino = st.st_ino;
	region->id = tmesh_memfd_foreign_id(st.st_dev, st.st_ino);
	region->bytes = bytes ? bytes : (uint64_t)st.st_size;
	region->alloc = foreign_alloc(region, &st);
	region->rights = (mode & O_ACCMODE) == O_RDWR ? TMESH_RIGHTS_ALL : TMESH_READ;
	region->sealed = seals & F_SEAL_WRITE;
	return 0;
}

/* The card's file has the length of what the descriptor stands for, as a hole. */
int tmesh_memfd_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			struct tmesh_error *err)
{
	int rc = check_opts(&region->opts, err);

	if (!rc)
		rc = tmesh_opaque_create(region, fd, err);
	if (rc)
		return rc;
	region->id = tmesh_new_id(region->ctx);
	region->reopens = true;
	region->kind = TMESH_KIND_OPAQUE;
	region->rights = TMESH_RIGHTS_ALL;
	region->bytes = bytes;
	return make_file(region, 0, err);
}

/* Everything in @wire is somebody's word. What could hurt is checked against the file. */
int tmesh_memfd_adopt(struct tmesh_region *region, const int *fds,
		      const struct tmesh_wire_region *wire, struct tmesh_error *err)
{
	uint64_t behind = tmesh_memfd_trailer_bytes(wire->kind);
	unsigned int more = tmesh_opaque_count(wire);
	int fd = fds[0];
	struct stat st;
	int seals;

	region->fd = fd;
	if (more)
		tmesh_opaque_adopt(region, &fds[1], more);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & TMESH_SEALS_FIXED) != TMESH_SEALS_FIXED || fstat(fd, &st))
		return tmesh_fail(err, -EPROTO,
				  "what was handed over is not a memfd of fixed size");
	if (wire->backend != TMESH_BACKEND_MEMFD || (wire->kind & ~TMESH_KINDS) ||
	    tmesh_check_rights(wire->rights, NULL) || wire->bytes == 0)
		return tmesh_fail(err, -EPROTO, "the hand-over does not describe a region");
	if ((uint64_t)st.st_size < behind || wire->bytes > (uint64_t)st.st_size - behind)
		return tmesh_fail(err, -EPROTO,
				  "the hand-over names %llu bytes, but its file has %lld",
				  (unsigned long long)wire->bytes, (long long)st.st_size);
	/* Polling another kind of file may make us wait for whoever serves it. */
	if (more && fcntl(region->leash, F_GETPIPE_SZ) < 0)
		return tmesh_fail(err, -EPROTO,
				  "the descriptor that tells of the region's end is not a pipe");
	region->reopens = is_ours(region->ctx, &st);
	region->dev = st.st_dev;
	region->ino = st.st_ino;
	region->rights = wire->rights;
	region->kind = wire->kind;
	region->id = wire->id;
	region->bytes = wire->bytes;
	region->alloc = wire->kind & TMESH_KIND_FOREIGN ? foreign_alloc(region, &st)
							: (uint64_t)st.st_size - behind;
	/* Behind the file's last page a touch raises SIGBUS. */
	if (region->alloc > round_up((uint64_t)st.st_size, tmesh_page_bytes()))
		return tmesh_fail(err, -EPROTO,
				  "the hand-over names larger pages than its file has");
	region->sealed = seals & F_SEAL_WRITE;
	return 0;
}
