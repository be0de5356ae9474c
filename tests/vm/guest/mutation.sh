# SPDX-License-Identifier: MIT
#
# Modules that lack a guard, one after another, each with the programs that come by that guard until one of them
# fails, or the kernel complains. Sourced by guest/init. /plan has a line for each: its number, then PROGRAM:SECONDS.

export TMESH_CORPUS=/fuzz.corpus

complaints() { dmesg | grep -cE 'BUG:|WARNING:|Oops|general protection|refcount_t|Bad page'; }

# The first program that fails, or what else sees it.
who_sees() {
	for program in $2; do
		if ! timeout "${program##*:}" "/tests/${program%%:*}" </dev/null >/tmp/said 2>&1; then
			echo "${program%%:*}"
			return
		fi
		if [ "$(complaints)" -gt "$1" ]; then
			echo "the kernel during ${program%%:*}"
			return
		fi
	done
}

while read -r number programs; do
	say mutant "$number"
	export TMESH_KO="/mutant-$number.ko"
	before=$(complaints)
	if ! insmod "$TMESH_KO"; then
		say seen "$number" "loading it"
		continue
	fi
	insmod /peer.ko
	seen=$(who_sees "$before" "$programs")
	# What a program that failed has left running would keep the module.
	[ -z "$seen" ] || killall5 -9
	sleep 1
	rmmod peer
	if ! rmmod tmesh; then
		say seen "$number" "${seen:-unloading it}"
		break # the module stays: the next one wants a kernel of its own
	fi
	if [ "$seen" ]; then
		say seen "$number" "$seen"
	else
		say unseen "$number"
	fi
done </plan
