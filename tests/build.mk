# SPDX-License-Identifier: MIT
#
# Every suite is a target that prints TAP; tests/run.py runs them and totals them.

SUITES = runner-check unit-check unit-asan-check unit-valgrind-check fuzz-check tools-check cuda-check \
	 python-check python-arrow-check beam-check readme-check packaging-check demo-check \
	 kmod-check $(VM_SUITES)

SUITES_FULL = $(SUITES) beam-dialyzer unit-tsan-check kmod-lint $(VM_SUITES_FULL)

check: check-deps ## run the tests: on this machine and in real kernels (at most 45 minutes)
	tests/run.py --length short $(SUITES)

check-full: check-deps ## the same at length, in more kernels (RESUME=1: what has not passed yet)
	tests/run.py --length full $(if $(RESUME),--resume) $(SUITES_FULL)

check-report: ## each suite's last result, without running any
	@tests/run.py --report $(SUITES_FULL)

check-deps:
	packaging/deps.sh check

runner-check: ## the test runner's own tests
	@$(PYTHON) tests/test_run.py

readme-check: ## install, the README's examples, uninstall
	@$(PYTHON) tests/readme.py

.PHONY: check check-full check-report check-deps runner-check readme-check
