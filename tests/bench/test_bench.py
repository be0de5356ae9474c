#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tmesh-bench does what it is asked for. TAP.

usage: tests/bench/test_bench.py TMESH_BENCH
"""

import contextlib
import io
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile

import bounds
import page
import run

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


def a_bench_that_fails():
    """The other benches still run, the table has all lines, and the failed one is named."""
    record = '{"topic": "t", "name": "n", "ns": [5]}'
    with tempfile.TemporaryDirectory() as folder:
        run.OUT, run.MODULE = Path(folder), Path(folder) / "module.json"
        run.COMMANDS = (["false"], ["sh", "-c", f"echo '{record}'; echo '{{\"cut'; exit 3"], ["echo", record])
        run.SECTIONS = [bounds.Section("a section", (bounds.Bound("a line", "t/n", "t/n", "itself", 1),))]
        run.draw = lambda sections, facts: None
        said = io.StringIO()
        sys.argv[1:] = []
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            status = run.main()
        text = said.getvalue()
        assert status and "met" in text and "false ended with status 1" in text and "ended with status 3" in text, text
        assert (run.OUT / "bench.json").exists()
        target = Path(folder) / "page.md"
        target.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nbehind\n")
        assert page.main([target]) == 0
        text = target.read_text()
        assert "old" not in text and text.startswith("before\n") and text.endswith("behind\n"), text
        assert "| **a section** | | | | |\n| a line | itself | 1.00 | 1 | met |\n" in text, text


def main():
    failed = 0
    tests = [samples, one_cpu, bad_use, no_module, a_bench_that_fails]
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
