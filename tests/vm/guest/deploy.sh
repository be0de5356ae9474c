# SPDX-License-Identifier: MIT
#
# Hand over to the systemd of a Debian 13 root, which follows pages (tests/deploy/guest.py). Sourced by guest/init.

mkdir /debian
check "root is mounted" mount -t ext4 /dev/vda /debian
mkdir /debian/tmesh
check "packages and pages are mounted" mount -t ext4 /dev/vdb /debian/tmesh
cp /tmesh.ko /debian/root/
if [ -e /debian/tmesh/restart ]; then
	exec switch_root /debian /lib/systemd/systemd
elif [ -e /debian/tmesh/started ]; then
	check "the guest restarts only by a page's command" false
	poweroff -f
fi
touch /debian/tmesh/started
# Services of the root's packages start when a page starts them.
rm -f /debian/etc/systemd/system/*.target.wants/*.service /debian/etc/systemd/system/*.target.wants/*.timer
cp /debian/tmesh/tests/deploy/follow.service /debian/etc/systemd/system/
mkdir -p /debian/etc/systemd/system/multi-user.target.wants
ln -s ../follow.service /debian/etc/systemd/system/multi-user.target.wants/
exec switch_root /debian /lib/systemd/systemd
