# SPDX-License-Identifier: MIT
#
# The module's source, looked at by the kernel's tools.

kmod-lint: ## sparse, checkpatch, kernel-doc, clang and Coccinelle on the module
	@tests/lint/kmod.py

kmod-check: ## of kmod-lint, what takes less than two minutes
	@tests/lint/kmod.py --quick

.PHONY: kmod-lint kmod-check
