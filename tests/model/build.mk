# SPDX-License-Identifier: MIT
#
# Tests of libtmesh-model: unit tests as those of libtmesh, the formats' own packages as a second
# opinion, fuzz targets.

MODEL_TEST     := tests/model
MODEL_TEST_OUT := $(B)/tests/model
MODEL_TESTS    := $(patsubst $(MODEL_TEST)/test_%.c,test_%,$(wildcard $(MODEL_TEST)/test_*.c))
MODEL_TEST_FLAGS := -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -I$(MODEL) -Itests/unit

# model_tests(variant, flags, libtmesh, libtmesh-model). Some programs have functions of their own in the place of the libraries'.
MODEL_WRAP_test_flood       := tmesh_now_ns model_socket_recv model_socket_send
MODEL_WRAP_test_load        := tmesh_room
MODEL_WRAP_test_pages_log   := memmove model_follow_next
MODEL_WRAP_test_shared_load := tmesh_now_ns
MODEL_TEST_WRAP = $(patsubst %,-Wl$(comma)--wrap=%,close $(MODEL_WRAP_$(@F)))
model_tests = $(call c_tests,$(MODEL_TEST_OUT)/$(1),$(MODEL_TEST),$(MODEL_TEST_FLAGS) $(2),$(UNIT_OUT)/$(1)/closes.o $(4) $(3),$$(MODEL_TEST_WRAP) -lcmocka $$(MODEL_LIBS))
$(eval $(call model_tests,plain,,$(LIB_A),$(MODEL_A)))
$(eval $(call model_tests,asan,$(ASAN_FLAGS) $(TEST_O),$(LIB_ASAN),$(B)/libtmesh-model-asan.a))
$(eval $(call model_tests,tsan,$(TSAN_FLAGS) $(TEST_O),$(LIB_TSAN),$(B)/libtmesh-model-tsan.a))

define model_run
@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
TMESH_KEEPER=$(abspath $(B)/tmesh-keeper); \
trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
for test in $(2); do $(MODEL_TEST_OUT)/$(1)/$$test || status=1; done; exit $$status
endef

# The keeper that the library starts.
$(foreach test,test_corpus test_failures test_kept test_restart test_table_pack,$(MODEL_TEST_OUT)/plain/$(test) $(MODEL_TEST_OUT)/asan/$(test)): $(B)/tmesh-keeper

MODEL_ANY_BACKEND := test_cancel test_corpus test_failures test_file_size test_headers test_null test_pages_hostile test_pages_log test_slot_fork test_table_pack
MODEL_TESTS_kernel = $(filter-out $(MODEL_ANY_BACKEND),$(MODEL_TESTS))

model-check: $(addprefix $(MODEL_TEST_OUT)/plain/,$(MODEL_TESTS)) ## Run libtmesh-model's unit tests.
	$(call any_backend,$(MODEL_ANY_BACKEND))
	$(call model_run,plain,$(or $(MODEL_TESTS_$(TMESH_BACKEND)),$(MODEL_TESTS)))

model-asan-check: $(addprefix $(MODEL_TEST_OUT)/asan/,$(MODEL_TESTS)) ## Run libtmesh-model's unit tests with the address sanitizer.
	$(call model_run,asan,$(MODEL_TESTS))

# Programs with threads that start none in a forked child, which the sanitizer does not follow.
MODEL_TSAN := test_pages_threads

model-tsan-check: $(addprefix $(MODEL_TEST_OUT)/tsan/,$(MODEL_TSAN)) ## Run libtmesh-model's unit tests with the thread sanitizer.
	$(call model_run,tsan,$(MODEL_TSAN))

# The formats' own packages are on the package index alone; without them what needs them is skipped.
MODEL_VENV := $(B)/venv-model

$(MODEL_VENV)/tools.stamp: tests/engine/requirements.txt
	$(PYTHON) -m venv --clear $(MODEL_VENV)
	$(MODEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		numpy safetensors gguf || true
	$(MODEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/engine/requirements.txt || true
	@touch $@

model-peers-check: $(MODEL_VENV)/tools.stamp $(B)/libtmesh-model.so ## Compare the readers of model files with the formats' own packages.
	@tests/demo/fetch.sh $(B)/demo >&2 || true
	@status=0; $(MODEL_VENV)/bin/python -B $(MODEL_TEST)/differential.py || status=1; \
	$(MODEL_VENV)/bin/python -B $(MODEL_TEST)/differential_demo.py $(B)/demo || status=1; exit $$status

# libFuzzer; the corpus lies beside those of libtmesh.
MODEL_FUZZ_OUT   := $(MODEL_TEST_OUT)/fuzz
MODEL_FUZZ_NAMES := safetensors gguf shards pagelog
MODEL_FUZZ_OBJ   := $(MODEL_SRC:$(MODEL)/%.c=$(MODEL_FUZZ_OUT)/model/%.o)

$(MODEL_FUZZ_OUT)/model/%.o: $(MODEL)/%.c $(MODEL)/build.mk
	@mkdir -p $(@D)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) $(LIB_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
-include $(MODEL_FUZZ_OBJ:.o=.d)

MODEL_FUZZ_LINK = $(SAY)$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(MODEL) -std=gnu11 $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
	$< $(MODEL_FUZZ_OBJ) $(FUZZ_OBJ) $(MODEL_LIBS) -o $@
$(MODEL_FUZZ_OUT)/safetensors $(MODEL_FUZZ_OUT)/gguf: $(MODEL_TEST)/fuzz/fuzz_header.c $(MODEL_FUZZ_OBJ) $(FUZZ_OBJ)
	$(MODEL_FUZZ_LINK)
$(MODEL_FUZZ_OUT)/shards: $(MODEL_TEST)/fuzz/fuzz_shards.c $(MODEL_FUZZ_OBJ) $(FUZZ_OBJ)
	$(MODEL_FUZZ_LINK)
$(MODEL_FUZZ_OUT)/pagelog: $(MODEL_TEST)/fuzz/fuzz_pagelog.c $(MODEL_FUZZ_OBJ) $(FUZZ_OBJ)
	$(MODEL_FUZZ_LINK)
.SECONDARY: $(MODEL_FUZZ_OBJ)

model-fuzz-check: $(addprefix $(MODEL_FUZZ_OUT)/,$(MODEL_FUZZ_NAMES)) ## Fuzz the readers of model files.
	@$(FUZZ)/run $(MODEL_FUZZ_OUT) $(MODEL_FUZZ_NAMES)

.PHONY: model-check model-asan-check model-tsan-check model-peers-check model-fuzz-check

$(MODEL_TEST_OUT)/faults.so: $(MODEL_TEST)/faults.c
	@mkdir -p $(@D)
	$(SAY)$(CC) -D_GNU_SOURCE $(CFLAGS) $(WARN) -fPIC -shared -Wno-missing-prototypes -o $@ $< -ldl

model-faults-check: tools $(B)/tmesh-keeper $(MODEL_TEST_OUT)/faults.so $(MODEL_TEST_OUT)/plain/hostile_file $(B)/tests/keep/kept_hash ## Load models while the disk fails and processes are killed.
	@$(PYTHON) -B $(MODEL_TEST)/faults.py $(B)

.PHONY: model-faults-check

# These programs test memory that differs where shared memory may have huge pages. Few hosts have them on;
# the library's guest has.
HUGE_UNIT  := test_failures test_region_pool test_region
HUGE_MODEL := test_shared_load test_load test_measure

# For the guest, which compiles nothing.
huge-built: tools $(B)/tests/vm/huge $(addprefix $(B)/tests/unit/plain/,$(HUGE_UNIT)) $(addprefix $(MODEL_TEST_OUT)/plain/,$(HUGE_MODEL))

huge-check: huge-built ## Test regions and models where shared memory may have huge pages.
	$(call unit_run,plain,,$(HUGE_UNIT))
	$(call model_run,plain,$(HUGE_MODEL))
	@CMOCKA_MESSAGE_OUTPUT=TAP TMESH_RUNTIME_DIR=$$(mktemp -d) TMESH_TMESHCTL=$(B)/tmeshctl $(B)/tests/vm/huge

.PHONY: huge-built huge-check
