#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Install the Debian packages that tmesh needs. Debian 12 and 13.
#
#   packaging/deps.sh demo    to build everything but the module, and to run `make demo`
#   packaging/deps.sh bench   that, and what `make bench` compares with and draws with
#   packaging/deps.sh check   that, and what `make check` needs
#   packaging/deps.sh all     all of it (the default)
#
# When nothing is missing, nothing is touched and nothing is said.
set -eu
cd "$(dirname "$0")/.."

demo='gcc make pkg-config libc6-dev libjansson-dev liburing-dev libxxhash-dev
	python3 python3-dev python3-venv python3-pip python3-setuptools python3-wheel python3-numpy
	elixir erlang-dev erlang-nox
	scdoc bash-completion'
bench='python3-torch python3-matplotlib iperf3'
# The tests of the system's own Python, which have no package without a version: Debian 13 has
# Python 3.13, Debian 12 3.11.
testsuite=$(. /etc/os-release 2>/dev/null && [ "${VERSION_ID:-}" = 13 ] && echo 3.13 || echo 3.11)
check='libcmocka-dev man-db valgrind clang llvm lld libclang-rt-dev sparse coccinelle
	python3-pytest python3-prometheus-client graphviz python3-fusepy
	qemu-system-x86 debootstrap busybox-static kmod e2fsprogs cpio rsync xz-utils zstd
	flex bison bc dwarves libelf-dev libssl-dev socat erlang-dialyzer
	libdrm-dev libfabric-dev systemd'
check="$check libpython$testsuite-testsuite"

case ${1:-all} in
demo)
	wanted=$demo
	;;
bench)
	wanted="$demo $bench"
	;;
check | all)
	wanted="$demo $bench $check"
	if [ -x tests/vm/deps ]; then
		wanted="$wanted $(tests/vm/deps)"
	fi
	;;
*)
	echo "usage: packaging/deps.sh [demo|bench|check|all]" >&2
	exit 2
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
	*) missing="$missing $package" ;;
	esac
done
if [ -z "$missing" ]; then
	exit 0
fi

echo "deps.sh: installing$missing"
apt='apt-get -qq -o DPkg::Lock::Timeout=300'
install="env DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends$missing"
as_root=
if [ "$(id -u)" != 0 ]; then
	as_root=sudo
	# A sudo that would ask for a password is of use only where somebody can answer.
	if ! command -v sudo >/dev/null || { ! [ -t 0 ] && ! sudo -n true 2>/dev/null; }; then
		echo "deps.sh: that needs root. Run this, then try again:" >&2
		echo "    su -c '$apt update && $install'" >&2
		exit 1
	fi
fi

# Package lists may be stale or absent on a fresh machine, so they come first. What apt-get
# has to say is of interest only when it fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # words
if ! { $as_root $apt update && $as_root $install; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "deps.sh: apt-get failed" >&2
	exit 1
fi
