/* SPDX-License-Identifier: MIT */
/*
 * What goes over Unix sockets, and the index that a producer shows to other processes.
 * docs/rendezvous.md explains both. All numbers are in the machine's own byte order: both ends are
 * on one machine.
 */
#ifndef TMESH_WIRE_H
#define TMESH_WIRE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>

#include "internal.h"

#define TMESH_WIRE_VERSION 1

#define TMESH_MAGIC_REGION 0x52304d54u	/* "TM0R" */
#define TMESH_MAGIC_REQUEST 0x51304d54u /* "TM0Q" */
#define TMESH_MAGIC_JOIN 0x4a304d54u	/* "TM0J" */
#define TMESH_MAGIC_REPLY 0x41304d54u	/* "TM0A" */
#define TMESH_MAGIC_INDEX 0x49304d54u	/* "TM0I" */
#define TMESH_MAGIC_BUNDLE 0x42304d54u	/* "TM0B" */

/* What a region's descriptor does not say by itself. The message of a hand-over by socket, with
 * that descriptor and those of tmesh_opaque_count(). */
struct tmesh_wire_region {
	uint32_t magic;
	uint32_t version;
	uint32_t backend; /* enum tmesh_backend */
	uint32_t rights;
	uint32_t kind; /* TMESH_KIND_* */
	uint32_t pad;
	uint64_t id;
	uint64_t bytes;
};

/* Before a bundle's regions, the index's first: as long as the message of a region, so that who
 * expects the other reads all of it. */
struct tmesh_wire_bundle {
	uint32_t magic; /* TMESH_MAGIC_BUNDLE */
	uint32_t version;
	uint32_t backend;
	uint32_t regions; /* data regions */
	uint32_t pad[6];
};

struct tmesh_wire_request {
	uint32_t magic;
	uint32_t version;
	uint32_t rights; /* wanted; of a join the role */
	uint32_t pad;
	uint64_t index; /* number of the index that the client has; 0: none */
	uint8_t secret[TMESH_SECRET_BYTES];
};

/* With the region's descriptor when status is 0, then with the index's when index is
 * neither 0 nor the client's. To a join: with three ends of bells when status is 0, and those of
 * shelves. */
struct tmesh_wire_reply {
	uint32_t magic;
	uint32_t version;
	int32_t status; /* 0 or a negative errno */
	uint32_t lane;	/* to a join, else 0 */
	uint64_t index;
	struct tmesh_wire_region region;
};

/* One line of the cache each: a reader copies it between two reads of seq. */
struct tmesh_index_slot {
	_Atomic uint64_t tag; /* 0: free */
	_Atomic uint32_t seq; /* odd while it changes */
	_Atomic uint32_t fd;
	_Atomic uint64_t dev;
	_Atomic uint64_t ino;
	_Atomic uint64_t id;
	_Atomic uint64_t bytes;
	_Atomic uint32_t rights;
	_Atomic uint32_t kind;
	_Atomic uint32_t read_only; /* the descriptor cannot write: it may be duplicated */
	_Atomic uint32_t writes;    /* the producer does write, by opening the file anew */
};

struct tmesh_index_head {
	uint32_t magic;
	uint32_t version;
	uint64_t number;	 /* of this index in this producer, from 1 */
	uint64_t key[2];	 /* of the tags */
	uint32_t slots;		 /* a power of two; they follow at TMESH_INDEX_HEAD bytes */
	_Atomic uint32_t closed; /* another one has taken its place, or nobody serves */
	uint8_t name[16];	 /* of the producer's socket */
};
#define TMESH_INDEX_HEAD 4096u
#define TMESH_INDEX_NAME "tmesh-index" /* of its memfd */

_Static_assert(sizeof(struct tmesh_wire_region) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_bundle) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_request) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_reply) == 64, "wire format");
_Static_assert(sizeof(struct tmesh_index_slot) == 64, "a line of the cache");

/* handover.c */

/* The most descriptors that a message has: a region's three, and an index. */
#define TMESH_WIRE_FDS 4

/*
 * One message of @bytes, with at most @fd_room descriptors in @fds; waits until @deadline,
 * or not at all when that is 0.
 * Return: the number of descriptors; -EPIPE (nobody at the other end), -ETIMEDOUT, -EAGAIN,
 * -EPROTO (another size, too many descriptors), -EMFILE (too few left for them in this
 * process, or tmesh_foreign_room() says no), or another errno; all that came are closed then.
 */
int tmesh_wire_recv(int socket, void *message, size_t bytes, int *fds, unsigned int fd_room,
		    uint64_t deadline);
/* Send a message with descriptors: 0 or a negative errno (-EAGAIN with MSG_DONTWAIT). */
int tmesh_wire_send(int socket, const void *message, size_t bytes, const int *fds,
		    unsigned int fd_count, int flags);
/* Whether a caller's @socket is one that carries descriptors. Other families would drop them in
 * silence, and poll() waits for what is no descriptor as for a peer that sends nothing. */
int tmesh_wire_check(int socket, struct tmesh_error *err);
/* To and from a peer of the caller's: a Unix socket, on which to wait for at most the context's
 * timeout; the message says what went wrong. */
int tmesh_wire_send_waiting(const struct tmesh_ctx *ctx, int socket, const void *message,
			    size_t bytes, const int *fds, unsigned int count,
			    struct tmesh_error *err);
/* A message without descriptors: what comes along is closed. Return: 0, or as tmesh_wire_recv(). */
int tmesh_wire_recv_plain(int socket, void *message, size_t bytes, uint64_t deadline,
			  struct tmesh_error *err);

/* index.c: the producer's side */

struct tmesh_index;

/* What the producer keeps beside a slot: only it knows the secrets. */
struct tmesh_index_entry {
	uint8_t secret[TMESH_SECRET_BYTES];
	struct tmesh_region *region;
	uint32_t rights;
	bool read_only; /* the region's descriptor cannot write */
};

/* A descriptor of this process's, as others are shown it. */
struct tmesh_index_file {
	int fd;
	uint32_t kind;
	uint64_t dev, ino, id, bytes;
	bool writes;
};

/* @name is of the producer's socket, 16 bytes. */
int tmesh_index_new(const uint8_t *name, uint64_t number, uint32_t slots, struct tmesh_index **out,
		    struct tmesh_error *err);
void tmesh_index_free(struct tmesh_index *index);
/* For the forked child, whose copy has no mapping: frees the object alone. */
void tmesh_index_forget(struct tmesh_index *index);
int tmesh_index_fd(const struct tmesh_index *index);
uint64_t tmesh_index_number(const struct tmesh_index *index);
/* Adds; when the index is full a larger one takes its place in @index. */
int tmesh_index_add(struct tmesh_index **index, const struct tmesh_index_entry *entry,
		    struct tmesh_error *err);
/* The same of what is no region's here. */
int tmesh_index_add_file(struct tmesh_index **index, const struct tmesh_index_entry *entry,
			 const struct tmesh_index_file *file, struct tmesh_error *err);
const struct tmesh_index_entry *tmesh_index_find(const struct tmesh_index *index,
						 const uint8_t *secret);
void tmesh_index_remove(struct tmesh_index *index, const uint8_t *secret);
/* The descriptor of the token's region will be able to write. */
void tmesh_index_set_writable(struct tmesh_index *index, const uint8_t *secret);
/* Another descriptor of the file of an entry that is there. */
void tmesh_index_set_fd(struct tmesh_index *index, const uint8_t *secret, int fd, bool read_only);

/* The client's side: a mapping of another process's index. */
struct tmesh_index_view {
	struct tmesh_index_head *head;
	size_t bytes;
};

/* What a slot said; seq tells later whether it still says so. */
struct tmesh_index_hit {
	const struct tmesh_index_slot *slot;
	uint32_t seq;
	int fd;
	bool read_only;
	uint64_t dev;
	uint64_t ino;
	struct tmesh_wire_region region;
};

int tmesh_index_view_open(struct tmesh_index_view *view, int fd);
void tmesh_index_view_close(struct tmesh_index_view *view);
/* It is the index of the producer with that name. */
bool tmesh_index_view_names(const struct tmesh_index_view *view, const uint8_t *name);
bool tmesh_index_view_closed(const struct tmesh_index_view *view);
bool tmesh_index_view_find(const struct tmesh_index_view *view, const uint8_t *secret,
			   struct tmesh_index_hit *hit);
bool tmesh_index_hit_holds(const struct tmesh_index_hit *hit);
/* The index says that the process with this descriptor of this file writes to it. */
bool tmesh_index_view_writes(const struct tmesh_index_view *view, int fd, uint64_t dev,
			     uint64_t ino);

/* rundir.c */

/* Of a new context, whose caller named @given or NULL: the directory stays the same wherever the
 * process goes. */
int tmesh_rundir_settle(struct tmesh_ctx *ctx, const char *given, struct tmesh_error *err);
/* The verified runtime directory, made when missing; ctx->lock is held. */
int tmesh_rundir_open(struct tmesh_ctx *ctx, int *dir, struct tmesh_error *err);
/* Its path, as given or found; nothing is looked at. */
int tmesh_rundir_path(const struct tmesh_ctx *ctx, char *path, size_t size,
		      struct tmesh_error *err);
struct sockaddr_un;
/* The address of a socket in it; good while @dir is open. */
socklen_t tmesh_rundir_address(int dir, const char *name, struct sockaddr_un *address);
/* A socket connected to that address; 0 or a negative errno. */
int tmesh_rundir_connect(const struct tmesh_ctx *ctx, int socket, const char *name);
/* Put or renew the link beside socket @name that says which descriptor of this process is the
 * index. Return: 0 or a negative errno. */
int tmesh_rundir_link(int dir, const char *name, int index);
/* What that link says, not yet believed; false when there is none like it. */
bool tmesh_rundir_follow(const struct tmesh_ctx *ctx, const char *name, pid_t *pid, int *index);
/* Remove a socket and its link. */
int tmesh_rundir_remove(int dir, const char *name);
void tmesh_rundir_sweep(struct tmesh_ctx *ctx, int dir);

/* server.c; all but _stop and _forked with ctx->lock held */

/* A token of @region for @rights, serving from now on. */
int tmesh_server_token(struct tmesh_region *region, uint32_t rights,
		       struct tmesh_token_parts *token, struct tmesh_error *err);
void tmesh_server_forget(struct tmesh_region *region);
/* Nobody takes the region's descriptor for one that cannot write from now on. */
void tmesh_server_set_writable(struct tmesh_region *region);
/* What a token of this process names. */
struct tmesh_served {
	struct tmesh_region *region;
	uint32_t rights;
	struct tmesh_hold *hold; /* it is one that holds, or has held */
};
bool tmesh_server_find(struct tmesh_ctx *ctx, const struct tmesh_token_parts *token,
		       struct tmesh_served *found);
void tmesh_server_stop(struct tmesh_ctx *ctx);
void tmesh_server_forked(struct tmesh_ctx *ctx);

/* peer.c */

/* Open another process's region. */
int tmesh_peer_open(struct tmesh_region *region, const struct tmesh_token_parts *token,
		    uint32_t rights, struct tmesh_error *err);
/* The same of what is in the index of that name, 16 bytes, without a question. False: it is not
 * there, or cannot be had so. */
bool tmesh_peer_take(struct tmesh_region *region, const uint8_t *name, const uint8_t *secret,
		     uint32_t rights);
/* A connection to the server of that name, 16 bytes, which is this user's; -ENOENT, -ETIMEDOUT. */
int tmesh_peer_connect(struct tmesh_ctx *ctx, const uint8_t *name, uint64_t deadline, int *out,
		       struct tmesh_error *err);
void tmesh_peers_drop(struct tmesh_ctx *ctx);
/* Of those that have ended nothing is kept; ctx->lock is held. */
void tmesh_peers_sweep(struct tmesh_ctx *ctx);

/* channel_members.c */

/*
 * Somebody asks by @conn to join; ctx->lock is held. On success the connection is the channel's,
 * and @fds, which stay its own, are to be sent with the reply. Return: 0; -EBUSY, -EINVAL, ...
 */
#define TMESH_JOIN_FDS 67 /* bells, and the shelves of all lanes */
int tmesh_channel_admit(struct tmesh_channel *channel, int conn, uint32_t role, uint32_t *lane,
			int fds[TMESH_JOIN_FDS], unsigned int *count);
/* channel_hand.c, with ctx->lock held: messages that were sent here and not received yet; channels
 * that owe something which would be lost with this process. */
uint64_t tmesh_channel_unread(const struct tmesh_channel *channel);
uint64_t tmesh_channels_unread(struct tmesh_ctx *ctx);
uint64_t tmesh_channels_owe(struct tmesh_ctx *ctx);

#endif /* TMESH_WIRE_H */
