// SPDX-License-Identifier: MIT
/*
 * Graphs on places by leases, on the engine "fake", with a clock of the test's own. The tests move
 * parts, give them up and take them again, leave them without room, and fail in the middle. The
 * places are an engine with any memory, and engines with that of NUMA node 0. On most machines both
 * are the same, but copies between them are made as if they were not.
 */
#include "places.h"

UNIT(test_move)
{
	struct tmesh_places *places = make_places(0);
	struct tmesh_placed *placed = place(places, at[0]);
	struct bound one = bind_placed(placed), two = bind_placed(placed);
	uint64_t before = copied(), region = own(&one, 4, 4);

	run(&one, 3, 7);
	run(&two, 3, 3);
	assert_int_equal(used(places, 0), 2 * BYTES);
	assert_int_equal(stats_of(places).copies, 0);
	watched = places;
	assert_ok(tmesh_placed_move(placed, at[1], err));
	watched = NULL;
	/* The old room is its own until it has left. */
	assert_int_equal(seen, 2 * BYTES);
	/* Two bindings own 16 bytes each; x and y stay where they are. */
	assert_int_equal(stats_of(places).copies, 2);
	assert_int_equal(stats_of(places).bytes_copied, 32);
	assert_int_equal(copied() - before, 32);
	assert_true(own(&one, 0, 4) != region);
	assert_int_equal(used(places, 0), 0);
	assert_int_equal(used(places, 1), 2 * BYTES);
	assert_int_equal(files(), 1);
	assert_int_equal(sessions(), 1);
	run(&one, 2, 6);
	run(&two, 2, 2);
	/* Where it is already: opened anew, nothing copied. */
	assert_ok(tmesh_placed_move(placed, at[1], err));
	assert_int_equal(stats_of(places).moves, 2);
	assert_int_equal(stats_of(places).copies, 2);
	assert_int_equal(copied() - before, 32);
	unbind(&two);
	assert_int_equal(used(places, 1), BYTES);
	run(&one, 1, 5);
	tmesh_placed_unref(placed);
	unbind(&one);
	assert_int_equal(used(places, 1), 0);
	assert_int_equal(sessions(), 0);
	tmesh_places_unref(places);
}

/* Contexts without places move too; their memory is one. */
UNIT(test_contexts)
{
	struct tmesh_engine_context *both[] = {context, context};
	struct tmesh_placed_opts opts = {.size = sizeof(opts),
					 .contexts = both,
					 .context_count = 2,
					 .at = at[0],
					 .folder = folder};
	struct tmesh_placed *placed;
	struct bound one;
	uint64_t region;

	assert_ok(tmesh_placed_create(graph, &opts, &placed, err));
	one = bind_placed(placed);
	region = own(&one, 4, 4);
	assert_ok(tmesh_placed_move(placed, at[1], err));
	assert_int_equal(own(&one, 0, 4), region);
	run(&one, 3, 7);
	assert_at(placed, 1);
	assert_refused(tmesh_placed_move(placed, at[2], err), -EINVAL, "place 2, and there are 2");
	unbind(&one);
	tmesh_placed_unref(placed);
}

static void assert_part_at(const struct tmesh_graph_partitions *parts, uint32_t place)
{
	const struct tmesh_graph *part;
	uint32_t got;

	assert_int_equal(tmesh_graph_partitions_count(parts), 1);
	assert_ok(tmesh_graph_partition(parts, 0, &got, &part, err));
	assert_int_equal(got, place);
}

UNIT(test_given_up)
{
	struct tmesh_places *places = make_places(0);
	struct tmesh_placed *placed = place(places, at[1]);
	const struct tmesh_graph_partitions *parts = tmesh_placed_partitions(placed);
	struct bound one = bind_placed(placed);
	uint64_t before = copied(), held;

	own(&one, 4, 4);
	run(&one, 3, 7);
	now += 5 * SECOND - 1;
	assert_int_equal(sweep(places), 0);
	run(&one, 3, 7); /* a use */
	now += 5 * SECOND - 1;
	assert_int_equal(sweep(places), 0);
	held = own(&one, 0, 4);
	now += 1;
	assert_int_equal(sweep(places), 1);
	assert_int_equal(sweep(places), 0);
	/* Nothing is left there, and the value is at home. */
	assert_int_equal(files(), 0);
	assert_int_equal(sessions(), 0);
	assert_int_equal(used(places, 1), 0);
	assert_int_equal(stats_of(places).held, 0);
	assert_int_equal(stats_of(places).given_up, 1);
	assert_int_equal(stats_of(places).bytes_copied, 16);
	assert_true(own(&one, 0, 4) != held);
	own(&one, 5, 5);
	/* And comes back with the next run. */
	run(&one, 3, 8);
	assert_ptr_equal(tmesh_placed_partitions(placed), parts);
	assert_int_equal(stats_of(places).held, 1);
	assert_int_equal(stats_of(places).reacquired, 1);
	assert_int_equal(stats_of(places).copies, 2);
	assert_int_equal(copied() - before, 32);
	assert_int_equal(used(places, 1), BYTES);
	/* Given up, then moved, then bound by another. */
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 1);
	assert_ok(tmesh_placed_move(placed, at[0], err));
	/* A holder of the old parts still has them. */
	assert_part_at(parts, 1);
	assert_part_at(tmesh_placed_partitions(placed), 0);
	assert_int_equal(stats_of(places).copies, 3);
	run(&one, 3, 8);
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 1);
	assert_int_equal(stats_of(places).copies, 3); /* it lay at home already */

	struct bound two = bind_placed(placed);

	assert_int_equal(used(places, 0), 2 * BYTES);
	run(&one, 3, 8);
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 1);
	/* Gone without ever coming back. */
	unbind(&one);
	unbind(&two);
	tmesh_placed_unref(placed);
	assert_int_equal(used(places, 0), 0);
	tmesh_places_unref(places);
}

/* A run that is longer than the lease is a use at its end. */
UNIT(test_long_run)
{
	struct tmesh_places *places = make_places(0);
	struct tmesh_placed *placed = place(places, at[1]);
	struct bound one = bind_placed(placed);

	uint64_t start = now;

	passes = 6 * SECOND;
	run(&one, 3, 3);
	passes = 0;
	assert_int_equal(now - start, 12 * SECOND); /* asked at its begin, and at its end */
	assert_int_equal(sweep(places), 0);
	now += 5 * SECOND;
	/* A running part is not given up, however long. */
	placed->running = 1;
	assert_int_equal(sweep(places), 0);
	placed->running = 0;
	assert_int_equal(sweep(places), 1);
	unbind(&one);
	tmesh_placed_unref(placed);
	tmesh_places_unref(places);
}

static atomic_bool done;

static void *dispatch(void *data)
{
	run(data, 3, 3);
	done = true;
	return NULL;
}

/* One thread at a time runs a binding, all of its parts. */
UNIT(test_turn)
{
	struct tmesh_places *places = make_places(0);
	struct tmesh_placed *placed = place(places, at[0]);
	struct bound one = bind_placed(placed);
	pthread_t thread;

	one.binding->running = true;
	pthread_create(&thread, NULL, dispatch, &one);
	usleep(50000);
	assert_false(done);
	pthread_mutex_lock(&placed->lock);
	one.binding->running = false;
	pthread_cond_broadcast(&placed->idle);
	pthread_mutex_unlock(&placed->lock);
	pthread_join(thread, NULL);
	assert_true(done);
	unbind(&one);
	tmesh_placed_unref(placed);
	tmesh_places_unref(places);
}

UNIT(test_room)
{
	struct tmesh_places *places = make_places(BYTES + BYTES / 2);
	struct tmesh_placed *first = place(places, at[0]), *second = place(places, at[0]);
	struct bound one = bind_placed(first), two;
	const int64_t shape[] = {2, 4};
	struct tmesh_tensor *x = tensor(2, shape);
	struct tmesh_placed_value inputs[] = {{"x", x}, {"b", NULL}};
	struct tmesh_placed_binding *refused;

	own(&one, 4, 4);
	assert_refused(tmesh_placed_bind(first, ctx, inputs, 2, NULL, 0, &refused, err), -ENOSPC,
		       "place 0 has 72 bytes, of which other graphs have 0: this one needs 96");
	assert_refused(tmesh_placed_bind(second, ctx, inputs, 2, NULL, 0, &refused, err), -ENOSPC,
		       "of which other graphs have 48: this one needs 48");
	assert_int_equal(used(places, 0), BYTES);
	assert_ok(tmesh_placed_move(second, at[1], err));
	two = bind_placed(second);
	assert_refused(tmesh_placed_move(second, at[0], err), -ENOSPC, "place 0 has 72 bytes");
	assert_at(second, 1);
	run(&two, 1, 1);
	/* The first is given up; the second takes its place, and the first waits for it. */
	now += 5 * SECOND;
	run(&two, 1, 1);
	assert_int_equal(sweep(places), 1);
	assert_ok(tmesh_placed_move(second, at[0], err));
	assert_refused(tmesh_placed_dispatch(one.binding, NULL, err), -ENOSPC, "place 0 has 72");
	own(&one, 0, 4);
	assert_int_equal(used(places, 0), BYTES);
	run(&two, 1, 1);
	/* An idle part goes for one that wants its room, also without a sweep. */
	now += 5 * SECOND;
	run(&one, 3, 7);
	assert_int_equal(stats_of(places).given_up, 2);
	assert_int_equal(stats_of(places).held, 1);
	assert_refused(tmesh_placed_dispatch(two.binding, NULL, err), -ENOSPC, "place 0 has 72");
	unbind(&one);
	run(&two, 1, 1);
	unbind(&two);
	tmesh_placed_unref(first);
	tmesh_placed_unref(second);
	tmesh_tensor_unref(x);
	tmesh_places_unref(places);
}

/* Each step of a move fails: the old place goes on, nothing is left behind. */
static void fail_to_move(struct tmesh_placed *placed)
{
	struct rlimit before;
	int rc;

	/* A part cannot be written. */
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max}), 0);
	rc = tmesh_placed_move(placed, at[0], NULL);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(rc, -EFBIG);
	/* There is no memory of that node, when the parts are open. */
	assert_true(tmesh_placed_move(placed, at[2], NULL) < 0);
	/* An output cannot be bound, when values were copied. */
	assert_refused(tmesh_placed_move(placed, at[0], err), -EPERM, "seal");
	assert_int_equal(files(), 1);
	assert_int_equal(sessions(), 1);
}

UNIT(test_failures)
{
	struct tmesh_places *places = make_places(0);
	struct tmesh_placed *placed = place(places, at[1]);
	struct bound two = bind_placed(placed), one = bind_placed(placed);
	uint64_t region = own(&one, 4, 4), before;
	unsigned int fds;

	run(&one, 3, 7);
	assert_ok(tmesh_region_seal(tmesh_tensor_region(two.y), err));
	before = copied();
	{
		/* One binding more, which cannot be bound. */
		struct tmesh_placed_value in[] = {{"x", one.x}, {"b", NULL}}, y = {"y", two.y};
		struct tmesh_placed_binding *more;

		assert_refused(tmesh_placed_bind(placed, ctx, in, 2, &y, 1, &more, err), -EPERM,
			       "seal");
		assert_int_equal(used(places, 1), 2 * BYTES);
	}
	fail_to_move(placed);
	fds = unit_open_fds(); /* with what the pool of regions keeps */
	fail_to_move(placed);
	fail_to_move(placed);
	/* The pool lets go of what it has kept for ten seconds. */
	assert_true(unit_open_fds() <= fds);
	/* The copies were made, so they are counted: of both bindings, each time. */
	assert_int_equal(stats_of(places).copies, 6);
	assert_int_equal(stats_of(places).bytes_copied, 96);
	assert_int_equal(copied() - before, 96);
	assert_int_equal(stats_of(places).moves, 0);
	assert_at(placed, 1);
	assert_int_equal(own(&one, 0, 4), region);
	run(&one, 3, 7);
	assert_int_equal(used(places, 0) + used(places, 2), 0);
	assert_int_equal(used(places, 1), 2 * BYTES);
	/* Given up, it cannot come back while that output is bound; its values are there. */
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 1);
	assert_refused(tmesh_placed_dispatch(one.binding, NULL, err), -EPERM, "seal");
	assert_int_equal(used(places, 1), 0);
	own(&one, 0, 4);
	unbind(&two);
	run(&one, 3, 7);
	unbind(&one);
	tmesh_placed_unref(placed);
	tmesh_places_unref(places);
}

/* The fake opens whatever it is given. */
static void refuse_own_past(struct tmesh_places *places)
{
	const char *text = "graph plain\n"
			   "past = input cache=reuse : float32[4,4]\n"
			   "x = input : float32[1,4]\n"
			   "r = input : int64[1]\n"
			   "a = set_rows(past, x, r)\n"
			   "output a = a\n";
	const uint32_t here[] = {0, 0, 0, 1};
	const int64_t shape[] = {4, 4};
	struct tmesh_tensor *x = tensor(2, shape);
	struct tmesh_placed_value inputs[] = {{"past", NULL}, {"x", x}, {"r", x}}, a = {"a", x};
	struct tmesh_placed_opts opts = {
		.size = sizeof(opts), .at = here, .folder = folder, .places = places};
	struct tmesh_placed_binding *binding;
	struct tmesh_placed *placed;
	struct tmesh_graph *pasts;

	assert_ok(tmesh_graph_parse(text, strlen(text), &pasts, err));
	assert_ok(tmesh_placed_create(pasts, &opts, &placed, err));
	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 3, &a, 1, &binding, err), -EINVAL,
		       "is the binding's own: give no tensor");
	tmesh_placed_unref(placed);
	tmesh_graph_unref(pasts);
	tmesh_tensor_unref(x);
}

UNIT(test_hostile)
{
	struct tmesh_places_place wrong[] = {{.context = context, .node = -1}};
	struct tmesh_places_opts opts = {.size = sizeof(opts), .places = wrong};
	struct tmesh_places *places, *with_thread;
	struct tmesh_placed_opts graph_opts = {.size = sizeof(graph_opts),
					       .at = at[0],
					       .folder = folder,
					       .contexts = &context,
					       .context_count = 1};
	struct tmesh_placed *placed;
	struct bound one;
	struct tmesh_tensor *got;
	uint32_t where[3];
	uint64_t bytes;
	pid_t child;

	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "1 to 64 places");
	opts.place_count = 65;
	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "not 65");
	opts.place_count = 1;
	wrong[0].node = -2;
	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "place 0");
	wrong[0].node = -1;
	wrong[0].reserved = 1;
	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "reserved is 0");
	wrong[0].reserved = 0;
	wrong[0].context = NULL;
	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "a context is given");
	opts.places = NULL;
	assert_refused(tmesh_places_create(&opts, &places, err), -EINVAL, "places are given");

	places = make_places(0);
	graph_opts.places = places;
	assert_refused(tmesh_placed_create(graph, &graph_opts, &placed, err), -EINVAL, "not both");
	placed = place(places, at[1]);
	assert_refused(tmesh_placed_move(placed, NULL, err), -EINVAL, "at is given");
	assert_refused(tmesh_placed_move(placed, at[3], err), -EINVAL,
		       "node \"y\" is at place 3, and there are 3");
	assert_refused(tmesh_placed_at(placed, where, 2, err), -EINVAL, "the graph has 3");
	assert_refused(tmesh_placed_at(placed, NULL, 3, err), -EINVAL, "the graph has 3");
	assert_refused(tmesh_places_used(places, 3, &bytes, err), -EINVAL, "no place 3 of 3");
	one = bind_placed(placed);
	assert_refused(tmesh_placed_binding_tensor(one.binding, "x", &got, err), -ENOENT, "\"x\"");
	assert_refused(tmesh_placed_binding_tensor(one.binding, "no", &got, err), -ENOENT, "no");
	assert_refused(tmesh_placed_binding_tensor(one.binding, NULL, &got, err), -ENOENT, "owns");

	struct tmesh_placed_value x = {"x", NULL}, b[] = {{"b", NULL}, {"b", NULL}};
	struct tmesh_placed_binding *binding;

	assert_refused(tmesh_placed_bind(placed, ctx, &x, 1, NULL, 0, &binding, err), -EINVAL,
		       "cache=reuse");
	assert_refused(tmesh_placed_bind(placed, ctx, b, 2, NULL, 0, &binding, err), -EINVAL,
		       "\"b\" was given twice");
	assert_int_equal(used(places, 1), BYTES);
	refuse_own_past(places);
	opts.places = wrong;
	wrong[0].context = context;
	/* As soon as it may: the thread pauses all the same while something runs. */
	opts.idle_ns = 1;
	assert_ok(tmesh_places_create(&opts, &with_thread, err));
	assert_int_equal(places_pause(with_thread), SECOND / 1000);
	tmesh_places_unref(with_thread);
	opts.idle_ns = 0;
	assert_ok(tmesh_places_create(&opts, &with_thread, err));
	assert_int_equal(places_pause(with_thread), 5 * SECOND / 8);
	/* A forked child can use none of it, and lets go of its parts, whichever thread had locks.
	 */
	pthread_mutex_lock(&places->lock);
	pthread_mutex_lock(&placed->lock);
	pthread_mutex_lock(&with_thread->lock);
	child = fork();
	if (!child) {
		struct tmesh_places_stats stats = {.size = sizeof(stats)};
		uint32_t count;

		alarm(60);
		bool good = tmesh_placed_move(placed, at[0], NULL) == -EPERM &&
			    tmesh_placed_dispatch(one.binding, NULL, NULL) == -EPERM &&
			    tmesh_places_sweep(places, &count, NULL) == -EPERM &&
			    tmesh_placed_at(placed, where, 3, NULL) == -EPERM &&
			    tmesh_placed_partitions(placed) &&
			    tmesh_places_used(places, 1, &bytes, NULL) == -EPERM &&
			    tmesh_places_stats(places, &stats, NULL) == -EPERM;

		tmesh_placed_binding_unref(one.binding);
		tmesh_placed_unref(placed);
		tmesh_places_unref(places);
		tmesh_places_unref(with_thread);
		unit_leave(!good);
	}
	pthread_mutex_unlock(&with_thread->lock);
	pthread_mutex_unlock(&placed->lock);
	pthread_mutex_unlock(&places->lock);
	tmesh_places_unref(with_thread);
	join_child(child);
	assert_int_equal(files(), 1);
	run(&one, 3, 3);
	unbind(&one);
	tmesh_placed_unref(placed);
	tmesh_places_unref(places);
}

struct many {
	struct tmesh_placed *placed;
	atomic_bool stop;
	atomic_uint runs, moves;
};

static void *runs(void *data)
{
	struct many *many = data;
	struct bound one = bind_placed(many->placed);
	unsigned int count = 0;

	own(&one, 4, 4);
	while (!many->stop) {
		run(&one, (float)(count % 100), (float)(count % 100) + 4);
		many->runs++;
		if (!(++count % 64))
			usleep(3000);
	}
	own(&one, 0, 4);
	unbind(&one);
	return NULL;
}

static void *moves(void *data)
{
	struct many *many = data;

	while (!many->stop) {
		assert_ok(tmesh_placed_move(many->placed, at[many->moves++ % 2], err));
		usleep(2000);
	}
	return NULL;
}

/* Runs, moves and what is given up, all at once; the library's own thread gives up. */
UNIT(test_threads)
{
	const struct tmesh_places_place all[] = {{.context = context, .node = -1},
						 {.context = context}};
	struct tmesh_places_opts opts = {
		.size = sizeof(opts), .places = all, .place_count = 2, .idle_ns = 1000000};
	struct tmesh_places *places;
	struct many many = {0};
	pthread_t threads[3];

	assert_ok(tmesh_places_create(&opts, &places, err));
	many.placed = place(places, at[0]);
	pthread_create(&threads[0], NULL, runs, &many);
	pthread_create(&threads[1], NULL, runs, &many);
	pthread_create(&threads[2], NULL, moves, &many);
	for (int i = 0; i < 60000; i++) {
		if (many.runs > 500 && many.moves > 20 && stats_of(places).reacquired > 5)
			break;
		usleep(1000);
	}
	many.stop = true;
	for (size_t i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_true(stats_of(places).reacquired > 5);
	assert_int_equal(stats_of(places).bytes_copied, 16 * stats_of(places).copies);
	for (int i = 0; i < 60000 && stats_of(places).held; i++)
		usleep(1000);
	assert_int_equal(stats_of(places).held, 0);
	assert_int_equal(files(), 0);
	tmesh_placed_unref(many.placed);
	tmesh_places_unref(tmesh_places_ref(places));
	tmesh_places_unref(places);
}

UNIT_MAIN("places", setup, teardown)
