# SPDX-License-Identifier: MIT
#
# The pages as a site, with references of Python and Elixir: build/site/html.

SITE      := $(B)/site
SITE_VENV := $(B)/venv-site
MKDOCS_VERSION := 1.6.1
MKDOCSTRINGS_PYTHON := 2.0.11

$(SITE_VENV)/site.stamp:
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/pip install --quiet --disable-pip-version-check mkdocs==$(MKDOCS_VERSION) \
		mkdocstrings-python==$(MKDOCSTRINGS_PYTHON)
	@touch $@

docs: beam $(SITE_VENV)/site.stamp ## [Build] Build the documentation as a site: build/site/html.
	@$(PYTHON) -B docs/site/stage.py $(SITE)/pages $(B)/beam/dev/lib/tmesh/ebin
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs --quiet build --strict --config-file docs/site/mkdocs.yml --site-dir $(abspath $(SITE)/html)
	@echo "the site is in $(SITE)/html/index.html"

.PHONY: docs
