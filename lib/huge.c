// SPDX-License-Identifier: MIT
/* Huge pages of tmpfs: whether they can be had, mapped so that they fit, and counted. */
#include "memfd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool tmesh_huge_shmem(const char **why)
{
	char text[128] = "";
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	*why = "";
	if (got > 0 && (strstr(text, "[advise]") || strstr(text, "[always]") ||
			strstr(text, "[within_size]") || strstr(text, "[force]")))
		return true;
	*why = got > 0 ? "huge pages of shared memory are off; as root: echo advise > "
			 "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
		       : "this kernel has no huge pages of shared memory";
	return false;
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

void *tmesh_huge_reserve(size_t bytes)
{
	size_t room = bytes + TMESH_HUGE_BYTES;
	uint8_t *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (start == MAP_FAILED)
		return MAP_FAILED;
	before = -(uintptr_t)start & (TMESH_HUGE_BYTES - 1);
	if (before)
		munmap(start, before);
	munmap(start + before + bytes, room - before - bytes);
	return start + before;
}
