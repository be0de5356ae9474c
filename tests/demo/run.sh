#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Install what is missing, build, fetch the model, run demo.py. The second run needs no network.
# QUERY="some words" in the environment, or as arguments, replaces the demo's own. MODEL=FILE.gguf shows that model alone, whose
# texts begin with QUERY. SHORT=1 makes fewer tokens and hand-overs, for an emulated machine.
set -eu
model=${MODEL:-}
case $model in
"" | /*) ;;
*) model=$PWD/$model ;;
esac
cd "$(dirname "$0")/../.."

work=build/demo
python=build/venv/bin/python
mkdir -p "$work"

# quietly WHAT COMMAND...: print the command's output only when it fails.
quietly() {
	what=$1
	shift
	if ! "$@" >"$work/log" 2>&1; then
		tail -n 30 "$work/log" >&2
		echo "demo: $what failed; all of its output is in $work/log" >&2
		exit 1
	fi
}

packaging/deps.sh demo
quietly "building" make lib tools keeper mount python beam engine
tests/demo/fetch.sh "$work" ${model:+engine}
words="fresh bread and butter"
[ -z "$model" ] || words="Once upon a time"
PYTHONPATH=$PWD/$work/packages
export PYTHONPATH
exec "$python" -B tests/demo/demo.py "$work" "${*:-${QUERY:-$words}}" "$model"
