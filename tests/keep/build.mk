# SPDX-License-Identifier: MIT
#
# Kept regions from outside: the keeper under a stand-in for systemd, tmeshctl's verbs, and the
# protocol as a small model under seeds.

keep-check: tools keeper ## kept regions: the keeper killed and restarted, tmeshctl keep, the model
	@status=0; $(PYTHON) -B tests/sim/keep.py || status=1; \
	$(PYTHON) -B tests/keep/test_keep.py $(abspath $(B)) || status=1; exit $$status

.PHONY: keep-check
