# SPDX-License-Identifier: MIT
#
# The module's source, looked at by the kernel's tools.

kmod-lint: ## Check the module with sparse, checkpatch, kernel-doc, clang and Coccinelle.
	@tests/lint/kmod.py

kmod-check: ## Run the quick part of kmod-lint.
	@tests/lint/kmod.py --quick

.PHONY: kmod-lint kmod-check
