# SPDX-License-Identifier: MIT
#
# Tests of libtmesh-net and tmesh-net: unit tests with a home and a reader in one process, machines as
# processes with runtime directories of their own, a fuzz target.

NET_TEST     := tests/net
NET_TEST_OUT := $(B)/tests/net

# net_test(variant, sanitizers, libtmesh, libtmesh-net)
define net_test
$(NET_TEST_OUT)/$(1)/%: $(NET_TEST)/%.c $(NET_TEST)/wire.h include/tmesh/net.h tests/unit/unit.h $(4) $(3)
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(WARN) -std=gnu11 -pthread -Ilib $$(COMMON_CPPFLAGS) -Itests/unit $(2) $$< \
		$(4) $(3) -lcmocka $$(LIB_LIBS) $$(NET_LIBS) -o $$@
endef
$(eval $(call net_test,plain,,$(LIB_A),$(NET_A)))
$(eval $(call net_test,asan,$(ASAN_FLAGS),$(LIB_ASAN),$(B)/libtmesh-net-asan.a))

# The same with a provider that has the demands of verbs and efa.
$(NET_TEST_OUT)/strict/test_net: $(NET_TEST)/test_net.c $(NET_TEST)/strict.c $(NET_TEST)/wire.h include/tmesh/net.h tests/unit/unit.h $(NET_A) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread -Ilib $(COMMON_CPPFLAGS) -Itests/unit $(filter %.c,$^) \
		-Wl,--wrap=fi_getinfo,--wrap=fi_fabric $(NET_A) $(LIB_A) -lcmocka $(LIB_LIBS) $(NET_LIBS) -o $@

define net_run
@export CMOCKA_MESSAGE_OUTPUT=TAP TMESH_BACKEND=$${TMESH_BACKEND:-memfd} TMESH_RUNTIME_DIR=$$(mktemp -d) $(PRELOADED) \
FI_OFI_RXM_BUFFER_SIZE=1024 FI_OFI_RXM_CM_PROGRESS_INTERVAL=500; \
trap 'rm -rf "$$TMESH_RUNTIME_DIR"' EXIT; $(NET_TEST_OUT)/$(1)/test_net
endef

net-check: $(NET_TEST_OUT)/plain/test_net ## libtmesh-net's unit tests
	$(call net_run,plain)

net-strict-check: $(NET_TEST_OUT)/strict/test_net ## ... by a provider that has the demands of verbs and efa
	$(call net_run,strict)

net-asan-check: $(NET_TEST_OUT)/asan/test_net ## ... with sanitizers
	$(call net_run,asan)

net-port-check: $(B)/tmesh-net ## tmesh-net spoken to badly: frames, floods, limits, a second one
	@$(PYTHON) -B $(NET_TEST)/test_port.py $(B)

NET_FUZZ_OUT := $(NET_TEST_OUT)/fuzz
NET_FUZZ_NAMES := net_command net_address net_answer
$(NET_FUZZ_OUT)/net_command: $(NET)/port/command.c $(NET)/port/command.h
$(NET_FUZZ_OUT)/net_address: $(NET)/address.c $(NET)/endpoint.c $(NET)/signals.c $(NET)/net_internal.h
$(NET_FUZZ_OUT)/net_answer: $(NET)/local.c $(NET)/kept.c $(NET)/address.c $(NET)/endpoint.c $(NET)/signals.c $(NET)/net_internal.h
$(NET_FUZZ_OUT)/net_%: $(NET_TEST)/fuzz_%.c $(FUZZ_OBJ)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(COMMON_CPPFLAGS) -I$(NET) -std=gnu11 -pthread $(WARN) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		$(filter %.c %.o,$^) $(LIB_LIBS) $(NET_LIBS) -o $@

net-fuzz-check: $(addprefix $(NET_FUZZ_OUT)/,$(NET_FUZZ_NAMES)) ## fuzz what tmesh-net is told, a home's address, and what a net answers
	@$(FUZZ)/run $(NET_FUZZ_OUT) $(NET_FUZZ_NAMES)

.PHONY: net-check net-strict-check net-asan-check net-port-check net-fuzz-check

# The example, as a program of another machine.
$(NET_TEST_OUT)/net_open: examples/c/net_open.c include/tmesh/net.h $(NET_A) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -pthread $< $(NET_A) $(LIB_A) $(LIB_LIBS) $(NET_LIBS) -o $@

net-machines-check: net keeper beam $(NET_TEST_OUT)/net_open $(VENV)/tmesh.stamp ## Tmesh.Net between nodes: on the loopback and in network namespaces, kills and cuts
	@status=0; for test in machines beside; do \
		$(PYTHON) -B $(NET_TEST)/test_$$test.py $(B) $(VPYTHON) || status=1; done; exit $$status

net-weather-check: net keeper beam ## ... over bad links and in WireGuard's tunnels, where the kernel has netem and wireguard
	@$(PYTHON) -B $(NET_TEST)/test_machines.py $(B) $(VPYTHON) in_guest

net-four-check: net keeper beam ## ... between four machines, as net-machines-check has them too: with the module where that is
	@$(PYTHON) -B $(NET_TEST)/test_machines.py $(B) $(VPYTHON) in_four_namespaces

.PHONY: net-machines-check net-weather-check net-four-check
