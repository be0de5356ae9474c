/* SPDX-License-Identifier: MIT */
/* A keeper's table: groups of descriptors under names, within a limit of bytes. It uses no sockets,
 * and one thread uses it. */
#ifndef TMESH_KEEPER_TABLE_H
#define TMESH_KEEPER_TABLE_H

#include "../keeper.h"

/* A region: its own descriptor; an opaque one also has its revocation pipe and its device. */
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
	bool restored;	      /* it passed a kexec, and the store has it as it was before */
	bool no_boot;	      /* its manifest in the store names no boot: an earlier version's */
	int paths;	      /* a table of paths (paths.h); -1: none */
	uint32_t mode, gid;   /* as tmesh_keep_opts: the readers of its files */
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct item items[];
};

struct table {
	struct group *groups; /* in the order in which they were kept */
	uint32_t names;
	uint64_t used, limit;
	uint64_t fds, max_fds;
	uint64_t last_id;
	/* Called for each group that is added or removed; may be NULL. @added: 0 or a negative
	 * errno. */
	int (*added)(void *data, struct group *group);
	void (*removed)(void *data, struct group *group);
	/* Called before a look at a group's holders, and after all looks of a question. */
	void (*looks)(void *data, struct group *group);
	void (*looked)(void *data);
	/* Called before a group that seems unused is dropped, and again if it stays after all. */
	void (*shows)(void *data, struct group *group, bool shown);
	void *data;
};

/* Make a group for @room items, which is in no table yet; NULL: no memory. */
struct group *group_new(const char *name, uint32_t room);
void group_free(struct group *group);
/*
 * Add a region that a client sent with @count descriptors. They are the group's from here on, also
 * on failure. @ours: an earlier life of this keeper had them. They stay as they are; otherwise the
 * file is opened anew. Return: 0; -EPROTO, -EINVAL (not sealed memory of this user), -EMFILE,
 * -E2BIG.
 */
int group_add(struct group *group, const struct tmesh_wire_region *wire, const int *fds,
	      unsigned int count, bool ours);
/* Give the group a table of paths, by the rules of group_add(). Its content is not read. */
int group_set_paths(struct group *group, int fd, bool ours);
/* Open @fd's file anew for the keeper; -1 with errno. */
int group_reopen(int fd, int flags);

/* Note the last use by the file's time of access: clients open a region without asking (shown.c).
 */
void group_used(struct group *group);

/* Count the items of a group that another process holds. Call table_looked() after the last group
 * of a question. */
uint32_t table_held(const struct table *table, struct group *group);
void table_looked(const struct table *table);

bool name_is_good(const char name[TMESH_KEPT_NAME_LEN + 1]);
struct group *table_find(const struct table *table, const char *name);
/*
 * Keep a whole group, or free it. Groups that no process holds make room. Return: 0; -EEXIST,
 * -EBUSY (a region is in another group), -EDQUOT with @need, -ENFILE (descriptors).
 */
int table_keep(struct table *table, struct group *group, uint64_t lifetime_ns, bool replace,
	       uint64_t now, uint64_t *need);
/* Keep a group of an earlier life of the keeper, whatever the limit is now. */
void table_adopt(struct table *table, struct group *group, uint64_t now);
void table_drop(struct table *table, struct group *group);
/* Count one reader more or less of a group that is being sent. */
void group_read(struct group *group);
void group_read_end(struct group *group);
/* Drop groups whose time is over. Return when the next one's is; 0: none. */
uint64_t table_expire(struct table *table, uint64_t now);
/* Drop the group that no process holds and that was used longest ago. False: there is none. */
bool table_evict(struct table *table, uint64_t now);

#endif /* TMESH_KEEPER_TABLE_H */
