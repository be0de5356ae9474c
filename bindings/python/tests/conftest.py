# SPDX-License-Identifier: MIT
"""TAP for the test runner, and helpers that the tests share."""

import contextlib
import functools
import gc
import importlib.util
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

# With --bare no variable is set, in children neither: make bare-check.
BARE = "--bare" in sys.argv
# Messages that a process sends just before its end must not be lost. The receiver may pause for a while, as on an
# emulated machine. tmesh reads this when it is imported, in children too.
if not BARE:
    os.environ.setdefault("TMESH_EXIT_WAIT", "600")
# A context reads its folders when it is opened. The pytest process chooses them before, and children that import this
# file for its functions inherit the choice.
RUNTIME = None
if os.environ.setdefault("CONFTEST_PROCESS", str(os.getpid())) == str(os.getpid()) and not BARE:
    RUNTIME = os.environ["TMESH_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="tmesh-python-")
    os.environ["TMESH_MOUNT"] = f"{RUNTIME}/tree"

import tmesh  # noqa: E402

# The module usually runs in an emulated machine. Tests need not distinguish real ones.
EMULATED = os.environ.get("TMESH_BACKEND") == "kernel"
# Tests count regions and descriptors, and the pool would keep some for a while. So turn it off here. Fresh interpreters
# keep the default.
if not BARE:
    os.environ["TMESH_REGION_POOL"] = "0"
# Do not give up peers that answer late. A child may already have opened its context.
with contextlib.suppress(tmesh.BusyError):
    tmesh.configure(timeout=600, **({"region_pool_bytes": 0} if BARE else {}))


def runtime_dir():
    """Return the runtime directory, also if no variable names it."""
    return Path(os.environ.get("TMESH_RUNTIME_DIR") or f"{os.environ.get('TMPDIR', '/tmp')}/tmesh-{os.geteuid()}")


# The beginning of a region's name in a descriptor or a mapping. The device has another name, and so has an index of
# tokens, one of which is kept for each peer.
REGION = "tmesh:"
# The reason to skip tests that a guest would only repeat, ten times slower.
SAME = "says nothing of the backend; run on memfds"
ANY_BACKEND = pytest.mark.skipif(EMULATED, reason=SAME)
SLOW_IMPORT = "importing PyTorch takes half a minute and more in an emulated machine"

# A shell without job control starts background programs with SIGINT ignored, and Python then raises no KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def need_movers():
    """Skip a file about real NIXL and Mooncake, before it imports any of them, if they are missing."""
    # By default NIXL's UCX copies directly from process to process on one machine, which it cannot do between machines.
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
    """Skip a whole file in guests, before it imports packages that take long."""
    if EMULATED:
        pytest.skip(SAME, allow_module_level=True)


def pytorch():
    if EMULATED:
        pytest.skip(SLOW_IMPORT)
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def cpython_names(case):
    """Return the names of CPython's own tests in a case of _test_multiprocessing; "all" if they are not installed."""
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
    """Check one of CPython's tests. The script runs all of them at once."""
    if name == "all":
        pytest.skip("this Python's own tests are not installed (libpython3-testsuite)")
    results, errors = cpython_said(script, method)
    word, reason = results.get(name, ("FAIL", ""))
    if word == "skip":
        pytest.skip(reason)
    assert word == "ok", errors
    # As an interpreter prints while it shuts down.
    assert "Exception ignored" not in errors


def assert_refused(call, error, match=None):
    """Check that a call raises such an error, whose text has a match."""
    with pytest.raises(error, match=match):
        call()


def collide(call):
    """Make the same call in two threads until one of them gets BusyError. Return its message."""
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
    # A thread that waits for the GIL then gets it as soon as the other's call drops it.
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert told, "neither learned of the other"
    return str(told[0])


def pytest_addoption(parser):
    parser.addoption("--tap", action="store_true", help="print TAP and nothing else on stdout")
    parser.addoption("--bare", action="store_true", help="set no variable of tmesh's")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--tap"):
        # Comparisons of strings in a failed assertion need a reporter.
        reporter = config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(type(reporter)(config, open(os.devnull, "w")), "terminalreporter")
        config.pluginmanager.register(Tap(), "tap")


def pytest_unconfigure(config):
    if RUNTIME:
        shutil.rmtree(RUNTIME, ignore_errors=True)


class Tap:
    """Print a line for each test. The reason of a failure goes to stderr."""

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
def warm():
    """Make the first hand-over, so that everything that the process keeps from it exists before a test counts."""
    t = tmesh.put(b"x")
    tmesh.open(t.ref())
    # Imported objects do not leak any more, and would take most of each collection's time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_mapping_leak(request):
    """Check that every file of tests gives its mappings back. Listing them takes the kernel milliseconds."""
    before = region_mappings()
    yield
    gc.collect()
    if not request.session.testsfailed:
        settle(before, region_mappings)
        assert region_mappings() == before


@pytest.fixture(autouse=True)
def no_leak(request):
    """Check that every test gives back its regions and descriptors."""
    before = live()
    yield
    # The traceback of a failed test keeps objects alive.
    if not request.session.testsfailed:
        settle(before, live)
        assert live() == before


def eventually(condition):
    """Wait until a condition is true that another thread or process brings about, on a slow machine too."""
    end = time.monotonic() + 600
    gc.collect()
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
        gc.collect()


def settle(before, count):
    """Wait until garbage is collected and a thread has let go of held memory that was opened. The module takes 50 ms
    for it."""
    end = time.monotonic() + 120
    while count() != before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)


def serve(*engine, **options):
    """Serve an engine in a process of its own, with limits for calls and clients' answers that suit a slow machine."""
    import tmesh.engine
    return tmesh.engine.serve(*engine, **{"limit": 600, "patience": 600, **options})


def cancelled_while_it_runs(step):
    """Check that a binding's dispatch can be cancelled. On a slow machine the cancel may come before the run; then
    retry with a longer delay."""
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
    """Count the descriptors of regions."""
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
    """Drop everything that a test kept. A keeper without memory ends by itself."""
    if not EMULATED and not os.path.exists(os.environ.get("TMESH_KEEPER", "")):
        pytest.fail("TMESH_KEEPER does not name the keeper: make python-check does")
    yield
    gc.collect()
    for one in tmesh.kept():
        tmesh.drop(one["name"])


@pytest.fixture
def kept_files():
    """Return the folder of a mount of kept files: of the module, or of a tmesh-mount beside the keeper."""
    if BARE:
        pytest.skip("without a variable the mount is the machine's")
    place = Path(os.environ["TMESH_MOUNT"])
    place.mkdir(exist_ok=True)
    if tmesh.backend() == "kernel":
        if os.geteuid():
            pytest.skip("mounting what the module keeps takes root")
        subprocess.run(["mount", "-t", "tmesh", "none", place], check=True)
        yield place
        gc.collect()  # a traceback may have a mapping
        subprocess.run(["umount", place], check=True)
        return
    program = os.path.join(os.path.dirname(os.environ.get("TMESH_KEEPER", "")), "tmesh-mount")
    if not os.path.exists(program) or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no tmesh-mount, or no /dev/fuse")
    runtime = os.environ.get("TMESH_RUNTIME_DIR")
    with subprocess.Popen([program, *(["--keepers", runtime] if runtime else []), str(place)]) as service:
        while not os.path.ismount(place):
            if service.poll() is not None:
                pytest.skip("tmesh-mount cannot mount here")
        yield place
        service.terminate()


@pytest.fixture
def python():
    """Run a program in a fresh interpreter. Return its stdout, or fail."""
    def run(program, *args, file=None, **kwargs):
        if EMULATED and re.search(r"\bimport .*\btorch\b", program):
            pytest.skip(SLOW_IMPORT)
        # Spawned processes import the file to find its functions.
        if file:
            file.write_text(program)
        kwargs.setdefault("env", {name: value for name, value in os.environ.items() if name != "TMESH_REGION_POOL"})
        kwargs.setdefault("timeout", 1800)
        done = subprocess.run([sys.executable, *([file] if file else ["-c", program]), *args],
                              capture_output=True, text=True, **kwargs)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


@pytest.fixture
def peer():
    """Start a program in a fresh interpreter with pipes. It is killed at the end of the test."""
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
