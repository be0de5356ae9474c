/* SPDX-License-Identifier: MIT */
/*
 * Calls that wait for engines run in threads of their own. On the emulator's dirty schedulers a few
 * such calls would block every file and every ref of the VM. A process starts a call and receives
 * its result as a message.
 */
#include "jobs.h"

#include <signal.h>

#include "common/clock.h"

/* The most threads. Each waits in one call; further calls wait in a queue. */
#define THREADS 256
/* A thread without work ends after this time. */
#define IDLE_NS UINT64_C(10000000000)

struct job {
	struct job *next;		 /* in the queue */
	struct job *all_next, *all_prev; /* in the list of unfinished jobs */
	job_body *body;
	ErlNifEnv *env; /* of the arguments and the result */
	ERL_NIF_TERM tag, *argv;
	int argc;
	ErlNifPid caller;
	struct job_watch *watch;
	struct tmesh_engine_cancellable *own;
	struct object *user; /* a Cancellable that cancels @own, or NULL */
};

/* A monitor of the calling process. */
struct job_watch {
	struct job *job; /* NULL: finished */
	ErlNifMonitor monitor;
};

static struct {
	pthread_mutex_t lock; /* guards this struct; no waiting call is made under it */
	pthread_cond_t work;
	struct job *jobs;
	struct job *first, **last; /* jobs that no thread has begun */
	unsigned int threads, idle, queued;
	bool made, tell;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &all.first};

static _Thread_local struct tmesh_engine_cancellable *current;

struct tmesh_engine_cancellable *job_cancellable(void)
{
	return current;
}

static void unlist(struct job *job)
{
	if (job->all_next)
		job->all_next->all_prev = job->all_prev;
	if (job->all_prev)
		job->all_prev->all_next = job->all_next;
	else
		all.jobs = job->all_next;
	job->watch->job = NULL;
}

static void job_free(struct job *job)
{
	tmesh_engine_cancellable_unref(job->own);
	if (job->user)
		enif_release_resource(job->user);
	if (job->watch)
		enif_release_resource(job->watch);
	if (job->env)
		enif_free_env(job->env);
	enif_free(job->argv);
	enif_free(job);
}

/* Send the result of a job that is in no list any more. @env: the caller's, NULL in a thread of
 * this file. */
static void job_tell(ErlNifEnv *env, struct job *job, ERL_NIF_TERM result)
{
	enif_demonitor_process(env, job->watch, &job->watch->monitor);
	/* A caller that has ended receives nothing. */
	enif_send(env, &job->caller, job->env, enif_make_tuple2(job->env, job->tag, result));
	job_free(job);
}

static void job_run(struct job *job)
{
	struct tmesh_engine_cancellable *before = tmesh_engine_cancellable_enter(job->own);
	ERL_NIF_TERM result;

	current = job->own;
	result = job->body(job->env, job->argc, job->argv);
	current = NULL;
	tmesh_engine_cancellable_enter(before);
	pthread_mutex_lock(&all.lock);
	unlist(job);
	pthread_mutex_unlock(&all.lock);
	job_tell(NULL, job, result);
}

static bool wait_for_work(void)
{
	uint64_t until = tmesh_now_ns() + IDLE_NS;
	const struct timespec time = {.tv_sec = (time_t)(until / 1000000000),
				      .tv_nsec = (long)(until % 1000000000)};
	int rc = 0;

	all.idle++;
	while (!all.first && !all.tell && !rc)
		rc = pthread_cond_timedwait(&all.work, &all.lock, &time);
	all.idle--;
	return all.first || all.tell;
}

static void *worker(void *unused)
{
	pthread_mutex_lock(&all.lock);
	while (all.first || all.tell || wait_for_work()) {
		struct job *job = all.first;

		if (all.tell) {
			all.tell = false;
			pthread_mutex_unlock(&all.lock);
			garbage_tell();
			pthread_mutex_lock(&all.lock);
			continue;
		}
		all.first = job->next;
		if (!all.first)
			all.last = &all.first;
		all.queued--;
		pthread_mutex_unlock(&all.lock);
		job_run(job);
		pthread_mutex_lock(&all.lock);
	}
	all.threads--;
	pthread_mutex_unlock(&all.lock);
	return NULL;
}

/* Start a thread if none is free. The caller holds the lock. Return: 0; -EAGAIN: there is no
 * thread, and none can be made. */
static int have_thread(void)
{
	sigset_t every, before;
	pthread_condattr_t cond;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	if (!all.made) {
		pthread_condattr_init(&cond);
		pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
		pthread_cond_init(&all.work, &cond);
		pthread_condattr_destroy(&cond);
		all.made = true;
	}
	if (all.idle > all.queued || all.threads == THREADS)
		return 0;
	/* Only the emulator's threads handle signals. */
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, worker, NULL);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	all.threads += !rc;
	return rc && !all.threads ? -EAGAIN : 0;
}

void jobs_tell_janitor(void)
{
	pthread_mutex_lock(&all.lock);
	all.tell = !have_thread();
	pthread_cond_signal(&all.work);
	pthread_mutex_unlock(&all.lock);
}

/* Queue a job. The caller holds the lock. */
static int enqueue(struct job *job, struct tmesh_error *err)
{
	if (have_thread())
		return refuse(err, -EAGAIN, "no thread for a call to an engine");
	*all.last = job;
	all.last = &job->next;
	all.queued++;
	pthread_cond_signal(&all.work);
	job->all_next = all.jobs;
	if (all.jobs)
		all.jobs->all_prev = job;
	all.jobs = job;
	return 0;
}

/* Take a job that no thread has begun off the queue. The caller holds the lock. False: it runs, or
 * is not queued yet. */
static bool dequeue(struct job *job)
{
	struct job **at = &all.first;

	while (*at && *at != job)
		at = &(*at)->next;
	if (!*at)
		return false;
	*at = job->next;
	if (all.last == &job->next)
		all.last = at;
	all.queued--;
	unlist(job);
	return true;
}

static struct job *job_new(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct job *job = enif_alloc(sizeof(*job));

	if (!job)
		return NULL;
	*job = (struct job){.env = enif_alloc_env(), .argc = argc - 1};
	job->argv = enif_alloc((size_t)argc * sizeof(*job->argv));
	job->watch = enif_alloc_resource(job_watch_type, sizeof(*job->watch));
	if (job->watch)
		*job->watch = (struct job_watch){.job = job};
	if (!job->env || !job->argv || !job->watch ||
	    tmesh_engine_cancellable_create(NULL, &job->own, NULL)) {
		job_free(job);
		return NULL;
	}
	job->tag = enif_make_copy(job->env, argv[0]);
	for (int i = 1; i < argc; i++)
		job->argv[i - 1] = enif_make_copy(job->env, argv[i]);
	return job;
}

ERL_NIF_TERM job_start(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[], job_body *body,
		       struct object *user)
{
	struct job *job = job_new(env, argc, argv);
	struct tmesh_error err;
	int rc;

	if (!job)
		return make_refusal(env, -ENOMEM, "no memory for a call to an engine");
	job->body = body;
	job->user = user;
	if (user)
		enif_keep_resource(user);
	/* Monitor the caller before another thread may end the job. If the caller is about to end,
	 * do not run it. */
	if (!enif_self(env, &job->caller) ||
	    enif_monitor_process(env, job->watch, &job->caller, &job->watch->monitor)) {
		refuse(&err, -ECANCELED, "the calling process ends");
		job_free(job);
		return make_error(env, &err);
	}
	pthread_mutex_lock(&all.lock);
	rc = enqueue(job, &err);
	if (!rc && user && tmesh_engine_cancelled(user->object))
		tmesh_engine_cancel(job->own);
	pthread_mutex_unlock(&all.lock);
	if (!rc)
		return atoms.ok;
	enif_demonitor_process(env, job->watch, &job->watch->monitor);
	job_free(job);
	return make_error(env, &err);
}

/* Call off an unfinished job. The caller holds the lock. Return: the job, whose caller has no
 * message yet; NULL: it runs, and sends the message itself. */
static struct job *call_off(struct job *job)
{
	if (dequeue(job))
		return job;
	tmesh_engine_cancel(job->own);
	return NULL;
}

void jobs_cancel(ErlNifEnv *env, struct object *user)
{
	struct job *ended = NULL, *job, *next;
	struct tmesh_error err;

	pthread_mutex_lock(&all.lock);
	for (job = all.jobs; job; job = next) {
		next = job->all_next;
		if (job->user == user && call_off(job)) {
			job->next = ended;
			ended = job;
		}
	}
	pthread_mutex_unlock(&all.lock);
	for (; ended; ended = next) {
		next = ended->next;
		refuse(&err, -ECANCELED, "the call was cancelled before it ran");
		job_tell(env, ended, make_error(ended->env, &err));
	}
}

/* Call off the job of a process that has ended. */
void job_watch_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor)
{
	struct job_watch *watch = object;
	struct job *ended = NULL;

	pthread_mutex_lock(&all.lock);
	if (watch->job)
		ended = call_off(watch->job);
	pthread_mutex_unlock(&all.lock);
	if (ended)
		job_free(ended);
}
