#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run one test or one suite: `make t T=NAME`.

NAME is a test's file without test_ and ending (layout, stream, seal), a file's path, a test of a Python file
(queue::test_close), or a suite (unit-check). If several files have the name, say the folder: T=unit/layout.
S=asan, tsan or valgrind runs a C test with that detector. K=KERNEL boots that kernel for a test of the module (6.12).
"""
import os
from pathlib import Path
import re
import shlex
import sys

TOP = Path(__file__).resolve().parents[1]
DETECTORS = ("asan", "tsan", "valgrind")

# Tests of Python that need an environment of their own run as a whole, by these suites.
OWN_ENVIRONMENT = {
    "arrow": "python-arrow-check", "table": "python-arrow-check", "readme": "python-arrow-check", "dist": "python-arrow-check",
    "grpc": "python-arrow-check", "model": "python-model-check", "transformers": "python-transformers-check",
    "ray": "python-ray-check", "ray_machines": "python-ray-check", "net": "python-net-check", "movers": "python-net-check",
    "fetcher": "python-net-check", "lmcache": "python-lmcache-check", "vllm": "vllm-check", "vllm_omni": "vllm-check", "sglang": "vllm-check",
    "engine": "python-engine-check",
    "engine_served": "python-engine-check", "engine_cancel": "python-engine-check", "graphs": "python-graph-check",
    "adapters": "python-graph-check", "generate": "python-graph-check",
    "paged": "python-graph-check", "batching": "python-graph-check", "mutants": "python-graph-check",
}
# Tests of engines that need an engine's library.
WITH_LIBRARY = {"onnx": "engine-onnx-check", "mutants": "engine-mutants-check", "ggml_abi": "engine-ggml-abi-check",
                "gpu": "engine-gpu-check", "onnx_gpu": "engine-gpu-check", "ggml_gpu": "engine-gpu-check"}


def with_detector(room, detector):
    return f"{room}-{detector}-check" if detector else f"{room}-check"


def c_test(room, variable):
    return lambda name, detector, kernel: ["make", "-s", with_detector(room, detector), f"{variable}=test_{name}"]


def engine_test(name, detector, kernel):
    if name in WITH_LIBRARY:
        return ["make", "-s", WITH_LIBRARY[name]]
    return c_test("engine", "ENGINE_TESTS")(name, detector, kernel)


def net_test(name, detector, kernel):
    return ["make", "-s", with_detector("net", detector)]


def python_test(name, detector, kernel):
    file, _, test = name.partition("::")
    if file in OWN_ENVIRONMENT:
        return ["make", "-s", OWN_ENVIRONMENT[file]]
    return ["make", "-s", "python-check", f"PYTHON_TESTS=test_{file}.py" + (f"::{test}" if test else "")]


def elixir_test(name, detector, kernel):
    return ["make", "-s", "beam-check", f"BEAM_TESTS=test/{name}_test.exs"]


def module_test(name, detector, kernel):
    return ["sh", "-c", f"make -s kselftest && TMESH_TESTS={shlex.quote(name)} exec tests/vm/run {shlex.quote(kernel)} kselftest"]


def promise(name, detector, kernel):
    return ["make", "-s", "conformance-check", f"PROMISES={name}"]


def script(folder, pattern, *before):
    def command(name, detector, kernel):
        return ["sh", "-c", shlex.join([*before, str(TOP / folder / pattern.replace("*", name))])]
    return command


# room: folder, pattern of its tests' files, command
ROOMS = {
    "unit": ("tests/unit", "test_*.c", c_test("unit", "UNIT_NAMES")),
    "model": ("tests/model", "test_*.c", c_test("model", "MODEL_TESTS")),
    "engine": ("tests/engine", "test_*.c", engine_test),
    "net": ("tests/net", "test_*.c", net_test),
    "cuda": ("tests/cuda", "test_*.c", c_test("cuda", "CUDA_NAMES")),
    "xla": ("tests/xla", "test_*.c", lambda name, *_: ["make", "-s", "xla-check"]),
    "python": ("bindings/python/tests", "test_*.py", python_test),
    "elixir": ("bindings/beam/test", "*_test.exs", elixir_test),
    "kselftest": ("tests/kselftest", "*.c", module_test),
    "conformance": ("tests/conformance/promises", "*.txt", promise),
    "sim": ("tests/sim", "sim_*.py", script("tests/sim", "sim_*.py", "/usr/bin/python3", "-B")),
    "tools": ("tests/tools", "test_*.py", lambda name, *_: ["make", "-s", "tools-check"]),
    "keep": ("tests/keep", "test_*.py", lambda name, *_: ["make", "-s", "keep-check"]),
}


def tests():
    """Return (room, name) of every test there is."""
    for room, (folder, pattern, _) in ROOMS.items():
        before, after = pattern.split("*")
        for path in sorted((TOP / folder).glob(pattern)):
            yield room, path.name[len(before):len(path.name) - len(after)]


def plain(wanted):
    """Return (room or None, name) of the user's word: a path, room/name or a name."""
    path, _, test = wanted.partition("::")
    for room, (folder, pattern, _) in ROOMS.items():
        before, after = pattern.split("*")
        inside = re.fullmatch(rf"(?:.*/)?{re.escape(folder)}/{re.escape(before)}(.+){re.escape(after)}", path)
        if inside:
            return room, inside[1], test
    room, _, name = path.rpartition("/")
    return room or None, re.sub(r"^test_|\.(c|py|exs|txt)$", "", name), test


def suites():
    text = "".join(path.read_text() for folders in ("*", "*/*") for path in TOP.glob(f"{folders}/build.mk"))
    return set(re.findall(r"^([a-z0-9.-]+-check):", text, re.M))


def chosen(wanted):
    """Return the one test that is meant, as (room, name)."""
    room, name, test = plain(wanted)
    there = list(tests())
    found = [(r, n) for r, n in there if n == name and room in (None, r)]
    if not found:
        close = sorted({f"{r}/{n}" for r, n in there if name and name in n and room in (None, r)})
        raise SystemExit(f"no test is called {wanted}" + (f"; names that contain it: {', '.join(close)}" if close else
                         f"; the rooms are {', '.join(ROOMS)}"))
    if len(found) > 1:
        raise SystemExit(f"{wanted} is the name of {len(found)} tests: say T=" + " or T=".join(f"{r}/{n}" for r, n in found))
    room, name = found[0]
    if test and room != "python":
        raise SystemExit(f"only tests of Python are chosen by ::, and {room}/{name} is none: say T={room}/{name}")
    return room, f"{name}::{test}" if test else name


def command(wanted, detector, kernel):
    if detector and detector not in DETECTORS:
        raise SystemExit(f"S={detector} is no detector; there are {', '.join(DETECTORS)}")
    if wanted in suites():
        return ["make", "-s", wanted]
    room, name = chosen(wanted)
    return ROOMS[room][2](name, detector, kernel)


def main():
    wanted = os.environ.get("T", "")
    if not wanted:
        raise SystemExit(__doc__.strip())
    words = command(wanted, os.environ.get("S", ""), os.environ.get("K") or "6.12")
    print(f"# {shlex.join(words)}", file=sys.stderr, flush=True)
    os.chdir(TOP)
    os.environ.setdefault("TMESH_TEST_LENGTH", "short")
    for name in ("T", "S", "K", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
        os.environ.pop(name, None)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
