#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write the table of build/bench/bench.json into a page, between its marks: one machine, one date, one commit.

usage: tests/bench/page.py FILE
"""

import json
import sys
from pathlib import Path

import run

MARKS = ("<!-- bench -->\n", "<!-- /bench -->\n")


def figures(line):
    """Return the cells of a bound: the figure, the bound and the verdict."""
    if "ratio" not in line:
        return "-", "-", line["verdict"]
    ours, theirs = (line[side]["p50_ns"] for side in ("ours", "theirs"))
    if line["over_ns"] is not None:
        return f"+{run.duration(max(ours - theirs, 0))}", f"+{run.duration(line['over_ns'])}", line["verdict"]
    if line["most_ns"] is not None:
        return run.duration(ours), run.duration(line["most_ns"]), line["verdict"]
    return f"{line['ratio']:.{2 if line['ratio'] >= 0.01 else 3}f}", "-" if line["limit"] is None else f"{line['limit']:.3g}", line["verdict"]


def table(bench):
    """Yield the lines of the block."""
    facts = bench["machine"]
    yield (f"`make bench` on {facts['date']} at {facts['commit']}: {facts['cpu']}, {facts['cpus']} CPUs{', virtual' if facts['virtual'] else ''}, "
           f"Linux {facts['kernel']}, {facts['backend']} backend; load {facts['load']:.1f}; `shmem_enabled`: {facts['shmem_huge_pages']}.")
    yield ""
    yield "| what | beside | ratio | bound | |"
    yield "| --- | --- | --- | --- | --- |"
    for section in bench["sections"]:
        yield f"| **{section['title']}** | | | | |"
        for line in section["bounds"]:
            yield f"| {' | '.join((line['title'], line['beside'], *figures(line)))} |"
    for name, record in bench["series"].items():
        if record.get("unit", "ratio") != "ratio":
            yield f"| {name} | | {record['value']:g} {record['unit']} | | reported |"


def main(words):
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    page = Path(words[0])
    before, rest = page.read_text().split(MARKS[0])
    text = "\n".join(table(json.loads((run.OUT / "bench.json").read_text()))) + "\n"
    page.write_text(f"{before}{MARKS[0]}{text}{MARKS[1]}{rest.split(MARKS[1])[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
