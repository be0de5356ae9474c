# SPDX-License-Identifier: MIT
"""Run CPython's own tests of multiprocessing.shared_memory against tmesh's.

usage: cpython_shared_memory.py fork|forkserver|spawn

The tests are those of the Python that runs this, imported from where it has them. For each
there is a line: ok, FAIL or skip, its name, and why it was skipped. Spawned children import this file again, so
that they too have our module in the place of the standard library's.
"""

import signal
import sys
import unittest

import tmesh.shared_memory

tmesh.shared_memory.install()
# A shell ignores it for what it starts in the background; a test of theirs is about it.
signal.signal(signal.SIGINT, signal.default_int_handler)

from test import _test_multiprocessing as theirs  # noqa: E402
from test.support import script_helper  # noqa: E402

# The fork server may have imported them before it imported this.
theirs.shared_memory = tmesh.shared_memory

TRACKER = ("test_shared_memory_cleaned_after_process_termination", "test_shared_memory_tracking")

# Fresh interpreters that a test starts with a program of its own. Without a GIL one warns that it
# switches it on; a test of theirs wants nothing said.
START = ("import warnings; warnings.simplefilter('ignore', RuntimeWarning)\n"
         "import tmesh.shared_memory; tmesh.shared_memory.install()\n")
assert_python_ok = script_helper.assert_python_ok


def with_ours(option, program, *args, **kwargs):
    return assert_python_ok(option, START + program, *args, **kwargs)


class Lines(unittest.TestResult):
    failed = False

    def startTest(self, test):
        super().startTest(test)
        self.failed = False

    def line(self, word, test, reason=""):
        if not self.failed:
            print(word, test._testMethodName, reason, flush=True)
        self.failed = True

    def addSuccess(self, test):
        self.line("ok", test)

    def addSkip(self, test, reason):
        self.line("skip", test, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("FAIL", test)

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err:
            self.addFailure(test, err)


def main(method):
    script_helper.assert_python_ok = with_ours
    module = {"__name__": __name__}
    theirs.install_tests_in_module_dict(module, method)
    module["setUpModule"]()
    case, = (value for name, value in module.items() if name.endswith("TestSharedMemory"))
    for name in TRACKER:
        if hasattr(case, name):
            setattr(case, name, unittest.skip(
                "it wants the resource tracker's warning; tmesh has no tracker, and "
                "test_killed_creator")(getattr(case, name)))
    # Spawned children look for it here.
    globals()[case.__name__] = case
    result = Lines()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    module["tearDownModule"]()
    for _, traceback in result.failures:
        print(traceback, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
