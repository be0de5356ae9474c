#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The runner must not be fooled: tests of tests/run.py, printing TAP."""

import importlib.util
import os

here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("run", os.path.join(here, "run.py"))
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

# name, TAP, exit status, expired -> passed, failed, skipped
CASES = [
    ("all pass", "1..2\nok 1 - a\nok 2 - b", 0, False, (2, 0, 0)),
    ("a failure", "1..2\nok 1 - a\nnot ok 2 - b", 1, False, (1, 1, 0)),
    ("a failure hidden by status 0", "1..1\nnot ok 1 - b", 0, False, (0, 1, 0)),
    ("a skip with its reason", "1..2\nok 1 a\nok 2 b # SKIP no disk", 0, False, (1, 0, 1)),
    ("a skip without a reason fails", "1..1\nok 1 a # SKIP", 0, False, (0, 1, 0)),
    ("a plan cut short", "1..3\nok 1 a", 0, False, (1, 1, 0)),
    ("no plan", "ok 1 a", 0, False, (1, 1, 0)),
    ("nothing at all", "", 0, False, (0, 1, 0)),
    ("a bad status alone", "1..1\nok 1 a", 3, False, (1, 1, 0)),
    ("a time-out", "1..1\nok 1 a", -9, True, (1, 1, 0)),
    ("two streams", "1..1\nok 1 a\n1..2\nok 1 b\nok 2 c", 0, False, (3, 0, 0)),
    ("subtests do not count twice", "1..1\n    ok 1 inner\nok 1 outer", 0, False, (1, 0, 0)),
    ("a skip word in a name", "1..1\nok 1 skip list # of five", 0, False, (1, 0, 0)),
]

bad = 0
print(f"1..{len(CASES)}")
for n, (name, text, status, expired, want) in enumerate(CASES, 1):
    tally = run.Tally()
    for line in text.split("\n"):
        tally.read(line)
    tally.close(status, expired)
    got = (tally.passed, len(tally.failures), len(tally.skips))
    ok = got == want
    bad += not ok
    print(f"{'ok' if ok else 'not ok'} {n} - {name}" + ("" if ok else f": {got}, not {want}"))
raise SystemExit(1 if bad else 0)
