# SPDX-License-Identifier: MIT

demo-check: ## Run the demo and check its output.
	@$(PYTHON) -B tests/demo/check.py

.PHONY: demo-check
