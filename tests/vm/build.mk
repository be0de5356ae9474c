# SPDX-License-Identifier: MIT
#
# The module and the programs around it in real kernels, under QEMU. Needs root: the Debian 13
# root is made with debootstrap. What is slow to make is kept in $XDG_CACHE_HOME/tmesh/vm.

vm-kernels: ## fetch and build the kernels that the module is tested in
	@tests/vm/kernels.py >&2

vm-check: kselftest vm-kernels ## run the tests in kernels (TMESH_TEST_LENGTH=full: at length)
	@tests/vm/test_judge.py
	@tests/vm/check

.PHONY: vm-kernels vm-check
