# SPDX-License-Identifier: MIT
#
# The module and the programs around it in real kernels, under QEMU. Needs root: the Debian 13
# root is made with debootstrap. $XDG_CACHE_HOME/tmesh/vm keeps files that are slow to make.

# Suites are called vm-KERNEL-SUITE. `make check` has the kernel tests in Debian's oldest and newest stock kernel, and
# the suites of the checkout on the module in 6.12. `make check-debug` has the debug kernel, which is built of 6.12's source.
# Suites of the checkout build in one copy of it, one after another. Python and Elixir on the debug kernel would take hours.
VM_CHECKOUT := $(addprefix vm-,6.12-library 6.12-conformance)
VM_MODULE := $(addprefix vm-,6.1-kselftest newest-kselftest)
# kmod-check needs the sources of the debug kernel.
VM_DEBUG := kmod-check $(addprefix vm-,debug-kselftest debug-seeded)
VM_LONG := vm-debug-fuzz vm-6.12-races vm-debug-widened vm-debug-planted
VM_CHECKOUT_FULL := $(VM_CHECKOUT) $(addprefix vm-,6.12-python 6.12-beam 6.12-demo 6.12-engines 6.12-mount newest-mount debug-library newest-python newest-beam 6.12-net 6.12-four 6.12-faults 6.1-engine 6.12-engine newest-engine)
# Without the module.
VM_HUGE_FULL := $(addprefix vm-,6.1-huge 6.12-huge newest-huge)
VM_READERS := $(addprefix vm-,6.1-readers 6.12-readers newest-readers)
VM_MODULE_FULL := $(VM_MODULE) $(VM_DEBUG) $(VM_LONG) $(VM_HUGE_FULL) $(VM_READERS) $(addprefix vm-,6.12-kselftest trixie-kselftest debug-swiotlb-kselftest newest-netfs)
VM_SUITES_FULL := vm-judge $(VM_CHECKOUT_FULL) $(VM_MODULE_FULL)
# Debian's testing, as a root without a guest.
VM_CHECKOUT_FULL += vm-forky-beam kexec-check

vm-forky-beam: ## [Test] Run the Elixir suite with the Erlang of Debian's testing.
	@tests/vm/forky.py

# Fetching and building a kernel has a line and a time limit of its own, before the suites that boot the kernel.
VM_READY := vm-ready-stock vm-ready-checkout vm-ready-debug
vm-ready-stock: VM_NAMES := 6.1 newest
vm-ready-checkout: VM_NAMES := 6.12 debian13
vm-ready-debug: VM_NAMES := debug
$(VM_READY):
	@tests/vm/kernels.py --tap $(VM_NAMES)

# How long the programs in guests race and fuzz. `make check-full` shows more kernels and has
# VM_LONG, and leaves it at that: at full length each kernel takes an hour, the debug kernel many.
VM_LENGTH ?= short
# On the debug kernel, where a round costs ten times as much, `make check` takes a third of those of short.
vm-debug-kselftest: VM_LENGTH := $(if $(filter full,$(TMESH_TEST_LENGTH)),short,brief)

vm-kernels: ## Fetch and build the kernels that the module is tested in.
	@tests/vm/kernels.py >&2

vm-check: kselftest ## [Test] Run the suites in kernels under QEMU. VM_LENGTH=full runs them at length.
	tests/run.py --length $(VM_LENGTH) --jobs $(JOBS) $(call row,vm-ready-checkout $(VM_CHECKOUT)) vm-judge \
		$(call row,vm-ready-stock $(VM_MODULE) vm-ready-debug $(VM_DEBUG))

coverage: kselftest ## [Measure] Show which lines and branches of the module and of libtmesh the tests run.
	@tests/vm/run debug kselftest >$(B)/coverage.tap; status=$$?; \
		grep -E '^(not ok|# debug:)' $(B)/coverage.tap; \
		tests/vm/run 6.12 lib-coverage >$(B)/lib-coverage.tap || status=1; \
		grep -E '^(not ok|# together:)' $(B)/lib-coverage.tap; exit $$status

vm-judge: ## Test the programs that judge guests and choose their kernels.
	@status=0; for test in judge kernels; do tests/vm/test_$$test.py || status=1; done; exit $$status

vm-6.12-races: ## Race the module's calls for thousands of rounds.
	@TMESH_TEST_LENGTH=full TMESH_TESTS='$(filter %races,$(KST_PROGRAMS)) fence gather gather_limits import map user unload' \
		tests/vm/run 6.12 kselftest

vm-debug-fuzz: ## Fuzz the module on the debug kernel: two million calls, 50 storms.
	@TMESH_TEST_LENGTH=full TMESH_TESTS='fuzz storm' tests/vm/run debug kselftest

vm-debug-widened: ## everything at once, on a module whose unlocks take long: half an hour
	@TMESH_TEST_LENGTH=full TMESH_TESTS='mixed lifetimes files_races keep_races' tests/vm/run debug widened

vm-debug-planted: ## Break the rules for locks, one for each guest; lockdep must report each.
	@tests/vm/run debug planted

$(VM_LONG): kselftest

# The demo is whole in `make check-full` alone, there also in the guest.
vm-6.12-demo: VM_LENGTH := $(or $(TMESH_TEST_LENGTH),short)

$(VM_HUGE_FULL): tools $(B)/tests/vm/huge

$(B)/tests/vm/huge: tests/vm/huge/huge.c $(LIB_A) $(MODEL_A)
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) $(UNIT_FLAGS) -I$(UNIT) $< $(MODEL_A) $(LIB_A) -lcmocka $(MODEL_LIBS) -o $@

kexec-check: tools keeper $(B)/tests/keep/kept_hash $(B)/tests/vm/luo ## [Test] Test kept memory that passes a kexec, under systemd 262 (experimental). Builds a kernel the first time. W='keeper off': these guests.
	@tests/vm/kexec.py $(W)

# Static: it is the first process of a guest without libraries.
$(B)/tests/vm/luo: tests/vm/kexec/luo.c
	@mkdir -p $(@D)
	$(SAY)$(CC) $(CPPFLAGS) $(CFLAGS) $(WARN) -std=gnu11 -static $< -o $@

$(VM_READERS): tools

vm-newest-netfs: tools $(B)/tmesh-keeper $(B)/tests/keep/kept_hash $(B)/tests/model/faults.so

$(filter-out vm-judge kmod-check $(VM_LONG),$(VM_SUITES_FULL)): vm-%: kselftest
	@TMESH_TEST_LENGTH=$(VM_LENGTH) tests/vm/run \
		$(patsubst %-$(lastword $(subst -, ,$*)),%,$*) $(lastword $(subst -, ,$*))

.PHONY: kexec-check vm-forky-beam vm-kernels vm-check coverage $(VM_READY) $(filter vm-%,$(VM_SUITES_FULL))
