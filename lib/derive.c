// SPDX-License-Identifier: MIT
/* Handles that are made of a handle: with fewer rights, pinning, a private view. */
#include <string.h>

#include "held.h"
#include "memfd.h"

enum derived {
	DERIVED_HANDLE,
	DERIVED_PIN,
	DERIVED_PRIVATE, /* a pin too */
};

static int derive_new(struct tmesh_region *region, uint32_t rights, enum derived what,
		      struct tmesh_region **out, struct tmesh_error *err)
{
	bool pin = what != DERIVED_HANDLE;
	int rc = tmesh_spare_files(region->ctx, err);
	struct tmesh_region *derived;

	if (rc)
		return rc;
	derived = tmesh_region_new(region->ctx, err);
	if (!derived)
		return -ENOMEM;
	derived->rights = rights;
	derived->kind = region->kind;
	derived->id = region->id;
	derived->bytes = region->bytes;
	derived->alloc = region->alloc;
	derived->sealed = region->sealed;
	derived->pinning = pin;
	derived->opts = region->opts;
	memcpy(derived->label, region->label, sizeof(derived->label));
	derived->opts.label = derived->label;
	rc = tmesh_memfd_derive_huge(derived, region);
	if (rc)
		tmesh_fail(err, rc, "no memory for a handle");
	else
		rc = region->ctx->ops->derive(derived, region, rights, pin, err);
	if (rc) {
		tmesh_region_destroy(derived);
		return rc;
	}
	if (what == DERIVED_PRIVATE) {
		derived->private = true;
		derived->sealed = false;
		derived->rights = TMESH_READ | TMESH_WRITE;
	}
	tmesh_region_set_shared(region);
	tmesh_region_publish(derived, out);
	return 0;
}

static int derive(struct tmesh_region *region, uint32_t rights, enum derived what,
		  struct tmesh_region **out, struct tmesh_error *err)
{
	int rc = derive_new(region, rights, what, out, err);

	return tmesh_region_pool_yields(region->ctx, rc)
		       ? derive_new(region, rights, what, out, err)
		       : rc;
}

/* Make a handle of the child's own from the parent's descriptor, which a forked child has. */
static int inherited_may(struct tmesh_region *region, uint32_t rights, struct tmesh_error *err)
{
	if (region->private)
		return tmesh_fail(err, -EPERM,
				  "derive: a private view was inherited through fork(), and its "
				  "pages are the parent's");
	if (rights & ~region->rights)
		return tmesh_fail(err, -EACCES,
				  "derive: the handle that was inherited through fork() has fewer "
				  "rights");
	return tmesh_ctx_enter(region->ctx, err);
}

int tmesh_region_derive(struct tmesh_region *region, uint32_t rights, struct tmesh_region **out,
			struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, out);

	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_region_inherited(region)
			     ? inherited_may(region, rights, err)
			     : tmesh_region_may(region, rights, "derive", err);
	return rc ? rc : derive(region, rights, DERIVED_HANDLE, out, err);
}

int tmesh_region_pin(struct tmesh_region *region, struct tmesh_region **out,
		     struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, out);

	if (!rc)
		rc = tmesh_region_may(region, TMESH_READ, "pin", err);
	return rc ? rc : derive(region, TMESH_READ, DERIVED_PIN, out, err);
}

int tmesh_region_private(struct tmesh_region *region, struct tmesh_region **out,
			 struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, out);

	if (!rc)
		rc = tmesh_region_may(region, TMESH_READ, "private view", err);
	if (!rc && (region->kind & TMESH_KIND_OPAQUE))
		rc = tmesh_fail(
			err, -EOPNOTSUPP,
			"private view: the region stands for a descriptor and is not mapped");
	if (!rc && !tmesh_region_is_sealed(region))
		rc = tmesh_fail(
			err, -EINVAL,
			"private view: the region is not sealed, so others may still write to it");
	return rc ? rc : derive(region, TMESH_READ, DERIVED_PRIVATE, out, err);
}
