// SPDX-License-Identifier: MIT
/*
 * Names in the store:
 *
 *  tmesh-lock      the keeper's lock
 *  tmesh-ID-m      a group's manifest, a sealed memfd with all that the descriptors do not show
 *  tmesh-ID-p      the group's table of paths, if it has one
 *  tmesh-ID-I-K    descriptor K of region I
 *  tmesh-ID-k      its record for the next kernel (kexec.h)
 *
 * The manifest comes last and goes first: a group without one was never kept, or is gone.
 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/file_size.h"
#include "kexec.h"

#define MANIFEST_MAGIC 0x4d304d54u /* "TM0M" */
#define MANIFEST_PATHS 1u	   /* it has a table of paths */
#define MANIFEST_BOOT 2u	   /* the boot's id is behind the regions */
#define LISTEN_START 3
#define LOCK_NAME "tmesh-lock"
#define NAME_ROOM 64
#define NAME_START 23 /* "tmesh-", an id and a dash: the same in all names of a group */
/* How long systemd may take to answer before the group counts as not kept. */
#define BARRIER_NS UINT64_C(2000000000)
/* The time that systemd is asked for to read a file: this, and a second for each 100 MB. */
#define READING_US UINT64_C(60000000)
#define READING_BYTES_US 100
#define WHY_BYTES (KEXEC_WHY_BYTES + 32)

struct manifest {
	uint32_t magic;
	uint32_t version;
	uint64_t id;
	uint64_t kept_ns;
	uint64_t expires_ns;
	uint32_t count;
	uint32_t flags; /* MANIFEST_* */
	uint32_t mode;
	uint32_t gid;
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
	if (connect(store->socket, (struct sockaddr *)&address, size) == 0) {
		kexec_boot(store->boot);
		return true;
	}
	close(store->socket);
	store->socket = -1;
	return false;
}

static int store_notify(const struct store *store, const char *text, int fd)
{
	return tmesh_wire_send(store->socket, text, strlen(text), &fd, fd >= 0, 0);
}

void store_ready(const struct store *store)
{
	if (store->socket >= 0)
		store_notify(store, "READY=1", -1);
}

void store_waiting(const struct store *store)
{
	store_notify(store, "STATUS=another tmesh-keeper runs: waiting for its end", -1);
}

/* Wait until systemd has taken everything sent so far. It reads in order, so its close of the pipe
 * comes after all of that. */
static int barrier(const struct store *store)
{
	uint64_t deadline = tmesh_now_ns() + BARRIER_NS;
	struct pollfd poller = {.events = 0};
	int ends[2], rc, got;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	rc = store_notify(store, "BARRIER=1", ends[1]);
	close(ends[1]);
	poller.fd = ends[0];
	do
		got = rc ? 1 : poll(&poller, 1, tmesh_poll_ms(deadline));
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		rc = -ETIMEDOUT;
	close(ends[0]);
	return rc;
}

static int store_put(const struct store *store, const char *name, int fd)
{
	char text[NAME_ROOM + 48];

	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return store_notify(store, text, fd);
}

static void take_back(const struct store *store, const char *name)
{
	char text[NAME_ROOM + 48];

	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	store_notify(store, text, -1);
}

static void manifest_name(char name[NAME_ROOM], uint64_t id)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-m", id);
}

static void paths_name(char name[NAME_ROOM], uint64_t id)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-p", id);
}

static void item_name(char name[NAME_ROOM], uint64_t id, uint32_t item, unsigned int fd)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-%" PRIu32 "-%u", id, item, fd);
}

static void record_name(char name[NAME_ROOM], uint64_t id)
{
	snprintf(name, NAME_ROOM, "tmesh-%016" PRIx64 "-k", id);
}

static size_t manifest_bytes(uint32_t count, uint32_t flags)
{
	return sizeof(struct manifest) + count * sizeof(struct tmesh_wire_region) +
	       (flags & MANIFEST_BOOT ? KEXEC_BOOT_BYTES : 0);
}

/* Return the manifest of a group, to free(), of @size bytes; NULL: no memory. */
static struct manifest *make_manifest(const struct store *store, const struct group *group,
				      size_t *size)
{
	struct manifest *manifest;
	uint32_t flags = group->paths >= 0 ? MANIFEST_PATHS : 0;

	if (*store->boot && !group->no_boot)
		flags |= MANIFEST_BOOT;
	*size = manifest_bytes(group->count, flags);
	manifest = calloc(1, *size);
	if (!manifest)
		return NULL;
	manifest->magic = MANIFEST_MAGIC;
	manifest->version = TMESH_WIRE_VERSION;
	manifest->id = group->id;
	manifest->kept_ns = group->kept_ns;
	manifest->expires_ns = group->expires_ns;
	manifest->count = group->count;
	manifest->flags = flags;
	manifest->mode = group->mode;
	manifest->gid = group->gid;
	memcpy(manifest->name, group->name, sizeof(manifest->name));
	for (uint32_t i = 0; i < group->count; i++)
		manifest->regions[i] = group->items[i].wire;
	if (flags & MANIFEST_BOOT)
		memcpy(&manifest->regions[group->count], store->boot, sizeof(store->boot));
	return manifest;
}

/* Return sealed memory with @data, or a negative errno. */
static int sealed(const void *data, size_t bytes)
{
	int fd = memfd_create("tmesh-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (tmesh_write(fd, data, bytes) == (ssize_t)bytes &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE))
		return fd;
	close(fd);
	return -ENOSPC;
}

static int sealed_manifest(const struct store *store, const struct group *group)
{
	size_t bytes;
	struct manifest *manifest = make_manifest(store, group, &bytes);
	int fd = manifest ? sealed(manifest, bytes) : -ENOMEM;

	free(manifest);
	return fd;
}

int store_add(const struct store *store, const struct group *group)
{
	char name[NAME_ROOM];
	int manifest, rc = 0;

	if (store->socket < 0)
		return 0;
	manifest = sealed_manifest(store, group);
	if (manifest < 0)
		return manifest;
	for (uint32_t i = 0; !rc && i < group->count; i++) {
		for (unsigned int k = 0; !rc && k < 3 && group->items[i].fds[k] >= 0; k++) {
			item_name(name, group->id, i, k);
			rc = store_put(store, name, group->items[i].fds[k]);
		}
	}
	if (!rc && group->paths >= 0) {
		paths_name(name, group->id);
		rc = store_put(store, name, group->paths);
	}
	manifest_name(name, group->id);
	if (!rc)
		rc = store_put(store, name, manifest);
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
	if (group->restored) {
		record_name(name, group->id);
		take_back(store, name);
	}
	if (group->paths >= 0) {
		paths_name(name, group->id);
		take_back(store, name);
	}
	for (uint32_t i = 0; i < group->count; i++) {
		for (unsigned int k = 0; k < 3 && group->items[i].fds[k] >= 0; k++) {
			item_name(name, group->id, i, k);
			take_back(store, name);
		}
	}
	/* Else it would be back when this process is killed now. */
	barrier(store);
}

/* Taking back. systemd vouches for the names; the descriptors are checked as if a client sent them.
 */

struct stored {
	char name[NAME_ROOM];
	int fd;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct stored *)a)->name, ((const struct stored *)b)->name);
}

/* Return the descriptor of that name in @all, which is sorted. */
static struct stored *stored_find(struct stored *all, size_t count, const char *name)
{
	struct stored key = {.fd = -1}, *found;

	if (!count)
		return NULL;
	snprintf(key.name, sizeof(key.name), "%s", name);
	found = bsearch(&key, all, count, sizeof(*all), by_name);
	return found && found->fd >= 0 ? found : NULL;
}

static struct manifest *read_manifest(int fd)
{
	int seals = tmesh_foreign_seals(fd);
	struct manifest *manifest;
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_WRITE) || fstat(fd, &st) || st.st_uid != geteuid() ||
	    st.st_size < (off_t)sizeof(*manifest) ||
	    st.st_size > (off_t)manifest_bytes(TMESH_KEPT_MAX_REGIONS, MANIFEST_BOOT))
		return NULL;
	manifest = malloc((size_t)st.st_size);
	if (!manifest)
		return NULL;
	if (pread(fd, manifest, (size_t)st.st_size, 0) == st.st_size &&
	    manifest->magic == MANIFEST_MAGIC && manifest->version == TMESH_WIRE_VERSION &&
	    manifest->count && manifest->count <= TMESH_KEPT_MAX_REGIONS &&
	    (size_t)st.st_size == manifest_bytes(manifest->count, manifest->flags) &&
	    name_is_good(manifest->name))
		return manifest;
	free(manifest);
	return NULL;
}

static bool gather_paths(struct group *group, const struct manifest *manifest, struct stored *all,
			 size_t count)
{
	struct stored *stored;
	char name[NAME_ROOM];
	int fd;

	if (!(manifest->flags & MANIFEST_PATHS))
		return true;
	paths_name(name, manifest->id);
	stored = stored_find(all, count, name);
	if (!stored)
		return false;
	fd = stored->fd;
	stored->fd = -1;
	group->mode = manifest->mode;
	group->gid = manifest->gid;
	return group_set_paths(group, fd, true) == 0;
}

static struct group *gather(const struct manifest *manifest, struct stored *all, size_t count)
{
	struct group *group = group_new(manifest->name, manifest->count);

	if (!group)
		return NULL;
	group->id = manifest->id;
	group->kept_ns = manifest->kept_ns;
	group->expires_ns = manifest->expires_ns;
	if (!gather_paths(group, manifest, all, count)) {
		group_free(group);
		return NULL;
	}
	for (uint32_t i = 0; i < manifest->count; i++) {
		int fds[3];
		unsigned int got = 0;

		for (; got < 3; got++) {
			char name[NAME_ROOM];
			struct stored *stored;

			item_name(name, manifest->id, i, got);
			stored = stored_find(all, count, name);
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

/* Return whether the group was kept in this kernel. The manifest of an earlier version of the
 * keeper names no boot. Such a group counts if the lock came with it, which no kernel hands over,
 * and no checksums, with which it can be compared.
 */
static bool of_this_kernel(const struct store *store, const struct manifest *manifest,
			   struct stored *all, size_t count, bool with_lock)
{
	char name[NAME_ROOM];

	record_name(name, manifest->id);
	if (!(manifest->flags & MANIFEST_BOOT) || !*store->boot)
		return with_lock && !stored_find(all, count, name);
	return !memcmp(&manifest->regions[manifest->count], store->boot, sizeof(store->boot));
}

/* Tell systemd that starting or stopping takes as long as reading so many bytes may. */
static void takes_longer(const void *data, uint64_t bytes)
{
	const struct store *store = data;
	char text[64];

	snprintf(text, sizeof(text), "EXTEND_TIMEOUT_USEC=%" PRIu64,
		 READING_US + bytes / READING_BYTES_US);
	store_notify(store, text, -1);
}

/* Compare a file of another kernel with its sum. It is named by the words of @of in the reason. */
static bool take_file(const struct store *store, struct stored *stored, const struct kexec_sum *sum,
		      const char *of, uint32_t number, char why[WHY_BYTES])
{
	char reason[KEXEC_WHY_BYTES];

	if (!stored) {
		snprintf(why, WHY_BYTES, "%s %" PRIu32 " did not come", of, number);
		return false;
	}
	takes_longer(store, sum->bytes);
	if (kexec_adopt(&stored->fd, sum, reason))
		return true;
	snprintf(why, WHY_BYTES, "%s %" PRIu32 " %s", of, number, reason);
	return false;
}

/* Take a group that was kept in another kernel: each file has to match the group's record. */
static struct group *restore(const struct store *store, const struct manifest *manifest,
			     struct stored *manifest_of, struct stored *all, size_t count,
			     uint64_t now, char why[WHY_BYTES])
{
	bool paths = manifest->flags & MANIFEST_PATHS;
	struct kexec_record *record = NULL;
	struct group *group = NULL;
	struct stored *record_of;
	char name[NAME_ROOM];
	bool good;

	record_name(name, manifest->id);
	record_of = stored_find(all, count, name);
	if (record_of)
		record =
			kexec_record_read(record_of->fd, manifest->id, 1 + manifest->count + paths);
	if (!record) {
		snprintf(why, WHY_BYTES, "%s",
			 record_of ? "its checksums are damaged" : "no checksums came with it");
		return NULL;
	}
	good = take_file(store, manifest_of, &record->sums[0], "manifest", 0, why);
	for (uint32_t i = 0; good && i < manifest->count; i++) {
		item_name(name, manifest->id, i, 0);
		good = take_file(store, stored_find(all, count, name), &record->sums[1 + i],
				 "region", i, why);
	}
	paths_name(name, manifest->id);
	if (good && paths)
		good = take_file(store, stored_find(all, count, name),
				 &record->sums[1 + manifest->count], "table of paths", 0, why);
	if (good)
		group = gather(manifest, all, count);
	if (group) {
		kexec_times(group, record, now);
		group->restored = true;
		/* The store has the record until the group is stored again. */
		close(record_of->fd);
		record_of->fd = -1;
	}
	free(record);
	return group;
}

static size_t listen_fds(struct stored **out)
{
	const char *pid = getenv("LISTEN_PID"), *number = getenv("LISTEN_FDS");
	const char *names = getenv("LISTEN_FDNAMES");
	size_t count = number ? strtoul(number, NULL, 10) : 0;
	struct rlimit limit;
	struct stored *all;

	if (!pid || strtol(pid, NULL, 10) != getpid() || !names || count == 0)
		return 0;
	getrlimit(RLIMIT_NOFILE, &limit);
	all = count < limit.rlim_max ? calloc(count, sizeof(*all)) : NULL;
	/* To stdout, as all reasons for not starting. Going on would close and forget them. */
	if (!all) {
		printf("taking the %s descriptors of LISTEN_FDS: %s; raise LimitNOFILE= or "
		       "MemoryMax= of the service\n",
		       number, strerror(count < limit.rlim_max ? ENOMEM : EMFILE));
		exit(1);
	}
	for (size_t i = 0; i < count; i++) {
		size_t length = strcspn(names, ":");

		all[i].fd = LISTEN_START + (int)i;
		fcntl(all[i].fd, F_SETFD, FD_CLOEXEC);
		if (length < NAME_ROOM)
			memcpy(all[i].name, names, length);
		names += length + (names[length] == ':');
	}
	qsort(all, count, sizeof(*all), by_name);
	*out = all;
	return count;
}

static void take_group(const struct store *store, struct table *table, struct stored *manifest_of,
		       struct stored *all, size_t count, bool with_lock, uint64_t now)
{
	struct manifest *manifest;
	char why[WHY_BYTES] = "its descriptors are not those that were kept";
	struct group *group = NULL, *old;
	char name[NAME_ROOM];
	struct stat st;

	/* Another kernel may have dropped its seals. */
	fcntl(manifest_of->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	manifest = read_manifest(manifest_of->fd);
	if (manifest) {
		manifest_name(name, manifest->id);
		if (!strcmp(name, manifest_of->name))
			group = of_this_kernel(store, manifest, all, count, with_lock)
					? gather(manifest, all, count)
					: restore(store, manifest, manifest_of, all, count, now,
						  why);
	}
	if (!manifest && !fstat(manifest_of->fd, &st) && st.st_uid != geteuid())
		snprintf(why, sizeof(why),
			 "its manifest belongs to user %u: only root's keeper passes a kexec",
			 (unsigned int)st.st_uid);
	if (!group) {
		fprintf(stderr,
			"tmesh-keeper: dropped the kept group \"%s\" (%s): %s; keep it again\n",
			manifest ? manifest->name : "", manifest_of->name, why);
		/* Remove all that is left of the group; its descriptors are closed already. */
		for (size_t i = 0; i < count; i++)
			if (!strncmp(all[i].name, manifest_of->name, NAME_START))
				take_back(store, all[i].name);
		free(manifest);
		return;
	}
	group->no_boot = !(manifest->flags & MANIFEST_BOOT);
	free(manifest);
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

	lock = stored_find(all, count, LOCK_NAME);
	if (lock)
		fd = lock->fd;
	free(all);
	return fd;
}

void store_keep_lock(const struct store *store, int lock)
{
	if (store->socket < 0)
		return;
	/* That of a lock file that is gone, which has the same name. */
	take_back(store, LOCK_NAME);
	store_put(store, LOCK_NAME, lock);
}

/* Log each group whose manifest did not come. Otherwise the store has such descriptors only if a
 * keeper was killed while it kept or dropped a group. */
static void log_lost(const struct stored *all, size_t count, bool with_lock)
{
	for (size_t i = 0, next; i < count; i = next) {
		const char *first = all[i].name;
		bool manifest = false, record = false;

		for (next = i; next < count && !strncmp(all[next].name, first, NAME_START);
		     next++) {
			manifest |= !strcmp(all[next].name + NAME_START, "m");
			record |= !strcmp(all[next].name + NAME_START, "k");
		}
		if (!strncmp(first, "tmesh-", 6) && first[NAME_START - 1] == '-' && !manifest &&
		    (record || !with_lock))
			fprintf(stderr,
				"tmesh-keeper: dropped the kept group \"\" (%.*sm): its manifest "
				"did not come; keep it again\n",
				NAME_START, first);
	}
}

void store_adopt(const struct store *store, struct table *table, int lock, uint64_t now)
{
	struct stored *all = NULL;
	size_t count = listen_fds(&all);
	struct stored *of_lock = stored_find(all, count, LOCK_NAME);

	if (of_lock && of_lock->fd == lock)
		of_lock->fd = -1;
	log_lost(all, count, of_lock);
	/* In the order of the newest first, in which they go into the table without a search. */
	for (size_t i = count; i-- > 0;) {
		size_t length = strlen(all[i].name);

		if (all[i].fd < 0 || length < 2 || strcmp(all[i].name + length - 2, "-m"))
			continue;
		take_group(store, table, &all[i], all, count, of_lock, now);
		close(all[i].fd);
		all[i].fd = -1;
	}
	for (size_t i = 0; i < count; i++) {
		if (all[i].fd < 0)
			continue;
		/* store_keep_lock() has replaced the lock. */
		if (&all[i] != of_lock)
			take_back(store, all[i].name);
		close(all[i].fd);
	}
	free(all);
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}

void store_settle(const struct store *store, struct table *table)
{
	struct group *group;

	for (group = table->groups; group; group = group->next) {
		uint64_t before = group->id, after = table->last_id + 1;
		int rc;

		if (!group->restored)
			continue;
		takes_longer(store, 0);
		table->last_id = after;
		/* The store has the same descriptors twice meanwhile, so a group is there whenever
		 * the keeper is killed: the one with the higher id counts. */
		group->id = after;
		group->no_boot = false;
		rc = store_add(store, group);
		group->id = before;
		if (rc) {
			fprintf(stderr,
				"tmesh-keeper: the kept group \"%s\" is not stored again (%s): "
				"another start compares it with its checksums\n",
				group->name, strerror(-rc));
			continue;
		}
		store_remove(store, group);
		group->id = after;
		group->restored = false;
	}
}

static bool is_opaque(const struct group *group)
{
	for (uint32_t i = 0; i < group->count; i++)
		if (group->items[i].wire.kind & TMESH_KIND_OPAQUE)
			return true;
	return false;
}

static int put_record(const struct store *store, const struct group *group)
{
	size_t bytes, size;
	struct manifest *manifest = make_manifest(store, group, &bytes);
	struct kexec_record *record =
		manifest ? kexec_record_new(group, manifest, bytes, takes_longer, store, &size)
			 : NULL;
	int fd = record ? sealed(record, size) : -errno;
	char name[NAME_ROOM];
	int rc = fd;

	record_name(name, group->id);
	if (fd >= 0) {
		rc = store_put(store, name, fd);
		close(fd);
	}
	free(record);
	free(manifest);
	return rc;
}

void store_before_kexec(const struct store *store, struct table *table)
{
	enum kexec_way way = store->socket < 0 || !table->names ? KEXEC_NOT_AHEAD : kexec_way();
	const char *why = NULL;
	int rc = 0;

	if (way == KEXEC_DROPS)
		why = "this kernel hands nothing over: it needs CONFIG_LIVEUPDATE and "
		      "liveupdate=on kho=on";
	else if (way == KEXEC_HANDS_OVER && geteuid())
		why = "only the keeper of the system's manager, which is root's, passes a kexec";
	if (why)
		fprintf(stderr, "tmesh-keeper: kept groups end with a kexec: %s\n", why);
	if (why || way == KEXEC_NOT_AHEAD)
		return;
	for (struct group *group = table->groups; group; group = group->next) {
		/* The kernel would fill its file, which is a hole of the descriptor's length. */
		if (is_opaque(group)) {
			fprintf(stderr,
				"tmesh-keeper: the kept group \"%s\" ends with a kexec: it stands "
				"for a descriptor of a device\n",
				group->name);
			store_remove(store, group);
			continue;
		}
		/* The store still has its manifest and record of the kernel before. */
		rc = group->restored ? 0 : put_record(store, group);
		if (rc)
			fprintf(stderr,
				"tmesh-keeper: the kept group \"%s\" ends with a kexec: no "
				"checksums of it: %s\n",
				group->name, strerror(-rc));
	}
	rc = barrier(store);
	if (rc)
		fprintf(stderr,
			"tmesh-keeper: kept groups may end with a kexec: systemd did not take "
			"their checksums: %s\n",
			strerror(-rc));
}
