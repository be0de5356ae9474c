# SPDX-License-Identifier: MIT
"""A cache outside the checkout for files that are slow to make."""
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tmesh" / "vm"


def say(text):
    """Print progress to stderr: stdout is TAP."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


def sh(*command, **options):
    """Run a command and return its output. If it fails, print the output and exit."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit(f"vm: `{' '.join(map(str, command))}` failed with status {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def locked(path):
    """Hold a lock: runs share the cache and the build folder, and a second run waits for the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep(name, make):
    """Return CACHE/name, a directory that make(path) fills if it is not there yet.

    It gets its name by a rename when make() has returned, so an interrupted run leaves
    nothing that looks finished.
    """
    path = CACHE / name
    with locked(path):
        if not path.exists():
            unfinished = path.with_name(path.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(path)
    return path
