// SPDX-License-Identifier: MIT
/* The words for what is seen of regions and their holders: docs/vocabulary.md. */
#include "internal.h"

const char *tmesh_backing_name(enum tmesh_backing backing)
{
	switch (backing) {
	case TMESH_BACKED_BY_MEMFD_BACKEND:
	case TMESH_BACKED_BY_MEMFD:
		return "memfd";
	case TMESH_BACKED_BY_PAGES:
		return "pages";
	case TMESH_BACKED_BY_USER:
		return "user";
	case TMESH_BACKED_BY_DMABUF:
		return "dmabuf";
	case TMESH_BACKED_BY_OPAQUE:
		return "descriptor";
	case TMESH_BACKED_BY_GATHER:
		return "view";
	}
	return "unknown";
}

const char *tmesh_holder_kind_name(enum tmesh_holder_kind kind)
{
	switch (kind) {
	case TMESH_HOLDER_IS_HANDLE:
		return "handle";
	case TMESH_HOLDER_IS_PINNING:
		return "pinning";
	case TMESH_HOLDER_IS_EXPORT:
		return "export";
	case TMESH_HOLDER_IS_MAPPING:
		return "mapping";
	case TMESH_HOLDER_IS_GATHER:
		return "view";
	case TMESH_HOLDER_IS_DEVICE:
		return "device";
	}
	return "unknown";
}
