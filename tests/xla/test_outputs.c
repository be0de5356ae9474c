// SPDX-License-Identifier: MIT
/* On failure, out-parameters of libtmesh-xla keep their values, as tests/unit/test_outputs.c shows
 * for libtmesh. */
#include "unit.h"

#include "outputs.h"

#include <tmesh/xla.h>

UNIT(test_stats)
{
	struct tmesh_stats stats = {.size = 4, .copies = 7};

	FAILS(tmesh_xla_stats, -EINVAL, &stats, err);
	assert_int_equal(stats.copies, 7);
}

UNIT_MAIN("xla outputs", NULL, NULL)
