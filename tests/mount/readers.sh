#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Programs of others, and namespaces, on the file system of tmesh.ko: what a guest runs as root, from /tests. Prints TAP.

export TMESH_BACKEND=kernel TMESH_RUNTIME_DIR=/tmp/run TMESH_MOUNT=/tmp/tree PATH=/tests:$PATH
USER=1001
STRESSORS="chmod dentry dir flock rename sendfile utime"
number=0
failed=0

# point NAME STATUS [SKIP REASON]
point() {
	number=$((number + 1))
	[ "$2" = 0 ] && word=ok || { word="not ok"; failed=1; }
	echo "$word $number - $1${3:+ # SKIP $3}"
}

# block_test FILE ENGINE WORD...: fio on 4 MiB whose blocks have checksums
block_test() {
	file=$1 engine=$2
	shift 2
	fio --name=x --filename="$file" --ioengine="$engine" --thread --bs=4k --size=4m --verify=crc32c --verify_fatal=1 \
		--verify_state_save=0 --random_generator=tausworthe64 --output-format=terse "$@" >/tmp/said 2>&1
}

flip_middle() {
	at=$((2 << 20))
	byte=$(dd if="$1" bs=1 skip=$at count=1 2>/dev/null | od -An -tu1)
	printf "\\$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek=$at conv=notrunc 2>/dev/null
}

fio_reads() {
	mkdir /tmp/blocks
	block_test /tmp/blocks/good psync --rw=write --do_verify=0 || { cat /tmp/said; return 1; }
	cp /tmp/blocks/good /tmp/blocks/bad
	flip_middle /tmp/blocks/bad
	tmeshctl keep --folder /tmp/blocks blocks || return
	rm -r /tmp/blocks
	for engine in psync mmap splice libaio io_uring; do
		for order in read randread; do
			block_test $TMESH_MOUNT/0/blocks/good $engine --readonly --rw=$order || { echo "# $engine $order"; cat /tmp/said; return 1; }
		done
		! block_test $TMESH_MOUNT/0/blocks/bad $engine --readonly --rw=read || { echo "# $engine reads a flipped bit"; return 1; }
	done
	tmeshctl drop blocks
}

# An overlay of the kept folder in $1, with a new upper layer.
overlay() {
	mkdir -p /tmp/layers && mount -t tmpfs layers /tmp/layers && mkdir /tmp/layers/upper /tmp/layers/work /tmp/layers/merged &&
		mount -t overlay -o "lowerdir=$1,upperdir=/tmp/layers/upper,workdir=/tmp/layers/work" overlay /tmp/layers/merged
}

# Most stressors write files of their own, which an overlay of a kept folder takes. The kept files stay as they are.
stressors() {
	mkdir -p /tmp/own/sub
	for i in $(seq 20); do
		echo "$i" >/tmp/own/sub/$i
	done
	tmeshctl keep --folder /tmp/own stress || return
	kept=$TMESH_MOUNT/0/stress
	overlay $kept || return
	mkdir /tmp/layers/merged/sub/work || return
	quiet stress-ng --fstat 2 --fstat-dir $kept/sub --fstat-ops 2000 &&
		quiet stress-ng --fstat 2 --fstat-dir /tmp/layers/merged/sub --fstat-ops 2000 &&
		quiet stress-ng --temp-path /tmp/layers/merged/sub/work --verify \
			$(for name in $STRESSORS; do echo "--$name 1 --$name-ops 50"; done) || return
	umount /tmp/layers/merged && umount /tmp/layers || return
	for i in $(seq 20); do
		[ "$(cat $kept/sub/$i)" = $i ] || return
	done
	tmeshctl drop stress
}

# quiet COMMAND...: print what it says only if it fails
quiet() {
	"$@" >/tmp/said 2>&1 || { echo "# $*"; sed 's/^/# /' /tmp/said; return 1; }
}

# selftest NAME CASE COMMAND...: the exit status, in which 4 is a skip. CASE is the one that must fail on a read-only file
# system, or empty.
selftest() {
	name=$1 case=$2
	shift 2
	"$@" >/tmp/said 2>&1
	status=$?
	if [ $status = 4 ]; then
		point "selftest: $name" 0 "$(grep -m1 -i skip /tmp/said | tr -d '#')"
		return
	fi
	if [ "$case" ]; then
		[ $status = 1 ] && [ "$(grep -c '^not ok' /tmp/said)" = 1 ] && grep -q "^not ok .*$case" /tmp/said
		status=$?
	elif grep -q '^not ok' /tmp/said; then
		status=1
	fi
	[ $status = 0 ] || sed 's/^/# /' /tmp/said
	point "selftest: $name" $status
}

# The kernel's own selftests, unchanged.
selftests() {
	mkdir -p /tmp/self/mm
	seq 500 >/tmp/self/text
	: >/tmp/self/empty
	dd if=/dev/urandom of=/tmp/self/big bs=1M count=5 2>/dev/null
	dd if=/dev/urandom of=/tmp/self/pages bs=4k count=7 2>/dev/null
	# The kept folder takes the place of /proc, too.
	cp /tmp/self/pages /tmp/self/version
	tmeshctl keep --folder /tmp/self self || return
	kept=$TMESH_MOUNT/0/self
	selftest "splice: a file of two lengths" "" sh -c "[ \"\$(splice_read $kept/text 4096 | cat)\" = \"\$(cat $kept/text)\" ] &&
		[ \"\$(splice_read $kept/text 2 | cat)\" = 1 ]"
	selftest "splice: an empty file" "" sh -c "[ \$(default_file_splice_read <$kept/empty | wc -c) = 0 ]"
	selftest "openat2: a folder" "valid how.mode and O_TMPFILE" sh -c "cd $kept && openat2_test"
	for half in 001 002; do
		selftest "proc-self-map-files-$half: a file in place of /dev/zero" "" \
			unshare -m sh -c "mount --bind $kept/pages /dev/zero && proc-self-map-files-$half"
	done
	selftest "cachestat: files and a folder in place of devices and /proc" "" unshare -m sh -c "cd /tmp &&
		for path in /dev/zero /dev/null /dev/urandom; do mount --bind $kept/big \$path || exit; done
		mount --bind $kept /proc && test_cachestat"
	# It maps the file of its own name.
	(cd /tmp/self && exec -a $kept/pages /tests/pagemap_ioctl) >/tmp/said 2>&1
	if grep -q 'sanity_tests Memory mapped file' /tmp/said; then
		grep -q '^ok [0-9]* sanity_tests Memory mapped file' /tmp/said
		point "selftest: pagemap_ioctl: a file" $?
	elif uname -r | grep -q '^6\.1\.'; then
		point "selftest: pagemap_ioctl: a file" 0 "this kernel does not scan page tables"
	else
		sed 's/^/# /' /tmp/said
		point "selftest: pagemap_ioctl: a file" 1
	fi
	tmeshctl drop self
}

# A user who is root of a user namespace keeps a folder there. The mount's folder has the uid of outside.
mapped_user() {
	chmod 666 /dev/tmesh
	mkdir -p /tmp/own
	mkdir -m 700 /tmp/run-$USER
	echo own >/tmp/own/file
	chown $USER:$USER /tmp/run-$USER
	path=$(TMESH_RUNTIME_DIR=/tmp/run-$USER /tests/setpriv --reuid $USER --regid $USER --clear-groups unshare -r sh -c '
		[ "$(id -u)" = 0 ] && tmeshctl keep --folder /tmp/own own && cat "$(tmeshctl kept --path own/file)"
		tmeshctl drop own >/dev/null')
	echo "$path" | sed 's/^/# /'
	[ "$path" = "$TMESH_MOUNT/$USER/own
own" ]
}

# A mount shows the names of its IPC namespace. A process of another one has a name of its own.
other_ipc() {
	mkdir -p /tmp/first /tmp/second
	echo first >/tmp/first/file
	echo second >/tmp/second/file
	tmeshctl keep --folder /tmp/first both || return
	[ "$(cat "$(tmeshctl kept --path both/file)")" = first ] || return
	said=$(unshare -i sh -c 'tmeshctl keep --folder /tmp/second both >/dev/null; tmeshctl kept --path both/file' 2>&1) && return 1
	echo "$said" | sed 's/^/# /'
	case $said in
	*"another IPC namespace"*) tmeshctl drop both ;;
	*) return 1 ;;
	esac
}

echo "1..12"
mkdir -m 700 $TMESH_RUNTIME_DIR
tmeshctl mount $TMESH_MOUNT || exit
if [ -x /tests/fio ]; then
	fio_reads
	point "fio: each block has its checksum, by read, mmap, splice, libaio and io_uring, in order and at random" $?
else
	point "fio: each block has its checksum" 0 "this machine has no fio"
fi
if [ -x /tests/stress-ng ]; then
	stressors
	point "stress-ng: files of the mount, and an overlay of it" $?
else
	point "stress-ng: files of the mount" 0 "this machine has no stress-ng"
fi
selftests
point "selftest: the files are kept and dropped" $?
mapped_user
point "kept_path: a user of a user namespace finds the folder of its uid outside" $?
other_ipc
point "kept_path: a name of another IPC namespace is not taken for the process's own" $?
tmeshctl umount $TMESH_MOUNT || failed=1
for name in blocks both self stress; do
	tmeshctl drop $name 2>/dev/null
done
exit $failed
