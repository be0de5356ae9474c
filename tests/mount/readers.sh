#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fio and a user namespace on the file system of tmesh.ko: what a guest runs as root, from /tests. Prints TAP.

export TMESH_BACKEND=kernel TMESH_RUNTIME_DIR=/tmp/run TMESH_MOUNT=/tmp/tree PATH=/tests:$PATH
USER=1001
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

echo "1..3"
mkdir -m 700 $TMESH_RUNTIME_DIR
tmeshctl mount $TMESH_MOUNT || exit
if [ -x /tests/fio ]; then
	fio_reads
	point "fio: each block has its checksum, by read, mmap, splice, libaio and io_uring, in order and at random" $?
else
	point "fio: each block has its checksum" 0 "this machine has no fio"
fi
mapped_user
point "kept_path: a user of a user namespace finds the folder of its uid outside" $?
other_ipc
point "kept_path: a name of another IPC namespace is not taken for the process's own" $?
tmeshctl umount $TMESH_MOUNT || failed=1
for name in blocks both; do
	tmeshctl drop $name 2>/dev/null
done
exit $failed
