# SPDX-License-Identifier: MIT

demo-check: ## run the demo and check what it prints
	@$(PYTHON) -B tests/demo/check.py

.PHONY: demo-check
