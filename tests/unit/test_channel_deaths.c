// SPDX-License-Identifier: MIT
/*
 * Channels between processes that die: killed at any moment, producers tear nothing and stick
 * nothing, and consumers take with them at most what they took last. TMESH_TEST_LENGTH=full kills a
 * thousand of each.
 */
#include "channel_internal.h"
#include "channels.h"

#define PRODUCERS 3

static int kills(void)
{
	const char *length = getenv("TMESH_TEST_LENGTH");

	return length && !strcmp(length, "full") ? 1000 : 40;
}

/* A message that is whole or not: each word says which it is. */
static struct tmesh_message whole(uint64_t n)
{
	struct tmesh_message message = {.bytes = TMESH_MESSAGE_BYTES};
	uint64_t words[7];

	for (uint64_t i = 0; i < 7; i++)
		words[i] = n * 0x9e3779b97f4a7c15u + i;
	words[0] = n;
	memcpy(message.data, words, sizeof(words));
	return message;
}

static bool is_whole(const struct tmesh_message *message)
{
	struct tmesh_message same = whole(number_of(message));

	return message->bytes == same.bytes && !memcmp(message->data, same.data, same.bytes);
}

static void stop(pid_t child)
{
	int status;

	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	/* It had found nothing wrong. */
	assert_true(WIFSIGNALED(status));
}

/* Every eighth is a tensor of the number. */
static struct tmesh_message message_of(struct tmesh_ctx *ctx, uint64_t n)
{
	struct tmesh_message message = whole(n);
	int64_t one[] = {1};

	if (n % 8)
		return message;
	message.bytes = 8;
	CHECK(!tmesh_tensor_put(ctx, TMESH_UINT64, 1, one, message.data, NULL, &message.tensor,
				NULL));
	return message;
}

/* Numbers from 1, above them the producer's own; in batches. */
static _Noreturn void produce(const char *token, uint64_t who)
{
	struct tmesh_channel *channel;
	struct tmesh_ctx *ctx;
	int rc;

	CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
	/* The lane is free once the maker has seen its last owner's end. */
	while ((rc = tmesh_channel_open(ctx, token, SEND, NULL, &channel, NULL)) == -EBUSY)
		usleep(100);
	CHECK(!rc);
	for (uint64_t n = 1;;) {
		struct tmesh_message messages[7];
		uint32_t count = 1 + n % 7;

		for (uint32_t i = 0; i < count; i++)
			messages[i] = message_of(ctx, who << 32 | (n + i));
		for (uint32_t done = 0; done < count; done += (uint32_t)rc) {
			rc = tmesh_channel_send_batch(channel, messages + done, count - done,
						      PATIENCE, NULL);
			CHECK(rc > 0);
		}
		for (uint32_t i = 0; i < count; i++)
			tmesh_tensor_unref(messages[i].tensor);
		n += count;
	}
}

static pid_t start(const char *token, uint64_t who)
{
	pid_t child = fork();

	if (child == 0)
		produce(token, who);
	return child;
}

/* One message, whatever of its producer's is still there; false when nothing comes any more. */
static bool receive(struct tmesh_channel *channel, uint64_t *last)
{
	struct tmesh_message message;
	struct tmesh_error why;
	uint64_t who, n;
	uint64_t *data;
	int rc = tmesh_channel_recv(channel, &message, PATIENCE, &why);

	if (rc == -EPIPE)
		return false;
	if (rc == -ENOENT) /* a tensor of who has been killed */
		return true;
	if (rc)
		fail_msg("receive: %d %s", rc, why.message);
	who = number_of(&message) >> 32;
	n = number_of(&message) & UINT32_MAX;
	if (message.tensor) {
		assert_ok(tmesh_tensor_data(message.tensor, TMESH_READ, (void **)&data, err));
		assert_int_equal(*data, number_of(&message));
		tmesh_tensor_unref(message.tensor);
	} else {
		assert_true(is_whole(&message));
	}
	/* Nothing is missing before it but tensors of the dead. */
	assert_true(n == last[who] + 1 || (n == last[who] + 2 && n % 8 == 1));
	last[who] = n;
	return true;
}

UNIT(test_producers)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts),
		.capacity = 16,
		.producers = PRODUCERS,
		.regions = 4,
	};
	uint64_t total = (uint64_t)kills(), started = 0;
	uint64_t *last = calloc(total + PRODUCERS, sizeof(*last));
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *channel;
	pid_t children[PRODUCERS];
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_channel_create(ctx, RECV, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	for (int i = 0; i < PRODUCERS; i++)
		children[i] = start(token, started++);
	srand(1);
	while (started < total) {
		int victim = rand() % PRODUCERS;

		/* Now and then before it has joined, or when no other has. */
		for (int n = rand() % 200; n; n--)
			if (!receive(channel, last))
				usleep(100);
		stop(children[victim]);
		children[victim] = start(token, started++);
	}
	for (int i = 0; i < PRODUCERS; i++)
		stop(children[i]);
	while (receive(channel, last))
		;
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
	free(last);
}

/* Says in @at how far it is, after each. Since then so many others were killed as @lost says, each
 * of which may have taken one that it did not come to say. */
static _Noreturn void consume(const char *token, volatile uint64_t *at, uint64_t lost)
{
	struct tmesh_channel *channel;
	struct tmesh_ctx *ctx;

	CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
	CHECK(!tmesh_channel_open(ctx, token, RECV, NULL, &channel, NULL));
	for (;;) {
		struct tmesh_message message;

		CHECK(!tmesh_channel_recv(channel, &message, PATIENCE, NULL));
		CHECK(is_whole(&message));
		CHECK(number_of(&message) > *at && number_of(&message) <= *at + 1 + lost);
		*at = number_of(&message);
		lost = 0;
	}
}

UNIT(test_consumers)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 16};
	volatile uint64_t *at =
		mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *channel;
	struct tmesh_message message;
	struct tmesh_ctx *ctx = new_ctx();
	uint64_t n = 1, lost = 0;

	assert_ok(tmesh_channel_create(ctx, SEND, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	srand(1);
	for (int i = 0; i < kills(); i++) {
		uint64_t until = n + (uint64_t)(rand() % 300), before = *at;
		pid_t child = fork();

		if (child == 0)
			consume(token, at, lost);
		while (n < until) {
			int rc;

			message = whole(n);
			rc = tmesh_channel_send(channel, &message, PATIENCE, NULL);
			n += rc == 0;
			/* The last one's end has been seen, this one has not joined yet: our own
			 * server lets it in, which is to have the processor meanwhile. */
			assert_true(rc == 0 || rc == -EPIPE);
			if (rc)
				usleep(100);
		}
		stop(child);
		lost = *at == before ? lost + 1 : 1;
	}
	munmap((void *)at, sizeof(*at));
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
}

/* The process that made the channel dies: the others empty it and know. */
UNIT(test_makers)
{
	struct tmesh_message message;
	struct tmesh_ctx *ctx = new_ctx();

	for (int i = 0; i < kills() / 4; i++) {
		char token[TMESH_TOKEN_SIZE] = {0};
		struct tmesh_channel *channel;
		uint64_t n = 0;
		int ends[2], rc;
		pid_t child;

		assert_int_equal(pipe(ends), 0);
		child = fork();
		if (child == 0) {
			struct tmesh_ctx *own;

			CHECK(!tmesh_ctx_open(NULL, &own, NULL));
			CHECK(!tmesh_channel_create(own, SEND, NULL, &channel, NULL));
			CHECK(!tmesh_channel_token(channel, token, NULL));
			CHECK(write(ends[1], token, sizeof(token)) == sizeof(token));
			for (;;) {
				message = whole(++n);
				CHECK(!tmesh_channel_send(channel, &message, PATIENCE, NULL));
			}
		}
		assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
		close(ends[0]);
		close(ends[1]);
		assert_ok(tmesh_channel_open(ctx, token, RECV, NULL, &channel, err));
		while ((rc = tmesh_channel_recv(channel, &message, PATIENCE, NULL)) == 0) {
			assert_true(is_whole(&message));
			assert_int_equal(number_of(&message), ++n);
			if (n == (uint64_t)i % 50 + 1)
				stop(child);
		}
		assert_int_equal(rc, -EPIPE);
		tmesh_channel_unref(channel);
	}
	tmesh_ctx_unref(ctx);
}

/* A consumer that must not wait learns from prepare, then from receive, that its peer is gone and
 * its message with it. */
UNIT(test_gone_before_opened)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .flags = TMESH_CHANNEL_NO_OPEN};
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel, *other;
	struct tmesh_message message;
	char token[TMESH_TOKEN_SIZE];
	pid_t child;
	int store;

	assert_ok(tmesh_channel_create(ctx, RECV, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	/* It lies in the store, from which this process takes it here. */
	assert_ok(tmesh_channel_open(ctx, token, RECV, NULL, &other, err));
	child = fork();
	if (child == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct tmesh_channel *to;

		CHECK(!tmesh_channel_open(own, token, SEND, NULL, &to, NULL));
		for (uint64_t i = 0; i < 2; i++) {
			message = message_of(own, i * 8);
			CHECK(!tmesh_channel_try_send(to, &message, NULL));
		}
		message = whole(1);
		CHECK(!tmesh_channel_try_send(to, &message, NULL));
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(tmesh_channel_lane_end(channel, 0, &store), 0);
	assert_true(recv(store, &message, sizeof(message), 0) > 0);
	close(store);
	for (int i = 0; i < 2; i++) {
		assert_refused(tmesh_channel_recv(channel, &message, -1, err), -EINPROGRESS,
			       "prepare");
		assert_ok(tmesh_channel_prepare(channel, err));
		assert_refused(tmesh_channel_recv(channel, &message, -1, err), -ENOENT, "gone");
	}
	assert_ok(tmesh_channel_recv(channel, &message, -1, err));
	assert_true(is_whole(&message));
	assert_refused(tmesh_channel_recv(channel, &message, -1, err), -EPIPE, "");
	tmesh_channel_unref(other);
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
}

/* Fork a process that makes the channel and then does nothing. */
static pid_t start_maker(char *token)
{
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct tmesh_channel *channel;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(!tmesh_channel_create(own, RECV, NULL, &channel, NULL));
		CHECK(!tmesh_channel_token(channel, token, NULL));
		CHECK(write(ends[1], token, TMESH_TOKEN_SIZE) == TMESH_TOKEN_SIZE);
		for (;;)
			pause();
	}
	assert_int_equal(read(ends[0], token, TMESH_TOKEN_SIZE), TMESH_TOKEN_SIZE);
	close(ends[0]);
	close(ends[1]);
	return child;
}

/* Fork a process that sends a tensor and then stops. No process finds its index. */
static pid_t start_stopped(const char *token)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct tmesh_message message = message_of(own, 8);
		char region[TMESH_TOKEN_SIZE], link[512];
		struct tmesh_channel *to;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(!tmesh_channel_open(own, token, SEND, NULL, &to, NULL));
		CHECK(!tmesh_channel_try_send(to, &message, NULL));
		CHECK(!tmesh_region_token(tmesh_tensor_region(message.tensor), TMESH_READ, region,
					  NULL));
		CHECK(!unlink(link_path(link, region)));
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(WIFSTOPPED(status));
	return child;
}

/* The maker is dead, and a message's sender does not answer because it is stopped. The receiver
 * reports no end until it has the message. */
UNIT(test_stopped_sender)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel;
	struct tmesh_message message;
	pid_t maker, sender;
	int store;

	if (unit_on_kernel())
		skip();
	maker = start_maker(token);
	sender = start_stopped(token);
	assert_ok(tmesh_channel_open(ctx, token, RECV, NULL, &channel, err));
	/* Its region is in no store. */
	assert_int_equal(tmesh_channel_lane_end(channel, 0, &store), 0);
	assert_true(recv(store, &message, sizeof(message), 0) > 0);
	close(store);
	stop(maker);
	while (!channel_gone(channel))
		usleep(1000);
	for (int i = 0; i < 3; i++) {
		assert_refused(tmesh_channel_try_recv(channel, &message, err), -EAGAIN,
			       "no message is ready");
		assert_refused(tmesh_channel_recv(channel, &message, 1000000, err), -ETIMEDOUT, "");
	}
	kill(sender, SIGCONT);
	assert_ok(tmesh_channel_recv(channel, &message, PATIENCE, err));
	assert_int_equal(number_of(&message), 8);
	tmesh_tensor_unref(message.tensor);
	assert_refused(tmesh_channel_try_recv(channel, &message, err), -EPIPE, "");
	stop(sender);
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
}

UNIT(test_inherited)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_message message = number(1), got;
	struct tmesh_channel *own;
	pid_t child = fork();

	if (child == 0) {
		CHECK(tmesh_channel_try_send(p.maker, &message, NULL) == -EPERM);
		CHECK(tmesh_channel_try_recv(p.other, &got, NULL) == -EPERM);
		CHECK(tmesh_channel_flush(p.maker, 0, NULL) == -EPERM);
		/* -EPERM is the number of no descriptor, too. */
		CHECK(tmesh_channel_poll_fd(p.other, NULL) == -EPERM && !p.other->polls);
		CHECK(tmesh_channel_token(p.maker, p.token, NULL) == -EPERM);
		CHECK(tmesh_channel_open(p.ctx, p.token, RECV, NULL, &own, NULL) == 0);
		CHECK(tmesh_channel_recv(own, &got, PATIENCE, NULL) == 0);
		tmesh_channel_unref(own);
		tmesh_channel_unref(p.other);
		tmesh_channel_unref(p.maker);
		tmesh_ctx_unref(p.ctx);
		unit_leave(0);
	}
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	join_child(child);
	/* It took one message by its own handle, and with its end nothing of ours. */
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_ok(tmesh_channel_recv(p.other, &got, PATIENCE, err));
	pair_end(&p);
}

/* A child that only has it all keeps no end alive, and watches its own channels itself. */
UNIT(test_inherited_end)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_message message = number(1), got;
	struct tmesh_channel *own, *other;
	char done;
	int ends[2], rc;
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	child = fork();
	if (child == 0) {
		close(ends[0]);
		CHECK(!tmesh_channel_create(p.ctx, RECV, NULL, &own, NULL));
		CHECK(!tmesh_channel_token(own, p.token, NULL));
		CHECK(!tmesh_channel_open(p.ctx, p.token, SEND, NULL, &other, NULL));
		tmesh_channel_unref(other);
		CHECK(tmesh_channel_recv(own, &got, PATIENCE, NULL) == -EPIPE);
		CHECK(write(ends[1], "", 1) == 1);
		CHECK(read(ends[1], &done, 1) == 0);
		unit_leave(0);
	}
	close(ends[1]);
	/* None came: the child has failed, and says where. */
	if (read(ends[0], &done, 1) != 1)
		join_child(child);
	tmesh_channel_unref(p.other);
	do
		rc = tmesh_channel_send(p.maker, &message, PATIENCE, NULL);
	while (!rc);
	assert_int_equal(rc, -EPIPE);
	close(ends[0]);
	join_child(child);
	p.other = NULL;
	pair_end(&p);
}

UNIT_MAIN("channel_deaths", NULL, NULL)
