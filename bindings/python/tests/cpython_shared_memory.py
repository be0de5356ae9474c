# SPDX-License-Identifier: MIT
"""Run CPython's own tests of multiprocessing.shared_memory against tmesh's.

usage: cpython_shared_memory.py fork|forkserver|spawn

Spawned children import this file again, so that they also use our module in place of the standard library's.
"""

import signal
import sys

import tmesh.shared_memory

tmesh.shared_memory.install()
# A shell ignores SIGINT in background jobs, and one of the tests needs it.
signal.signal(signal.SIGINT, signal.default_int_handler)

from test import _test_multiprocessing as theirs  # noqa: E402
from test.support import script_helper  # noqa: E402

import cpython_tests  # noqa: E402

# The fork server may have imported it before this file.
theirs.shared_memory = tmesh.shared_memory

TRACKER = "it wants the resource tracker's warning; tmesh has no tracker, and test_killed_creator"
EXCEPTIONS = {
    "test_shared_memory_cleaned_after_process_termination": TRACKER,
    "test_shared_memory_tracking": TRACKER,
}

# Programs that a test starts in fresh interpreters. A free-threaded Python warns that it switches the GIL on,
# and one test expects no output.
START = ("import warnings; warnings.simplefilter('ignore', RuntimeWarning)\n"
         "import tmesh.shared_memory; tmesh.shared_memory.install()\n")
assert_python_ok = script_helper.assert_python_ok


def with_ours(option, program, *args, **kwargs):
    return assert_python_ok(option, START + program, *args, **kwargs)


tests = cpython_tests.find(theirs, "TestSharedMemory", sys.argv[1], EXCEPTIONS, globals())

if __name__ == "__main__":
    script_helper.assert_python_ok = with_ours
    cpython_tests.run(*tests)
