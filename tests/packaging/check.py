#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""The packaging's tests, as TAP; TMESH_TEST_LENGTH=full also builds, installs and removes the packages, and
installs the Python package from its sources."""
import signal
import sys

import releases  # first: it makes the modules of tests/vm known
import boot
import elixir
import install
import lint
import manifests
import monitoring
import packages
import python_source
import wheel
import yesterday
from cache import locked
from tap import Tap


def main():
    # Programs in a root or a guest end with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tap = Tap()
    lint.run(tap)
    install.run(tap)
    manifests.run(tap)
    monitoring.run(tap)
    if boot.length() == "full":
        with locked(boot.BUILD / "packaging"):
            built = boot.BUILD / "packaging" / "wheel"
            yesterday.run(tap)
            wheel.build(tap, built)
            for release in releases.RELEASES:
                wheel.run(tap, release, built)
                packages.run(tap, release)
                python_source.run(tap, release)
                elixir.run(tap, release)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
