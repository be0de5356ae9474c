# SPDX-License-Identifier: MIT
#
# libtmesh-xla: on a stand-in for XLA with the sanitizers, and in JAX. JAX comes with the other packages of
# python-arrow: its newest version. Without it, as on a machine without a network, the tests that need it are skipped.

XLA_TESTS      := tests/xla
XLA_VENV       := $(B)/venv-arrow
XLA_TEST_OUT   := $(B)/tests/xla
XLA_TEST_FLAGS  = -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -I$(XLA) -Itests/unit \
		  -isystem $(firstword $(wildcard $(XLA_VENV)/lib/python3*/site-packages/jaxlib/include) /nonexistent)

# xla_tests(variant, flags)
xla_tests = $(call c_tests,$(XLA_TEST_OUT)/$(1),$(XLA_TESTS),$$(XLA_TEST_FLAGS) $(2),$(B)/libtmesh-xla-$(1).a $(B)/libtmesh-$(1).a,-lcmocka $$(LIB_LIBS),$(XLA_VENV)/tools.stamp)
$(eval $(call xla_tests,asan,$(ASAN_FLAGS) $(TEST_O)))
$(eval $(call xla_tests,tsan,$(TSAN_FLAGS) $(TEST_O)))

$(XLA_TEST_OUT)/peer: $(XLA_TESTS)/peer.c $(B)/libtmesh.a
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 $< $(B)/libtmesh.a $(LIB_LIBS) -o $@

# A stand-in for EXLA's library, under that one's name.
XLA_STANDIN := $(XLA_TEST_OUT)/libxla_extension.so
$(XLA_STANDIN): $(XLA_TESTS)/standin.c $(XLA_TESTS)/host.h bindings/xla/ffi_abi.h
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(XLA_TEST_FLAGS) -fPIC -shared -Wl,-soname,$(@F) $< -o $@

XLA_PROGRAMS := asan/test_abi asan/test_call asan/test_memory asan/test_outputs asan/test_register asan/test_turns tsan/test_turns

xla_pytest = TMESH_TEST_PEER=$(XLA_TEST_OUT)/peer LD_LIBRARY_PATH=$(CURDIR)/$(B) PYTHONPATH=$(PYTHON_DIR)/tests $(1)/bin/python -B -P -m pytest -p conftest \
	-c $(PYTHON_DIR)/pyproject.toml --rootdir . --tap $(XLA_TESTS)

xla-check: $(addprefix $(XLA_TEST_OUT)/,$(XLA_PROGRAMS)) $(XLA_TEST_OUT)/peer $(XLA_STANDIN) $(B)/libtmesh-xla.so $(XLA_VENV)/tmesh.stamp $(if $(shell command -v elixir),beam) ## Test libtmesh-xla on a stand-in for XLA and in JAX.
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=memfd TMESH_TEST_XLA_STANDIN=$(CURDIR)/$(XLA_STANDIN) TMESH_RUNTIME_DIR=$$(mktemp -d); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
	for test in $(XLA_PROGRAMS); do $(XLA_TEST_OUT)/$$test || status=1; done; \
	$(call xla_pytest,$(XLA_VENV)) || status=1; \
	exit $$status

# The same in JAX's versions of each FFI that is served: jaxlib 0.7 has FFI 0.1, 0.9 has 0.2.
XLA_VERSIONS := 0.7.2 0.9.0

$(B)/venv-jax-%/tmesh.stamp: $(XLA_VENV)/tmesh.stamp
	$(PYTHON) -m venv --clear --system-site-packages $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check jax==$* jaxlib==$* || true
	cp $(XLA_VENV)/lib/python3*/site-packages/tmesh.pth $(@D)/lib/python3*/site-packages/
	@touch $@
.SECONDARY: $(XLA_VERSIONS:%=$(B)/venv-jax-%/tmesh.stamp)

xla-versions-check: $(XLA_TEST_OUT)/peer $(XLA_STANDIN) $(B)/libtmesh-xla.so $(XLA_VERSIONS:%=$(B)/venv-jax-%/tmesh.stamp) ## Test tmesh.xla in older versions of JAX.
	@export TMESH_BACKEND=memfd TMESH_TEST_XLA_STANDIN=$(CURDIR)/$(XLA_STANDIN) TMESH_RUNTIME_DIR=$$(mktemp -d); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
	$(foreach version,$(XLA_VERSIONS),echo "# jax $(version)"; $(call xla_pytest,$(B)/venv-jax-$(version)) || status=1;) \
	exit $$status

# libFuzzer; the corpus lies beside those of libtmesh.
XLA_FUZZ_OUT := $(XLA_TEST_OUT)/fuzz
XLA_FUZZ_OBJ := $(patsubst bindings/xla/%.c,$(XLA_FUZZ_OUT)/xla/%.o,$(wildcard bindings/xla/*.c))

$(XLA_FUZZ_OUT)/xla/%.o: bindings/xla/%.c bindings/xla/build.mk
	@mkdir -p $(@D)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) $(LIB_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
-include $(XLA_FUZZ_OBJ:.o=.d)

$(XLA_FUZZ_OUT)/xla_frame: $(XLA_TESTS)/fuzz/fuzz_frame.c $(XLA_TESTS)/host.h $(XLA_FUZZ_OBJ) $(FUZZ_OBJ)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(XLA) -std=gnu11 $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		$< $(XLA_FUZZ_OBJ) $(FUZZ_OBJ) $(LIB_LIBS) -o $@

xla-fuzz-check: $(XLA_FUZZ_OUT)/xla_frame ## Fuzz the reader of XLA's call frames.
	@$(FUZZ)/run $(XLA_FUZZ_OUT) xla_frame

.PHONY: xla-check xla-versions-check xla-fuzz-check
