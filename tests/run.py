#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run test suites that print TAP, and end with one line of totals.

usage: tests/run.py [--length short|full] [--jobs N] [--again N] [--once SUITE[,SUITE...]] [--within MINUTES]
                    [--resume | --report] SUITE[,SUITE...]...

A suite is a make target. Suites joined by commas run one after another, because they share what
they build; up to N such rows run side by side. A suite's standard output is TAP (several streams
may follow each other), kept in build/results/SUITE.tap; its standard error goes to SUITE.log beside it. A suite has failed when
a test did, when its plans do not add up to the tests it ran, or when it ran none. It has also failed when it skipped without a
reason, ended with a status other than zero, or took longer than its time. A suite that prints no result for too long hangs. It is
ended, and what its processes waited for is in its log. With --within, all suites end after that time; those that did not begin
have failed.

With --again N, when all have ended and at most N suites have failed, each of these runs once more,
alone. The second result counts. The first failure is listed with its reason, before the totals and in the suite's result. It is
a defect of the test or of its subject, which only a slow or busy machine shows. SUITE.first.tap and SUITE.first.log are of that
run. Final are failures of more than N suites, those of suites in --once, and a kernel's complaint.

Each suite's last result stays in build/results/SUITE.json. With --resume only the suites run that have not passed at this length
on these very sources; the others are named, and their results are taken over. With --report nothing runs. Each suite's last result is printed,
whatever it was of.
"""

import argparse
import concurrent.futures
import contextlib
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
LIMIT_S = {"short": 60 * 60, "full": 8 * 3600}
# Kernels are fetched and built by suites of their own, so that the time of the others begins when a guest boots.
READY, READY_LIMIT_S = "vm-ready-", 45 * 60
# No test of a suite takes longer, but a guest boots before its first one and has time limits of its own.
QUIET_S = {"short": 15 * 60, "full": 60 * 60}
GUEST = "vm-"
MARK = "TMESH_TEST_SUITE"
PROGRESS_S = 60
WHY_LINES = 8
# A kernel's complaint is a defect even if it does not come again.
FINAL = re.compile(r"the kernel complained")

LINE = re.compile(r"(not )?ok\b *(\d+)? *(?:- )?(.*)")
PLAN = re.compile(r"1\.\.(\d+)(?:\s*#\s*skip\b\s*(.*))?\s*$", re.I)
DIRECTIVE = re.compile(r"\s#\s*SKIP\b\s*(.*)$", re.I)


class Tally:
    """The results in one suite's TAP."""

    def __init__(self):
        self.passed = 0
        self.planned = 0
        self.ran = 0
        self.failures = []
        self.why = {}  # of a failure: its harness's comment
        self.skips = []
        self.expired = None  # the reason why the suite was ended
        self.at_first = None  # the tally of a first run that failed, if this is the second
        self.notes, self.failed = [], None

    def read(self, line):
        plan = PLAN.match(line)
        if plan:
            self.planned += int(plan.group(1))
            return
        test = LINE.match(line)
        if not test:
            if line.startswith("#"):
                self.note(line)
            return
        self.result(test)
        self.notes = []

    def note(self, line):
        """A comment. One harness gives the reason before the result, another after it: a later comment counts more."""
        self.notes.append(line)
        if self.failed:
            self.why[self.failed] = self.notes[:WHY_LINES]

    def result(self, test):
        self.ran += 1
        self.failed = None
        bad, number, name = test.groups()
        skip = DIRECTIVE.search(" " + name)
        title = DIRECTIVE.sub("", " " + name).strip() or f"test {number}"
        if bad:
            self.failures.append(title)
            self.failed, self.why[title] = title, self.notes[-WHY_LINES:]
        elif skip and skip.group(1).strip():
            self.skips.append((title, skip.group(1).strip()))
        elif skip:
            self.failures.append(f"{title} (skipped without a reason)")
        else:
            self.passed += 1

    def close(self, status):
        if self.expired:
            self.failures.append(f"suite {self.expired} and was ended")
        if not self.ran:
            self.failures.append("suite ran no test")
        elif self.planned != self.ran:
            self.failures.append(f"suite planned {self.planned} tests and ran {self.ran}")
        if status and not self.failures:
            self.failures.append(f"suite ended with status {status}")

    def text(self):
        return f"{self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped"


def sources():
    """Return a digest that shows whether two runs had the same sources; None if git cannot tell."""
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


def keep(suite, length, of, tally, took, cpu):
    """Leave a suite's result for later."""
    result = {"length": length, "sources": of, "ended": time.strftime("%Y-%m-%d %H:%M"),
              "seconds": round(took), "cpu_seconds": round(cpu), "passed": tally.passed, "failures": tally.failures,
              "why": tally.why, "skips": tally.skips}
    if tally.at_first:
        result["at_first"] = {"failures": tally.at_first.failures, "why": tally.at_first.why}
    path = os.path.join(RESULTS, suite + ".json")
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".new", path)


def last(suite):
    """Return the results that keep() left, and the same as a tally; two None if there are none."""
    try:
        with open(os.path.join(RESULTS, suite + ".json")) as file:
            result = json.load(file)
    except FileNotFoundError:
        return None, None
    tally = Tally()
    tally.passed, tally.failures, tally.why = result["passed"], result["failures"], result["why"]
    tally.skips = [tuple(skip) for skip in result["skips"]]
    if first := result.get("at_first"):
        tally.at_first = Tally()
        tally.at_first.failures, tally.at_first.why = first["failures"], first["why"]
    return result, tally


class Runner:
    """Run suites, several at once if asked to, and print the result of each when it has ended."""

    def __init__(self, length, resume):
        self.length, self.resume, self.of = length, resume, sources()
        self.tallies = {}
        self.lock = threading.Lock()
        self.running = set()
        self.stopped = self.late = False

    def say(self, *lines):
        with self.lock:
            print(*lines, sep="\n", flush=True)

    def row(self, suites):
        """Suites that run one after another."""
        for suite in suites:
            if not self.stopped:
                self.tallies[suite] = self.kept(suite) or self.suite(suite)
            elif self.late:
                self.tallies[suite] = Tally()
                self.tallies[suite].failures.append("suite did not begin before the run's time was over")

    def kept(self, suite):
        """With --resume, take the results of an earlier run of these sources."""
        result, tally = last(suite) if self.resume else (None, None)
        if (not result or tally.failures or not self.of
                or (result["sources"], result["length"]) != (self.of, self.length)):
            return None
        self.say(f"# {suite}: {tally.text()}, kept from {result['ended']}")
        return tally

    def again(self, most, once):
        """Run each suite that has failed once more, if it may be for what ran beside it."""
        failed = [suite for suite, tally in self.tallies.items() if tally.failures]
        if self.stopped:
            return
        for suite in failed if len(failed) <= most else ():
            if suite not in once and not any(map(FINAL.search, self.tallies[suite].failures)):
                for end in (".tap", ".log"):
                    os.replace(os.path.join(RESULTS, suite + end), os.path.join(RESULTS, suite + ".first" + end))
                self.say(f"# {suite} runs again, alone")
                self.tallies[suite] = self.suite(suite, at_first=self.tallies[suite])

    def suite(self, suite, at_first=None):
        """Run one suite and return its tally; a failing suite's log is shown."""
        tally = Tally()
        tally.at_first = at_first
        log = os.path.join(RESULTS, suite + ".log")
        began = time.monotonic()
        with open(log, "w") as err, open(os.path.join(RESULTS, suite + ".tap"), "w") as tap:
            status, cpu = self.watched(suite, tally, tap, err)
        tally.close(status)
        took = time.monotonic() - began
        keep(suite, self.length, self.of, tally, took, cpu)
        said = [f"# {suite}: {tally.text()} in {took:.0f} s, {cpu:.0f} s of CPU"]
        if tally.failures:
            said += [f"  not ok: {title}" for title in tally.failures]
            with open(log, errors="replace") as text:
                said += ["  | " + line.rstrip("\n") for line in text.readlines()[-40:]]
        self.say(*said)
        return tally

    def watched(self, suite, tally, tap, err):
        """Return a suite's exit status, and the seconds of CPU that it took with the processes that it waited for.
        Print its progress now and then, and end it when its time is over."""
        mark = f"{os.getpid()}.{suite}"
        proc = subprocess.Popen(
            ["make", "-s", "--no-print-directory", suite],
            cwd=ROOT, env={**os.environ, "TMESH_TEST_LENGTH": self.length, MARK: mark}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=err, text=True, errors="replace", start_new_session=True)
        proc.mark = f"{MARK}={mark}".encode()
        self.running.add(proc)
        if self.stopped:
            kill(proc)
        over = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(suite, proc, over, tally, err))
        watcher.start()
        try:
            for line in proc.stdout:
                tap.write(line)
                tap.flush()
                tally.read(line.rstrip("\n"))
            _, status, used = os.wait4(proc.pid, 0)
            proc.returncode = os.waitstatus_to_exitcode(status)
            return proc.returncode, used.ru_utime + used.ru_stime
        finally:
            over.set()
            watcher.join()
            self.running.discard(proc)

    def watch(self, suite, proc, over, tally, err):
        spent = quiet = ran = 0
        while not over.wait(PROGRESS_S):
            spent += PROGRESS_S
            quiet = quiet + PROGRESS_S if tally.ran == ran else 0
            ran = tally.ran
            self.say(f"  {suite}: {ran} tests after {spent / 60:.0f} min")
            if not tally.expired and (why := self.too_long(suite, spent, quiet)):
                tally.expired = why
                err.write(stacks(proc))
                err.flush()
                kill(proc)

    def too_long(self, suite, spent, quiet):
        """Return why a suite is to be ended, or None."""
        if spent > (READY_LIMIT_S if suite.startswith(READY) else LIMIT_S[self.length]):
            return "took longer than its time"
        if quiet >= QUIET_S[self.length] and not suite.startswith(GUEST):
            return f"printed no result for {quiet / 60:.0f} min"
        return None

    def end_after(self, seconds):
        """Stop when all suites' time is over, and return the timer."""
        def over():
            self.say(f"# the run has taken {seconds / 60:.0f} min and is ended")
            self.late = True
            self.stop()
        timer = threading.Timer(seconds, over)
        timer.daemon = True
        timer.start()
        return timer

    def stop(self):
        """Begin no further suite, and end those that run."""
        self.stopped = True
        for proc in list(self.running):
            kill(proc)


def family(proc):
    """Return the processes of a suite: those of its session, and those with its mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if os.getsid(int(pid)) == proc.pid or proc.mark in file.read().split(b"\0"):
                found.append(int(pid))
    return found


def stacks(proc):
    """Return, for each process of a suite, its command, and where its threads wait."""
    lines = ["processes when the suite was ended:"]
    for pid in family(proc):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                lines.append(f"{pid}: " + file.read().replace("\0", " ")[:160])
            for thread in sorted(os.listdir(f"/proc/{pid}/task"))[:8]:
                with open(f"/proc/{pid}/task/{thread}/wchan") as wchan, open(f"/proc/{pid}/task/{thread}/comm") as comm:
                    lines.append(f"  {comm.read().strip()}: {wchan.read().strip() or 'runs'}")
    return "\n".join(lines[:40]) + "\n"


def kill(proc):
    """End a suite with all processes that it has started."""
    for pid in family(proc):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGKILL)


def run_all(args):
    """Run rows of suites; their tallies by name, in the order in which they were asked for."""
    runner = Runner(args.length, args.resume)
    timer = runner.end_after(args.within * 60) if args.within else None
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            for row in [pool.submit(runner.row, suites) for suites in args.rows]:
                row.result()
            runner.again(args.again, args.once)
        except BaseException:
            runner.stop()
            raise
        finally:
            if timer:
                timer.cancel()
    return {suite: runner.tallies[suite] for suites in args.rows for suite in suites}


def report(suites):
    """Print each suite's last result, the dearest first, without running any."""
    of = sources()
    tallies, lines, never = {}, [], []
    for suite in suites:
        result, tally = last(suite)
        if result:
            where = "these sources" if of and result["sources"] == of else "other sources"
            lines.append((result.get("cpu_seconds", 0), suite, f"{tally.text()} in {result['seconds']} s,"
                          f" {result['length']}, {result['ended']}, of {where}"))
        else:
            tally = Tally()
            tally.failures.append("suite has never been run")
            never.append(suite)
        tallies[suite] = tally
    total = sum(cpu for cpu, _, _ in lines) or 1
    print("   CPU s  share")
    for cpu, suite, text in sorted(lines, reverse=True):
        print(f"# {cpu:6} {cpu / total:6.1%}  {suite}: {text}")
    for suite in never:
        print(f"# {suite}: never run")
    return tallies


def tell(title, tallies):
    """Print the failures, with their reasons."""
    if any(tally.failures for tally in tallies.values()):
        print(f"\n{title}")
    for suite, tally in tallies.items():
        for failed in tally.failures:
            print(f"  {suite}: {failed}")
            for line in tally.why.get(failed, []):
                print(f"    | {line[:200]}")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", choices=("short", "full"), default="short")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows that run side by side (%(default)s)")
    parser.add_argument("--again", type=int, default=0, metavar="N",
                        help="run suites that failed once more, if no more than N did (%(default)s)")
    parser.add_argument("--once", default=(), metavar="SUITE[,SUITE...]", type=lambda row: row.split(","),
                        help="suites of which a failure is final")
    parser.add_argument("--within", type=float, default=0, metavar="MINUTES",
                        help="end all suites after this time; those that did not begin have failed (no limit)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="run only what has not passed yet")
    which.add_argument("--report", action="store_true", help="run nothing, tell the last results")
    parser.add_argument("rows", nargs="+", metavar="SUITE[,SUITE...]", type=lambda row: row.split(","))
    args = parser.parse_args(words)
    os.makedirs(RESULTS, exist_ok=True)
    if args.report:
        tallies = report(suite for row in args.rows for suite in row)
    else:
        tallies = run_all(args)

    skips = [(s, *skip) for s, t in tallies.items() for skip in t.skips]
    failures = [(s, f) for s, t in tallies.items() for f in t.failures]
    if skips:
        print("\nSkipped:")
        for suite, title, reason in skips:
            print(f"  {suite}: {title}: {reason}")
    tell("Failed at first, in a suite that was run again:", {s: t.at_first for s, t in tallies.items() if t.at_first})
    tell("Failed:", tallies)
    total = Tally()
    total.passed = sum(t.passed for t in tallies.values())
    total.failures, total.skips = failures, skips
    print(f"\n{total.text()}")
    return 1 if failures else 0


if __name__ == "__main__":
    # The suites end with this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
