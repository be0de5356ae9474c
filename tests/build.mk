# SPDX-License-Identifier: MIT
#
# Every suite is a target that prints TAP; tests/run.py runs suites and adds up their results. Suites that
# build in the same places form a row and run one after another. Rows run side by side, JOBS at once: two more than
# there are processors, since tests wait as often as they work.

JOBS ?= $(shell expr $$(nproc) + 2)

# Minutes after which a run ends with what it has. The common targets are built before this time begins.
WITHIN ?= 75

comma := ,
UNIT     := tests/unit
UNIT_OUT := $(B)/tests/unit
# Compiling a test with sanitizers takes twice as long at -O2. The library has -O2 there, too.
TEST_O := -O1

# c_tests(folder of the programs, folder of the sources, flags of the compiler, objects and archives, flags of the linker,
# order-only needs). Each source is compiled once. A change of the library links the programs and compiles nothing else.
define c_tests
$(1)/%.o: $(2)/%.c | $(call needs,cmocka.h) $(6)
	@mkdir -p $$(@D)
	$$(SAY)$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(WARN) $(3) -MMD -MP -c -o $$@ $$<
$(1)/%: $(1)/%.o $(4)
	$$(SAY)$$(CC) $$(CFLAGS) $(filter -f% --coverage,$(3)) $$(filter %.o,$$^) $$(filter %.a,$$^) $(5) -o $$@
-include $$(wildcard $(1)/*.d)
.PRECIOUS: $(1)/%.o
endef

# In C and of the project itself.
HOST_SUITES = \
	runner-check \
	format-check \
	sim-check \
	unit-check \
	unit-bare-check \
	unit-asan-check \
	unit-tsan-check \
	grown-check \
	fuzz-check \
	tools-check \
	bench-check \
	keep-check \
	mount-check \
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
	packaging-check

# With Python's and Elixir's packages, and real engines. Elixir's tests of workers want Python's package built.
LANGUAGE_SUITES = \
	rooms-check \
	vocabulary-check \
	words-check \
	python-check \
	python-bare-check \
	python-arrow-check \
	beam-check \
	beam-dialyzer \
	beam-package-check \
	conformance-check \
	cuda-check \
	xla-check \
	engine-gpu-check \
	engine-onnx-check \
	engine-ggml-abi-check \
	engine-mutants-check \
	python-model-check \
	python-transformers-check \
	python-engine-check \
	mount-engines-check \
	python-net-check \
	python-ray-check \
	python-graph-check \
	readme-check \
	docs-check \
	demo-check
# It waits most of the time, for machines that lose each other.
WAITING_SUITES = net-machines-check
# Detectors that slow a program down by ten or more rarely find further failures.
DEBUG_SUITES = unit-valgrind-check

HOST_SUITES_FULL     = $(HOST_SUITES) mount-passthrough-check $(DEBUG_SUITES) naps-check kmod-lint
LANGUAGE_SUITES_FULL = $(LANGUAGE_SUITES) mount-stock-check python-asan-check python-lmcache-check vllm-check python-current-check xla-versions-check

row = $(subst $(subst ,, ),$(comma),$(strip $(1)))
# The longest row comes first, so that no processor waits at the end. Guests are in two rows, so never more than two run
# at once, 3 GiB each. Three emulated guests on two processors would pass their time limits.
ROWS = $(call row,$(LANGUAGE_SUITES)) $(call row,vm-ready-checkout $(VM_CHECKOUT)) $(call row,vm-ready-stock $(VM_MODULE)) \
	$(call row,$(WAITING_SUITES)) $(call row,$(HOST_SUITES) vm-judge)
ROWS_DEBUG = $(call row,vm-ready-debug $(VM_DEBUG)) $(call row,$(DEBUG_SUITES))
# With both goals, the rows of guests go on in those of `check`.
ROWS_BOTH = $(call row,$(LANGUAGE_SUITES)) $(call row,vm-ready-checkout $(VM_CHECKOUT)) \
	$(call row,vm-ready-stock $(VM_MODULE) vm-ready-debug $(VM_DEBUG)) $(call row,$(HOST_SUITES) $(DEBUG_SUITES) vm-judge) \
	$(call row,$(WAITING_SUITES))
ROWS_FULL = $(call row,$(LANGUAGE_SUITES_FULL)) $(call row,vm-ready-checkout $(VM_CHECKOUT_FULL) deploy-check) $(call row,$(HOST_SUITES_FULL)) $(call row,$(WAITING_SUITES)) vm-judge \
	vm-ready-stock,vm-ready-debug $(VM_MODULE_FULL)
# A test in an emulated kernel may fail because the machine is slow at that moment. Such a suite is run
# again, and its first failure is shown. A failure of these suites is final: they look for failures that are seldom.
ONCE = $(filter fuzz-check %-asan-check %-tsan-check %-valgrind-check %-fuzz-check sim-check,$(HOST_SUITES) $(DEBUG_SUITES)) $(VM_MODULE) $(VM_DEBUG)
SHARED = all kselftest beam $(STANDIN) $(ENGINE_TEST_ENGINES) $(ENGINE_PLUGINS) $(NET_TEST_OUT)/net_open $(VENV)/tmesh.stamp

# `make check check-debug` is one run with one result.
CHECK_GOALS = $(filter check check-debug,$(MAKECMDGOALS))
check: run-suites ## [Test] Run the tests: on this machine and in two stock kernels under QEMU (half an hour on two cores).
	@:
check-debug: run-suites ## [Test] Run the kernel tests with KASAN, lockdep and kmemleak, and the unit tests under valgrind.
	@:

# Build the rows' common targets before they begin. `make deps check` installs first.
run-suites: $(filter deps,$(MAKECMDGOALS))
	@packaging/deps.sh --missing test
	@$(MAKE) -s --no-print-directory $(SHARED)
	@$(MAKE) -s --no-print-directory run-rows RUN='$$(ROWS$(if $(filter 2,$(words $(CHECK_GOALS))),_BOTH,$(if $(filter check-debug,$(CHECK_GOALS)),_DEBUG)))'

run-rows:
	tests/run.py --length short --jobs $(JOBS) --within $(WITHIN) --again 2 --once $(call row,$(ONCE)) $(RUN)

# One row tests C, the other the bindings; the C driver of conformance is built without sanitizers.
QUICK_ROWS = format-check,words-check,unit-check smoke-check,conformance-check
quick: export CONFORM_PLAIN := 1
quick: ## [Test] Test a change in two minutes: format, prose, unit tests, conformance on memfds, each binding. No root, network or QEMU.
	@packaging/deps.sh --missing quick
	@$(MAKE) -s --no-print-directory lib keeper model engine tools cuda xla python beam $(addprefix $(UNIT_OUT)/plain/,$(UNIT_NAMES))
	@tests/run.py --length short --jobs 2 $(QUICK_ROWS)

t: ## [Test] Run one test or one suite: T=layout, T=queue::test_close, T=unit-check; S=asan, tsan or valgrind; K=KERNEL for the module's.
	@T='$(T)' S='$(S)' K='$(K)' $(PYTHON) -B tests/one.py

smoke-check: lib keeper model engine tools cuda xla python beam $(B)/tests/cuda/libcuda.so.1 ## Put and open one tensor by each binding and tool.
	@$(PYTHON) -B tests/smoke.py $(B)

check-full: $(filter deps,$(MAKECMDGOALS)) ## [Test] Run all suites at full length, in more kernels (hours). RESUME=1 runs what has not passed yet.
	@packaging/deps.sh --missing test
	@$(MAKE) -s --no-print-directory $(SHARED)
	tests/run.py --length full --jobs $(JOBS) $(if $(RESUME),--resume) $(ROWS_FULL)

check-report: ## [Test] Show each suite's last result, its CPU seconds and its share. Nothing is run.
	@tests/run.py --report $(ROWS_FULL)

runner-check: ## Test the programs that run and judge tests.
	@status=0; for test in tests/test_run.py tests/test_loop.py tests/mutation/test_guards.py tests/distribution.py; do \
		$(PYTHON) -B $$test || status=1; done; exit $$status

# One version everywhere, Debian 12's, since others format differently. Where it is not installed, the package index has it.
FORMAT_VENV    := $(B)/venv-format
FORMAT_VERSION := 14.0.6

$(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp:
	@mkdir -p $(FORMAT_VENV)/bin
	@! clang-format --version 2>/dev/null | grep -q $(FORMAT_VERSION) || \
		ln -sf "$$(command -v clang-format)" $(FORMAT_VENV)/bin/clang-format
	@[ -e $(FORMAT_VENV)/bin/clang-format ] || $(PYTHON) -m venv --clear $(FORMAT_VENV)
	@[ -e $(FORMAT_VENV)/bin/clang-format ] || $(FORMAT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		clang-format==$(FORMAT_VERSION) || true
	@touch $@

format-check: $(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp ## Compare the C files with .clang-format.
	@$(PYTHON) -B tests/format.py $(FORMAT_VENV)/bin/clang-format

format: $(FORMAT_VENV)/tools-$(FORMAT_VERSION).stamp ## [Test] Format the C files that differ from .clang-format.
	@$(PYTHON) -B tests/format.py $(FORMAT_VENV)/bin/clang-format --write

words-check: ## Compare the sentences of each room with the rules of CONTRIBUTING.md; a room never gets more bad ones.
	@$(PYTHON) -B tests/words.py

# The headers of the examples. readme-check builds the examples, as a user does.
EXAMPLE_LISTS := $(patsubst examples/c/%.c,$(B)/examples/lists/%.d,$(wildcard examples/c/*.c))

$(B)/examples/lists/%.d: examples/c/%.c $(wildcard include/tmesh/*.h)
	@mkdir -p $(@D)
	@$(CC) $(CPPFLAGS) -MM -MT $@ -o $@ $<

# A library that installs headers is named with them here.
rooms-check: all beam-nif python-lists $(EXAMPLE_LISTS) ## Check what each room includes and what the libraries are linked with.
	@$(PYTHON) -B tests/rooms.py lib="$(LIB_HEADERS)" bindings/cuda="$(CUDA_HEADERS)" model="$(MODEL_HEADERS)" \
		bindings/xla="$(XLA_HEADERS)" engine="$(ENGINE_HEADERS)" net="$(NET_HEADERS)"

vocabulary-check: tools keeper beam $(VENV)/tmesh.stamp ## Compare tests/vocabulary.md with headers, tmeshctl, Python and Elixir.
	@TMESH_KEEPER=$(abspath $(B)/tmesh-keeper) $(PYTHON) -B tests/vocabulary.py $(B)/tmeshctl $(VPYTHON) $(B)/beam/dev/lib/tmesh/ebin lib/libtmesh.map \
		model/libtmesh-model.map bindings/xla/libtmesh-xla.map engine/libtmesh-engine.map net/libtmesh-net.map \
		bindings/cuda/libtmesh-cuda.map

readme-check: ## Install, run the examples of the README and of examples/c, uninstall.
	@$(PYTHON) tests/readme.py $(STANDIN)

docs-check: all python beam ## Check links and the index of docs/, and follow tutorials and how-tos as they stand.
	@$(MAKE) -s --no-print-directory install PREFIX=$(abspath $(B)/docs/prefix) >/dev/null
	@$(PYTHON) -B tests/docs.py $(B) $(B)/docs/prefix

.PHONY: quick t docs-check smoke-check check check-full check-debug run-suites run-rows check-report runner-check format-check format words-check rooms-check vocabulary-check readme-check
