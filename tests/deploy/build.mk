# SPDX-License-Identifier: MIT
#
# The pages of docs/howto/deploy, followed in guests with a real systemd. Needs root, as tests/vm does.

deploy-check: ## [Test] Follow the pages of docs/howto/deploy in a Debian 13 with systemd. W='container systemd' or 'guest systemd': one page.
	@tests/deploy/check.py $(W)

.PHONY: deploy-check
