/* SPDX-License-Identifier: MIT */
/*
 * Channel: a bounded queue in shared memory that carries tensors and small messages one way,
 * from one or many producers to one or many consumers. See tmesh/tmesh.h for the conventions of
 * all calls. Since 0.1.
 * Maturity: stable.
 *
 * Each handle sends or receives. Only one thread at a time may use a handle, except for _ref,
 * _unref, _wake, _level and _token. Each thread that sends or receives needs a handle of its own.
 *
 * Messages of one producer arrive in the order in which they were sent. Each goes to one consumer;
 * a message that a consumer took before it died is lost.
 *
 * At most 64 handles receive at a time; the maker sets the number of senders (64 at most).
 *
 * A message survives its sender, SIGKILL included, as long as the channel has a receiver. A store
 * that the maker and all receivers have keeps the tensor's region; it takes 253 regions of a
 * sender. There are two exceptions: the store cannot take the region (sent_alone of tmesh_stats()
 * counts that), or no handle has joined the maker yet. Then exit() waits as for a hold
 * (tmesh/hold.h), and SIGKILL loses the messages whose memory only the sender had.
 *
 * A channel lives as long as the handle that made it. A channel ends when that handle, or all
 * handles of the other direction, are closed or their processes dead. Sending then gives -EPIPE at
 * once, and receiving gives it when the queue is empty. Calls wait for a direction that no handle
 * has joined yet.
 */
#ifndef TMESH_CHANNEL_H
#define TMESH_CHANNEL_H

#include <stdbool.h>
#include <tmesh/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_channel;

enum tmesh_channel_role {
	TMESH_CHANNEL_SEND = 1,
	TMESH_CHANNEL_RECV = 2,
};

enum tmesh_channel_flags {
	/* Receiving: a message about a region that is not open yet stays, and gives -EINPROGRESS
	 * until tmesh_channel_prepare(): for threads that must not wait for a peer. */
	TMESH_CHANNEL_NO_OPEN = 1 << 0,
	/* For tmesh_channel_create() alone: no handle of the channel has a descriptor to poll. Each
	 * costs three descriptors fewer, the maker's four. */
	TMESH_CHANNEL_NO_POLL = 1 << 1,
};

struct tmesh_channel_opts {
	size_t size; /* sizeof(struct tmesh_channel_opts) */
	/* These four describe the channel; for tmesh_channel_create() alone. */
	uint32_t capacity;  /* messages that one producer can have under way: a power of two, at
			     * most 65,536; 0: 64, whose lines stay in a cache of the first level */
	uint32_t producers; /* handles that send, at most 64; 0: 1 */
	uint32_t regions;   /* that one producer can have under way, at most 1,024; 0: 16 */
	uint32_t layouts;   /* the same of different dtypes, shapes and strides; 0: 16 */
	/* Of this handle. */
	uint32_t rights;      /* sending: rights of the receivers, READ (0 too) or READ | WRITE;
			       * memory that is sealed by then has READ */
	uint32_t max_regions; /* receiving: kept open for further messages; 0: 64 */
	uint64_t max_bytes;   /* receiving: of them, beyond which those go that the caller holds
			       * no tensor of; 0: 1 GiB */
	uint32_t flags;	      /* enum tmesh_channel_flags */
	uint32_t limit;	      /* sending: messages that this handle has under way at most, where it
			       * may not use all cells; 0: all */
	uint64_t spin_ns;     /* longest busy wait before sleeping, at most 1 s; 0: none, a wait
			       * sleeps at once. It gets shorter by itself where it does not help. A
			       * wait with no longer a timeout never sleeps */
};

#define TMESH_MESSAGE_BYTES 56	      /* of a message without a tensor */
#define TMESH_MESSAGE_TENSOR_BYTES 24 /* beside a tensor */

struct tmesh_message {
	struct tmesh_tensor *tensor; /* NULL: none. Sent: stays the caller's. Received: a
				      * reference of the caller's */
	uint32_t bytes;		     /* in data */
	uint32_t reserved;	     /* 0 */
	uint8_t data[TMESH_MESSAGE_BYTES];
};

/*
 * A new channel, and this process's first handle on it.
 * Return: 0; -EINVAL (role, numbers), -EDQUOT, -ENOMEM, -EMFILE, -EACCES (runtime directory).
 */
int tmesh_channel_create(struct tmesh_ctx *ctx, enum tmesh_channel_role role,
			 const struct tmesh_channel_opts *opts, struct tmesh_channel **out,
			 struct tmesh_error *err);

/* Return the channel's token, TMESH_TOKEN_SIZE bytes. Any process of the same user may join by it.
 * It is good while the handle that made the channel lives. -EINVAL: this is not that handle. */
int tmesh_channel_token(struct tmesh_channel *channel, char *token, struct tmesh_error *err);

/*
 * Join a channel.
 * Return: 0; -ENOENT (no such channel), -EPROTO (no token, or no channel's memory), -EBUSY (all
 * places of this role are taken), -EINVAL, -ETIMEDOUT, -ENOMEM, -EMFILE.
 */
int tmesh_channel_open(struct tmesh_ctx *ctx, const char *token, enum tmesh_channel_role role,
		       const struct tmesh_channel_opts *opts, struct tmesh_channel **out,
		       struct tmesh_error *err);

struct tmesh_channel *tmesh_channel_ref(struct tmesh_channel *channel);
/*
 * The last unref leaves the channel. Sent messages can still be received. If this handle alone has
 * the memory of one, the library keeps that memory until the message was received or no receiver is
 * left. If the handle made the channel and none has joined, the memory stays for exit_wait_ns of
 * tmesh_ctx_opts. docs/reference/channels.md lists the losses when a process ends.
 */
void tmesh_channel_unref(struct tmesh_channel *channel);

/*
 * Send one message. Only @message is copied. The first message about a region carries its token.
 * The handle holds a tensor's region until it was received, or longer while the caller holds it
 * too. A thread of the context gives back the regions that the handle releases. The caller does it
 * only when memory, descriptors or a limit are exhausted, before it tries again. @timeout_ns
 * negative: wait without limit.
 *
 * Return: 0; -EAGAIN (_try_: the queue is full); -ETIMEDOUT; -EPIPE (there is no receiver); -EINTR
 * (a signal came during sleep). For wrong use: -EINVAL (too many bytes; a handle that receives, and
 * for receiving one that sends); -EPERM (handle inherited through fork()). Also -EPROTO (the
 * channel's memory is corrupt: close it), and -EACCES, -ESTALE, -EPERM of the tensor's region.
 */
int tmesh_channel_send(struct tmesh_channel *channel, const struct tmesh_message *message,
		       int64_t timeout_ns, struct tmesh_error *err);
int tmesh_channel_try_send(struct tmesh_channel *channel, const struct tmesh_message *message,
			   struct tmesh_error *err);
/* Up to @count messages, as many as there is room for; waits only for the first. Return: how
 * many were sent (at least 1), or as tmesh_channel_send(). */
int tmesh_channel_send_batch(struct tmesh_channel *channel, const struct tmesh_message *messages,
			     uint32_t count, int64_t timeout_ns, struct tmesh_error *err);
/* Wait until all messages of this handle were taken, and release their regions, which a thread of
 * the context gives back. Return: as tmesh_channel_send(). */
int tmesh_channel_flush(struct tmesh_channel *channel, int64_t timeout_ns, struct tmesh_error *err);

/*
 * Return how full the channel is at this moment; the other ends go on meanwhile. @waiting: messages
 * of all senders, dead ones too, that no receiver has taken. @room of a sending handle: messages
 * that it may still have under way, as long as its tables have room too. @room of a receiving one:
 * 0. Either may be NULL. From any thread that holds a reference.
 * Return: 0; -EPERM (handle inherited through fork()); -EPROTO (the channel's memory is corrupt).
 */
int tmesh_channel_level(struct tmesh_channel *channel, uint64_t *waiting, uint32_t *room,
			struct tmesh_error *err);

/* Return whether the other end has no handle left: a send gives -EPIPE then, and a receive does
 * once the queue is empty. False if no handle has joined there yet, and for NULL. */
bool tmesh_channel_gone(const struct tmesh_channel *channel);

/*
 * End the wait of the thread that uses this handle with -ECANCELED. If none waits now, end the next
 * wait. Calls that need no wait still succeed. From any thread that holds a reference.
 */
void tmesh_channel_wake(struct tmesh_channel *channel);

/*
 * Release the regions that this handle no longer needs. A sending handle releases those of received
 * messages that nothing else in this process holds. A receiving one releases those that their
 * sender has released and that the caller holds no tensor of. A thread of the context gives the
 * memory back. Each wait does this too before it sleeps. So does a _try_ that found nothing after
 * tmesh_channel_poll_fd() was called. A handle that is idle for long is trimmed only by this call.
 */
void tmesh_channel_trim(struct tmesh_channel *channel);

/*
 * Receive one message. A region not yet known is opened. Later messages about it cost no system
 * call, nor an allocation if the caller releases the tensors that it has received.
 *
 * No call waits longer than its own timeout. If the sender has to be asked for a region, its answer
 * may be for a later call. A sender that does not answer within the context's timeout_ns makes the
 * call fail with -ETIMEDOUT.
 *
 * Return: 0; -EAGAIN (_try_: no message, or no answer yet); -ETIMEDOUT; -EPIPE (no message, and no
 * sender is left); -EINTR. If the message cannot be delivered: -EPROTO (it is damaged, or the
 * channel's memory is corrupt); -ENOENT, -ESTALE (its region is gone, by its owner's death or a
 * revocation). The message stays after -EMFILE, -ENOMEM and -EINPROGRESS (NO_OPEN). Also -EPERM
 * (handle inherited through fork()). A message that can never be delivered is dropped; the next
 * call goes on behind it. On failure @message may have been written to; it holds nothing.
 */
int tmesh_channel_recv(struct tmesh_channel *channel, struct tmesh_message *message,
		       int64_t timeout_ns, struct tmesh_error *err);
int tmesh_channel_try_recv(struct tmesh_channel *channel, struct tmesh_message *message,
			   struct tmesh_error *err);
/*
 * Open the region of the next message, if there is one and it needs that. May wait for a peer as
 * long as tmesh_region_open(). A message that can never be delivered is left to the next receive.
 * Return: 0; -EMFILE, -ENOMEM, -ETIMEDOUT (worth another try); -EPERM, -EINVAL.
 */
int tmesh_channel_prepare(struct tmesh_channel *channel, struct tmesh_error *err);
/* Up to @room messages, as many as are there; waits only for the first. Return: how many came
 * (at least 1), or as tmesh_channel_recv(). */
int tmesh_channel_recv_batch(struct tmesh_channel *channel, struct tmesh_message *messages,
			     uint32_t room, int64_t timeout_ns, struct tmesh_error *err);

/*
 * A descriptor for poll(), still the library's: readable when it is worth to try. Try until
 * -EAGAIN, which arms it again; it stays readable once the peer is gone. From the first call
 * on, the other side pays a system call when it finds this one armed.
 *
 * Return: the descriptor; -EOPNOTSUPP (sending where there may be several producers; NO_POLL);
 * -EPERM.
 */
int tmesh_channel_poll_fd(struct tmesh_channel *channel, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_CHANNEL_H */
