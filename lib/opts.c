// SPDX-License-Identifier: MIT
/* Callers' options for regions and tensors, and rights, checked. */
#include "internal.h"

int tmesh_check_rights(uint32_t rights, struct tmesh_error *err)
{
	if (rights & ~(uint32_t)TMESH_RIGHTS_ALL)
		return tmesh_fail(err, -EINVAL, "unknown rights 0x%x", rights);
	if (!(rights & TMESH_READ))
		return tmesh_fail(err, -EINVAL,
				  "rights 0x%x lack TMESH_READ, which every handle has; add it",
				  rights);
	return 0;
}

int tmesh_refuse_sealed(const struct tmesh_region *region, uint32_t rights, struct tmesh_error *err)
{
	if (!(rights & TMESH_WRITE) || !region->sealed)
		return 0;
	return tmesh_fail(err, -EPERM,
			  "open: region %016llx is sealed, and no process can write to it any "
			  "more; open it for reading",
			  (unsigned long long)region->id);
}

int tmesh_refuse_rights(const struct tmesh_region *region, uint32_t rights, uint32_t granted,
			struct tmesh_error *err)
{
	uint32_t missing = rights & ~granted;

	if (!missing)
		return 0;
	return tmesh_refuse_sealed(region, missing, err)
		       ?: tmesh_fail_rights(err, "the token", missing);
}

int tmesh_fail_rights(struct tmesh_error *err, const char *what, uint32_t rights)
{
	return tmesh_fail(err, -EACCES,
			  "%s does not give all the rights asked for; ask its producer for another "
			  "one%s",
			  what,
			  rights & TMESH_WRITE
				  ? ": if the memory is sealed, no process can write to it"
				  : "");
}

int tmesh_refuse_sealed_gift(struct tmesh_region *region, uint32_t rights, const char *what,
			     struct tmesh_error *err)
{
	if (!(rights & TMESH_WRITE) || !tmesh_region_is_sealed(region))
		return 0;
	return tmesh_fail(err, -EPERM,
			  "%s: region %016llx is sealed, and its receiver could not write to "
			  "it; give it for reading",
			  what, (unsigned long long)region->id);
}

int tmesh_refuse_description(const struct tmesh_region *region, struct tmesh_error *err)
{
	return tmesh_fail(err, -EPERM,
			  "describe: region %016llx is sealed; describe a region before its seal",
			  (unsigned long long)region->id);
}

int tmesh_check_mode(uint32_t mode, struct tmesh_error *err)
{
	if ((mode & ~0660u) || !(mode & 0400))
		return tmesh_fail(err, -EINVAL,
				  "mode 0%o is not made of 0400, 0200, 0040 and 0020 with 0400",
				  mode);
	return 0;
}

#define REGION_FLAGS                                                                      \
	((uint32_t)(TMESH_REGION_HUGE | TMESH_REGION_TRY_HUGE | TMESH_REGION_NODE |       \
		    TMESH_REGION_GID | TMESH_REGION_NO_PIN | TMESH_REGION_UNINITIALIZED | \
		    TMESH_REGION_UNSEALED | TMESH_REGION_REUSE))

static int check_region_opts(struct tmesh_region_opts *out, struct tmesh_error *err)
{
	int rc;

	if (out->flags & ~REGION_FLAGS)
		return tmesh_fail(err, -EINVAL, "unknown region flags 0x%x",
				  out->flags & ~REGION_FLAGS);
	if ((out->flags & TMESH_REGION_HUGE) && (out->flags & TMESH_REGION_TRY_HUGE))
		return tmesh_fail(err, -EINVAL,
				  "flags 0x%x: TMESH_REGION_HUGE and TMESH_REGION_TRY_HUGE exclude "
				  "each other; set one of them",
				  out->flags);
	if (!(out->flags & TMESH_REGION_NODE))
		out->node = -1;
	else if (out->node < 0 || out->node >= 1024)
		return tmesh_fail(err, -EINVAL, "there is no NUMA node %d", out->node);
	if (!(out->flags & TMESH_REGION_GID))
		out->gid = 0;
	if (out->mode == 0)
		out->mode = 0600;
	rc = tmesh_check_mode(out->mode, err);
	if (rc)
		return rc;
	if (out->hold_ms > 1000)
		return tmesh_fail(err, -EINVAL, "hold_ms is %u; 1000 is the most", out->hold_ms);
	if (!out->label)
		out->label = "";
	return tmesh_check_label(out->label, err);
}

int tmesh_read_region_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (!rc && out->arena)
		rc = tmesh_fail(err, -EINVAL, "an arena holds tensors, not regions");
	if (!rc)
		rc = check_region_opts(out, err);
	out->size = sizeof(*out);
	out->flags &= ~(uint32_t)TMESH_REGION_UNSEALED;
	return rc;
}

int tmesh_read_tensor_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	out->size = sizeof(*out);
	if (!out->arena)
		return check_region_opts(out, err);
	if (out->flags & ~(uint32_t)TMESH_REGION_UNSEALED || out->mode || out->gid || out->node ||
	    out->hold_ms || out->label)
		return tmesh_fail(
			err, -EINVAL,
			"a tensor in an arena has what the arena was made with: give no "
			"flags but UNSEALED, mode, gid, node, hold_ms or label beside it");
	return 0;
}
