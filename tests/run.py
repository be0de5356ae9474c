#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run test suites that print TAP, and end with one line of totals.

usage: tests/run.py [--length short|full] [--resume | --report] SUITE...

A suite is a make target. Its standard output is TAP (several streams may follow each
other), kept in build/results/SUITE.tap; its standard error goes to SUITE.log beside it. A
suite has failed when a test did, when its plans do not add up to the tests it ran, when it
ran none, when it skipped without a reason, when it ended with a status other than zero, or
when it took longer than its time.

Each suite's last result stays in build/results/SUITE.json. --resume runs only the suites that
have not passed at this length on these very sources, and takes over the others' results, which
it says. --report runs nothing and tells each suite's last result, whatever it was of.
"""

import argparse
import hashlib
import json
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
PROGRESS_S = 60

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
        self.expired = False

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

    def close(self, status):
        if self.expired:
            self.failures.append("suite took longer than its time and was ended")
        if not self.ran:
            self.failures.append("suite ran no test")
        elif self.planned != self.ran:
            self.failures.append(f"suite planned {self.planned} tests and ran {self.ran}")
        if status and not self.failures:
            self.failures.append(f"suite ended with status {status}")

    def text(self):
        return f"{self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped"


def sources():
    """What says whether two runs were of the same sources; None where git cannot tell."""
    seen = hashlib.sha256()
    for words in (["rev-parse", "HEAD"], ["diff", "HEAD"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        if done.returncode:
            return None
        seen.update(done.stdout + b"\0")
    for name in done.stdout.decode().splitlines():
        with open(os.path.join(ROOT, name), "rb") as file:
            seen.update(file.read() + b"\0")
    return seen.hexdigest()[:16]


def keep(suite, length, of, tally, took):
    """Leave a suite's result for later."""
    result = {"length": length, "sources": of, "ended": time.strftime("%Y-%m-%d %H:%M"),
              "seconds": round(took), "passed": tally.passed, "failures": tally.failures,
              "skips": tally.skips}
    path = os.path.join(RESULTS, suite + ".json")
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".new", path)


def last(suite):
    """What keep() left, and the same as a tally; two None where there is nothing."""
    try:
        with open(os.path.join(RESULTS, suite + ".json")) as file:
            result = json.load(file)
    except FileNotFoundError:
        return None, None
    tally = Tally()
    tally.passed, tally.failures = result["passed"], result["failures"]
    tally.skips = [tuple(skip) for skip in result["skips"]]
    return result, tally


def watch(proc, over, tally, limit, began):
    """Tell now and then how far a suite is, and end it when its time is over."""
    expired = False
    while not over.wait(PROGRESS_S):
        spent = time.monotonic() - began
        print(f"  {tally.ran} tests after {spent / 60:.0f} min", flush=True)
        if spent > limit and not expired:
            expired = tally.expired = True
            os.killpg(proc.pid, signal.SIGKILL)


def run(suite, length, of):
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
        over = threading.Event()
        watcher = threading.Thread(target=watch, args=(proc, over, tally, LIMIT_S[length], began))
        watcher.start()
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
            over.set()
            watcher.join()
    tally.close(status)
    took = time.monotonic() - began
    keep(suite, length, of, tally, took)
    print(f"  {tally.text()} in {took:.0f} s", flush=True)
    if tally.failures:
        with open(log, errors="replace") as text:
            for line in text.readlines()[-40:]:
                print("  | " + line.rstrip("\n"))
    return tally


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", choices=("short", "full"), default="short")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="run only what has not passed yet")
    which.add_argument("--report", action="store_true", help="run nothing, tell the last results")
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    args = parser.parse_args(words)
    os.makedirs(RESULTS, exist_ok=True)
    of = sources()
    tallies = {}
    for suite in args.suites:
        result, tally = last(suite)
        if args.report and not result:
            tally = Tally()
            tally.failures.append("suite has never been run")
            print(f"# {suite}: never run")
        elif args.report:
            where = "these sources" if of and result["sources"] == of else "other sources"
            print(f"# {suite}: {tally.text()} in {result['seconds']} s, {result['length']},"
                  f" {result['ended']}, of {where}")
        elif (args.resume and result and not tally.failures and of
              and (result["sources"], result["length"]) == (of, args.length)):
            print(f"# {suite}: {tally.text()}, kept from {result['ended']}", flush=True)
        else:
            tally = run(suite, args.length, of)
        tallies[suite] = tally

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
    total = Tally()
    total.passed = sum(t.passed for t in tallies.values())
    total.failures, total.skips = failures, skips
    print(f"\n{total.text()}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
