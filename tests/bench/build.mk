# SPDX-License-Identifier: MIT
#
# `make bench` measures, on this machine; `make bench-vm` measures the module in a virtual
# machine and leaves the figures for it.

BENCH_OUT      := $(B)/bench
BENCH_PROGRAMS := $(addprefix $(BENCH_OUT)/,tmesh-bench size lookup floor death pages model_open engine engine_served placement)

# BENCH='pages model' runs those of the benches whose commands have one of these words, and writes no file.
bench: bench-deps ## measure, and compare with the bounds (build/bench/bench.{json,svg})
	@$(MAKE) -s $(BENCH_PROGRAMS) tools python python-arrow beam xla $(B)/tests/xla/peer $(VENV)/iceoryx2.stamp $(SAFETENSORS_VENV)/tmesh.stamp $(RAY_VENV)/tmesh.stamp
	@$(MAKE) -s $(NET_VENV)/tools.stamp $(NET_BUILT:%=$(BENCH_OUT)/%)
	@$(MAKE) -s $(ENGINE_PROCESS) $(ENGINE_PLUGINS) $(ENGINE_VENV)/tmesh.stamp $(ENGINE_TEST_OUT)/models.stamp
	@TMESH_ENGINE_PATH=$(abspath $(B)) TMESH_ONNXRUNTIME=$(abspath $(ENGINE_ONNXRUNTIME)) TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) \
		$(VPYTHON) -B tests/bench/run.py $(BENCH)

bench-ray: ## tensors between Ray's actors, beside its object store and Gloo
	@$(MAKE) -s $(RAY_VENV)/tmesh.stamp
	@$(VPYTHON) -B tests/bench/run.py ray_transport

bench-vm: kselftest ## measure the module in a virtual machine, for `make bench`
	@$(PYTHON) -B tests/bench/vm.py

# Without it the lines beside it say that they were not measured.
$(VENV)/iceoryx2.stamp: $(VENV)/venv.stamp
	@$(VPYTHON) -m pip install --quiet --disable-pip-version-check iceoryx2 || true
	@touch $@

bench-deps:
	@packaging/deps.sh bench

$(BENCH_OUT)/%: tests/bench/%.c tests/bench/harness.c tests/bench/harness.h $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(LIB_A) $(LIB_LIBS) -o $@

$(BENCH_OUT)/tmesh-bench: $(addprefix tests/bench/,tmesh_bench.c handover.c channel.c put.c harness.c harness.h) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(LIB_A) $(LIB_LIBS) -o $@

# Slots and pages, and files of tensors.
$(BENCH_OUT)/pages $(BENCH_OUT)/model_open: $(BENCH_OUT)/%: tests/bench/%.c tests/bench/harness.c tests/bench/harness.h \
		$(LIB_A) $(MODEL_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(MODEL_A) $(LIB_A) $(MODEL_LIBS) -o $@

$(BENCH_OUT)/net: tests/bench/net.c tests/bench/harness.c tests/bench/harness.h $(LIB_A) $(NET_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter %.c,$^) $(NET_A) $(LIB_A) $(LIB_LIBS) $(NET_LIBS) -o $@

# That they are built and do what they are for; how long that takes is nothing to it.
bench-check: $(BENCH_PROGRAMS) ## the benches' programs, once round
	@$(PYTHON) -B tests/bench/test_bench.py $(BENCH_OUT)/tmesh-bench

.PHONY: bench bench-check bench-ray bench-vm bench-deps
