/* SPDX-License-Identifier: MIT */
/*
 * Groups that pass a kexec (experimental). systemd 262 hands descriptor stores to the next kernel,
 * if both kernels have CONFIG_LIVEUPDATE. There each memfd is a new file with the same bytes. It
 * has no name, and the user of the restoring process owns it. Some kernels drop its seals. When the
 * service ends and a kernel is loaded, the keeper stores a record with a checksum of each file. The
 * next kernel's keeper takes only a group whose files match its record.
 */
#ifndef TMESH_KEEPER_KEXEC_H
#define TMESH_KEEPER_KEXEC_H

#include "table.h"

#define KEXEC_BOOT_BYTES 40
#define KEXEC_WHY_BYTES 128

struct kexec_sum {
	uint64_t bytes;
	uint64_t hash[2];
};

/* Sums are those of the manifest, of each region, and of the table of paths if there is one. */
struct kexec_record {
	uint32_t magic;
	uint32_t version;
	uint64_t id;
	uint64_t monotonic_ns, realtime_ns; /* when it was made */
	uint32_t count;
	uint32_t pad;
	uint64_t hash[2]; /* of the record, with zeros here */
	struct kexec_sum sums[];
};

/* Write the id of this boot, with zeros behind it; all zeros if the kernel does not tell it. Wait a
 * second for a free descriptor. */
void kexec_boot(char boot[KEXEC_BOOT_BYTES]);

enum kexec_way {
	KEXEC_NOT_AHEAD, /* no kernel is loaded */
	KEXEC_DROPS,	 /* this kernel hands nothing over */
	KEXEC_HANDS_OVER,
};
enum kexec_way kexec_way(void);

/* Sum up a group; @took is called with the bytes of each file before it is read. Return a record to
 * free(), of @size bytes; NULL with errno. */
struct kexec_record *kexec_record_new(const struct group *group, const void *manifest, size_t bytes,
				      void (*took)(const void *data, uint64_t bytes),
				      const void *data, size_t *size);
/* Return the record in @fd if it is whole and has @count sums of group @id, else NULL. */
struct kexec_record *kexec_record_read(int fd, uint64_t id, uint32_t count);
/*
 * Seal a file that came from another kernel, compare it with its sum, and open it anew for reading
 * alone in place of *@fd. It is sealed first, so no process can write it after the comparison.
 * False: @why has the reason.
 */
bool kexec_adopt(int *fd, const struct kexec_sum *sum, char why[KEXEC_WHY_BYTES]);
/* Count the group's times by this kernel's clock. */
void kexec_times(struct group *group, const struct kexec_record *record, uint64_t now);

#endif /* TMESH_KEEPER_KEXEC_H */
