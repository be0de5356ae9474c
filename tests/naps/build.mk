# SPDX-License-Identifier: MIT
#
# The C programs' suites once more, while threads sleep where others do not expect it.

NAPS        := $(B)/tests/naps/naps.so
NAPS_SUITES := unit-check model-check net-check engine-check

# It defines poll() itself: fortified headers would have it inline.
$(NAPS): tests/naps/naps.c
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -U_FORTIFY_SOURCE -std=gnu11 -shared -fPIC -o $@ $< -ldl

naps-check: $(NAPS) ## Run the C suites while threads sleep at random before calls.
	@status=0; for suite in $(NAPS_SUITES); do \
		$(MAKE) -s --no-print-directory PRELOADED=LD_PRELOAD=$(abspath $(NAPS)) $$suite || status=1; done; exit $$status

.PHONY: naps-check
