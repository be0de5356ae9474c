# SPDX-License-Identifier: MIT
#
# Every suite is a target that prints TAP; tests/run.py runs them and totals them. Those that
# build in the same places are a row, one after another; rows run side by side, JOBS at once: one more than
# there are processors, since tests wait as often as they work.

JOBS ?= $(shell expr $$(nproc) + 1)

# In C and of the project itself.
HOST_SUITES = \
	runner-check \
	format-check \
	sim-check \
	unit-check \
	unit-asan-check \
	unit-tsan-check \
	unit-valgrind-check \
	grown-check \
	fuzz-check \
	tools-check \
	bench-check \
	keep-check \
	model-check \
	model-faults-check \
	model-asan-check \
	model-tsan-check \
	model-peers-check \
	model-fuzz-check \
	engine-check \
	engine-asan-check \
	engine-tsan-check \
	engine-fuzz-check \
	net-check \
	net-strict-check \
	net-asan-check \
	net-port-check \
	net-fuzz-check \
	xla-fuzz-check \
	packaging-check \
	kmod-check

# With Python's and Elixir's packages, and real engines. Elixir's tests of workers want Python's package built.
LANGUAGE_SUITES = \
	rooms-check \
	vocabulary-check \
	python-check \
	python-arrow-check \
	beam-check \
	beam-dialyzer \
	beam-package-check \
	conformance-check \
	cuda-check \
	xla-check \
	net-machines-check \
	engine-gpu-check \
	engine-onnx-check \
	engine-ggml-abi-check \
	engine-mutants-check \
	engine-oracle-check \
	python-model-check \
	python-transformers-check \
	python-engine-check \
	python-net-check \
	python-ray-check \
	python-graph-check \
	readme-check \
	demo-check
HOST_SUITES_FULL     = $(HOST_SUITES) naps-check kmod-lint
LANGUAGE_SUITES_FULL = $(LANGUAGE_SUITES) python-lmcache-check python-current-check xla-versions-check

comma := ,
row = $(subst $(subst ,, ),$(comma),$(strip $(1)))
# The longest first, so that no processor waits at the end. Guests are two rows, so never more than two at once, 3 GiB
# each: a third makes all of them so slow that limits pass which have nothing to do with what a test tests.
ROWS = $(call row,$(LANGUAGE_SUITES)) $(call row,$(VM_CHECKOUT)) $(call row,$(VM_MODULE)) $(call row,$(HOST_SUITES) vm-judge)
ROWS_FULL = $(call row,$(LANGUAGE_SUITES_FULL)) $(call row,$(VM_CHECKOUT_FULL)) $(call row,$(HOST_SUITES_FULL)) vm-judge \
	$(VM_MODULE_FULL)
# Of thousands of tests in emulated kernels one may fail for how slow the machine is just then. Such a suite is run
# again, and its first failure told. Not so where a failure that is seldom is what the suite looks for.
ONCE = $(filter fuzz-check %-asan-check %-tsan-check %-valgrind-check %-fuzz-check sim-check,$(HOST_SUITES)) $(VM_MODULE)
SHARED = all kselftest beam $(STANDIN) $(ENGINE_TEST_ENGINES) $(ENGINE_PLUGINS)

# What the rows share is built before they begin.
check: check-deps ## run the tests: on this machine and in real kernels (about an hour)
	@$(MAKE) -s --no-print-directory $(SHARED)
	tests/run.py --length short --jobs $(JOBS) --again 2 --once $(call row,$(ONCE)) $(ROWS)

check-full: check-deps ## the same at length, in more kernels (RESUME=1: what has not passed yet)
	@$(MAKE) -s --no-print-directory $(SHARED)
	tests/run.py --length full --jobs $(JOBS) $(if $(RESUME),--resume) $(ROWS_FULL)

check-report: ## each suite's last result, without running any
	@tests/run.py --report $(ROWS_FULL)

check-cases: ## write how many cases each suite's last run had into docs/testing.md
	@$(PYTHON) -B tests/cases.py

check-deps:
	packaging/deps.sh check

runner-check: ## the tests of what runs and judges tests
	@status=0; for test in tests/test_run.py tests/mutation/test_guards.py; do \
		$(PYTHON) -B $$test || status=1; done; exit $$status

# One version everywhere, Debian 12's: another formats differently. .clang-format is the measure.
FORMAT_VENV    := $(B)/venv-format
FORMAT_VERSION := 14.0.6

$(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp:
	$(PYTHON) -m venv --clear $(FORMAT_VENV)
	$(FORMAT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		clang-format==$(FORMAT_VERSION) || true
	@touch $@

format-check: $(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp ## whether the C files look as .clang-format says
	@$(PYTHON) -B tests/format.py $(FORMAT_VENV)/bin/clang-format

format: $(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp ## format the C files that do not look as .clang-format says
	@$(PYTHON) -B tests/format.py $(FORMAT_VENV)/bin/clang-format --write

# What the examples include. readme-check builds them, as a user does.
EXAMPLE_LISTS := $(patsubst examples/c/%.c,$(B)/examples/lists/%.d,$(wildcard examples/c/*.c))

$(B)/examples/lists/%.d: examples/c/%.c $(wildcard include/tmesh/*.h)
	@mkdir -p $(@D)
	@$(CC) $(CPPFLAGS) -MM -MT $@ -o $@ $<

# A library that installs headers is named with them here.
rooms-check: all beam-nif python-lists $(EXAMPLE_LISTS) ## what each room includes, and what the libraries are linked with
	@$(PYTHON) -B tests/rooms.py lib="$(LIB_HEADERS)" bindings/cuda="$(CUDA_HEADERS)" model="$(MODEL_HEADERS)" \
		bindings/xla="$(XLA_HEADERS)" engine="$(ENGINE_HEADERS)" net="$(NET_HEADERS)"

vocabulary-check: tools keeper beam $(VENV)/tmesh.stamp ## docs/vocabulary.md against the headers, tmeshctl, Python and Elixir
	@TMESH_KEEPER=$(abspath $(B)/tmesh-keeper) $(PYTHON) -B tests/vocabulary.py $(B)/tmeshctl $(VPYTHON) $(B)/beam/dev/lib/tmesh/ebin lib/libtmesh.map \
		model/libtmesh-model.map bindings/xla/libtmesh-xla.map engine/libtmesh-engine.map net/libtmesh-net.map \
		bindings/cuda/libtmesh-cuda.map

readme-check: ## install, the examples of the README and of examples/c, uninstall
	@$(PYTHON) tests/readme.py $(STANDIN)

.PHONY: check check-full check-report check-cases check-deps runner-check format-check format rooms-check vocabulary-check readme-check
