# SPDX-License-Identifier: MIT
#
# One mistake after the other. Sourced by guest/init.

make_mistake() { echo "$1" >/sys/module/seeded/parameters/make; }

check "seeded module loads" insmod /seeded.ko
for mistake in $(echo "$TMESH_SEEDED" | tr , ' '); do
	mark "$mistake"
	check "$mistake is made" make_mistake "$mistake"
done
