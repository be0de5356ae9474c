// SPDX-License-Identifier: MIT
/* Users' threads, and the requests that wait for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mount.h"

/* A thread without work ends after so many seconds. */
#define IDLE_S 10
#define WATCH_MS 250

static void free_job(struct job *job)
{
	if (job->asker) {
		job->user->strangers--;
		asker_end(job->asker);
	}
	if (job->group) {
		job->group->lookups--;
		group_release(job->group);
	}
	free(job);
}

bool job_answers(struct job *job)
{
	bool first;

	pthread_mutex_lock(&tree.lock);
	first = !job->answered;
	job->answered = true;
	pthread_mutex_unlock(&tree.lock);
	return first;
}

void user_rests(struct user *user)
{
	user->rests_until = tmesh_now_ns() + REST_NS;
}

void job_fail(struct job *job, int code)
{
	if (code == -ETIMEDOUT) {
		pthread_mutex_lock(&tree.lock);
		user_rests(job->user);
		pthread_mutex_unlock(&tree.lock);
	}
	if (job_answers(job) && job->req)
		fuse_reply_err(job->req, code < 0 ? -code : code);
}

/* Wait for the user's next job; NULL: none came in time. For a user of whom nothing is known the
 * thread ends at once, so that readers of made-up numbers do not use up the places of users. */
static struct job *next_job(struct user *user)
{
	struct timespec until;
	struct job *job;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_S;
	while (!user->first)
		if (!user->groups ||
		    (pthread_cond_timedwait(&user->work, &tree.lock, &until) && !user->first))
			return NULL;
	job = user->first;
	user->first = job->next;
	if (!user->first)
		user->last = NULL;
	if (user->listing == job)
		user->listing = NULL;
	user->current = job;
	return job;
}

static void *serve_user(void *data)
{
	struct user *user = data;
	struct job *job;

	pthread_mutex_lock(&tree.lock);
	while ((job = next_job(user))) {
		bool late = job->answered || tmesh_now_ns() >= job->deadline;

		pthread_mutex_unlock(&tree.lock);
		if (late && !job->parts)
			job_fail(job, ETIMEDOUT);
		else
			job->run(job);
		pthread_mutex_lock(&tree.lock);
		user->current = NULL;
		user->waiting--;
		free_job(job);
	}
	user->runs = false;
	pthread_mutex_unlock(&tree.lock);
	return NULL;
}

static bool start(struct user *user)
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	if (user->runs)
		return true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	rc = pthread_create(&thread, &attr, serve_user, user);
	pthread_attr_destroy(&attr);
	user->runs = !rc;
	return user->runs;
}

/* Free the place of a user that nothing refers to. */
static void forget_one(void)
{
	for (struct user **at = &tree.users; *at; at = &(*at)->next) {
		struct user *user = *at;

		if (user->runs || user->groups || user->waiting || user->listed_bytes)
			continue;
		*at = user->next;
		pthread_cond_destroy(&user->work);
		free(user);
		return;
	}
}

static struct user *find_user(uid_t uid)
{
	pthread_condattr_t monotonic;
	unsigned int count = 0;
	struct user *user;

	for (user = tree.users; user; user = user->next, count++)
		if (user->uid == uid)
			return user;
	if (count >= USERS) {
		forget_one();
		count = 0;
		for (user = tree.users; user; user = user->next)
			count++;
		if (count >= USERS)
			return NULL;
	}
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = uid;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&user->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
	user->next = tree.users;
	tree.users = user;
	return user;
}

/* Give a user's thread a job; the lock is held. 0 or an errno; on success the job is the user's. */
static int post(uid_t uid, struct job *job)
{
	struct user *user = find_user(uid);

	if (!user)
		return EAGAIN;
	/* Its thread waits for a keeper that does not answer. A question for listings always has a
	 * place, since there is at most one. */
	if ((user->waiting >= JOBS_WAITING && !job->parts) || tmesh_now_ns() < user->rests_until)
		return ETIMEDOUT;
	if (!start(user))
		return EAGAIN;
	job->user = user;
	job->deadline = tmesh_now_ns() + ANSWER_NS;
	if (user->last)
		user->last->next = job;
	else
		user->first = job;
	user->last = job;
	user->waiting++;
	if (job->group)
		job->group->lookups++;
	pthread_cond_signal(&user->work);
	return 0;
}

/* Give a user's thread a job within the bounds of the user who asks; the lock is held. */
static int post_for(uid_t uid, struct job *job, struct asker *asker)
{
	struct user *user = find_user(uid);
	int rc = user ? asker_admit_job(asker, user) : EAGAIN;

	if (!rc)
		rc = post(uid, job);
	if (!rc && asker_begin_job(asker, user))
		job->asker = asker;
	return rc;
}

void job_post(uid_t uid, struct group *group, job_fn run, fuse_req_t req, fuse_ino_t ino,
	      const char *name, const struct fuse_file_info *fi)
{
	struct job *job = calloc(1, sizeof(*job));
	struct asker *asker;
	int rc = ENOMEM;

	if (job) {
		job->run = run;
		job->req = req;
		job->ino = ino;
		job->group = group;
		if (fi)
			job->fi = *fi;
		if (name)
			memcpy(job->name, name, strlen(name) + 1);
		pthread_mutex_lock(&tree.lock);
		asker = asker_of(fuse_req_ctx(req)->uid);
		if (asker) {
			rc = post_for(uid, job, asker);
			asker_release(asker);
		}
		pthread_mutex_unlock(&tree.lock);
	}
	if (!rc)
		return;
	free(job);
	fuse_reply_err(req, rc);
}

bool job_post_part(uid_t uid, job_fn run, struct part *part)
{
	struct user *user = find_user(uid);
	struct job *job;

	if (!user)
		return false;
	if (user->listing) {
		part->next = user->listing->parts;
		user->listing->parts = part;
		return true;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		return false;
	job->run = run;
	job->parts = part;
	if (post(uid, job)) {
		free(job);
		return false;
	}
	user->listing = job;
	return true;
}

static void expire(struct job *job, uint64_t now)
{
	if (job->answered || !job->req || now < job->deadline)
		return;
	job->answered = true;
	user_rests(job->user);
	fuse_reply_err(job->req, ETIMEDOUT);
}

/* Answer jobs whose time is over. Their thread may hang in a folder that the user serves by a
 * program. */
static void *watch(void *unused)
{
	const struct timespec interval = {0, WATCH_MS * 1000000};

	for (;;) {
		uint64_t now;

		nanosleep(&interval, NULL);
		pthread_mutex_lock(&tree.lock);
		if (tree.ends) {
			pthread_mutex_unlock(&tree.lock);
			return NULL;
		}
		now = tmesh_now_ns();
		for (struct user *user = tree.users; user; user = user->next) {
			if (user->current)
				expire(user->current, now);
			for (struct job *job = user->first; job; job = job->next)
				expire(job, now);
		}
		gathers_expire(now);
		pthread_mutex_unlock(&tree.lock);
	}
}

int jobs_watch(void)
{
	void *(*const threads[])(void *) = {watch, read_folders, forget_groups};
	pthread_t thread;
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof(threads) / sizeof(*threads); i++) {
		rc = pthread_create(&thread, NULL, threads[i], NULL);
		if (!rc)
			pthread_detach(thread);
	}
	return rc;
}
