/* SPDX-License-Identifier: MIT */
/*
 * The parts of DRM needed to import a dma-buf into vgem, and for vgem's fences.
 */
#ifndef TMESH_KSELFTEST_DRM_H
#define TMESH_KSELFTEST_DRM_H

#include <libdrm/drm.h>

#include "t.h"

/*
 * vgem's own calls, with which a program acts as a device that works on a buffer. libdrm does not
 * have them.
 */
struct vgem_fence_attach {
	__u32 handle;
	__u32 flags;
	__u32 out_fence;
	__u32 pad;
};

struct vgem_fence_signal {
	__u32 fence;
	__u32 flags;
};

#define VGEM_FENCE_WRITE 1
#define VGEM_FENCE_ATTACH DRM_IOWR(DRM_COMMAND_BASE + 1, struct vgem_fence_attach)
#define VGEM_FENCE_SIGNAL DRM_IOW(DRM_COMMAND_BASE + 2, struct vgem_fence_signal)

static char vgem_path[32];

/* Open the virtual GEM device and set its path, or skip the test. */
static inline int open_vgem(void)
{
	for (int i = 0; i < 16; i++) {
		char name[8] = "";
		struct drm_version v = {.name = name, .name_len = sizeof(name) - 1};
		int fd;

		snprintf(vgem_path, sizeof(vgem_path), "/dev/dri/card%d", i);
		fd = open(vgem_path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && !ioctl(fd, DRM_IOCTL_VERSION, &v) && !strcmp(name, "vgem"))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	t_skip("no vgem device");
}

/* Import a dma-buf into vgem. Return the handle, or -1 with errno. */
static inline int vgem_import(int vgem, int dmabuf)
{
	struct drm_prime_handle p = {.fd = dmabuf};

	return ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &p) ? -1 : (int)p.handle;
}

static inline int vgem_close(int vgem, int handle)
{
	struct drm_gem_close c = {.handle = handle};

	return ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &c);
}

/* Create a buffer of vgem. The size is a multiple of 4 MiB / 1024. */
static inline __u32 vgem_create(int vgem, size_t bytes)
{
	struct drm_mode_create_dumb c = {.width = bytes / 4096, .height = 1024, .bpp = 32};

	REQUIRE_OK(ioctl(vgem, DRM_IOCTL_MODE_CREATE_DUMB, &c));
	REQUIRE(c.size == bytes);
	return c.handle;
}

static inline int vgem_export(int vgem, __u32 handle, __u32 flags)
{
	struct drm_prime_handle p = {.handle = handle, .flags = flags | DRM_CLOEXEC};

	REQUIRE_OK(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &p));
	return p.fd;
}

/* Create a buffer and export it as a dma-buf. Its descriptor can write with DRM_RDWR in @flags. */
static inline int vgem_buffer(int vgem, size_t bytes, __u32 flags)
{
	__u32 handle = vgem_create(vgem, bytes);
	int dmabuf = vgem_export(vgem, handle, flags);

	REQUIRE_OK(vgem_close(vgem, handle));
	return dmabuf;
}

#endif
