// SPDX-License-Identifier: MIT
/* Waiting on channels: sleepers are woken by messages, by the end of the other side and by signals;
 * and event loops. */
#include <sys/time.h>

#include "channels.h"
#include "channel_internal.h"

static void *recv_one(void *data)
{
	struct tmesh_message message;

	return (void *)(intptr_t)tmesh_channel_recv(data, &message, -1, NULL);
}

/* A handle spins only if it asked for it, and for so long. */
UNIT(test_spins_as_asked)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .spin_ns = 30000};
	struct pair p = pair_make(SEND, NULL);

	assert_int_equal(p.maker->spin_max, 0);
	assert_int_equal(p.other->spin_max, 0);
	tmesh_channel_unref(p.other);
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	assert_int_equal(p.other->spin_max, 30000);
	pair_end(&p);
}

/* All who sleep are woken: one alone would take one of two messages and leave. */
UNIT(test_sleepers)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts)};
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_message messages[] = {number(1), number(2)};
	struct tmesh_channel *sleepers[2];
	pthread_t threads[2];
	void *failed;

	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &sleepers[i], err));
		pthread_create(&threads[i], NULL, recv_one, sleepers[i]);
	}
	usleep(50000);
	assert_int_equal(tmesh_channel_send_batch(p.maker, messages, 2, 0, NULL), 2);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &failed);
		assert_int_equal((intptr_t)failed, 0);
	}
	for (int i = 0; i < 2; i++)
		tmesh_channel_unref(sleepers[i]);
	pair_end(&p);
}

static void *send_one(void *data)
{
	struct tmesh_message message = number(1);

	return (void *)(intptr_t)tmesh_channel_send(data, &message, -1, NULL);
}

/* A sleeper is woken when the other end goes, whichever of them made the channel. */
UNIT(test_left_asleep)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 1};

	for (int i = 0; i < 4; i++) {
		enum tmesh_channel_role role = i % 2 ? RECV : SEND;
		struct pair p = pair_make(role, &opts);
		struct tmesh_channel **asleep = i < 2 ? &p.maker : &p.other,
				     **leaves = i < 2 ? &p.other : &p.maker;
		bool sends = (*asleep)->role == SEND;
		struct tmesh_message message = number(0);
		pthread_t thread;
		void *rc;

		if (sends)
			assert_ok(tmesh_channel_try_send(*asleep, &message, err));
		pthread_create(&thread, NULL, sends ? send_one : recv_one, *asleep);
		usleep(50000);
		tmesh_channel_unref(*leaves);
		*leaves = NULL;
		pthread_join(thread, &rc);
		assert_int_equal((intptr_t)rc, -EPIPE);
		pair_end(&p);
	}
}

static void wake_up(int signal)
{
}

/* A wait for a taken message, or for a new one, ends with the processes that could bring it, and by
 * a signal. */
UNIT(test_let_go)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts)};
	const struct sigaction action = {.sa_handler = wake_up};
	const struct itimerval often = {{0, 20000}, {0, 20000}}, never = {0};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message message = number(1), got;

	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	/* The handler stays: another thread may still have the last of them before it. */
	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	assert_refused(tmesh_channel_flush(p.maker, PATIENCE, err), -EINTR, "signal");
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	tmesh_channel_unref(p.other);
	assert_refused(tmesh_channel_flush(p.maker, PATIENCE, err), -EPIPE, "receive");
	p.other = pair_open(&p, RECV);
	assert_ok(tmesh_channel_recv(p.other, &got, 0, err));
	assert_ok(tmesh_channel_flush(p.maker, 0, err));
	pair_end(&p);
}

static void *wake_later(void *data)
{
	usleep(20000);
	tmesh_channel_wake(data);
	return NULL;
}

/* Another thread ends one wait, this one or the next one, and only one; a call that needs no wait
 * is done. */
UNIT(test_woken)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 1};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message message = number(1), got;
	pthread_t thread;

	for (int i = 0; i < 20; i++) {
		pthread_create(&thread, NULL, wake_later, p.other);
		assert_refused(tmesh_channel_recv(p.other, &got, -1, err), -ECANCELED, "ended");
		pthread_join(thread, NULL);
	}
	tmesh_channel_wake(p.other);
	assert_refused(tmesh_channel_recv(p.other, &got, -1, err), -ECANCELED, "ended");
	assert_refused(tmesh_channel_recv(p.other, &got, 1000000, err), -ETIMEDOUT, "");
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	tmesh_channel_wake(p.maker);
	assert_refused(tmesh_channel_send(p.maker, &message, -1, err), -ECANCELED, "ended");
	pthread_create(&thread, NULL, wake_later, p.maker);
	assert_refused(tmesh_channel_flush(p.maker, -1, err), -ECANCELED, "ended");
	pthread_join(thread, NULL);
	tmesh_channel_wake(p.other);
	assert_ok(tmesh_channel_recv(p.other, &got, -1, err));
	pair_end(&p);
}

/* Event loops. */

static void *send_later(void *data)
{
	struct tmesh_message message = number(1);

	usleep(20000);
	return (void *)(intptr_t)tmesh_channel_try_send(data, &message, NULL);
}

static void *recv_later(void *data)
{
	struct tmesh_message message;

	usleep(20000);
	return (void *)(intptr_t)tmesh_channel_try_recv(data, &message, NULL);
}

UNIT(test_poll)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 2, .producers = 1};

	for (int role = SEND; role <= RECV; role++) {
		struct pair p = pair_make((enum tmesh_channel_role)role, &opts);
		struct tmesh_channel *from = role == SEND ? p.maker : p.other;
		struct tmesh_channel *to = role == SEND ? p.other : p.maker;
		int in = tmesh_channel_poll_fd(to, NULL), out = tmesh_channel_poll_fd(from, NULL);
		struct tmesh_message message = number(0), got;
		pthread_t thread;

		assert_true(in >= 0 && out >= 0);
		assert_false(readable(in, 0));
		for (int i = 0; i < 50; i++) {
			assert_int_equal(tmesh_channel_try_recv(to, &got, NULL), -EAGAIN);
			assert_false(readable(in, 0));
			assert_ok(tmesh_channel_try_send(from, &message, err));
			assert_true(readable(in, PATIENT_MS));
			assert_ok(tmesh_channel_try_recv(to, &got, err));
		}
		assert_int_equal(tmesh_channel_try_recv(to, &got, NULL), -EAGAIN);
		pthread_create(&thread, NULL, send_later, from);
		assert_true(readable(in, PATIENT_MS));
		pthread_join(thread, NULL);
		assert_ok(tmesh_channel_try_recv(to, &got, err));

		for (int i = 0; i < 2; i++)
			assert_ok(tmesh_channel_try_send(from, &message, err));
		assert_int_equal(tmesh_channel_try_send(from, &message, NULL), -EAGAIN);
		assert_false(readable(out, 0));
		pthread_create(&thread, NULL, recv_later, to);
		assert_true(readable(out, PATIENT_MS));
		pthread_join(thread, NULL);
		assert_ok(tmesh_channel_try_send(from, &message, err));

		/* The other end's leaving is an event too, and stays one. */
		tmesh_channel_unref(from);
		assert_true(readable(in, PATIENT_MS));
		while (!tmesh_channel_try_recv(to, &got, NULL))
			;
		while (tmesh_channel_try_recv(to, &got, NULL) != -EPIPE)
			assert_true(readable(in, PATIENT_MS));
		/* The notifier may report a moment later what receive knows at once. */
		assert_true(readable(in, PATIENT_MS));
		/* No process that joined can silence it, with others at the same notifier. */
		if (role == SEND)
			for (int i = 0; i < 4; i++) {
				recv(in, &got, sizeof(got), MSG_DONTWAIT);
				assert_true(readable(in, PATIENT_MS));
			}
		p.maker = NULL;
		p.other = to;
		pair_end(&p);
	}
	opts.producers = 2;
	{
		struct pair p = pair_make(SEND, &opts);

		assert_refused(tmesh_channel_poll_fd(p.maker, err), -EOPNOTSUPP, "channel for");
		pair_end(&p);
	}
}

/* Consumers share a notifier: a call of one of them loses nothing for the other. */
UNIT(test_poll_shared)
{
	for (int role = SEND; role <= RECV; role++) {
		struct pair p = pair_make((enum tmesh_channel_role)role, NULL);
		struct tmesh_channel *from = role == SEND ? p.maker : p.other;
		struct tmesh_channel *to[2] = {role == SEND ? p.other : p.maker,
					       pair_open(&p, RECV)};
		struct tmesh_message message = number(1), got;
		int fd[2];

		/* It was there before the first poll. */
		assert_ok(tmesh_channel_try_send(from, &message, err));
		for (int i = 0; i < 2; i++) {
			fd[i] = tmesh_channel_poll_fd(to[i], NULL);
			assert_true(readable(fd[i], 0));
		}
		assert_ok(tmesh_channel_try_recv(to[0], &got, err));
		for (int i = 0; i < 2; i++)
			assert_int_equal(tmesh_channel_try_recv(to[i], &got, NULL), -EAGAIN);
		assert_false(readable(fd[0], 0));
		/* Two messages signal once; taking one of them leaves the notifier readable. */
		assert_ok(tmesh_channel_try_send(from, &message, err));
		assert_ok(tmesh_channel_try_send(from, &message, err));
		assert_ok(tmesh_channel_try_recv(to[0], &got, err));
		assert_true(readable(fd[1], 0));
		assert_ok(tmesh_channel_try_recv(to[1], &got, err));
		for (int i = 0; i < 2; i++)
			assert_int_equal(tmesh_channel_try_recv(to[i], &got, NULL), -EAGAIN);
		tmesh_channel_unref(from);
		for (int i = 0; i < 4; i++) {
			assert_true(readable(fd[i % 2], PATIENT_MS));
			while (tmesh_channel_try_recv(to[i % 2], &got, NULL) != -EPIPE)
				usleep(100);
		}
		tmesh_channel_unref(to[1]);
		p.maker = NULL;
		p.other = to[0];
		pair_end(&p);
	}
}

UNIT_MAIN("channel_waits", NULL, NULL)
