// SPDX-License-Identifier: MIT
/* Names for people, which terminals show: no controls, no broken UTF-8. */
#include "label.h"

#include <errno.h>
#include <string.h>

#include "error.h"
#include "utf8.h"

int tmesh_check_label(const char *label, struct tmesh_error *err)
{
	size_t bytes = strnlen(label, TMESH_LABEL_LEN + 1);
	size_t good;

	if (bytes > TMESH_LABEL_LEN)
		return tmesh_fail(err, -EINVAL, "the label is longer than %d bytes",
				  TMESH_LABEL_LEN);
	good = tmesh_utf8_span(label, bytes, false);
	if (good < bytes)
		return tmesh_fail(err, -EINVAL,
				  "the label is not UTF-8 without control characters "
				  "(byte %zu)",
				  good);
	return 0;
}
