# SPDX-License-Identifier: MIT
#
# Guards of the module or of libtmesh behind switches. Sourced by guest/init.
#
# Without a plan each case of each program runs alone. Printed are its time in hundredths of a second, the guards that were true
# meanwhile, and those that were false. A case that fails is reported, and is none of them.
#
# With a plan guards are out, one after another. The cases that make a guard true run until one of them fails, or the kernel
# complains. The file /plan has a line for each: its number, and "i" where it is inverted and not out, then PROGRAM:CASE:SECONDS.
#
# The module stays loaded while it is as new: a case that has failed has to pass with the guard in again. Where it
# does not, the module is loaded anew. Where a case fails even then, the kernel keeps what this guard or an earlier one did.
# The guest ends, and "again" says that the guard is to be tried in a new one, unless it is the first of the plan.

export TMESH_KO=/tmesh.ko TMESH_CORPUS=/fuzz.corpus
if [ -e /mutants.ko ]; then
	switches=/sys/module/mutants/parameters

	out() {
		case $1 in
		*i) echo Y >$switches/inverted ;;
		*) echo N >$switches/inverted ;;
		esac
		echo "${1%i}" >$switches/out
	}

	forget() { echo 0 >$switches/met; }

	met() { echo "$(cat $switches/met) | $(cat $switches/passed)"; }

	cases() { seq "$(TMESH_CASE=0 "/tests/$1" | sed -n 's/^1\.\.\([0-9]*\).*/\1/p')"; }

	load() { insmod $TMESH_KO && insmod /peer.ko; }

	unload() { rmmod peer && rmmod tmesh; }

	check "the switches load" insmod /mutants.ko
else
	export TMESH_BACKEND=kernel TMESH_RUNTIME_DIR=/tmp/runtime TMESH_MET=/tmp/met TMESH_MUTANT=0
	mkdir -m 0700 $TMESH_RUNTIME_DIR
	# As systemd has it; busybox leaves what the kernel begins with.
	ulimit -Hn 524288

	out() { TMESH_MUTANT=$1; }

	forget() { dd if=/dev/zero of=$TMESH_MET bs=4096 count=1 2>/dev/null; }

	# Those whose byte, as a decimal, is like the pattern.
	numbers() {
		hexdump -v -e '1/1 "%u\n"' $TMESH_MET | awk "/$1/ { printf \"%x \", NR - 1 }"
	}

	met() { echo "$(numbers '[23]') | $(numbers '[13]')"; }

	cases() { sed -n "s/^$1 //p" /cases; }

	load() { insmod $TMESH_KO; }

	unload() { rmmod tmesh; }
fi

hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }

# Print the guards that each case of a program makes true.
cover() {
	for number in $(cases "$1"); do
		forget
		began=$(hundredths)
		TMESH_CASE=$number timeout "$TMESH_TIMEOUT" "/tests/$1" </dev/null >/tmp/said 2>&1
		status=$?
		if [ $status = 0 ]; then
			say case "$1" "$number" $(($(hundredths) - began)) "$(met)"
			continue
		fi
		say check "$1 $number" $status "$(tail -n 3 /tmp/said | tr '\n' ' ')"
		# The next mutant must not find its leftovers.
		kill -9 -1
		usleep 500000
		unload
		load
	done
}

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
	unused && unload && load
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
			[ "$tried" = 0 ] || seen=again
			return 1
		fi
	done
	seen="what stays of it"
	renewed || return 1
	# At its end the module looks for what was not given back.
	seen="the kernel at the end of the module"
	complaints && return 1
	seen=
}

dmesg -c >/tmp/said
check "module loads" load
if [ ! -e /plan ]; then
	for program in /tests/*; do
		cover "${program##*/}"
	done
	: >/plan
fi
tried=0
while read -r guard runs; do
	say mutant "$guard"
	find_who_sees "$guard" "$runs"
	whole=$?
	if [ "$seen" = again ]; then
		say again "$guard"
	elif [ "$seen" ]; then
		say seen "$guard" "$seen"
	else
		say unseen "$guard"
	fi
	[ $whole = 0 ] || break # the next one wants a kernel of its own
	tried=$((tried + 1))
done </plan
