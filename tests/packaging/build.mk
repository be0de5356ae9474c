# SPDX-License-Identifier: MIT
#
# The packages. Slow checks are for TMESH_TEST_LENGTH=full: that needs root, and makes Debian roots that are kept where
# tests/vm keeps its own.

# Kubernetes' schemas. No cluster is needed.
KUBERNETES_VENV := $(B)/venv-kubernetes
KUBERNETES_VALIDATE := 1.37.0

$(KUBERNETES_VENV)/$(KUBERNETES_VALIDATE).stamp:
	@$(PYTHON) -m venv --clear $(KUBERNETES_VENV)
	@! $(KUBERNETES_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		kubernetes-validate==$(KUBERNETES_VALIDATE) || touch $@

# The part "yesterday" runs this checkout's Python package.
packaging-check: $(if $(W)$(filter full,$(TMESH_TEST_LENGTH)),$(VENV)/tmesh.stamp)
packaging-check: all $(KUBERNETES_VENV)/$(KUBERNETES_VALIDATE).stamp ## Check the packaging. TMESH_TEST_LENGTH=full builds, installs and removes the packages. W='lines trixie': one part.
	@tests/packaging/check.py $(W)

.PHONY: packaging-check
