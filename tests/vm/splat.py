# SPDX-License-Identifier: MIT
"""Find the kernel's complaints in a console log and in kmemleak's report."""
import re
from dataclasses import dataclass
from pathlib import Path

ALLOW = Path(__file__).resolve().parent / "allow.txt"

# The first line of a complaint.
START = re.compile(r"""
    BUG:\ | WARNING:\ | KASAN:\ | UBSAN:\ | DMA-API:\ | ODEBUG:\ | Oops | kernel\ BUG\ at
    | general\ protection | stack\ segment | double\ fault | Kernel\ panic | Bad\ page | bad\ page
    | possible\ (circular|recursive)\ locking | inconsistent\ lock\ state | suspicious\ RCU\ usage
    | Invalid\ wait\ context | held\ lock\ freed | bad\ unlock\ balance | still\ has\ locks
    | DEBUG_LOCKS_WARN_ON | sleeping\ function\ called | scheduling\ while\ atomic
    | refcount_t:\ | list_(add|del)\ corruption | usercopy:\ | memory\ leak\ in
    | INFO:\ (task\ .*\ blocked|rcu|trying\ to\ register) | soft\ lockup | detected\ stalls
    | Out\ of\ memory: | page_table_check
""", re.VERBOSE)

# Lines that only look like one.
HARMLESS = re.compile(r"""
    DMA-API:\ (preallocated|debugging|Mapped\ at|dma_debug_entry\ pool\ grown) | ^WARNING:\ Spectre
""", re.VERBOSE)

END = re.compile(r"---\[ end (trace|Kernel panic)|\[ cut here \]|^={20,}$|^tmesh-vm: ")
STAMP = re.compile(r"^\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?")
LONGEST = 150


@dataclass
class Splat:
    """A complaint: its lines, and the program that was running."""
    lines: list
    during: str

    @property
    def title(self):
        return self.lines[0].strip()

    @property
    def text(self):
        return "\n".join(self.lines)


def in_console(log):
    lines = [STAMP.sub("", line.rstrip()) for line in log.splitlines()]
    found, during, at = [], "boot", 0
    while at < len(lines):
        if mark := re.match(r"tmesh-vm: (.*)", lines[at]):
            during = mark.group(1)
        elif START.search(lines[at]) and not HARMLESS.search(lines[at]):
            first = at
            while at + 1 < len(lines) and at - first < LONGEST and not END.search(lines[at + 1]):
                at += 1
            found.append(Splat(lines[first:at + 1], during))
        at += 1
    return found


def in_kmemleak(report):
    """Return the complaints of kmemleak's report: one for each place that leaked, however often."""
    found = {}
    for leak in re.split(r"^(?=unreferenced object )", report, flags=re.M):
        if leak.startswith("unreferenced object "):
            backtrace = leak[leak.find("backtrace"):]
            found.setdefault(re.sub(r"0x[0-9a-f]+|crc [0-9a-f]+", "", backtrace),
                             Splat([f"kmemleak: {line}" for line in leak.splitlines()], "whole run"))
    return list(found.values())


def allowances():
    """Return the (pattern, reason) pairs of allow.txt."""
    rules = []
    for line in ALLOW.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, reason = line.split("\t")
            rules.append((re.compile(pattern, re.DOTALL), reason))
    return rules


def allowed(splat, rules):
    """Return the reason why a complaint does not count, or None."""
    return next((reason for pattern, reason in rules if pattern.search(splat.text)), None)


def matches(splat, during, pattern):
    """Return whether a complaint came during a program and matches pattern."""
    return splat.during in (during, "whole run") and bool(re.search(pattern, splat.text, re.DOTALL))
