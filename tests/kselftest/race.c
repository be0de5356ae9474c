// SPDX-License-Identifier: MIT
/*
 * The work of threads on a region in a race.
 */
#include <linux/dma-buf.h>

#include "drm.h"
#include "race.h"

bool stopped(const struct subject *s)
{
	return __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE);
}

unsigned int own_seed(struct subject *s)
{
	return __atomic_add_fetch(&s->seed, 0x9e3779b9, __ATOMIC_RELAXED) | 1;
}

void *map(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		unsigned char *p =
			t_map(s->handle, RACE_BYTES, t_random(&seed) % 2 ? RW : PROT_READ);
		/*
		 * Make no hole at the beginning: it would join the free range before it. Another
		 * thread's mapping, say a stack, could then reach into it before the whole range is
		 * unmapped.
		 */
		size_t at = (1 + t_random(&seed) % (RACE_BYTES / PAGE - 5)) * PAGE;

		if (p == MAP_FAILED)
			continue;
		t_read(p + at);
		mprotect(p + at, 2 * PAGE, t_random(&seed) % 2 ? PROT_READ : RW);
		t_write(p + at + PAGE, 1);
		munmap(p + at, PAGE);
		munmap(p, RACE_BYTES);
	}
	return NULL;
}

void *export(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		__u32 flags = t_random(&seed) % 4 ? TMESH_EXPORT_WRITE : 0;
		size_t at = t_random(&seed) % (RACE_BYTES / PAGE / 2) * PAGE;
		int fd = t_export(s->handle, at, RACE_BYTES / 2, flags), gem = -1;
		struct dma_buf_sync sync = {.flags = DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW};
		unsigned char *p;

		if (fd < 0)
			continue;
		if (s->vgem >= 0 && t_random(&seed) % 2)
			gem = vgem_import(s->vgem, fd);
		p = t_map(fd, RACE_BYTES / 2, flags ? RW : PROT_READ);
		ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
		if (p != MAP_FAILED) {
			t_read(p + t_random(&seed) % (RACE_BYTES / 2));
			t_write(p + t_random(&seed) % (RACE_BYTES / 2), 1);
		}
		sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
		ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
		close(fd);
		if (p != MAP_FAILED)
			munmap(p, RACE_BYTES / 2);
		if (gem >= 0)
			vgem_close(s->vgem, gem);
	}
	return NULL;
}

void start(struct subject *s, void *(*const work[])(void *), pthread_t *threads, int n)
{
	for (int i = 0; i < n; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, work[i], s));
}

void stop(struct subject *s, pthread_t *threads, int n)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELEASE);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

void pause_a_little(unsigned int *seed)
{
	usleep(500 + t_random(seed) % 4000);
}
