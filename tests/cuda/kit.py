#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kit for machines with a GPU itself: what it carries. On the stand-in; prints TAP.

usage: kit.py KIT"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KIT = Path(sys.argv[1])
sys.path.insert(0, str(KIT))
sys.dont_write_bytecode = True
import libraries  # noqa: E402

tests = []


def test(function):
    tests.append(function)
    return function


@test
def every_library_is_carried():
    assert not libraries.missing(KIT), libraries.missing(KIT)
    needed = libraries.needed(KIT)
    assert {"libtmesh.so.0", "libjansson.so.4", "liburing.so.2"} <= set(needed), needed


@test
def a_library_that_is_missing_is_named():
    for name in libraries.needed(KIT):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(KIT, Path(folder) / "kit"))
            (copy / name).unlink()
            done = subprocess.run([sys.executable, "-B", copy / "libraries.py", copy], capture_output=True, text=True)
            assert done.returncode == 1 and f"needs {name}, which is not in" in done.stdout, done.stdout


@test
def what_is_carried_is_what_is_loaded():
    """Wherever else there is one, as here."""
    script = ("import os, tmesh.cuda; tmesh.cuda.available(); "
              "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})")
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "LD_LIBRARY_PATH": f"{KIT.absolute()}:{os.environ['LD_LIBRARY_PATH']}",
                               "PYTHONPATH": str(KIT.absolute())})
    loaded = {os.path.basename(path): os.path.dirname(path) for path in done.stdout.split()}
    for name in libraries.needed(KIT):
        assert loaded.get(name) == str(KIT.resolve()), f"{name} is of {loaded.get(name)}"


def main():
    print(f"1..{len(tests)}")
    failed = 0
    for number, function in enumerate(tests, 1):
        word = "ok"
        try:
            function()
        except Exception as error:
            word = "not ok"
            failed = 1
            print(*(f"# {line}" for line in f"{type(error).__name__}: {error}".splitlines()), sep="\n")
        print(f"{word} {number} - stand-in: kit: {function.__name__}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
