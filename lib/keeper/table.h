/* SPDX-License-Identifier: MIT */
/* What a keeper keeps: groups of descriptors under names, within a limit of bytes. Nothing here
 * knows of sockets; one thread uses it. */
#ifndef TMESH_KEEPER_TABLE_H
#define TMESH_KEEPER_TABLE_H

#include "../keeper.h"

/* A region: its own descriptor, and of an opaque one leash and device. */
struct item {
	struct tmesh_wire_region wire;
	int fds[3]; /* -1: none */
	int lent;   /* another opening of the first, which others have copies of; -1: none */
	uint64_t dev, ino;
	uint64_t bytes; /* of memory */
};

struct group {
	struct group *next;
	uint64_t id;
	uint64_t kept_ns, used_ns, expires_ns;
	uint64_t bytes;
	uint32_t count; /* of items that are there */
	uint32_t room;
	unsigned int readers; /* being sent to so many clients */
	bool gone;	      /* only its readers keep it */
	tmesh_giver giver;    /* who gave the descriptors */
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct item items[];
};

struct table {
	struct group *groups; /* in the order in which they were kept */
	uint32_t names;
	uint64_t used, limit;
	uint64_t fds, max_fds;
	uint64_t last_id;
	/* Told of each group that came and went; may be NULL. @added: 0 or a negative errno. */
	int (*added)(void *data, const struct group *group);
	void (*removed)(void *data, struct group *group);
	/* Told before it is looked who holds a group, and after all looks of a question. */
	void (*looks)(void *data, struct group *group);
	void (*looked)(void *data);
	/* Told before a group that nobody seems to hold is given up, and if it stays after all. */
	void (*shows)(void *data, struct group *group, bool shown);
	void *data;
};

/* A group for @room items of @giver's, not yet anybody's to see; NULL: no memory. */
struct group *group_new(const char *name, uint32_t room, tmesh_giver giver);
void group_free(struct group *group);
/*
 * Add a region that somebody sent with @count descriptors, which are the group's from here on, also
 * on failure. @ours: they are what an earlier life of this keeper had, and stay as they are; else
 * the file is opened anew. Return: 0; -EPROTO, -EINVAL (not sealed memory of this user), -EMFILE,
 * -E2BIG.
 */
int group_add(struct group *group, const struct tmesh_wire_region *wire, const int *fds,
	      unsigned int count, bool ours);
/* Its own opening of @fd's file, or -1 with errno. */
int group_reopen(int fd, int flags);

/* Who opens one region without a question (shown.c) is not heard of: the file tells when. */
void group_used(struct group *group);

/* Items of a group that somebody else than the keeper holds. After the last one of a question
 * table_looked() is called. */
uint32_t table_held(const struct table *table, struct group *group);
void table_looked(const struct table *table);

bool name_is_good(const char name[TMESH_KEPT_NAME_LEN + 1]);
struct group *table_find(const struct table *table, const char *name);
/*
 * Keep a whole group, or free it. What nobody holds makes room. Return: 0; -EEXIST, -EBUSY (a
 * region is in another group), -EDQUOT with @need, -ENFILE (descriptors).
 */
int table_keep(struct table *table, struct group *group, uint64_t lifetime_ns, bool replace,
	       uint64_t now, uint64_t *need);
/* Keep what an earlier life of the keeper kept, whatever the limit is now. */
void table_adopt(struct table *table, struct group *group, uint64_t now);
void table_drop(struct table *table, struct group *group);
/* A reader more or less of a group that is being sent. */
void group_read(struct group *group);
void group_read_end(struct group *group);
/* Drop what is over. Return: when the next one is, 0: none. */
uint64_t table_expire(struct table *table, uint64_t now);
/* Give back what nobody holds and was used longest ago. False: there is none. */
bool table_evict(struct table *table, uint64_t now);

#endif /* TMESH_KEEPER_TABLE_H */
