// SPDX-License-Identifier: MIT
/*
 * The cache of sessions on the engine "fake": files on a file system that does not answer, and a
 * stat() that waits. Sessions take their time to open or to close, while others go on.
 */
#include <semaphore.h>
#include <stdatomic.h>
#include <tmesh/engine.h>

#include "internal.h"
#include "unit.h"

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static char folder[] = "/tmp/tmesh-sessions-XXXXXX";
static atomic_bool dead; /* the file system of the file "dead" */
static sem_t asked, answered;
/* A call that a stat() of the file "again" makes, when it is the second one. */
static void (*again)(void);
static unsigned int stats_of_again;

/* In the place of the C library's. */
int stat(const char *restrict path, struct stat *restrict out)
{
	if (again && strstr(path, "/again") && ++stats_of_again == 2)
		again();
	if (strstr(path, "/storm"))
		usleep(100);
	if (atomic_load(&dead) && strstr(path, "/dead")) {
		sem_post(&asked);
		while (sem_wait(&answered))
			;
	}
	return fstatat(AT_FDCWD, path, out, 0);
}

static const char *path_of(const char *name)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static const char *file_of(const char *name, const char *text)
{
	FILE *out = fopen(path_of(name), "w");

	assert_non_null(out);
	fputs(text, out);
	fclose(out);
	return path_of(name);
}

static const char *file(const char *name)
{
	return file_of(name, "plain");
}

/* All at once. */
static void put(const char *name, const char *text)
{
	char from[96];

	strcpy(from, file_of("put", text));
	assert_int_equal(rename(from, path_of(name)), 0);
}

static off_t size_of(const char *name)
{
	struct stat st;

	return stat(path_of(name), &st) ? 0 : st.st_size;
}

static struct tmesh_engine_stats stats(struct tmesh_engine_context *context)
{
	struct tmesh_engine_stats out = {.size = sizeof(out)};

	assert_ok(tmesh_engine_stats(context, &out, err));
	return out;
}

static struct tmesh_engine_graph *open_graph(struct tmesh_engine_context *context, const char *path)
{
	struct tmesh_engine_graph *graph;

	assert_ok(tmesh_engine_graph_open(context, path, NULL, &graph, err));
	return graph;
}

struct looker {
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph; /* that it opens, or, when there is one, closes */
	char path[96];
	_Atomic pid_t tid;
	int rc;
};

static void *look(void *data)
{
	struct looker *own = data;

	if (own->graph)
		tmesh_engine_graph_unref(own->graph);
	else if (tmesh_engine_graph_open(own->context, own->path, NULL, &own->graph, NULL))
		return own;
	return NULL;
}

/* All that others do while one session looks at the dead file: none waits for it. */
static void others_go_on(struct tmesh_ctx *ctx, struct tmesh_engine_context *context,
			 struct tmesh_engine_graph *graph)
{
	struct tmesh_engine_value inputs[2] = {{.name = "x"}, {.name = "b"}};
	struct tmesh_engine_value outputs[1] = {{.name = "y"}};
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *other;

	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 2, shape_x, 0,
					     &inputs[0].tensor, err));
	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 1, shape_b, 0,
					     &inputs[1].tensor, err));
	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 2, shape_x, 0,
					     &outputs[0].tensor, err));
	assert_ok(tmesh_engine_dispatch(graph, inputs, 2, outputs, 1, err));
	assert_ok(tmesh_engine_bind(graph, inputs, 2, outputs, 1, &binding, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	tmesh_engine_binding_unref(binding);
	/* One that is not open, and is gone when it is closed. */
	other = open_graph(context, file("other"));
	unlink(path_of("other"));
	tmesh_engine_graph_unref(other);
	tmesh_engine_tensor_unref(inputs[0].tensor);
	tmesh_engine_tensor_unref(inputs[1].tensor);
	tmesh_engine_tensor_unref(outputs[0].tensor);
}

/* @closes: the looker closes a graph; else it opens one. */
static void test_dead(bool closes)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_ctx *ctx;
	struct looker own;
	pthread_t thread;
	void *failed;

	assert_int_equal(sem_init(&asked, 0, 0), 0);
	assert_int_equal(sem_init(&answered, 0, 0), 0);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	graph = open_graph(context, file("graph"));
	own = (struct looker){.context = context};
	strcpy(own.path, file("new"));
	if (closes)
		own.graph = open_graph(context, own.path);
	tmesh_engine_graph_unref(open_graph(context, file("dead")));
	assert_int_equal(stats(context).sessions, closes ? 3 : 2);

	atomic_store(&dead, true);
	assert_int_equal(pthread_create(&thread, NULL, look, &own), 0);
	while (sem_wait(&asked))
		;
	others_go_on(ctx, context, graph);
	/* The file system answers: the file is gone, as is the other, which no session looked at.
	 */
	atomic_store(&dead, false);
	unlink(path_of("dead"));
	sem_post(&answered);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_int_equal(stats(context).sessions, 2);
	assert_int_equal(stats(context).sessions_evicted, 0);
	if (!closes)
		tmesh_engine_graph_unref(own.graph);
	tmesh_engine_graph_unref(graph);
	assert_int_equal(stats(context).sessions, 2);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	sem_destroy(&asked);
	sem_destroy(&answered);
}

static void test_dead_open(void **state)
{
	test_dead(false);
}

static void test_dead_close(void **state)
{
	test_dead(true);
}

/* A looker finds the session that another has opened meanwhile, and opens no second one. */
static void test_opened_meanwhile(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_ctx *ctx;
	struct looker own;
	pthread_t thread;
	void *failed;

	assert_int_equal(sem_init(&asked, 0, 0), 0);
	assert_int_equal(sem_init(&answered, 0, 0), 0);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	own = (struct looker){.context = context};
	strcpy(own.path, file("new"));
	tmesh_engine_graph_unref(open_graph(context, file("dead")));
	atomic_store(&dead, true);
	assert_int_equal(pthread_create(&thread, NULL, look, &own), 0);
	while (sem_wait(&asked))
		;
	graph = open_graph(context, own.path);
	atomic_store(&dead, false);
	sem_post(&answered);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_int_equal(stats(context).sessions, 2);
	assert_int_equal(stats(context).sessions_opened, 2);
	assert_int_equal(stats(context).session_hits, 1);
	tmesh_engine_graph_unref(own.graph);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	sem_destroy(&asked);
	sem_destroy(&answered);
}

static void *open_it(void *data)
{
	struct looker *own = data;

	own->tid = gettid();
	own->rc = tmesh_engine_graph_open(own->context, own->path, NULL, &own->graph, NULL);
	return NULL;
}

/* Until the thread sleeps, or has begun to open the graph a second time. */
static void wait_until_asleep(const struct looker *own)
{
	char path[64], state = 0;

	while (state != 'S' && size_of("slow.tries") < 2) {
		FILE *file;

		usleep(1000);
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", own->tid);
		file = own->tid ? fopen(path, "r") : NULL;
		if (!file)
			continue;
		if (fscanf(file, "%*d %*s %c", &state) != 1)
			state = 0;
		fclose(file);
	}
}

/* Two want what one of them opens, which takes until the file @go says how it ends. */
static void test_slow_open(const char *go, int first, int second, off_t tries)
{
	struct tmesh_engine_context *context;
	struct looker lookers[2];
	struct tmesh_engine_graph *graph;
	pthread_t threads[2];
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	graph = open_graph(context, file("graph"));
	for (int i = 0; i < 2; i++) {
		lookers[i] = (struct looker){.context = context};
		strcpy(lookers[i].path, i ? path_of("slow") : file_of("slow", "opens"));
		assert_int_equal(pthread_create(&threads[i], NULL, open_it, &lookers[i]), 0);
		while (!size_of("slow.tries"))
			usleep(1000);
	}
	wait_until_asleep(&lookers[1]);
	others_go_on(ctx, context, graph);
	assert_int_equal(size_of("slow.tries"), 1);
	assert_int_equal(stats(context).sessions, 1);
	put("slow.go", go);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(lookers[0].rc, first);
	assert_int_equal(lookers[1].rc, second);
	assert_int_equal(size_of("slow.tries"), tries);
	for (int i = 0; i < 2; i++)
		tmesh_engine_graph_unref(lookers[i].rc ? NULL : lookers[i].graph);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	unlink(path_of("slow.go"));
	unlink(path_of("slow.tries"));
}
static void test_shared(void **state)
{
	test_slow_open("", 0, 0, 1);
}

/* Both callers get the same error. */
static void test_shared_failure(void **state)
{
	test_slow_open("broken", -EPROTO, -EPROTO, 1);
}

/* A failure of one call alone does not concern the other, which tries it itself. */
static void test_cancelled(void **state)
{
	test_slow_open("cancelled", -ECANCELED, -ECANCELED, 2);
}

/* A slow close of one session delays no other caller. */
static void test_slow_close(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct looker own = {0};
	struct tmesh_ctx *ctx = new_ctx();
	pthread_t thread;

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	graph = open_graph(context, file("graph"));
	own.context = context;
	own.graph = open_graph(context, file_of("slow", "closes"));
	unlink(path_of("slow")); /* no process can open it again: it is closed at once */
	assert_int_equal(pthread_create(&thread, NULL, look, &own), 0);
	while (!size_of("slow.closing"))
		usleep(1000);
	others_go_on(ctx, context, graph);
	assert_int_equal(stats(context).sessions, 1);
	put("slow.go", "");
	pthread_join(thread, NULL);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	unlink(path_of("slow.go"));
	unlink(path_of("slow.closing"));
}

static struct tmesh_engine_context *context_again;
static int rc_again;

static void open_again(void)
{
	struct tmesh_engine_graph *graph;

	rc_again = tmesh_engine_graph_open(context_again, path_of("again"), NULL, &graph, NULL);
}

/* As in a handler of a signal: a thread does not wait for itself. */
static void test_within_itself(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	context_again = context;
	again = open_again;
	tmesh_engine_graph_unref(open_graph(context, file("again")));
	again = NULL;
	assert_int_equal(rc_again, -EDEADLK);
	assert_int_equal(stats(context).sessions_opened, 1);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
}

#define STORMERS 4
#define STORM_FILES 3

struct stormer {
	struct tmesh_engine_context *context;
	unsigned int seed, opened;
	int wrong;
};

/* Open graphs at random, sometimes another file of the name; a broken file stays so. */
static void *storm(void *data)
{
	struct stormer *own = data;

	for (int round = 0; !own->wrong && round < 200; round++) {
		int which = rand_r(&own->seed) % (STORM_FILES + 1);
		struct tmesh_engine_graph *graph;
		char path[96], from[96];
		int rc;

		snprintf(path, sizeof(path), "%s/storm%d", folder, which);
		if (rand_r(&own->seed) % 16 == 0 && which < STORM_FILES) {
			FILE *file;

			snprintf(from, sizeof(from), "%s.%p", path, data);
			file = fopen(from, "w");
			if (!file || fputs("plain", file) < 0 || fclose(file) || rename(from, path))
				own->wrong = -errno;
		}
		rc = tmesh_engine_graph_open(own->context, path, NULL, &graph, NULL);
		if (which == STORM_FILES ? rc != -EPROTO : rc && rc != -ESTALE)
			own->wrong = rc ? rc : -EBADMSG;
		if (rc)
			continue;
		own->opened++;
		if (tmesh_engine_graph_inputs(graph) != 2)
			own->wrong = -EBADMSG;
		tmesh_engine_graph_unref(graph);
	}
	return NULL;
}

static void test_storm(void **state)
{
	const struct tmesh_engine_context_opts opts = {.size = sizeof(opts), .sessions = 1};
	struct tmesh_engine_context *context;
	struct stormer stormers[STORMERS];
	pthread_t threads[STORMERS];
	struct tmesh_engine_stats now;
	unsigned int opened = 0;
	struct tmesh_ctx *ctx = new_ctx();
	char name[16];

	assert_ok(tmesh_engine_context_create(ctx, "fake", &opts, &context, err));
	for (int i = 0; i <= STORM_FILES; i++) {
		snprintf(name, sizeof(name), "storm%d", i);
		file_of(name, i < STORM_FILES ? "plain" : "broken");
	}
	for (unsigned int i = 0; i < STORMERS; i++) {
		stormers[i] = (struct stormer){.context = context, .seed = i};
		pthread_create(&threads[i], NULL, storm, &stormers[i]);
	}
	for (int i = 0; i < STORMERS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(stormers[i].wrong, 0);
		opened += stormers[i].opened;
	}
	now = stats(context);
	assert_int_equal(now.sessions_opened + now.session_hits, opened);
	assert_in_range(now.sessions, 0, 1);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
}

static struct tmesh_engine_weight sealed_weight(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_engine_weight weight = {.name = name};

	assert_ok(tmesh_tensor_create(ctx, TMESH_FLOAT32, 1, shape_b, NULL, &weight.tensor, err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(weight.tensor), err));
	return weight;
}

/* A producer that gives its region the id of another's: the session of that one is not for it. */
static void test_forged_id(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graphs[3];
	struct tmesh_engine_weight weights[2];
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	file("forged");
	for (int i = 0; i < 2; i++)
		weights[i] = sealed_weight(ctx, "w");
	if (!unit_on_kernel())
		tmesh_tensor_region(weights[1].tensor)->id =
			tmesh_region_id(tmesh_tensor_region(weights[0].tensor));
	for (int i = 0; i < 3; i++) {
		const struct tmesh_engine_graph_opts opts = {
			.size = sizeof(opts), .weights = &weights[i % 2], .weight_count = 1};

		assert_ok(tmesh_engine_graph_open(context, path_of("forged"), &opts, &graphs[i],
						  err));
	}
	assert_int_equal(stats(context).sessions_opened, 2);
	assert_int_equal(stats(context).session_hits, 1);
	for (int i = 0; i < 3; i++)
		tmesh_engine_graph_unref(graphs[i]);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(weights[i].tensor);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
}

/* Sessions that no graph has keep so many regions open, and no more. */
static void test_idle_regions(void **state)
{
	const struct tmesh_engine_context_opts opts = {.size = sizeof(opts), .session_regions = 3};
	struct tmesh_engine_context *context;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_engine_context_create(ctx, "fake", &opts, &context, err));
	file("idle");
	for (int i = 0; i < 4; i++) {
		struct tmesh_engine_weight weights[4] = {
			sealed_weight(ctx, "a"), sealed_weight(ctx, "b"), sealed_weight(ctx, "c"),
			sealed_weight(ctx, "d")};
		/* The last one is more than may stay at all. */
		const struct tmesh_engine_graph_opts with = {
			.size = sizeof(with), .weights = weights, .weight_count = i < 3 ? 2 : 4};
		struct tmesh_engine_graph *graph;

		assert_ok(tmesh_engine_graph_open(context, path_of("idle"), &with, &graph, err));
		tmesh_engine_graph_unref(graph);
		for (int n = 0; n < 4; n++)
			tmesh_tensor_unref(weights[n].tensor);
	}
	/* The first two went for the third, which stays beside none of four. */
	assert_int_equal(stats(context).sessions_evicted, 3);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_dead_open),	 TEST(test_dead_close),	    TEST(test_opened_meanwhile),
		TEST(test_shared),	 TEST(test_shared_failure), TEST(test_cancelled),
		TEST(test_slow_close),	 TEST(test_within_itself),  TEST(test_forged_id),
		TEST(test_idle_regions), TEST(test_storm),
	};
	char command[64];
	int failed;

	if (!mkdtemp(folder))
		return 1;
	failed = cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command) || failed;
}
