#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run test suites that print TAP, and end with one line of totals.

usage: tests/run.py [--length short|full] SUITE...

A suite is a make target. Its standard output is TAP (several streams may follow each
other), kept in build/results/SUITE.tap; its standard error goes to SUITE.log beside it. A
suite has failed when a test did, when its plans do not add up to the tests it ran, when it
ran none, when it skipped without a reason, when it ended with a status other than zero, or
when it took longer than its time.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "build", "results")
LIMIT_S = {"short": 45 * 60, "full": 8 * 3600}

LINE = re.compile(r"(not )?ok\b *(\d+)? *(?:- )?(.*)")
PLAN = re.compile(r"1\.\.(\d+)(?:\s*#\s*skip\b\s*(.*))?\s*$", re.I)
DIRECTIVE = re.compile(r"\s#\s*SKIP\b\s*(.*)$", re.I)


class Tally:
    """What one suite's TAP said."""

    def __init__(self):
        self.passed = 0
        self.planned = 0
        self.ran = 0
        self.failures = []
        self.skips = []

    def read(self, line):
        plan = PLAN.match(line)
        if plan:
            self.planned += int(plan.group(1))
            return
        test = LINE.match(line)
        if not test:
            return
        self.ran += 1
        bad, number, name = test.groups()
        skip = DIRECTIVE.search(" " + name)
        title = DIRECTIVE.sub("", " " + name).strip() or f"test {number}"
        if bad:
            self.failures.append(title)
        elif skip and skip.group(1).strip():
            self.skips.append((title, skip.group(1).strip()))
        elif skip:
            self.failures.append(f"{title} (skipped without a reason)")
        else:
            self.passed += 1

    def close(self, status, expired):
        if expired:
            self.failures.append("suite took longer than its time and was ended")
        if not self.ran:
            self.failures.append("suite ran no test")
        elif self.planned != self.ran:
            self.failures.append(f"suite planned {self.planned} tests and ran {self.ran}")
        if status and not self.failures:
            self.failures.append(f"suite ended with status {status}")


def run(suite, length):
    """Run one suite and return its tally; a failing suite's log is shown."""
    tally = Tally()
    env = dict(os.environ, TMESH_TEST_LENGTH=length)
    log = os.path.join(RESULTS, suite + ".log")
    began = time.monotonic()
    print(f"# {suite}", flush=True)
    with open(log, "w") as err, open(os.path.join(RESULTS, suite + ".tap"), "w") as tap:
        proc = subprocess.Popen(
            ["make", "-s", "--no-print-directory", suite],
            cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
            text=True, errors="replace", start_new_session=True)
        expired = threading.Event()

        def expire():
            expired.set()
            os.killpg(proc.pid, signal.SIGKILL)

        timer = threading.Timer(LIMIT_S[length], expire)
        timer.start()
        try:
            for line in proc.stdout:
                tap.write(line)
                tap.flush()
                tally.read(line.rstrip("\n"))
                if line.startswith("not ok"):
                    print("  " + line.rstrip("\n"), flush=True)
            status = proc.wait()
        except BaseException:
            os.killpg(proc.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
    tally.close(status, expired.is_set())
    took = time.monotonic() - began
    print(f"  {tally.passed} passed, {len(tally.failures)} failed, {len(tally.skips)} skipped"
          f" in {took:.0f} s", flush=True)
    if tally.failures:
        with open(log, errors="replace") as text:
            for line in text.readlines()[-40:]:
                print("  | " + line.rstrip("\n"))
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", choices=("short", "full"), default="short")
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    args = parser.parse_args()
    os.makedirs(RESULTS, exist_ok=True)
    tallies = {suite: run(suite, args.length) for suite in args.suites}

    skips = [(s, *skip) for s, t in tallies.items() for skip in t.skips]
    failures = [(s, f) for s, t in tallies.items() for f in t.failures]
    if skips:
        print("\nSkipped:")
        for suite, title, reason in skips:
            print(f"  {suite}: {title}: {reason}")
    if failures:
        print("\nFailed:")
        for suite, title in failures:
            print(f"  {suite}: {title}")
    passed = sum(t.passed for t in tallies.values())
    print(f"\n{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
