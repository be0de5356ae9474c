# SPDX-License-Identifier: MIT
#
# container.sh ROOT FOLDER: run a Debian root's systemd in namespaces, with the files of FOLDER/tree. Changes of the root are kept in
# memory until this program ends. It starts systemd again while FOLDER/tree/restart is there. The caller has made a mount namespace.
set -eu
root=$1 folder=$2

# Run once: make the machine's disk.
install() {
	mount -t tmpfs tmpfs "$folder/upper"
	mkdir "$folder/upper/changes" "$folder/upper/work" "$folder/upper/merged"
	mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/upper/changes,workdir=$folder/upper/work" "$folder/upper/merged"
	cd "$folder/upper/merged"
	mkdir -p tmesh before
	# Services of the root's packages start when a page starts them.
	rm -f etc/systemd/system/*.target.wants/*.service etc/systemd/system/*.target.wants/*.timer
	sed 's|append:/dev/ttyS1|append:/tmesh/results|' "$folder/tree/tests/deploy/follow.service" >etc/systemd/system/follow.service
	mkdir -p etc/systemd/system/multi-user.target.wants
	ln -s ../follow.service etc/systemd/system/multi-user.target.wants/
	# The machine's own devices and terminals are no matter of this one.
	for unit in systemd-udevd systemd-udev-trigger console-getty getty@tty1; do
		ln -sf /dev/null "etc/systemd/system/$unit.service"
	done
}

# Run for each start, in namespaces of its own.
start() {
	cd "$folder/upper/merged"
	mount -t proc proc proc
	mount --rbind /sys sys
	mount --rbind /dev dev
	# A page fills it.
	mount -t tmpfs -o size=256M tmpfs run
	umount -R sys/fs/cgroup
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount --bind "$folder/tree" tmesh
	mount --bind "$folder/cmdline" proc/cmdline
	# Not by chroot: a process in one may not make a user namespace, as services with PrivateUsers= do.
	pivot_root . before
	exec /usr/sbin/chroot . /bin/sh -c 'umount -l /before && exec /usr/bin/env container=tmesh "$@"' sh /lib/systemd/systemd --show-status=0 --log-target=console
}

if [ "${3-}" ]; then
	start
fi
install
# A control group of its own: another systemd in the same group, such as that of keep-check, would take its processes for its own.
mkdir -p "$folder/groups"
mount -t cgroup2 cgroup2 "$folder/groups"
group=$(mktemp -d "$folder/groups/tmesh-deploy-XXXXXX")
chmod 755 "$group"
echo 0 >"$group/cgroup.procs"
while :; do
	status=0
	unshare --mount --pid --cgroup --uts --ipc --fork --kill-child sh "$0" "$root" "$folder" start || status=$?
	[ -e "$folder/tree/restart" ] || break
done
echo 0 >"$folder/groups/cgroup.procs"
find "$group" -depth -type d -exec rmdir {} +
exit $status
