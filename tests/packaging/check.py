#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""The packaging's tests, as TAP. TMESH_TEST_LENGTH=full also builds, installs and removes the packages in clean roots, and follows the
install lines of the pages there.

    check.py [PART...] [RELEASE...]     these parts of the full length alone, with what earlier runs have built
"""
import signal
import sys

import releases  # first: it makes the modules of tests/vm known
import beside
import boot
import elixir
import install
import kept
import lines
import lint
import manifests
import monitoring
import packages
import python_source
import wheel
import yesterday
from cache import locked
from tap import Tap


WHEEL = boot.BUILD / "packaging" / "wheel"
ONCE = {"yesterday": yesterday.run}
# In roots of each release.
PARTS = {
    "wheel": lambda tap, release: wheel.run(tap, release, WHEEL),
    "packages": packages.run,
    "kept": lambda tap, release: kept.run(tap, release, packages.folder(release)),
    "beside": lambda tap, release: beside.run(tap, release, packages.folder(release), WHEEL),
    "python-source": python_source.run,
    "elixir": elixir.run,
    "lines": lines.run,
}
OF_WHEEL = {"wheel", "beside"}
OF_PACKAGES = {"packages", "kept", "beside"}
OF_TESTING = {"elixir"}


def quick(tap):
    lint.run(tap)
    install.run(tap)
    manifests.run(tap)
    monitoring.run(tap)
    lines.known(tap)


def full(tap, parts, wanted, anew):
    """Run parts in roots of the wanted releases. anew: build again what an earlier run has built."""
    with locked(boot.BUILD / "packaging"):
        for part in [part for part in ONCE if part in parts]:
            ONCE[part](tap)
        if parts & OF_WHEEL and (anew or not WHEEL.exists()):
            wheel.build(tap, WHEEL)
        for release in wanted:
            here = parts & OF_TESTING if release is releases.TESTING else parts
            built = True
            if here & OF_PACKAGES and (anew or not packages.folder(release).exists()):
                built = packages.build(tap, release)
            for part in [part for part in PARTS if part in here and (built or part not in OF_PACKAGES)]:
                PARTS[part](tap, release)


def main(words):
    # Programs in a root or a guest end with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    suites = {release.suite: release for release in (*releases.RELEASES, releases.TESTING)}
    every = {*ONCE, *PARTS}
    strange = {*words} - every - {*suites}
    if strange:
        sys.exit(f"check.py: {' '.join(sorted(strange))}: the parts are {' '.join(sorted(every))}, the releases {' '.join(suites)}")
    tap = Tap()
    if not words:
        quick(tap)
    if words or boot.length() == "full":
        full(tap, {*words} & every or every, [suites[suite] for suite in suites if suite in words] or [*suites.values()], not words)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
