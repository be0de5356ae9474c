# SPDX-License-Identifier: MIT
#
# libtmesh-xla: on a stand-in for XLA with the sanitizers, and in JAX. JAX comes with the other packages of
# python-arrow: its newest version. Without it, as on a machine without a network, what needs it is skipped.

XLA_TESTS      := tests/xla
XLA_VENV       := $(B)/venv-arrow
XLA_TEST_OUT   := $(B)/tests/xla
XLA_TEST_FLAGS  = -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -I$(XLA) -Itests/unit \
		  -isystem $(firstword $(wildcard $(XLA_VENV)/lib/python3*/site-packages/jaxlib/include) /nonexistent)

# xla_test(variant, sanitizers)
define xla_test
$(XLA_TEST_OUT)/$(1)/%: $(XLA_TESTS)/%.c $(XLA_TESTS)/host.h tests/unit/unit.h $(B)/libtmesh-xla-$(1).a $(B)/libtmesh-$(1).a $(XLA_VENV)/tools.stamp
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(WARN) $$(XLA_TEST_FLAGS) $(2) $$< $(B)/libtmesh-xla-$(1).a $(B)/libtmesh-$(1).a \
		-lcmocka $$(LIB_LIBS) -o $$@
endef
$(eval $(call xla_test,asan,$(ASAN_FLAGS)))
$(eval $(call xla_test,tsan,$(TSAN_FLAGS)))

XLA_PROGRAMS := asan/test_abi asan/test_call

xla-check: $(addprefix $(XLA_TEST_OUT)/,$(XLA_PROGRAMS)) $(B)/libtmesh-xla.so $(XLA_VENV)/tmesh.stamp ## libtmesh-xla's tests, on a stand-in for XLA and in JAX
	@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=memfd TMESH_RUNTIME_DIR=$$(mktemp -d); \
	trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
	for test in $(XLA_PROGRAMS); do $(XLA_TEST_OUT)/$$test || status=1; done; \
	LD_LIBRARY_PATH=$(CURDIR)/$(B) PYTHONPATH=$(PYTHON_DIR)/tests $(XLA_VENV)/bin/python -B -P -m pytest -p conftest \
		-c $(PYTHON_DIR)/pyproject.toml --rootdir . --tap $(XLA_TESTS) || status=1; \
	exit $$status

.PHONY: xla-check
