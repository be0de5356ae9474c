// SPDX-License-Identifier: MIT
/* An engine's process that is killed at random moments, while clients call without a pause. */
#include <stdatomic.h>

#include "served.h"

#define STORMERS 2

struct stormer {
	struct fixture fix;
	struct tmesh_engine_binding *binding;
	atomic_bool *over;
	atomic_ulong done;
	unsigned long lost;
};

static void *call_on(void *data)
{
	struct stormer *own = data;

	while (!atomic_load(own->over)) {
		struct tmesh_error error = {0};
		int rc = tmesh_engine_binding_dispatch(own->binding, &error);

		if (rc && rc != -EPIPE)
			return strdup(error.message);
		if (rc)
			own->lost++;
		else
			atomic_fetch_add(&own->done, 1);
	}
	return NULL;
}

/* How many pieces of regions a process has mapped; and its programs and libraries. */
static unsigned int maps_of(pid_t pid)
{
	unsigned int count = 0;
	char path[64], line[512];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "r");
	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "tmesh") != NULL;
	fclose(maps);
	return count;
}

/* Count the descriptors of the three: this process, the supervisor, the engine. */
struct held {
	unsigned int files[3], maps[3];
};

static void count_held(const struct engine_status *status, struct held *out)
{
	const pid_t all[] = {getpid(), supervisor, (pid_t)status->pid};

	for (int i = 0; i < 3; i++) {
		out->files[i] = files_of((uint32_t)all[i]);
		out->maps[i] = maps_of(all[i]);
	}
}

static bool as_before(const struct held *before, const struct held *now)
{
	for (int i = 0; i < 3; i++)
		if (now->files[i] > before->files[i] || now->maps[i] > before->maps[i])
			return false;
	return true;
}

static void kill_engine(const struct engine_status *status, uint32_t *last)
{
	/* The next one serves. */
	for (int i = 0; i < 60000 && (!status->pid || status->pid == *last); i++)
		usleep(1000);
	assert_true(status->pid && status->pid != *last);
	*last = status->pid;
	assert_int_equal(kill((pid_t)*last, SIGKILL), 0);
}

/* Until each has made another call. */
static void await_calls(struct stormer *stormers)
{
	for (int i = 0; i < STORMERS; i++) {
		unsigned long before = atomic_load(&stormers[i].done);

		for (int n = 0; n < 60000 && atomic_load(&stormers[i].done) == before; n++)
			usleep(1000);
		assert_true(atomic_load(&stormers[i].done) > before);
	}
}

UNIT_SET_UP(test_kills)
{
	bool full = getenv("TMESH_TEST_LENGTH") && !strcmp(getenv("TMESH_TEST_LENGTH"), "full");
	const struct engine_status *status = map_status(*state);
	struct stormer stormers[STORMERS];
	pthread_t threads[STORMERS];
	uint32_t last = 0, restarts = status->restarts;
	struct held before, now;
	unsigned int seed = 11;
	atomic_bool over = false;
	int rounds = full ? 300 : 30;

	for (int i = 0; i < STORMERS; i++) {
		struct stormer *own = &stormers[i];

		*own = (struct stormer){.over = &over};
		join(&own->fix);
		assert_ok(tmesh_engine_bind(own->fix.graph, own->fix.inputs, 2, own->fix.outputs, 1,
					    &own->binding, err));
	}
	for (int round = 0; round < 2; round++) {
		over = false;
		for (int i = 0; i < STORMERS; i++)
			pthread_create(&threads[i], NULL, call_on, &stormers[i]);
		/* The first round is what it is compared with. */
		for (int i = 0; i < (round ? rounds : 3); i++) {
			/* Not so often that on a slow machine no client would ever be connected. */
			if (i % 4 == 3)
				await_calls(stormers);
			usleep((useconds_t)rand_r(&seed) % 20000);
			kill_engine(status, &last);
		}
		over = true;
		for (int i = 0; i < STORMERS; i++) {
			void *why;

			pthread_join(threads[i], &why);
			if (why)
				fail_msg("a call ended with %s", (char *)why);
		}
		for (int i = 0; i < STORMERS; i++)
			assert_works(&stormers[i].fix);
		/* The newest process learns of all bindings: each has three regions there. */
		for (int i = 0; i < STORMERS; i++)
			assert_ok(tmesh_engine_binding_dispatch(stormers[i].binding, err));
		assert_works(*state);
		if (!round) {
			/* Memory is given back in the background: at rest there is no more than
			 * now. */
			count_held(status, &before);
			continue;
		}
		for (int i = 0; i < 6000; i++) {
			count_held(status, &now);
			if (as_before(&before, &now))
				break;
			usleep(10000);
		}
		for (int i = 0; i < 3; i++) {
			assert_in_range(now.files[i], 1, before.files[i]);
			assert_in_range(now.maps[i], 1, before.maps[i]);
		}
	}
	assert_int_equal(status->restarts, restarts + 3 + (uint32_t)rounds);
	for (int i = 0; i < STORMERS; i++) {
		assert_ok(tmesh_engine_binding_dispatch(stormers[i].binding, err));
		assert_y(&stormers[i].fix);
		printf("# client %d: %lu calls done, %lu lost with a process\n", i,
		       atomic_load(&stormers[i].done), stormers[i].lost);
		tmesh_engine_binding_unref(stormers[i].binding);
		leave(&stormers[i].fix);
	}
	munmap((void *)status, sizeof(*status));
}

int main(void)
{
	int failed;

	if (make_folder())
		return 1;
	failed = UNIT_RUN("storm", serve, unserve);
	return remove_folder() || failed;
}
