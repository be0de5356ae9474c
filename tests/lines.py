#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lines of product and of tests, by room, as rows of a Markdown table: those of a revision, or of two side by side.

    lines.py [BEFORE] REVISION

All lines count, blank ones and comments too, and those of the conformance suite's promises; the words of docs/ and of
*.md do not, nor does what is no text.
"""

import collections
import subprocess
import sys

KINDS = (".c", ".h", ".py", ".pyi", ".ex", ".exs", ".sh", ".mk", ".map", ".cocci")
NAMES = ("Makefile", "Kbuild")
PROMISES = "tests/conformance/promises/"


def room_of(path):
    """(room, whether it is a test)"""
    parts = path.split("/")
    if parts[0] == "tests":
        return "tests/", True
    if parts[0] == "bindings" and len(parts) > 2:
        return f"bindings/{parts[1]}/", parts[2] in ("test", "tests")
    return (parts[0] + "/" if len(parts) > 1 else "the folder at the top"), False


def lines(revision):
    """{room: [lines of product, lines of tests]}"""
    counts = collections.defaultdict(lambda: [0, 0])
    # Against the empty tree each line is an added one.
    empty = subprocess.run(["git", "hash-object", "-t", "tree", "/dev/null"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.strip()
    told = subprocess.run(["git", "diff", "--numstat", "--no-renames", empty, revision], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    for line in told.splitlines():
        added, _, path = line.split("\t")
        if added != "-" and (path.endswith(KINDS) or path.startswith(PROMISES) or path.split("/")[-1] in NAMES):
            room, test = room_of(path)
            counts[room][test] += int(added)
    return counts


def main(*revisions):
    found = [lines(revision) for revision in revisions]
    heads = " | ".join(f"product, {name} | tests, {name}" for name in revisions)
    print(f"| room | {heads} |\n|{' --- |' * (1 + 2 * len(found))}")
    rooms = sorted({room for counts in found for room in counts})
    for room in [*rooms, None]:
        cells = [sum(counts[r][kind] for r in ([room] if room else rooms)) for counts in found for kind in (0, 1)]
        print(f"| {'`' + room + '`' if room and room.endswith('/') else room or 'together'} | "
              + " | ".join(f"{cell:,}" if cell else "" for cell in cells) + " |")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
