// SPDX-License-Identifier: MIT
/*
 * Huge pages of tmpfs. If root's setting for shared memory allows them, touching memory makes them.
 * At the default setting, "never", MADV_COLLAPSE (Linux 6.1) makes them for any user, but only of 2
 * MiB that hold a page already. So each 2 MiB is touched, collapsed, then filled.
 */
#include "common/populate.h"
#include "memfd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
/* So often another thread may take the range that was found. */
#define TRIES 8

/* A huge page that takes longer is made by moving many other pages away: small ones are quicker. It
 * is CPU time, so that a busy machine does not count. A virtual machine's host that has to find the
 * memory was seen to take 12 ms, which small pages would take, too. */
#define SLOW_NS (50 * 1000 * 1000)

static bool setting_has(const char *text, const char *word)
{
	return strstr(text, word) != NULL;
}

/* Return whether huge pages are switched off. Bit 1: except for memory that asks for them (Linux
 * 6.18). */
static bool is_switched_off(void)
{
	int disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);

	return disabled > 0 && !(disabled & 2);
}

enum tmesh_huge_way tmesh_huge_way(const char **why)
{
	char text[128] = "";
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	*why = "";
	if (got <= 0)
		*why = "this kernel has no huge pages of shared memory";
	else if (setting_has(text, "[deny]"))
		*why = "huge pages of shared memory are denied; as root: echo never > "
		       "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
	else if (is_switched_off())
		*why = "this process has huge pages switched off (PR_SET_THP_DISABLE)";
	if (**why)
		return TMESH_HUGE_NO;
	return setting_has(text, "[never]") ? TMESH_HUGE_COLLAPSE : TMESH_HUGE_TOUCH;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Each call waits for all processors once, so it is made for several pages. The kernel releases its
 * lock on the process's mappings between two pages. */
#define STEP (16 * (uint64_t)TMESH_HUGE_BYTES)

/* Touch the pages by madvise(): its error replaces the signal for poisoned memory. */
static bool first_pages(uint8_t *at, uint64_t bytes)
{
	for (uint64_t in = 0; in < bytes; in += TMESH_HUGE_BYTES)
		if (tmesh_populate(at + in, tmesh_page_bytes(), MADV_POPULATE_WRITE))
			return false;
	return true;
}

/* Take one step. MADV_COLLAPSE only counts pages that a touch has made huge. A kernel before 6.1,
 * which does not know it, has made them too. */
static bool take_step(uint8_t *at, uint64_t bytes, unsigned int how)
{
	if (how & TMESH_HUGE_TOUCHES)
		return !tmesh_populate(at, bytes, MADV_POPULATE_WRITE) &&
		       (!madvise(at, bytes, MADV_COLLAPSE) || errno == EINVAL);
	return first_pages(at, bytes) && !madvise(at, bytes, MADV_COLLAPSE);
}

uint64_t tmesh_huge_populate(void *addr, uint64_t bytes, unsigned int how)
{
	uint64_t done = 0;

	while (done < bytes) {
		uint64_t step = bytes - done < STEP ? bytes - done : STEP, since = cpu_ns();

		if (!take_step((uint8_t *)addr + done, step, how))
			break;
		done += step;
		if (!(how & TMESH_HUGE_PATIENT) &&
		    cpu_ns() - since > step / TMESH_HUGE_BYTES * SLOW_NS)
			break;
	}
	return done;
}

uint64_t tmesh_huge_mapped(const void *addr)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	char *line = NULL;
	size_t room = 0;
	bool inside = false;
	uint64_t bytes = 0;

	while (smaps && getline(&line, &room, smaps) > 0) {
		unsigned long from, to, kib;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			if (inside)
				break;
			inside = from == (unsigned long)addr;
		} else if (inside && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1) {
			bytes = (uint64_t)kib << 10;
			break;
		}
	}
	free(line);
	if (smaps)
		fclose(smaps);
	return bytes;
}

/* Map the pages of 2 MiB in which @fd has memory, and leave its holes. */
static void map_data(int fd, uint8_t *addr, uint64_t bytes)
{
	off_t data, hole = 0;

	while ((data = lseek(fd, hole, SEEK_DATA)) >= 0 && (uint64_t)data < bytes) {
		uint64_t at = ((uint64_t)data + TMESH_HUGE_BYTES - 1) & -(uint64_t)TMESH_HUGE_BYTES;

		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			break;
		for (; at + TMESH_HUGE_BYTES <= (uint64_t)hole && at < bytes;
		     at += TMESH_HUGE_BYTES)
			tmesh_populate(addr + at, tmesh_page_bytes(), MADV_POPULATE_READ);
	}
}

uint64_t tmesh_huge_bytes(int fd, uint64_t bytes)
{
	void *addr;
	uint64_t huge = 0;
	bool mapped, marked;

	if (bytes < TMESH_HUGE_BYTES)
		return 0;
	/* A child that is forked meanwhile would have the mapping for good. */
	tmesh_fork_keep_off();
	addr = tmesh_huge_map(fd, bytes, PROT_READ, MAP_SHARED);
	mapped = addr != MAP_FAILED;
	marked = mapped && !madvise(addr, bytes, MADV_DONTFORK);
	tmesh_fork_let();
	if (marked) {
		map_data(fd, addr, bytes);
		huge = tmesh_huge_mapped(addr);
	}
	if (mapped)
		munmap(addr, bytes);
	return huge;
}

/* Map where a range of this size was free a moment ago, and is still: another thread may take it
 * meanwhile. MAP_FIXED over a reserved range would not do: before Linux 6.12 it leaves a hole when
 * it fails, which another thread may take before this one unmaps it. */
void *tmesh_huge_map(int fd, size_t bytes, int prot, int flags)
{
	size_t room = bytes + TMESH_HUGE_BYTES;

	for (int i = 0; i < TRIES; i++) {
		uint8_t *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		void *at;

		if (start == MAP_FAILED)
			break;
		at = start + (-(uintptr_t)start & (TMESH_HUGE_BYTES - 1));
		munmap(start, room);
		at = mmap(at, bytes, prot, flags | MAP_FIXED_NOREPLACE, fd, 0);
		if (at != MAP_FAILED || errno != EEXIST)
			return at;
	}
	return mmap(NULL, bytes, prot, flags, fd, 0);
}
