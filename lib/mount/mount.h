/* SPDX-License-Identifier: MIT */
/*
 * tmesh-mount: shows what users keep as files, MOUNTPOINT/UID/NAME/PATH. The session's thread reads
 * the kernel's requests. A request that needs a keeper goes to its user's thread, so a keeper that
 * does not answer delays the requests for its own user alone. One lock guards everything in memory;
 * no thread waits for another process while it holds the lock.
 */
#ifndef TMESH_MOUNT_H
#define TMESH_MOUNT_H

#define FUSE_USE_VERSION 312

#include <fuse_lowlevel.h>
#include <pthread.h>

#include "../keeper.h"
#include "../paths.h"

#define PASSTHROUGH (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

/* A request that needs a keeper is answered within this time. */
#define ANSWER_NS UINT64_C(2000000000)
/* After a request without an answer, further requests for the user fail at once for so long. */
#define REST_NS UINT64_C(1000000000)
/* A user's groups with open files, requests that wait, and bytes of tables in memory. */
#define GROUPS_OPEN 1024
#define JOBS_WAITING 256
#define TABLE_BYTES (2 * TMESH_PATHS_MAX)
#define LISTED_BYTES (16u << 20) /* names of a user's folders that are open */
#define FILES_OPEN 16384
#define USERS 1024
#define KEEPER_PATTERNS 16
/* The service knows so many kept names of a user. From half of it on it asks the kernel to forget
 * some. */
#define GROUPS_KNOWN 4096
/* Requests that wait for other users' keepers: of one user in one queue, of all in one queue, of
 * one user in all queues, and of all users. The rest of a queue is its own user's. */
#define JOBS_OF_ONE 32
#define JOBS_OF_OTHERS (JOBS_WAITING / 2)
#define ASKED_BY_ONE 64
#define ASKED_BY_OTHERS (USERS / 2)
#define LISTINGS_OPEN 1024 /* of the root, by one user */

/* A user who makes requests. */
struct asker {
	struct asker *next;
	uid_t uid;
	unsigned int waiting, listings;
};

struct table {
	struct user *user; /* whose bytes it counts among; NULL: not yet */
	unsigned int refs;
	size_t length;
	struct tmesh_paths *paths;
};

/* An open file; all opens of one file share it. */
struct file {
	struct file *next;
	struct group *group;
	uint32_t index;
	unsigned int refs;
	int fd;		  /* -1: it is empty, or the kernel has it */
	uint32_t backing; /* the kernel's name of the descriptor; 0: reads come here */
	uint64_t offset, bytes;
};

/* One keeping of a name that the kernel knows. */
struct group {
	struct group *next_key, *next_serial; /* in their buckets */
	struct user *user;
	struct file *files;
	struct table *table;	     /* NULL: read again when it is needed */
	struct group *older, *newer; /* of the user's groups with a table, by its last use */
	uint64_t serial, id;
	uint64_t lookups;
	unsigned int opens; /* of files and folders */
	uint32_t regions, mode, gid;
	struct timespec kept;
	char name[TMESH_KEPT_NAME_LEN + 1];
};

/* A listing's share of a question to a user's keeper. */
struct part {
	struct part *next;
	struct gather *gather;
};

struct job;
typedef void (*job_fn)(struct job *job);

/* A request that waits for a keeper. */
struct job {
	struct job *next;
	job_fn run;
	struct user *user;
	struct group *group; /* with a reference, or NULL */
	fuse_req_t req;
	fuse_ino_t ino;
	struct fuse_file_info fi;
	struct asker *asker; /* while it counts among the requests of strangers, else NULL */
	struct part *parts;  /* of listings, which have no request of their own */
	uint64_t deadline;
	bool answered;
	char name[TMESH_KEPT_COMPONENT_LEN + 1];
};

struct user {
	struct user *next;
	uid_t uid;
	bool runs; /* its thread */
	struct job *first, *last, *current;
	struct job *listing;	/* a question for listings that was not asked yet */
	unsigned int strangers; /* of the jobs, other users' */
	unsigned int waiting, open_groups, open_files;
	uint64_t table_bytes; /* of all tables in memory, also those that only open folders have */
	uint64_t listed_bytes;
	uint64_t rests_until;
	unsigned int groups;	       /* that the kernel or a request knows */
	unsigned int groups_new;       /* since the kernel was asked to forget some */
	bool crowded;		       /* it is to be asked */
	struct group *oldest, *newest; /* of those with a table */
	pthread_cond_t work;
};

#define BUCKETS 4096

struct mount {
	pthread_mutex_t lock;
	struct fuse_session *session;
	struct user *users;
	struct gather *gathers;
	struct asker *askers;
	unsigned int waiting;	/* requests of all askers with a bound */
	pthread_cond_t arrived; /* a listing */
	pthread_cond_t crowd;	/* a user with many groups */
	uint64_t last_serial;
	struct group *by_serial[BUCKETS];
	struct group *by_key[BUCKETS]; /* by the keeper's number, the name and the secret */
	uint64_t secret;	       /* keeps keepers from filling one bucket */
	const char **keepers;	       /* patterns of runtime folders */
	size_t keeper_count;
	uid_t own;	  /* this process's user; root's serves all */
	bool passthrough; /* the kernel reads from the descriptors themselves */
	bool ends;
};

extern struct mount tree;

/* inode.c: numbers of inodes, which encode everything about the inode. */

#define INO_FILE 1023u /* in place of a folder's depth */

fuse_ino_t ino_of_user(uid_t uid);
fuse_ino_t ino_of(const struct group *group, uint32_t index, unsigned int depth);
static inline bool ino_is_user(fuse_ino_t ino)
{
	return ino >> 63;
}
static inline uint64_t ino_serial(fuse_ino_t ino)
{
	return ino >> 27;
}
static inline unsigned int ino_depth(fuse_ino_t ino)
{
	return (ino >> 17) & 1023;
}
static inline uint32_t ino_index(fuse_ino_t ino)
{
	return ino & 0x1ffff;
}
/* Return whether the table has the file or folder of an inode. A table that was read again may be
 * another one, since its keeper may lie. */
bool ino_fits(fuse_ino_t ino, const struct table *table);
void attr_of_root(struct stat *st);
void attr_of_user(struct stat *st, uid_t uid);
/* Fill in an inode's attributes. False: the table has no such file or folder. */
bool attr_of(struct stat *st, const struct group *group, const struct table *table, fuse_ino_t ino);

/* group.c; all but table_put() with the lock held */

struct group *group_find(uint64_t serial);
struct group *group_of(struct user *user, const struct tmesh_keeper_row *row);
/* Ask the kernel to forget some of the user's groups if there are many. */
void group_crowd(struct user *user);
/* Free a group that neither the kernel nor a request knows. */
void group_release(struct group *group);
void group_set_table(struct group *group, struct table *table);
/* Count a new table, and drop other groups' tables to make room for it. False: open folders have
 * too many. */
bool table_admit(struct group *group, struct table *table);
struct table *table_get(struct group *group);
void table_put(struct table *table);
struct file *file_find(struct group *group, uint32_t index);
/* Drop an open; the last one closes the file. */
void file_close(struct file *file);

/* asker.c; the lock is held */

struct asker *asker_of(uid_t uid);
/* Free an asker that has nothing. */
void asker_release(struct asker *asker);
/* Return 0, or the errno of a request that would be one too many. */
int asker_admit_job(const struct asker *asker, const struct user *user);
int asker_admit_listing(const struct asker *asker);
void asker_begin(struct asker *asker);
void asker_end(struct asker *asker);
/* Count a request for another user's keeper. False: it is for the asker's own, or has no bound. */
bool asker_begin_job(struct asker *asker, struct user *user);

/* forget.c, listing.c: threads of the service */

void *forget_groups(void *unused);
void *read_folders(void *unused);

/* jobs.c */

/* Give a request to the user's thread; answers it with an error when that cannot be. */
void job_post(uid_t uid, struct group *group, job_fn run, fuse_req_t req, fuse_ino_t ino,
	      const char *name, const struct fuse_file_info *fi);
/* Add a listing's part to a question to the user's keeper; the lock is held. */
bool job_post_part(uid_t uid, job_fn run, struct part *part);
/* Return whether the request is still to be answered; then the caller must do so. */
bool job_answers(struct job *job);
void job_fail(struct job *job, int code);
/* Note that the user's keeper did not answer; the lock is held. */
void user_rests(struct user *user);
/* Start the service's own threads. One of them answers requests whose time is over. 0 or an errno.
 */
int jobs_watch(void);

/* ask.c: questions to a keeper, from its user's thread. Return: 0 or a descriptor, or a negative
 * errno. */
int ask_find(uid_t uid, const char *name, struct tmesh_keeper_row *row, struct table **table,
	     uint64_t deadline);
int ask_open_region(const struct group *group, uint32_t region, uint64_t least_bytes,
		    uint64_t *bytes, uint64_t deadline);
int ask_list(uid_t uid, struct tmesh_keeper_row **rows, uint32_t *count, uint64_t deadline);

/* folder.c: what a folder shows, while it is open. */

struct folder {
	/* Of a group. */
	struct group *group;
	struct table *table;
	fuse_ino_t ino;
	struct user *user;   /* whose names a user's folder lists */
	struct asker *asker; /* who has the root open */
	/* The other folders list names, one behind the other. */
	char *names;
	size_t length, room;
	uint32_t count;
};

bool folder_add(struct folder *folder, const char *name);
bool folder_has(const struct folder *folder, const char *name);
void folder_open_root(fuse_req_t req, const struct fuse_file_info *fi);
void folder_open_user(struct job *job);
void folder_open(fuse_req_t req, struct job *job, struct group *group, struct table *table,
		 fuse_ino_t ino, const struct fuse_file_info *fi);
void folder_read(fuse_req_t req, struct folder *folder, size_t size, off_t offset);
void folder_close(struct folder *folder);
/* Answer the listings of users whose time is over; the lock is held. */
void gathers_expire(uint64_t now);
/* Return the length of a folder's path with its final slash. The table has the folder. */
size_t folder_prefix(const struct table *table, fuse_ino_t ino);

/* ops.c */
extern const struct fuse_lowlevel_ops operations;

/* place.c */

/* Check that a mount can be made at @path: an empty folder of this user, which is made if it is
 * missing. The mount of a killed tmesh-mount is removed. False after a message. */
bool place_prepare(const char *path);
void place_leave(const char *path);

#endif /* TMESH_MOUNT_H */
