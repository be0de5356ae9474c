# SPDX-License-Identifier: MIT
#
# The protocols between processes as small models, played with seeds: thousands of histories of
# each in seconds. Needs nothing but Python.

SIM_NAMES := $(patsubst tests/sim/sim_%.py,%,$(wildcard tests/sim/sim_*.py))

sim-check: ## Simulate the protocols under thousands of seeds.
	@status=0; for name in $(SIM_NAMES); do \
		$(PYTHON) -B tests/sim/sim_$$name.py || status=1; done; exit $$status

.PHONY: sim-check
