// SPDX-License-Identifier: GPL-2.0-only
/* The switches of guards. They are a module of their own, so that they outlive tmesh when tests
 * load it again. */
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "mutants.h"

unsigned int tmesh_mutant;
EXPORT_SYMBOL_GPL(tmesh_mutant);
module_param_named(out, tmesh_mutant, uint, 0600);
MODULE_PARM_DESC(out, "The guard that is out");

u8 tmesh_mutants_met[TMESH_MUTANTS];
EXPORT_SYMBOL_GPL(tmesh_mutants_met);

static int forget(const char *value, const struct kernel_param *param)
{
	memset(tmesh_mutants_met, 0, sizeof(tmesh_mutants_met));
	return 0;
}

static int tell(char *buffer, const struct kernel_param *param)
{
	int used = 0;

	for (int i = 0; i < TMESH_MUTANTS; i++)
		if (READ_ONCE(tmesh_mutants_met[i]))
			used += scnprintf(buffer + used, PAGE_SIZE - used, "%d ", i);
	used += scnprintf(buffer + used, PAGE_SIZE - used, "\n");
	return used;
}

static const struct kernel_param_ops met = {
	.set = forget,
	.get = tell,
};
module_param_cb(met, &met, NULL, 0600);
MODULE_PARM_DESC(met, "The guards that were true since this was written to");

MODULE_DESCRIPTION("Switches for guards of tmesh");
MODULE_LICENSE("GPL");
