// SPDX-License-Identifier: MIT
/* A sent message is received, whatever its sender does afterwards. */
#include "channel_internal.h"
#include "channels.h"
#include "unanswered.h"

#include <tmesh/hold.h>

#define COUNT 10

/* A pipe by which one process of this test tells another to go on. */
struct step {
	int read, write;
};

static struct step step_make(void)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	return (struct step){ends[0], ends[1]};
}

static void go_on(const struct step *step)
{
	if (write(step->write, "", 1) != 1)
		abort();
}

static void wait_for(const struct step *step)
{
	char byte;

	if (read(step->read, &byte, 1) != 1)
		abort();
}

static void step_end(const struct step *step)
{
	close(step->read);
	close(step->write);
}

/* A tensor of its own for each number, which no handle holds once it is sent. */
static int send_tensors(struct tmesh_ctx *ctx, struct tmesh_channel *to)
{
	const int64_t one[] = {1};

	for (uint64_t i = 0; i < COUNT; i++) {
		struct tmesh_message message = {0};
		int rc = tmesh_tensor_put(ctx, TMESH_UINT64, 1, one, &i, NULL, &message.tensor,
					  NULL);

		if (!rc)
			rc = tmesh_channel_send(to, &message, PATIENCE, NULL);
		tmesh_tensor_unref(message.tensor);
		if (rc)
			return rc;
	}
	return 0;
}

static void receive_one(struct tmesh_channel *from, uint64_t want)
{
	struct tmesh_message message;
	uint64_t got = UINT64_MAX;

	assert_ok(tmesh_channel_recv(from, &message, PATIENCE, err));
	assert_ok(tmesh_tensor_read(message.tensor, &got, sizeof(got), err));
	assert_int_equal(got, want);
	tmesh_tensor_unref(message.tensor);
}

static void receive_all(struct tmesh_channel *from)
{
	struct tmesh_message message;

	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(from, i);
	assert_refused(tmesh_channel_recv(from, &message, PATIENCE, err), -EPIPE, "");
}

static void expect_free(struct tmesh_ctx *ctx)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	do {
		usleep(1000);
		assert_int_equal(tmesh_stats(ctx, &stats), 0);
	} while (stats.regions_live);
}

static void killed(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status))
		fail_msg("the child ended with status %#x", (unsigned int)status);
}

/* A process that sends, and is killed when told to. */
struct sender {
	pid_t pid;
	struct step told, go;
};

enum sends {
	SENDS_TEN,   /* tensors, each of its own */
	SENDS_A_B_A, /* 0, 1 and the first one again */
};

/* @token: of the channel that it joins. */
static struct sender sender_start(const char *token, enum sends what)
{
	struct sender sender = {.told = step_make(), .go = step_make()};

	sender.pid = fork();
	if (sender.pid == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct tmesh_channel *to;
		const int64_t one[] = {1};
		struct tmesh_message messages[2] = {{0}};

		CHECK(!tmesh_channel_open(own, token, SEND, NULL, &to, NULL));
		if (what == SENDS_TEN) {
			CHECK(!send_tensors(own, to));
		} else {
			for (uint64_t i = 0; i < 2; i++)
				CHECK(!tmesh_tensor_put(own, TMESH_UINT64, 1, one, &i, NULL,
							&messages[i].tensor, NULL));
			for (int i = 0; i < 3; i++)
				CHECK(!tmesh_channel_send(to, &messages[i % 2], -1, NULL));
		}
		go_on(&sender.told);
		wait_for(&sender.go);
		kill(getpid(), SIGKILL);
	}
	return sender;
}

static void sender_killed(struct sender *sender)
{
	go_on(&sender->go);
	killed(sender->pid);
	step_end(&sender->told);
	step_end(&sender->go);
}

static struct tmesh_channel *opened(struct tmesh_ctx *ctx, const char *token,
				    enum tmesh_channel_role role)
{
	struct tmesh_channel *channel;

	assert_ok(tmesh_channel_open(ctx, token, role, NULL, &channel, err));
	return channel;
}

/* Nothing that was received stays in the store. */
static void expect_empty_store(const struct tmesh_channel *channel)
{
	while (lane_has_something(channel))
		usleep(1000);
}

/* A joined sender is killed while the maker and another process receive. The other process
 * comes before the sender sends (0), after it has sent (1), or once it is dead (2). */
UNIT(test_killed_for_two)
{
	for (int when = 0; when < 3; when++) {
		struct tmesh_ctx *ctx = new_ctx(), *other = new_ctx();
		struct tmesh_channel *channel, *second = NULL;
		char token[TMESH_TOKEN_SIZE];
		struct sender sender;

		assert_ok(tmesh_channel_create(ctx, RECV, NULL, &channel, err));
		assert_ok(tmesh_channel_token(channel, token, err));
		if (when == 0)
			second = opened(other, token, RECV);
		sender = sender_start(token, SENDS_TEN);
		wait_for(&sender.told);
		if (when == 1)
			second = opened(other, token, RECV);
		sender_killed(&sender);
		if (when == 2)
			second = opened(other, token, RECV);
		for (uint64_t i = 0; i < COUNT; i++)
			receive_one(i % 2 ? channel : second, i);
		expect_empty_store(channel);
		tmesh_channel_unref(second);
		tmesh_channel_unref(channel);
		expect_free(ctx);
		expect_free(other);
		tmesh_ctx_unref(other);
		tmesh_ctx_unref(ctx);
	}
}

/* A tensor whose hand-over was closed to make room for another one is sent again. */
UNIT(test_killed_with_what_was_closed)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts), .max_regions = 1};
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];
	struct sender sender;

	assert_ok(tmesh_channel_create(ctx, RECV, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	sender = sender_start(token, SENDS_A_B_A);
	wait_for(&sender.told);
	receive_one(channel, 0);
	receive_one(channel, 1);
	sender_killed(&sender);
	receive_one(channel, 0);
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
}

/* A lane's next sender looks after what the last one has left, however often. */
UNIT(test_killed_one_after_another)
{
	const struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .capacity = 64, .regions = 64};
	struct tmesh_ctx *ctx = new_ctx(), *other = new_ctx();
	struct tmesh_channel *channel, *second;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_channel_create(ctx, RECV, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	for (int late = 0; late < 2; late++) {
		second = late ? NULL : opened(other, token, RECV);
		for (int i = 0; i < 3; i++) {
			struct sender sender = sender_start(token, SENDS_TEN);

			wait_for(&sender.told);
			if (!second && i == 1)
				second = opened(other, token, RECV);
			sender_killed(&sender);
		}
		for (uint64_t i = 0; i < 3 * COUNT; i++)
			receive_one(second, i % COUNT);
		expect_empty_store(channel);
		tmesh_channel_unref(second);
	}
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(other);
	tmesh_ctx_unref(ctx);
}

/* A received tensor is not in the store once its sender has let go of it. */
UNIT(test_taken_from_the_store)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_channel *second = pair_open(&p, RECV);

	assert_int_equal(send_tensors(p.ctx, p.maker), 0);
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(i % 2 ? second : p.other, i);
	assert_true(lane_has_something(second));
	assert_ok(tmesh_channel_flush(p.maker, -1, err));
	assert_false(lane_has_something(second));
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* A receiver that looks into a store gets what lies there, and may not be able to close it. */
UNIT_ADD(test_unanswered_in_the_store, server_start, server_end)
{
	const char nothing = 0;
	struct iovec part = {(void *)&nothing, 1};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.align = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr msg = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region;

	assert_int_equal(send_tensors(p.ctx, p.maker), 0);
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(p.other, i);
	assert_ok(tmesh_channel_flush(p.maker, -1, err));
	memcpy(CMSG_DATA(&control.align), &server.fd, sizeof(server.fd));
	assert_int_equal(sendmsg(p.maker->own.put, &msg, 0), 1);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(tmesh_channel_store_open(p.other, 0, 0, 1, TMESH_READ, &region),
				 -ENOENT);
	assert_int_equal(server_files(), TMESH_FOREIGN_OF_PROCESS);
	server_answers();
	pair_end(&p);
}

/* The next sender of a lane looks after what lies in its store, whatever that is. */
UNIT_ADD(test_unanswered_inherited, server_start, server_end)
{
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel, *second, *next;
	char token[TMESH_TOKEN_SIZE];
	struct step told = step_make();
	pid_t child;

	assert_ok(tmesh_channel_create(ctx, RECV, NULL, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	second = opened(ctx, token, RECV);
	child = fork();
	if (child == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct {
			uint32_t magic, version, count, pad;
			uint64_t serial;
			struct tmesh_wire_region region;
		} lie = {0x46304d54u, TMESH_WIRE_VERSION, 1, 0, 1000, {0}};
		struct tmesh_channel *to;

		CHECK(!tmesh_channel_open(own, token, SEND, NULL, &to, NULL));
		CHECK(!send_tensors(own, to));
		lie.region = to->sent_regions[0].wire;
		while (recv(to->own.get, &(char){0}, 1, MSG_DONTWAIT) > 0)
			;
		CHECK(!tmesh_wire_send(to->own.put, &lie, sizeof(lie), &server.fd, 1, 0));
		go_on(&told);
		pause();
	}
	wait_for(&told);
	kill(child, SIGKILL);
	killed(child);
	next = opened(ctx, token, SEND);
	assert_ok(tmesh_channel_send(next, &(struct tmesh_message){.bytes = 1}, PATIENCE, err));
	tmesh_channel_unref(next);
	tmesh_channel_unref(second);
	tmesh_channel_unref(channel);
	server_answers();
	tmesh_ctx_unref(ctx);
	step_end(&told);
}

/* Where no other process can hold it, it is counted, and who leaves waits. */
UNIT(test_not_held)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 2};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_channel *second = pair_open(&p, RECV), *late;
	struct tmesh_stats stats = {.size = sizeof(stats)};

	/* Another process has spoilt the store. */
	shutdown(second->store->ends.get, SHUT_RD);
	assert_int_equal(send_tensors(p.ctx, p.maker), 0);
	assert_int_equal(tmesh_stats(p.ctx, &stats), 0);
	assert_int_equal(stats.sent_alone, COUNT);
	tmesh_channel_unref(p.maker);
	p.maker = NULL;
	/* It is closed, but for what it has. */
	assert_refused(tmesh_channel_open(p.ctx, p.token, SEND, NULL, &late, err), -ENOENT,
		       "closed it");
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(i % 2 ? second : p.other, i);
	tmesh_channel_unref(second);
	tmesh_channel_unref(p.other);
	p.other = NULL;
	expect_free(p.ctx);
	pair_end(&p);
}

/* The parent delivers what is undelivered: a child lets go of what it inherited at once. */
UNIT(test_not_the_childs)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_channel *second = pair_open(&p, RECV);
	pid_t child;

	shutdown(second->store->ends.get, SHUT_RD);
	assert_int_equal(send_tensors(p.ctx, p.maker), 0);
	child = fork();
	if (child == 0) {
		struct tmesh_stats before = {.size = sizeof(before)}, after = before;
		struct tmesh_channel *own;

		/* The context has a thread again. */
		CHECK(!tmesh_channel_create(p.ctx, SEND, NULL, &own, NULL));
		CHECK(!tmesh_stats(p.ctx, &before));
		tmesh_channel_unref(p.maker);
		CHECK(!tmesh_stats(p.ctx, &after));
		CHECK(after.regions_live < before.regions_live);
		unit_leave(0);
	}
	join_child(child);
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(i % 2 ? second : p.other, i);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* The last who has a context may be its own thread. */
UNIT(test_left_to_the_watch)
{
	unsigned int before = unit_open_fds();
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_ctx *other = new_ctx();
	struct tmesh_channel *first = opened(other, p.token, RECV),
			     *second = opened(other, p.token, RECV);

	tmesh_channel_unref(p.other);
	p.other = NULL;
	shutdown(second->store->ends.get, SHUT_RD);
	assert_int_equal(send_tensors(p.ctx, p.maker), 0);
	pair_end(&p);
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(i % 2 ? second : first, i);
	tmesh_channel_unref(second);
	tmesh_channel_unref(first);
	tmesh_ctx_unref(other);
	while (unit_open_fds() > before)
		usleep(1000);
}

/* A tensor that may go to either of two consumers is in the store. */
UNIT(test_closed_for_two)
{
	struct pair p = pair_make(RECV, NULL);
	struct tmesh_channel *second = pair_open(&p, RECV);
	struct tmesh_flushed left = {.size = sizeof(left)};
	struct tmesh_message message;

	assert_int_equal(send_tensors(p.ctx, p.other), 0);
	assert_refused(tmesh_ctx_flush(p.ctx, 0, &left, err), -ETIMEDOUT, "10 messages");
	assert_int_equal(left.messages, COUNT);
	tmesh_channel_unref(p.other);
	for (uint64_t i = 0; i < COUNT; i++)
		receive_one(i % 2 ? second : p.maker, i);
	assert_refused(tmesh_channel_recv(second, &message, PATIENCE, err), -EPIPE, "");
	assert_ok(tmesh_ctx_flush(p.ctx, -1, NULL, err));
	tmesh_channel_unref(second);
	tmesh_channel_unref(p.maker);
	expect_free(p.ctx);
	tmesh_ctx_unref(p.ctx);
}

static void send_to_nobody(struct tmesh_ctx_opts opts)
{
	struct tmesh_ctx *ctx;
	struct tmesh_channel *channel;

	opts.size = sizeof(opts);
	opts.exit_wait_ns = 1;
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_channel_create(ctx, SEND, NULL, &channel, err));
	assert_int_equal(send_tensors(ctx, channel), 0);
	tmesh_channel_unref(channel);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

static void keep_message(void *data, enum tmesh_log_level level, const char *message)
{
	char *text = data;

	if (level == TMESH_LOG_WARN && strlen(text) + strlen(message) < 512)
		strcat(text, message);
}

UNIT(test_nobody_came)
{
	char text[512] = "";

	send_to_nobody((struct tmesh_ctx_opts){.log = keep_message, .log_data = text});
	if (!strstr(text, "10 messages are lost"))
		fail_msg("\"%s\" does not say what was lost", text);
}

/* The program takes no log messages of the library: they go to standard error. */
UNIT(test_nobody_came_or_listens)
{
	struct step errors = step_make();
	int before = dup(STDERR_FILENO);
	char text[512] = "";

	dup2(errors.write, STDERR_FILENO);
	send_to_nobody((struct tmesh_ctx_opts){0});
	dup2(before, STDERR_FILENO);
	close(before);
	close(errors.write);
	assert_true(read(errors.read, text, sizeof(text) - 1) >= 0);
	close(errors.read);
	if (!strstr(text, "10 messages are lost"))
		fail_msg("\"%s\" does not say what was lost", text);
}

/* The process's end reports a closed channel whose wait has not ended: at the end of the wait its
 * loss is known. */
UNIT(test_reported_once)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .exit_wait_ns = 100000000};
	int before = dup(STDERR_FILENO);
	char text[1024];
	bool in_time;

	/* Kept from running for a wait, this process reports a loss that is known. */
	do {
		struct step errors = step_make();
		struct tmesh_ctx *ctx;
		struct tmesh_channel *channel;
		uint64_t begun;

		opts.exit_wait_ns *= 2;
		memset(text, 0, sizeof(text));
		dup2(errors.write, STDERR_FILENO);
		assert_ok(tmesh_ctx_open(&opts, &ctx, err));
		assert_ok(tmesh_channel_create(ctx, SEND, NULL, &channel, err));
		assert_int_equal(send_tensors(ctx, channel), 0);
		begun = tmesh_now_ns();
		tmesh_channel_unref(channel);
		tmesh_exit_wait(0);
		tmesh_exit_wait(0);
		in_time = tmesh_now_ns() - begun < opts.exit_wait_ns;
		expect_free(ctx);
		tmesh_ctx_unref(ctx);
		dup2(before, STDERR_FILENO);
		close(errors.write);
		assert_true(read(errors.read, text, sizeof(text) - 1) > 0);
		close(errors.read);
	} while (!in_time);
	close(before);
	if (!strstr(text, "10 messages may be lost") || strchr(text, '\n') != strrchr(text, '\n'))
		fail_msg("\"%s\" is not one line", text);
}

/* The end of a process that has closed nothing. */
static const char *self;

static pid_t send_and_exit(const char *exit_wait, struct step *out, struct step *errors)
{
	pid_t child = fork();

	if (child == 0) {
		setenv("TMESH_EXIT_WAIT", exit_wait, 1);
		dup2(out->write, STDOUT_FILENO);
		dup2(errors->write, STDERR_FILENO);
		execl(self, self, "send", NULL);
		_exit(127);
	}
	close(out->write);
	close(errors->write);
	return child;
}

UNIT(test_exit)
{
	struct step out = step_make(), errors = step_make();
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *from;
	char token[TMESH_TOKEN_SIZE], text[512];
	pid_t child = send_and_exit("600", &out, &errors);

	assert_int_equal(read(out.read, token, sizeof(token)), sizeof(token));
	assert_ok(tmesh_channel_open(ctx, token, RECV, NULL, &from, err));
	receive_all(from);
	join_child(child);
	assert_int_equal(read(errors.read, text, sizeof(text)), 0);
	tmesh_channel_unref(from);
	tmesh_ctx_unref(ctx);
	close(out.read);
	close(errors.read);
}

UNIT(test_exit_too_late)
{
	struct step out = step_make(), errors = step_make();
	char text[512] = "";
	pid_t child = send_and_exit("0.01", &out, &errors);

	join_child(child);
	assert_true(read(errors.read, text, sizeof(text) - 1) > 0);
	if (!strstr(text, "10 messages may be lost"))
		fail_msg("\"%s\" does not say what was lost", text);
	close(out.read);
	close(errors.read);
}

static int send_role(void)
{
	/* A context that is never closed is no leak. */
	static struct tmesh_ctx *ctx;
	static struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];

	ctx = new_ctx();
	assert_ok(tmesh_channel_create(ctx, SEND, NULL, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	if (send_tensors(ctx, channel) || !fwrite(token, sizeof(token), 1, stdout))
		return 1;
	/* Nothing is closed. */
	return 0;
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 2)
		return send_role();
	return UNIT_RUN("channel_lost", NULL, NULL);
}
