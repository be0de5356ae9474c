# SPDX-License-Identifier: MIT
#
# The Python and Elixir suites in the Debian 13 root, on the module. Sourced by guest/init.

mkdir /debian
check "root is mounted" mount -t ext4 /dev/vda /debian
check "checkout is mounted" mount -t ext4 /dev/vdb /debian/repo
for dir in proc sys dev tmp; do
	check "/$dir is mounted" mount --rbind /$dir /debian/$dir
done

check "module loads" insmod /tmesh.ko
for suite in $(echo "$TMESH_BINDINGS" | tr , ' '); do
	run "$suite" chroot /debian /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		TMESH_BACKEND=kernel make -s --no-print-directory -C /repo "$suite"
done
check "module unloads" rmmod tmesh
