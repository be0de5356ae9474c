// SPDX-License-Identifier: MIT
/*
 * Processes are killed in the middle of any operation. After each round all objects must be gone
 * and the memory must be free. TMESH_SEED sets the seed, which is printed.
 */
#include <dirent.h>
#include <limits.h>
#include <math.h>

#include "drm.h"
#include "fuzz.h"
#include "lease.h"

#define KILLS 50 /* in a round */
#define AT_ONCE 5
#define ROUNDS_MAX 50
#define ALICE 1001
#define BOB 1002

/* Kilobytes that all rounds together may lose, beyond noise */
#define LOST_MAX 4096

static int foreign;	     /* a dma-buf of vgem's */
static unsigned long *armed; /* processes that had one of each; shared */

/* Hold one object of each kind that keeps memory, some of it in use, until the process ends. */
static void hold_one_of_each(void)
{
	static char memory[PAGE] __attribute__((aligned(PAGE)));
	struct tmesh_create_user user = {
		.size = sizeof(user),
		.address = (__u64)(unsigned long)memory,
		.bytes = PAGE,
		.rights = R_READ,
	};
	struct tmesh_import import = {.size = sizeof(import), .source = foreign};
	struct tmesh_signal signal = {.size = sizeof(signal), .value = 1};
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, 16 * PAGE, 0)), sealed, lent, view;
	struct tmesh_extent parts[2] = {t_extent(h, 3, 2), t_extent(h, 9, 4)};
	struct lease lease;
	void *p;

	sealed = REQUIRE_OK(t_create(dev, PAGE, 0));
	REQUIRE_OK(t_seal(sealed));
	REQUIRE_OK(t_derive(sealed, R_READ, TMESH_DERIVE_PIN));
	REQUIRE_OK(ioctl(h, TMESH_SIGNAL, &signal));
	lent = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	/* It may lapse before the next line, or the process may be killed before that. */
	REQUIRE(t_map(lent, PAGE, RW) != MAP_FAILED);
	lease = lease_put(lent, 20 * MS);
	lease_touch(&lease);

	view = REQUIRE_OK(t_gather(dev, parts, 2, R_READ | R_WRITE));
	p = t_map(view, 6 * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	t_write(p, 1);
	REQUIRE_OK(t_export(view, PAGE, 0, TMESH_EXPORT_WRITE));
	/* A view that ends with the lease. */
	parts[0].handle = lent;
	t_gather(dev, parts, 2, R_READ);

	REQUIRE_OK(ioctl(dev, TMESH_CREATE_USER, &user));
	REQUIRE_OK(ioctl(dev, TMESH_IMPORT, &import));
	REQUIRE_OK(t_export(import.fd, 0, 0, 0));
	/* Close the descriptors: only mappings and exports hold the regions now. */
	close(view);
	close(lent);
	close(lease.fd);
	close(import.fd);
	close(foreign);
	close(dev);
	__atomic_add_fetch(armed, 1, __ATOMIC_RELAXED);
}

/* Hold more and more objects, and sometimes drop all but the first, until killed. */
static void __attribute__((noreturn)) hold(unsigned int seed)
{
	struct fuzz_input in;
	struct fuzz_hand *h;
	int who;

	/* Make a process group, so that its children are killed too. */
	setpgid(0, 0);
	who = t_random(&seed) % 4;
	if (who % 2)
		t_become(who == 1 ? ALICE : BOB, 1500, 0);
	hold_one_of_each();
	h = fuzz_hand(who % 2 == 0);
	for (;;) {
		for (int n = 0; n < 8; n++) {
			fuzz_random_input(&in, &seed);
			fuzz_run(h, &in, NULL);
		}
		fuzz_lay_down(h);
	}
}

static void storm(unsigned int *seed)
{
	for (int n = 0; n < KILLS; n += AT_ONCE) {
		unsigned long before = __atomic_load_n(armed, __ATOMIC_RELAXED);
		pid_t pids[AT_ONCE];

		for (int i = 0; i < AT_ONCE; i++) {
			unsigned int own = t_random(seed);

			pids[i] = t_fork();
			if (!pids[i])
				hold(own | 1);
			setpgid(pids[i], pids[i]);
		}
		/* On a slow machine no process might get so far, so wait for the first one. */
		while (!n && __atomic_load_n(armed, __ATOMIC_RELAXED) == before && !t_failed())
			usleep(1000);
		usleep(1000 + t_random(seed) % 100000);
		for (int i = 0; i < AT_ONCE; i++)
			kill(-pids[i], SIGKILL);
		for (int i = 0; i < AT_ONCE; i++)
			waitpid(pids[i], NULL, 0);
	}
}

/* Test for a counter of past work in debugfs. All other lines count objects that users hold. */
static bool work_done(const char *line)
{
	return !strncmp(line, "lapse_passes ", 13) || !strncmp(line, "settles ", 8);
}

/* Test by debugfs whether any object is left. With @tell print a note about it. */
static bool anything(bool tell)
{
	char summary[1024], *line;
	bool any = false;

	REQUIRE(t_read_file("/sys/kernel/debug/tmesh/summary", summary, sizeof(summary)));
	for (line = strtok(summary, "\n"); line; line = strtok(NULL, "\n")) {
		if (work_done(line) || !atoll(strchr(line, ' ') + 1))
			continue;
		any = true;
		if (tell)
			t_note("left: %s", line);
	}
	return any;
}

/*
 * Check that everything is gone in the end. A child of a killed child may still be exiting, or a
 * message in its socket may still be there.
 */
static void check_empty(int dev)
{
	double until = t_now() + 120;

	while ((t_listed(dev) || anything(false)) && t_now() < until)
		usleep(20000);
	CHECK_EQ(t_listed(dev), 0);
	CHECK(!anything(true));
}

/* Return MemFree in kB after the kernel has dropped its caches. */
static long free_memory(void)
{
	sync();
	REQUIRE(t_write_file("/proc/sys/vm/drop_caches", "3"));
	usleep(100000);
	return t_meminfo("MemFree");
}

/*
 * Let the slab allocator free its free objects. KASAN keeps freed objects in a quarantine of up to
 * a 32nd of all memory, to detect their use. Shrinking a cache empties its part, but KASAN still
 * counts it as full. So do this only at the end of a long run.
 */
static void shrink_slab(void)
{
	DIR *dir = opendir("/sys/kernel/slab");
	char path[PATH_MAX];
	struct dirent *cache;
	int shrunk = 0;

	REQUIRE(dir);
	while ((cache = readdir(dir))) {
		/* A link is another name of a merged cache. */
		if (cache->d_type != DT_DIR || cache->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/sys/kernel/slab/%s/shrink", cache->d_name);
		shrunk += t_write_file(path, "1");
	}
	closedir(dir);
	REQUIRE(shrunk);
}

/* Print and return the kB of unreclaimable slabs. */
static long tell_memory(const char *when)
{
	long slab = t_meminfo("SUnreclaim");

	t_note("%s: MemFree %ld kB, SUnreclaim %ld kB", when, t_meminfo("MemFree"), slab);
	return slab;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * Return the trend of @n values for one step: the median of the slopes of all pairs, which is
 * robust against outliers (Theil and Sen). Set @z to the distance of the number of rising pairs
 * from that of chance, in standard deviations (Mann and Kendall).
 */
static double trend(const long *values, int n, double *z)
{
	static double slopes[ROUNDS_MAX * ROUNDS_MAX / 2];
	int pairs = 0, rising = 0;

	for (int i = 0; i < n; i++) {
		for (int j = i + 1; j < n; j++) {
			slopes[pairs++] = (double)(values[j] - values[i]) / (j - i);
			rising += (values[j] > values[i]) - (values[j] < values[i]);
		}
	}
	qsort(slopes, pairs, sizeof(slopes[0]), by_value);
	*z = rising / sqrt(n * (n - 1.0) * (2 * n + 5) / 18);
	return slopes[pairs / 2];
}

/* Test whether memory shrinks by more than noise explains, and by a relevant amount. */
static bool shrinks(const long *values, int n)
{
	double z, slope = trend(values, n, &z);

	t_note("MemFree: %+.1f kB a round, %+.1f standard deviations", slope, z);
	return slope * n < -LOST_MAX && z < -3;
}

TEST(judge, "a leak of 200 kB a round differs from noise of 2 MB, and noise is no leak")
{
	long noise[ROUNDS_MAX], leak[ROUNDS_MAX];
	unsigned int seed = 1;

	for (int i = 0; i < ROUNDS_MAX; i++) {
		noise[i] = 1000000 + t_random(&seed) % 2048;
		leak[i] = noise[i] - 200 * i;
	}
	CHECK(!shrinks(noise, ROUNDS_MAX));
	CHECK(shrinks(leak, ROUNDS_MAX));
}

TEST(storm, "hundreds of processes killed at random moments leave nothing behind")
{
	const char *given = getenv("TMESH_SEED");
	unsigned int seed = given ? strtoul(given, NULL, 0) | 1 : 20261121;
	int dev = t_dev(), rounds = t_length(6, ROUNDS_MAX);
	long memory[ROUNDS_MAX], slab;

	if (t_full())
		alarm(3000);
	foreign = vgem_buffer(open_vgem(), 16 * PAGE, DRM_RDWR);
	fuzz_mount();
	armed = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(armed != MAP_FAILED);
	t_note("seed %u: %d rounds of %d kills", seed, rounds, KILLS);
	/*
	 * Run some rounds first: memory that is allocated at the first use is no leak. Nor is the
	 * growth of KASAN's quarantine until it is full, if the trend is checked.
	 */
	for (int i = 0; i < (rounds == ROUNDS_MAX ? ROUNDS_MAX / 2 : 1); i++) {
		storm(&seed);
		t_drop_kept();
		check_empty(dev);
	}
	free_memory();
	slab = tell_memory("before the first round");
	for (int i = 0; i < rounds && !t_failed(); i++) {
		storm(&seed);
		t_drop_kept();
		check_empty(dev);
		memory[i] = free_memory();
		if (i == rounds / 2)
			tell_memory("in the middle");
	}
	tell_memory("in the end");
	fuzz_unmount();
	t_note("%lu had a lease, a pin, views, imports and a fence", *armed);
	CHECK(*armed);
	if (!t_failed() && rounds == ROUNDS_MAX) {
		CHECK(!shrinks(memory, rounds));
		shrink_slab();
		CHECK(tell_memory("the same with slab caches shrunk") - slab < LOST_MAX);
	}
}
