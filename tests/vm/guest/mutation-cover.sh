# SPDX-License-Identifier: MIT
#
# Each program alone, with what GCOV counted of it and how many seconds it took. Sourced by guest/init.

export TMESH_KO=/tmesh.ko TMESH_CORPUS=/fuzz.corpus

check "module loads" insmod $TMESH_KO
check "the peer that exports and imports loads" insmod /peer.ko
for program in /tests/*; do
	name=${program##*/}
	echo 0 >/sys/kernel/debug/gcov/reset
	began=$(date +%s)
	run "$name" "$program"
	say took "$name" $(($(date +%s) - began))
	mkdir "$TMESH_LEFT/$name"
	for counts in $(find /sys/kernel/debug/gcov -name '*.gcda'); do
		cat "$counts" >"$TMESH_LEFT/$name/${counts##*/}"
	done
done
