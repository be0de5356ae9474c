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

# Erlang's threads look for work before they sleep: emulated, that takes more than the work.
export ERL_FLAGS="+sbwt none +sbwtdcpu none +sbwtdio none"

in_debian="chroot /debian /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin"

huge_pages() { echo "$1" >/sys/kernel/mm/transparent_hugepage/shmem_enabled; }

if [ -n "$TMESH_HUGE" ]; then
	check "shared memory may have huge pages" huge_pages advise
	run "$TMESH_HUGE" $in_debian TMESH_BACKEND=memfd TMESH_SWITCHES_HUGE=1 make -sk --no-print-directory -C /repo "$TMESH_HUGE"
	check "shared memory has none" huge_pages never
fi

check "module loads" insmod /tmesh.ko
# One make: it takes longer to read what depends on what than many a test takes.
targets=$(echo "$TMESH_TARGETS" | tr , ' ')
TMESH_TIMEOUT=$((TMESH_TIMEOUT * $(echo $targets | wc -w)))
run "$targets" $in_debian TMESH_BACKEND=kernel make -sk --no-print-directory -C /repo CONFORM_PLAIN=1 $targets

# Workers whose client has died end by themselves, when they are done with what they do.
unused() {
	tries=60
	while [ "$(cat /sys/module/tmesh/refcnt)" != 0 ]; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		sleep 1
	done
}
check "no process uses the module" unused
check "module unloads" rmmod tmesh
