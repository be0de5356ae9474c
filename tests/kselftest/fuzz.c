// SPDX-License-Identifier: MIT
/*
 * Random calls by several processes at once. A test passes if the system survives and nothing stays
 * behind. With KCOV, inputs that reach new code of the module are kept, minimised and mutated.
 *
 *	TMESH_SEED	another seed; the one that is used is printed
 *	TMESH_CORPUS	a file of inputs to begin with
 *	TMESH_REPLAY	tell of each call of these inputs, and run nothing else
 *	TMESH_LEFT	a directory: the inputs that were kept, and which code they reached
 *	TMESH_BLACKBOX	a file to keep the inputs in that run just now, for when the kernel dies
 */
#include "fuzz.h"

#define WORKERS 4
#define CORPUS_MAX 8192
#define ALICE 1001
#define BOB 1002
/* An input that runs longer is not mutated. */
#define SLOW_SECONDS 0.1
/* A run at full length takes an hour or more: it says how far it is. */
#define PROGRESS_SECONDS 60

/* The state that all workers share */
static struct {
	int count; /* of inputs, including those being written */
	unsigned long calls;
	bool kept[CORPUS_MAX];
	struct fuzz_input inputs[CORPUS_MAX];
} * corpus;

static struct fuzz_cover *cover;
static char (*blackbox)[FUZZ_TEXT];

/* The state of a worker */
struct worker {
	int who;
	unsigned int seed;
	struct fuzz_hand *hand;
	int taint;
	char tainted[24];
	int fresh_count;
	unsigned short fresh[FUZZ_PAIRS];
};

static unsigned int seed_of_run(void)
{
	const char *seed = getenv("TMESH_SEED");

	return seed ? strtoul(seed, NULL, 0) | 1 : 20261121;
}

static void *shared(size_t bytes, int fd)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

static void set_up(void)
{
	const char *box = getenv("TMESH_BLACKBOX"), *path = getenv("TMESH_CORPUS");
	int fd = box ? (int)REQUIRE_OK(open(box, O_RDWR | O_CLOEXEC)) : -1;
	FILE *f = path ? fopen(path, "re") : NULL;
	char line[FUZZ_TEXT];

	blackbox = shared(WORKERS * sizeof(*blackbox), fd);
	close(fd);
	corpus = shared(sizeof(*corpus), -1);
	cover = fuzz_cover();
	fuzz_mount();
	REQUIRE(!path || f);
	while (f && fgets(line, sizeof(line), f)) {
		REQUIRE(corpus->count < CORPUS_MAX);
		if (CHECK(fuzz_parse(&corpus->inputs[corpus->count], line)))
			corpus->kept[corpus->count++] = true;
		else
			t_note("no input: %s", line);
	}
	if (f)
		fclose(f);
}

/* Become a worker. Half of the workers are root and have devices; the others are two users. */
static struct worker *be(int who, unsigned int seed)
{
	struct worker *w = calloc(1, sizeof(*w));

	REQUIRE(w);
	w->who = who;
	w->seed = (seed + who) | 1;
	for (int i = 0; i < 8; i++)
		t_random(&w->seed);
	w->taint = REQUIRE_OK(open("/proc/sys/kernel/tainted", O_RDONLY | O_CLOEXEC));
	REQUIRE(pread(w->taint, w->tainted, sizeof(w->tainted) - 1, 0) > 0);
	if (cover)
		fuzz_cover_attach(cover);
	if (who % 2)
		t_become(who == 1 ? ALICE : BOB, 1500, 0);
	w->hand = fuzz_hand(who % 2 == 0);
	return w;
}

/* Report the running inputs after the kernel was tainted: one of them caused it. */
static void tell_taint(struct worker *w, const char *now)
{
	t_note("tainted: %s, was %s; the inputs:", now, w->tainted);
	for (int i = 0; i < WORKERS; i++)
		t_note("%s", blackbox[i]);
	CHECK(!"the kernel complained");
	strcpy(w->tainted, now);
}

static void run(struct worker *w, const struct fuzz_input *in, FILE *tell)
{
	unsigned long before = fuzz_calls(w->hand);
	char now[sizeof(w->tainted)] = "";

	fuzz_print(in, blackbox[w->who]);
	if (cover)
		fuzz_cover_begin(cover);
	fuzz_run(w->hand, in, tell);
	fuzz_lay_down(w->hand);
	w->fresh_count = cover ? fuzz_cover_end(cover, w->fresh) : 0;
	__atomic_add_fetch(&corpus->calls, fuzz_calls(w->hand) - before, __ATOMIC_RELAXED);
	if (pread(w->taint, now, sizeof(now) - 1, 0) > 0 && strcmp(now, w->tainted))
		tell_taint(w, now);
}

/* Remove the calls without which an input still reaches its new code. */
static void trim(struct worker *w, struct fuzz_input *in)
{
	unsigned short *wanted = malloc(w->fresh_count * sizeof(*wanted));
	int count = w->fresh_count;

	REQUIRE(wanted);
	memcpy(wanted, w->fresh, count * sizeof(*wanted));
	for (int at = in->count - 1; at >= 0 && in->count > 1; at--) {
		struct fuzz_input less = *in;

		fuzz_drop(&less, at);
		run(w, &less, NULL);
		if (fuzz_cover_has(cover, wanted, count))
			*in = less;
	}
	free(wanted);
}

static void keep(const struct fuzz_input *in)
{
	int at = __atomic_fetch_add(&corpus->count, 1, __ATOMIC_RELAXED);

	if (at >= CORPUS_MAX) {
		__atomic_fetch_sub(&corpus->count, 1, __ATOMIC_RELAXED);
		return;
	}
	corpus->inputs[at] = *in;
	__atomic_store_n(&corpus->kept[at], true, __ATOMIC_RELEASE);
}

/* Choose an input of the corpus, or make a random one. */
static void choose(struct worker *w, struct fuzz_input *in)
{
	int count = __atomic_load_n(&corpus->count, __ATOMIC_RELAXED);
	int at = count ? t_random(&w->seed) % count : 0;

	if (count && at < CORPUS_MAX && __atomic_load_n(&corpus->kept[at], __ATOMIC_ACQUIRE))
		*in = corpus->inputs[at];
	else
		fuzz_random_input(in, &w->seed);
}

static void invent(struct worker *w, struct fuzz_input *in)
{
	struct fuzz_input other;

	choose(w, &other);
	if (t_random(&w->seed) % 16) {
		choose(w, in);
		fuzz_mutate(in, &other, &w->seed);
	} else {
		fuzz_random_input(in, &w->seed);
	}
}

static void work(struct worker *w, double until, unsigned long calls)
{
	double told = t_now();
	struct fuzz_input in;

	for (int i = w->who; i < corpus->count; i += WORKERS)
		run(w, &corpus->inputs[i], NULL);
	while (t_now() < until || __atomic_load_n(&corpus->calls, __ATOMIC_RELAXED) < calls) {
		double began = t_now();

		invent(w, &in);
		run(w, &in, NULL);
		if (w->fresh_count && t_now() - began < SLOW_SECONDS) {
			trim(w, &in);
			keep(&in);
		}
		if (w->who == 0 && t_now() - told > PROGRESS_SECONDS) {
			told = t_now();
			t_note("%lu of %lu calls, %d inputs",
			       __atomic_load_n(&corpus->calls, __ATOMIC_RELAXED), calls,
			       __atomic_load_n(&corpus->count, __ATOMIC_RELAXED));
		}
	}
}

/*
 * Drop the inputs that reach no more than shorter ones do, first as root, then as a user: a user is
 * refused some calls that root may make.
 */
static void minimise(void)
{
	fuzz_cover_forget(cover);
	memset(corpus->kept, 0, sizeof(corpus->kept));
	for (int who = 0; who < 2; who++) {
		T_ALONE()
		{
			struct worker *w = be(who, 1);

			for (int length = 1; length <= FUZZ_CALLS; length++) {
				for (int i = 0; i < corpus->count; i++) {
					if (corpus->inputs[i].count != length)
						continue;
					run(w, &corpus->inputs[i], NULL);
					corpus->kept[i] |= w->fresh_count != 0;
				}
			}
		}
	}
}

static FILE *leave(const char *name)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", getenv("TMESH_LEFT"), name);
	f = fopen(path, "we");
	REQUIRE(f);
	return f;
}

static void save(void)
{
	FILE *inputs = leave("fuzz.corpus"), *places = leave("fuzz.places");
	char text[FUZZ_TEXT];
	int kept = 0;

	for (int i = 0; i < corpus->count; i++) {
		if (!corpus->kept[i])
			continue;
		fuzz_print(&corpus->inputs[i], text);
		fprintf(inputs, "%s\n", text);
		kept++;
	}
	t_note("%d inputs kept; %d places reached", kept, fuzz_cover_save(cover, places));
	fclose(inputs);
	fclose(places);
}

TEST(replay, "the inputs of the corpus, one after the other")
{
	bool tell = getenv("TMESH_REPLAY");
	char text[FUZZ_TEXT];

	set_up();
	if (!corpus->count)
		t_skip("no TMESH_CORPUS");
	for (int who = 0; who < 2; who++) {
		T_ALONE()
		{
			struct worker *w = be(who, 1);

			for (int i = 0; i < corpus->count; i++) {
				fuzz_print(&corpus->inputs[i], text);
				if (tell)
					t_note("as %s: %s", who ? "a user" : "root", text);
				run(w, &corpus->inputs[i], tell ? stdout : NULL);
			}
		}
	}
	fuzz_unmount();
	t_note("%d inputs", corpus->count);
}

TEST(fuzz, "random calls of four processes at once, of root and two users")
{
	unsigned long calls = t_length(0, 2000000);
	unsigned int seed = seed_of_run();
	double began, until;
	pid_t pids[WORKERS];

	/*
	 * Allow more time than for other tests: these are millions of calls, on an emulated
	 * machine.
	 */
	if (t_full())
		alarm(12000);
	set_up();
	began = t_now();
	until = began + t_length(cover ? 60 : 10, cover ? 60 : 10);
	if (getenv("TMESH_REPLAY"))
		t_skip("told by TMESH_REPLAY to run known inputs only");
	for (int i = 0; i < WORKERS; i++)
		T_CHILD(pids[i])
			work(be(i, seed), until, calls);
	for (int i = 0; i < WORKERS; i++)
		t_wait(pids[i]);
	t_drop_kept();
	t_note("seed %u: %lu calls in %.0f s, %.0f a second; %s", seed, corpus->calls,
	       t_now() - began, corpus->calls / (t_now() - began),
	       cover ? "guided by coverage" : "no KCOV here");
	if (cover && getenv("TMESH_LEFT")) {
		minimise();
		save();
	}
	fuzz_unmount();
}
