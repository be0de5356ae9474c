#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tmesh-bench does what it is asked for. TAP.

usage: tests/bench/test_bench.py TMESH_BENCH
"""

import json
import os
import subprocess
import sys
import tempfile

BENCH = sys.argv[1]
NAMES = {"handover", "channel", "put"}


def bench(*words, **more):
    return subprocess.run([BENCH, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **more)


def series(rounds, **more):
    done = bench(str(rounds), **more)
    assert (done.returncode, done.stderr) == (0, ""), done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["topic"] for one in found} == NAMES, found
    return found


def samples():
    for one in series(2):
        assert "skip" in one or all(ns > 0 for ns in one["ns"]), one
        assert one["topic"] != "handover" or len(one["ns"]) == 2, one


def one_cpu():
    cpu = min(os.sched_getaffinity(0))
    for one in series(1, preexec_fn=lambda: os.sched_setaffinity(0, {cpu})):
        assert ("two CPUs" in one.get("skip", "")) == (one["topic"] == "channel"), one


def bad_use():
    for words in (["0"], ["-1"], ["4097"], ["many"], [""], ["1", "2"]):
        done = bench(*words)
        assert (done.returncode, done.stdout) == (1, "") and "usage" in done.stderr, done


def no_module():
    done = bench("1", env={**os.environ, "TMESH_BACKEND": "kernel"})
    assert (done.returncode, done.stdout) == (1, "") and "no /dev/tmesh" in done.stderr, done


def main():
    failed = 0
    tests = [samples, one_cpu, bad_use, no_module]
    print(f"1..{len(tests)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TMESH_RUNTIME_DIR=f"{folder}/run", TMESH_BACKEND="memfd")
        for number, test in enumerate(tests, 1):
            note = " # SKIP the module is here" if test is no_module and os.path.exists("/dev/tmesh") else ""
            try:
                if not note:
                    test()
            except AssertionError as error:
                failed += 1
                print(f"not ok {number} - {test.__name__}: {error}", flush=True)
            else:
                print(f"ok {number} - {test.__name__}{note}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
