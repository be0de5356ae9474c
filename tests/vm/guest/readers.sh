# SPDX-License-Identifier: MIT
#
# Programs that read files on the module's file system. Sourced by guest/init.

check "module loads" insmod /tmesh.ko
run readers /tests/readers.sh
check "module unloads" rmmod tmesh
