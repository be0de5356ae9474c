/* SPDX-License-Identifier: MIT */
/*
 * The parts of V4L2 needed to capture frames into dma-bufs.
 */
#ifndef TMESH_KSELFTEST_V4L2_H
#define TMESH_KSELFTEST_V4L2_H

#include <glob.h>
#include <linux/videodev2.h>

#include "t.h"

/* Open a capture device of the virtual video driver, or skip the test. */
static inline int open_vivid(struct v4l2_format *f)
{
	glob_t found = {0};
	int fd = -1;

	glob("/dev/video*", 0, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc && fd < 0; i++) {
		struct v4l2_capability cap = {0};

		fd = open(found.gl_pathv[i], O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		f->type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
		if (!ioctl(fd, VIDIOC_QUERYCAP, &cap) && !strcmp((char *)cap.driver, "vivid") &&
		    cap.device_caps & V4L2_CAP_VIDEO_CAPTURE &&
		    cap.device_caps & V4L2_CAP_STREAMING && !ioctl(fd, VIDIOC_G_FMT, f))
			break;
		close(fd);
		fd = -1;
	}
	globfree(&found);
	if (fd < 0)
		t_skip("no vivid capture device");
	return fd;
}

/* Queue a dma-buf to be filled. */
static inline int queue(int video, unsigned int index, int dmabuf)
{
	struct v4l2_buffer b = {
		.index = index,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_DMABUF,
		.m.fd = dmabuf,
	};

	return ioctl(video, VIDIOC_QBUF, &b);
}

static inline int request_buffers(int video, unsigned int n)
{
	struct v4l2_requestbuffers rb = {
		.count = n,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_DMABUF,
	};

	return ioctl(video, VIDIOC_REQBUFS, &rb);
}

/* Let vivid capture one frame of at most @room bytes into a dma-buf. Return its length. */
static inline unsigned int vivid_fill(int dmabuf, size_t room)
{
	int type = V4L2_BUF_TYPE_VIDEO_CAPTURE, video;
	struct v4l2_buffer b = {.type = type, .memory = V4L2_MEMORY_DMABUF};
	struct v4l2_format f = {0};
	struct pollfd pf = {.events = POLLIN};

	video = open_vivid(&f);
	f.fmt.pix.width = 320;
	f.fmt.pix.height = 180;
	f.fmt.pix.pixelformat = V4L2_PIX_FMT_RGB24;
	REQUIRE_OK(ioctl(video, VIDIOC_S_FMT, &f));
	REQUIRE(f.fmt.pix.sizeimage <= room);
	REQUIRE_OK(request_buffers(video, 1));
	REQUIRE_OK(queue(video, 0, dmabuf));
	REQUIRE_OK(ioctl(video, VIDIOC_STREAMON, &type));
	pf.fd = video;
	REQUIRE(poll(&pf, 1, 60000) == 1);
	REQUIRE_OK(ioctl(video, VIDIOC_DQBUF, &b));
	REQUIRE_OK(ioctl(video, VIDIOC_STREAMOFF, &type));
	REQUIRE_OK(request_buffers(video, 0));
	close(video);
	return b.bytesused;
}

#endif
