// SPDX-License-Identifier: MIT
/*
 * The costs of leases: a touch, the walks over very many live leases, and the end of many.
 */
#include <dirent.h>

#include "bench.h"
#include "lease.h"

#define LEASES 100000
#define LAPSING 10000
#define TOUCHES 2000000
#define MAX_MAP_COUNT "/proc/sys/vm/max_map_count"

static struct tmesh_lease_touch *touched[LEASES];
static int handles[LEASES], nr_leases, first_kept;
static __u64 *shared;

/* Touch a lease as a holder with one thread does: only a change of the number matters. */
static void touch(struct tmesh_lease_touch *t)
{
	__atomic_store_n(&t->touched, __atomic_load_n(&t->touched, __ATOMIC_RELAXED) + 1,
			 __ATOMIC_RELAXED);
}

static double touch_lease(void)
{
	double from = t_now();

	for (int i = 0; i < TOUCHES; i++)
		touch(touched[0]);
	return t_now() - from;
}

static double store_shared(void)
{
	double from = t_now();

	for (int i = 0; i < TOUCHES; i++)
		__atomic_store_n(shared, i, __ATOMIC_SEQ_CST);
	return t_now() - from;
}

/* Keep all leases alive but those that are to lapse. */
static void *keep_alive(void *arg)
{
	const bool *stop = arg;

	while (!__atomic_load_n(stop, __ATOMIC_ACQUIRE)) {
		int n = __atomic_load_n(&nr_leases, __ATOMIC_ACQUIRE);

		for (int i = __atomic_load_n(&first_kept, __ATOMIC_ACQUIRE); i < n; i++)
			touch(touched[i]);
		usleep(500000);
	}
	return NULL;
}

static void add_lease(int region)
{
	int i = nr_leases, fd;
	void *p;

	handles[i] = REQUIRE_OK(t_derive(region, R_READ, 0));
	fd = REQUIRE_OK(lease_call(handles[i], 0, 0, 0, NULL));
	touched[i] = t_map(fd, PAGE, RW);
	REQUIRE(touched[i] != MAP_FAILED);
	close(fd);
	touch(touched[i]);
	if (i < LAPSING) {
		p = t_map(handles[i], PAGE, PROT_READ);
		REQUIRE(p != MAP_FAILED && !t_read(p));
	}
	__atomic_store_n(&nr_leases, i + 1, __ATOMIC_RELEASE);
}

struct walks {
	double at, took;
	unsigned long count;
};

/* Read the number of walks over the leases of 5 s, and the seconds that they took in all. */
static struct walks walks(void)
{
	struct walks w = {.at = t_now()};
	unsigned long ns;
	char text[4096];
	const char *line;

	REQUIRE(t_read_file("/sys/kernel/debug/tmesh/leases", text, sizeof(text)));
	line = strstr(text, "\n5000000000 ");
	REQUIRE(line && sscanf(line, " %*u %*u %lu %lu", &w.count, &ns) == 2);
	w.took = ns / 1e9;
	return w;
}

static double read_all(void)
{
	double from = t_now();

	for (int i = 0; i < LEASES; i++)
		__atomic_load_n(&touched[i]->touched, __ATOMIC_RELAXED);
	return t_now() - from;
}

static void bench_looks(void)
{
	struct walks from = walks(), to;
	double reads[ROUNDS], took;

	/* About four walks */
	usleep(17 * 1000000);
	to = walks();
	REQUIRE(to.count > from.count);
	took = to.took - from.took;
	for (int i = 0; i < ROUNDS; i++)
		reads[i] = read_all();
	report("look at one of 100,000 leases", took / (to.count - from.count) / LEASES * 1e6,
	       "us");
	report("read of one of 100,000 pages", median(reads) / LEASES * 1e6, "us");
	report("looks at 100,000 live leases of 5 s", took / (to.at - from.at) * 100, "% of a CPU");
}

/* Return the CPU seconds of the kernel's unbound workers. Works for leases run on no others. */
static double workers(void)
{
	DIR *proc = opendir("/proc");
	unsigned long ticks, sum = 0;
	char path[300], text[512];
	struct dirent *d;

	REQUIRE(proc);
	while ((d = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/stat", d->d_name);
		if (d->d_name[0] < '0' || d->d_name[0] > '9' ||
		    !t_read_file(path, text, sizeof(text)) || !strstr(text, "(kworker/u"))
			continue;
		REQUIRE(sscanf(strrchr(text, ')'),
			       ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %lu",
			       &ticks) == 1);
		sum += ticks;
	}
	closedir(proc);
	return (double)sum / sysconf(_SC_CLK_TCK);
}

static double unmap_pages(int region)
{
	static void *pages[LAPSING];
	double from;

	for (int i = 0; i < LAPSING; i++) {
		pages[i] = t_map(region, PAGE, PROT_READ);
		REQUIRE(pages[i] != MAP_FAILED && !t_read(pages[i]));
	}
	from = t_now();
	for (int i = 0; i < LAPSING; i++)
		munmap(pages[i], PAGE);
	return t_now() - from;
}

static void bench_lapses(int region)
{
	double floor = unmap_pages(region), from = workers();
	struct walks before = walks();

	__atomic_store_n(&first_kept, LAPSING, __ATOMIC_RELEASE);
	for (int i = 0; i < LAPSING; i++)
		REQUIRE(poll(&(struct pollfd){.fd = handles[i]}, 1, 60000) == 1);
	report("lapse of one of 10,000 leases with a mapping, among 100,000",
	       (workers() - from - (walks().took - before.took)) / LAPSING * 1e6, "us");
	report("munmap of one of 10,000 mappings", floor / LAPSING * 1e6, "us");
}

int main(void)
{
	struct rlimit files = {LEASES + 1000, LEASES + 1000};
	char map_count[32];
	bool stop = false;
	pthread_t keeper;
	int region;

	t_catch_faults();
	region = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	shared = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(shared != MAP_FAILED);
	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	REQUIRE(t_read_file(MAX_MAP_COUNT, map_count, sizeof(map_count)));
	REQUIRE(t_write_file(MAX_MAP_COUNT, "400000"));
	REQUIRE(!pthread_create(&keeper, NULL, keep_alive, &stop));
	while (nr_leases < LEASES)
		add_lease(region);

	compare("2,000,000 touches of a lease", touch_lease, "2,000,000 stores to shared memory",
		store_shared);
	bench_looks();
	bench_lapses(region);

	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	pthread_join(keeper, NULL);
	REQUIRE(t_write_file(MAX_MAP_COUNT, map_count));
	return 0;
}
