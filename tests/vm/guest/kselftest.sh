# SPDX-License-Identifier: MIT
#
# The C programs of tests/kselftest against the module, then what is left when they ended.
# Sourced by guest/init.

export TMESH_KO=/tmesh.ko # for the program that unloads and loads it

check "module loads" insmod $TMESH_KO
for program in /tests/*; do
	run "${program##*/}" "$program"
done
check "module unloads" rmmod tmesh
check "module loads again" insmod $TMESH_KO
check "module unloads again" rmmod tmesh
