# SPDX-License-Identifier: MIT
#
# tmeshctl as a user meets it, on the memfd backend.

TOOLS_TESTS := tmeshctl regions inspect terminal mount

tools-check: tools keeper $(ENGINE_PLUGINS) ## Test tmeshctl, its completion and the man pages.
	@status=0; for part in $(TOOLS_TESTS); do \
		$(PYTHON) -B tests/tools/test_$$part.py $(B)/tmeshctl $(B)/man || status=1; \
	done; exit $$status

.PHONY: tools-check
