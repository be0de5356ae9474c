# SPDX-License-Identifier: MIT
"""Run CPython's own tests of multiprocessing.Queue with tmesh.Queue in its place.

usage: cpython_queue.py fork|forkserver|spawn
"""

import multiprocessing
import sys

from test import _test_multiprocessing as theirs

import cpython_tests
import tmesh

FEEDER = ("there is no feeder thread to report to: put() raises for an object that cannot be pickled, and nothing of "
          "it is in the queue, as test_what_did_not_fit_is_let_go shows")
# bindings/python/README.md lists these too.
EXCEPTIONS = {
    "test_fork": "it wants the things of two processes in one order; each process's come in its own, "
                 "which test_several_of_each shows",
    "test_task_done": "there is no JoinableQueue",
    "test_queue_feeder_donot_stop_onexc": FEEDER,
    "test_queue_feeder_on_queue_feeder_error": FEEDER,
    "test_closed_queue_empty_exceptions": "empty() of a closed queue raises ValueError as put() and get() do, used or not, "
                                          "which test_closed shows",
}

tests = cpython_tests.find(theirs, "TestQueue", sys.argv[1], EXCEPTIONS, globals())

if __name__ == "__main__":
    tests[0].Queue = staticmethod(tmesh.Queue)
    # For tests, and modules that they write, which do not use the case's queue.
    multiprocessing.Queue = tmesh.Queue
    cpython_tests.run(*tests)
