// SPDX-License-Identifier: MIT
/*
 * How a memfd region comes to its file: made anew, from a memfd or a descriptor that was made
 * elsewhere, or handed over by another process.
 */
#include "common/file_size.h"
#include "common/populate.h"
#include "common/room.h"
#include "memfd.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
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
	return region->memfd.align_huge || (region->kind & TMESH_KIND_HUGETLB);
}

uint64_t tmesh_memfd_alloc(const struct tmesh_region *region, uint64_t bytes)
{
	return round_up(bytes, whole_huge_pages(region) ? TMESH_HUGE_BYTES : tmesh_page_bytes());
}

/* Return the length, in whole pages of its own, of a memfd made elsewhere. */
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
	if (opts->hold_ms)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "memfd regions end with their last holder: hold_ms needs the "
				  "module");
	return 0;
}

/* Refuse a region that is larger than the machine's memory. A memfd takes any size, but the kernel
 * would kill the process that fills it. The machine's memory is read again first, because it may
 * have grown. */
static int check_memory(struct tmesh_ctx *ctx, uint64_t bytes, struct tmesh_error *err)
{
	struct sysinfo info;
	uint64_t memory;

	if (bytes <= atomic_load_explicit(&ctx->memfd.memory, memory_order_relaxed))
		return 0;
	sysinfo(&info);
	memory = ((uint64_t)info.totalram + info.totalswap) * info.mem_unit;
	atomic_store_explicit(&ctx->memfd.memory, memory, memory_order_relaxed);
	if (bytes <= memory)
		return 0;
	return tmesh_fail(err, -ENOMEM,
			  "%llu bytes are more than this machine's memory and swap, "
			  "%llu bytes",
			  (unsigned long long)bytes, (unsigned long long)memory);
}

/* Make a file for the region, no larger than needed and never to change in size. */
static int make_file(struct tmesh_region *region, unsigned int flags, struct tmesh_error *err)
{
	struct tmesh_memfd_name parts = {.id = region->id, .bytes = region->bytes};
	bool huge = region->kind & TMESH_KIND_HUGETLB;
	char name[TMESH_MEMFD_NAME];
	struct stat st;
	uint64_t size;

	region->alloc = tmesh_memfd_alloc(region, region->bytes);
	size = region->alloc + tmesh_memfd_trailer_bytes(region->kind);
	memcpy(parts.label, region->label, sizeof(parts.label));
	tmesh_memfd_name_format(name, &parts);
	region->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (region->fd < 0)
		return tmesh_fail_errno(err,
					huge ? "making a memfd of huge pages" : "making a memfd");
	if (tmesh_ftruncate(region->fd, (off_t)size))
		return errno == EINVAL ? tmesh_fail(err, -EOVERFLOW,
						    "%llu bytes are more than a memfd takes",
						    (unsigned long long)size)
				       : tmesh_fail_errno(err, "making a region");
	/* A memfd's mode is 0777, so any user that receives it read-only could reopen it. A process
	 * that may not change modes gives memory only to its own user's processes. */
	if (!region->ctx->connect && fchmod(region->fd, 0600))
		return tmesh_fail_errno(err, "fchmod of a memfd");
	if (fcntl(region->fd, F_ADD_SEALS, TMESH_SEALS_FIXED))
		return tmesh_fail_errno(err, "sealing the size of a memfd");
	if ((region->opts.flags & TMESH_REGION_GID) &&
	    fchown(region->fd, (uid_t)-1, region->opts.gid))
		return tmesh_fail_errno(err, "giving the region to the group");
	if (fstat(region->fd, &st))
		return tmesh_fail_errno(err, "fstat of a region");
	region->memfd.dev = st.st_dev;
	region->memfd.ino = st.st_ino;
	return 0;
}

static size_t huge_map_words(const struct tmesh_region *region)
{
	return (size_t)((region->alloc / TMESH_HUGE_BYTES + 63) / 64);
}

/* Make a file that gets huge pages as it is used. */
static int make_huge_file(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc = make_file(region, 0, err);

	if (!rc)
		region->memfd.huge_map =
			calloc(huge_map_words(region), sizeof(region->memfd.huge_map[0]));
	return rc || region->memfd.huge_map ? rc : tmesh_fail(err, -ENOMEM, "no memory");
}

int tmesh_memfd_derive_huge(struct tmesh_region *derived, const struct tmesh_region *region)
{
	size_t words = huge_map_words(region);

	derived->memfd.align_huge = region->memfd.align_huge;
	derived->memfd.collapses = region->memfd.collapses;
	if (!region->memfd.huge_map)
		return 0;
	derived->memfd.huge_map = calloc(words, sizeof(derived->memfd.huge_map[0]));
	if (!derived->memfd.huge_map)
		return -ENOMEM;
	for (size_t i = 0; i < words; i++) {
		uint64_t word = atomic_load(&region->memfd.huge_map[i]);

		derived->memfd.huge_map[i] = word;
		derived->memfd.huge += (uint64_t)__builtin_popcountll(word) * TMESH_HUGE_BYTES;
	}
	return 0;
}

/* Note that the pages in [@begin, @end) are huge. Return the bytes of which that was not known. */
static uint64_t note_huge(struct tmesh_region *region, uint64_t begin, uint64_t end)
{
	uint64_t bytes = 0;

	for (uint64_t at = begin; at < end; at += TMESH_HUGE_BYTES) {
		uint64_t page = at / TMESH_HUGE_BYTES, bit = UINT64_C(1) << page % 64;

		if (!(atomic_fetch_or(&region->memfd.huge_map[page / 64], bit) & bit))
			bytes += TMESH_HUGE_BYTES;
	}
	return bytes;
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

static bool use_huge(struct tmesh_region *region, const char **why)
{
	enum tmesh_huge_way way = tmesh_huge_way(why);

	region->memfd.align_huge = way != TMESH_HUGE_NO;
	region->memfd.collapses = way == TMESH_HUGE_COLLAPSE;
	return region->memfd.align_huge;
}

/* Take pages of 2 MiB for [@begin, @end), which are multiples of it. Return where those end that
 * could be had. */
static uint64_t take_huge(struct tmesh_region *region, uint64_t begin, uint64_t end)
{
	unsigned int how = (region->memfd.collapses ? 0 : TMESH_HUGE_TOUCHES) |
			   (region->opts.flags & TMESH_REGION_HUGE ? TMESH_HUGE_PATIENT : 0);
	uint64_t done = tmesh_huge_populate((uint8_t *)region->addr + begin, end - begin, how);
	uint64_t more = note_huge(region, begin, begin + done);

	atomic_fetch_add(&region->memfd.huge, more);
	tmesh_count(region->ctx, COUNT_HUGE_BYTES, more);
	if (done < end - begin) {
		region->memfd.huge_no_more = true;
		tmesh_count(region->ctx, COUNT_HUGE_GIVEN_UP, 1);
	}
	return begin + done;
}

/* Make the region of huge pages, which HUGE requires. They are taken now: from the pool of huge
 * pages if it has enough, else from shared memory that becomes huge. */
static int make_huge(struct tmesh_region *region, struct tmesh_error *err)
{
	const char *why;

	region->kind |= TMESH_KIND_HUGETLB;
	if (make_file(region, MFD_HUGETLB | MFD_HUGE_2MB, NULL) == 0 &&
	    map_for_writing(region, NULL) == 0)
		return 0;
	unmake_file(region);
	region->kind &= ~TMESH_KIND_HUGETLB;
	if (use_huge(region, &why) && make_huge_file(region, NULL) == 0 &&
	    map_for_writing(region, NULL) == 0 &&
	    take_huge(region, 0, region->alloc) == region->alloc)
		return 0;
	return tmesh_fail(err, -ENOMEM,
			  "no 2 MiB pages for %llu bytes: the pool (vm.nr_hugepages) has not "
			  "enough, and %s",
			  (unsigned long long)region->bytes,
			  *why ? why : "free memory is too scattered for huge pages");
}

bool tmesh_memfd_populates(const struct tmesh_region *region)
{
	return !region->private && (region->memfd.align_huge ||
				    (region->created && tmesh_memfd_is_filled(&region->opts)));
}

static int take_small(struct tmesh_region *region, uint64_t begin, uint64_t end,
		      struct tmesh_error *err)
{
	int rc = 0;

	if (begin < end)
		rc = tmesh_populate((uint8_t *)region->addr + begin, end - begin,
				    MADV_POPULATE_WRITE);
	/* Kernels before 5.14 have no such call. */
	if (!rc || rc == -EINVAL)
		return 0;
	errno = -rc;
	return tmesh_fail_errno(err, "taking the region's pages");
}

/* Take huge pages around a write, unless writes are small and scattered: each would look anew
 * whether its page is huge. */
static uint64_t take_huge_around(struct tmesh_region *region, uint64_t offset, uint64_t begin,
				 uint64_t end)
{
	if (!region->memfd.align_huge || region->memfd.huge_no_more ||
	    (offset > atomic_load(&region->memfd.taken) && end - begin < TMESH_HUGE_BYTES))
		return begin;
	return take_huge(region, begin & -(uint64_t)TMESH_HUGE_BYTES,
			 round_up(end, TMESH_HUGE_BYTES));
}

int tmesh_memfd_populate(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			 struct tmesh_error *err)
{
	uint64_t taken = atomic_load(&region->memfd.taken), end = offset + bytes, begin, reached;
	int rc;

	if (end <= taken)
		return 0;
	begin = (offset < taken ? taken : offset) & -tmesh_page_bytes();
	reached = take_huge_around(region, offset, begin, end);
	rc = take_small(region, reached > begin ? reached : begin, end, err);
	if (rc)
		return rc;
	if (offset <= taken)
		atomic_compare_exchange_strong(&region->memfd.taken, &taken,
					       reached > end ? reached : end);
	return 0;
}

/* Up to this size, or this part of the free memory, a region gets its pages at once. A larger
 * region may be filled slowly, or never, so it gets them as it is written. */
#define AT_ONCE ((uint64_t)256 << 20)
#define PART 8

static bool is_much(uint64_t bytes)
{
	struct tmesh_room room;

	if (bytes <= AT_ONCE)
		return false;
	tmesh_room("", &room);
	return bytes > room.bytes / PART;
}

/* Give zeroed memory huge pages. Without huge pages do nothing, since the maker may write only a
 * few pages. */
void tmesh_memfd_prepare(struct tmesh_region *region)
{
	if (!region->created || !tmesh_memfd_populates(region) ||
	    atomic_exchange(&region->memfd.prepared, true) || is_much(region->alloc))
		return;
	if (tmesh_memfd_is_filled(&region->opts))
		tmesh_memfd_populate(region, 0, region->alloc, NULL);
	else if (!region->memfd.huge_no_more && !region->memfd.taken)
		region->memfd.taken = take_huge(region, 0, region->alloc);
}

static int bind_node(struct tmesh_region *region, struct tmesh_error *err)
{
	unsigned long mask[1024 / (8 * sizeof(unsigned long))] = {0};
	int node = region->opts.node;
	int rc = map_for_writing(region, err);

	if (rc)
		return rc;
	mask[(size_t)node / (8 * sizeof(*mask))] |= 1ul << ((size_t)node % (8 * sizeof(*mask)));
	/* The policy is the file's: it holds for every process that maps or writes it. */
	if (syscall(SYS_mbind, region->addr, region->alloc, MPOL_BIND, mask, 8 * sizeof(mask),
		    MPOL_MF_MOVE | MPOL_MF_STRICT) == 0)
		return 0;
	if (errno == EINVAL)
		return tmesh_fail(err, -EINVAL, "there is no NUMA node %d with memory", node);
	return tmesh_fail_errno(err, "moving the memory to its NUMA node");
}

bool tmesh_memfd_is_filled(const struct tmesh_region_opts *opts)
{
	return opts->flags & TMESH_REGION_UNINITIALIZED;
}

/* Return whether to use huge pages unasked: each takes a fraction of the time of its 512 small
 * ones. They must not waste memory. */
bool tmesh_memfd_wants_huge(const struct tmesh_region_opts *opts, uint64_t bytes)
{
	uint64_t unused = round_up(bytes, TMESH_HUGE_BYTES) - bytes;

	return bytes >= TMESH_HUGE_BYTES &&
	       (unused <= bytes / 8 || (opts->flags & TMESH_REGION_TRY_HUGE));
}

int tmesh_memfd_create(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err)
{
	const struct tmesh_region_opts *opts = &region->opts;
	int rc = check_opts(opts, err);
	const char *why;

	if (!rc)
		rc = check_memory(region->ctx, bytes, err);
	if (rc)
		return rc;
	region->id = tmesh_new_id(region->ctx);
	region->memfd.reopens = true;
	if (opts->flags & TMESH_REGION_NO_PIN)
		region->kind |= TMESH_KIND_NO_PIN;
	if (opts->flags & TMESH_REGION_HUGE) {
		rc = make_huge(region, err);
	} else {
		rc = tmesh_memfd_wants_huge(opts, bytes) && use_huge(region, &why)
			     ? make_huge_file(region, err)
			     : make_file(region, 0, err);
	}
	if (!rc && (opts->flags & TMESH_REGION_NODE))
		rc = bind_node(region, err);
	return rc;
}

/* Return whether the context's user may open it for reading and writing. */
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
	seals = tmesh_foreign_seals(fd);
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
	region->memfd.reopens = is_ours(region->ctx, &st);
	region->memfd.dev = st.st_dev;
	region->memfd.ino = st.st_ino;
	region->id = tmesh_memfd_foreign_id(st.st_dev, st.st_ino);
	region->bytes = bytes ? bytes : (uint64_t)st.st_size;
	region->alloc = foreign_alloc(region, &st);
	region->rights = (mode & O_ACCMODE) == O_RDWR ? TMESH_RIGHTS_ALL : TMESH_READ;
	region->sealed = seals & F_SEAL_WRITE;
	return 0;
}

/* Make a region for @fd. The card's file is a hole of the descriptor's length. */
int tmesh_memfd_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			struct tmesh_error *err)
{
	int rc = check_opts(&region->opts, err);

	if (!rc)
		rc = tmesh_opaque_create(region, fd, err);
	if (rc)
		return rc;
	region->id = tmesh_new_id(region->ctx);
	region->memfd.reopens = true;
	region->kind = TMESH_KIND_OPAQUE;
	region->rights = TMESH_RIGHTS_ALL;
	region->bytes = bytes;
	return make_file(region, 0, err);
}

/* Take over a region from another process. Nothing in @wire is trusted: values that could do harm
 * are checked against the file. */
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
	seals = tmesh_foreign_seals(fd);
	if (seals < 0 || (seals & TMESH_SEALS_FIXED) != TMESH_SEALS_FIXED || fstat(fd, &st))
		return tmesh_fail(err, -EPROTO, "receive: the peer sent no memfd of fixed size");
	if (wire->backend != TMESH_BACKEND_MEMFD || (wire->kind & ~TMESH_KINDS) ||
	    tmesh_check_rights(wire->rights, NULL) || wire->bytes == 0)
		return tmesh_fail(err, -EPROTO, "the hand-over does not describe a region");
	if ((uint64_t)st.st_size < behind || wire->bytes > (uint64_t)st.st_size - behind)
		return tmesh_fail(err, -EPROTO,
				  "the hand-over names %llu bytes, but its file has %lld",
				  (unsigned long long)wire->bytes, (long long)st.st_size);
	/* Polling another kind of file could block on the process that serves it. */
	if (more && fcntl(region->memfd.revoke_pipe, F_GETPIPE_SZ) < 0)
		return tmesh_fail(err, -EPROTO,
				  "the descriptor that tells of the region's end is not a pipe");
	region->memfd.reopens = is_ours(region->ctx, &st);
	region->memfd.dev = st.st_dev;
	region->memfd.ino = st.st_ino;
	region->rights = wire->rights;
	region->kind = wire->kind;
	region->id = wire->id;
	region->bytes = wire->bytes;
	region->alloc = wire->kind & TMESH_KIND_FOREIGN ? foreign_alloc(region, &st)
							: (uint64_t)st.st_size - behind;
	/* Accesses behind the file's last page raise SIGBUS. */
	if (region->alloc > round_up((uint64_t)st.st_size, tmesh_page_bytes()))
		return tmesh_fail(err, -EPROTO,
				  "the hand-over names larger pages than its file has");
	region->sealed = seals & F_SEAL_WRITE;
	return 0;
}
