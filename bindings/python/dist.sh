#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Build what is published: a source distribution, and from it a wheel.
#
#   bindings/python/dist.sh FOLDER
#
# The wheel serves every Python from 3.11 on (abi3). Where auditwheel is installed it brings
# other libraries along and is tagged for the oldest glibc that it works with (manylinux). Else it
# works only where these are as on this machine, and the script says so. PYTHON is the Python that builds.
# packaging/manylinux.sh calls this script with a compiler for older machines.
set -eu
out=$(mkdir -p "${1:?usage: dist.sh FOLDER}" && cd "$1" && pwd)
python=${PYTHON:-python3}
case $python in
*/*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;;
esac
cd "$(dirname "$0")"

# Published files have no debugging information.
export LDFLAGS="${LDFLAGS:-} -s"

raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT

"$python" -W ignore setup.py -q sdist --dist-dir "$raw"
# An older wheel there may be of another version.
rm -f "$out"/libtmesh-*.tar.gz "$out"/libtmesh-*.whl
cp "$raw"/libtmesh-*.tar.gz "$out"

isolation=--no-build-isolation
"$python" -c 'import setuptools, wheel' 2>/dev/null || isolation=
# shellcheck disable=SC2086 # one word or none
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps $isolation \
	--wheel-dir "$raw" "$out"/libtmesh-*.tar.gz

if "$python" -m auditwheel --version >/dev/null 2>&1; then
	PATH=$(dirname "$python"):$PATH \
		"$python" -m auditwheel repair --wheel-dir "$out" "$raw"/libtmesh-*.whl >"$raw/log" 2>&1 ||
		{ cat "$raw/log" >&2; exit 1; }
else
	echo "dist.sh: auditwheel is not installed: a wheel for machines like this one" >&2
	cp "$raw"/libtmesh-*.whl "$out"
fi
