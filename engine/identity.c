// SPDX-License-Identifier: MIT
#include "identity.h"

#include <string.h>
#include <sys/stat.h>

int memory_identify(struct tmesh_region *region, struct memory_identity *out,
		    struct tmesh_error *err)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	int rc = tmesh_region_info(region, &info, err), fd;
	struct stat st;

	if (rc)
		return rc;
	/* The module assigns ids. All its handles share one inode, so that cannot identify
	 * memory. */
	*out = (struct memory_identity){.memory = info.id};
	if (info.backend != TMESH_BACKEND_MEMFD)
		return 0;
	fd = tmesh_region_fd(region);
	if (fd < 0)
		return tmesh_fail(err, fd, "a region's memory cannot be identified: %s",
				  strerror(-fd));
	if (fstat(fd, &st))
		return tmesh_fail_errno(err, "identifying a region's memory");
	out->device = st.st_dev;
	out->memory = st.st_ino;
	return 0;
}

bool memory_is_same(struct tmesh_region *left, struct tmesh_region *right)
{
	struct memory_identity a, b;

	if (left == right)
		return true;
	return tmesh_region_id(left) == tmesh_region_id(right) &&
	       !memory_identify(left, &a, NULL) && !memory_identify(right, &b, NULL) &&
	       a.device == b.device && a.memory == b.memory;
}
