// SPDX-License-Identifier: MIT
/*
 * The files that stand for physical memory are memfds. With TMESH_STANDIN_FILES=vgem they are files
 * of a character device, as a driver's exports are and as the module expects them. A vgem file owns
 * its memory, and every holder of the file can map it. The device's number is in a memfd's name,
 * and in a page behind the usable part of a vgem file.
 */
#include "standin_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "standin-gpu-" /* of the memfds, followed by the device's number */

static int memfd_new(int device, size_t bytes)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), NAME "%d", device);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && !ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static bool memfd_look(int fd, struct standin_file *file)
{
	char path[32], target[64] = "";
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, target, sizeof(target) - 1) < 0 ||
	    sscanf(target, "/memfd:" NAME "%d", &file->device) != 1 || fstat(fd, &st))
		return false;
	file->bytes = (size_t)st.st_size;
	return true;
}

#if __has_include(<libdrm/drm.h>)
#include <libdrm/drm.h>

#define PAGE 4096
#define MAGIC 0x6e692d646e617473ull

struct label {
	unsigned long long magic;
	int device;
};

static int vgem_open(void)
{
	char path[32], name[8];

	for (int i = 0; i < 16; i++) {
		struct drm_version version = {.name = name, .name_len = sizeof(name) - 1};
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/card%d", i);
		memset(name, 0, sizeof(name));
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && !ioctl(fd, DRM_IOCTL_VERSION, &version) && !strcmp(name, "vgem"))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

/* Return where the memory of a file of vgem_new() begins, or -1 for another file. */
static off_t vgem_offset(int fd)
{
	struct drm_mode_map_dumb map = {.handle = 1};
	struct stat st;

	if (fstat(fd, &st) || !S_ISCHR(st.st_mode) || ioctl(fd, DRM_IOCTL_MODE_MAP_DUMB, &map))
		return -1;
	return (off_t)map.offset;
}

static size_t vgem_bytes(int fd)
{
	struct drm_prime_handle prime = {.handle = 1, .flags = DRM_CLOEXEC};
	off_t bytes;

	if (ioctl(fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime))
		return 0;
	bytes = lseek(prime.fd, 0, SEEK_END);
	close(prime.fd);
	return bytes > PAGE ? (size_t)bytes - PAGE : 0;
}

static struct label *vgem_map(int fd, size_t bytes, void **all)
{
	*all = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, vgem_offset(fd));
	return *all == MAP_FAILED ? NULL : (struct label *)((char *)*all + bytes);
}

static int vgem_new(int device, size_t bytes)
{
	struct drm_mode_create_dumb create = {
		.width = PAGE / 4, .height = (unsigned int)(bytes / PAGE + 1), .bpp = 32};
	int fd = vgem_open();
	struct label *label;
	void *all;

	if (fd < 0)
		return -1;
	if (ioctl(fd, DRM_IOCTL_MODE_CREATE_DUMB, &create) || create.handle != 1 ||
	    !(label = vgem_map(fd, bytes, &all))) {
		close(fd);
		return -1;
	}
	*label = (struct label){.magic = MAGIC, .device = device};
	munmap(all, bytes + PAGE);
	return fd;
}

static bool vgem_look(int fd, struct standin_file *file)
{
	off_t offset = vgem_offset(fd);
	size_t bytes = offset < 0 ? 0 : vgem_bytes(fd);
	struct label *label;
	bool good;
	void *all;

	if (!bytes || !(label = vgem_map(fd, bytes, &all)))
		return false;
	good = label->magic == MAGIC;
	*file = (struct standin_file){.device = label->device, .bytes = bytes, .offset = offset};
	munmap(all, bytes + PAGE);
	return good;
}
#else
static int vgem_new(int device, size_t bytes)
{
	return -1;
}

static bool vgem_look(int fd, struct standin_file *file)
{
	return false;
}
#endif

int standin_file_new(int device, size_t bytes, bool exportable)
{
	const char *files = getenv("TMESH_STANDIN_FILES");

	return exportable && files && !strcmp(files, "vgem") ? vgem_new(device, bytes)
							     : memfd_new(device, bytes);
}

bool standin_file_look(int fd, struct standin_file *file)
{
	*file = (struct standin_file){.device = -1};
	return memfd_look(fd, file) || vgem_look(fd, file);
}
