#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Check a release of tmesh in a clean Debian root.
set -eu

usage() {
	cat <<'END'
usage: packaging/verify-release.sh [--suite NAME] [--root DIR] [--tests TARGET] [--keep] [SOURCES]

Checks a release as anyone would who trusts nothing that is installed here. SOURCES is a tarball
of the release, or a git checkout, whose HEAD is taken (default: the checkout of this script).

  sources   the versions agree, nothing built is among the files, every file names its licence
  root      a minimal Debian is made by debootstrap
  demo      in the root, README's first command: make demo
  tests     in the root, README's second command: make deps check, or TARGET
  install   in the root: make install, make uninstall; uninstall leaves nothing

  --suite NAME    bookworm or trixie (default: trixie)
  --root DIR      make the root in DIR, or use the one that is there (default: a temporary one)
  --tests TARGET  this make target instead of deps check, such as unit-check; "none" for none
  --keep          leave the root behind, and say where
  --sources-only  only the first step, which needs neither root nor debootstrap

Needs root, debootstrap, and a way to Debian's mirror and to PyPI. Prints TAP, and exits with 1 when
a step failed. make deps check takes half an hour to an hour.
END
}

suite=trixie root= tests='deps check' keep= only= sources=
while [ $# -gt 0 ]; do
	case $1 in
	--suite) suite=${2:?--suite needs a name}; shift ;;
	--root) root=${2:?--root needs a folder} keep=yes; shift ;;
	--tests) tests=${2:?--tests needs a make target}; shift ;;
	--keep) keep=yes ;;
	--sources-only) only=yes ;;
	-h | --help) usage; exit ;;
	-*) echo "verify-release.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
	*) [ -z "$sources" ] || { echo "verify-release.sh: one SOURCES, not two" >&2; exit 2; }
	   sources=$1 ;;
	esac
	shift
done
case $suite in
bookworm | trixie) ;;
*) echo "verify-release.sh: the suite is bookworm or trixie, not $suite" >&2; exit 2 ;;
esac
: "${sources:=$(dirname "$0")/..}"
if [ -z "$only" ]; then
	[ "$(id -u)" = 0 ] || { echo "verify-release.sh: making a root needs root; --sources-only does not" >&2; exit 2; }
	command -v debootstrap >/dev/null || { echo "verify-release.sh: install debootstrap" >&2; exit 2; }
fi

work=$(mktemp -d)
: "${root:=$work/root}"
finish() {
	for mounted in "$root/proc" "$root/dev"; do
		! mountpoint -q "$mounted" || umount -R "$mounted"
	done
	if [ -n "$keep" ] && [ -d "$root" ]; then
		echo "# the root is left in $root" >&2
		find "$work" -mindepth 1 -maxdepth 1 ! -name root -exec rm -rf {} +
	else
		rm -rf "$work"
	fi
}
trap finish EXIT
trap 'exit 130' INT TERM

count=0 failed=0
point() { # NAME COMMAND...: what the command prints is shown when it fails
	name=$1
	shift
	count=$((count + 1))
	if "$@" >"$work/log" 2>&1; then
		echo "ok $count - $name"
	else
		failed=$((failed + 1))
		echo "not ok $count - $name"
		tail -n 60 "$work/log" | sed 's/^/# /'
	fi
}
finished() {
	echo "1..$count"
	[ "$failed" = 0 ]
	exit
}

tree=$work/tmesh
mkdir "$tree"
if [ -d "$sources" ]; then
	git -C "$sources" archive HEAD | tar -x -C "$tree"
else
	tar -x -f "$sources" -C "$tree" --strip-components=1 --no-same-owner
fi

# Each check prints its findings on the standard output.
versions_agree() {
	version=$(cat "$tree/VERSION")
	told=$(sed -n 's/^## \([0-9.]*\).*/\1/p' "$tree/NEWS.md" | head -n 1)
	packaged=$(sed -n '1s/.*(\([0-9.]*\).*/\1/p' "$tree/packaging/deb/changelog")
	echo "VERSION $version, NEWS.md $told, packaging/deb/changelog $packaged"
	[ "$version" = "$told" ] && [ "$version" = "$packaged" ]
}
nothing_built() {
	! find "$tree" -type f \( -name '*.o' -o -name '*.so' -o -name '*.so.*' -o -name '*.a' -o -name '*.ko' \
		-o -name '*.pyc' -o -name '*.beam' -o -name '*.whl' \) | grep . &&
		! LC_ALL=C grep -rlaP '^\x7fELF' "$tree"
}
licences_named() {
	! find "$tree" -type f \( -name '*.[ch]' -o -name '*.py' -o -name '*.ex' -o -name '*.exs' -o -name '*.sh' \) \
		! -path '*/corpus/*' -exec grep -L SPDX-License-Identifier {} + | grep .
}
point "the versions agree" versions_agree
point "nothing built is among the files" nothing_built
point "every source file names its licence" licences_named
[ -z "$only" ] || finished

make_root() {
	[ -e "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase "$suite" "$root"
	rm -rf "$root/tmesh"
	cp -r "$tree" "$root/tmesh"
	mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
	mountpoint -q "$root/dev" || mount --rbind /dev "$root/dev"
	mount --make-rslave "$root/dev"
}
inside() {
	chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		LC_ALL=C.UTF-8 http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
		sh -euc "cd /tmesh; $1"
}
installed_files() {
	inside 'find /usr/local -type f -o -type l | sort'
}
uninstall_leaves_nothing() {
	before=$(installed_files)
	inside 'make install && tmeshctl --version && make uninstall' || return 1
	after=$(installed_files)
	[ "$before" = "$after" ] || { echo "before: $before"; echo "after: $after"; return 1; }
}
point "a clean Debian root ($suite)" make_root
point "it has make" inside 'apt-get -qq update && apt-get -qq install -y --no-install-recommends make ca-certificates'
point "make demo" inside 'make demo'
[ "$tests" = none ] || point "make $tests" inside "make $tests"
point "make install, make uninstall" uninstall_leaves_nothing
finished
