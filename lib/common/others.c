// SPDX-License-Identifier: MIT
/* Other holders of a region, for messages. */
#include <stdio.h>
#include <unistd.h>

#include "others.h"

void tmesh_name_others(const struct tmesh_holder_info *holders, size_t count, const char *none,
		       char *text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < count && used < size; i++)
		if (holders[i].pid != getpid())
			used += (size_t)snprintf(text + used, size - used, "%s%d (%.15s)",
						 used ? ", " : "", (int)holders[i].pid,
						 holders[i].command);
	if (!used)
		snprintf(text, size, "%s", none);
}
