# SPDX-License-Identifier: MIT
"""The suites that can run on a kernel. Each boots a guest and adds its points to the TAP."""
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import boot
import checkout
import coverage
import debian13
import detectors
import kernels
import modules
import netfs as network
import planted
import selftests as kernel_selftests
from cache import locked
from judge import judge
from tap import Tap, program

sys.path.insert(0, str(modules.TOP / "tests/unit"))
import lib_coverage as of_lib  # noqa: E402: found by the line above


def on_module(tap, name, suite, **more):
    """Run a suite with our module. The module must build without a warning first."""
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
    """Run the C programs of tests/kselftest.

    TMESH_TESTS names the programs, all by default. With TMESH_REPLAY, a file of inputs, the fuzzer runs only
    these and prints each call.
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


def widened(tap, name):
    """Run the programs of TMESH_TESTS on a module with delays after its unlocks: `mixed`, `lifetimes`, `files_races` and
    `keep_races` by default."""
    names = os.environ.get("TMESH_TESTS", "mixed lifetimes files_races keep_races").split()
    programs = [boot.BUILD / "tests/kselftest" / program for program in names]
    kernel, logs = kernels.prepare(boot.kernel_of(name)), boot.logs(name, "widened")
    module, places = modules.widened(kernel, logs)
    peer, _ = modules.of_tests(kernel, "peer", logs)
    outcome = boot.run(name, "widened", module=module, script="kselftest", programs=programs, files=[peer])
    judge(tap, name, outcome)
    reached = set(re.findall(r"tmesh widened: (\S+)", outcome.console))
    tap.point(reached <= places, f"{name}: widened: each unlock that took long is one of the sources'")
    tap.note(f"not among them: {' '.join(sorted(reached - places))}" if reached - places else "")
    tap.point(2 * len(reached) > len(places), f"{name}: widened: {len(reached)} of {len(places)} unlocks took long")
    tap.note(f"never reached: {' '.join(sorted(places - reached))}")


def in_debian(tap, name, suite, *targets, huge="", fetch=None, packages=(), modules=()):
    """Run suites of the checkout in Debian 13, without the module and with it.

    fetch: called with the copy of the checkout, for files that come by the network.
    packages: more packages of Debian that they need
    modules: more modules of the kernel that they need
    huge: a target for memfds that may have huge pages. It runs in the guest, because it changes settings of the kernel
    """
    with locked(checkout.COPY):
        repo = checkout.copy()
        if fetch:
            fetch(repo)
        for target in targets:
            done = checkout.on_memfd(target, repo, packages)
            program(tap, f"Debian 13 without the module: {target}", done.stdout.splitlines(), done.returncode)
        if huge:
            tap.point(checkout.on_memfd("huge-built", repo, packages).returncode == 0, f"Debian 13: the programs of {huge} are built")
        on_module(tap, name, suite, script="checkout", disks=checkout.disks(repo, packages),
                  arguments=[f"TMESH_TARGETS={','.join(targets)}", f"TMESH_HUGE={huge}"], modules=modules)


def python(tap, name):
    """Run the Python suite in Debian 13, without the module and with it."""
    in_debian(tap, name, "python", "python-check", "python-bare-check")


def beam(tap, name):
    """Run the Elixir suite and the conformance suite in the same way."""
    in_debian(tap, name, "beam", "beam-check", "conformance-check")


def conformance(tap, name):
    """Run the conformance suite in the same way: C, Python and Elixir on the module."""
    in_debian(tap, name, "conformance", "conformance-check")


def library(tap, name):
    """Run unit tests in the same way: of the two libraries, of tmeshctl, and of GPU memory in regions, on a stand-in
    for the driver. Some of libtmesh's run a second time without any variable, and find the module by themselves."""
    in_debian(tap, name, "library", "unit-check", "unit-bare-check", "model-check", "tools-check", "cuda-backend-check", huge="huge-check")


def huge(tap, name):
    """Test huge pages of memfds without the module, with each setting that root may choose. On 6.12 `library` does this
    too."""
    programs = [boot.BUILD / "tests/vm/huge", boot.BUILD / "tmeshctl"]
    judge(tap, name, boot.run(name, "huge", module=None, programs=programs, libraries=network.libraries(programs),
                              modules=("virtio_balloon", "virtio_console"), balloon=True))


def engine(tap, name):
    """Test the restrictions of an engine's process and of its supervisor in the same way: kernels differ in the calls
    that they can deny."""
    in_debian(tap, name, "engine", "engine-confined-check")


def faults(tap, name):
    """Test loading models while reads fail and processes are killed, in the same way. Without FUSE, which Debian's root
    does not have."""
    in_debian(tap, name, "faults", "model-faults-check")


def net(tap, name):
    """Test Tmesh.Net between machines on bad links and in WireGuard tunnels. The host's kernel may not have WireGuard."""
    in_debian(tap, name, "net", "net-check", "net-weather-check", packages=debian13.NET,
              modules=("veth", "bridge", "sch_netem", "wireguard"))


def four(tap, name):
    """Test four machines that have the module. They have a guest of their own, because emulated nodes start slowly."""
    in_debian(tap, name, "four", "net-four-check", packages=debian13.NET, modules=("veth", "bridge", "sch_netem"))


def netfs(tap, name):
    """Test models on network file systems: reading them, and changes while they are read."""
    on_module(tap, name, "netfs", **network.guest(boot.logs(name, "netfs")))


def lib_coverage(tap, name):
    """Measure the lines and branches of libtmesh that its unit tests run, on memfds and on the module together."""
    first = len(tap.notes)
    in_debian(tap, name, "lib-coverage", "lib-coverage")
    for line in of_lib.table(of_lib.merge(tap.notes[first:])):
        tap.note(f"together: {line}")


def mount(tap, name):
    """Test paths for kept files, which the kernel itself reads, with the libfuse of Debian 13."""
    in_debian(tap, name, "mount", "mount-check", modules=("fuse",))


def readers(tap, name):
    """Test programs of others on the module's file system, without a root of Debian: fio, stress-ng, selftests of the kernel."""
    found = [shutil.which(program) for program in ("setpriv", "fio", "stress-ng")]
    programs = [boot.BUILD / "tmeshctl", *(Path(path) for path in found if path)]
    on_module(tap, name, "readers", programs=[*programs, *kernel_selftests.programs(), modules.TOP / "tests/mount/readers.sh"],
              libraries=network.libraries(programs))


def engines(tap, name):
    """Test ONNX Runtime and llama.cpp on kept files, by tmesh-mount in Debian 13 and by the module in the guest."""
    in_debian(tap, name, "engines", "mount-guest-check", fetch=checkout.fetch_engines)


def demo(tap, name):
    """Run `make demo` in the same way."""
    in_debian(tap, name, "demo", "demo-check", fetch=checkout.fetch_demo)


SUITES = {
    "kselftest": kselftest,
    "library": library,
    "huge": huge,
    "conformance": conformance,
    "python": python,
    "beam": beam,
    "mount": mount,
    "demo": demo,
    "engine": engine,
    "engines": engines,
    "readers": readers,
    "faults": faults,
    "net": net,
    "four": four,
    "netfs": netfs,
    "lib-coverage": lib_coverage,
    "seeded": detectors.run,
    "planted": planted.run,
    "widened": widened,
}


def run(pairs):
    """Run (kernel, suite) pairs as one TAP. Return the exit status."""
    # Exit on SIGTERM, so that the guest is killed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tap = Tap()
    for name, suite in pairs:
        with locked(boot.logs(name, suite)):
            SUITES[suite](tap, name)
    return tap.end()
