# SPDX-License-Identifier: MIT
#
# tmeshctl as a user meets it, on the memfd backend.

tools-check: tools ## test tmeshctl, its completion and the man pages
	@$(PYTHON) tests/tools/test_tmeshctl.py $(B)/tmeshctl $(B)/man

.PHONY: tools-check
