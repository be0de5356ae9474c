#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The runner must not be fooled: tests of tests/run.py, printing TAP."""

import contextlib
import importlib.util
import io
import os
import re
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("run", os.path.join(here, "run.py"))
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

# name, TAP, exit status, expired -> passed, failed, skipped
CASES = [
    ("all pass", "1..2\nok 1 - a\nok 2 - b", 0, None, (2, 0, 0)),
    ("a failure", "1..2\nok 1 - a\nnot ok 2 - b", 1, None, (1, 1, 0)),
    ("a failure hidden by status 0", "1..1\nnot ok 1 - b", 0, None, (0, 1, 0)),
    ("a skip with its reason", "1..2\nok 1 a\nok 2 b # SKIP no disk", 0, None, (1, 0, 1)),
    ("a skip without a reason fails", "1..1\nok 1 a # SKIP", 0, None, (0, 1, 0)),
    ("a plan cut short", "1..3\nok 1 a", 0, None, (1, 1, 0)),
    ("no plan", "ok 1 a", 0, None, (1, 1, 0)),
    ("nothing at all", "", 0, None, (0, 1, 0)),
    ("a bad status alone", "1..1\nok 1 a", 3, None, (1, 1, 0)),
    ("a time-out", "1..1\nok 1 a", -9, "took longer than its time", (1, 1, 0)),
    ("two streams", "1..1\nok 1 a\n1..2\nok 1 b\nok 2 c", 0, None, (3, 0, 0)),
    ("subtests do not count twice", "1..1\n    ok 1 inner\nok 1 outer", 0, None, (1, 0, 0)),
    ("a skip word in a name", "1..1\nok 1 skip list # of five", 0, None, (1, 0, 0)),
]

bad = number = 0


def point(ok, name, detail=""):
    global bad, number
    bad += not ok
    number += 1
    print(f"{'ok' if ok else 'not ok'} {number} - {name}" + ("" if ok else f": {detail}"))


for name, text, status, expired, want in CASES:
    tally = run.Tally()
    for line in text.split("\n"):
        tally.read(line)
    tally.expired = expired
    tally.close(status)
    got = (tally.passed, len(tally.failures), len(tally.skips))
    point(got == want, name, f"{got}, not {want}")

# The reason of a failed test: its harness's comment after the result, or before it.
for name, text, want in [
    ("why, said after", "1..3\nok 1 a\n# of a\nnot ok 2 b\n# 1 != 2\n# b.c:7\nok 3 c\n# of c", ["# 1 != 2", "# b.c:7"]),
    ("why, said before", "1..2\n# of another\nok 1 a\n# b.c:7\nnot ok 2 b", ["# b.c:7"]),
    ("why, at length", "1..1\nnot ok 1 b\n" + "# x\n" * 100, ["# x"] * 8),
    ("nothing is said", "1..2\nok 1 a\nnot ok 2 b", []),
]:
    tally = run.Tally()
    for line in text.split("\n"):
        tally.read(line)
    point(tally.why == {"b": want}, name, str(tally.why))

# Suites that say how often they were run; the second one fails until `mended` is there.
MAKEFILE = """
good:
\t@echo good >>ran; printf '1..1\\nok 1 a\\n'
late:
\t@echo late >>ran; printf '1..1\\nok 1 b\\n'; test -e mended
why:
\t@printf '1..1\\nnot ok 1 b\\n# b.c:7: 1 != 2\\n'
# Fails the first time, by what a guest's kernel wrote.
complaint:
\t@test -e ran && echo ok 1 || echo not ok 1 - the kernel complained about nothing; echo $@ >>ran; echo 1..1
# Fails the first time it is run.
chance:
\t@test -e ran && echo ok 1 - c || printf 'not ok 1 - c\\n# c.c:9: late\\n'; echo chance >>ran; echo 1..1
# Neither ends before the other has begun.
this that:
\t@echo $@ >>ran; for i in $$(seq 6000); do test $$(wc -l <ran) = 2 && break; sleep 0.1; done; \\
\techo 1..1; test $$(wc -l <ran) = 2 && echo ok 1 || echo not ok 1
# One says that it is over; the other has then to find that.
before:
\t@sleep 0.2; echo $@ >>ran; printf '1..1\\nok 1\\n'
hangs:
\t@echo 1..2; echo ok 1; (exec setsid sleep 999) & (exec sleep 998)
vm-slow:
\t@sleep 6; echo 1..1; echo ok 1
after:
\t@echo $@ >>ran; echo 1..1; grep -q before ran && echo ok 1 || echo not ok 1
"""


def runs(folder, *words, suites=("good", "late")):
    """(status, suites that were run, last line) of a call of the runner."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "ran"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = run.main([*words, *suites])
    ran = []
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "ran")) as file:
        ran = file.read().split()
    runs.said = said.getvalue()
    return status, ran, runs.said.splitlines()[-1]


with tempfile.TemporaryDirectory() as folder:
    run.ROOT, run.RESULTS = folder, os.path.join(folder, "results")
    run.sources = lambda: "first"
    with open(os.path.join(folder, "Makefile"), "w") as file:
        file.write(MAKEFILE)
    STEPS = [
        ("a report before any run", ("--report",), (1, [], "0 passed, 2 failed, 0 skipped")),
        ("a run", (), (1, ["good", "late"], "2 passed, 1 failed, 0 skipped")),
        ("its report", ("--report",), (1, [], "2 passed, 1 failed, 0 skipped")),
        ("resuming runs what failed", ("--resume",), (1, ["late"], "2 passed, 1 failed, 0 skipped")),
        ("another length runs all", ("--resume", "--length", "full"),
         (1, ["good", "late"], "2 passed, 1 failed, 0 skipped")),
        ("mended", ("--resume", "--length", "full"), (0, ["late"], "2 passed, 0 failed, 0 skipped")),
        ("all has passed", ("--resume", "--length", "full"), (0, [], "2 passed, 0 failed, 0 skipped")),
        ("other sources run all", ("--resume", "--length", "full"),
         (0, ["good", "late"], "2 passed, 0 failed, 0 skipped")),
        ("unknown sources run all", ("--resume", "--length", "full"),
         (0, ["good", "late"], "2 passed, 0 failed, 0 skipped")),
        ("without --resume all run", ("--length", "full"),
         (0, ["good", "late"], "2 passed, 0 failed, 0 skipped")),
    ]
    for name, words, want in STEPS:
        if name == "mended":
            open(os.path.join(folder, "mended"), "w").close()
        if name == "other sources run all":
            run.sources = lambda: "second"
        if name == "unknown sources run all":
            run.sources = lambda: None
        got = runs(folder, *words)
        point(got == want, name, f"{got}, not {want}")

    runs(folder, suites=("good",))
    point(re.search(r"^# good: 1 passed, 0 failed, 0 skipped in \d+ s, \d+ s of CPU$", runs.said, re.M),
          "the report has a suite's time", runs.said)

    for name, words in [("the end says why", ()), ("a report says why", ("--report",))]:
        runs(folder, *words, suites=("why",))
        point("\nFailed:\n  why: b\n    | # b.c:7: 1 != 2\n" in runs.said, name, runs.said)

    got = runs(folder, "--jobs", "2", suites=("this", "that"))
    point(got[0] == 0 and sorted(got[1]) == ["that", "this"], "two rows run side by side", got)
    got = runs(folder, "--jobs", "2", suites=("before,after",))
    point(got[:2] == (0, ["before", "after"]), "the suites of a row run one after another", got)

    got = runs(folder, suites=("chance",))
    point(got == (1, ["chance"], "0 passed, 1 failed, 0 skipped"), "a failure is final if nothing else is asked for", got)
    got = runs(folder, "--again", "1", suites=("chance", "good"))
    point(got == (0, ["chance", "good", "chance"], "2 passed, 0 failed, 0 skipped"), "a suite that failed runs again behind all",
          got)
    first = "\nFailed at first, in a suite that was run again:\n  chance: c\n    | # c.c:9: late\n"
    point(first in runs.said and "\nFailed:" not in runs.said, "the report has the first failure", runs.said)
    with open(os.path.join(run.RESULTS, "chance.first.tap")) as file:
        point("not ok 1 - c" in file.read(), "the first run's output is left")
    got = runs(folder, "--report", suites=("chance",))
    point(got[0] == 0 and first in runs.said, "a report tells it too", runs.said)
    got = runs(folder, "--again", "1", suites=("why", "good"))
    point(got == (1, ["good"], "1 passed, 1 failed, 0 skipped") and "Failed at first" in runs.said and "\nFailed:" in runs.said,
          "what fails again has failed", runs.said)
    got = runs(folder, "--again", "1", suites=("chance", "why"))
    point(got == (1, ["chance"], "0 passed, 2 failed, 0 skipped"), "more suites than that are no chance", got)
    got = runs(folder, "--again", "1", "--once", "late,chance", suites=("chance",))
    point(got == (1, ["chance"], "0 passed, 1 failed, 0 skipped"), "a suite that is run once is not run again", got)
    got = runs(folder, "--again", "1", suites=("complaint",))
    point(got == (1, ["complaint"], "0 passed, 1 failed, 0 skipped"), "a kernel's complaint is final", got)

    # On a busy machine a suite prints nothing for its first second.
    run.PROGRESS_S, run.QUIET_S = 0.2, {"short": 5}
    began = time.monotonic()
    got = runs(folder, suites=("hangs", "good"))
    point(got == (1, ["good"], "2 passed, 2 failed, 0 skipped"), "a suite that prints nothing is ended, and the next one runs", got)
    point("hangs: suite printed no result for" in runs.said and "sleep 998" in runs.said, "the log tells what it waited for", runs.said)
    got = runs(folder, suites=("vm-slow",))
    point(got == (0, [], "1 passed, 0 failed, 0 skipped"), "a guest may be quiet", got)
    run.QUIET_S = {"short": 999}
    got = runs(folder, "--within", "0.02", "--again", "3", suites=("hangs,good", "this"))
    point(got[0] == 1 and "good" not in got[1] and "good: suite did not begin before the run's time was over" in runs.said,
          "a run's time ends it", runs.said)
    point(time.monotonic() - began < 600, "nothing waits for what a suite left behind")

print(f"1..{number}")
raise SystemExit(1 if bad else 0)
