# SPDX-License-Identifier: MIT
"""What can be run on a kernel: each suite boots a guest and adds its points to the TAP."""
import os
import shutil
import signal
import sys

import boot
import checkout
import coverage
import debian13
import detectors
import kernels
import modules
import netfs as network
from cache import locked
from judge import judge
from tap import Tap, program

sys.path.insert(0, str(modules.TOP / "tests/unit"))
import lib_coverage as of_lib  # noqa: E402: found by the line above


def on_module(tap, name, suite, **more):
    """A suite against our module, which has to build without a warning first."""
    kernel = kernels.prepare(boot.kernel_of(name))
    module, warnings = modules.kept(kernel, boot.logs(kernel.name, "module"))
    untested = [line for line in warnings if "tested up to Linux" in line]
    warnings = [line for line in warnings if line not in untested]
    tap.point(not warnings, f"{name}: {suite}: the module builds without a warning")
    tap.note("\n".join(warnings))
    if untested:
        tap.point(True, f"{name}: {suite}: the module calls this kernel tested",
                  "it is newer: raise TMESH_TESTED_MAJOR and _MINOR once it passes, and what the texts say")
    results = judge(tap, name, boot.run(name, suite, module=module, **more))
    coverage.report(tap, name, module, results.left, boot.logs(name, suite))


def kselftest(tap, name):
    """The C programs of tests/kselftest.

    TMESH_TESTS names those to run, all by default. With TMESH_REPLAY, a file of inputs, the
    fuzzer runs these alone and tells of each call.
    """
    programs = [p for p in sorted((boot.BUILD / "tests/kselftest").iterdir())
                if os.access(p, os.X_OK) and p.name in os.environ.get("TMESH_TESTS", p.name).split()]
    if not programs:
        sys.exit("vm: no program to run in build/tests/kselftest; `make kselftest` builds them")
    replay = os.environ.get("TMESH_REPLAY")
    logs = boot.logs(name, "kselftest")
    corpus = logs / "fuzz.corpus"
    shutil.copy(replay or modules.TOP / "tests/kselftest/fuzz.corpus", corpus)
    peer, _ = modules.of_tests(kernels.prepare(boot.kernel_of(name)), "peer", logs)
    on_module(tap, name, "kselftest", programs=programs, files=[corpus, peer],
              arguments=["TMESH_REPLAY=1"] if replay else [])


def in_debian(tap, name, suite, *targets, huge="", with_model=False, packages=(), modules=()):
    """Suites of the checkout in Debian 13, without the module and with it. packages, modules: of Debian's and of
    the kernel's, what these suites need besides. huge: a target for memfds that may have huge pages, in the guest, whose
    kernel is nobody else's."""
    with locked(checkout.COPY):
        repo = checkout.copy(with_model)
        for target in targets:
            done = checkout.on_memfd(target, repo, packages)
            program(tap, f"Debian 13 without the module: {target}", done.stdout.splitlines(), done.returncode)
        on_module(tap, name, suite, script="checkout", disks=checkout.disks(repo, packages),
                  arguments=[f"TMESH_TARGETS={','.join(targets)}", f"TMESH_HUGE={huge}"], modules=modules)


def python(tap, name):
    """The Python suite in Debian 13, without the module and with it."""
    in_debian(tap, name, "python", "python-check")


def beam(tap, name):
    """The Elixir suite and the conformance suite, the same way."""
    in_debian(tap, name, "beam", "beam-check", "conformance-check")


def library(tap, name):
    """The unit tests of the two libraries, those of tmeshctl, and those of GPU memory that say something of
    regions (on a stand-in for the driver), the same way."""
    in_debian(tap, name, "library", "unit-check", "model-check", "tools-check", "cuda-backend-check", huge="huge-check")


def faults(tap, name):
    """Loading models while reads fail and processes are killed, the same way. Without FUSE, which Debian's root lacks."""
    in_debian(tap, name, "faults", "model-faults-check")


def net(tap, name):
    """Tmesh.Net between machines on bad links and in WireGuard's tunnels, which the host's kernel may lack."""
    in_debian(tap, name, "net", "net-check", "net-weather-check", packages=debian13.NET,
              modules=("veth", "bridge", "sch_netem", "wireguard"))


def four(tap, name):
    """Four machines that have the module. In a guest of their own: emulated, their nodes take long to begin."""
    in_debian(tap, name, "four", "net-four-check", packages=debian13.NET, modules=("veth", "bridge", "sch_netem"))


def netfs(tap, name):
    """Models from network file systems: how they are read, and what changes under them."""
    on_module(tap, name, "netfs", **network.guest(boot.logs(name, "netfs")))


def lib_coverage(tap, name):
    """Which lines and branches of libtmesh its unit tests run, on memfds and on the module together."""
    first = len(tap.notes)
    in_debian(tap, name, "lib-coverage", "lib-coverage")
    for line in of_lib.table(of_lib.merge(tap.notes[first:])):
        tap.note(f"together: {line}")


def demo(tap, name):
    """`make demo`, the same way."""
    in_debian(tap, name, "demo", "demo-check", with_model=True)


SUITES = {
    "kselftest": kselftest,
    "library": library,
    "python": python,
    "beam": beam,
    "demo": demo,
    "faults": faults,
    "net": net,
    "four": four,
    "netfs": netfs,
    "lib-coverage": lib_coverage,
    "seeded": detectors.run,
}


def run(pairs):
    """Run (kernel, suite) pairs as one TAP; the exit status."""
    # A guest is ended on the way out, also when somebody ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tap = Tap()
    for name, suite in pairs:
        with locked(boot.logs(name, suite)):
            SUITES[suite](tap, name)
    return tap.end()
