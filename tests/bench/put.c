// SPDX-License-Identifier: MIT
/*
 * Putting 100 MB into a warm region of the pool, into new memory as it comes, and into new memory
 * with a demand for huge pages. Copying them with memcpy() and with `rep movsb`, from and to memory
 * touched before, stands beside. Releasing the tensor is not timed.
 */
#include "harness.h"

#define TOPIC "put"
#define BYTES 100000000

static const int64_t shape[] = {BYTES};
static struct tmesh_error err;
static uint8_t *source, *target;

static struct tmesh_tensor *copy_memcpy(void)
{
	memcpy(target, source, BYTES);
	return NULL;
}

static struct tmesh_tensor *copy_movsb(void)
{
	void *to = target;
	const void *from = source;
	size_t count = BYTES;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
	return NULL;
}

static struct tmesh_ctx *pooled, *poolless;

static struct tmesh_tensor *put(struct tmesh_ctx *ctx, uint32_t flags)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts),
					 .flags = flags | TMESH_REGION_UNSEALED};
	struct tmesh_tensor *tensor;

	must(tmesh_tensor_put(ctx, TMESH_UINT8, 1, shape, source, &opts, &tensor, &err), &err);
	return tensor;
}

static struct tmesh_tensor *put_warm(void)
{
	return put(pooled, 0);
}

static struct tmesh_tensor *put_cold(void)
{
	return put(poolless, 0);
}

static struct tmesh_tensor *put_huge(void)
{
	return put(poolless, TMESH_REGION_HUGE);
}

/* Why new memory cannot come in huge pages here, or NULL when it can. */
static const char *no_huge_pages(void)
{
	static char reason[sizeof(err.message) + 16];
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_HUGE};
	struct tmesh_region *region;

	if (tmesh_region_create(poolless, 2 * MIB, &opts, &region, &err) < 0) {
		snprintf(reason, sizeof(reason), "%s", err.message);
		return reason;
	}
	tmesh_region_unref(region);
	return NULL;
}

static struct way {
	struct tmesh_tensor *(*run)(void);
	struct series series;
} ways[] = {
	{copy_memcpy, {.name = "memcpy-warm"}}, {copy_movsb, {.name = "movsb-warm"}},
	{put_warm, {.name = "put-warm"}},	{put_cold, {.name = "put-cold"}},
	{put_huge, {.name = "put-cold-huge"}},
};

#define WAYS (sizeof(ways) / sizeof(ways[0]))

static uint8_t *warm_memory(void)
{
	uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		die("no memory");
	memset(memory, 1, BYTES);
	return memory;
}

void bench_put(int rounds)
{
	struct series *huge = &ways[WAYS - 1].series;

	pin_to(CPU_PRODUCER);
	source = warm_memory();
	target = warm_memory();
	pooled = context(2 * (uint64_t)BYTES);
	poolless = context(0);
	huge->skipped = no_huge_pages();

	for (int round = -warm_up(rounds); round < rounds; round++) {
		for (size_t i = 0; i < WAYS; i++) {
			struct tmesh_tensor *tensor;
			uint64_t start;

			if (ways[i].series.skipped)
				continue;
			start = now_ns();
			tensor = ways[i].run();
			if (round >= 0)
				series_add(&ways[i].series, now_ns() - start);
			tmesh_tensor_unref(tensor);
		}
	}
	for (size_t i = 0; i < WAYS; i++)
		series_print(TOPIC, &ways[i].series);
	tmesh_ctx_unref(pooled);
	tmesh_ctx_unref(poolless);
	munmap(source, BYTES);
	munmap(target, BYTES);
}
