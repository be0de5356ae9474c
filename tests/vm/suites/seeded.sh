# SPDX-License-Identifier: MIT
#
# One mistake after the other. Sourced by guest/init.

for mistake in $(echo "$TMESH_SEEDED" | tr , ' '); do
	mark "$mistake"
	check "$mistake is made" insmod /seeded.ko bug="$mistake"
	check "$mistake is unloaded" rmmod seeded
done
