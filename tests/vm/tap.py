# SPDX-License-Identifier: MIT
"""Read TAP from the guest's programs, and print one TAP for the whole run."""
import re

# Do not match a run of blanks before the #: a name of a megabyte of blanks would take a quarter of an hour.
POINT = re.compile(r"(?P<bad>not )?ok\b *\d* *-? *(?P<name>.*?)(# *(?P<skip>SKIP)\b:? *(?P<why>.*))?$",
                   re.IGNORECASE)
PLAN = re.compile(r"1\.\.(?P<count>\d+)( *# *SKIP\b *(?P<why>.*))?$", re.IGNORECASE)

# A guest's console is a terminal, so loggers print colours around our lines.
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# The exit statuses of timeout(1): of coreutils, and of busybox if its signal ended the program.
OUT_OF_TIME = (124, 143)


class Tap:
    """The combined report, printed to stdout."""

    def __init__(self):
        self.count = 0
        self.failures = 0
        self.notes = []
        print("TAP version 13", flush=True)

    def point(self, ok, name, skip=None):
        self.count += 1
        self.failures += not ok
        print(f"{'ok' if ok else 'not ok'} {self.count} - {name.replace('#', '')}" +
              (f" # SKIP {skip}" if skip else ""), flush=True)

    def note(self, text):
        for line in text.splitlines():
            self.notes.append(line)
            print(f"# {line}", flush=True)

    def end(self):
        """Print the plan. Return the exit status of the run."""
        print(f"1..{self.count}", flush=True)
        return 1 if self.failures or not self.count else 0


def program(tap, name, lines, status):
    """Take over the output of a program, which may be several streams of TAP. The program fails if its plans do not add
    up to its points, or if its exit status does not agree with them."""
    points = failures = 0
    plan = None
    for line in lines:
        line = COLOUR.sub("", line)
        if match := POINT.match(line):
            points += 1
            point = match["name"].rstrip()
            failed = bool(match["bad"])
            failures += failed
            if match["skip"] and not match["why"]:
                tap.point(False, f"{name}: {point}: skipped without a reason")
            else:
                tap.point(not failed, f"{name}: {point}", match["why"])
        elif match := PLAN.match(line):
            count = int(match["count"])
            plan = (plan or 0) + count
            if count == 0:
                tap.point(bool(match["why"]), f"{name}: all", match["why"] or None)
        elif line and not line.startswith("TAP version"):
            tap.note(line.removeprefix("# "))
    if status is None:
        tap.point(False, f"{name}: ended before the guest did")
    elif status in OUT_OF_TIME:
        tap.point(False, f"{name}: ended in time")
    elif plan != points or (status != 0) != (failures != 0):
        tap.point(False, f"{name}: kept its plan (planned {plan}, printed {points} with {failures} "
                         f"failed, exit status {status})")
