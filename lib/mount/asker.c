// SPDX-License-Identifier: MIT
/* The users who make requests, and the bounds of what each may have the service hold. */
#include <errno.h>
#include <stdlib.h>

#include "mount.h"

struct asker *asker_of(uid_t uid)
{
	struct asker *asker = tree.askers;

	while (asker && asker->uid != uid)
		asker = asker->next;
	if (asker)
		return asker;
	asker = calloc(1, sizeof(*asker));
	if (!asker)
		return NULL;
	asker->uid = uid;
	asker->next = tree.askers;
	tree.askers = asker;
	return asker;
}

void asker_release(struct asker *asker)
{
	struct asker **at = &tree.askers;

	if (asker->waiting || asker->listings)
		return;
	while (*at != asker)
		at = &(*at)->next;
	*at = asker->next;
	free(asker);
}

static bool is_bounded(const struct asker *asker)
{
	return asker->uid != 0 && asker->uid != tree.own;
}

/* Return whether the asker's request waits at another user's keeper. */
static bool is_stranger(const struct asker *asker, const struct user *user)
{
	return is_bounded(asker) && asker->uid != user->uid;
}

static unsigned int count_jobs(const struct user *user, const struct asker *asker)
{
	unsigned int count = user->current && user->current->asker == asker;

	for (const struct job *job = user->first; job; job = job->next)
		count += job->asker == asker;
	return count;
}

static int admit_request(const struct asker *asker)
{
	if (is_bounded(asker) &&
	    (asker->waiting >= ASKED_BY_ONE || tree.waiting >= ASKED_BY_OTHERS))
		return EAGAIN;
	return 0;
}

int asker_admit_job(const struct asker *asker, const struct user *user)
{
	if (!is_stranger(asker, user))
		return 0;
	if (user->strangers >= JOBS_OF_OTHERS || count_jobs(user, asker) >= JOBS_OF_ONE)
		return EAGAIN;
	return admit_request(asker);
}

int asker_admit_listing(const struct asker *asker)
{
	if (is_bounded(asker) && asker->listings >= LISTINGS_OPEN)
		return EMFILE;
	return admit_request(asker);
}

void asker_begin(struct asker *asker)
{
	asker->waiting++;
	tree.waiting += is_bounded(asker);
}

void asker_end(struct asker *asker)
{
	asker->waiting--;
	tree.waiting -= is_bounded(asker);
	asker_release(asker);
}

bool asker_begin_job(struct asker *asker, struct user *user)
{
	if (!is_stranger(asker, user))
		return false;
	asker_begin(asker);
	user->strangers++;
	return true;
}
