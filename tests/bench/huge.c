// SPDX-License-Identifier: MIT
/*
 * Putting 100 MB into new memory, sealed, beside memcpy() into new memory of small and of huge
 * pages. The memory that is copied has been touched before. Releasing is not timed. Another series
 * has the time of fresh memory of 1000 MiB in small and in huge pages.
 */
#include "harness.h"

#define BYTES 100000000
#define FRESH ((size_t)1000 << 20)
#define ROUNDS 5
#define HUGE_BYTES ((size_t)2 << 20)

static struct tmesh_error err;

/* Return how much of the process's memory of its own lies in huge pages. */
static unsigned long anon_huge_kib(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	unsigned long kib = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

static unsigned long memcpy_fresh(const void *source, int advice, struct series *series)
{
	size_t room = BYTES + HUGE_BYTES;
	uint64_t start = now_ns();
	void *memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned long kib;

	if (memory == MAP_FAILED)
		die("no memory");
	madvise(memory, room, advice);
	memcpy((uint8_t *)memory + (-(uintptr_t)memory & (HUGE_BYTES - 1)), source, BYTES);
	series_add(series, now_ns() - start);
	kib = anon_huge_kib();
	munmap(memory, room);
	return kib;
}

/* The machine's time to give memory: long if a host has to find it first. */
static void fresh(int advice, struct series *series)
{
	uint64_t start = now_ns();
	void *memory =
		mmap(NULL, FRESH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("no memory");
	madvise(memory, FRESH, advice);
	for (size_t at = 0; at < FRESH; at += 4096)
		((volatile uint8_t *)memory)[at] = 1;
	series_add(series, now_ns() - start);
	munmap(memory, FRESH);
}

static void put(struct tmesh_ctx *ctx, const void *source, struct series *series)
{
	const int64_t shape[] = {BYTES};
	struct tmesh_tensor *tensor;
	uint64_t start = now_ns();

	must(tmesh_tensor_put(ctx, TMESH_UINT8, 1, shape, source, NULL, &tensor, &err), &err);
	series_add(series, now_ns() - start);
	tmesh_tensor_unref(tensor);
}

int main(void)
{
	struct series ours = {.name = "put"}, small = {.name = "memcpy-small"},
		      huge = {.name = "memcpy-huge"}, fresh_small = {.name = "fresh-small"},
		      fresh_huge = {.name = "fresh-huge"};
	struct tmesh_ctx *ctx = context(0);
	uint8_t *source = malloc(BYTES);
	unsigned long kib = 0, before;

	pin_to(CPU_PRODUCER);
	if (!source)
		die("no memory");
	memset(source, 1, BYTES);
	before = anon_huge_kib();
	for (int round = -1; round < ROUNDS; round++) {
		if (!round)
			ours.n = small.n = huge.n = 0;
		put(ctx, source, &ours);
		memcpy_fresh(source, MADV_NOHUGEPAGE, &small);
		kib = memcpy_fresh(source, MADV_HUGEPAGE, &huge) - before;
	}
	/* Measure again, as a host has to find the memory for the first run. */
	for (int round = 0; round < 2; round++) {
		fresh_small.n = fresh_huge.n = 0;
		fresh(MADV_NOHUGEPAGE, &fresh_small);
		fresh(MADV_HUGEPAGE, &fresh_huge);
	}
	series_print("huge", &fresh_small);
	series_print("huge", &fresh_huge);
	series_print("huge", &ours);
	series_print("huge", &small);
	series_print("huge", &huge);
	printf("{\"topic\": \"huge\", \"name\": \"in-huge-pages\", \"value\": %lu, \"unit\": "
	       "\"KiB\"}\n",
	       kib);
	tmesh_ctx_unref(ctx);
	free(source);
	return 0;
}
