# SPDX-License-Identifier: MIT
#
# The C programs of tests/kselftest against the module, then what is left when they ended.
# Sourced by guest/init.

check "module loads" insmod /tmesh.ko
for program in /tests/*; do
	run "${program##*/}" "$program"
done
check "module unloads" rmmod tmesh
check "module loads again" insmod /tmesh.ko
check "module unloads again" rmmod tmesh
