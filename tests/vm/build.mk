# SPDX-License-Identifier: MIT
#
# The module and the programs around it in real kernels, under QEMU. Needs root: the Debian 13
# root is made with debootstrap. What is slow to make is kept in $XDG_CACHE_HOME/tmesh/vm.

# vm-KERNEL-SUITE, for `make check`, and what `make check-full` adds. Those of the checkout build in
# one copy of it, one after another. Python and Elixir on the debug kernel would take hours. The debug kernel is a 6.12, and
# no kernel test runs in the stock one alone.
VM_CHECKOUT := $(addprefix vm-,6.12-library 6.12-beam 6.12-python 6.12-demo)
VM_MODULE := $(addprefix vm-,debug-kselftest debug-seeded 6.1-kselftest newest-kselftest)
VM_SUITES := vm-judge $(VM_CHECKOUT) $(VM_MODULE)
VM_LONG := vm-debug-fuzz vm-6.12-races
VM_CHECKOUT_FULL := $(VM_CHECKOUT) $(addprefix vm-,debug-library newest-python newest-beam 6.12-net 6.12-four 6.12-faults)
VM_MODULE_FULL := $(VM_MODULE) $(VM_LONG) $(addprefix vm-,6.12-kselftest trixie-kselftest debug-swiotlb-kselftest newest-netfs)
VM_SUITES_FULL := vm-judge $(VM_CHECKOUT_FULL) $(VM_MODULE_FULL)

# How long the programs in guests race and fuzz. `make check-full` shows more kernels and has
# VM_LONG, and leaves it at that: at full length each kernel takes an hour, the debug kernel many.
VM_LENGTH ?= short
# On the debug kernel, where a round costs ten times as much, `make check` takes a third of those of short.
vm-debug-kselftest: VM_LENGTH := $(if $(filter full,$(TMESH_TEST_LENGTH)),short,brief)

vm-kernels: ## fetch and build the kernels that the module is tested in
	@tests/vm/kernels.py >&2

vm-check: kselftest ## run the tests in kernels (VM_LENGTH=full: at length)
	tests/run.py --length $(VM_LENGTH) --jobs $(JOBS) $(call row,$(VM_CHECKOUT)) vm-judge $(call row,$(VM_MODULE))

coverage: kselftest ## print which lines and branches of the module, then of libtmesh, the tests run, by file
	@tests/vm/run debug kselftest >$(B)/coverage.tap; status=$$?; \
		grep -E '^(not ok|# debug:)' $(B)/coverage.tap; \
		tests/vm/run 6.12 lib-coverage >$(B)/lib-coverage.tap || status=1; \
		grep -E '^(not ok|# together:)' $(B)/lib-coverage.tap; exit $$status

vm-judge: ## the tests of what judges guests and of what chooses their kernels
	@status=0; for test in judge kernels; do tests/vm/test_$$test.py || status=1; done; exit $$status

vm-6.12-races: ## thousands of rounds of each race
	@TMESH_TEST_LENGTH=full TMESH_TESTS='$(filter %races,$(KST_PROGRAMS)) fence gather import map user unload' \
		tests/vm/run 6.12 kselftest

vm-debug-fuzz: ## two million calls and 50 storms on the debug kernel
	@TMESH_TEST_LENGTH=full TMESH_TESTS='fuzz storm' tests/vm/run debug kselftest

$(VM_LONG): kselftest

# The demo is whole in `make check-full` alone, there also in the guest.
vm-6.12-demo: VM_LENGTH := $(or $(TMESH_TEST_LENGTH),short)

vm-newest-netfs: tools $(B)/tmesh-keeper $(B)/tests/keep/kept_hash $(B)/tests/model/faults.so

$(filter-out vm-judge $(VM_LONG),$(VM_SUITES_FULL)): vm-%: kselftest
	@TMESH_TEST_LENGTH=$(VM_LENGTH) tests/vm/run \
		$(patsubst %-$(lastword $(subst -, ,$*)),%,$*) $(lastword $(subst -, ,$*))

.PHONY: vm-kernels vm-check coverage $(VM_SUITES_FULL)
