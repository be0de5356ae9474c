// SPDX-License-Identifier: MIT
/*
 * Waiting at a channel: a try, a short busy wait, then sleep on a futex; and descriptors for event
 * loops.
 *
 * A waiting end sets its flag in a word of the channel and then looks once more. The other end acts
 * and then looks at the word. One of them sees the other.
 *
 * A wake clears the flags and advances the epoch, so that no end falls asleep on an old word. It
 * wakes all ends: it cannot know which one has something to do, and a sleeper that was killed must
 * not take another one's wake.
 */
#include "channel_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Looks between two checks of the clock and of the peers. */
#define LOOKS 32
#define EAGER 256
#define SPIN_LEAST 500

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void wake(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Signal a notifier. It is a socket because each call can ask not to wait; with an eventfd, any
 * process that shares it could change that. A full socket is signalled already. */
static void notifier_signal(const struct tmesh_channel *channel, int notifier)
{
	if (channel->notifiers[notifier].signal >= 0)
		send(channel->notifiers[notifier].signal, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void tmesh_channel_tell(struct tmesh_channel *channel, atomic_uint *word, int notifier)
{
	uint32_t flags = atomic_fetch_and(word, ~(CHANNEL_SLEEPS | CHANNEL_POLLS));

	atomic_fetch_add(word, CHANNEL_EPOCH);
	if (flags & CHANNEL_SLEEPS)
		wake(word);
	if (flags & CHANNEL_POLLS)
		notifier_signal(channel, notifier);
}

void tmesh_channel_tell_all(struct tmesh_channel *channel)
{
	atomic_fetch_add(&channel->head->data, CHANNEL_EPOCH);
	wake(&channel->head->data);
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		struct channel_lane *lane = channel_lane(channel, i);

		atomic_fetch_add(&lane->room, CHANNEL_EPOCH);
		wake(&lane->room);
	}
	for (int i = 0; i < CHANNEL_NOTIFIERS; i++) {
		notifier_signal(channel, i);
		/* It stays readable, although other processes may try to empty it. */
		if (!channel->maker && channel->notifiers[i].wait >= 0)
			shutdown(channel->notifiers[i].wait, SHUT_RD);
	}
}

static atomic_uint *word_of(struct tmesh_channel *channel)
{
	return channel->role == TMESH_CHANNEL_SEND ? &channel->lane->room : &channel->head->data;
}

/* Ask for a wake. True: look again, something has happened meanwhile. */
static bool arm(struct tmesh_channel *channel, uint32_t flag, uint32_t *value)
{
	*value = atomic_fetch_or(word_of(channel), flag) | flag;
	atomic_thread_fence(memory_order_seq_cst);
	return tmesh_channel_ready(channel) || channel_gone(channel);
}

/* Arm the notifier. Others may poll it too, so pass on a signal that this call has taken from them.
 */
static bool arm_poll(struct tmesh_channel *channel)
{
	int notifier = channel_own_notifier(channel->role);
	char bytes[64];
	uint32_t value;

	recv(channel->notifiers[notifier].wait, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (!arm(channel, CHANNEL_POLLS, &value))
		return false;
	notifier_signal(channel, notifier);
	return true;
}

/* Look for a message without pausing: a pause takes half as long as the way between near CPUs. Only
 * possible if there is one word to look at. */
static inline bool glance(const struct tmesh_channel *channel)
{
	struct channel_lane *lane = channel_lane(channel, 0);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);
	const atomic_uint_fast64_t *word = &channel_cell(channel, lane, head)->word;

	if (!channel->spin_max || channel->shape.lanes > 1)
		return false;
	for (int i = 0; i < EAGER; i++)
		if (channel_published(atomic_load_explicit(word, memory_order_acquire), head))
			return true;
	return false;
}

/* Spin for a while that doubles with each hit and halves with each miss. A @brief wait only spins.
 */
static bool spin(struct tmesh_channel *channel, uint64_t deadline, bool brief)
{
	uint64_t end = 0;

	if (!channel->spin_max)
		return false;
	for (uint32_t i = 1;; i++) {
		if (tmesh_channel_ready(channel))
			break;
		relax();
		if (i % LOOKS)
			continue;
		if (channel_gone(channel))
			break;
		if (!end) {
			end = brief ? deadline : tmesh_now_ns() + channel->spin;
		} else if (tmesh_now_ns() >= (end < deadline ? end : deadline)) {
			channel->spin /= 2;
			if (channel->spin < SPIN_LEAST)
				channel->spin = SPIN_LEAST;
			return false;
		}
	}
	channel->spin *= 2;
	if (channel->spin > channel->spin_max)
		channel->spin = channel->spin_max;
	return true;
}

static int sleep_on(atomic_uint *word, uint32_t value, uint64_t deadline)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline / 1000000000u),
		.tv_nsec = (long)(deadline % 1000000000u),
	};

	if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value,
		    deadline == UINT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY) == 0 ||
	    errno == EAGAIN)
		return 0;
	return -errno;
}

/* One way to put, to take, or to look. */
struct attempt {
	int (*now)(struct tmesh_channel *channel, const struct attempt *attempt,
		   struct tmesh_error *err);
	const struct tmesh_message *from;
	struct tmesh_message *to;
	uint32_t count;
	const char *call, *why; /* for messages: the call, and why it has to wait */
};

static int put_now(struct tmesh_channel *channel, const struct attempt *a, struct tmesh_error *err)
{
	return tmesh_channel_put(channel, a->from, a->count, err);
}

static int attempt_receive(struct tmesh_channel *channel, const struct attempt *a,
			   struct tmesh_error *err)
{
	return a->count == 1 ? tmesh_channel_pop_one(channel, a->to, err)
			     : tmesh_channel_pop(channel, a->to, a->count, err);
}

/* Take, or report that the senders are gone. Messages that they sent before are still taken, also
 * one whose region a stopped sender has not given yet. */
static int receive_now(struct tmesh_channel *channel, const struct attempt *a,
		       struct tmesh_error *err)
{
	int rc = attempt_receive(channel, a, err);

	if (rc != -EAGAIN || !channel_gone(channel))
		return rc;
	rc = attempt_receive(channel, a, err);
	if (rc != -EAGAIN || tmesh_channel_ready(channel))
		return rc;
	tmesh_channel_store_end(channel);
	return tmesh_fail(err, -EPIPE, "receive: the channel is empty, and no sender is left");
}

static int flushed_now(struct tmesh_channel *channel, const struct attempt *a,
		       struct tmesh_error *err)
{
	int rc = tmesh_channel_look(channel, err);

	if (rc)
		return rc;
	if (channel->seen == channel->tail) {
		tmesh_channel_let_go(channel);
		return 0;
	}
	return channel_gone(channel) ? tmesh_fail(err, -EPIPE, "flush: no receiver is left")
				     : -EAGAIN;
}

static int check_life(const struct tmesh_channel *channel, const char *what,
		      struct tmesh_error *err)
{
	if (TMESH_NEED(err, channel))
		return -EINVAL;
	if (channel->life != tmesh_fork_life())
		return tmesh_fail(err, -EPERM,
				  "%s: the channel was inherited through fork(); open it by its "
				  "token in this process",
				  what);
	return 0;
}

static int check_use(const struct tmesh_channel *channel, enum tmesh_channel_role role,
		     const char *what, struct tmesh_error *err)
{
	if (TMESH_NEED(err, channel))
		return -EINVAL;
	if (channel->role != role)
		return tmesh_fail(err, -EINVAL, "%s: this handle is for the other direction", what);
	return check_life(channel, what, err);
}

/* Release memory before a wait, since the other end may be waiting for it. */
static void trim(struct tmesh_channel *channel)
{
	if (channel->role == TMESH_CHANNEL_SEND)
		tmesh_channel_let_go(channel);
	else
		tmesh_channel_close_returned(channel);
}

void tmesh_channel_trim(struct tmesh_channel *channel)
{
	if (!check_life(channel, "trim", NULL))
		trim(channel);
}

static int try_now(struct tmesh_channel *channel, const struct attempt *a, struct tmesh_error *err)
{
	int rc = a->now(channel, a, err);

	if (rc == -EAGAIN && channel->polls) {
		trim(channel);
		if (arm_poll(channel))
			rc = a->now(channel, a, err);
	}
	return rc == -EAGAIN ? tmesh_fail(err, rc, "%s: %s", a->call, a->why) : rc;
}

int tmesh_channel_level(struct tmesh_channel *channel, uint64_t *waiting, uint32_t *room,
			struct tmesh_error *err)
{
	uint64_t messages;
	int rc = check_life(channel, "level", err);

	if (!rc)
		rc = tmesh_channel_waiting(channel, &messages, err);
	if (rc)
		return rc;
	if (waiting)
		*waiting = messages;
	if (room)
		*room = channel->role == TMESH_CHANNEL_SEND ? tmesh_channel_room(channel) : 0;
	return 0;
}

bool tmesh_channel_gone(const struct tmesh_channel *channel)
{
	return !check_life(channel, "gone", NULL) && channel_gone(channel);
}

/* Wake one that waits. The epoch advances after the flag is set: a waiter that read the flag
 * earlier does not fall asleep. */
void tmesh_channel_wake(struct tmesh_channel *channel)
{
	atomic_store(&channel->woken, true);
	atomic_fetch_add(word_of(channel), CHANNEL_EPOCH);
	wake(word_of(channel));
}

/* Repeat the attempt until it succeeds or the time is over. */
static int wait_for(struct tmesh_channel *channel, const struct attempt *a, int64_t timeout_ns,
		    struct tmesh_error *err)
{
	bool brief = timeout_ns >= 0 && (uint64_t)timeout_ns <= channel->spin_max;
	/* Below 2^64: neither number is 2^63. */
	uint64_t deadline = timeout_ns < 0 ? UINT64_MAX : tmesh_now_ns() + (uint64_t)timeout_ns;
	uint32_t value;
	int rc = 0;

	if (channel->role == TMESH_CHANNEL_RECV)
		deadline = channel_until(channel);
	for (;;) {
		if (!spin(channel, deadline, brief) && !brief) {
			trim(channel);
			if (!arm(channel, CHANNEL_SLEEPS, &value) && !atomic_load(&channel->woken))
				rc = sleep_on(word_of(channel), value, deadline);
		}
		if (rc == -EINTR)
			return tmesh_fail(err, rc, "%s: a signal ended the wait", a->call);
		if (atomic_exchange(&channel->woken, false))
			return tmesh_fail(err, -ECANCELED, "%s: another thread ended the wait",
					  a->call);
		rc = a->now(channel, a, err);
		if (rc != -EAGAIN)
			return rc;
		if (deadline != UINT64_MAX && tmesh_now_ns() >= deadline)
			return tmesh_fail(err, -ETIMEDOUT, "%s timed out: %s", a->call, a->why);
	}
}

#define TMESH_SENDING .now = put_now, .call = "send", .why = "the channel is full"
#define TMESH_RECEIVING .now = receive_now, .call = "receive", .why = "no message is ready"

int tmesh_channel_try_send(struct tmesh_channel *channel, const struct tmesh_message *message,
			   struct tmesh_error *err)
{
	const struct attempt a = {TMESH_SENDING, .from = message, .count = 1};
	int rc = check_use(channel, TMESH_CHANNEL_SEND, "send", err);

	if (!rc)
		rc = TMESH_NEED(err, message);
	if (!rc)
		rc = tmesh_channel_put_one(channel, message, err);
	if (rc == -EAGAIN)
		rc = try_now(channel, &a, err);
	return rc < 0 ? rc : 0;
}

int tmesh_channel_send_batch(struct tmesh_channel *channel, const struct tmesh_message *messages,
			     uint32_t count, int64_t timeout_ns, struct tmesh_error *err)
{
	int rc = check_use(channel, TMESH_CHANNEL_SEND, "send", err);

	if (!rc)
		rc = TMESH_NEED(err, messages);
	if (!rc && !count)
		rc = tmesh_fail(err, -EINVAL, "send: a batch has at least one message");
	if (!rc)
		rc = tmesh_channel_put(channel, messages, count, err);
	if (rc == -EAGAIN) {
		const struct attempt a = {TMESH_SENDING, .from = messages, .count = count};

		rc = wait_for(channel, &a, timeout_ns, err);
	}
	return rc;
}

int tmesh_channel_send(struct tmesh_channel *channel, const struct tmesh_message *message,
		       int64_t timeout_ns, struct tmesh_error *err)
{
	int rc = check_use(channel, TMESH_CHANNEL_SEND, "send", err);

	if (!rc)
		rc = TMESH_NEED(err, message);
	if (!rc)
		rc = tmesh_channel_put_one(channel, message, err);
	if (rc == -EAGAIN)
		rc = tmesh_channel_send_batch(channel, message, 1, timeout_ns, err);
	return rc < 0 ? rc : 0;
}

int tmesh_channel_flush(struct tmesh_channel *channel, int64_t timeout_ns, struct tmesh_error *err)
{
	const struct attempt a = {
		.now = flushed_now, .call = "flush", .why = "sent messages wait for a receiver"};
	int rc = check_use(channel, TMESH_CHANNEL_SEND, "flush", err);

	if (!rc)
		rc = flushed_now(channel, &a, err);
	return rc == -EAGAIN ? wait_for(channel, &a, timeout_ns, err) : rc;
}

static int begin_receiving(struct tmesh_channel *channel, int64_t timeout_ns,
			   struct tmesh_error *err)
{
	int rc = check_use(channel, TMESH_CHANNEL_RECV, "receive", err);

	if (!rc) {
		channel->patience_ns = timeout_ns;
		channel->until = 0;
	}
	return rc;
}

int tmesh_channel_try_recv(struct tmesh_channel *channel, struct tmesh_message *message,
			   struct tmesh_error *err)
{
	const struct attempt a = {TMESH_RECEIVING, .to = message, .count = 1};
	int rc = begin_receiving(channel, 0, err);

	if (!rc)
		rc = TMESH_NEED(err, message);
	if (!rc)
		rc = tmesh_channel_pop_one(channel, message, err);
	if (rc == -EAGAIN)
		rc = try_now(channel, &a, err);
	return rc < 0 ? rc : 0;
}

int tmesh_channel_recv_batch(struct tmesh_channel *channel, struct tmesh_message *messages,
			     uint32_t room, int64_t timeout_ns, struct tmesh_error *err)
{
	int rc = begin_receiving(channel, timeout_ns, err);

	if (!rc)
		rc = TMESH_NEED(err, messages);
	if (!rc && !room)
		rc = tmesh_fail(err, -EINVAL, "receive: a batch has room for at least one message");
	if (!rc)
		rc = tmesh_channel_pop(channel, messages, room, err);
	if (rc == -EAGAIN) {
		const struct attempt a = {TMESH_RECEIVING, .to = messages, .count = room};

		rc = wait_for(channel, &a, timeout_ns, err);
	}
	return rc;
}

int tmesh_channel_prepare(struct tmesh_channel *channel, struct tmesh_error *err)
{
	int rc = check_use(channel, TMESH_CHANNEL_RECV, "prepare", err);
	bool opens;

	if (rc)
		return rc;
	channel->patience_ns = -1;
	channel->until = 0;
	opens = channel->opens;
	channel->opens = true;
	rc = tmesh_channel_look_ahead(channel, err);
	channel->opens = opens;
	return rc;
}

int tmesh_channel_recv(struct tmesh_channel *channel, struct tmesh_message *message,
		       int64_t timeout_ns, struct tmesh_error *err)
{
	const struct attempt a = {TMESH_RECEIVING, .to = message, .count = 1};
	int rc = begin_receiving(channel, timeout_ns, err);

	if (!rc)
		rc = TMESH_NEED(err, message);
	if (!rc)
		rc = tmesh_channel_pop_one(channel, message, err);
	if (rc == -EAGAIN && glance(channel))
		rc = tmesh_channel_pop_one(channel, message, err);
	if (rc == -EAGAIN)
		rc = wait_for(channel, &a, timeout_ns, err);
	return rc < 0 ? rc : 0;
}

int tmesh_channel_poll_fd(struct tmesh_channel *channel, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, channel);

	if (!rc)
		rc = check_use(channel, channel->role, "poll", err);
	if (rc)
		return rc;
	if (!channel->shape.pollable)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "poll: the channel was made with TMESH_CHANNEL_NO_POLL; make it "
				  "without that flag");
	if (channel->role == TMESH_CHANNEL_SEND && channel->shape.lanes > 1)
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"poll: producers of one channel would take each other's wake-ups; "
			"make a channel for each");
	if (!channel->polls) {
		channel->polls = true;
		arm_poll(channel);
	}
	return channel->notifiers[channel_own_notifier(channel->role)].wait;
}
