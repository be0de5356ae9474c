// SPDX-License-Identifier: MIT
/*
 * A preload for one VM. The first mapping of a file at a fixed address, for reading, fails. As on a
 * Linux before 6.12, the range is free then. Another thread takes it at once. The end of the
 * process reports whether that thread still has it.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned char *taken;
static size_t taken_bytes;

void *mmap(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (fd < 0 || taken || prot != PROT_READ || !(flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)))
		return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
	taken_bytes = bytes;
	taken = (void *)syscall(SYS_mmap, addr, bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	*taken = 'x';
	errno = ENOMEM;
	return MAP_FAILED;
}

__attribute__((destructor)) static void tell(void)
{
	unsigned char pages[1024];

	if (taken)
		puts(mincore(taken, taken_bytes, pages) || *taken != 'x' ? "taken away"
									 : "left alone");
}
