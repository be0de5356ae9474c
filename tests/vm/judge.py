# SPDX-License-Identifier: MIT
"""Turn the output of a guest into test points."""
import base64
import re

import splat
import tap as taplib

# The module is out of tree and unsigned. Warnings (512) are left to the scan of the console.
HARMLESS_TAINT = 1 << 12 | 1 << 13 | 1 << 9


class Results:
    """The second serial line, cut at its control lines (see guest/init)."""

    def __init__(self, text):
        self.programs = []      # (name, lines, status); the status of one that did not end is None
        self.checks = []        # (name, ok, detail)
        self.taint = None
        self.ended = False
        lines, blocks = [], {"leaks": [], "left": []}
        for line in text.splitlines():
            word, _, rest = line[2:].partition(" ") if line.startswith("@ ") else ("", "", "")
            if word == "begin":
                lines = []
                self.programs.append((rest, lines, None))
            elif word == "end":
                name, _, _ = self.programs[-1]
                self.programs[-1] = (name, lines, int(rest))
                lines = []
            elif word == "check":
                what, status, detail = re.fullmatch(r"(.*?) (\d+) ?(.*)", rest).groups()
                self.checks.append((what, status == "0", detail))
            elif word == "taint":
                self.taint = int(rest)
            elif word == "boot":
                # After a restart of the guest its program goes on.
                lines = self.programs[-1][1] if self.programs and self.programs[-1][2] is None else []
            elif word in blocks:
                lines = blocks[word]
            elif word == "done":
                self.ended = True
            else:
                lines.append(line)
        self.leaks = "\n".join(blocks["leaks"])
        self.left = base64.b64decode("".join(blocks["left"])) if self.ended else b""     # a tar.gz


def reached_end(tap, name, outcome, results):
    """Fail a guest that has not printed its last control line, whatever it printed before."""
    if outcome.trouble:
        tap.point(False, f"{name}: {outcome.trouble}")
    tap.point(results.ended, f"{name}: the guest reached its end")
    if not results.ended:
        tap.note("the console's last lines:\n" + "\n".join(outcome.console.splitlines()[-60:]))


def judge(tap, name, outcome):
    results = Results(outcome.results)
    for program, lines, status in results.programs:
        taplib.program(tap, f"{name}: {program}", lines, status)
    for what, ok, detail in results.checks:
        tap.point(ok, f"{name}: {what}" + (f": {detail}" if detail else ""))
    if results.taint is not None:
        tap.point(not results.taint & ~HARMLESS_TAINT, f"{name}: not tainted by a fault ({results.taint})")
    reached_end(tap, name, outcome, results)

    rules = splat.allowances()
    complaints = splat.in_console(outcome.console) + splat.in_kmemleak(results.leaks)
    for complaint in complaints:
        reason = splat.allowed(complaint, rules)
        tap.point(bool(reason), f"{name}: kernel during {complaint.during}: {complaint.title}", reason)
        if not reason:
            tap.note(complaint.text)
    if not complaints:
        tap.point(True, f"{name}: the kernel complained about nothing")
    return results
