#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The everyday tools: make t, make help, what is missing, the commit hook, compile_commands. Prints TAP."""

import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile

import one

TOP = Path(__file__).resolve().parents[1]
bad = number = 0


def point(ok, name, detail=""):
    global bad, number
    bad += not ok
    number += 1
    print(f"{'ok' if ok else 'not ok'} {number} - {name}" + ("" if ok else f": {detail}"))


def run(*words, text=None, **more):
    done = subprocess.run([str(word) for word in words], cwd=TOP, input=text, capture_output=True, text=True, **more)
    return done.returncode, done.stdout + done.stderr


def command(wanted, detector="", kernel="6.12"):
    try:
        return " ".join(one.command(wanted, detector, kernel))
    except SystemExit as refused:
        return f"refused: {refused}"


for wanted, detector, want in [
    ("layout", "", "make -s unit-check UNIT_NAMES=test_layout"),
    ("tests/unit/test_layout.c", "asan", "make -s unit-asan-check UNIT_NAMES=test_layout"),
    ("test_headers", "", "make -s model-check MODEL_TESTS=test_headers"),
    ("queue::test_cpython", "", "make -s python-check PYTHON_TESTS=test_queue.py::test_cpython"),
    ("python/arrow", "", "make -s python-arrow-check"),
    ("stream", "", "make -s beam-check BEAM_TESTS=test/stream_test.exs"),
    ("6-channels", "", "make -s conformance-check PROMISES=6-channels"),
    ("unit-valgrind-check", "", "make -s unit-valgrind-check"),
    ("kselftest/seal", "", "sh -c make -s kselftest && TMESH_TESTS=seal exec tests/vm/run 6.12 kselftest"),
]:
    point(command(wanted, detector) == want, f"make t T={wanted}", command(wanted, detector))
point("is the name of" in command("seal") and "T=kselftest/seal" in command("seal"), "a name of several tests is refused", command("seal"))
point("unit/layout" in command("layou"), "a name that is no test's gives those that contain it", command("layou"))
point("no detector" in command("layout", "msan"), "an unknown detector is refused", command("layout", "msan"))

status, said = run("make", "-s", "help")
point(status == 0 and all(f"  {target} " in said for target in ("deps", "quick", "check", "check-debug", "install", "bench")),
      "make help lists the contract", said)
status, said = run("make", "-s", "help", "SUITES=1")
point("  unit-check " in said and "  beam-check " in said, "make help SUITES=1 lists the suites", said)

# Make expands prerequisites when it reads them: a variable of a file that is included later is empty there.
status, said = run("make", "--warn-undefined-variables", "-pn", "help")
later = [name for name in re.findall(r"undefined variable '(\w+)'", said) if re.search(rf"^{name} [:?]?=", said, re.M)]
point(not later, "no variable is used before it is defined", " ".join(later))

# A row of guests, and of valgrind, for each goal; both goals are one run.
for rows, suites in [("ROWS", "vm-6.1-kselftest"), ("ROWS_DEBUG", "vm-debug-kselftest"), ("ROWS_BOTH", "unit-valgrind-check"),
                     ("ROWS_FULL", "vm-debug-fuzz")]:
    status, said = run("make", "-n", "run-rows", f"RUN=$({rows})")
    point(status == 0 and "tests/run.py" in said and suites in said, f"the rows of {rows} are there", said[-300:])
makefile = (TOP / "tests/build.mk").read_text()
point("RUN='$$(ROWS$(if" in makefile and "--once $(call row,$(ONCE)) $(RUN)" in makefile, "the runner is given the rows of the goals")

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "dpkg-query").write_text("#!/bin/sh\n[ \"$4\" != scdoc ] && echo installed\n")
    (Path(folder) / "dpkg-query").chmod(0o755)
    status, said = run("packaging/deps.sh", "--missing", "build", env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
    point(status == 1 and "missing scdoc\n" in said and "make deps TIER=build" in said, "a missing package is named", said)
    for tier in ("all", "test"):
        (Path(folder) / "dpkg-query").write_text("#!/bin/sh\necho installed\n")
        status, said = run("packaging/deps.sh", "--missing", tier, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        point((status, said) == (0, ""), f"nothing is printed where nothing is missing: {tier}", said)
    status, said = run("packaging/deps.sh", "--missing", "everything")
    point(status == 2 and "usage" in said, "an unknown tier is refused", said)

    status, said = run("make", "-s", f"B={folder}/build", f"{folder}/build/needs/cmocka.h", "CC=false")
    point(status and "cmocka.h is missing" in said and "libcmocka-dev" in said, "a missing header is named with its package", said)
    status, said = run("make", "-s", f"B={folder}/build", f"{folder}/build/needs/libdrm@drm.h", "CC=false")
    point(status and "libdrm/drm.h is missing" in said and "libdrm-dev" in said, "a missing header of a folder is, too", said)

    message = Path(folder) / "message"
    for subject, good in [
        ("lib: refuse a negative stride", True), ("tests/unit, lib: name the descriptor", True), ("Revert \"lib: x\"", True),
        ("refuse a negative stride", False), ("lib: the stride is refused", False), ("lib: it has a stride", False),
        ("lib: fixed a stride", False), ("lib: refuse it.", False), ("", False),
        ("lib: " + "a" * 100, False),
    ]:
        message.write_text(f"{subject}\n\nwhy\n# a comment\n")
        status, said = run("sh", "packaging/git/commit-msg", message)
        point((status == 0) == good, f"the commit hook {'takes' if good else 'refuses'}: {subject[:50]}", said)

    out = Path(folder) / "commands.json"
    (Path(folder) / "flags").write_text("-DFLAG\n")
    text = f"cc -O2 @{folder}/flags -c -o a.o lib/a.c\ncc -fsanitize=address -c -o b.o lib/a.c\nld a.o\n"
    status, said = run(sys.executable, "-B", "tests/compile_commands.py", out, text=text)
    entries = json.loads(out.read_text()) if out.exists() else []
    point(status == 0 and [entry["file"] for entry in entries] == ["lib/a.c"] and "-DFLAG" in entries[0]["arguments"],
          "compile_commands.json has the plain flags of each file", said)
    status, said = run(sys.executable, "-B", "tests/compile_commands.py", out, text="ld a.o\n")
    point(status and "no C file" in said, "nothing to compile is an error", said)

print(f"1..{number}")
raise SystemExit(1 if bad else 0)
