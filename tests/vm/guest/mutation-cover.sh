# SPDX-License-Identifier: MIT
#
# Each case of each program alone: how long it took, in hundredths of a second, and the guards that were true
# meanwhile. Sourced by guest/init.

export TMESH_KO=/tmesh.ko TMESH_CORPUS=/fuzz.corpus
switches=/sys/module/mutants/parameters

hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }

check "the switches load" insmod /mutants.ko
check "module loads" insmod $TMESH_KO
check "the peer that exports and imports loads" insmod /peer.ko
for program in /tests/*; do
	name=${program##*/}
	cases=$(TMESH_CASE=0 "$program" | sed -n 's/^1\.\.\([0-9]*\).*/\1/p')
	for number in $(seq "$cases"); do
		echo 0 >$switches/met
		began=$(hundredths)
		TMESH_CASE=$number timeout "$TMESH_TIMEOUT" "$program" </dev/null >/tmp/said 2>&1
		status=$?
		say case "$name" "$number" $(($(hundredths) - began)) "$(cat $switches/met)"
		[ $status = 0 ] && continue
		say check "$name $number" $status "$(tail -n 3 /tmp/said | tr '\n' ' ')"
		# What it left is not the next one's.
		kill -9 -1
		usleep 500000
		rmmod peer
		rmmod tmesh
		insmod $TMESH_KO
		insmod /peer.ko
	done
done
