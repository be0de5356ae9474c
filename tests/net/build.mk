# SPDX-License-Identifier: MIT
#
# Tests of libtmesh-net and tmesh-net: unit tests with a home and a reader in one process, machines as
# processes with runtime directories of their own, a fuzz target.

NET_TEST     := tests/net
NET_TEST_OUT := $(B)/tests/net

NET_TESTS    := test_net test_interrupted test_local test_outputs
NET_TEST_FLAGS := -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -Itests/unit

# net_tests(variant, flags, objects and libraries, flags of the linker)
net_tests = $(call c_tests,$(NET_TEST_OUT)/$(1),$(NET_TEST),$(NET_TEST_FLAGS) $(2),$(3),$(4) -lcmocka $$(LIB_LIBS) $$(NET_LIBS))
$(eval $(call net_tests,plain,,$(NET_A) $(LIB_A)))
$(eval $(call net_tests,asan,$(ASAN_FLAGS) $(TEST_O),$(B)/libtmesh-net-asan.a $(LIB_ASAN)))
# strict.c is a provider with the demands of verbs and efa.
$(eval $(call net_tests,strict,,$(NET_TEST_OUT)/strict/strict.o $(NET_A) $(LIB_A),-Wl$(comma)--wrap=fi_getinfo$(comma)--wrap=fi_fabric))

define net_run
@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
FI_OFI_RXM_BUFFER_SIZE=1024 FI_OFI_RXM_CM_PROGRESS_INTERVAL=500; \
trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; status=0; \
for test in $(NET_TESTS); do $(NET_TEST_OUT)/$(1)/$$test || status=1; done; exit $$status
endef

net-check: $(NET_TESTS:%=$(NET_TEST_OUT)/plain/%) ## Run libtmesh-net's unit tests.
	$(call net_run,plain)

net-strict-check: $(NET_TESTS:%=$(NET_TEST_OUT)/strict/%) ## Run libtmesh-net's unit tests with a provider that has the demands of verbs and efa.
	$(call net_run,strict)

net-asan-check: $(NET_TESTS:%=$(NET_TEST_OUT)/asan/%) ## Run libtmesh-net's unit tests with the address sanitizer.
	$(call net_run,asan)

net-port-check: $(B)/tmesh-net ## Send bad frames, floods and signals to tmesh-net.
	@$(PYTHON) -B $(NET_TEST)/test_port.py $(B)

NET_FUZZ_OUT := $(NET_TEST_OUT)/fuzz
NET_FUZZ_NAMES := net_command net_address net_answer
$(NET_FUZZ_OUT)/net_command: $(NET)/port/command.c $(NET)/port/command.h
$(NET_FUZZ_OUT)/net_address: $(NET)/address.c $(NET)/endpoint.c $(NET)/signals.c $(NET)/net_internal.h
$(NET_FUZZ_OUT)/net_answer: $(NET)/local.c $(NET)/kept.c $(NET)/address.c $(NET)/endpoint.c $(NET)/signals.c $(NET)/net_internal.h
$(NET_FUZZ_OUT)/net_%: $(NET_TEST)/fuzz_%.c $(FUZZ_OBJ)
	@mkdir -p $(@D)
	$(SAY)$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(NET) -std=gnu11 -pthread $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		$(filter %.c %.o,$^) $(LIB_LIBS) $(NET_LIBS) -o $@

net-fuzz-check: $(addprefix $(NET_FUZZ_OUT)/,$(NET_FUZZ_NAMES)) ## Fuzz the readers of tmesh-net.
	@$(FUZZ)/run $(NET_FUZZ_OUT) $(NET_FUZZ_NAMES)

.PHONY: net-check net-strict-check net-asan-check net-port-check net-fuzz-check

# The example, as a program of another machine.
$(NET_TEST_OUT)/net_open: examples/c/net_open.c include/tmesh/net.h $(NET_A) $(LIB_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread $< $(NET_A) $(LIB_A) $(LIB_LIBS) $(NET_LIBS) -o $@

net-machines-check: net keeper beam $(NET_TEST_OUT)/net_open $(VENV)/tmesh.stamp ## Test Tmesh.Net between nodes on the loopback and in network namespaces.
	@status=0; for test in machines beside; do \
		$(PYTHON) -B $(NET_TEST)/test_$$test.py $(B) $(VPYTHON) || status=1; done; exit $$status

net-weather-check: net keeper beam ## Test Tmesh.Net over bad links and in WireGuard's tunnels.
	@$(PYTHON) -B $(NET_TEST)/test_machines.py $(B) $(VPYTHON) in_guest

net-four-check: net keeper beam ## Test Tmesh.Net between four machines.
	@$(PYTHON) -B $(NET_TEST)/test_machines.py $(B) $(VPYTHON) in_four_namespaces

.PHONY: net-machines-check net-weather-check net-four-check
