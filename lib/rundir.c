// SPDX-License-Identifier: MIT
/*
 * The runtime directory: producers' sockets, each with a link to its index beside it. The directory
 * keeps other users out, so it must be this user's, closed to others, and no symlink. All access
 * goes through the descriptor that was checked, which also makes long paths fit into a socket's
 * address.
 */
#include "wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/folder.h"

/* A start removes so many sockets of producers that died, and leaves the rest to the next. */
#define SWEEP_MAX 256

int tmesh_rundir_path(const struct tmesh_ctx *ctx, char *path, size_t size, struct tmesh_error *err)
{
	int length = ctx->runtime_dir_of_user ? snprintf(path, size, "%s/tmesh-%u",
							 ctx->runtime_dir, (unsigned int)geteuid())
					      : snprintf(path, size, "%s", ctx->runtime_dir);

	if ((size_t)length >= size)
		return tmesh_fail(err, -ENAMETOOLONG, "the runtime directory's path is too long");
	return 0;
}

static int verify(int dir, const char *path, struct tmesh_error *err)
{
	struct stat st;

	if (fstat(dir, &st))
		return tmesh_fail_errno(err, "fstat of the runtime directory");
	if (st.st_uid != geteuid())
		return tmesh_fail(err, -EACCES,
				  "the runtime directory %.128s belongs to another user; set "
				  "TMESH_RUNTIME_DIR to one of your own",
				  path);
	if (st.st_mode & 077)
		/* It may be /tmp: then its mode is not to be changed. */
		return tmesh_fail(err, -EACCES,
				  "the runtime directory %.128s is open to other users; set "
				  "TMESH_RUNTIME_DIR to one of your own, or chmod 700 this one if "
				  "only you use it",
				  path);
	return 0;
}

static int refuse_parent(const char *path, uid_t owner, struct tmesh_error *err)
{
	const unsigned int us = geteuid();

	return tmesh_fail(err, -EACCES,
			  "cannot make the runtime directory %.128s: user %u owns the folder above "
			  "it, and this process is user %u; set TMESH_RUNTIME_DIR to a folder of "
			  "user %u",
			  path, (unsigned int)owner, us, us);
}

int tmesh_ctx_runtime_dir(struct tmesh_ctx *ctx, int *fd, struct tmesh_error *err)
{
	char path[4096], text[64];
	int rc = TMESH_NEED(err, ctx, fd);
	uid_t owner;
	int dir;

	if (!rc)
		rc = tmesh_rundir_path(ctx, path, sizeof(path), err);
	if (rc)
		return rc;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 && errno == ENOENT) {
		rc = tmesh_make_folder(path, &owner);
		if (owner != TMESH_NO_OWNER)
			return refuse_parent(path, owner, err);
		if (rc) {
			errno = -rc;
			goto failed;
		}
		dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	}
	if (dir < 0)
		goto failed;
	rc = verify(dir, path, err);
	if (rc) {
		close(dir);
		return rc;
	}
	*fd = dir;
	return 0;

failed:
	rc = -errno;
	if (rc == -EMFILE || rc == -ENFILE)
		return tmesh_fail_errno(err, "opening the runtime directory");
	if (rc == -ELOOP || rc == -ENOTDIR)
		return tmesh_fail(err, -EACCES,
				  "the runtime directory %.128s is a symlink or no directory",
				  path);
	return tmesh_fail(err, rc,
			  "cannot use the runtime directory %.128s: %s; set TMESH_RUNTIME_DIR to "
			  "another, which is made where its parent exists",
			  path, strerror_r(-rc, text, sizeof(text)));
}

int tmesh_rundir_open(struct tmesh_ctx *ctx, int *out, struct tmesh_error *err)
{
	struct stat st;
	int dir, rc;

	/* Its number is another file's where this process has closed all descriptors. */
	if (ctx->memfd.dir >= 0 && (fstat(ctx->memfd.dir, &st) || st.st_ino != ctx->memfd.dir_ino ||
				    st.st_dev != ctx->memfd.dir_dev))
		ctx->memfd.dir = -1;
	/* A directory that was removed takes no more files. One of this process's earlier user
	 * takes none of its present user's. */
	if (ctx->memfd.dir >= 0 && (!st.st_nlink || st.st_uid != geteuid())) {
		close(ctx->memfd.dir);
		ctx->memfd.dir = -1;
	}
	if (ctx->memfd.dir >= 0) {
		*out = ctx->memfd.dir;
		return 0;
	}
	rc = tmesh_ctx_runtime_dir(ctx, &dir, err);
	if (rc)
		return rc;
	if (fstat(dir, &st)) {
		rc = tmesh_fail_errno(err, "fstat of the runtime directory");
		close(dir);
		return rc;
	}
	ctx->uid = st.st_uid;
	ctx->memfd.dir_dev = st.st_dev;
	ctx->memfd.dir_ino = st.st_ino;
	*out = ctx->memfd.dir = dir;
	return 0;
}

socklen_t tmesh_rundir_address(int dir, const char *name, struct sockaddr_un *address)
{
	int length;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	length = snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/%.32s",
			  dir, name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length + 1);
}

/* NAME.index, and the name that it has until it is whole. */
#define LINK_NAME 48
#define LINK_FORMAT "/proc/%d/fd/%d"

static void link_name(char out[LINK_NAME], const char *name, const char *end)
{
	snprintf(out, LINK_NAME, "%.32s.%s", name, end);
}

int tmesh_rundir_link(int dir, const char *name, int index)
{
	char target[64], last[LINK_NAME], first[LINK_NAME];
	int rc = 0;

	snprintf(target, sizeof(target), LINK_FORMAT, (int)getpid(), index);
	link_name(first, name, "new");
	link_name(last, name, "index");
	if (symlinkat(target, dir, first))
		return -errno;
	if (renameat(dir, first, dir, last)) {
		rc = -errno;
		unlinkat(dir, first, 0);
	}
	return rc;
}

bool tmesh_rundir_follow(const struct tmesh_ctx *ctx, const char *name, pid_t *pid, int *index)
{
	char path[4096], target[64], again[64];
	struct stat st;
	size_t length;
	ssize_t got;

	if (tmesh_rundir_path(ctx, path, sizeof(path) - LINK_NAME - 1, NULL))
		return false;
	/* Another user that can write there could choose the files that are opened in our name. */
	if (lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & 022))
		return false;
	length = strlen(path);
	path[length++] = '/';
	link_name(path + length, name, "index");
	got = readlink(path, target, sizeof(target) - 1);
	if (got < 0)
		return false;
	target[got] = '\0';
	/* Accept only the exact form of tmesh_rundir_link(): no large or padded numbers. */
	if (sscanf(target, LINK_FORMAT, pid, index) != 2 || *pid <= 0 || *index < 0)
		return false;
	snprintf(again, sizeof(again), LINK_FORMAT, *pid, *index);
	return strcmp(target, again) == 0;
}

/* Remove the socket last, so that no link stays without one and a sweep finds it. */
int tmesh_rundir_remove(int dir, const char *name)
{
	char link[LINK_NAME];

	link_name(link, name, "new");
	unlinkat(dir, link, 0);
	link_name(link, name, "index");
	unlinkat(dir, link, 0);
	return unlinkat(dir, name, 0);
}

/* Connect by the path itself if it fits: the way by the descriptor costs a client several us. The
 * caller checks which user listens there (SO_PEERCRED), so the way itself needs no check. */
int tmesh_rundir_connect(const struct tmesh_ctx *ctx, int socket, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[4096];
	size_t length;
	int dir, rc;

	rc = tmesh_rundir_path(ctx, path, sizeof(path) - 34, NULL);
	if (rc)
		return rc;
	length = strlen(path);
	if (length + 34 <= sizeof(address.sun_path)) {
		path[length] = '/';
		memcpy(path + length + 1, name, 33);
		memcpy(address.sun_path, path, length + 34);
		return connect(socket, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	}
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	rc = connect(socket, (struct sockaddr *)&address,
		     tmesh_rundir_address(dir, name, &address));
	rc = rc ? -errno : 0;
	close(dir);
	return rc;
}

static bool is_socket_name(const char *name)
{
	uint8_t bytes[16];

	return strlen(name) == 32 && tmesh_unhex(bytes, name, sizeof(bytes));
}

/*
 * Remove the sockets of dead processes. A connect() with the wrong type distinguishes a bound
 * socket (EPROTOTYPE) from one whose process is gone (ECONNREFUSED). It wakes no process, and works
 * even before the socket listens. Names are never reused, so no lock is needed: a second sweeper
 * finds nothing to remove.
 */
void tmesh_rundir_sweep(struct tmesh_ctx *ctx, int dir)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	unsigned int removed = 0;
	struct dirent *entry;

	if (!list && copy >= 0)
		close(copy);
	while (list && probe >= 0 && removed < SWEEP_MAX && (entry = readdir(list))) {
		struct sockaddr_un address;
		socklen_t size;

		if (!is_socket_name(entry->d_name))
			continue;
		size = tmesh_rundir_address(dir, entry->d_name, &address);
		if (connect(probe, (struct sockaddr *)&address, size) && errno == ECONNREFUSED &&
		    tmesh_rundir_remove(dir, entry->d_name) == 0)
			removed++;
	}
	if (list)
		closedir(list);
	if (probe >= 0)
		close(probe);
	if (removed)
		tmesh_log_later(ctx, TMESH_LOG_INFO,
				"removed %u sockets of processes that are gone", removed);
}
