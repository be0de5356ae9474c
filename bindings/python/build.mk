# SPDX-License-Identifier: MIT
#
# The Python package, installed into a virtual environment that sees the system's NumPy and
# PyTorch. The extension compiles the library in, so it depends on the library's sources.

PYTHON_DIR     := bindings/python
PYTHON_SOURCES := $(wildcard $(PYTHON_DIR)/*.toml $(PYTHON_DIR)/*.py $(PYTHON_DIR)/ext/* \
		    $(PYTHON_DIR)/tmesh/* $(PYTHON_DIR)/tmesh/worker/* lib/*.c lib/*.h include/*/*.h include/uapi/*/*.h) VERSION

python: $(VENV)/tmesh.stamp ## build the Python package into build/venv

$(VPYTHON):
	$(PYTHON) -m venv --system-site-packages $(VENV)

# setuptools and wheel come from the system where they are there; else pip fetches them.
$(VENV)/tmesh.stamp: $(VPYTHON) $(PYTHON_SOURCES)
	$(VPYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
		$$($(VPYTHON) -c 'import setuptools, wheel' 2>/dev/null && echo --no-build-isolation) \
		./$(PYTHON_DIR)
	@touch $@

# Without mypy the test of the stubs is skipped, and says so.
$(VENV)/mypy.stamp: $(VPYTHON)
	@$(VPYTHON) -c 'import mypy' 2>/dev/null || \
		$(VPYTHON) -m pip install --quiet --disable-pip-version-check mypy || true
	@touch $@

python-check: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp ## the Python package's tests, as TAP
	@$(VPYTHON) -P -m pytest --tap $(PYTHON_DIR)/tests

python-types: $(VENV)/tmesh.stamp $(VENV)/mypy.stamp ## what mypy says; python-check asks it too
	cd $(VENV) && bin/python -P -m mypy --strict --allow-any-generics -p tmesh

.PHONY: python python-check python-types
