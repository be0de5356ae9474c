// SPDX-License-Identifier: MIT
/*
 * Slots: publishing, reading, holding and watching; readers and publishers that are killed; pages
 * that were damaged by their publisher. TMESH_TEST_LENGTH=full kills a thousand.
 */
#include <poll.h>
#include <tmesh/slot.h>

#include "shared/publication.h"
#include "unit.h"

#define READERS 3
#define WORDS 512

static int kills(void)
{
	const char *length = getenv("TMESH_TEST_LENGTH");

	if (length && !strcmp(length, "full"))
		return 1000;
	return unit_on_kernel() ? 12 : 40;
}

/* Two tensors that must belong together: all elements of both are @word. */
static struct tmesh_bundle *bundle_of(struct tmesh_ctx *ctx, uint64_t word)
{
	const int64_t shape[] = {WORDS};
	struct tmesh_bundle_entry entries[2] = {{.name = "a"}, {.name = "b"}};
	struct tmesh_bundle *bundle;
	uint64_t words[WORDS];

	for (int i = 0; i < WORDS; i++)
		words[i] = word;
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, shape, words, NULL,
					   &entries[i].tensor, err));
	assert_ok(tmesh_bundle_create(ctx, entries, 2, NULL, &bundle, err));
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(entries[i].tensor);
	return bundle;
}

/* The one word that all elements are, or UINT64_MAX. */
static uint64_t word_of(struct tmesh_bundle *bundle)
{
	uint64_t word = 0;

	for (size_t i = 0; i < 2; i++) {
		struct tmesh_tensor *tensor;
		uint64_t *data;

		if (tmesh_bundle_tensor(bundle, i, &tensor, NULL))
			return UINT64_MAX;
		if (tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, NULL))
			data = NULL;
		for (int n = 0; data && n < WORDS; n++) {
			if (!i && !n)
				word = data[0];
			if (data[n] != word)
				word = UINT64_MAX;
		}
		tmesh_tensor_unref(tensor);
		if (!data)
			return UINT64_MAX;
	}
	return word;
}

struct scene {
	struct tmesh_ctx *ctx;
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	char token[TMESH_TOKEN_SIZE];
};

static struct scene scene_make(void)
{
	struct scene s = {.ctx = new_ctx()};

	assert_ok(tmesh_slot_create(s.ctx, NULL, &s.slot, err));
	assert_ok(tmesh_slot_token(s.slot, s.token, err));
	assert_ok(tmesh_slot_open(s.ctx, s.token, &s.reader, err));
	return s;
}

static void scene_end(struct scene *s)
{
	tmesh_slot_close(s->reader);
	tmesh_slot_unref(s->slot);
	tmesh_ctx_unref(s->ctx);
}

static void publish(struct scene *s, uint64_t word)
{
	struct tmesh_bundle *bundle = bundle_of(s->ctx, word);
	uint64_t generation;

	assert_ok(tmesh_slot_publish(s->slot, bundle, &generation, err));
	assert_int_equal(generation, tmesh_slot_generation(s->slot));
	tmesh_bundle_unref(bundle);
}

UNIT(test_values)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value = NULL, *same;
	uint64_t before = ctx_stats(s.ctx).regions_live;

	assert_refused(tmesh_slot_read(s.reader, &value, err), -ENOENT, "publish a value");
	assert_null(value);
	publish(&s, 7);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_ok(tmesh_slot_read(s.reader, &same, err));
	assert_ptr_equal(value, same);
	/* Published, it is the same bundle once more: open ones stay open. */
	same = tmesh_slot_value_ref(value);
	assert_ok(tmesh_slot_publish(s.slot, tmesh_slot_value_bundle(same), NULL, err));
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(tmesh_slot_value_generation(value), 2);
	assert_int_equal(word_of(tmesh_slot_value_bundle(value)), 7);
	tmesh_slot_value_unref(same);
	assert_ok(tmesh_slot_publish(s.slot, NULL, NULL, err));
	assert_refused(tmesh_slot_read(s.reader, &value, err), -ENOENT, "empty");
	/* Nothing is left of any of them. */
	assert_int_equal(ctx_stats(s.ctx).regions_live, before);
	tmesh_slot_value_unref(NULL);
	tmesh_slot_close(NULL);
	scene_end(&s);
}

UNIT(test_bad)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .max_ref = TMESH_BUNDLE_MAX_REF + 1};
	struct scene s = scene_make();
	struct tmesh_slot *slot = NULL;
	struct tmesh_slot_value *value;
	struct tmesh_bundle *bundle = bundle_of(s.ctx, 1);

	assert_refused(tmesh_slot_create(s.ctx, &opts, &slot, err), -EINVAL, "max_ref");
	opts = (struct tmesh_slot_opts){.size = sizeof(opts), .reserved = 1};
	assert_refused(tmesh_slot_create(s.ctx, &opts, &slot, err), -EINVAL, "reserved");
	opts = (struct tmesh_slot_opts){.size = sizeof(opts), .max_ref = 64};
	assert_ok(tmesh_slot_create(s.ctx, &opts, &slot, err));
	assert_refused(tmesh_slot_publish(slot, bundle, NULL, err), -EINVAL, "max_ref is 64: make");
	assert_int_equal(tmesh_slot_generation(slot), 0);
	tmesh_slot_unref(slot);
	/* A reader cannot be made to write. */
	assert_ok(tmesh_slot_publish(s.slot, bundle, NULL, err));
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	for (size_t i = 0, count; i < 2; i++) {
		struct tmesh_region *const *regions =
			tmesh_bundle_regions(tmesh_slot_value_bundle(value), &count);

		assert_int_equal(tmesh_region_rights(regions[i]), TMESH_READ);
	}
	tmesh_bundle_unref(bundle);
	scene_end(&s);
}

/* A process with the page's descriptor can map it for reading alone, and not write to it either. */
UNIT(test_read_only)
{
	const uint32_t kind = 0x56304d54u;
	struct scene s = scene_make();
	struct model_subscription subscription;
	char path[64];
	FILE *maps;
	char line[256];
	int found = 0;

	assert_ok(model_subscription_open(&subscription, s.ctx, s.token, kind, 64, err));
	assert_int_not_equal(
		mprotect((void *)subscription.addr, subscription.bytes, PROT_READ | PROT_WRITE), 0);
	model_subscription_close(&subscription);
	maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		found += strstr(line, "memfd:slot") && strstr(line, "r--s");
	fclose(maps);
	assert_int_equal(found, 1);
	/* The descriptor's own seals show this, also to a process that opens it anew. */
	for (int fd = 3; fd < 256; fd++) {
		char name[64] = {0};
		int again;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof(name) - 1) < 0 || !strstr(name, "memfd:slot"))
			continue;
		again = open(path, O_RDWR | O_CLOEXEC);
		if (again < 0)
			continue;
		assert_int_equal(write(again, "x", 1), -1);
		assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0),
				 MAP_FAILED);
		found++;
		close(again);
	}
	assert_true(found > 1);
	scene_end(&s);
}

UNIT(test_watch)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value;
	int fd = tmesh_slot_poll_fd(s.reader, NULL);

	assert_true(fd >= 0);
	assert_int_equal(tmesh_slot_poll_fd(s.reader, NULL), fd);
	assert_true(readable(fd, 60000));
	assert_int_equal(tmesh_slot_changed(s.reader), 0);
	assert_false(readable(fd, 0));
	publish(&s, 1);
	assert_true(readable(fd, 60000));
	assert_int_equal(tmesh_slot_changed(s.reader), 1);
	assert_false(readable(fd, 0));
	assert_int_equal(tmesh_slot_changed(s.reader), 1);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(tmesh_slot_changed(s.reader), 0);
	for (uint64_t i = 0; i < 300; i++)
		publish(&s, i);
	assert_true(readable(fd, 60000));
	assert_int_equal(tmesh_slot_changed(s.reader), 1);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(word_of(tmesh_slot_value_bundle(value)), 299);
	tmesh_slot_unref(s.slot);
	assert_true(readable(fd, 60000));
	assert_int_equal(tmesh_slot_changed(s.reader), -EPIPE);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(word_of(tmesh_slot_value_bundle(value)), 299);
	s.slot = NULL;
	scene_end(&s);
}

/* Shared by all processes of a storm. */
struct scoreboard {
	_Atomic uint64_t reads;
	_Atomic uint32_t fault;
};
static struct scoreboard *scoreboard;

#define EXPECT(condition)                                                                     \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			uint32_t none_ = 0;                                                   \
                                                                                              \
			atomic_compare_exchange_strong(&scoreboard->fault, &none_, __LINE__); \
			pause();                                                              \
		}                                                                             \
	} while (0)

static _Noreturn void read_for_ever(const char *token, unsigned int seed)
{
	struct tmesh_slot_value *held[4] = {NULL}, *value;
	uint64_t words[4], last = 0;
	struct tmesh_slot_reader *reader;
	struct tmesh_ctx *ctx;

	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
	srand(seed);
	EXPECT(!tmesh_ctx_open(NULL, &ctx, NULL));
	EXPECT(!tmesh_slot_open(ctx, token, &reader, NULL));
	for (;;) {
		int i = rand() % 4, rc = tmesh_slot_read(reader, &value, NULL);
		uint64_t generation;

		EXPECT(rc == 0); /* also when it is overtaken again and again */
		generation = tmesh_slot_value_generation(value);
		EXPECT(generation >= last);
		last = generation;
		/* One generation, whole; a held one stays the same. */
		EXPECT(word_of(tmesh_slot_value_bundle(value)) == generation);
		EXPECT(!held[i] || word_of(tmesh_slot_value_bundle(held[i])) == words[i]);
		tmesh_slot_value_unref(held[i]);
		held[i] = tmesh_slot_value_ref(value);
		words[i] = generation;
		atomic_fetch_add(&scoreboard->reads, 1);
	}
}

static pid_t start_reader(const char *token, unsigned int seed)
{
	pid_t child = fork();

	if (child == 0)
		read_for_ever(token, seed);
	return child;
}

UNIT(test_reader_storm)
{
	struct scene s = scene_make();
	pid_t readers[READERS];
	unsigned int seed = 0;
	uint64_t before, word = 0;

	tmesh_slot_close(s.reader);
	s.reader = NULL;
	publish(&s, ++word);
	before = ctx_stats(s.ctx).regions_live;
	for (int i = 0; i < READERS; i++)
		readers[i] = start_reader(s.token, ++seed);
	/* From here on also such are killed as have read nothing yet. */
	for (int n = 0; n < 60000 && !atomic_load(&scoreboard->reads); n++)
		usleep(1000);
	for (int i = 0; i < kills(); i++) {
		int victim = rand() % READERS, status;

		for (int n = rand() % 60; n; n--) {
			publish(&s, ++word);
			usleep((useconds_t)(rand() % 300));
		}
		kill(readers[victim], SIGKILL);
		assert_int_equal(waitpid(readers[victim], &status, 0), readers[victim]);
		if (atomic_load(&scoreboard->fault) || !WIFSIGNALED(status))
			fail_msg("a reader's check in line %u failed",
				 atomic_load(&scoreboard->fault));
		readers[victim] = start_reader(s.token, ++seed);
	}
	for (int i = 0; i < READERS; i++) {
		kill(readers[i], SIGKILL);
		waitpid(readers[i], NULL, 0);
	}
	assert_int_equal(atomic_load(&scoreboard->fault), 0);
	assert_true(atomic_load(&scoreboard->reads) > 0);
	assert_int_equal(ctx_stats(s.ctx).regions_live, before);
	print_message("%llu reads, %llu generations, %d kills\n",
		      (unsigned long long)atomic_load(&scoreboard->reads), (unsigned long long)word,
		      kills());
	scene_end(&s);
}

UNIT(test_publisher_killed)
{
	for (int round = 0; round < kills() / 4; round++) {
		struct tmesh_slot_reader *reader;
		struct tmesh_slot_value *value, *held = NULL;
		char token[TMESH_TOKEN_SIZE];
		uint64_t word = 0, seen = 0;
		struct tmesh_ctx *ctx;
		int ends[2], rc;
		pid_t child;

		assert_int_equal(pipe(ends), 0);
		child = fork();
		if (child == 0) {
			struct scene s = {.ctx = new_ctx()};

			CHECK(!tmesh_slot_create(s.ctx, NULL, &s.slot, NULL));
			CHECK(!tmesh_slot_token(s.slot, token, NULL));
			publish(&s, ++word);
			CHECK(write(ends[1], token, sizeof(token)) == sizeof(token));
			for (;;)
				publish(&s, ++word);
		}
		assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
		close(ends[0]);
		close(ends[1]);
		ctx = new_ctx();
		assert_ok(tmesh_slot_open(ctx, token, &reader, err));
		while ((rc = tmesh_slot_changed(reader)) != -EPIPE) {
			struct tmesh_error why;

			rc = tmesh_slot_read(reader, &value, &why);
			if (rc == -EPIPE)
				break;
			if (rc)
				fail_msg("%d %s", rc, why.message);
			if (!rc) {
				assert_int_equal(word_of(tmesh_slot_value_bundle(value)),
						 tmesh_slot_value_generation(value));
				tmesh_slot_value_unref(held);
				held = tmesh_slot_value_ref(value);
			}
			if (seen++ == (uint64_t)round % 10)
				kill(child, SIGKILL);
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		if (held)
			assert_int_equal(word_of(tmesh_slot_value_bundle(held)),
					 tmesh_slot_value_generation(held));
		tmesh_slot_value_unref(held);
		tmesh_slot_close(reader);
		tmesh_ctx_unref(ctx);
	}
}

static uint64_t *entry_at(struct scene *s, uint64_t generation)
{
	uint64_t *words = ((struct model_publication *)((char *)s->slot + 8))->addr;

	return words + 16 + generation % 2 * 2056;
}

/* Each token of the value leads nowhere, as those of one whose files have gone do. */
static void lead_nowhere(char *text)
{
	static const char name[] = "\"token\":\"";
	unsigned int tokens = 0;

	for (; (text = strstr(text, name)) != NULL; tokens++) {
		text += strlen(name) + 10;
		*text = *text == '0' ? '1' : '0';
	}
	CHECK(tokens > 0);
}

/* The files of a killed publisher go one after another, on a busy machine a while later. Even then
 * the error is that the publisher is gone, and not that its value is. */
UNIT(test_publisher_goes)
{
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx;
	int ends[2];
	pid_t child;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	child = fork();
	if (child == 0) {
		struct scene s = {.ctx = new_ctx()};

		close(ends[0]);
		CHECK(!tmesh_slot_create(s.ctx, NULL, &s.slot, NULL));
		CHECK(!tmesh_slot_token(s.slot, token, NULL));
		publish(&s, 1);
		lead_nowhere((char *)(entry_at(&s, 1) + 2));
		CHECK(write(ends[1], token, sizeof(token)) == sizeof(token));
		CHECK(read(ends[1], &byte, 1) == 1);
		/* It answers no more. */
		model_host_lock();
		CHECK(write(ends[1], "", 1) == 1);
		usleep(100000);
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
	ctx = new_ctx();
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	/* As long as it answers it lives. */
	assert_int_equal(tmesh_slot_read(reader, &value, NULL), -ENOENT);
	assert_int_equal(write(ends[0], "", 1), 1);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	assert_refused(tmesh_slot_read(reader, &value, err), -EPIPE, "publisher is gone");
	join_child(child);
	close(ends[0]);
	tmesh_slot_close(reader);
	tmesh_ctx_unref(ctx);
}

/* The publisher itself writes nonsense into its page: the head is 16 words, an entry 2,056. */
UNIT(test_damage)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value;
	struct tmesh_slot_reader *none = NULL;
	uint64_t *words, *entry, text;

	publish(&s, 1);
	publish(&s, 2);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	/* As slot.c begins its object: a count, then the publication. */
	words = ((struct model_publication *)((char *)s.slot + 8))->addr;
	entry = words + 16 + 2056;
	assert_int_equal(words[0], 16384);
	assert_int_equal(words[8], 2);
	assert_int_equal(entry[0], 1);
	/* A generation without an entry, of which the publisher knows nothing either */
	words[8] = 3;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -EPROTO, "damaged");
	/* One that is longer than it can be, one that is no ref */
	entry[0] = 3;
	entry[1] = UINT64_MAX;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -EPROTO, "damaged");
	entry[1] = 16384;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -EPROTO, "");
	text = entry[2];
	entry[1] = 100;
	for (int bit = 0; bit < 64; bit++) {
		entry[2] = text ^ 1ull << bit;
		assert_int_equal(tmesh_slot_read(s.reader, &value, NULL), -EPROTO);
	}
	words[8] = 0;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -EPROTO, "damaged");
	words[8] = 2;
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(word_of(tmesh_slot_value_bundle(value)), 2);
	for (uint64_t bad = 0; bad < 64; bad += 24) {
		words[0] = bad;
		assert_refused(tmesh_slot_open(s.ctx, s.token, &none, err), -EPROTO, "damaged");
	}
	words[0] = UINT64_MAX;
	assert_refused(tmesh_slot_open(s.ctx, s.token, &none, err), -EPROTO, "damaged");
	assert_null(none);
	scene_end(&s);
}

/* No read of the value is whole, as if each were overtaken. The reader asks the publisher, and gets
 * the newest, of which nothing is kept once it was read. */
UNIT(test_overtaken)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value;
	int fd = tmesh_slot_poll_fd(s.reader, NULL);
	uint64_t before;

	publish(&s, 0);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	before = ctx_stats(s.ctx).regions_live;
	for (uint64_t word = 1; word < 20; word++) {
		publish(&s, word);
		entry_at(&s, word + 1)[0] = 0;
		assert_ok(tmesh_slot_read(s.reader, &value, err));
		assert_int_equal(tmesh_slot_value_generation(value), word + 1);
		assert_int_equal(word_of(tmesh_slot_value_bundle(value)), word);
		/* It has read the notification meanwhile, so it is notified again. */
		assert_true(readable(fd, 60000));
		assert_int_equal(tmesh_slot_changed(s.reader), 0);
	}
	assert_int_equal(ctx_stats(s.ctx).regions_live, before);
	assert_ok(tmesh_slot_publish(s.slot, NULL, NULL, err));
	entry_at(&s, 21)[0] = 0;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -ENOENT, "empty");
	assert_true(readable(fd, 60000));
	/* No process answers any more. */
	publish(&s, 21);
	entry_at(&s, 22)[0] = 0;
	tmesh_slot_unref(s.slot);
	s.slot = NULL;
	assert_refused(tmesh_slot_read(s.reader, &value, err), -EPROTO, "damaged");
	scene_end(&s);
}

/* The error of a reader that has no descriptor left for the answer names that, and no damage. */
UNIT(test_no_descriptor)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value;
	int status;
	pid_t child;

	publish(&s, 7);
	entry_at(&s, 1)[0] = 0;
	child = fork();
	if (child == 0) {
		const struct rlimit few = {.rlim_cur = 64, .rlim_max = 64};
		struct tmesh_slot_reader *own;
		struct tmesh_ctx *ctx;
		struct tmesh_error why;
		int last = -1, fd;

		CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
		CHECK(!tmesh_slot_open(ctx, s.token, &own, NULL));
		CHECK(!setrlimit(RLIMIT_NOFILE, &few));
		while ((fd = dup(0)) >= 0)
			last = fd;
		CHECK(tmesh_slot_read(own, &value, &why) == -EMFILE);
		CHECK(strstr(why.message, "no descriptor left"));
		for (fd = last; fd > last - 8; fd--)
			close(fd);
		CHECK(!tmesh_slot_read(own, &value, NULL));
		CHECK(word_of(tmesh_slot_value_bundle(value)) == 7);
		tmesh_slot_close(own);
		tmesh_ctx_unref(ctx);
		unit_leave(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the child ended with status %#x", (unsigned int)status);
	scene_end(&s);
}

static bool opens(struct tmesh_ctx *ctx, const char *text, size_t bytes)
{
	struct tmesh_bundle *bundle;
	int rc = tmesh_bundle_open(ctx, text, bytes, TMESH_READ, &bundle, NULL);

	if (!rc)
		tmesh_bundle_unref(bundle);
	return !rc;
}

static void answered(struct model_subscription *subscription, struct model_answer *answer,
		     char *text)
{
	int fd = -1;

	model_subscription_ask(subscription);
	while (!model_subscription_answer(subscription, 1000, answer, &fd))
		;
	assert_true(fd >= 0 && answer->bytes < 4096);
	assert_int_equal(pread(fd, text, 4096, 0), answer->bytes);
	close(fd);
}

/* An answer stays until the reader is done, asks again, or is dead, and no longer. */
UNIT(test_asked)
{
	const uint32_t kind = 0x56304d54u;
	struct scene s = scene_make();
	struct model_answer answer;
	struct model_subscription subscription;
	char text[4096];

	tmesh_slot_close(s.reader);
	s.reader = NULL;
	for (int how = 0; how < 4; how++) {
		assert_ok(model_subscription_open(&subscription, s.ctx, s.token, kind, 64, err));
		publish(&s, 1);
		answered(&subscription, &answer, text);
		assert_int_equal(answer.number, tmesh_slot_generation(s.slot));
		for (int i = 0; i < 10; i++)
			publish(&s, 2);
		assert_true(opens(s.ctx, text, answer.bytes));
		switch (how) {
		case 0:
			model_subscription_done(&subscription);
			break;
		case 1: {
			struct model_answer other;
			char others[4096];

			answered(&subscription, &other, others);
			assert_int_equal(other.number, tmesh_slot_generation(s.slot));
			break;
		}
		case 2: /* which is no word at all */
			assert_int_equal(model_socket_send(subscription.socket.fd, "TM0E", 4, -1),
					 0);
			break;
		case 3: /* it is dead */
			model_subscription_close(&subscription);
			break;
		}
		for (int i = 0; opens(s.ctx, text, answer.bytes); i++) {
			assert_true(i < 60000);
			usleep(1000);
		}
		if (how != 3)
			model_subscription_close(&subscription);
	}
	/* The slot ends while a reader has asked. */
	assert_ok(model_subscription_open(&subscription, s.ctx, s.token, kind, 64, err));
	answered(&subscription, &answer, text);
	tmesh_slot_unref(s.slot);
	s.slot = NULL;
	assert_false(opens(s.ctx, text, answer.bytes));
	assert_true(model_subscription_ended(&subscription, 0));
	model_subscription_close(&subscription);
	scene_end(&s);
}

/* A notification that is not read leaves no room for an answer: it comes with a later publication.
 */
UNIT(test_owed)
{
	struct scene s = scene_make();
	struct model_answer answer;
	struct model_subscription subscription;
	bool came = false;
	int fd = -1;

	assert_ok(model_subscription_open(&subscription, s.ctx, s.token, 0x56304d54u, 64, err));
	assert_true(model_subscription_poll_fd(&subscription, NULL) >= 0);
	assert_true(readable(subscription.socket.fd, 60000));
	for (uint64_t word = 0; word < 100; word++)
		publish(&s, word);
	model_subscription_ask(&subscription);
	/* One more that the thread takes after it: so it has taken the ask. */
	for (int i = 0; i < 2; i++) {
		struct tmesh_slot_reader *other;

		assert_ok(tmesh_slot_open(s.ctx, s.token, &other, err));
		tmesh_slot_close(other);
	}
	usleep(20000);
	assert_false(model_subscription_answer(&subscription, 0, &answer, &fd));
	for (uint64_t word = 0; word < 60000 && !came; word++) {
		publish(&s, word);
		came = model_subscription_answer(&subscription, 1, &answer, &fd);
	}
	assert_true(came && fd >= 0);
	assert_int_equal(answer.number, tmesh_slot_generation(s.slot));
	close(fd);
	model_subscription_close(&subscription);
	scene_end(&s);
}

UNIT(test_inherited)
{
	struct scene s = scene_make();
	struct tmesh_slot_value *value;
	struct tmesh_bundle *bundle = bundle_of(s.ctx, 5);
	int status;
	pid_t child;

	publish(&s, 1);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	child = fork();
	if (child == 0) {
		struct tmesh_slot_reader *own;
		struct tmesh_ctx *ctx;

		CHECK(tmesh_slot_publish(s.slot, bundle, NULL, NULL) == -EPERM);
		CHECK(tmesh_slot_poll_fd(s.reader, NULL) == -EPERM);
		CHECK(tmesh_slot_changed(s.reader) == -EPERM);
		CHECK(!tmesh_slot_read(s.reader, &value, NULL));
		CHECK(tmesh_slot_value_generation(value) == 1);
		CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
		CHECK(!tmesh_slot_open(ctx, s.token, &own, NULL));
		CHECK(!tmesh_slot_read(own, &value, NULL));
		CHECK(word_of(tmesh_slot_value_bundle(value)) == 1);
		tmesh_slot_close(own);
		tmesh_ctx_unref(ctx);
		tmesh_bundle_unref(bundle);
		scene_end(&s);
		unit_leave(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the child ended with status %#x", (unsigned int)status);
	publish(&s, 2);
	assert_ok(tmesh_slot_read(s.reader, &value, err));
	assert_int_equal(word_of(tmesh_slot_value_bundle(value)), 2);
	tmesh_bundle_unref(bundle);
	scene_end(&s);
}

int main(void)
{
	scoreboard = mmap(NULL, sizeof(*scoreboard), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return UNIT_RUN("slot", NULL, NULL);
}
