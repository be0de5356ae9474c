# SPDX-License-Identifier: MIT
"""The lines and branches of the module that a guest ran.

GCOV counts all programs; the lines that none of them ran are in build/vm/KERNEL/SUITE/missed.
KCOV counts the lines that the fuzzer reached.
"""
import gzip
import io
import json
import re
import subprocess
import tarfile
from collections import defaultdict

from cache import sh
from modules import TOP


def report(tap, name, module, left, where):
    """Print notes about the coverage files that a guest left. left is a tar.gz, or empty. The missed lines go into a
    file in the directory where."""
    if not left:
        return
    folder = where / "left"
    sh("rm", "-rf", folder)
    with tarfile.open(fileobj=io.BytesIO(left)) as archive:
        archive.extractall(folder)
    if (places := folder / "fuzz.places").exists():
        reached, lines = by_kcov(module, {int(place, 16) for place in places.read_text().split()})
        tap.note(f"{name}: the fuzzer reached {len(reached)} of {len(lines)} lines of the module")
    if list(folder.glob("*.gcda")):
        lines, branches = by_gcov(module, folder)
        missed = where / "missed"
        missed.write_text("".join(f"{file}:{line}\n" for file in sorted(lines)
                                  for line, count in sorted(lines[file].items()) if not count))
        for file in sorted(lines):
            tap.note(f"{name}: {file:24} {share(lines[file], 'lines')}  {share(branches[file], 'branches')}")
        every = [{(file, key): count for file in kind for key, count in kind[file].items()}
                 for kind in (lines, branches)]
        tap.note(f"{name}: {'all tests together':24} {share(every[0], 'lines')}  {share(every[1], 'branches')};"
                 f" the other lines are in {missed.relative_to(TOP)}")


def share(counts, what):
    ran = sum(count > 0 for count in counts.values())
    return f"{ran:5} of {len(counts):5} {what} {100 * ran / max(len(counts), 1):5.1f} %"


def ours(path):
    """Return the name of a file of the module below kmod/, or None."""
    found = re.search(r"/kmod/((?:compat/)?[a-z_]+\.[ch])$", path)
    return found and found[1]


def by_kcov(module, places):
    """Return the sets of (reached, all) lines. places are return addresses of KCOV's calls in .text."""
    relocations = sh("readelf", "-rW", module)
    text = relocations[relocations.index("'.rela.text'"):].split("Relocation section")[0]
    calls = [int(line.split()[0], 16) + 4 for line in text.splitlines()
             if "__sanitizer_cov_trace_pc" in line]
    # A call belongs to the line of its last byte; the return address may belong to the next line.
    output = subprocess.run(["addr2line", "-j", ".text", "-e", module], text=True, check=True,
                            input="".join(f"{call - 1:#x}\n" for call in calls), capture_output=True)
    found, reached = set(), set()
    for call, line in zip(calls, output.stdout.splitlines()):
        path, _, number = line.partition(" ")[0].rpartition(":")
        if ours(path):
            found.add((ours(path), number))
            if call in places:
                reached.add((ours(path), number))
    return reached, found


def by_gcov(module, folder):
    """Return the counts of lines, {file: {line: count}}, and of branches, {file: {(line, number): count}}."""
    lines = defaultdict(lambda: defaultdict(int))
    branches = defaultdict(lambda: defaultdict(int))
    for notes in module.parent.rglob("*.gcno"):
        counts = folder / notes.with_suffix(".gcda").name
        if not counts.exists():
            continue
        (folder / notes.name).write_bytes(notes.read_bytes())
        output = subprocess.run(["gcov-12", "--json-format", "--branch-probabilities", "--stdout", counts],
                                check=True, capture_output=True, cwd=folder).stdout
        for file in json.loads(gzip.decompress(output) if output[:1] == b"\x1f" else output)["files"]:
            if name := ours("/" + file["file"]):
                for line in file["lines"]:
                    number = line["line_number"]
                    lines[name][number] += line["count"]
                    for which, branch in enumerate(line["branches"]):
                        branches[name][number, which] += branch["count"]
    return lines, branches
