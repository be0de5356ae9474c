# SPDX-License-Identifier: MIT
#
# The packages. What is slow is for TMESH_TEST_LENGTH=full: it needs root, and makes Debian
# roots that are kept where tests/vm keeps its own.

packaging-check: ## check the packaging (TMESH_TEST_LENGTH=full: build, install, remove the packages)
	@tests/packaging/check.py

.PHONY: packaging-check
