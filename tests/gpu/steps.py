#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the checks and measurements that need an NVIDIA GPU, one after the other; TAP. Skips, loudly, where there is none.

usage: run check|bench|all [--budget SECONDS] [--out DIR] [NAME...]

All of them, or those that are named, those that tell most first: time on a GPU may be short. Each runs in a process of
its own with a time limit, so that none stops the others. The GPU's memory must be as before, by nvidia-smi.

--budget: a step without time left is "not reached", which is neither passed nor failed. The last line names it, for another
run. The status is 0, 1 when something failed, 2 when something was not reached.

--out: log.txt has every line as it came, rows.md the table of docs/reference/cuda.md with what was seen, bench.md what was
measured. All of them are right whenever the run is ended.

TMESH_GPU_STANDIN=1 runs it on the stand-in, to test the tests; every line says so, and none is about a GPU."""

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench
import check
import gpu

SKIPPED = 77
LEAST_S = 3  # begin nothing with less time left
LEAK_MIB = 2  # a granule, more than the rounding of nvidia-smi
BACK_S = 10
DRAIN_S = 2
SPEED = "speed"
PAGE = Path(gpu.HERE) / "cuda.md"

# The most telling first, then the others in the order of check.py.
FIRST = ("kept_when_all_are_killed", "two_processes", "three_processes_and_a_producer_that_goes",
         "killed_producer_takes_nothing", "killed_readers_leak_nothing", "sealed_region_read_only", "registered_in_pieces",
         "captures_go_on", "torch_pool_and_training_step", "torch_between_processes", "vllm_loads_a_model", *bench.PARTS)
ORDER = (*FIRST, *(name for name in check.tests if name not in FIRST))
FIRST_PROGRAM = "scenario"  # before all of them: the driver keeps memory for itself from its first use on


def command_of(name):
    file = "bench.py" if name in bench.PARTS else "check.py"
    return [sys.executable, os.path.join(gpu.HERE, file), "--one", name]


def limit_of(name):
    return bench.PARTS[name][1] if name in bench.PARTS else check.limit_of(name)


def row_of(name):
    return SPEED if name in bench.PARTS else check.tests[name][1]


class Output:
    """Print each line, and flush it to a file."""

    def __init__(self, folder):
        self.folder = folder and Path(folder)
        self.files = {}
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, file, line):
        if self.folder:
            if file not in self.files:
                self.files[file] = (self.folder / file).open("w")
            print(line, file=self.files[file], flush=True)

    def line(self, text):
        print(text, flush=True)
        self.add("log.txt", text)

    def replace(self, file, text):
        if self.folder:
            new = self.folder / f".{file}"
            new.write_text(text)
            new.replace(self.folder / file)


class Budget:
    def __init__(self, seconds):
        self.end = None if seconds is None else time.monotonic() + seconds

    def of(self, limit):
        """Return how long a step with that limit may take."""
        return limit if self.end is None else min(limit, self.end - time.monotonic())


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def attempt(command, limit, hear):
    """Return the command's status, None when its time was over. Each line goes to hear() as it comes. Processes that it
    leaves behind in its session are ended."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    pipe, end, rest, late = process.stdout.fileno(), time.monotonic() + limit, b"", False
    while True:
        left = end - time.monotonic()
        if process.poll() is not None or left <= 0:
            late = process.returncode is None
            end_group(process)
            break
        # Not EOF alone: others may have the pipe.
        if select.select([pipe], [], [], min(left, 0.2))[0]:
            more = os.read(pipe, 65536)
            if not more:
                try:
                    process.wait(max(0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
                continue
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                hear(line.decode(errors="replace"))
    process.wait()
    end = time.monotonic() + DRAIN_S
    while select.select([pipe], [], [], max(0, end - time.monotonic()))[0] and (more := os.read(pipe, 65536)):
        rest += more
    process.stdout.close()
    for line in rest.splitlines():
        hear(line.decode(errors="replace"))
    return None if late else process.returncode


class Steps:
    def __init__(self, names, budget, output, where):
        self.names, self.budget, self.output, self.where = names, budget, output, where
        self.label = "stand-in, not a GPU: " if where.startswith("stand-in") else ""
        self.results = {}
        self.bounds = []
        self.versions = gpu.Versions()
        self.used = None

    def note(self, text):
        self.output.line(f"# {self.label}{text}")

    def hear(self, name, line):
        if line.startswith("SKIP "):
            return
        self.note(line.removeprefix("# "))
        if line.startswith("| ") and name in bench.PARTS:
            self.output.add("bench.md", line)
            self.bounds += [word for word in ("NOT MET", "met") if f": {word} " in line][:1]

    def one(self, name, limit):
        """Return "ok", "failed", "not reached" or "skipped: " and why."""
        allowed = self.budget.of(limit)
        if allowed < LEAST_S:
            return "not reached"
        last = [""]

        def hear(line):
            last[0] = line
            self.hear(name, line)

        status = attempt(command_of(name), allowed, hear)
        if status is None and allowed < limit:
            self.note(f"{name}: the budget was spent after {allowed:.0f} of its {limit} s")
            return "not reached"
        if status == SKIPPED and last[0].startswith("SKIP "):
            return "skipped: " + last[0].removeprefix("SKIP ")
        if status is None:
            self.note(f"{name}: it took longer than {limit} s and was ended")
        elif status < 0:
            self.note(f"{name}: it ended by signal {-status}")
        return "ok" if status == 0 else "failed"

    def memory_is_back(self):
        """Return nvidia-smi's reading once it is back at the start's, or after some seconds."""
        end = time.monotonic() + self.budget.of(BACK_S)
        after = gpu.used_mib()
        while None not in (self.used, after) and after >= self.used + LEAK_MIB and time.monotonic() < end:
            time.sleep(0.2)
            after = gpu.used_mib()
        return after

    def checked(self, name):
        """The same, and that the GPU has its memory again."""
        result = self.one(name, limit_of(name))
        if result == "not reached":
            return result
        after = self.memory_is_back()
        if None not in (self.used, after) and after >= self.used + LEAK_MIB:
            self.note(f"{name}: nvidia-smi: {self.used} MiB were used before, {after} MiB are after it")
            self.used = after  # those that follow are measured by themselves
            return "failed"
        return result

    def begin(self):
        self.output.line(f"1..{len(self.names)}")
        for line in gpu.machine():
            self.note(line)
        if any(name in bench.PARTS for name in self.names):
            for line in bench.HEAD:
                self.output.add("bench.md", line.replace("WHERE", self.label + self.where))
        result = self.one(FIRST_PROGRAM, check.LIMIT_S)
        if result != "ok":
            self.note(f"a first program: {result}")
        self.used = gpu.used_mib()
        self.note("nvidia-smi: " + ("it does not tell, so memory is compared within each process alone"
                                    if self.used is None else f"{self.used} MiB are used at the start"))

    def run(self):
        self.begin()
        for number, name in enumerate(self.names, 1):
            start = time.monotonic()
            result = self.results[name] = self.checked(name)
            word = "ok" if result == "ok" or result.startswith("skipped") else "not ok"
            tail = f" # SKIP {result.partition(': ')[2]}" if result.startswith("skipped") else \
                ": not reached" if result == "not reached" else f" # {time.monotonic() - start:.1f} s"
            self.output.line(f"{word} {number} - {self.label}{name}{tail}")
            for line in self.versions.told():
                self.note(line)
            self.output.replace("rows.md", "".join(f"{line}\n" for line in self.rows()))
        return self.end()

    def end(self):
        for line in self.versions.told(wait=self.budget.of(gpu.ANSWER_S)):
            self.note(line)
        self.note(f"seen on {self.where}; for docs/reference/cuda.md:")
        for line in self.rows():
            self.output.line(f"# {line}")
        by = {word: [name for name, result in self.results.items() if result.partition(":")[0] == word]
              for word in ("ok", "failed", "skipped", "not reached")}
        self.note("; ".join(f"{word}: {len(names)}" for word, names in by.items()))
        for word in ("failed", "not reached"):
            if by[word]:
                self.note(f"{word}: {' '.join(by[word])}")
        return 1 if by["failed"] else 2 if by["not reached"] else 0

    def cell(self, row):
        """Return a row's cell of the page's table; None: nothing was tried."""
        of = {name: result for name, result in self.results.items() if row_of(name) == row}
        if all(result == "not reached" for result in of.values()):
            return None
        if row == SPEED:
            text = f"measured: {self.bounds.count('met')} bounds met, {self.bounds.count('NOT MET')} not met"
            of = {name: result for name, result in of.items() if result != "ok"}
        elif set(of.values()) == {"ok"}:
            return f"{self.label}seen: {self.where}"
        else:
            text = "seen: " + (", ".join(f"`{name}`" for name, result in of.items() if result == "ok") or "nothing")
        more = [f"`{name}` {result}".replace("|", "/") for name, result in of.items() if result != "ok"]
        return self.label + "; ".join([text, *more, self.where])

    def rows(self):
        """Return the page's table, with this machine's results in its last column."""
        lines, left = [], {row_of(name) for name in self.results}
        for line in table():
            what, standin, _ = (cell.strip() for cell in line.strip("| ").split(" | "))
            cell = self.cell(what) if what in left else None
            lines.append(f"| {what} | {standin} | {cell} |" if cell else line)
            left.discard(what)
        return lines + [f"| {what} | | {self.cell(what)} |" for what in sorted(left) if self.cell(what)]


def table():
    """Return the rows, without the head, of the page's table of seen results."""
    lines = PAGE.read_text().split("## What has been seen where")[1].split("###")[0].splitlines()
    return [line for line in lines if line.startswith("| ")][2:]


def chosen(what, names):
    known = [name for name in ORDER if what == "all" or (name in bench.PARTS) == (what == "bench")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no {' or '.join(unknown)} in: {' '.join(known)}")
    return [name for name in known if name in names] if names else known


def main():
    parser = argparse.ArgumentParser(prog="run", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("check", "bench", "all"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    parser.add_argument("--out", metavar="DIR")
    args = parser.parse_intermixed_args()
    budget = Budget(args.budget)
    names = chosen(args.what, args.names)
    output = Output(args.out)
    why = gpu.missing()
    if why:
        output.line(f"1..0 # SKIP {why}")
        print(f"{args.what}-gpu: NOTHING WAS {'MEASURED' if args.what == 'bench' else 'CHECKED'}: {why}", file=sys.stderr)
        return 0
    with gpu.awake():
        return Steps(names, budget, output, gpu.asked_where()).run()


if __name__ == "__main__":
    os.environ.setdefault("TMESH_BACKEND", "memfd")
    # No process may take most of the GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(main())
