// SPDX-License-Identifier: MIT
/*
 * Rates measured on a file system, for loads within the next hour: a measurement reads a part of
 * the file in each way. They are stored in the runtime directory, by device and backend. They
 * decide between two ways that read the same bytes, so a wrong rate costs only time.
 */
#include "common/file_size.h"
#include "model_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x3174617264746d74ull /* "tmtdrat1" */
#define VALID_NS (UINT64_C(3600) * 1000000000)
#define SLACK_NS (UINT64_C(5) * 1000000000)
#define RATE_MAX (UINT64_C(1) << 44)

struct rates {
	uint64_t magic;
	uint64_t dev;
	uint64_t boot_ns,
		real_ns; /* when: by two clocks, whose difference is another after a boot */
	uint64_t direct, buffered;
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int open_rates(const struct load *load, int flags)
{
	char name[64];
	int dir, fd;

	if (tmesh_ctx_runtime_dir(load->ctx, &dir, NULL))
		return -1;
	snprintf(name, sizeof(name), "rates-%llx-%d", (unsigned long long)load->model->files[0].dev,
		 (int)tmesh_ctx_backend(load->ctx));
	fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	close(dir);
	if (fd >= 0 && !model_is_ours(fd)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool rates_recall(const struct load *load, uint64_t *direct, uint64_t *buffered, uint64_t *age_ns)
{
	uint64_t boot = clock_ns(CLOCK_BOOTTIME), real = clock_ns(CLOCK_REALTIME), other;
	struct rates rates;
	int fd = open_rates(load, O_RDONLY);
	ssize_t got;

	if (fd < 0)
		return false;
	got = pread(fd, &rates, sizeof(rates), 0);
	close(fd);
	if (got != (ssize_t)sizeof(rates) || rates.magic != MAGIC ||
	    rates.dev != load->model->files[0].dev || rates.boot_ns > boot || rates.real_ns > real)
		return false;
	*age_ns = boot - rates.boot_ns;
	other = real - rates.real_ns;
	if (*age_ns > VALID_NS || other > *age_ns + SLACK_NS || *age_ns > other + SLACK_NS)
		return false;
	*direct = rates.direct;
	*buffered = rates.buffered;
	return *direct && *buffered && *direct <= RATE_MAX && *buffered <= RATE_MAX;
}

void rates_remember(const struct load *load, uint64_t direct, uint64_t buffered)
{
	const struct rates rates = {
		.magic = MAGIC,
		.dev = load->model->files[0].dev,
		.boot_ns = clock_ns(CLOCK_BOOTTIME),
		.real_ns = clock_ns(CLOCK_REALTIME),
		.direct = direct,
		.buffered = buffered,
	};
	int fd = open_rates(load, O_RDWR | O_CREAT);

	if (fd < 0)
		return;
	/* Without it the next measures again. */
	if (tmesh_pwrite(fd, &rates, sizeof(rates), 0) < 0) {
		close(fd);
		return;
	}
	close(fd);
}

void rates_correct(const struct load *load, bool direct, uint64_t rate)
{
	off_t at = direct ? offsetof(struct rates, direct) : offsetof(struct rates, buffered);
	int fd = open_rates(load, O_RDWR);
	struct rates rates;

	if (fd < 0)
		return;
	/* The other values keep their age. */
	if (pread(fd, &rates, sizeof(rates), 0) == (ssize_t)sizeof(rates) &&
	    tmesh_pwrite(fd, &rate, sizeof(rate), at) < 0)
		rate = 0;
	close(fd);
}
