#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many cases each suite has and what it costs, from what tests/run.py left of its last runs: writes the table of docs/testing.md.

    cases.py [RESULTS [PAGE]]
"""

import json
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- cases -->\n", "<!-- /cases -->"


def table(results):
    """Lines, a suite each: cases that were judged, those that were skipped, seconds of CPU."""
    rows, sums = [], [0, 0, 0]
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text())
        judged, skipped = result["passed"] + len(result["failures"]), len(result["skips"])
        cpu = result["cpu_seconds"]
        rows.append(f"| `{path.stem}` | {judged:,} | {skipped or ''} | {cpu:,} | {result['length']} | "
                    f"{result['ended'].split()[0]} |")
        sums[0] += judged
        sums[1] += skipped
        sums[2] += cpu
    head = ["| suite | cases | skipped | CPU, s | length | run |", "| --- | --- | --- | --- | --- | --- |"]
    return [*head, *rows, f"| together | {sums[0]:,} | {sums[1] or ''} | {sums[2]:,} | | |"] if rows else []


def main(results=TOP / "build/results", page=TOP / "docs/testing.md"):
    lines, page = table(Path(results)), Path(page)
    if not lines:
        sys.exit(f"{results} has no results: make check, or make SUITE by tests/run.py, leaves them")
    text = page.read_text()
    before, rest = text.split(BEGIN)
    page.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
