#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""The packaging's tests, as TAP; TMESH_TEST_LENGTH=full also builds, installs and removes the packages, and
installs the Python package from its sources."""
import signal
import sys

import releases  # first: it makes the modules of tests/vm known
import boot
import lint
import packages
import python_source
from cache import locked
from tap import Tap


def main():
    # What runs in a root or a guest ends with us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tap = Tap()
    lint.run(tap)
    if boot.length() == "full":
        with locked(boot.BUILD / "packaging"):
            for release in releases.RELEASES:
                packages.run(tap, release)
                python_source.run(tap, release)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
