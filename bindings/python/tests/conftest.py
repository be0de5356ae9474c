# SPDX-License-Identifier: MIT
"""TAP for the test runner, and what the tests share."""

import contextlib
import functools
import gc
import importlib.util
import os
from pathlib import Path
import re
import subprocess
import sys
import threading
import time

import pytest

# What a process sends just before its end is not lost where who takes it stands still for a while, as on a machine that
# emulates others. Read when tmesh is imported, in children too.
os.environ.setdefault("TMESH_LINGER", "600")

import tmesh  # noqa: E402

# Where the module is, unless it is loaded on a real machine: as much as a test needs to know.
EMULATED = os.environ.get("TMESH_BACKEND") == "kernel"
# Tests count regions and descriptors, of which the pool keeps some for a while: without one here, and in fresh
# interpreters as it is for everybody.
os.environ["TMESH_POOL"] = "0"
# Nor is a peer given up that answers late. A child may have begun already.
with contextlib.suppress(tmesh.BusyError):
    tmesh.configure(timeout=600)
# In a descriptor's or mapping's name; not in that of the device itself, nor in that of an index of
# tokens, which one keeps per peer.
REGION = "tmesh:"
# For what a guest would only do again, ten times slower.
SAME = "says nothing of the backend; run on memfds"
ANY_BACKEND = pytest.mark.skipif(EMULATED, reason=SAME)
SLOW_IMPORT = "importing PyTorch takes half a minute and more in an emulated machine"


def need_movers():
    """For files about real NIXL and Mooncake, before they import anything of them."""
    # NIXL's UCX copies from process to process on one machine by itself; between machines it cannot.
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    if EMULATED:
        pytest.skip("these engines take minutes to start in an emulated machine", allow_module_level=True)
    for package in "nixl_cu12", "mooncake":
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed: make python-net-check", allow_module_level=True)
    sys.path.insert(0, os.path.dirname(__file__))


def any_backend():
    """The same of a whole file, before it imports what takes long."""
    if EMULATED:
        pytest.skip(SAME, allow_module_level=True)


def pytorch():
    if EMULATED:
        pytest.skip(SLOW_IMPORT)
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def cpython_names(case):
    """The tests that CPython has of its own in a case of _test_multiprocessing; "all" where they are not installed."""
    try:
        from test import _test_multiprocessing
    except ImportError:
        return ["all"]
    return [name for name in dir(getattr(_test_multiprocessing, case)) if name.startswith("test_")]


@functools.cache
def cpython_said(script, method):
    done = subprocess.run([sys.executable, Path(__file__).parent / script, method],
                          timeout=3600, capture_output=True, text=True)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    return {name: (word, reason) for word, name, reason in lines}, done.stderr


def check_cpython(script, method, name):
    """One of them, all of which the script runs at once."""
    if name == "all":
        pytest.skip("this Python's own tests are not installed (libpython3-testsuite)")
    results, errors = cpython_said(script, method)
    word, reason = results.get(name, ("FAIL", ""))
    if word == "skip":
        pytest.skip(reason)
    assert word == "ok", errors
    # As by what an interpreter that ends takes apart.
    assert "Exception ignored" not in errors


def collide(call):
    """Two threads make the same call, until one of them is told that the other is at it; what it is told."""
    told = []
    end = time.monotonic() + 600

    def run():
        while not told and time.monotonic() < end:
            try:
                call()
            except tmesh.BusyError as error:
                told.append(error)

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=run) for _ in range(2)]
    # One that waits for the GIL gets it as soon as the other's call gives it away.
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert told, "neither was told of the other"
    return str(told[0])


def pytest_addoption(parser):
    parser.addoption("--tap", action="store_true", help="print TAP and nothing else on stdout")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--tap"):
        # Comparisons of strings in a failed assertion ask for one.
        reporter = config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(type(reporter)(config, open(os.devnull, "w")), "terminalreporter")
        config.pluginmanager.register(Tap(), "tap")


class Tap:
    """A line per test; why one failed goes to stderr."""

    def __init__(self):
        self.count = 0

    def line(self, word, name, directive=""):
        self.count += 1
        print(f"{word} {self.count} - {name}{directive}", flush=True)

    def skip(self, name, report):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        self.line("ok", name, f" # SKIP {reason.removeprefix('Skipped: ')}")

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.replace("#", "")
        if report.failed:
            print(f"{name} ({report.when})\n{report.longreprtext}", file=sys.stderr)
        if report.when == "call" and report.passed:
            self.line("ok", name)
            for key, value in report.user_properties:
                print(f"# {key}: {value}", flush=True)
        elif report.failed:
            self.line("not ok", f"{name} ({report.when})")
            crash = getattr(report.longrepr, "reprcrash", None)
            for line in crash and [f"{crash.path}:{crash.lineno}", *crash.message.splitlines()] or []:
                print(f"# {line}", flush=True)
        elif report.skipped:
            self.skip(name, report)

    def pytest_collectreport(self, report):
        if report.failed:
            print(report.longreprtext, file=sys.stderr)
            self.line("not ok", f"collect {report.nodeid}")
        elif report.skipped:
            self.skip(report.nodeid, report)

    def pytest_sessionfinish(self):
        print(f"1..{self.count}", flush=True)


@pytest.fixture(scope="session", autouse=True)
def warm(tmp_path_factory):
    """What the process keeps after its first hand-over is there before anything is counted."""
    os.environ["TMESH_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))
    t = tmesh.put(b"x")
    tmesh.open(t.ref())
    # What was imported leaks no more, and would take most of each collection's time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_mapping_leak(request):
    """So does every file of tests with mappings, which take the kernel milliseconds to list."""
    before = region_mappings()
    yield
    gc.collect()
    if not request.session.testsfailed:
        settle(before, region_mappings)
        assert region_mappings() == before


@pytest.fixture(autouse=True)
def no_leak(request):
    """Every test gives back each region and each descriptor that it took."""
    before = live()
    yield
    # A failed test's traceback keeps what it had.
    if not request.session.testsfailed:
        settle(before, live)
        assert live() == before


def eventually(condition):
    """What a thread of ours does by itself, or another process, comes about, however slow the machine."""
    end = time.monotonic() + 600
    gc.collect()
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
        gc.collect()


def settle(before, count):
    """Garbage is to be collected, and what was held and opened is let go of by a thread, on the module in 50 ms."""
    end = time.monotonic() + 120
    while count() != before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)


def serve(*engine, **options):
    """An engine in a process of its own, for which a call and a client's answer may take as long as a slow machine needs."""
    import tmesh.engine
    return tmesh.engine.serve(*engine, **{"limit": 600, "patience": 600, **options})


def cancelled_while_it_runs(step):
    """A binding's dispatch is called off. What was called off before it ran, as on a slow machine, was so too early: later then."""
    import tmesh.engine
    for delay in (0.05 * 2 ** number for number in range(12)):
        stop = tmesh.engine.Cancellable()
        timer = threading.Timer(delay, stop.cancel)
        timer.start()
        with pytest.raises(tmesh.CancelledError) as told:
            step.dispatch(stop)
        timer.join()
        if "before it ran" not in str(told.value):
            break
    assert "half written" in str(told.value)


def live():
    stats = tmesh.stats()
    return stats["regions_live"], stats["bytes_live"], descriptors()


def descriptors():
    """Descriptors of regions."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        count += REGION in target
    return count


def region_mappings():
    with open("/proc/self/maps", "rb", buffering=0) as maps:
        return maps.read().count(REGION.encode())


@pytest.fixture
def nothing_kept():
    """A keeper without anything ends by itself."""
    if not EMULATED and not os.path.exists(os.environ.get("TMESH_KEEPER", "")):
        pytest.fail("TMESH_KEEPER does not name the keeper: make python-check does")
    yield
    gc.collect()
    for one in tmesh.kept():
        tmesh.drop(one["name"])


@pytest.fixture
def python():
    """Run a program in a fresh interpreter; its stdout, or its failure."""
    def run(program, *args, file=None, **kwargs):
        if EMULATED and re.search(r"\bimport .*\btorch\b", program):
            pytest.skip(SLOW_IMPORT)
        # Processes that are spawned look for its functions in the file.
        if file:
            file.write_text(program)
        kwargs.setdefault("env", {name: value for name, value in os.environ.items() if name != "TMESH_POOL"})
        done = subprocess.run([sys.executable, *([file] if file else ["-c", program]), *args],
                              timeout=1800, capture_output=True, text=True, **kwargs)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


@pytest.fixture
def peer():
    """Start a program in a fresh interpreter with pipes; killed at the end of the test."""
    started = []

    def start(program, *args):
        process = subprocess.Popen([sys.executable, "-c", program, *args], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
