#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Install the Debian packages that tmesh needs. Debian 12 and 13.
#
#   packaging/deps.sh build   for `make` and `make install`
#   packaging/deps.sh demo    for `make demo` and the bindings as well
#   packaging/deps.sh quick   for `make quick` as well
#   packaging/deps.sh test    for `make check` as well
#   packaging/deps.sh bench   for `make demo` and `make bench`
#   packaging/deps.sh all     all of these (the default)
#
# With --missing in front it installs nothing: it names the missing packages and fails if there are any.
# If no package is missing, it prints nothing and changes nothing.
set -eu
cd "$(dirname "$0")/.."

build='gcc make pkg-config libc6-dev libjansson-dev liburing-dev libxxhash-dev scdoc bash-completion'
demo='python3 python3-dev python3-venv python3-pip python3-setuptools python3-wheel python3-numpy
	elixir erlang-dev erlang-nox libfuse3-dev'
bench='python3-torch python3-matplotlib iperf3 libfabric-dev'
# CPython's own tests are in a package whose name has the version: Debian 13 has Python 3.13, Debian 12 3.11.
testsuite=$(. /etc/os-release 2>/dev/null && [ "${VERSION_ID:-}" = 13 ] && echo 3.13 || echo 3.11)
test='libcmocka-dev man-db valgrind clang llvm lld libclang-rt-dev sparse coccinelle
	python3-torch python3-pytest python3-prometheus-client graphviz python3-fusepy
	qemu-system-x86 debootstrap busybox-static kmod e2fsprogs cpio rsync xz-utils zstd
	flex bison bc dwarves libelf-dev libssl-dev socat erlang-dialyzer
	libdrm-dev libfabric-dev systemd fuse3 fio stress-ng podman runc cmake dpkg-dev autoconf automake libtool'
test="$test libpython$testsuite-testsuite"

install=yes
if [ "${1:-}" = --missing ]; then
	install=
	shift
fi
tier=${1:-all}
case $tier in
build) wanted=$build ;;
demo) wanted="$build $demo" ;;
quick) wanted="$build $demo libcmocka-dev" ;;
test) wanted="$build $demo $test" ;;
bench) wanted="$build $demo $bench" ;;
all) wanted="$build $demo $test $bench" ;;
*)
	echo "usage: packaging/deps.sh [--missing] [build|demo|quick|test|bench|all]" >&2
	exit 2
	;;
esac
case $tier in
test | all)
	if [ -x tests/vm/deps ]; then
		wanted="$wanted $(tests/vm/deps)"
	fi
	;;
esac

if ! command -v dpkg-query >/dev/null; then
	echo "deps.sh: this is not Debian; tmesh needs the counterparts of:" >&2
	# shellcheck disable=SC2086 # one word per package
	echo $wanted | fold -s -w 92 | sed 's/^/    /' >&2
	exit 1
fi

missing=
for package in $wanted; do
	case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
	installed) ;;
	*)
		case "$missing " in
		*" $package "*) ;;
		*) missing="$missing $package" ;;
		esac
		;;
	esac
done
if [ -z "$missing" ]; then
	exit 0
fi

if [ -z "$install" ]; then
	echo "deps.sh: missing$missing" >&2
	echo "deps.sh: \`make deps TIER=$tier\` installs them" >&2
	exit 1
fi

echo "deps.sh: installing$missing"
apt='apt-get -qq -o DPkg::Lock::Timeout=300'
install="env DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends$missing"
as_root=
if [ "$(id -u)" != 0 ]; then
	as_root=sudo
	# sudo can ask for a password only at a terminal.
	if ! command -v sudo >/dev/null || { ! [ -t 0 ] && ! sudo -n true 2>/dev/null; }; then
		echo "deps.sh: that needs root. Run this, then try again:" >&2
		echo "    su -c '$apt update && $install'" >&2
		exit 1
	fi
fi

# Package lists may be stale or absent on a fresh machine, so they come first. The output of apt-get is printed
# only when it fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # words
if ! { $as_root $apt update && $as_root $install; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "deps.sh: apt-get failed" >&2
	exit 1
fi
