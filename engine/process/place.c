// SPDX-License-Identifier: MIT
/*
 * The files of an engine's name in the runtime directory. The supervisor owns the lock, the socket
 * and the folder. The engine's process may make sockets in the folder, and reaches nothing else.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/file_size.h"
#include "process.h"

#define FILE_NAME (sizeof(((struct place *)0)->name) + 8)

/* Take the lock. It belongs to this process alone, and the kernel gives a reader the owner's
 * number. The lock ends with its owner, which may also have removed the file: then take it
 * again. */
static int take_lock(struct place *place, struct tmesh_error *err)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char name[FILE_NAME];
	struct stat st;
	int fd;

	snprintf(name, sizeof(name), "%s" ENGINE_STATUS_SUFFIX, place->name);
	for (;; close(fd)) {
		fd = openat(place->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return tmesh_fail_errno(err, name);
		if (fcntl(fd, F_SETLK, &lock) || fstat(fd, &st))
			break;
		if (st.st_nlink) {
			place->lock = fd;
			return 0;
		}
	}
	if (errno != EAGAIN && errno != EACCES)
		tmesh_fail_errno(err, name);
	else
		tmesh_fail(err, -EBUSY, "an engine is served as \"%s\" already",
			   place->name + strlen(WIRE_SOCKET));
	close(fd);
	return -1;
}

static int show_status(struct place *place, struct tmesh_error *err)
{
	struct engine_status_place words = {.magic = ENGINE_STATUS_MAGIC};

	if (status_new(&place->status_fd, &place->status, err))
		return -1;
	words.fd = (uint32_t)place->status_fd;
	if (tmesh_ftruncate(place->lock, 0) ||
	    tmesh_pwrite(place->lock, &words, sizeof(words), 0) != sizeof(words))
		return tmesh_fail_errno(err, "writing the number of the status's descriptor");
	return 0;
}

static int make_folder(struct place *place, struct tmesh_error *err)
{
	char name[FILE_NAME];
	struct stat st;

	snprintf(name, sizeof(name), "%s" WIRE_FOLDER, place->name);
	if (mkdirat(place->dir, name, 0700) && errno != EEXIST)
		return tmesh_fail_errno(err, name);
	place->folder = openat(place->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (place->folder < 0 || fstat(place->folder, &st))
		return tmesh_fail_errno(err, name);
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return tmesh_fail(err, -EACCES,
				  "%s in the runtime directory is not this user's alone: remove it",
				  name);
	place_sweep(place);
	return 0;
}

bool place_is_deaf(const struct place *place)
{
	struct pollfd at = {.fd = place->listener, .events = POLLRDHUP};

	return poll(&at, 1, 0) > 0;
}

int place_listen(struct place *place, struct tmesh_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (place->listener >= 0)
		close(place->listener);
	/* An earlier engine of this name may have left its socket. */
	unlinkat(place->dir, place->name, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", place->dir,
		 place->name);
	place->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (place->listener < 0 ||
	    bind(place->listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(place->listener, BACKLOG))
		return tmesh_fail_errno(err, "the engine's socket");
	return 0;
}

int place_claim(struct place *place, const char *name, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, err);

	if (rc)
		return -1;
	rc = tmesh_ctx_runtime_dir(ctx, &place->dir, err);
	tmesh_ctx_unref(ctx);
	if (rc)
		return -1;
	snprintf(place->name, sizeof(place->name), WIRE_SOCKET "%s", name);
	if (take_lock(place, err) || show_status(place, err) || make_folder(place, err) ||
	    place_listen(place, err))
		return -1;
	return 0;
}

void place_sweep(const struct place *place)
{
	int copy = openat(place->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!list && copy >= 0)
		close(copy);
	while (list && (entry = readdir(list)))
		if (entry->d_name[0] != '.')
			unlinkat(place->folder, entry->d_name, 0);
	if (list)
		closedir(list);
}

void place_leave(struct place *place)
{
	char name[FILE_NAME];

	if (place->lock < 0)
		return;
	unlinkat(place->dir, place->name, 0);
	if (place->folder >= 0)
		place_sweep(place);
	snprintf(name, sizeof(name), "%s" WIRE_FOLDER, place->name);
	unlinkat(place->dir, name, AT_REMOVEDIR);
	snprintf(name, sizeof(name), "%s" ENGINE_STATUS_SUFFIX, place->name);
	unlinkat(place->dir, name, 0);
}
