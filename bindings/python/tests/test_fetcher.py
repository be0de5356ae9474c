# SPDX-License-Identifier: MIT
"""tmesh.fetcher, and the mover "fetcher" of tmesh.ray without Ray: libtmesh-net between two processes."""

import gc
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tmesh
import tmesh.fetcher
from conftest import EMULATED, assert_refused
from tmesh import movers

if EMULATED:
    pytest.skip("between machines the module is tried by net-check and in guests of its own", allow_module_level=True)
if not os.environ.get("TMESH_NET_LIBRARY"):
    pytest.skip("TMESH_NET_LIBRARY names no libtmesh-net: make python-net-check", allow_module_level=True)
sys.path.insert(0, os.path.dirname(__file__))

from net_target import PATIENCE, Target, without_ray  # noqa: E402

SIZE = 4 << 16
NEVER = threading.Event()


@pytest.fixture(scope="module")
def fetcher():
    with tmesh.fetcher.Fetcher("127.0.0.1") as one:
        yield one


@pytest.fixture(scope="module")
def mover():
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch.setitem)
        return movers.Fetcher()


@pytest.fixture
def target():
    one = Target("fetcher")
    yield one
    one.kill()


def source_of(offer):
    return json.loads(offer)["sources"][0]


def good(tensors):
    tensor, = tensors
    return tensor.sealed and np.array_equal(tensor.numpy().view("uint32"), np.arange(1 << 16))


def until(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(target):
    target.process.send_signal(signal.SIGSTOP)
    # Wait until all of its threads have stopped: on a busy machine one of them still answers for a while.
    os.waitid(os.P_PID, target.process.pid, os.WSTOPPED | os.WNOWAIT)


def stopped(target, what="sealed"):
    source = source_of(target(what))
    stop(target)
    return source


def run(code, **environment):
    return subprocess.run([sys.executable, "-P", "-c", code], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=PATIENCE, check=False)


def test_a_strangers_first_program(fetcher, target):
    """Another process's offer arrives whole, in sealed memory that stays after that process has died."""
    source = source_of(target("sealed"))
    come = [fetcher.fetch(source), fetcher.fetch(json.dumps(source)), fetcher.fetch(json.dumps(source).encode())]
    target.kill()
    assert all(good([one]) for one in come)
    assert tmesh.open(come[0].ref()).tolist() == come[0].tolist()
    assert_refused(lambda: fetcher.fetch(source), tmesh.GoneError)


def test_offers_and_their_end(fetcher):
    tensor = tmesh.put(np.arange(1 << 16, dtype="uint32"))
    with fetcher.offer(tensor) as offer, fetcher.offer(tensor) as other:
        assert fetcher.stats()["offers"] == fetcher.stats()["keys"] == 2
        assert offer.source["key"] != other.source["key"] and len(offer.source["key"]) == 16
        offer.withdraw()
        assert_refused(lambda: fetcher.fetch(offer.source), tmesh.GoneError)
        assert good([fetcher.fetch(other.source)])
    offer.withdraw()
    assert fetcher.stats()["offers"] == fetcher.stats()["keys"] == 0
    with tmesh.fetcher.Fetcher("127.0.0.1") as other:
        other.offer(tensor)                              # no reference to the object, but it stays as long as the
                                                         # fetcher
        gc.collect()
        assert other.stats()["offers"] == 1
    with tmesh.fetcher.Fetcher("127.0.0.1") as other, other.offer(tensor) as offer:
        assert repr(other) == "<tmesh.fetcher.Fetcher at 127.0.0.1>"
        assert repr(offer) == f"<tmesh.fetcher.Offer {offer.source['byte_size']} bytes at {offer.source['address']}>"
        for thing, words in (other, "one in each"), (offer, "send its source"):
            assert_refused(lambda: pickle.dumps(thing), TypeError, words)
        assert_refused(lambda: other.fetch(offer), tmesh.ProtocolError, "as offer.source is")
        other.close()                                    # this ends the offer, so nothing is left to withdraw
    assert repr(offer).endswith(", withdrawn>")
    with pytest.raises(tmesh.ReleasedError, match="withdrawn: offer the tensor again"), offer:
        pass
    with pytest.raises(TypeError, match="a Tensor is offered, not <class 'numpy.ndarray'>: tmesh.put"):
        fetcher.offer(np.ones(3))
    assert_refused(lambda: fetcher.offer(tmesh.zeros(3, "uint8")), tmesh.InvalidError, "not sealed")


@pytest.mark.parametrize("member, value, error, words", [
    ("key", "0123456789abcdef", tmesh.GoneError, "the key is wrong|never gave it"),
    ("key", "x", tmesh.InvalidError, "16 hex digits"),
    ("checksum", "0" * 32, tmesh.ProtocolError, "damaged, or are of another region"),
    ("byte_size", SIZE - 1, tmesh.ProtocolError, "damaged, or are of another region"),
    ("byte_size", SIZE + 1, tmesh.GoneError, "never gave it"),
    ("address", "192.0.2.1", tmesh.InvalidError, "not an address"),
])
def test_a_source_that_is_wrong(fetcher, member, value, error, words):
    """No bytes become visible, and no memory stays."""
    with fetcher.offer(tmesh.put(np.arange(1 << 16, dtype="uint32"))) as offer:
        gc.collect()
        before = tmesh.stats()["regions_live"]
        assert_refused(lambda: fetcher.fetch({**offer.source, member: value}), error, words)
        gc.collect()
        assert tmesh.stats()["regions_live"] == before
        assert good([fetcher.fetch(offer.source)])


@pytest.mark.parametrize("source", [
    None, 5, [], {}, "", "x", "[]", b"\xff", "[" * 5000, "9" * 5000, {"v": 2}, {"v": 1}, {"v": 1, "address": "a", "key": "k", "checksum": 3},
    *({"v": 1, "address": "a", "key": "k", "checksum": "c", "byte_size": size} for size in (0, -1, True, "1", 1.0, 1 << 63)),
    {"v": 1, "address": "a\0", "key": "k", "checksum": "c", "byte_size": 1},
])
def test_what_is_no_source(fetcher, source):
    assert_refused(lambda: fetcher.fetch(source), tmesh.ProtocolError, "this is no source of a fetch")


def test_a_source_that_says_nothing(fetcher, target):
    """Each limit ends the fetch, while other fetches and other threads continue."""
    source = stopped(target)
    assert_refused(lambda: fetcher.fetch(source, timeout=0.2), tmesh.PeerTimeoutError, "fetch timed out: no bytes")
    with pytest.raises(tmesh.PeerTimeoutError, match="within 0.2 seconds"):
        fetcher.fetch(source, timeout=PATIENCE, deadline=0.2)
    for name, value in ("timeout", 0), ("timeout", -1), ("timeout", math.inf), ("deadline", 0), ("deadline", math.nan):
        with pytest.raises(tmesh.InvalidError, match=f"{name} is more than 0 seconds and at most .*, not {value}"):
            fetcher.fetch(source, **{name: value})
    for name, value in ("timeout", "soon"), ("timeout", None), ("deadline", "1"), ("progress", 5):
        assert_refused(lambda: fetcher.fetch(source, **{name: value}), TypeError, f"^{name} is .*{value!r}")


def during(fetcher, source, act):
    """Return the exception of a fetch in this thread. Another thread calls act(over) once it has begun; `over` is an
    event for the fetch's end."""
    over = threading.Event()

    def wait_and_act():
        until(lambda: fetcher.stats()["fetches"] or over.is_set())
        act(over)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        with pytest.raises(BaseException) as raised:
            fetcher.fetch(source, timeout=PATIENCE)
    finally:
        over.set()
        thread.join()
    assert fetcher.stats()["fetches"] == 0
    return raised.value


@pytest.fixture
def interrupts():
    """Make Ctrl-C an exception, even if the shell has set it to be ignored. It is sent more than once, so ignore all
    but the first."""
    def interrupt(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def press(over):
    """Send SIGINT until the fetch has ended: a signal just before a wait does not end it, as with a user's first
    Ctrl-C."""
    while not over.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(0.1)


def test_what_gives_a_fetch_up(fetcher, target, interrupts):
    source = stopped(target)

    def progress(count):
        raise RuntimeError(f"{count} are enough")

    assert_refused(lambda: fetcher.fetch(source, timeout=PATIENCE, progress=progress), RuntimeError, "^0 are enough$")
    assert fetcher.stats()["fetches"] == 0
    assert isinstance(during(fetcher, source, press), KeyboardInterrupt)
    with fetcher.offer(tmesh.put(np.arange(1 << 16, dtype="uint32"))) as offer:
        come = []
        assert isinstance(during(fetcher, source, lambda over: (come.append(fetcher.fetch(offer.source)),
                                                                os.kill(target.process.pid, signal.SIGKILL))), tmesh.GoneError)
        assert good(come)


def test_a_fetcher_that_is_closed(target):
    source = stopped(target)
    fetcher, begun = tmesh.fetcher.Fetcher("127.0.0.1"), threading.Event()

    def close():
        assert begun.wait(PATIENCE)
        fetcher.close()

    thread = threading.Thread(target=close)
    thread.start()
    try:
        with pytest.raises(tmesh.ReleasedError, match="closed meanwhile"):
            fetcher.fetch(source, timeout=PATIENCE, progress=lambda count: begun.set())
    finally:
        thread.join()
    fetcher.close()
    assert repr(fetcher) == "<tmesh.fetcher.Fetcher at 127.0.0.1, closed>"
    for call in fetcher.stats, lambda: fetcher.fetch(source), lambda: fetcher.offer(tmesh.put(b"x")), fetcher.__enter__:
        assert_refused(call, tmesh.ReleasedError, "closed")


def test_the_source_dies_while_it_is_read(fetcher, target):
    """None of the bytes that arrived are visible, and no memory stays."""
    source = source_of(target("large"))
    gc.collect()
    before = tmesh.stats()["regions_live"]
    with pytest.raises(tmesh.GoneError):
        fetcher.fetch(source, timeout=PATIENCE, progress=lambda count: target.kill())
    gc.collect()
    assert tmesh.stats()["regions_live"] == before


def test_nothing_stays(fetcher):
    """Offers, and fetches that succeed or fail, leave neither threads nor descriptors."""
    tensor = tmesh.put(np.arange(1 << 16, dtype="uint32"))

    def once():
        with fetcher.offer(tensor) as offer:
            assert good([fetcher.fetch(offer.source)])
            assert_refused(lambda: fetcher.fetch({**offer.source, "checksum": "0" * 32}), tmesh.ProtocolError)
        assert_refused(lambda: fetcher.fetch(offer.source), tmesh.GoneError)

    def there():
        gc.collect()
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]

    once()
    before = there()
    for _ in range(5):
        once()
    until(lambda: all(now <= then for now, then in zip(there(), before)))


def test_no_descriptor_is_free(fetcher):
    """It raises an error, keeps nothing, and works again later."""
    code = """if True:
        import os, resource, tmesh, tmesh.fetcher
        fetcher, tensor, offers = tmesh.fetcher.Fetcher("127.0.0.1"), tmesh.put(b"x" * 100000), []
        with fetcher.offer(tensor) as offer:
            fetcher.fetch(offer.source).release()
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30,) * 2)
        try:
            while len(offers) < 100:
                offers.append(fetcher.offer(tensor))
        except tmesh.LimitError as error:
            print(error.errno == 24, fetcher.stats()["offers"] == len(offers) > 0)
        for offer in offers:
            offer.withdraw()
        with fetcher.offer(tensor) as offer:
            print(bytes(fetcher.fetch(offer.source)) == b"x" * 100000)
    """
    assert run(code).stdout.split() == ["True"] * 3


def test_a_forked_child(fetcher):
    """A child cannot use its parent's fetcher, and can make its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = ""
            try:
                fetcher.stats()
            except tmesh.AccessError as error:
                said = "its own" if "make another one here" in str(error) else str(error)
            with tmesh.fetcher.Fetcher("127.0.0.1") as mine, mine.offer(tmesh.put(b"abc")) as offer:
                said += " " + bytes(mine.fetch(offer.source)).decode()
            os.write(write, said.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        assert file.read() == "its own abc"
    assert fetcher.stats()["fetches"] == 0


def test_signals_stay_the_process_own():
    """Libraries of libfabric install handlers when they are loaded."""
    code = """if True:
        import faulthandler, os, signal
        faulthandler.enable()
        numbers = signal.SIGINT, signal.SIGTERM, signal.SIGABRT
        for number in numbers:
            signal.signal(number, lambda *_: print("mine"))
        import tmesh.fetcher
        tmesh.fetcher.Fetcher("127.0.0.1").close()
        for number in numbers:
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    done = run(code)
    assert done.stdout == "mine\n" * 3 and "Segmentation fault" in done.stderr and done.returncode == -signal.SIGSEGV


def test_memory_of_another_runtime_directory(tmp_path):
    code = """if True:
        import sys, tmesh, tmesh.fetcher
        tmesh.configure(runtime_dir=sys.argv[1])
        with tmesh.fetcher.Fetcher("127.0.0.1") as fetcher, fetcher.offer(tmesh.put(b"abc")) as offer:
            come = fetcher.fetch(offer.source)
            print(bytes(tmesh.open(come.ref())))
    """
    done = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path / "run")], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.stdout == "b'abc'\n", done.stderr


def test_the_end_of_a_process_with_offers_and_fetches(target):
    source = stopped(target)
    code = """if True:
        import json, sys, threading, time, tmesh, tmesh.fetcher
        fetcher = tmesh.fetcher.Fetcher("127.0.0.1")
        offers = [fetcher.offer(tmesh.put(b"x")) for _ in range(3)]
        begun = threading.Event()

        def fetch():
            try:
                fetcher.fetch(sys.argv[1], timeout=1000, progress=lambda count: begun.set())
            except tmesh.ReleasedError:
                pass    # a daemon that writes while its interpreter ends may keep the lock of its file for ever

        threading.Thread(target=fetch, daemon=True).start()
        begun.wait()
    """
    done = subprocess.run([sys.executable, "-P", "-c", code, json.dumps(source)], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("library, words", [
    ("/nowhere/libtmesh-net.so.0", "the fetcher needs libtmesh-net: /nowhere/libtmesh-net.so.0: cannot open shared object file"),
    ("libc.so.6", "libc.so.6 has no tmesh_net_open: it is another version"),
])
def test_no_such_library(library, words):
    """Nothing else needs the library, and the error names it."""
    code = """if True:
        import tmesh.fetcher, tmesh.movers
        for make in lambda: tmesh.fetcher.Fetcher("127.0.0.1"), tmesh.movers.mover:
            try:
                make()
            except tmesh.UnsupportedError as error:
                print(error)
    """
    code = code.replace("import tmesh.fetcher, tmesh.movers\n", "import sys; sys.path.insert(0, sys.argv[1]); import tmesh.fetcher, "
                        "tmesh.movers, net_target; net_target.without_ray(dict.__setitem__)\n")
    done = subprocess.run([sys.executable, "-P", "-c", code, os.path.dirname(__file__)], capture_output=True, text=True,
                          env={**os.environ, "TMESH_NET_LIBRARY": library, movers.VARIABLE: "fetcher"}, timeout=PATIENCE, check=False)
    assert done.stdout.count(words) == 2, done


def test_where_it_cannot_be_reached():
    for address, error, words in (("192.0.2.1", tmesh.InvalidError, "no interface of this machine"),
                                  ("0.0.0.0", tmesh.InvalidError, "every address of this machine"),
                                  ("::", tmesh.InvalidError, "every address of this machine"),
                                  ("a.example", tmesh.InvalidError, "no address in numbers")):
        assert_refused(lambda: tmesh.fetcher.Fetcher(address), error, words)
    assert_refused(lambda: tmesh.fetcher.Fetcher("127.0.0.1", provider="nonesuch"), tmesh.UnsupportedError, "nonesuch")


def test_an_object_comes(mover, target):
    offer = target("sealed")
    assert good(mover.fetch(offer, [SIZE], NEVER))
    target("close")
    assert_refused(lambda: mover.fetch(offer, [SIZE], NEVER), tmesh.GoneError)


def test_many_tensors_of_few_regions(mover):
    """Each region is offered once for all objects, until the last of them is closed. Each tensor arrives with its
    layout."""
    whole, alone = tmesh.put(np.arange(1 << 16, dtype="uint32")), tmesh.put(np.arange(5.0))
    tensors = [whole[4:9], alone, whole.reshape(256, 256)[1], whole]
    offer, registration = mover.offer(tensors)
    other, second = mover.offer([whole])
    assert len(json.loads(offer)["sources"]) == 2 and mover._fetcher.stats()["offers"] == 2
    sizes = [tensor.nbytes for tensor in tensors]
    come = mover.fetch(offer, sizes, NEVER)
    assert [bytes(one) for one in come] == [tensor.numpy().tobytes() for tensor in tensors] and all(one.sealed for one in come)
    mover.close(registration)
    assert mover._fetcher.stats()["offers"] == 1 and good(mover.fetch(other, [SIZE], NEVER))
    mover.close(second)
    assert mover._fetcher.stats()["offers"] == mover._fetcher.stats()["keys"] == 0
    assert_refused(lambda: mover.fetch(offer, sizes, NEVER), tmesh.GoneError)


def test_what_cannot_be_offered(mover):
    """Nothing of the object is offered then."""
    sealed = tmesh.put(np.arange(8.0))
    for tensor, error, words in ((tmesh.zeros(4, "uint8"), tmesh.AccessError, "not sealed"),
                                 (tmesh.put(np.empty(0)), tmesh.InvalidError, "without elements"),
                                 (tmesh.put(np.ones((4, 4)))[:, 0], tmesh.InvalidError, "contiguous")):
        assert_refused(lambda: mover.offer([sealed, tensor]), error, words)
    assert_refused(lambda: mover.offer([sealed] * 4097), tmesh.InvalidError, "can be offered at once")
    offer, failed = mover._fetcher.offer, []

    def fail(tensor):
        failed.append(tensor)
        if len(failed) == 2:
            raise tmesh.LimitError(24, "no free descriptor")
        return offer(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mover._fetcher, "offer", fail)
        assert_refused(lambda: mover.offer([sealed, tmesh.put(b"x")]), tmesh.LimitError)
    assert mover._fetcher.stats()["offers"] == 0 and not mover._offered


@pytest.mark.parametrize("sizes", [[], [SIZE, SIZE], [SIZE - 1], [SIZE + 1]])
def test_an_offer_of_another_object(mover, target, sizes):
    with pytest.raises(tmesh.ProtocolError, match="offer is of another object"):
        mover.fetch(target("sealed"), sizes, NEVER)


@pytest.mark.parametrize("change", [
    {"v": 2}, {"engine": "nixl"}, {"sources": []}, {"sources": None}, {"sources": [{}]}, {"places": []}, {"places": [[1, 0, SIZE]]},
    {"places": [[-1, 0, SIZE]]}, {"places": [[0, 1, SIZE]]}, {"places": [[0, -1, SIZE]]}, {"places": [[0, 0, 0]]}, {"places": [[0, 0]]},
    {"places": [[0, 0, True]]}, {"places": [["0", 0, SIZE]]}, {"places": [[0, 0.0, SIZE]]}, {"places": 5}, {"places": [[0, 0, 1]] * 4097},
])
def test_an_offer_that_is_none(mover, change):
    offer, registration = mover.offer([tmesh.put(np.arange(1 << 16, dtype="uint32"))])
    try:
        with pytest.raises(tmesh.ProtocolError):
            mover.fetch(json.dumps({**json.loads(offer), **change}).encode(), [SIZE], NEVER)
    finally:
        mover.close(registration)


@pytest.mark.parametrize("offer", [b"", b"x", b"[]", b"{}", b"[" * 5000, b" " * (1 << 20) + b"{}"])
def test_garbage(mover, offer):
    assert_refused(lambda: mover.fetch(offer, [SIZE], NEVER), tmesh.ProtocolError, "no offer of the fetcher's")


def test_objects_come_at_the_same_time(mover, target):
    """One object arrives while another one's source is silent. Ray's call then cancels the other."""
    stuck = target("sealed")
    stop(target)
    offer, registration = mover.offer([tmesh.put(np.arange(1 << 16, dtype="uint32"))])
    given_up, ended = threading.Event(), []

    def fetch():
        try:
            ended.append(mover.fetch(stuck, [SIZE], given_up))
        except tmesh.Error as error:
            ended.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        until(lambda: mover._fetcher.stats()["fetches"])
        assert good(mover.fetch(offer, [SIZE], NEVER)) and not ended
    finally:
        given_up.set()
        thread.join()
        mover.close(registration)
    assert isinstance(ended[0], tmesh.Error)
    assert_refused(lambda: mover.fetch(stuck, [SIZE], given_up), tmesh.CancelledError, "given up")
