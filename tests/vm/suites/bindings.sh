# SPDX-License-Identifier: MIT
#
# The suites of the library, Python and Elixir in a Debian 13 root, against the module.
# Sourced by guest/init.

check "module loads" insmod /tmesh.ko
for script in python beam; do
	run "$script" chroot /debian /repo/tests/vm/suites/bindings-$script
done
check "module unloads" rmmod tmesh
