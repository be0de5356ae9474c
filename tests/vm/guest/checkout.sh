# SPDX-License-Identifier: MIT
#
# Suites of the checkout in the Debian 13 root, on the module. Sourced by guest/init.

mkdir /debian
check "root is mounted" mount -t ext4 /dev/vda /debian
check "checkout is mounted" mount -t ext4 /dev/vdb /debian/repo
for dir in proc sys dev tmp; do
	check "/$dir is mounted" mount --rbind /$dir /debian/$dir
done

# As systemd has it; busybox leaves what the kernel begins with.
ulimit -Hn 524288

check "module loads" insmod /tmesh.ko
for target in $(echo "$TMESH_TARGETS" | tr , ' '); do
	run "$target" chroot /debian /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		TMESH_BACKEND=kernel make -s --no-print-directory -C /repo "$target"
done

# Workers whose client has died end by themselves, when they are done with what they do.
unused() {
	tries=60
	while [ "$(cat /sys/module/tmesh/refcnt)" != 0 ]; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		sleep 1
	done
}
check "nobody uses the module" unused
check "module unloads" rmmod tmesh
