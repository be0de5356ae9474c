#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The gain of huge pages, beside others' ways, each in turn within one run: five runs after one that is discarded. The
table has the median of the five ratios and their range, the machine, both settings of huge pages, and the pages of each
reference.

    huge_table.py BUILD [--runs N] [--write FILE] [--parts PART...]

BUILD has the programs, and room for a file of 1 GB. --write puts the table into FILE, between its two marks. --parts measures some alone.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results
import run
from bounds import HUGE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKS = "<!-- huge -->\n", "<!-- /huge -->\n"
TENSORS, BYTES, REPLICAS = 300, 1_000_000_000, 4
PAGE = os.sysconf("SC_PAGESIZE") >> 10


class Reader:
    """A process that loads a file and reads every byte of it."""

    def __init__(self, python, way, path):
        self.process = subprocess.Popen([python, "-B", HERE / "whole.py", way, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        assert self.process.stdout.readline(), f"{way} does not run"

    def step(self):
        print(file=self.process.stdin, flush=True)

    def prepare(self):
        """Have the reader take memory and give it back."""
        self.step()
        self.process.stdout.readline()

    def begin(self):
        self.step()

    def result(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.communicate()


def read_whole(python, way, path):
    reader = Reader(python, way, path)
    reader.prepare()
    reader.begin()
    result = reader.result()
    reader.end()
    return result


def at_once(python, way, path):
    """Return the sum of the times that the processes wait."""
    readers = [Reader(python, way, path) for _ in range(REPLICAS)]
    for reader in readers:
        reader.step()
    for reader in readers:
        reader.process.stdout.readline()
    for reader in readers:
        reader.begin()
    total = sum(reader.result()["ns"] for reader in readers)
    for reader in readers:
        reader.end()
    return total


def cold(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dd(path, *how, to="/dev/null"):
    cold(path)
    start = time.perf_counter_ns()
    subprocess.run(["dd", f"if={path}", f"of={to}", "bs=4M", *how], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter_ns() - start


def dd_into_memory(path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        return min(dd(path, *how, to=os.path.join(folder, f"copy{number}")) for number, how in enumerate(((), ("iflag=direct",))))


# The parts of a run: the times of each peer's ways, and the pages of the references.


def warm(build, path):
    """A file that is in the page cache."""
    python = build / "venv-safetensors/bin/python"
    results = {way: read_whole(python, way, path) for way in ("tmesh", "mmap", "pread", "small")}
    pages = {"mmap": f"{results['mmap']['fault_kib']} KiB a fault", "pread": f"malloc's, {PAGE} KiB"}
    return {way: result["ns"] for way, result in results.items()}, pages


def four(build, path):
    python = build / "venv-safetensors/bin/python"
    return {f"{way}-four": at_once(python, way, path) for way in ("shared", "pread")}, {"pread-four": f"malloc's, {PAGE} KiB"}


def second(build, path):
    """While another process holds the file's model."""
    python = build / "venv-safetensors/bin/python"
    holder = Reader(python, "shared", path)
    holder.prepare()
    holder.begin()
    holder.result()
    spent = read_whole(python, "shared", path)["ns"]
    holder.end()
    return {"second": spent, "second-mmap": read_whole(python, "mmap", path)["ns"]}, {"second-mmap": "as above"}


def uncached(build, path):
    """A file that is not in the page cache."""
    cold(path)
    result = read_whole(build / "venv-safetensors/bin/python", "tmesh", path)
    again = result["again_ns"]
    samples = {"cold": result["ns"], "dd": again + min(dd(path), dd(path, "iflag=direct")), "dd-memory": again + dd_into_memory(path)}
    return samples, {"dd": "-", "dd-memory": f"{PAGE} KiB"}


def program(*words):
    """Return medians of a bench's output, by topic/name."""
    done = subprocess.run([str(word) for word in words], cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        print(f"huge: {words[0]} ended with status {done.returncode}", file=sys.stderr, flush=True)
    return {name: record.get("p50_ns", record.get("value")) for name, record in results.parse(done.stdout).items()}


def put(build, path):
    samples = program(build / "bench/huge")
    huge = samples.get("huge/in-huge-pages", 0) >> 10
    return samples, {"huge/memcpy-small": f"{PAGE} KiB", "huge/fresh-small": f"{PAGE} KiB",
                     "huge/memcpy-huge": f"2 MiB ({huge} of {100_000_000 >> 20})"}


def view(build, path):
    return program(build / "bench/pages", "256", "view"), {"pages/copy-64KiB": "2 MiB and 64 KiB"}


def stack(build, path):
    return program(build / "venv/bin/python", "-B", HERE / "stack.py"), {"stack/torch": f"malloc's, {PAGE} KiB"}


def share(build, path):
    return program(build / "venv/bin/python", "-B", HERE / "torch_share.py", "1MB"), {"torch/first-1MB-torch": f"{PAGE} KiB"}


def net(build, path):
    return program(build / "venv/bin/python", "-B", HERE / "net_fetch.py", build, "iperf3"), {"net/iperf3": "-"}


PARTS = {part.__name__: part for part in (warm, four, second, uncached, put, view, stack, share, net)}


def once(build, path, parts):
    """Measure each part once."""
    samples, pages = {}, {}
    for name in parts:
        more, of = PARTS[name](build, path)
        samples |= more
        pages |= of
    return samples, pages


def make(path):
    import numpy
    from safetensors.numpy import save_file

    rng = numpy.random.default_rng(1)
    size = BYTES // TENSORS // 8 * 2
    save_file({f"layer.{i:03}.weight": rng.random(size, numpy.float32) for i in range(TENSORS)}, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def verdict(bound, ratio):
    return "reported" if bound.limit is None else "met" if ratio <= bound.limit else "not met"


def lines(runs, pages, parts):
    yield "| what | beside | its pages | ratio | range | bound | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for bound in HUGE:
        both = [(one[bound.measured], one[bound.beside]) for one in runs if bound.measured in one and bound.beside in one]
        if len(both) < len(runs) and parts != list(PARTS):
            continue
        if len(both) < len(runs):
            yield f"| {bound.title} | {bound.what} | - | - | - | {bound.limit or '-'} | not measured |"
            continue
        ratios = [ours / theirs for ours, theirs in both]
        ratio = statistics.median(ratios)
        ours, theirs = (statistics.median(side) for side in zip(*both))
        yield (f"| {bound.title}: {run.duration(ours)} | {bound.what}: {run.duration(theirs)} | {pages[bound.beside]} | {ratio:.2f} | "
               f"{min(ratios):.2f} to {max(ratios):.2f} | {'-' if bound.limit is None else f'{bound.limit:g}'} | {verdict(bound, ratio)} |")


def head(count, loads):
    facts = run.machine()
    setting = {name: run.read(f"/sys/kernel/mm/transparent_hugepage/{name}") for name in ("enabled", "shmem_enabled")}
    return (f"`make bench-huge` on {facts['date']} at {facts['commit']}: {facts['cpu']}, {facts['cpus']} CPUs"
            f"{', virtual' if facts['virtual'] else ''}, Linux {facts['kernel']}, {facts['backend']} backend. `enabled`: {setting['enabled']}; "
            f"`shmem_enabled`: {setting['shmem_enabled']}. Medians of {count} runs after one that was discarded; load {min(loads):.1f} to {max(loads):.1f}.")


def write(file, text):
    old = file.read_text()
    before, rest = old.split(MARKS[0])
    file.write_text(f"{before}{MARKS[0]}{text}{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    build, runs, loads = given.build.resolve(), [], []
    with contextlib.ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(dir=build / "bench"))
        os.environ.update(TMESH_RUNTIME_DIR=ends.enter_context(tempfile.TemporaryDirectory()), TMESH_KEEPER=str(build / "tmesh-keeper"))
        path = os.path.join(folder, "model.safetensors")
        make(path)
        for turn in range(given.runs + 1):
            print(f"  run {turn} of {given.runs}", file=sys.stderr, flush=True)
            samples, pages = once(build, path, given.parts)
            if turn:
                runs.append(samples)
                loads.append(os.getloadavg()[0])
                (build / "bench/huge.json").write_text(json.dumps({"runs": runs, "pages": pages, "loads": loads}))
    text = "\n".join((head(given.runs, loads), "", *lines(runs, pages, given.parts))) + "\n"
    print(text, end="")
    if given.write:
        write(given.write, text)


if __name__ == "__main__":
    main()
