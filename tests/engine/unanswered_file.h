/* SPDX-License-Identifier: MIT */
/*
 * A file whose server, a FUSE file system of one file, answers no more once it is open. A call of
 * close() on another descriptor of it waits until the server ends.
 */
#ifndef TMESH_TEST_UNANSWERED_FILE_H
#define TMESH_TEST_UNANSWERED_FILE_H

#include <linux/fuse.h>
#include <sys/mount.h>

#include "unit.h"

struct unanswered_file {
	char path[64];
	pid_t server;
	int fd;
};

static inline void unanswered_reply(int dev, const struct fuse_in_header *in, int error,
				    const void *data, size_t size)
{
	struct {
		struct fuse_out_header head;
		char data[256];
	} out = {.head = {.len = sizeof(out.head) + size, .error = error, .unique = in->unique}};

	memcpy(out.data, data, size);
	if (write(dev, &out, out.head.len) < 0)
		_exit(1);
}

static inline void unanswered_serve(int dev)
{
	static char in[FUSE_MIN_READ_BUFFER + 4096];
	const struct fuse_in_header *head = (void *)in;
	const struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
					   .minor = FUSE_KERNEL_MINOR_VERSION,
					   .max_write = 4096};
	const struct fuse_attr_out attr = {.attr = {.ino = 1, .mode = S_IFREG | 0600, .nlink = 1}};
	const struct fuse_open_out opened = {.fh = 1};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A test that fails is not to wait for ever. */
	alarm(600);
	while (read(dev, in, sizeof(in)) > 0) {
		if (head->opcode == FUSE_INIT)
			unanswered_reply(dev, head, 0, &init, sizeof(init));
		else if (head->opcode == FUSE_GETATTR)
			unanswered_reply(dev, head, 0, &attr, sizeof(attr));
		else if (head->opcode == FUSE_OPEN)
			unanswered_reply(dev, head, 0, &opened, sizeof(opened));
		else if (head->opcode == FUSE_FLUSH || head->opcode == FUSE_POLL)
			continue;
		else if (head->opcode != FUSE_RELEASE && head->opcode != FUSE_FORGET)
			unanswered_reply(dev, head, -ENOSYS, "", 0);
	}
	_exit(0);
}

/* Return: whether there is one; not without root, or a kernel with FUSE. */
static inline bool unanswered_open(struct unanswered_file *file)
{
	int dev = open("/dev/fuse", O_RDWR | O_CLOEXEC), made;
	char options[64];

	if (dev < 0)
		return false;
	strcpy(file->path, "/tmp/tmesh-unanswered-XXXXXX");
	made = mkstemp(file->path);
	assert_true(made >= 0);
	close(made);
	snprintf(options, sizeof(options), "fd=%d,rootmode=100600,user_id=0,group_id=0", dev);
	if (mount("tmesh-test", file->path, "fuse", MS_NOSUID | MS_NODEV, options)) {
		unlink(file->path);
		close(dev);
		return false;
	}
	file->server = fork();
	if (!file->server)
		unanswered_serve(dev);
	close(dev);
	file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
	assert_true(file->fd >= 0);
	return true;
}

/* All who wait to close it go on. */
static inline void unanswered_close(struct unanswered_file *file)
{
	kill(file->server, SIGKILL);
	waitpid(file->server, NULL, 0);
	close(file->fd);
	umount2(file->path, MNT_DETACH);
	unlink(file->path);
}

#endif /* TMESH_TEST_UNANSWERED_FILE_H */
