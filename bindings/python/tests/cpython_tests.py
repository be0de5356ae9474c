# SPDX-License-Identifier: MIT
"""Run CPython's own tests of multiprocessing with our classes in place of theirs.

The tests are those of the running Python, imported from its own folder. Print a line for each: ok, FAIL or skip, its
name, and why it was skipped.
"""

import sys
import unittest


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


def find(theirs, name, method, exceptions, namespace):
    """Return the case of that name, without the exceptions, each of which has a reason. It is put into the namespace,
    where spawned children look for it."""
    module = {"__name__": namespace["__name__"]}
    theirs.install_tests_in_module_dict(module, method)
    case, = (value for key, value in module.items() if key in (name, f"WithProcesses{name}"))
    for test, reason in exceptions.items():
        if hasattr(case, test):
            setattr(case, test, unittest.skip(reason)(getattr(case, test)))
    namespace[case.__name__] = case
    return case, module["setUpModule"], module["tearDownModule"]


def run(case, set_up, tear_down):
    set_up()
    result = Lines()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    tear_down()
    for _, traceback in result.failures:
        print(traceback, file=sys.stderr)
