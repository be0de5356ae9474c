# SPDX-License-Identifier: MIT
#
# Runs in the guest under systemd, once in each of the two kernels. It prints TAP on the second serial line.
here=/run/tmesh-test
PATH=$here/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH TMESH_RUNTIME_DIR=/run/tmesh-keeper TMESH_BACKEND=memfd LC_ALL=C.UTF-8
. $here/settings
exec </dev/null >/dev/ttyS1 2>&1
echo

count=0 failed=0
# check NAME COMMAND...: a point that is good if the command succeeds
check() {
	name=$1
	shift
	count=$((count + 1))
	if said=$("$@" 2>&1); then
		echo "ok $count - $name"
	else
		failed=$((failed + 1))
		echo "not ok $count - $name"
		echo "$said" | sed 's/^/# /'
	fi
}

same() { [ "$1" = "$2" ] || { echo "\"$1\" is not \"$2\""; return 1; }; }
fails() { ! "$@"; }
names() { tmeshctl kept --json | grep -o '"name": *"[^"]*"' | cut -d'"' -f4 | sort | tr '\n' ' '; }
huge() { awk '/ShmemHugePages/ {print $2}' /proc/meminfo; }
has_huge() { [ "$(huge)" -ge 4096 ] || { echo "$(huge) KiB"; return 1; }; }
opened() { kept_hash model 2>&1 | cut -d" " -f1,2; }
stored() { systemctl show -P NFileDescriptorStore tmesh-keeper.service; }
as_daemon() { setpriv --reuid=daemon --regid=daemon --clear-groups env TMESH_RUNTIME_DIR=/run/tmesh-daemon "$@"; }

finish() {
	echo "1..$count"
	echo "@ done"
	sync
	systemctl --no-block poweroff 2>/dev/null
	exit 0
}

first() {
	tmeshctl-load --keep-as model $here/model.safetensors >$here/load.log 2>&1 &
	for _ in $(seq 600); do
		[ "$(names)" ] && break
		sleep 1
	done
	kill $!
	check "300 tensors are kept" same "$(opened)" "300 $model"
	check "huge pages are among them" has_huge
	tmeshctl keep --file $here/late late >/dev/null 2>&1
	as_daemon tmeshctl keep --file $here/late daemons >/dev/null 2>&1
	check "a second group is kept" same "$(names)" "late model "
	check "a kexec without a loaded kernel fails" fails systemctl kexec
	check "and nothing is lost" same "$(opened)" "300 $model"
	# Room for one more descriptor: the checksums of the first group.
	mkdir -p /run/systemd/system/tmesh-keeper.service.d
	printf '[Service]\nFileDescriptorStoreMax=%d\n' $(($(stored) + 1)) >/run/systemd/system/tmesh-keeper.service.d/full.conf
	[ "$handed" = yes ] && systemctl daemon-reload
	check "the next kernel is loaded" luo load $here/kernel $here/initramfs
	echo "1..$count"
	systemctl --no-block kexec 2>/dev/null
}

second() {
	here_now=$(opened)
	read -r seconds _ </proc/uptime
	check "this is another kernel" same "$(uname -r)" "$release"
	if [ "$handed" = no ]; then
		check "where the first kernel hands nothing over, nothing is kept" same "$(names)" ""
		finish
	fi
	echo "# the model was open and read $seconds s after the start of its kernel"
	check "the model is there with its bytes" same "$here_now" "300 $model"
	check "its huge pages stayed huge" has_huge
	check "a group whose checksums did not fit into the store is dropped" same "$(names)" "model "
	check "the keeper of a user other than root takes nothing" same "$(as_daemon tmeshctl kept --json | grep -c daemons)" 0
	before=$(stored)
	systemctl restart tmesh-keeper.service
	check "the model stays when the keeper starts again" same "$(opened)" "300 $model"
	check "with the same number of descriptors" same "$(stored)" "$before"
	tmeshctl keep --file $here/late late >/dev/null 2>&1
	check "more can be kept" same "$(names)" "late model "
	tmeshctl drop model
	check "the model can be dropped" same "$(names)" "late "
	finish
}

if grep -q TMESH_NEXT=1 /proc/cmdline; then
	second
else
	first
fi
