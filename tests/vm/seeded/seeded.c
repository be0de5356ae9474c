// SPDX-License-Identifier: GPL-2.0-only
/*
 * One mistake of each kind that the debug kernel must find, to prove that the detectors work. The
 * seeded run writes the name of each mistake to /sys/module/seeded/parameters/make and requires
 * that it is reported.
 */
#include <linux/bug.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/panic.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>

/* Every mistake writes to it, so that the compiler keeps the code. */
static volatile int sink;

static void use_after_free(void)
{
	int *p = kmalloc(64, GFP_KERNEL);

	if (!p)
		return;
	OPTIMIZER_HIDE_VAR(p);
	kfree(p);
	sink = *(volatile int *)p;
}

static void out_of_bounds(void)
{
	char *p = kmalloc(60, GFP_KERNEL);

	if (!p)
		return;
	OPTIMIZER_HIDE_VAR(p);
	sink = ((volatile char *)p)[60];
	kfree(p);
}

static void abba(void)
{
	static DEFINE_MUTEX(a);
	static DEFINE_MUTEX(b);

	mutex_lock(&a);
	mutex_lock(&b);
	mutex_unlock(&b);
	mutex_unlock(&a);

	mutex_lock(&b);
	mutex_lock(&a);
	mutex_unlock(&a);
	mutex_unlock(&b);
}

static void sleep_under_spinlock(void)
{
	static DEFINE_SPINLOCK(lock);

	spin_lock(&lock);
	might_sleep();
	spin_unlock(&lock);
}

static void leak(void)
{
	void *p = kmalloc(4096, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(p);
	sink = !p;
}

static void shift(void)
{
	int bits = 40;

	OPTIMIZER_HIDE_VAR(bits);
	sink = 1 << bits;
}

static void warn(void)
{
	WARN(1, "seeded");
}

/* Panic: the last control line is missing then, and the scan must report that. */
static void die(void)
{
	panic("seeded");
}

static void dma_size(void)
{
	struct platform_device *pdev = platform_device_register_simple("seeded", -1, NULL, 0);
	dma_addr_t address;
	void *p;

	if (IS_ERR(pdev))
		return;
	p = kmalloc(4096, GFP_KERNEL);
	if (p && !dma_coerce_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64))) {
		address = dma_map_single(&pdev->dev, p, 4096, DMA_TO_DEVICE);
		if (!dma_mapping_error(&pdev->dev, address))
			dma_unmap_single(&pdev->dev, address, 2048, DMA_TO_DEVICE);
	}
	kfree(p);
	platform_device_unregister(pdev);
}

static const struct {
	const char *name;
	void (*make)(void);
} bugs[] = {
	{ "use-after-free", use_after_free },
	{ "out-of-bounds", out_of_bounds },
	{ "abba", abba },
	{ "sleep-under-spinlock", sleep_under_spinlock },
	{ "leak", leak },
	{ "shift", shift },
	{ "warn", warn },
	{ "dma-size", dma_size },
	{ "panic", die },
};

static int make_set(const char *value, const struct kernel_param *kp)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bugs); i++) {
		if (sysfs_streq(value, bugs[i].name)) {
			bugs[i].make();
			return 0;
		}
	}
	return -EINVAL;
}

static const struct kernel_param_ops make_ops = { .set = make_set };

module_param_cb(make, &make_ops, NULL, 0200);
MODULE_PARM_DESC(make, "the mistake to make");

static int __init seeded_init(void)
{
	return 0;
}

static void __exit seeded_exit(void)
{
}

module_init(seeded_init);
module_exit(seeded_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Mistakes made on purpose, for the test machinery of tmesh");
