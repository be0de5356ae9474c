# SPDX-License-Identifier: MIT
#
# Models from network file systems, on memfds and on the module. Sourced by guest/init.

export TMESH_RUNTIME_DIR=/tmp/runtime TMESH_KEEPER=/tests/tmesh-keeper
mkdir -m 0700 $TMESH_RUNTIME_DIR
mkdir /net /other /nfs /served
# As systemd has it; busybox leaves what the kernel begins with.
ulimit -Hn 524288

# The kernel's own server, fed with what mountd would answer.
serve() {
	rpc=/proc/net/rpc
	mount -t tmpfs served /served
	mount -t nfsd nfsd /proc/fs/nfsd || return
	echo "nfsd 127.0.0.1 2147483647 self" >$rpc/auth.unix.ip/channel || return
	# Flags: insecure ports, no check of subtrees, a number of its own.
	echo "self /served 2147483647 $((0x2 | 0x400 | 0x2000)) 65534 65534 0" >$rpc/nfsd.export/channel || return
	echo 'self 1 \x00000000 2147483647 /served' >$rpc/nfsd.fh/channel || return
	# Opens wait for so long, for clients of before: the least that it takes.
	echo 10 >/proc/fs/nfsd/nfsv4gracetime || return
	# Those before it would want rpcbind.
	echo "-2 -3 +4" >/proc/fs/nfsd/versions || return
	echo "tcp 2049" >/proc/fs/nfsd/portlist || return
	echo 2 >/proc/fs/nfsd/threads || return
	# By the network, not by the server's own files.
	[ ! -e /sys/module/nfs/parameters/localio_enabled ] || echo N >/sys/module/nfs/parameters/localio_enabled
}

check "module loads" insmod /tmesh.ko
check "an NFS server starts" serve
for backend in memfd kernel; do
	export TMESH_BACKEND=$backend
	run "$backend" /tests/netfs.sh
done
check "module unloads" rmmod tmesh
