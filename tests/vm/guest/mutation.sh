# SPDX-License-Identifier: MIT
#
# Guards of the module out, one after another, each with the cases that make it true until one of them fails, or
# the kernel complains. Sourced by guest/init. /plan has a line for each: its number, then PROGRAM:CASE:SECONDS.
#
# The module stays loaded while it is as new: a case that has failed has to pass with the guard in again. Where it
# does not, the module is loaded anew; a case that fails even then says nothing.

export TMESH_KO=/tmesh.ko TMESH_CORPUS=/fuzz.corpus
switches=/sys/module/mutants/parameters

out() { echo "$1" >$switches/out; }

complaints() { dmesg -c | grep -qE 'BUG:|WARNING:|Oops|general protection|refcount_t|Bad page'; }

# Runs PROGRAM:CASE:SECONDS, and sets the status, "stuck" of what a SIGKILL does not end.
run_case() {
	IFS=: read -r name number seconds <<-END
		$1
	END
	rm -f /tmp/status
	(
		TMESH_CASE=$number timeout -s KILL "$seconds" "/tests/$name" </dev/null >/tmp/said 2>&1
		echo $? >/tmp/status.new
		mv /tmp/status.new /tmp/status
	) &
	left=$(((seconds + 10) * 20))
	while [ ! -e /tmp/status ] && [ $left -gt 0 ]; do
		usleep 50000
		left=$((left - 1))
	done
	status=stuck
	[ -e /tmp/status ] && read -r status </tmp/status
}

# Nothing has the module; what a killed case has left may take a moment to go.
unused() {
	for _ in $(seq 40); do
		grep -q '^tmesh [0-9]* 0 ' /proc/modules && return
		usleep 100000
	done
	return 1
}

renewed() {
	kill -9 -1
	unused && rmmod peer && rmmod tmesh && insmod $TMESH_KO && insmod /peer.ko
}

# Sets seen: the first case that fails, or what else sees it.
find_who_sees() {
	seen=
	for run in $2; do
		out "$1"
		run_case "$run"
		out 0
		if complaints; then
			seen="the kernel during $name $number"
			# Locks may be held, and memory be wrong.
			return 1
		elif [ "$status" = stuck ]; then
			seen="$name $number, which never ends,"
			return 1
		elif [ "$status" != 0 ]; then
			seen="$name $number"
			run_case "$run"
			[ "$status" = 0 ] && return
			renewed || return 1
			run_case "$run"
			[ "$status" = 0 ] && return
			say unfit "$seen"
			seen=
		fi
	done
	unused && return
	seen="what stays of it"
	return 1
}

dmesg -c >/tmp/said
check "the switches load" insmod /mutants.ko
check "module loads" insmod $TMESH_KO
check "the peer that exports and imports loads" insmod /peer.ko
while read -r guard runs; do
	say mutant "$guard"
	find_who_sees "$guard" "$runs"
	whole=$?
	if [ "$seen" ]; then
		say seen "$guard" "$seen"
	else
		say unseen "$guard"
	fi
	[ $whole = 0 ] || break # the next one wants a kernel of its own
done </plan
