# SPDX-License-Identifier: MIT
#
# `make bench` measures, on this machine; `make bench-vm` measures the module in a virtual
# machine and leaves the figures for it.

BENCH_OUT      := $(B)/bench
BENCH_PROGRAMS := $(addprefix $(BENCH_OUT)/,tmesh-bench size lookup floor death pages model_open engine engine_served huge)

# BENCH='pages model' runs the benches whose commands contain one of these words, and writes no file. The build may add
# files, so a make of its own expands the paths of the programs to run.
bench: $(filter deps,$(MAKECMDGOALS)) ## [Measure] Measure beside peers and compare with the bounds (build/bench/bench.json, .svg). BENCH='pages net' runs some benches.
	@packaging/deps.sh bench
	@$(MAKE) -s $(BENCH_PROGRAMS) $(MOUNT_BUILT) tools python python-arrow beam xla $(B)/tests/xla/peer $(VENV)/iceoryx2.stamp $(SAFETENSORS_VENV)/tmesh.stamp \
		$(RAY_VENV)/tmesh.stamp $(NET_VENV)/tools.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(ENGINE_VENV)/tmesh.stamp $(ENGINE_TEST_OUT)/models.stamp $(MOUNT_LLAMA).stamp
	@$(MAKE) -s --no-print-directory bench-run $(if $(BENCH),,bench-huge-run)

bench-huge: ## [Measure] Measure loads, puts and fetches with the huge pages that memfds have without a setting, beside peers.
	@packaging/deps.sh bench
	@$(MAKE) -s $(addprefix $(BENCH_OUT)/,huge pages) tools python $(B)/tmesh-keeper $(SAFETENSORS_VENV)/tmesh.stamp
	@$(MAKE) -s --no-print-directory bench-huge-run

# HUGE_TABLE=docs/reference/measured.md puts the table there.
bench-huge-run: $(NET_BUILT) $(NET_BUILT:%=$(BENCH_OUT)/%)
	@$(SAFETENSORS_VENV)/bin/python -B tests/bench/huge_table.py $(B) $(HUGE_TABLE:%=--write %)

bench-run: $(NET_BUILT) $(NET_BUILT:%=$(BENCH_OUT)/%)
	@TMESH_ENGINE_PATH=$(abspath $(B)) TMESH_ONNXRUNTIME=$(abspath $(ENGINE_ONNXRUNTIME)) TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) \
		$(VPYTHON) -B tests/bench/run.py $(BENCH)

bench-ray: ## [Measure] Measure tensors between Ray's actors, beside Ray's object store and Gloo.
	@$(MAKE) -s $(RAY_VENV)/tmesh.stamp
	@$(VPYTHON) -B tests/bench/run.py ray_transport

bench-vllm: ## [Measure] Measure tmesh.vllm in engines on a CPU with 1 GB of weights (6 GB of packages).
	@$(MAKE) -s $(VLLM_VENV)/tmesh.stamp $(B)/tmesh-keeper
	@$(VPYTHON) -B tests/bench/run.py vllm_engines

bench-vm: kselftest ## [Measure] Measure the module in a virtual machine, for `make bench`.
	@$(PYTHON) -B tests/bench/vm.py

# Without it the lines beside it read that they were not measured.
$(VENV)/iceoryx2.stamp: $(VENV)/venv.stamp
	@$(VPYTHON) -m pip install --quiet --disable-pip-version-check iceoryx2 || true
	@touch $@

$(BENCH_OUT)/%: tests/bench/%.c tests/bench/harness.c tests/bench/harness.h $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(LIB_A) $(LIB_LIBS) -o $@

$(BENCH_OUT)/tmesh-bench: $(addprefix tests/bench/,tmesh_bench.c handover.c channel.c put.c harness.c harness.h) $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(LIB_A) $(LIB_LIBS) -o $@

# Slots and pages, and files of tensors.
$(BENCH_OUT)/pages $(BENCH_OUT)/model_open: $(BENCH_OUT)/%: tests/bench/%.c tests/bench/harness.c tests/bench/harness.h \
		$(LIB_A) $(MODEL_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(MODEL_A) $(LIB_A) $(MODEL_LIBS) -o $@

$(BENCH_OUT)/net: tests/bench/net.c tests/bench/harness.c tests/bench/harness.h $(LIB_A) $(NET_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(NET_A) $(LIB_A) $(LIB_LIBS) $(NET_LIBS) -o $@

# Check that the benches build and run; their times do not matter.
bench-check: $(BENCH_PROGRAMS) ## Run each bench's program once.
	@$(PYTHON) -B tests/bench/test_bench.py $(BENCH_OUT)/tmesh-bench

.PHONY: bench bench-huge bench-huge-run bench-check bench-ray bench-vllm bench-vm bench-run
