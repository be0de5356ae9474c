#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run the benches and compare their figures with bounds.py.

Writes build/bench/bench.json and build/bench/bench.svg and prints a table. A bound that is not met is reported, and
does not fail the run: machines differ, and the exit status is for benches that fail.

usage: tests/bench/run.py [WORD...]

With words only the benches whose commands have one of them are run, and no file is written.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import results
from bounds import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
OUT = BUILD / "bench"
MODULE = OUT / "module.json"

PYTHON = BUILD / "venv/bin/python"
HERE = "tests/bench"
COMMANDS = (
    [OUT / "tmesh-bench", "400"],
    [OUT / "size"],
    [OUT / "lookup"],
    [OUT / "death"],
    [OUT / "pages"],
    [BUILD / "venv-safetensors/bin/python", "-B", f"{HERE}/model_load.py", OUT / "model_open", BUILD / "tmesh-keeper",
     BUILD / "tmeshctl", OUT],
    ["/usr/bin/python3", "-B", f"{HERE}/paths.py", BUILD, OUT],
    [PYTHON, "-B", f"{HERE}/channel.py"],
    [PYTHON, "-B", f"{HERE}/attach.py"],
    [PYTHON, "-B", f"{HERE}/objects.py"],
    [PYTHON, "-B", f"{HERE}/torch_share.py"],
    [PYTHON, "-B", f"{HERE}/put.py"],
    [BUILD / "venv-ray/bin/python", "-B", f"{HERE}/ray_transport.py"],
    [PYTHON, "-B", f"{HERE}/net_fetch.py", BUILD],
    [OUT / "engine", BUILD / "tests/engine/models/dynamic.onnx"],
    [OUT / "engine_served", BUILD / "tests/engine/models"],
    [BUILD / "venv-engine/bin/python", "-B", f"{HERE}/engine_run.py", BUILD / "tests/engine/models"],
    [BUILD / "venv-engine/bin/python", "-B", f"{HERE}/llama_options.py", OUT, BUILD / "tests/mount/llama",
     ROOT / "examples/small_model/small.gguf"],
    [BUILD / "venv-engine/bin/python", "-B", f"{HERE}/generate.py", ROOT / "bindings/python/tests"],
    ["env", f"LD_LIBRARY_PATH={BUILD}", BUILD / "venv-arrow/bin/python", "-B", f"{HERE}/xla.py",
     BUILD / "tests/xla/peer"],
    ["taskset", "-c", "0", "elixir", "--erl", "-logger level warning",
     "-pa", BUILD / "beam/dev/lib/tmesh/ebin", f"{HERE}/from_binary.exs", OUT / "floor"],
    ["taskset", "-c", "0", "elixir", "--erl", "-logger level warning",
     "-pa", BUILD / "beam/dev/lib/tmesh/ebin", f"{HERE}/arrow.exs",
     BUILD / "venv-arrow/bin/python", f"{HERE}/arrow.py"],
    ["taskset", "-c", "0", "elixir", "--erl", "-logger level warning",
     "-pa", BUILD / "beam/dev/lib/tmesh/ebin", f"{HERE}/between.exs", PYTHON],
)
# These want packages of several gigabytes, and run by their own targets alone.
ALONE = (
    [BUILD / "venv-vllm/bin/python", "-B", f"{HERE}/vllm_engines.py", ROOT / "bindings/python/tests", BUILD / "tmesh-keeper"],
)
ALONE_TOPIC = "vllm/"


def read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def machine():
    """Return the properties of the machine that the figures depend on."""
    cpu = next((line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines()
                if line.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": str(datetime.date.today()),
        "commit": commit.stdout.strip() or read(ROOT / "VERSION"),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "virtual": "hypervisor" in read("/proc/cpuinfo"),
        "shmem_huge_pages": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "load": os.getloadavg()[0],
        "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        "backend": "kernel" if os.access("/dev/tmesh", os.R_OK | os.W_OK) else "memfd",
        "version": read(ROOT / "VERSION"),
    }


def name(command):
    return " ".join(str(part) for part in command).replace(f"{ROOT}/", "")


def run(command, failed):
    """The series that one bench prints, by topic/name. A bench that fails is added to failed."""
    print(f"  {name(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        failed.append(f"{name(command)} ended with status {done.returncode}")
        print(f"bench: {failed[-1]}", file=sys.stderr, flush=True)
    return results.parse(done.stdout)


def module_series():
    """Return the figures that `make bench-vm` measured in a virtual machine, if there are any."""
    if not MODULE.exists():
        return {}
    return json.loads(MODULE.read_text())


def judge(bound, series):
    """The bound with its ratio and verdict."""
    result = {"title": bound.title, "beside": bound.what, "limit": bound.limit,
              "over_ns": bound.over_ns, "most_ns": bound.most_ns}
    for name in (bound.measured, bound.beside):
        if name not in series:
            reason = "run `make bench-vm`" if name.startswith("module/") else f"no {name}"
            return {**result, "verdict": f"not measured: {reason}"}
        if "skip" in series[name]:
            return {**result, "verdict": f"not measured: {series[name]['skip']}"}
    ours, theirs = series[bound.measured], series[bound.beside]
    ratio = ours["p50_ns"] / theirs["p50_ns"]
    if bound.over_ns is not None:
        met = ours["p50_ns"] - theirs["p50_ns"] <= bound.over_ns
    elif bound.most_ns is not None:
        met = ours["p50_ns"] <= bound.most_ns
    else:
        met = bound.limit is None or ratio <= bound.limit
    reported = bound.limit is bound.over_ns is bound.most_ns is None
    verdict = "reported" if reported else "met" if met else "not met"
    return {**result, "ratio": ratio, "verdict": verdict, "ours": ours, "theirs": theirs}


def duration(ns):
    """Three digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def print_table(sections, series):
    print(f"{'':<34}{'median':>9}{'p99':>9}  {'beside':<36}{'median':>9}{'ratio':>7}{'bound':>9}")
    for section in sections:
        print(f"\n{section['title']}")
        for line in section["bounds"]:
            if "ratio" not in line:
                print(f"  {line['title']:<32}{line['verdict']}")
                continue
            p99 = duration(line["ours"]["p99_ns"]) if "p99_ns" in line["ours"] else ""
            limit = (f"+{duration(line['over_ns'])}" if line["over_ns"] is not None else
                     duration(line["most_ns"]) if line["most_ns"] is not None else
                     "" if line["limit"] is None else f"{line['limit']:g}")
            print(f"  {line['title']:<32}{duration(line['ours']['p50_ns']):>9}{p99:>9}"
                  f"  {line['beside']:<36}{duration(line['theirs']['p50_ns']):>9}"
                  f"{line['ratio']:>7.2f}{limit:>9}  {line['verdict']}")
    for name, record in series.items():
        if record.get("unit", "ratio") != "ratio":
            print(f"\n{name}: {record['value']:g} {record['unit']}")


def draw(sections, facts):
    import figure  # wants matplotlib

    figure.draw(sections, facts, OUT / "bench.svg")


def chosen(words):
    """The commands that have one of the words, all without any."""
    commands = [command for command in (*COMMANDS, *(ALONE if words else ()))
                if not words or any(word in str(part) for word in words for part in command)]
    if not commands:
        sys.exit(f"bench: no command has {' or '.join(words)}")
    return commands


def main():
    words = sys.argv[1:]
    commands = chosen(words)
    facts = machine()
    print(f"tmesh {facts['version']}, {facts['backend']} backend; {facts['cpu']},"
          f" {facts['cpus']} CPUs{', virtual' if facts['virtual'] else ''};"
          f" Linux {facts['kernel']}; load {facts['load']:.1f}"
          f"{', at real-time priority' if facts['real_time'] else ''}\n",
          flush=True)
    series = {} if words else module_series()
    failed = []
    for command in commands:
        series |= run(command, failed)
    sections = [{"title": section.title,
                 "bounds": [judge(bound, series) for bound in section.bounds
                            if bound.measured in series or not words and not bound.measured.startswith(ALONE_TOPIC)]}
                for section in SECTIONS]
    sections = [section for section in sections if section["bounds"]]
    print_table(sections, series)
    if failed:
        print("\nFailed, so that lines above are not measured:", *failed, sep="\n  ")
    if words:
        return bool(failed)
    (OUT / "bench.json").write_text(json.dumps(
        {"machine": facts, "sections": sections, "series": series}, indent=1) + "\n")
    draw(sections, facts)
    print(f"\n{os.path.relpath(OUT, ROOT)}/bench.json, bench.svg")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
