#!/bin/busybox sh
# SPDX-License-Identifier: MIT
#
# A model from network file systems: 9p from the host, which has it as two clients do, and the kernel's own NFS
# server. In a guest only. Prints TAP.
#
# Counted is what the client asks the server for; /expected is what kept_hash says of the model.
number=0 failed=0
tracing=/sys/kernel/tracing
TREAD=116
MSIZE=262144
BYTES=$(stat -c %s /model.safetensors)
whole=$(cat /expected)

# point NAME COMMAND...
point() {
	name=$1
	shift
	number=$((number + 1))
	if "$@" >/tmp/said 2>&1; then
		echo "ok $number - $name"
	else
		failed=$((failed + 1))
		echo "not ok $number - $name"
		sed 's/^/# /' /tmp/said
	fi
}

p9_begin() {
	echo "type == $TREAD" >$tracing/events/9p/9p_client_req/filter
	echo 1 >$tracing/events/9p/9p_client_req/enable
	echo >$tracing/trace
}

p9_reads() { grep -c 9p_client_req: $tracing/trace; }

nfs_reads() { awk '$1 == "READ:" { print $2 }' /proc/self/mountstats; }
nfs_begin() { nfs_before=$(nfs_reads); }

# Large: at most so many that each has 64 KiB.
large() {
	echo "$1 reads of $BYTES bytes"
	[ "$1" -gt 0 ] && [ "$1" -lt $((BYTES / 65536)) ]
}

says() {
	grep -q "$1" /tmp/loaded && return
	cat /tmp/loaded
	return 1
}

is_whole() {
	/tests/kept_hash "$1" >/tmp/hash && [ "$(cat /tmp/hash)" = "$whole" ] && return
	cat /tmp/hash
	return 1
}

# load NAME PATH: and hold it, until let_go; its report is in /tmp/loaded
load() {
	/tests/tmeshctl-load --keep-as "$1" --json --for 600 "$2" >/tmp/loaded 2>&1 &
	holder=$!
	# Complete JSON ends with a brace in the first column.
	while ! grep -q '^}' /tmp/loaded && kill -0 $holder 2>/dev/null; do
		usleep 20000
	done
	grep -q '^}' /tmp/loaded && return
	cat /tmp/loaded
	return 1
}

let_go() {
	kill $holder
	wait $holder
	/tests/tmeshctl drop "$1"
}

fails() {
	/tests/tmeshctl-load --for 1 "$1" >/tmp/loaded 2>&1 && return 1
	says "$2"
}

nothing_left() { ! ls $TMESH_RUNTIME_DIR | grep '\.shared'; }

# outlives NAME: changes to the file do not reach a loaded model; $other is the path of the file for another client
outlives() {
	dd if=/dev/zero of="$other" bs=65536 count=16 conv=notrunc 2>/dev/null
	point "$1: overwritten by another client" is_whole model
	: >"$other"
	point "$1: truncated" is_whole model
	rm "$other"
	point "$1: removed" is_whole model
	point "$1: another load says so" fails "$path" "No such file"
}

# changes NAME: while it is read. faults.so stops the loader in the middle
changes() {
	LD_PRELOAD=/tests/faults.so FAULT=stop FAULT_PATH=$path FAULT_AFTER=9000000 /tests/tmeshctl-load --for 1 "$path" \
		>/tmp/loaded 2>&1 &
	loader=$!
	while ! grep -q '^State:.T' /proc/$loader/status; do
		usleep 20000
	done
	dd if=/dev/zero of="$other" bs=65536 count=16 conv=notrunc 2>/dev/null
	kill -CONT $loader
	wait $loader
	point "$1: it fails" [ $? = 1 ]
	point "$1: and says why" says "changed while it was read"
	point "$1: nothing is left" nothing_left
}

# The requests of the kernel itself for large reads without a cache: Linux 7.3 one request a page.
as_few_as_dd() {
	p9_begin
	dd if="$path" of=/dev/null bs=8M 2>/dev/null
	echo "$1 reads, and by dd $(p9_reads)"
	[ "$1" -gt 0 ] && [ "$1" -le $(($(p9_reads) * 21 / 20 + 32)) ]
}

for cache in none readahead; do
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=$MSIZE,cache=$cache model /net
	mount -t 9p -o trans=virtio,version=9p2000.L other /other
	path=/net/model.safetensors other=/other/model.safetensors
	cp /model.safetensors "$other"
	p9_begin
	point "9p, cache=$cache: loads" load model "$path"
	reads=$(p9_reads)
	point "9p, cache=$cache: is read as a network file system" says '"file_system": "9p"'
	point "9p, cache=$cache: the same bytes" is_whole model
	if [ $cache = none ]; then
		point "9p: $reads reads, not more than dd's" as_few_as_dd "$reads"
		umount -l /net
		point "9p: unmounted under it" is_whole model
		point "9p, cache=$cache: let go" let_go model
	else
		point "9p: $reads reads are large" large "$reads"
		outlives 9p
		point "9p: let go" let_go model
		cp /model.safetensors "$other"
		changes "9p, changed while it is read"
		rm "$other"
		umount /net
	fi
	umount /other
done

path=/nfs/model.safetensors other=/served/model.safetensors
if grep -q '^[1-9]' /proc/fs/nfsd/threads && mount -t nfs4 -o vers=4.1,addr=127.0.0.1,clientaddr=127.0.0.1,rsize=$MSIZE,actimeo=0 127.0.0.1:/ /nfs; then
	cp /model.safetensors $other
	nfs_begin
	point "NFS: loads" load model $path
	reads=$(($(nfs_reads) - nfs_before))
	point "NFS: $reads reads are large" large $reads
	point "NFS: is read as a network file system" says '"file_system": "nfs"'
	point "NFS: the same bytes" is_whole model
	outlives NFS
	point "NFS: let go" let_go model
	umount /nfs
else
	point "NFS: is mounted" false
fi
echo "1..$number"
[ $failed = 0 ]
