// SPDX-License-Identifier: MIT
/*
 * Questions to keepers. A keeper is its user's program and may lie: only sealed memory of that user
 * is taken from it, and each question has a deadline.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../memfd.h"
#include "common/utf8.h"
#include "mount.h"

/* Change the user of this thread alone: the C library would change all threads. */
static bool become(uid_t uid)
{
	return uid == tree.own || syscall(SYS_setresuid, (uid_t)-1, uid, (uid_t)-1) == 0;
}

static void become_self(uid_t uid)
{
	if (uid != tree.own && syscall(SYS_setresuid, (uid_t)-1, tree.own, (uid_t)-1))
		abort();
}

static int name_folder(char *path, size_t size, const char *pattern, uid_t uid)
{
	const char *at = strstr(pattern, "%u");
	int length;

	if (!at && uid != tree.own)
		return -ENOENT;
	length = at ? snprintf(path, size, "%.*s%u%s", (int)(at - pattern), pattern,
			       (unsigned int)uid, at + 2)
		    : snprintf(path, size, "%s", pattern);
	return (size_t)length < size ? 0 : -ENAMETOOLONG;
}

/* Connect to the socket in a runtime folder, which must be the user's alone. */
static int connect_in(int fd, const char *path, uid_t uid, uint64_t deadline)
{
	int dir = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;
	struct sockaddr_un address;
	struct statx st;
	socklen_t length;

	if (dir < 0)
		return -errno;
	/* In /tmp each user can make folders with others' numbers. A file system that the user
	 * serves is not asked, since it may not answer. */
	if (statx(dir, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MODE | STATX_UID, &st) ||
	    st.stx_uid != uid || (st.stx_mode & 077)) {
		close(dir);
		return -EACCES;
	}
	length = tmesh_rundir_address(dir, TMESH_KEEPER_SOCKET, &address);
	while (connect(fd, (struct sockaddr *)&address, length)) {
		rc = -errno;
		if (rc != -EAGAIN || tmesh_now_ns() >= deadline)
			break;
		/* Its queue is full. */
		poll(NULL, 0, 2);
		rc = 0;
	}
	close(dir);
	return rc;
}

static int check_peer(int fd, uid_t uid)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != uid ? -EACCES
											: 0;
}

static int ask_connect(uid_t uid, uint64_t deadline)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc = -ENOENT;
	char path[4096];

	if (fd < 0)
		return -errno;
	if (!become(uid)) {
		close(fd);
		return -EPERM;
	}
	for (size_t i = 0; rc && i < tree.keeper_count; i++)
		if (name_folder(path, sizeof(path), tree.keepers[i], uid) == 0)
			rc = connect_in(fd, path, uid, deadline);
	become_self(uid);
	if (!rc)
		rc = check_peer(fd, uid);
	if (!rc)
		return fd;
	close(fd);
	return rc == -ECONNREFUSED || rc == -ENOTDIR || rc == -ELOOP ? -ENOENT : rc;
}

static int send_request(int fd, enum tmesh_keeper_op op, uint32_t flags, const char *name,
			uint64_t id, uint32_t region)
{
	struct tmesh_keeper_request request = {
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.op = op,
		.flags = flags,
		.rights = TMESH_READ,
		.id = id,
		.region = region,
	};

	memcpy(request.name, name, strlen(name));
	return tmesh_wire_send(fd, &request, sizeof(request), NULL, 0, MSG_DONTWAIT);
}

/* Receive a reply. @with: gets a descriptor that comes along, else -1; NULL: none may come. */
static int recv_reply(int fd, struct tmesh_keeper_reply *reply, int *with, uint64_t deadline)
{
	int rc;

	if (with)
		*with = -1;
	rc = with ? tmesh_wire_recv(fd, reply, sizeof(*reply), with, 1, deadline)
		  : tmesh_wire_recv_plain(fd, reply, sizeof(*reply), deadline, NULL);
	if (rc < 0)
		return rc;
	rc = 0;
	if (reply->magic != TMESH_MAGIC_KEEP || reply->version != TMESH_WIRE_VERSION ||
	    reply->status > 0 || reply->status < -4095)
		rc = -EPROTO;
	else
		rc = reply->status;
	if (rc && with && *with >= 0) {
		tmesh_foreign_close(*with, tmesh_giver_at(fd));
		*with = -1;
	}
	return rc;
}

/* Check that the name can be a folder's, as the library requires for names with files. */
static bool row_is_good(const struct tmesh_keeper_row *row)
{
	size_t length = strnlen(row->name, sizeof(row->name));

	return length && length < sizeof(row->name) &&
	       tmesh_utf8_span(row->name, length, false) == length &&
	       tmesh_paths_may_begin(row->name) && (row->flags & TMESH_KEEPER_PATHS) &&
	       (row->mode == 0600 || row->mode == 0640 || row->mode == 0644) && row->count &&
	       row->count <= TMESH_KEPT_MAX_REGIONS;
}

static int take_table(int fd, int paths, const struct tmesh_keeper_row *row, uid_t uid,
		      struct table **out)
{
	struct table *table = calloc(1, sizeof(*table));
	int rc = 0;

	if (!table)
		return -ENOMEM;
	table->refs = 1;
	table->paths = tmesh_paths_read(paths, uid, row->count, TMESH_PATHS_MAX, &table->length);
	if (!table->paths) {
		rc = errno ? -errno : -EPROTO;
		free(table);
		return rc;
	}
	*out = table;
	return 0;
}

int ask_find(uid_t uid, const char *name, struct tmesh_keeper_row *row, struct table **table,
	     uint64_t deadline)
{
	int fd = ask_connect(uid, deadline), paths = -1, rc;
	struct tmesh_keeper_reply reply;

	if (fd < 0)
		return fd;
	rc = send_request(fd, TMESH_KEEPER_FIND, table ? TMESH_KEEPER_PATHS : 0, name, 0, 0);
	if (!rc)
		rc = recv_reply(fd, &reply, table ? &paths : NULL, deadline);
	if (!rc)
		rc = tmesh_wire_recv_plain(fd, row, sizeof(*row), deadline, NULL);
	if (!rc && (!row_is_good(row) || strcmp(row->name, name)))
		rc = row->flags & TMESH_KEEPER_PATHS ? -EPROTO : -ENOENT;
	if (!rc && table)
		rc = paths < 0 ? -EPROTO : take_table(fd, paths, row, uid, table);
	if (paths >= 0)
		tmesh_foreign_close(paths, tmesh_giver_at(fd));
	close(fd);
	return rc;
}

/* Check for sealed memory of tmpfs that belongs to the user: no process can change or cut it. */
static int check_memory(int fd, uid_t uid, uint64_t least_bytes, uint64_t *bytes)
{
	const int wanted = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int seals = tmesh_foreign_seals(fd);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || (seals & wanted) != wanted || fstatfs(fd, &fs) ||
	    fs.f_type != TMPFS_MAGIC || fstat(fd, &st) || !S_ISREG(st.st_mode) ||
	    st.st_uid != uid || st.st_size < 0 || (uint64_t)st.st_size < least_bytes ||
	    (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
		return -EPROTO;
	*bytes = (uint64_t)st.st_size;
	return 0;
}

int ask_open_region(const struct group *group, uint32_t region, uint64_t least_bytes,
		    uint64_t *bytes, uint64_t deadline)
{
	uid_t uid = group->user->uid;
	int fd = ask_connect(uid, deadline), memory[3], rc, got = 0;
	struct tmesh_keeper_reply reply;
	struct tmesh_wire_region wire;

	if (fd < 0)
		return fd;
	rc = send_request(fd, TMESH_KEEPER_OPEN_REGION, 0, group->name, group->id, region);
	if (!rc)
		rc = recv_reply(fd, &reply, NULL, deadline);
	if (!rc) {
		got = tmesh_wire_recv(fd, &wire, sizeof(wire), memory, 3, deadline);
		rc = got < 0 ? got : 0;
	}
	if (!rc && (got != 1 || wire.magic != TMESH_MAGIC_REGION))
		rc = -EPROTO;
	if (!rc)
		rc = check_memory(memory[0], uid, least_bytes, bytes);
	if (rc && got > 0)
		tmesh_foreign_close_all(memory, (unsigned int)got, tmesh_giver_at(fd));
	close(fd);
	return rc ? rc : memory[0];
}

int ask_list(uid_t uid, struct tmesh_keeper_row **rows, uint32_t *count, uint64_t deadline)
{
	int fd = ask_connect(uid, deadline), rc;
	struct tmesh_keeper_reply reply;
	struct tmesh_keeper_row *all = NULL;
	uint32_t good = 0;

	if (fd < 0)
		return fd;
	rc = send_request(fd, TMESH_KEEPER_LIST, 0, "", 0, 0);
	if (!rc)
		rc = recv_reply(fd, &reply, NULL, deadline);
	if (!rc && reply.count > TMESH_KEEPER_MAX_NAMES)
		rc = -EPROTO;
	if (!rc && !(all = calloc(reply.count ? reply.count : 1, sizeof(*all))))
		rc = -ENOMEM;
	for (uint32_t i = 0; !rc && i < reply.count; i++) {
		rc = tmesh_wire_recv_plain(fd, &all[good], sizeof(all[good]), deadline, NULL);
		good += !rc && row_is_good(&all[good]);
	}
	close(fd);
	if (rc) {
		free(all);
		return rc;
	}
	*rows = all;
	*count = good;
	return 0;
}
