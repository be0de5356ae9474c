/* SPDX-License-Identifier: MIT */
/*
 * Messages on Unix sockets, and the index that a producer shows to other processes.
 * docs/internals/rendezvous.md explains both. All numbers are in the machine's own byte order: both
 * ends are on one machine.
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

/* The properties of a region that its descriptor does not show. It is the message of a hand-over by
 * socket, with that descriptor and those of tmesh_opaque_count(). */
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

/* Sent before a bundle's regions, of which the index is the first. It is as long as the message of
 * a region, so that a receiver that expects the other one reads all of it. */
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

/* With the region's descriptor if status is 0, then with the index's if index is neither 0 nor the
 * client's. The reply to a join with status 0 has three ends of the socket pairs to poll, if the
 * channel has them. After these come, for a receiver, an end of the channel's store and, for a
 * sender, both ends of its lane's store, if there is one. */
struct tmesh_wire_reply {
	uint32_t magic;
	uint32_t version;
	int32_t status; /* 0 or a negative errno */
	uint32_t lane;	/* to a join, else 0 */
	uint64_t index;
	struct tmesh_wire_region region;
};

/* One line of the cache each: a reader copies it between two reads of seq. */
struct tmesh_index_bucket {
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
	uint32_t buckets;	 /* a power of two; they follow at TMESH_INDEX_HEAD bytes */
	_Atomic uint32_t closed; /* another has taken its place, or its server has ended */
	uint8_t name[16];	 /* of the producer's socket */
};
#define TMESH_INDEX_HEAD 4096u
#define TMESH_INDEX_NAME "tmesh-index" /* of its memfd */

_Static_assert(sizeof(struct tmesh_wire_region) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_bundle) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_request) == 40, "wire format");
_Static_assert(sizeof(struct tmesh_wire_reply) == 64, "wire format");
_Static_assert(sizeof(struct tmesh_index_bucket) == 64, "a line of the cache");

/* handover.c */

/* The most descriptors that a message has: a region's three, and an index. */
#define TMESH_WIRE_FDS 4

/*
 * Receive one message of @bytes, with at most @fd_room descriptors in @fds. Wait until @deadline,
 * or not at all if it is 0.
 *
 * Return the number of descriptors, or an errno; then all descriptors that came are closed. The
 * errno is -EPIPE if the other end is closed, and -ETIMEDOUT or -EAGAIN if no message came. It is
 * -EPROTO for another size or too many descriptors. It is -EMFILE if this process has too few
 * descriptors left or tmesh_foreign_room() refuses them.
 */
int tmesh_wire_recv(int socket, void *message, size_t bytes, int *fds, unsigned int fd_room,
		    uint64_t deadline);
/* Send a message with descriptors: 0 or a negative errno (-EAGAIN with MSG_DONTWAIT). */
int tmesh_wire_send(int socket, const void *message, size_t bytes, const int *fds,
		    unsigned int fd_count, int flags);
/* Return whether a caller's @socket carries descriptors. Sockets of other families would drop them
 * silently, and poll() on a number that is no descriptor waits as for a silent peer. */
int tmesh_wire_check(int socket, struct tmesh_error *err);
/* Send or receive on a caller's Unix socket, and wait for at most the context's timeout. The error
 * has the reason. */
int tmesh_wire_send_waiting(const struct tmesh_ctx *ctx, int socket, const void *message,
			    size_t bytes, const int *fds, unsigned int count,
			    struct tmesh_error *err);
/* Receive a message without descriptors; any that come are closed. Return: 0, or as
 * tmesh_wire_recv(). */
int tmesh_wire_recv_plain(int socket, void *message, size_t bytes, uint64_t deadline,
			  struct tmesh_error *err);

/* index.c: the producer's side */

struct tmesh_index;

/* The producer's data beside a bucket, with the secret that only the producer knows. */
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

/* Make an index. @name is that of the producer's socket, 16 bytes. @keep_mode: make no call that
 * changes a file's mode. */
int tmesh_index_new(const uint8_t *name, uint64_t number, uint32_t buckets, bool keep_mode,
		    struct tmesh_index **out, struct tmesh_error *err);
void tmesh_index_free(struct tmesh_index *index);
/* Free the object alone, in a forked child, whose copy has no mapping. */
void tmesh_index_forget(struct tmesh_index *index);
int tmesh_index_fd(const struct tmesh_index *index);
uint64_t tmesh_index_number(const struct tmesh_index *index);
/* Add an entry; a larger index replaces @index if it is full. */
int tmesh_index_add(struct tmesh_index **index, const struct tmesh_index_entry *entry,
		    struct tmesh_error *err);
/* Add an entry for a file that is no region here. */
int tmesh_index_add_file(struct tmesh_index **index, const struct tmesh_index_entry *entry,
			 const struct tmesh_index_file *file, struct tmesh_error *err);
const struct tmesh_index_entry *tmesh_index_find(const struct tmesh_index *index,
						 const uint8_t *secret);
void tmesh_index_remove(struct tmesh_index *index, const uint8_t *secret);
/* Mark that the descriptor of the token's region can write. */
void tmesh_index_set_writable(struct tmesh_index *index, const uint8_t *secret);
/* Set another descriptor of the same file in an entry. */
void tmesh_index_set_fd(struct tmesh_index *index, const uint8_t *secret, int fd, bool read_only);

/* The client's side: a mapping of another process's index. */
struct tmesh_index_view {
	struct tmesh_index_head *head;
	size_t bytes;
};

/* The content of a bucket; seq shows later whether the bucket still has it. */
struct tmesh_index_hit {
	const struct tmesh_index_bucket *bucket;
	uint32_t seq;
	int fd;
	bool read_only;
	uint64_t dev;
	uint64_t ino;
	struct tmesh_wire_region region;
};

int tmesh_index_view_open(struct tmesh_index_view *view, int fd);
void tmesh_index_view_close(struct tmesh_index_view *view);
/* Return whether it is the index of the producer with that name. */
bool tmesh_index_view_names(const struct tmesh_index_view *view, const uint8_t *name);
bool tmesh_index_view_closed(const struct tmesh_index_view *view);
bool tmesh_index_view_find(const struct tmesh_index_view *view, const uint8_t *secret,
			   struct tmesh_index_hit *hit);
bool tmesh_index_hit_holds(const struct tmesh_index_hit *hit);
/* Return whether the index shows that the process with this descriptor of this file writes to it.
 */
bool tmesh_index_view_writes(const struct tmesh_index_view *view, int fd, uint64_t dev,
			     uint64_t ino);

/* environment.c */

/* Read the variables that calls of a new context need. Its caller named @runtime_dir or NULL. The
 * directory stays the same if the process changes its working directory. */
int tmesh_environment_read(struct tmesh_ctx *ctx, const char *runtime_dir, struct tmesh_error *err);
/* Take over what another context read. */
int tmesh_environment_copy(struct tmesh_ctx *ctx, const struct tmesh_ctx *from,
			   struct tmesh_error *err);
void tmesh_environment_free(struct tmesh_ctx *ctx);

/* rundir.c */

/* Open the runtime directory, or make it, and verify it; ctx->lock is held. */
int tmesh_rundir_open(struct tmesh_ctx *ctx, int *dir, struct tmesh_error *err);
/* Return its path, as given or found; nothing is checked. */
int tmesh_rundir_path(const struct tmesh_ctx *ctx, char *path, size_t size,
		      struct tmesh_error *err);
struct sockaddr_un;
/* Return the address of a socket in it, which is valid while @dir is open. */
socklen_t tmesh_rundir_address(int dir, const char *name, struct sockaddr_un *address);
/* Connect a socket to that address; 0 or a negative errno. */
int tmesh_rundir_connect(const struct tmesh_ctx *ctx, int socket, const char *name);
/* Put or renew the link beside socket @name, with the number of this process's descriptor of the
 * index. Return: 0 or a negative errno. */
int tmesh_rundir_link(int dir, const char *name, int index);
/* Read that link, without trust in it; false if there is none like it. */
bool tmesh_rundir_follow(const struct tmesh_ctx *ctx, const char *name, pid_t *pid, int *index);
/* Remove a socket and its link. */
int tmesh_rundir_remove(int dir, const char *name);
void tmesh_rundir_sweep(struct tmesh_ctx *ctx, int dir);

/* server.c; all but _stop and _forked with ctx->lock held */

/* Start the context's server, or check that its socket is still in the runtime directory. */
int tmesh_server_ready(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* Serve a token from now on. After tmesh_server_ready(). */
int tmesh_server_add(struct tmesh_ctx *ctx, const struct tmesh_index_entry *entry,
		     struct tmesh_error *err);
/* Return the 16 bytes that name the server's socket in tokens. */
const uint8_t *tmesh_server_name(const struct tmesh_ctx *ctx);
void tmesh_server_forget(struct tmesh_region *region);
/* From now on let no process take the region's descriptor for one that cannot write. */
void tmesh_server_set_writable(struct tmesh_region *region);
/* The region that a token of this process names. */
struct tmesh_served {
	struct tmesh_region *region;
	uint32_t rights;
	struct tmesh_hold *hold; /* it is one that holds, or has held */
};
bool tmesh_server_find(struct tmesh_ctx *ctx, const struct tmesh_token_fields *token,
		       struct tmesh_served *found);
void tmesh_server_stop(struct tmesh_ctx *ctx);
void tmesh_server_forked(struct tmesh_ctx *ctx);

/* peer.c */

/* Open another process's region. */
int tmesh_peer_open(struct tmesh_region *region, const struct tmesh_token_fields *token,
		    uint32_t rights, struct tmesh_error *err);
/* Open the entry in the index of that name, 16 bytes, without a question. False: it is not there,
 * or cannot be opened so. */
bool tmesh_peer_open_region(struct tmesh_region *region, const uint8_t *name, const uint8_t *secret,
			    uint32_t rights);
/* Connect to the server of that name, 16 bytes, which must be this user's; -ENOENT, -ETIMEDOUT. */
int tmesh_peer_connect(struct tmesh_ctx *ctx, const uint8_t *name, uint64_t deadline, int *out,
		       struct tmesh_error *err);
void tmesh_peers_drop(struct tmesh_ctx *ctx);
/* Drop the peers that have ended; ctx->lock is held. */
void tmesh_peers_sweep(struct tmesh_ctx *ctx);

/* channel_members.c */

#define TMESH_JOIN_FDS 5
struct tmesh_joined {
	uint32_t lane;
	unsigned int count;
	int fds[TMESH_JOIN_FDS]; /* to be sent with the reply */
	unsigned int given;	 /* of which the last ones are the caller's to close */
};
/*
 * Admit the peer at @conn; ctx->lock is held. On success the connection is the channel's.
 * Return: 0; -EBUSY, -EINVAL, ...
 */
int tmesh_channel_admit(struct tmesh_channel *channel, int conn, uint32_t role,
			struct tmesh_joined *joined);
/* Note that the reply to a member could not be sent; the end of @conn follows. */
void tmesh_channel_unadmit(struct tmesh_channel *channel, int conn);
/* Count messages that were sent here and not received yet, and channels whose messages would be
 * lost with this process. ctx->lock is held. */
uint64_t tmesh_channels_unread(struct tmesh_ctx *ctx);
uint64_t tmesh_channels_unreceived(struct tmesh_ctx *ctx);
/* Count those channels once, for a report of their loss, and their messages. ctx->lock is held. */
uint64_t tmesh_channels_report(struct tmesh_ctx *ctx, uint64_t *messages);

#endif /* TMESH_WIRE_H */
