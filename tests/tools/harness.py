# SPDX-License-Identifier: MIT
"""Drives the built tmeshctl, on memfds unless TMESH_BACKEND says kernel. Shared by its tests."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
import unittest

TOOL, MAN = (os.path.abspath(path) for path in sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VERBS = ("doctor ls show holders top draw create put get export import seal lease "
         "revoke keep kept drop mount umount metrics devices graph load model").split()
# The limit for an operation that takes a moment. tmeshctl sees all processes of the machine, and the regions
# that other suites hold.
WAIT_S = 600
BACKEND = os.environ.get("TMESH_BACKEND") or "memfd"
HAVE_MODULE = os.path.exists("/dev/tmesh")
# For what a guest would only do again, ten times slower.
any_backend = unittest.skipIf(BACKEND == "kernel", "says nothing of the backend; run on memfds")


def tool(*args, status=0, **more):
    """Run to its end; its output, and what it said on standard error."""
    more.setdefault("stdin", subprocess.DEVNULL)
    if "input" in more:
        del more["stdin"]
    done = subprocess.run([TOOL, *args], capture_output=True, timeout=WAIT_S, **more)
    said = done.stderr.decode()
    assert done.returncode == status, f"status {done.returncode}, not {status}: {said}"
    return done.stdout, said


def answer(*args, **more):
    return json.loads(tool(*args, "--json", **more)[0])


def refused(word, *args, status=1, **more):
    out, said = tool(*args, status=status, **more)
    assert not out, f"something on standard output: {out!r}"
    assert word in said, f"{said!r} does not say {word!r}"


def wrong_usage(word, *args, **more):
    refused(word, *args, status=2, **more)


def eventually(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the opening, or after it
        return True


@contextlib.contextmanager
def held(*args, **more):
    """A region held in the background; its names."""
    names = answer(*args, "--background", **more)
    try:
        yield names
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(names["pid"], signal.SIGTERM)
        eventually(lambda: gone(names["pid"]), "the holder ends")


def listed(names):
    return any(region["id"] == names["id"] for region in answer("ls"))


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        os.environ["TMESH_RUNTIME_DIR"] = os.path.join(self.dir, "run")
        os.environ["TMESH_BACKEND"] = BACKEND

    def file(self, data, name="data"):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as to:
            to.write(data)
        return path

    def read(self, name):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()

    def on_terminal(self, *args, rows=65535, wrapper=()):
        """Return a command's output on a terminal, and its status. It has a row for everything: what the test
        is about is shown however much others hold. wrapper: a program that starts it."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        with os.fdopen(leader, "rb", 0) as screen:
            with os.fdopen(follower, "wb", 0) as terminal:
                process = subprocess.Popen([*wrapper, TOOL, *args], stdin=subprocess.DEVNULL,
                                           stdout=terminal, stderr=terminal)
            said = b""
            with contextlib.suppress(OSError):  # EIO: the other side is closed
                while piece := screen.read(65536):
                    said += piece
        return said.decode(), process.wait(WAIT_S)


class Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number = 0

    def line(self, word, test, note=""):
        self.number += 1
        name = test.id().split(".", 1)[1].replace(".test_", ": ").replace("_", " ")
        print(f"{word} {self.number} - {name}{note}", flush=True)

    def addSuccess(self, test):
        self.line("ok", test)

    def addSkip(self, test, reason):
        self.line("ok", test, f" # SKIP {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("not ok", test)
        traceback.print_exception(*err, file=sys.stderr)

    addError = addFailure


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}")
    result = Tap()
    suite.run(result)
    return 1 if result.failures or result.errors else 0
