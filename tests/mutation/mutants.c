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

bool tmesh_mutant_inverted;
EXPORT_SYMBOL_GPL(tmesh_mutant_inverted);
module_param_named(inverted, tmesh_mutant_inverted, bool, 0600);
MODULE_PARM_DESC(inverted, "Whether it is inverted, and else false");

u8 tmesh_mutants_met[TMESH_MUTANTS];
EXPORT_SYMBOL_GPL(tmesh_mutants_met);

static int forget(const char *value, const struct kernel_param *param)
{
	memset(tmesh_mutants_met, 0, sizeof(tmesh_mutants_met));
	return 0;
}

/* Numbers of the guards that had the value that this parameter is about. A page has room for some
 * 800. */
static int tell(char *buffer, const struct kernel_param *param)
{
	u8 what = *(const u8 *)param->arg;
	int used = 0;

	for (int i = 0; i < TMESH_MUTANTS; i++)
		if (READ_ONCE(tmesh_mutants_met[i]) & what)
			used += scnprintf(buffer + used, PAGE_SIZE - used, "%x ", i);
	used += scnprintf(buffer + used, PAGE_SIZE - used, "\n");
	return used;
}

static const struct kernel_param_ops met = {
	.set = forget,
	.get = tell,
};
static const u8 is_false = BIT(0), is_true = BIT(1);
module_param_cb(met, &met, (void *)&is_true, 0600);
MODULE_PARM_DESC(met, "The guards that were true since this was written to");
module_param_cb(passed, &met, (void *)&is_false, 0600);
MODULE_PARM_DESC(passed, "... that were false");

MODULE_DESCRIPTION("Switches for guards of tmesh");
MODULE_LICENSE("GPL");
