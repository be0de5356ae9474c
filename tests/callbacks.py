# SPDX-License-Identifier: MIT
"""Each callback of a public header has a comment that names its thread, the calls that it may make, and fork().

tests/rooms.py runs this."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATED = {
    "its thread": r"\bthreads?\b",
    "its calls": r"\b(calls nothing of this|may call this) library\b",
    "fork()": r"\bfork\(\)",
}


def unstated(header: str) -> tuple[list[str], int]:
    """Return what the comments of a header leave out, and how many callbacks it has."""
    wrong: list[str] = []
    count = 0
    for found in re.finditer(r"\(\*(\w+)\)\(", header):
        count += 1
        before = header[:found.start()]
        begin, end = before.rfind("/*"), before.rfind("*/")
        comment = " ".join(re.sub(r"^\s*\*", " ", before[begin:end], flags=re.M).split())
        # Only the declaration itself is between a comment and its callback.
        if re.search(r"[;{}]", before[end:]):
            comment = ""
        wrong += [f"{found[1]}: its comment does not state {what}" for what, words in STATED.items()
                  if not re.search(words, comment)]
    return wrong, count


def callbacks() -> tuple[set[str], int]:
    """Return what the comments of all headers leave out, and how many callbacks there are."""
    wrong: set[str] = set()
    count = 0
    for path in ROOT.glob("include/tmesh/*.h"):
        some, here = unstated(path.read_text())
        wrong |= {f"{path.name}: {each}" for each in some}
        count += here
    return wrong, count
