// SPDX-License-Identifier: MIT
/*
 * Names in the store: tmesh-lock is the lock by which one is the keeper; tmesh-ID-m is a group's
 * manifest, a sealed memfd with what the descriptors do not say; tmesh-ID-I-K is descriptor K of
 * region I. The manifest comes last and goes first: a group without one was never kept, or is gone.
 */
#include "store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MANIFEST_MAGIC 0x4d304d54u /* "TM0M" */
#define LISTEN_START 3
#define LOCK_NAME "tmesh-lock"
#define NAME_ROOM 64
#define NAME_START 23 /* "tmesh-", an id and a dash: the same in all names of a group */
/* How long systemd may take to answer before the group counts as not kept. */
#define BARRIER_MS 2000

struct manifest {
	uint32_t magic;
	uint32_t version;
	uint64_t id;
	uint64_t kept_ns;
	uint64_t expires_ns;
	uint32_t count;
	uint32_t pad;
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_wire_region regions[];
};

bool store_open(struct store *store)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t bytes = path ? strlen(path) : 0;
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);

	store->socket = -1;
	if (bytes < 2 || bytes >= sizeof(address.sun_path) || (*path != '/' && *path != '@'))
		return false;
	memcpy(address.sun_path, path, bytes);
	if (*path == '@')
		address.sun_path[0] = '\0';
	else
		size++;
	store->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (store->socket < 0)
		return false;
	if (connect(store->socket, (struct sockaddr *)&address, size) == 0)
		return true;
	close(store->socket);
	store->socket = -1;
	return false;
}

static int tell(const struct store *store, const char *text, int fd)
{
	return tmesh_wire_send(store->socket, text, strlen(text), &fd, fd >= 0, 0);
}

void store_ready(const struct store *store)
{
	if (store->socket >= 0)
		tell(store, "READY=1", -1);
}

void store_waiting(const struct store *store)
{
	tell(store, "STATUS=another tmesh-keeper runs: waiting for its end", -1);
}

/* systemd reads what was sent in order: when it closes the pipe, all before has been taken. */
static int barrier(const struct store *store)
{
	struct pollfd poller = {.events = 0};
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	rc = tell(store, "BARRIER=1", ends[1]);
	close(ends[1]);
	poller.fd = ends[0];
	if (!rc && poll(&poller, 1, BARRIER_MS) <= 0)
		rc = -ETIMEDOUT;
	close(ends[0]);
	return rc;
}

static int put(const struct store *store, const char *name, int fd)
{
	char text[NAME_ROOM + 48];

	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return tell(store, text, fd);
}

static void take_back(const struct store *store, const char *name)
{
	char text[NAME_ROOM + 48];

	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	tell(store, text, -1);
}

static void manifest_name(char name[NAME_ROOM], uint64_t id)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-m", id);
}

static void item_name(char name[NAME_ROOM], uint64_t id, uint32_t item, unsigned int fd)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-%" PRIu32 "-%u", id, item, fd);
}

static int make_manifest(const struct group *group)
{
	struct manifest head = {
		.magic = MANIFEST_MAGIC,
		.version = TMESH_WIRE_VERSION,
		.id = group->id,
		.kept_ns = group->kept_ns,
		.expires_ns = group->expires_ns,
		.count = group->count,
	};
	int fd = memfd_create("tmesh-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool good;

	if (fd < 0)
		return -errno;
	memcpy(head.name, group->name, sizeof(head.name));
	good = write(fd, &head, sizeof(head)) == sizeof(head);
	for (uint32_t i = 0; good && i < group->count; i++)
		good = write(fd, &group->items[i].wire, sizeof(group->items[i].wire)) ==
		       sizeof(group->items[i].wire);
	if (good && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE))
		return fd;
	close(fd);
	return -ENOSPC;
}

int store_add(const struct store *store, const struct group *group)
{
	char name[NAME_ROOM];
	int manifest, rc = 0;

	if (store->socket < 0)
		return 0;
	manifest = make_manifest(group);
	if (manifest < 0)
		return manifest;
	for (uint32_t i = 0; !rc && i < group->count; i++) {
		for (unsigned int k = 0; !rc && k < 3 && group->items[i].fds[k] >= 0; k++) {
			item_name(name, group->id, i, k);
			rc = put(store, name, group->items[i].fds[k]);
		}
	}
	manifest_name(name, group->id);
	if (!rc)
		rc = put(store, name, manifest);
	close(manifest);
	if (!rc)
		rc = barrier(store);
	if (rc)
		store_remove(store, group);
	return rc;
}

void store_remove(const struct store *store, const struct group *group)
{
	char name[NAME_ROOM];

	if (store->socket < 0)
		return;
	manifest_name(name, group->id);
	take_back(store, name);
	for (uint32_t i = 0; i < group->count; i++) {
		for (unsigned int k = 0; k < 3 && group->items[i].fds[k] >= 0; k++) {
			item_name(name, group->id, i, k);
			take_back(store, name);
		}
	}
	/* Else it would be back when this process is killed now. */
	barrier(store);
}

/* Taking back. Names are systemd's word, what they name is checked as if a stranger had sent it. */

struct stored {
	char name[NAME_ROOM];
	int fd;
};

static struct stored *find(struct stored *all, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (all[i].fd >= 0 && !strcmp(all[i].name, name))
			return &all[i];
	return NULL;
}

static struct manifest *read_manifest(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct manifest *manifest;
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_WRITE) || fstat(fd, &st) || st.st_uid != geteuid() ||
	    st.st_size < (off_t)sizeof(*manifest) ||
	    st.st_size > (off_t)(sizeof(*manifest) +
				 TMESH_KEPT_MAX_REGIONS * sizeof(manifest->regions[0])))
		return NULL;
	manifest = malloc((size_t)st.st_size);
	if (!manifest)
		return NULL;
	if (pread(fd, manifest, (size_t)st.st_size, 0) == st.st_size &&
	    manifest->magic == MANIFEST_MAGIC && manifest->version == TMESH_WIRE_VERSION &&
	    manifest->count && manifest->count <= TMESH_KEPT_MAX_REGIONS &&
	    (size_t)st.st_size ==
		    sizeof(*manifest) + manifest->count * sizeof(manifest->regions[0]) &&
	    name_is_good(manifest->name))
		return manifest;
	free(manifest);
	return NULL;
}

static struct group *gather(const struct manifest *manifest, struct stored *all, size_t count)
{
	struct group *group = group_new(manifest->name, manifest->count, TMESH_GIVER_UNKNOWN);

	if (!group)
		return NULL;
	group->id = manifest->id;
	group->kept_ns = manifest->kept_ns;
	group->expires_ns = manifest->expires_ns;
	for (uint32_t i = 0; i < manifest->count; i++) {
		int fds[3];
		unsigned int got = 0;

		for (; got < 3; got++) {
			char name[NAME_ROOM];
			struct stored *stored;

			item_name(name, manifest->id, i, got);
			stored = find(all, count, name);
			if (!stored)
				break;
			fds[got] = stored->fd;
			stored->fd = -1;
		}
		if (!got || group_add(group, &manifest->regions[i], fds, got, true)) {
			group_free(group);
			return NULL;
		}
	}
	return group;
}

static size_t listen_fds(struct stored **out)
{
	const char *pid = getenv("LISTEN_PID"), *number = getenv("LISTEN_FDS");
	const char *names = getenv("LISTEN_FDNAMES");
	size_t count = number ? strtoul(number, NULL, 10) : 0;
	struct stored *all;

	if (!pid || strtol(pid, NULL, 10) != getpid() || !names || count == 0 || count > 65536)
		return 0;
	all = calloc(count, sizeof(*all));
	for (size_t i = 0; all && i < count; i++) {
		size_t length = strcspn(names, ":");

		all[i].fd = LISTEN_START + (int)i;
		fcntl(all[i].fd, F_SETFD, FD_CLOEXEC);
		if (length < NAME_ROOM)
			memcpy(all[i].name, names, length);
		names += length + (names[length] == ':');
	}
	*out = all;
	return all ? count : 0;
}

static void take_group(const struct store *store, struct table *table, struct stored *manifest_of,
		       struct stored *all, size_t count, uint64_t now)
{
	struct manifest *manifest = read_manifest(manifest_of->fd);
	struct group *group = NULL, *old;
	char name[NAME_ROOM];

	if (manifest) {
		manifest_name(name, manifest->id);
		if (!strcmp(name, manifest_of->name))
			group = gather(manifest, all, count);
		free(manifest);
	}
	if (!group) {
		/* Whatever of it is there, its descriptors are closed already. */
		for (size_t i = 0; i < count; i++)
			if (!strncmp(all[i].name, manifest_of->name, NAME_START))
				take_back(store, all[i].name);
		return;
	}
	/* The keeper ended between keeping the new one and dropping the old one. */
	old = table_find(table, group->name);
	if (old && old->id > group->id) {
		store_remove(store, group);
		group_free(group);
		return;
	}
	if (old)
		table_drop(table, old);
	table_adopt(table, group, now);
}

int store_lock(void)
{
	struct stored *all = NULL, *lock;
	size_t count = listen_fds(&all);
	int fd = -1;

	lock = find(all, count, LOCK_NAME);
	if (lock)
		fd = lock->fd;
	free(all);
	return fd;
}

void store_keep_lock(const struct store *store, int lock)
{
	if (store->socket >= 0)
		put(store, LOCK_NAME, lock);
}

void store_take(const struct store *store, struct table *table, int lock, uint64_t now)
{
	struct stored *all = NULL;
	size_t count = listen_fds(&all);
	struct stored *of_lock = find(all, count, LOCK_NAME);

	if (of_lock && of_lock->fd == lock)
		of_lock->fd = -1;
	for (size_t i = 0; i < count; i++) {
		size_t length = strlen(all[i].name);

		if (all[i].fd < 0 || length < 2 || strcmp(all[i].name + length - 2, "-m"))
			continue;
		take_group(store, table, &all[i], all, count, now);
		close(all[i].fd);
		all[i].fd = -1;
	}
	for (size_t i = 0; i < count; i++) {
		if (all[i].fd < 0)
			continue;
		take_back(store, all[i].name);
		close(all[i].fd);
	}
	free(all);
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}
