#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The tables of docs/howto/paths.md: how much of a kept file stock engines have in place.

    stock_table.py FILE

writes the table of the module from the output of the suite vm-6.12-engines on standard input. stock.py writes the other table."""
import datetime
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = ("engine", "version", "shown by", "of the kept file in place", "its share of that", "own memory, kept file",
           "own memory, plain file")


def row(title, version, way, shares, own, beside):
    """Return a line of the table. Memory is in KiB."""
    return line(title, version, way, *(f"{kib / 1024:.1f}" for kib in (*shares, own, beside)))


def line(*cells):
    return f"| {' | '.join(cells)} |"


def write(file, mark, command, where, rows):
    """Put rows between two marks of a file."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, capture_output=True, text=True, check=False).stdout.strip()
    said = f"`{command}` on {datetime.date.today()} at {commit}: {where}. Two processes on one kept folder, MiB in each."
    first, last = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    with open(file, encoding="utf-8") as text:
        before, rest = text.read().split(first)
    with open(file, "w", encoding="utf-8") as text:
        text.write(before + first + "\n".join([said, "", line(*COLUMNS), line(*["---"] * len(COLUMNS)), *rows]) + "\n" + last + rest.split(last)[1])


def main(file):
    rows = [text.removeprefix("# ").rstrip() for text in sys.stdin if text.startswith("# | ")]
    assert rows, "no row: did the engines run?"
    write(file, "module engines", "make mount-module-table", "Debian 13 on this machine, and on the module in a guest under emulation", rows)


if __name__ == "__main__":
    main(sys.argv[1])
