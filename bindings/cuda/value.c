// SPDX-License-Identifier: MIT
/*
 * Order for processes that cannot open a producer's event, since only those with the same /dev/shm
 * can. Each device has a region of pairs of numbers, registered with the driver. A share counts up
 * the memory's first number, and its stream writes the second one when it has come so far
 * (cuStreamWriteValue64). The region's token is in the memory's description.
 *
 * A consumer's host waits for the second number, and this is logged and counted. Its stream could
 * wait as well (cuStreamWaitValue64), but nothing ends such a wait if the producer dies.
 */
#include "internal.h"

#include <time.h>

#define PAIRS 4096u
#define WORDS (PAIRS / 64)

struct pair {
	uint64_t recorded; /* written by the host, after the share's work was queued */
	uint64_t reached;  /* written by the stream */
};

struct values {
	struct tmesh_region *region;
	struct registration *registration;
	struct pair *pairs;
	cu_ptr pointer;
	char token[TMESH_TOKEN_SIZE];
	uint64_t taken[WORDS]; /* a bit for each pair; under the lock */
};

static uint64_t load(const uint64_t *number)
{
	return __atomic_load_n(number, __ATOMIC_ACQUIRE);
}

/* Register the region, so that streams of the device write to it. */
static int values_register(struct tmesh_cuda *cuda, int device, struct values *values,
			   struct tmesh_error *err)
{
	const struct tmesh_cuda_register_opts opts = {.device = device};
	int rc = registration_get(cuda, values->region, TMESH_READ | TMESH_WRITE,
				  CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP, &opts,
				  &values->registration, err);

	if (rc)
		return rc;
	rc = registration_pointer(cuda, values->registration, device, &values->pointer, err);
	if (rc)
		registration_drop(cuda, values->registration);
	else
		values->pairs = registration_host(values->registration);
	return rc;
}

static int values_fill(struct tmesh_cuda *cuda, int device, struct values *values,
		       struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "cuda wait values"};
	int rc = tmesh_region_create(cuda->ctx, PAIRS * sizeof(struct pair), &opts, &values->region,
				     err);

	if (rc)
		return rc;
	rc = tmesh_region_token(values->region, TMESH_READ, values->token, err);
	if (!rc)
		rc = values_register(cuda, device, values, err);
	if (rc) {
		tmesh_region_unref(values->region);
		return rc;
	}
	/* With the module, consumers learn by the region's fence that this process has ended. */
	tmesh_fence_signal(values->region, 1, NULL);
	return 0;
}

/* Return whether the device's streams can write 64-bit values. */
static bool can_write(struct tmesh_cuda *cuda, int device)
{
	int can = 0;

	return cuda->driver.write_value &&
	       !cuda->driver.device_attribute(&can, CU_ATTR_WRITE_VALUE,
					      cuda->devices[device].handle) &&
	       can;
}

/* Make the device's region for the first event. Without one, a consumer that cannot open an event
 * gets the driver's error. */
static struct values *values_of(struct tmesh_cuda *cuda, int device)
{
	struct device *d = &cuda->devices[device];
	struct tmesh_error why = {0};
	int rc;

	if (d->values || d->no_values || !can_write(cuda, device))
		return d->values;
	d->values = calloc(1, sizeof(*d->values));
	rc = d->values ? values_fill(cuda, device, d->values, &why)
		       : tmesh_fail(&why, -ENOMEM, "no memory");
	if (!rc)
		return d->values;
	cuda_log(cuda, TMESH_LOG_WARN,
		 "processes with another /dev/shm cannot wait for work of GPU %d: %s", device,
		 why.message);
	free(d->values);
	d->values = NULL;
	d->no_values = true;
	return NULL;
}

/* Find a pair of which no stream has still to write a number. */
static unsigned int take_pair(struct values *values)
{
	for (unsigned int i = 0; i < PAIRS; i++) {
		const struct pair *pair = &values->pairs[i];

		if ((values->taken[i / 64] & (1ull << i % 64)) ||
		    load(&pair->recorded) != load(&pair->reached))
			continue;
		values->taken[i / 64] |= 1ull << i % 64;
		return i + 1;
	}
	return 0;
}

void value_make(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct values *values = values_of(cuda, memory->resident);

	if (!values)
		return;
	pthread_mutex_lock(&cuda->lock);
	memory->value = take_pair(values);
	if (memory->value)
		memory->recorded = load(&values->pairs[memory->value - 1].recorded);
	pthread_mutex_unlock(&cuda->lock);
}

void value_card(const struct tmesh_cuda_memory *memory, struct card *card)
{
	card->has_value = memory->value > 0;
	if (!card->has_value)
		return;
	card->value = memory->value - 1;
	memcpy(card->values, memory->cuda->devices[memory->resident].values->token,
	       sizeof(card->values));
}

bool value_is_reached(const struct tmesh_cuda_memory *memory)
{
	const struct values *values = memory->cuda->devices[memory->resident].values;

	return memory->value && load(&values->pairs[memory->value - 1].reached) >= memory->recorded;
}

int value_write(struct tmesh_cuda_memory *memory, cu_stream stream, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	const struct values *values = cuda->devices[memory->resident].values;
	unsigned int at = memory->value - 1;
	int rc;

	if (!memory->value)
		return 0;
	rc = cuda_check(cuda,
			cuda->driver.write_value(stream,
						 values->pointer + at * sizeof(struct pair) +
							 offsetof(struct pair, reached),
						 memory->recorded + 1, 0),
			"cuStreamWriteValue64", err);
	if (rc)
		return rc;
	memory->recorded++;
	__atomic_store_n(&values->pairs[at].recorded, memory->recorded, __ATOMIC_RELEASE);
	return 0;
}

void value_end(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;
	struct device *device = &cuda->devices[memory->resident < 0 ? 0 : memory->resident];
	unsigned int at = memory->value - 1;

	tmesh_region_unref(memory->values);
	memory->values = NULL;
	if (!memory->value || memory->event_foreign)
		return;
	pthread_mutex_lock(&cuda->lock);
	device->values->taken[at / 64] &= ~(1ull << at % 64);
	pthread_mutex_unlock(&cuda->lock);
	memory->value = 0;
}

void values_end(struct tmesh_cuda *cuda, int device)
{
	struct values *values = cuda->devices[device].values;

	if (!values)
		return;
	registration_drop(cuda, values->registration);
	tmesh_region_unref(values->region);
	free(values);
	cuda->devices[device].values = NULL;
}

/* The consumer's side. */

int value_open(struct tmesh_cuda_memory *memory, const struct card *card, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = tmesh_region_open(memory->cuda->ctx, card->values, TMESH_READ, &region, err);

	if (rc)
		return rc;
	if (card->value >= tmesh_region_bytes(region) / sizeof(struct pair)) {
		tmesh_region_unref(region);
		return tmesh_fail(err, -EPROTO, "the region has no wait value %u", card->value);
	}
	memory->values = region;
	memory->value = card->value + 1;
	return 0;
}

static int read_pair(const struct tmesh_cuda_memory *memory, struct pair *pair,
		     struct tmesh_error *err)
{
	/* A producer that takes its region away causes an error and no signal. */
	return tmesh_region_read(memory->values, (memory->value - 1) * sizeof(*pair), pair,
				 sizeof(*pair), err);
}

/* Check that the producer can still come so far, and that the memory was not taken back. */
static int check(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	struct tmesh_cuda *cuda = memory->cuda;
	bool live, gone = false;

	pthread_mutex_lock(&cuda->lock);
	live = memory->state == LIVE && memory->region;
	if (live)
		gone = tmesh_region_events(memory->region) & TMESH_EVENT_ORPHANED;
	pthread_mutex_unlock(&cuda->lock);
	if (!live)
		return tmesh_fail(err, -ESTALE, "wait: the memory was taken back");
	/* With the module, the fence has a producer. */
	if (tmesh_fence_wait(memory->values, UINT64_MAX, 0, NULL, NULL) == -EOWNERDEAD)
		gone = true;
	return gone ? tmesh_fail(err, -EOWNERDEAD,
				 "wait: the producer has ended, and its work on the memory was "
				 "not done")
		    : 0;
}

int value_wait(struct tmesh_cuda_memory *memory, struct tmesh_error *err)
{
	const struct timespec moment = {.tv_nsec = 100000};
	struct tmesh_cuda *cuda = memory->cuda;
	struct pair first, now;
	int rc = read_pair(memory, &first, err);

	pthread_mutex_lock(&cuda->lock);
	cuda->devices[memory->device].stats.host_waits++;
	pthread_mutex_unlock(&cuda->lock);
	now = first;
	while (!rc && now.reached < first.recorded) {
		rc = check(memory, err);
		if (rc)
			return rc;
		nanosleep(&moment, NULL);
		rc = read_pair(memory, &now, err);
	}
	return rc;
}
