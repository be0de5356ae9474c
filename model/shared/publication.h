/* SPDX-License-Identifier: MIT */
/*
 * A publication: memory that one process writes and all others can only read (a memfd sealed
 * against every later writer), and a notification for each subscriber. A reader may be too slow to
 * copy a value before the next one replaces it. Then it asks the owner, which keeps its answer for
 * that reader.
 */
#ifndef MODEL_PUBLICATION_H
#define MODEL_PUBLICATION_H

#include "listener.h"

/* Messages that a call of a subscription reads at most. The owner's socket has room for fewer. */
#define MODEL_NOTIFICATIONS 256u

struct model_subscriber;

struct model_answer {
	uint64_t number; /* of the answer */
	uint64_t bytes;	 /* of the file that comes with it */
};

struct model_publication {
	struct model_listener listener;
	uint32_t kind;
	uint32_t life;
	int fd;
	void *addr;
	size_t bytes;
	struct model_subscriber *subscribers; /* with the host's lock held */
	unsigned int count;
	/*
	 * Answer a reader: fill @answer and return a descriptor (-1: there is none) and a pin. The
	 * reader holds the pin until it is done or dead, when @done gets it. Both are called with
	 * the host's lock held. NULL: readers cannot ask.
	 */
	int (*asked)(struct model_publication *publication, struct model_answer *answer, int *fd,
		     void **pin);
	void (*done)(void *pin);
};

/* Create a publication; @kind is the magic number of its contents. The host's lock is not held. */
int model_publication_create(struct model_publication *publication, struct tmesh_ctx *ctx,
			     uint32_t kind, const char *label, size_t bytes,
			     struct tmesh_error *err);
void model_publication_close(struct model_publication *publication);
int model_publication_token(struct model_publication *publication, char *token,
			    struct tmesh_error *err);
/* Notify all readers that watch. */
void model_publication_notify(struct model_publication *publication);

/* A reader's side; for one thread at a time. */
struct model_subscription {
	struct model_fd socket;
	uint32_t life;
	const void *addr;
	size_t bytes;
	uint32_t asks;
	bool watches;
	bool gone;
	bool done_pending; /* that it is done: there was no room */
};

int model_subscription_open(struct model_subscription *subscription, struct tmesh_ctx *ctx,
			    const char *token, uint32_t kind, size_t least,
			    struct tmesh_error *err);
void model_subscription_close(struct model_subscription *subscription);
/* Return the descriptor to poll. From the first call on the owner notifies it. */
int model_subscription_poll_fd(struct model_subscription *subscription, struct tmesh_error *err);
/* Read the notifications, before looking at the memory. If there are more than MODEL_NOTIFICATIONS,
 * the descriptor stays readable. */
void model_subscription_drain(struct model_subscription *subscription);
/* Make the descriptor to poll readable again, by the owner. */
void model_subscription_notify_again(struct model_subscription *subscription);
/* Return whether the publication's owner is gone, at once or within @ms. */
bool model_subscription_ended(struct model_subscription *subscription, int ms);
/* Ask the owner. The owner keeps its answer until model_subscription_done(). Notifications are read
 * meanwhile; a subscriber is notified again at the end. */
void model_subscription_ask(struct model_subscription *subscription);
/* Wait for the answer to the last question, @ms at most. @fd is the caller's, or -1. */
bool model_subscription_answer(struct model_subscription *subscription, int ms,
			       struct model_answer *answer, int *fd);
void model_subscription_done(struct model_subscription *subscription);
/* Tell the owner now that the reader is done, if there was no room before. Watching and looking do
 * so too. */
void model_subscription_settle(struct model_subscription *subscription);

#endif /* MODEL_PUBLICATION_H */
