# SPDX-License-Identifier: MIT
#
# Tests of libtmesh-engine: unit tests on an engine that is a fake and says so, and the engine "onnx" with
# the real ONNX Runtime.

ENGINE_TEST     := tests/engine
ENGINE_VENV     := $(B)/venv-engine
ENGINE_TEST_OUT := $(B)/tests/engine
ENGINE_TESTS    := test_engine test_graph_files test_sessions test_served test_served_limits test_kept test_storm test_turns test_top test_confined test_attacks test_supervised test_hostile test_inherited test_users test_cancelled test_graph test_initializer test_ort_abi test_placement test_devices test_outputs
ENGINE_TEST_FLAGS := -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -I$(ENGINE) -Itests/unit -Itests/cuda

# engine_tests(variant, flags, libtmesh, libtmesh-engine). test_initializer tests a part of the engine "onnx".
engine_tests = $(call c_tests,$(ENGINE_TEST_OUT)/$(1),$(ENGINE_TEST),$(ENGINE_TEST_FLAGS) $(2),$(4) $(3),-lcmocka $$(LIB_LIBS) -lm)
$(eval $(call engine_tests,plain,,$(LIB_A),$(ENGINE_A)))
$(eval $(call engine_tests,asan,$(ASAN_FLAGS) $(TEST_O),$(LIB_ASAN),$(B)/libtmesh-engine-asan.a))
$(eval $(call engine_tests,tsan,$(TSAN_FLAGS) $(TEST_O),$(LIB_TSAN),$(B)/libtmesh-engine-tsan.a))
$(foreach variant,plain asan,$(eval $(ENGINE_TEST_OUT)/$(variant)/test_initializer: \
	$(addprefix $(B)/engine-$(variant)/onnx/,initializer.o types.o)))

# "evil" is in a folder of its own: a program that lists engines, and tries each, would find it.
engine_test_engine = $(SAY)$(CC) $(CPPFLAGS) $(ENGINE_CPPFLAGS) $(CFLAGS) $(WARN) $(LIB_CFLAGS) -fvisibility=default -shared $< \
	$(addprefix $(B)/lib-plain/common/,error.o utf8.o) -o $@

$(ENGINE_TEST_OUT)/engines/tmesh-engine-%.so: $(ENGINE_TEST)/%_engine.c $(ENGINE_TEST)/probe.h $(ENGINE)/plugin.h $(COMMON_OBJ)
	@mkdir -p $(@D)
	$(engine_test_engine)

$(ENGINE_TEST_OUT)/engines/evil/tmesh-engine-%.so: $(ENGINE_TEST)/%_engine.c $(ENGINE_TEST)/evil.h $(ENGINE)/plugin.h $(COMMON_OBJ)
	@mkdir -p $(@D)
	$(engine_test_engine)

ENGINE_TEST_ENGINES := $(addprefix $(ENGINE_TEST_OUT)/engines/,tmesh-engine-fake.so tmesh-engine-old.so evil/tmesh-engine-evil.so)

define engine_run
@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
TMESH_ENGINE_PATH=$(abspath $(ENGINE_TEST_OUT)/engines) TMESH_ENGINE_PROGRAM=$(abspath $(3)) TMESHCTL=$(abspath $(B)/tmeshctl); \
trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
for test in $(2); do $(ENGINE_TEST_OUT)/$(1)/$$test || status=1; done; exit $$status
endef

engine-check: $(addprefix $(ENGINE_TEST_OUT)/plain/,$(ENGINE_TESTS)) $(ENGINE_TEST_ENGINES) $(ENGINE_PROCESS) $(B)/tmeshctl ## Run libtmesh-engine's unit tests.
	$(call engine_run,plain,$(ENGINE_TESTS),$(ENGINE_PROCESS))

# These tests depend on the kernel: for guests.
ENGINE_CONFINED := test_confined test_attacks test_supervised test_served
engine-confined-check: $(addprefix $(ENGINE_TEST_OUT)/plain/,$(ENGINE_CONFINED)) $(ENGINE_TEST_ENGINES) $(ENGINE_PROCESS) ## Run the tests of how an engine is confined and watched.
	$(call engine_run,plain,$(ENGINE_CONFINED),$(ENGINE_PROCESS))

.PHONY: engine-confined-check

# The loader finds the stand-in for the CUDA driver.
engine-gpu-check: $(addprefix $(ENGINE_TEST_OUT)/,plain/test_gpu plain/test_onnx_gpu plain/test_ggml_gpu libonnxruntime-standin.so) \
		$(ENGINE_PLUGINS) $(ENGINE_VENV)/tools.stamp $(ENGINE_TEST_ENGINES) $(STANDIN) $(B)/libtmesh-cuda.so ## Test device tensors in GPU memory on a stand-in for the driver.
	$(call engine_run,plain,test_gpu,$(ENGINE_PROCESS))
	@CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_ENGINE_PATH=$(abspath $(B)) \
		TMESH_ONNXRUNTIME=$(abspath $(ENGINE_TEST_OUT)/libonnxruntime-standin.so) $(ENGINE_TEST_OUT)/plain/test_onnx_gpu
	@library=$(abspath $(ENGINE_GGML_LIBRARY)); if [ ! "$$library" ]; then \
		echo "1..1"; echo "ok 1 - ggml on stand-ins for GPUs # SKIP there is no libggml-python"; exit 0; fi; \
	$(ENGINE_GGML_STANDIN); export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_ENGINE_PATH=$(abspath $(B)) \
		TMESH_GGML=$(abspath $(ENGINE_TEST_OUT)/libggml-standin.so); $(ENGINE_TEST_OUT)/plain/test_ggml_gpu

# The loader finds the missing functions in the real one, which is beside it.
ENGINE_GGML_STANDIN = $(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(ENGINE_TEST_FLAGS) -fPIC -shared $(ENGINE_TEST)/standin_ggml.c \
	-Wl,--no-as-needed "$$library" -Wl,-rpath,"$$(dirname "$$library")" -o $(ENGINE_TEST_OUT)/libggml-standin.so || exit 1

$(ENGINE_TEST_OUT)/libonnxruntime-standin.so: $(addprefix $(ENGINE_TEST)/standin_onnxruntime.,c h) $(ENGINE)/onnx/ort_api.h
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(ENGINE_TEST_FLAGS) -fPIC -shared $< -o $@

engine-gpu-check: export LD_LIBRARY_PATH := $(abspath $(dir $(STANDIN))):$(abspath $(B))

engine-asan-check: $(addprefix $(ENGINE_TEST_OUT)/asan/,test_engine test_graph_files test_sessions test_served test_served_limits test_kept test_storm test_turns test_confined test_attacks test_supervised test_hostile test_inherited test_users test_cancelled test_graph test_placement test_devices test_outputs test_initializer) $(ENGINE_TEST_ENGINES) $(B)/asan/tmesh-engine ## Run libtmesh-engine's unit tests with the address sanitizer.
	$(call engine_run,asan,test_engine test_graph_files test_sessions test_served test_served_limits test_kept test_storm test_turns test_confined test_attacks test_supervised test_hostile test_inherited test_users test_cancelled test_graph test_placement test_devices test_outputs test_initializer,$(B)/asan/tmesh-engine)

# A forked child starts a thread where it asks for memory by token, which the sanitizer does not follow.
engine-tsan-check: export TSAN_OPTIONS := die_after_fork=0
engine-tsan-check: $(addprefix $(ENGINE_TEST_OUT)/tsan/,test_engine test_graph_files test_sessions test_served test_served_limits test_kept test_storm test_turns test_hostile test_cancelled) $(ENGINE_TEST_ENGINES) $(ENGINE_PROCESS) ## Run libtmesh-engine's unit tests with the thread sanitizer.
	$(call engine_run,tsan,test_engine test_graph_files test_sessions test_served test_served_limits test_kept test_storm test_turns test_hostile test_cancelled,$(ENGINE_PROCESS))

# ONNX Runtime is on the package index as Python's package, which has the library in it, and in Debian from 13 on.
# Without the packages, as on a machine without a network, what needs them is skipped.
$(ENGINE_VENV)/tools.stamp: $(addprefix $(ENGINE_TEST)/requirements,.txt -onnxruntime.txt)
	$(PYTHON) -m venv --clear $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check numpy pytest onnx flatbuffers packaging protobuf || true
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check safetensors sentencepiece pyyaml tqdm || true
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps tokenizers==0.23.3 gguf==0.19.0 || true
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: --requirement $(ENGINE_TEST)/requirements.txt || true
	$(ENGINE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: --requirement $(ENGINE_TEST)/requirements-onnxruntime.txt || true
	@touch $@

# The models, and what ONNX Runtime's own plain Run makes of them.
$(ENGINE_TEST_OUT)/models.stamp: $(ENGINE_TEST)/models.py $(ENGINE_VENV)/tools.stamp
	@mkdir -p $(@D)
	@! $(ENGINE_VENV)/bin/python -c 'import onnx, onnxruntime' 2>/dev/null || \
		$(ENGINE_VENV)/bin/python -B $< $(@D)/models | sed 's/^/# /'
	@touch $@

# ENGINE_ONNXRUNTIME=/usr/lib/.../libonnxruntime.so.1.21.0 runs the suites on that one.
ENGINE_ONNXRUNTIME ?= $(lastword $(wildcard $(ENGINE_VENV)/lib/*/site-packages/onnxruntime/capi/libonnxruntime.so.*))

engine-onnx-check: $(ENGINE_TEST_OUT)/plain/test_onnx $(ENGINE_ONNX) $(ENGINE_TEST_OUT)/models.stamp ## Test the engine "onnx" with ONNX Runtime.
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
	TMESH_ENGINE_PATH=$(abspath $(B)) TMESH_ONNXRUNTIME=$(abspath $(ENGINE_ONNXRUNTIME)); \
	[ ! -d $(ENGINE_TEST_OUT)/models ] || export TMESH_ENGINE_MODELS=$(abspath $(ENGINE_TEST_OUT)/models); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; $(ENGINE_TEST_OUT)/plain/test_onnx

# ggml's own headers come with Python's package.
ENGINE_GGML_HEADERS = $(lastword $(wildcard $(ENGINE_VENV)/lib/*/site-packages/libggml/include))
ENGINE_GGML_LIBRARY = $(lastword $(wildcard $(ENGINE_VENV)/lib/*/site-packages/libggml/lib*/libggml.so.0))

engine-ggml-abi-check: $(ENGINE_VENV)/tools.stamp ## Compare ggml_api.h with ggml's headers.
	@mkdir -p $(ENGINE_TEST_OUT)/plain
	@$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(ENGINE_TEST_FLAGS) $(if $(ENGINE_GGML_HEADERS),-isystem $(ENGINE_GGML_HEADERS)) \
		$(ENGINE_TEST)/test_ggml_abi.c -o $(ENGINE_TEST_OUT)/plain/test_ggml_abi
	@$(ENGINE_TEST_OUT)/plain/test_ggml_abi

# 500 mutants, 4,000 at full length.
engine-mutants-check: $(ENGINE_TEST_OUT)/plain/test_mutants $(ENGINE_VENV)/tools.stamp $(ENGINE_PROCESS) $(ENGINE_PLUGINS) ## Run mutated graphs in a served engine "ggml".
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
	TMESH_ENGINE_PATH=$(abspath $(B)) TMESH_ENGINE_PROGRAM=$(abspath $(ENGINE_PROCESS)) TMESH_GGML=$(abspath $(ENGINE_GGML_LIBRARY)); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; $(ENGINE_TEST_OUT)/plain/test_mutants

.PHONY: engine-ggml-abi-check engine-mutants-check
.PHONY: engine-gpu-check
.PHONY: engine-check engine-asan-check engine-tsan-check engine-onnx-check

# The cost of libtmesh-engine over ONNX Runtime's own calls, and of a process of its own.
$(BENCH_OUT)/engine: tests/bench/engine.c tests/bench/harness.c tests/bench/harness.h $(ENGINE_ONNX_OBJ_plain) $(ENGINE_A) $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(ENGINE_CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter-out %.h,$^) $(LIB_LIBS) -ldl -o $@

$(BENCH_OUT)/engine_served: tests/bench/engine_served.c tests/bench/harness.c tests/bench/harness.h \
		$(ENGINE_A) $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -pthread $(filter-out %.h,$^) $(LIB_LIBS) -ldl -lm -o $@

# libFuzzer; the corpus lies beside those of libtmesh.
ENGINE_FUZZ_OUT := $(ENGINE_TEST_OUT)/fuzz
ENGINE_FUZZ_OBJ := $(patsubst %.c,$(ENGINE_FUZZ_OUT)/%.o,$(wildcard $(ENGINE)/graph_*.c lib/common/*.c))

$(ENGINE_FUZZ_OUT)/%.o: %.c $(ENGINE)/build.mk
	@mkdir -p $(@D)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(ENGINE_CPPFLAGS) $(LIB_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
-include $(ENGINE_FUZZ_OBJ:.o=.d)

$(ENGINE_FUZZ_OUT)/graph: $(ENGINE_TEST)/fuzz/fuzz_graph.c $(ENGINE_FUZZ_OBJ)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(ENGINE_CPPFLAGS) -std=gnu11 $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		$< $(ENGINE_FUZZ_OBJ) $(LIB_LIBS) -o $@
.SECONDARY: $(ENGINE_FUZZ_OBJ)

engine-fuzz-check: $(ENGINE_FUZZ_OUT)/graph ## Fuzz the reader of graphs.
	@$(FUZZ)/run $(ENGINE_FUZZ_OUT) graph

.PHONY: engine-fuzz-check
