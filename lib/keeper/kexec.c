// SPDX-License-Identifier: MIT
#include "kexec.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/foreign.h"
#include "memfd.h"

#define RECORD_MAGIC 0x53304d54u /* "TM0S" */
#define RECORD_VERSION 1
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define LOADED "/sys/kernel/kexec_loaded"
#define HANDS_OVER "/dev/liveupdate"
#define PIECE ((size_t)1 << 20)

static ssize_t read_text(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (fd < 0)
		return -1;
	got = read(fd, text, room);
	close(fd);
	return got;
}

void kexec_boot(char boot[KEXEC_BOOT_BYTES])
{
	const struct timespec pause = {.tv_nsec = 10000000};

	memset(boot, 0, KEXEC_BOOT_BYTES);
	for (int i = 0; i < 100 && read_text(BOOT_ID, boot, KEXEC_BOOT_BYTES - 1) < 0; i++) {
		if (errno != ENFILE && errno != EMFILE)
			return;
		nanosleep(&pause, NULL);
	}
}

enum kexec_way kexec_way(void)
{
	char loaded = '0';

	if (read_text(LOADED, &loaded, 1) != 1 || loaded != '1')
		return KEXEC_NOT_AHEAD;
	return access(HANDS_OVER, F_OK) ? KEXEC_DROPS : KEXEC_HANDS_OVER;
}

/* Read with read(): a keeper maps no memory of its clients. */
static int hash_file(int fd, uint64_t bytes, uint64_t hash[2])
{
	XXH3_state_t *state = XXH3_createState();
	uint8_t *piece = malloc(PIECE);
	XXH128_hash_t value;
	uint64_t done = 0;
	int rc = state && piece ? 0 : -ENOMEM;

	if (!rc)
		XXH3_128bits_reset(state);
	while (!rc && done < bytes) {
		size_t wanted = bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;
		ssize_t got = pread(fd, piece, wanted, (off_t)done);

		if (got <= 0) {
			rc = got < 0 ? -errno : -EIO;
			break;
		}
		XXH3_128bits_update(state, piece, (size_t)got);
		done += (uint64_t)got;
	}
	if (!rc) {
		value = XXH3_128bits_digest(state);
		hash[0] = value.high64;
		hash[1] = value.low64;
	}
	free(piece);
	XXH3_freeState(state);
	return rc;
}

static void hash_bytes(const void *data, size_t bytes, uint64_t hash[2])
{
	XXH128_hash_t value = XXH3_128bits(data, bytes);

	hash[0] = value.high64;
	hash[1] = value.low64;
}

static int sum_file(int fd, struct kexec_sum *sum, void (*took)(const void *data, uint64_t bytes),
		    const void *data)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	sum->bytes = (uint64_t)st.st_size;
	took(data, sum->bytes);
	return hash_file(fd, sum->bytes, sum->hash);
}

static size_t record_bytes(uint32_t count)
{
	return sizeof(struct kexec_record) + count * sizeof(struct kexec_sum);
}

static uint64_t realtime(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

struct kexec_record *kexec_record_new(const struct group *group, const void *manifest, size_t bytes,
				      void (*took)(const void *data, uint64_t bytes),
				      const void *data, size_t *size)
{
	uint32_t count = 1 + group->count + (group->paths >= 0);
	struct kexec_record *record;
	int rc = 0;

	*size = record_bytes(count);
	record = calloc(1, *size);
	if (!record)
		return NULL;
	record->magic = RECORD_MAGIC;
	record->version = RECORD_VERSION;
	record->id = group->id;
	record->count = count;
	record->sums[0].bytes = bytes;
	hash_bytes(manifest, bytes, record->sums[0].hash);
	for (uint32_t i = 0; !rc && i < group->count; i++)
		rc = sum_file(group->items[i].fds[0], &record->sums[1 + i], took, data);
	if (!rc && group->paths >= 0)
		rc = sum_file(group->paths, &record->sums[1 + group->count], took, data);
	if (rc) {
		free(record);
		errno = -rc;
		return NULL;
	}
	record->monotonic_ns = tmesh_now_ns();
	record->realtime_ns = realtime();
	hash_bytes(record, *size, record->hash);
	return record;
}

struct kexec_record *kexec_record_read(int fd, uint64_t id, uint32_t count)
{
	size_t size = record_bytes(count);
	struct kexec_record *record;
	uint64_t given[2], hash[2];
	struct stat st;
	bool good;

	if (tmesh_foreign_seals(fd) < 0 || fstat(fd, &st) || st.st_uid != geteuid() ||
	    (uint64_t)st.st_size != size)
		return NULL;
	record = malloc(size);
	if (!record)
		return NULL;
	good = pread(fd, record, size, 0) == (ssize_t)size && record->magic == RECORD_MAGIC &&
	       record->version == RECORD_VERSION && record->id == id && record->count == count;
	if (good) {
		memcpy(given, record->hash, sizeof(given));
		memset(record->hash, 0, sizeof(record->hash));
		hash_bytes(record, size, hash);
		good = !memcmp(given, hash, sizeof(hash));
	}
	if (good)
		return record;
	free(record);
	return NULL;
}

bool kexec_adopt(int *fd, const struct kexec_sum *sum, char why[KEXEC_WHY_BYTES])
{
	const int wanted = TMESH_SEALS_FIXED | F_SEAL_WRITE;
	uint64_t hash[2];
	struct stat st;
	int rc, own, seals = tmesh_foreign_seals(*fd);

	if (seals < 0 || fstat(*fd, &st)) {
		snprintf(why, KEXEC_WHY_BYTES, "is not memory");
		return false;
	}
	if (st.st_uid != geteuid()) {
		snprintf(why, KEXEC_WHY_BYTES, "belongs to user %u", (unsigned int)st.st_uid);
		return false;
	}
	if ((uint64_t)st.st_size != sum->bytes) {
		snprintf(why, KEXEC_WHY_BYTES, "has %lld bytes, and %llu were kept",
			 (long long)st.st_size, (unsigned long long)sum->bytes);
		return false;
	}
	if ((seals & wanted) != wanted && fcntl(*fd, F_ADD_SEALS, wanted)) {
		snprintf(why, KEXEC_WHY_BYTES, "cannot be sealed again: %s", strerror(errno));
		return false;
	}
	rc = hash_file(*fd, sum->bytes, hash);
	if (rc || memcmp(hash, sum->hash, sizeof(hash))) {
		snprintf(why, KEXEC_WHY_BYTES, "%s",
			 rc ? "cannot be read" : "has other bytes than were kept");
		return false;
	}
	own = group_reopen(*fd, 0);
	if (own < 0) {
		snprintf(why, KEXEC_WHY_BYTES, "cannot be opened: %s", strerror(errno));
		return false;
	}
	close(*fd);
	*fd = own;
	return true;
}

void kexec_times(struct group *group, const struct kexec_record *record, uint64_t now)
{
	uint64_t real = realtime();
	/* The clock may have been set back meanwhile. */
	uint64_t between = real > record->realtime_ns ? real - record->realtime_ns : 0;
	uint64_t age = between, left;

	if (record->monotonic_ns > group->kept_ns)
		age += record->monotonic_ns - group->kept_ns;
	/* This kernel's clock began after the group was kept, if the machine is up for less. */
	group->kept_ns = now > age ? now - age : 1;
	if (!group->expires_ns)
		return;
	/* A time that is over is one that is now: the group is dropped as any other. */
	left = group->expires_ns > record->monotonic_ns ? group->expires_ns - record->monotonic_ns
							: 0;
	left = left > between ? left - between : 0;
	if (__builtin_add_overflow(now, left, &group->expires_ns))
		group->expires_ns = 0;
}
