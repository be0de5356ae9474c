#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run the unit tests of a library that was built for gcov, and tell what of it they ran.

usage: lib_coverage.py OBJECTS PROGRAM...

Prints TAP: a point for each program. Beside that, for each source file, a line

    # cov FILE LINES RAN BRANCHES TAKEN

where RAN and TAKEN are hexadecimal numbers, a bit for each line or branch. A call of merge() adds up the coverage
of several runs, such as one on memfds and one on the module. A process
that is killed or leaves by _exit() leaves no counts, so the figures are what was run at least.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def covered(objects):
    """{file: (lines, ran, branches, taken)} of all objects that have counts."""
    files = {}
    for counts in sorted(objects.rglob("*.gcda")):
        told = subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--stdout", counts.resolve()],
                              check=True, capture_output=True, text=True, cwd=objects).stdout
        for file in json.loads(told)["files"]:
            name = os.path.relpath(os.path.join(os.getcwd(), file["file"]))
            if name.startswith("lib/") and name.endswith(".c"):
                lines = [line["count"] > 0 for line in file["lines"]]
                branches = [branch["count"] > 0 for line in file["lines"] for branch in line["branches"]]
                files[name] = (len(lines), bits(lines), len(branches), bits(branches))
    return files


def bits(flags):
    return sum(1 << n for n, flag in enumerate(flags) if flag)


def merge(*notes):
    """Merge the coverage of several runs of the same build; each is the notes of a TAP, without their "# "."""
    files = {}
    for line in (line for note in notes for line in note):
        if line.startswith("cov "):
            name, lines, ran, branches, taken = line.split()[1:]
            old = files.get(name, (0, 0, 0, 0))
            files[name] = (int(lines), old[1] | int(ran, 16), int(branches), old[3] | int(taken, 16))
    return files


def table(files):
    """As text, a line a file and their sum."""
    total = [0, 0, 0, 0]
    said = []
    for name, (lines, ran, branches, taken) in sorted(files.items()):
        row = [lines, ran.bit_count(), branches, taken.bit_count()]
        total = [a + b for a, b in zip(total, row)]
        said.append(text(name, row))
    return [*said, text("together", total)]


def text(name, row):
    lines, ran, branches, taken = row
    return (f"{name:28} {ran:5} of {lines:5} lines {100 * ran / max(lines, 1):5.1f} %"
            f"  {taken:5} of {branches:5} branches {100 * taken / max(branches, 1):5.1f} %")


def main():
    objects, programs = Path(sys.argv[1]), sys.argv[2:]
    for old in objects.rglob("*.gcda"):
        old.unlink()
    print(f"1..{len(programs)}")
    failed = 0
    with tempfile.TemporaryDirectory() as runtime:
        env = {"TMESH_BACKEND": "memfd", **os.environ, "TMESH_RUNTIME_DIR": runtime,
               "CMOCKA_MESSAGE_OUTPUT": "TAP", "TMESH_TEST_LENGTH": "short"}
        for number, program in enumerate(programs, 1):
            done = subprocess.run([program], env=env, capture_output=True, text=True)
            failed += done.returncode != 0
            print(f"{'not ' if done.returncode else ''}ok {number} - {os.path.basename(program)}", flush=True)
            for line in (done.stdout + done.stderr).splitlines() if done.returncode else ():
                print(f"# | {line}", flush=True)
    files = covered(objects)
    for name, numbers in sorted(files.items()):
        print("# cov {} {} {:x} {} {:x}".format(name, *numbers))
    for line in table(files):
        print(f"# {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
