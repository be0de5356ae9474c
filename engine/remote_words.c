// SPDX-License-Identifier: MIT
/*
 * Words to the engine about graphs and bindings that have ended. The thread that drops the last
 * reference waits neither for other calls nor for the engine. It queues a word, which the next turn
 * with room sends.
 */
#include "remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct remote_word *remote_word_new(void)
{
	return calloc(1, sizeof(struct remote_word));
}

static struct remote_word *pop(struct remote *remote)
{
	struct remote_word *word;

	pthread_mutex_lock(&remote->turns.lock);
	word = remote->words;
	if (word)
		remote->words = word->next;
	pthread_mutex_unlock(&remote->turns.lock);
	return word;
}

static void push(struct remote *remote, struct remote_word *word)
{
	pthread_mutex_lock(&remote->turns.lock);
	word->next = remote->words;
	remote->words = word;
	pthread_mutex_unlock(&remote->turns.lock);
}

/* Send a word. Return false if there is no room: it must be sent later. */
static bool say(struct remote *remote, const struct remote_word *word)
{
	struct wire_request words = {.op = word->op, .id = word->id, .number = remote->number + 1};
	struct tmesh_message message = {.bytes = sizeof(words)};
	int rc;

	/* The engine has freed the objects of an older link. */
	if (remote->socket < 0 || word->generation != remote->generation)
		return true;
	memcpy(message.data, &words, sizeof(words));
	rc = tmesh_channel_try_send(remote->requests, &message, NULL);
	if (rc == -EAGAIN)
		return false;
	remote->number++;
	/* If the engine is dead, the next call reports it. */
	return true;
}

bool remote_say_words(struct remote *remote)
{
	struct remote_word *word;

	while ((word = pop(remote))) {
		if (!say(remote, word)) {
			push(remote, word);
			return false;
		}
		free(word);
	}
	return true;
}

void remote_word_queue(struct remote *remote, struct remote_word *word, uint32_t op, uint32_t id,
		       uint64_t generation)
{
	struct cancel_hook hook = {0};

	word->op = op;
	word->id = id;
	word->generation = generation;
	push(remote, word);
	/* Send it now if the turn is free, so that an idle engine frees at once. */
	if (turn_try_enter(&remote->turns, &hook))
		remote_leave(remote, &hook);
}

void remote_words_free(struct remote *remote)
{
	struct remote_word *word;

	while ((word = pop(remote)))
		free(word);
}
