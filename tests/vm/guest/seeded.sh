# SPDX-License-Identifier: MIT
#
# One mistake after the other, the panic last. Sourced by guest/init.

make_mistake() { echo "$1" >/sys/module/seeded/parameters/make; }

check "seeded module loads" insmod /seeded.ko
for mistake in $(echo "$TMESH_SEEDED" | tr , ' '); do
	if [ "$mistake" = panic ]; then
		look_back
		# stty waits until all output is sent.
		stty -F /dev/ttyS1 raw
	fi
	mark "$mistake"
	check "$mistake is made" make_mistake "$mistake"
done
