# SPDX-License-Identifier: MIT
"""python -m tmesh.worker with clients that follow docs/reference/worker.md."""

import base64
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused, eventually
from tmesh.worker import _calls, _server
from worker_client import PATIENCE, Client, tensor

HERE = Path(__file__).parent
OPS = "worker_operations."


def start(address, *allow, words=()):
    return subprocess.Popen(
        [sys.executable, "-m", "tmesh.worker", "--until-eof", "--socket", address, *words,
         *(word for name in allow or ["worker_operations"] for word in ("--allow", name))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)})


def end(process):
    process.kill()
    process.communicate()


def new_address():
    return f"@tmesh-test-{os.urandom(8).hex()}"


@pytest.fixture
def start_worker():
    """Start a worker and return its process, which ends with the test."""
    started = []

    def start_one(address, *allow, words=()):
        started.append(start(address, *allow, words=words))
        return started[-1]

    yield start_one
    for process in started:
        end(process)


@pytest.fixture(scope="module")
def worker():
    """A worker for all tests that leave it alive."""
    address = new_address()
    process = start(address, "worker_operations", "numpy", "math")
    process.address = address
    assert process.stdout.readline() == "ready\n"
    yield process
    end(process)


@pytest.fixture
def address(worker):
    return worker.address


@pytest.fixture
def client(worker):
    with Client(worker.address) as client:
        yield client


@pytest.fixture
def mortal(start_worker):
    """A client with a worker of its own."""
    address = new_address()
    worker = start_worker(address)
    worker.stdout.readline()
    with Client(address) as client:
        client.worker, client.address = worker, address
        yield client


@ANY_BACKEND
def test_modules_that_print(start_worker):
    address = new_address()
    noisy = start_worker(address, "worker_noisy")
    assert noisy.stdout.readline() == "ready\n"
    with Client(address) as client:
        assert client.call("worker_noisy.nothing") is None
    noisy.kill()
    assert noisy.stdout.read() == ""


@ANY_BACKEND
def test_hello(client, worker):
    assert client.hello == {
        "v": 1, "type": "hello", "pid": worker.pid, "version": tmesh.__version__,
        "backend": tmesh.backend(), "packet_bytes": 65536, "message_bytes": 16777216,
        "modules": ["math", "numpy", "worker_operations"]}


@ANY_BACKEND
def test_arguments(client):
    assert client.call(OPS + "add", [1, 2]) == 3
    assert client.call(OPS + "add", {"a": 1}) == 2
    assert client.call(OPS + "add", {"args": [1], "kwargs": {"b": 5}}) == 6
    assert client.call(OPS + "echo", [{}]) == {}
    assert client.call("math.sqrt", [16]) == 4


@ANY_BACKEND
def test_values(client):
    value = [None, True, 1, -1, 0.5, "ä", [], {}, {"a": [1]}, (1 << 63) - 1, -(1 << 63)]
    assert client.call(OPS + "echo", [value]) == value
    assert client.call(OPS + "specials") == [
        {"__tmesh__": "float", "value": "nan"}, {"__tmesh__": "float", "value": "infinity"},
        {"__tmesh__": "float", "value": "neg_infinity"}, 0.5, -1, None, True, "ä",
        {"__tmesh__": "bytes", "base64": "/w=="}, [1, 2], 1.5, 3, True]
    for name in ("nan", "infinity", "neg_infinity"):
        special = {"__tmesh__": "float", "value": name}
        assert client.call(OPS + "echo", [special]) == special


def test_tensor_argument_is_not_copied_and_read_only(client):
    t = tmesh.put(np.arange(1000, dtype="float32"), seal=False)
    copied = tmesh.stats()["bytes_copied"]
    assert client.call(OPS + "describe", [tensor(t)]) == {
        "kind": "ndarray", "dtype": "float32", "shape": [1000], "writable": False, "sum": 499500}
    assert tmesh.stats()["bytes_copied"] == copied
    assert client.error(OPS + "double", [tensor(t)])["type"] == "exception"


def test_writable_argument(client):
    t = tmesh.put(np.arange(4), seal=False)
    assert client.call(OPS + "double", [tensor(t, writable=True)]) == 12
    assert t.numpy().tolist() == [0, 2, 4, 6]
    # The worker holds nothing of it any more.
    placeholder = tensor(t, writable=True)
    t.seal()
    assert client.error(OPS + "double", [placeholder])["exception"] == "SealedError"


def test_takes_tensors(client):
    t = tmesh.put(np.zeros(1, "float32"), seal=False).view("float32")
    assert client.call(OPS + "describe_tensor", [tensor(t)]) == ["Tensor", "float32", False]


@ANY_BACKEND
def test_tensor_that_numpy_cannot_show(client):
    t = tmesh.empty(4, "int4")
    assert client.call(OPS + "describe", [tensor(t)]) == {"kind": "Tensor"}


def test_result_is_sealed_and_outlives_the_worker(mortal):
    t = tmesh.put(np.ones(5), seal=False)
    message = mortal.answer(OPS + "add", [tensor(t), 2])
    assert message["held"]
    result = tmesh.open(message["value"]["ref"])
    mortal.send(type="release", id=message["id"])
    assert result.sealed and result.dtype == "float64"
    mortal.worker.kill()
    mortal.worker.wait()
    assert result.numpy().tolist() == [3] * 5


def test_result_stays_until_its_release(client):
    message = client.answer(OPS + "ones", [3])
    assert client.call(OPS + "add", [1]) == 2
    assert tmesh.open(message["value"]["ref"]).numpy().sum() == 3
    client.send(type="release", id=message["id"])
    assert client.call(OPS + "add", [1]) == 2
    assert_refused(lambda: tmesh.open(message["value"]["ref"]), tmesh.NotFoundError)


def test_a_tensor_that_an_operation_made_is_not_copied(client):
    t = client.call(OPS + "in_place", [1000])
    assert not t.sealed and t.label == "in place" and t.numpy().sum() == 7000


@pytest.mark.parametrize("sealed", [True, False])
def test_an_argument_that_comes_back_is_not_copied(client, sealed):
    """Return all of it, a part, and each second element backwards."""
    t = tmesh.put(np.arange(1000, dtype="float32"), seal=sealed)
    before = client.call(OPS + "copied")
    for start, step, there in ((0, 1, t.numpy()), (10, 1, t.numpy()[10:]), (990, -2, t.numpy()[990::-2])):
        message = client.answer(OPS + "part", [tensor(t), start, step])
        got = tmesh.open(message["value"]["ref"])
        assert got.id == t.id and got.sealed == sealed and not got.writable
        assert got.numpy().tolist() == there.tolist()
        client.send(type="release", id=message["id"])
    assert client.call(OPS + "copied") == before


def test_an_argument_that_is_written_to_comes_back_itself(client):
    t = tmesh.put(np.arange(4), seal=False)
    before = client.call(OPS + "copied")
    message = client.answer(OPS + "into", [tensor(t, writable=True), 3])
    got = tmesh.open(message["value"]["ref"])
    assert got.id == t.id and got.numpy().tolist() == t.numpy().tolist() == [0, 3, 6, 9]
    assert client.call(OPS + "copied") == before
    # The worker only reads it now, until it is released.
    t.seal()
    client.send(type="release", id=message["id"])


def test_what_an_operation_has_of_its_own(client):
    """Sealed results are not copied; writable memory that an operation keeps is."""
    before = client.call(OPS + "copied")
    assert client.call(OPS + "own_weights").numpy().tolist() == [2, 3, 4, 5, 6, 7]
    assert client.call(OPS + "copied") == before
    first, second = (client.call(OPS + "own_scratch", [value]) for value in (1, 2))
    assert first.numpy().tolist() == [1] * 4 and second.numpy().tolist() == [2] * 4 and first.sealed


def test_what_is_copied_is_told(client):
    t = tmesh.put(np.arange(1000, dtype="float32"), seal=True)
    for operation, payload, copied in (("part", [tensor(t), 0, 1], None), ("ones", [1000], 8000), ("describe", [tensor(t)], None)):
        message = client.answer(OPS + operation, payload)
        assert message.get("copied") == copied
        if message["held"]:
            client.send(type="release", id=message["id"])


def test_results_in_an_arena(client):
    """Results are one behind the other in one region, not sealed; a large one has a region of its own."""
    results = []
    for n in (10, 20, 30, 1 << 20):
        message = client.answer(OPS + "ones", [n], arena=True)
        results.append(tmesh.open(message["value"]["ref"]))
        client.send(type="release", id=message["id"])
    assert [result.numpy().sum() for result in results] == [10, 20, 30, 1 << 20]
    assert len({result.id for result in results[:3]}) == 1 != len({result.id for result in results})
    assert not any(result.sealed for result in results)


def test_bytes_that_come_back_are_not_copied(client):
    t = tmesh.put(bytes(range(200)), seal=True)
    before = client.call(OPS + "copied")
    message = client.answer(OPS + "echo", [{"__tmesh__": "bytes", "ref": t.ref()}], threshold_bytes=99)
    assert tmesh.open(message["value"]["ref"]).id == t.id
    assert client.call(OPS + "copied") == before
    client.send(type="release", id=message["id"])


def test_an_argument_may_be_kept(client):
    t = tmesh.put(np.ones(10), seal=True)
    client.call(OPS + "keep", [tensor(t)])
    t.release()
    assert client.call(OPS + "kept_sum") == 10


def test_bytes(client):
    t = tmesh.put(b"\1\2\3", seal=True)
    assert client.call(OPS + "describe", [{"__tmesh__": "bytes", "ref": t.ref()}]) == {
        "kind": "memoryview", "bytes": 3, "writable": False, "sum": 6}
    data = {"__tmesh__": "bytes", "base64": base64.b64encode(b"\xff\0").decode()}
    assert client.call(OPS + "echo", [data]) == data
    message = client.answer(OPS + "blob", [100], threshold_bytes=99)
    assert message["value"]["__tmesh__"] == "bytes"
    assert bytes(tmesh.open(message["value"]["ref"])) == bytes(100)


@ANY_BACKEND
def test_inline(client):
    """Results come without shared memory if a client asks for that."""
    data = base64.b64encode(np.arange(6, dtype="int16").tobytes()).decode()
    given = {"__tmesh__": "array", "dtype": "int16", "shape": [2, 3], "base64": data}
    assert client.call(OPS + "echo", [given], inline=True) == given
    assert client.call(OPS + "ones", [[2, 0]], inline=True) == {
        "__tmesh__": "array", "dtype": "float64", "shape": [2, 0], "base64": ""}
    # Large enough that only a descriptor can carry it.
    assert client.call(OPS + "blob", [100_000], inline=True) == {
        "__tmesh__": "bytes", "base64": base64.b64encode(bytes(100_000)).decode()}


@ANY_BACKEND
@pytest.mark.parametrize("form", ["object", "text", "token"])
def test_snakepit(client, form):
    t = tmesh.put(np.arange(3, dtype="uint8"), seal=False)
    ref = {"object": t.ref(), "text": json.dumps(t.ref()), "token": t.token}[form]
    given = {"__snakepit_zero_copy__": True, "kind": "dlpack", "device": "cpu", "dtype": "uint8",
             "owner": "elixir", "ref": ref, "copy": False, "metadata": {"a": 1}}
    if form != "token":
        given |= {"shape": [3], "bytes": 3}
    assert client.call(OPS + "describe", [given])["kind"] == "ndarray"
    error = client.error(OPS + "describe", [{**given, "dtype": "int8"}])
    assert error["type"] == "malformed" and "uint8" in error["message"]
    assert client.error(OPS + "echo", [{**given, "kind": "x"}])["type"] == "malformed"
    assert client.call(OPS + "echo", [{"__snakepit_zero_copy__": 1}]) == {
        "__snakepit_zero_copy__": 1}


@ANY_BACKEND
@pytest.mark.parametrize("inline", [False, True])
def test_snakepit_as_a_result(client, inline):
    message = client.answer(OPS + "snakepit", inline=inline)
    assert message["held"] and message["value"]["__snakepit_zero_copy__"] is True
    result = tmesh.open(message["value"]["ref"])
    client.send(type="release", id=message["id"])
    assert result.numpy().tolist() == [1, 2]


@ANY_BACKEND
def test_tables(client):
    pyarrow = pytest.importorskip("pyarrow",
                                  reason="pyarrow is not installed: make python-arrow-check")
    from tmesh import arrow
    table = pyarrow.table({"a": [1, None, 3], "b": ["x", "y", None]})
    t = arrow.write_table(table)
    for given in ({"__tmesh__": "table", "ref": t.ref()},
                  {"__tmesh__": "table", "base64": base64.b64encode(t).decode()},
                  {"__snakepit_zero_copy__": True, "kind": "arrow", "ref": t.ref()}):
        message = client.answer(OPS + "echo", [given])
        assert message["value"]["__tmesh__"] == "table", message
        assert arrow.open_table(message["value"]["ref"]) == table
        client.send(type="release", id=message["id"])
        inline = client.answer(OPS + "echo", [given], inline=True)["value"]
        assert pyarrow.ipc.open_stream(base64.b64decode(inline["base64"])).read_all() == table
    not_sealed = tmesh.put(bytes(t), seal=False)
    error = client.error(OPS + "echo", [{"__tmesh__": "table", "ref": not_sealed.ref()}])
    assert (error["type"], error["exception"]) == ("tensor", "AccessError")
    error = client.error(OPS + "echo", [{"__tmesh__": "table", "base64": "AAAA"}])
    assert (error["type"], error["exception"]) == ("tensor", "ProtocolError")


@ANY_BACKEND
def test_long_messages(client):
    text = "x" * 1_000_000
    assert client.call(OPS + "echo", [text]) == text
    assert client.call(OPS + "text", [65_000]) == "x" * 65_000
    error = client.error(OPS + "text", [16 << 20])
    assert error["type"] == "too_large" and "tensor" in error["message"]
    assert client.call(OPS + "add", [1]) == 2


@ANY_BACKEND
def test_exceptions(client):
    error = client.error(OPS + "fail", ["because"])
    assert (error["type"], error["exception"], error["message"]) == (
        "exception", "LookupError", "because")
    assert "in fail" in error["traceback"]
    assert client.error(OPS + "leave")["exception"] == "SystemExit"
    assert client.error(OPS + "add")["exception"] == "TypeError"
    error = client.error(OPS + "fail", ["x" * 100_000])
    assert (len(error["message"]), len(error["traceback"])) == (2000, 16_000)
    assert client.error(OPS + "fail", ["ä"])["message"] == "ä"
    gone = tmesh.put(b"x", seal=False)
    placeholder = tensor(gone)
    gone.release()
    error = client.error(OPS + "echo", [placeholder])
    assert (error["type"], error["exception"]) == ("tensor", "NotFoundError")


@ANY_BACKEND
def test_exceptions_that_cannot_be_told():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert "cannot say" in _calls.describe(Mute())["message"]
    assert _calls.describe(ValueError("half \ud800"))["message"] == "half ?"
    assert len(_calls.describe(type("x" * 300, (Exception,), {})())["exception"]) == 200


@ANY_BACKEND
def test_a_module_within_one_that_is_allowed():
    """Each module is allowed separately, and the refusal explains it."""
    operations = _calls.Operations(["numpy"])
    assert operations.find("numpy.add") is np.add
    with pytest.raises(_calls.NotAllowedError, match="allows the module numpy, and none within it: allow numpy.linalg too"):
        operations.find("numpy.linalg.norm")
    with pytest.raises(_calls.NotAllowedError, match="not of a module that this worker allows; it allows numpy"):
        operations.find("os.system")
    assert _calls.Operations(["numpy.linalg"]).find("numpy.linalg.norm") is np.linalg.norm


def test_what_a_module_offers(tmp_path, monkeypatch):
    """Imported functions and other objects cannot be called."""
    (tmp_path / "offers_some.py").write_text("""
__all__ = ["shown", "constant", "_private"]
constant = 5
def shown(): pass
def hidden(): pass
def _private(): pass
""")
    (tmp_path / "offers_its_own.py").write_text("""
from math import sqrt
from os.path import join
class Thing: pass
def own(): pass
""")
    monkeypatch.syspath_prepend(tmp_path)
    operations = _calls.Operations(["offers_some", "offers_its_own"])
    assert operations.find("offers_some.shown") and operations.find("offers_its_own.own")
    for name in ("some.hidden", "some.constant", "some._private", "its_own.sqrt", "its_own.join",
                 "its_own.Thing"):
        assert_refused(lambda: operations.find(f"offers_{name}"), _calls.NotAllowedError)


@ANY_BACKEND
@pytest.mark.parametrize("name, kind", [
    ("object", "malformed"), ("integer", "malformed"), ("complex", "malformed"),
    ("loop", "malformed"), ("set", "malformed"), ("key", "malformed"), ("reserved", "malformed"),
    ("surrogate", "malformed"), ("objects", "exception")])
def test_results_that_cannot_be_sent(client, name, kind):
    error = client.error(OPS + "result", [name])
    assert error["type"] == kind or (kind == "exception" and error["type"] == "tensor"), error
    assert client.call(OPS + "add", [1]) == 2


@ANY_BACKEND
def test_depth_of_results(client):
    assert client.answer(OPS + "nested", [60])["type"] == "result"
    assert client.error(OPS + "nested", [61])["type"] == "malformed"
    assert client.error(OPS + "nested", [5000])["type"] == "malformed"


@ANY_BACKEND
def test_stream(client):
    id = client.start(OPS + "count", [20, 4], stream=True)
    for sequence in range(20):
        message = client.receive()
        assert (message["type"], message["id"], message["sequence"]) == ("item", id, sequence)
        assert tmesh.open(message["value"]["ref"]).numpy().tolist() == [sequence] * 4
        client.send(type="release", id=id, sequence=sequence)
    assert client.receive() == {"v": 1, "type": "end", "id": id}


@ANY_BACKEND
def test_stream_waits_for_its_reader(client):
    id = client.start(OPS + "count", [20], stream=True)
    items = [client.receive() for _ in range(8)]
    client.sock.settimeout(0.3)
    assert_refused(client.receive, TimeoutError)
    client.sock.settimeout(PATIENCE)
    client.send(type="release", id=id, sequence=items[3]["sequence"])
    assert client.receive()["sequence"] == 8


@ANY_BACKEND
def test_stream_that_fails(client):
    client.start(OPS + "count_and_fail", [2], stream=True)
    assert [client.receive()["type"] for _ in range(3)] == ["item", "item", "error"]


@ANY_BACKEND
def test_stream_of_a_plain_function_is_one_item(client):
    client.start(OPS + "add", [1], stream=True)
    assert [client.receive().get("value") for _ in range(2)] == [2, None]


@ANY_BACKEND
def test_generator_is_no_result(client):
    error = client.error(OPS + "count", [3])
    assert error["type"] == "malformed" and "stream" in error["message"]


@ANY_BACKEND
def test_cancel_running(client):
    id = client.start(OPS + "until_cancelled")
    time.sleep(0.1)
    client.send(type="cancel", id=id)
    assert client.receive()["error"]["type"] == "cancelled"
    client.send(type="cancel", id=id)  # the call has ended: nothing to do
    assert client.call(OPS + "add", [1]) == 2


def sleeps(pid, task):
    """Count how often a thread has gone to sleep."""
    try:
        text = Path(f"/proc/{pid}/task/{task}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@ANY_BACKEND
def test_one_thread_does_it_all_for_a_client_that_waits(client, worker):
    def others():
        return sum(sleeps(worker.pid, task) for task in os.listdir(f"/proc/{worker.pid}/task")
                   if int(task) != worker.pid)

    client.call(OPS + "add", [1])
    before = others()
    for _ in range(200):
        client.call(OPS + "add", [1])
    # Each call would wake one of them. Stopping and continuing the process wakes each too.
    assert others() - before < 100


@ANY_BACKEND
def test_busy_looks(start_worker):
    address = new_address()
    worker = start_worker(address, words=["--spin-us", "100"])
    worker.stdout.readline()
    with Client(address) as client, Client(address) as other:
        for n in range(200):
            assert client.call(OPS + "add", [n]) == n + 1
        time.sleep(0.1)
        assert other.call(OPS + "ones", [3]).numpy().tolist() == [1, 1, 1]
        id = client.start(OPS + "until_cancelled")
        client.send(type="cancel", id=id)
        assert client.receive()["type"] in ("result", "error")
    def quiet():
        before = sleeps(worker.pid, worker.pid)
        time.sleep(0.2)
        return sleeps(worker.pid, worker.pid) == before

    # An idle worker sleeps, once it has noticed the end of its clients.
    eventually(quiet)


@ANY_BACKEND
def test_a_busy_look_is_bounded_and_ends_with_a_message():
    class Ready:
        """An epoll that has no event for a number of checks."""

        def __init__(self, looks):
            self.looks = looks
            self.slept = False

        def poll(self, timeout=None):
            self.slept = timeout is None
            self.looks -= 1
            return [(1, 1)] if self.slept or self.looks < 0 else []

    def wait(looks, spin_s):
        server = _server.Server(new_address(), None, spin_s)
        server.ready = Ready(looks)
        assert server.wait() == [(1, 1)]
        return server.ready

    assert not wait(3, 3600).slept
    assert wait(1 << 62, 1e-4).slept
    sleepy = wait(1 << 62, 0)
    assert sleepy.slept and sleepy.looks == (1 << 62) - 1


@ANY_BACKEND
def test_a_server_that_cannot_listen_keeps_nothing():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert_refused(lambda: _server.Server("/no/such/folder/s", None), OSError, "cannot listen at /no/such/folder/s")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@ANY_BACKEND
def test_cancel_waiting(client):
    first, second = client.start(OPS + "until_another_is_over"), client.start(OPS + "add", [1])
    client.send(type="cancel", id=second)
    assert client.receive()["id"] == first
    message = client.receive()
    assert (message["id"], message["error"]["type"]) == (second, "cancelled")


@ANY_BACKEND
def test_cancel_stream(client):
    id = client.start(OPS + "count", [100], stream=True)
    for _ in range(8):
        client.receive()
    client.send(type="cancel", id=id)
    assert client.receive()["error"]["type"] == "cancelled"


@ANY_BACKEND
def test_timeout(client):
    assert client.error(OPS + "until_cancelled", timeout_ms=50)["type"] == "timeout"
    first = client.start(OPS + "until_another_is_over")
    client.start(OPS + "add", [1], timeout_ms=50)
    assert client.receive()["id"] == first
    assert client.receive()["error"]["type"] == "timeout"
    id = client.start(OPS + "count", [100], stream=True, timeout_ms=300)
    while (message := client.receive())["type"] == "item":
        assert message["sequence"] < 8
    assert message["error"]["type"] == "timeout" and message["id"] == id


@ANY_BACKEND
def test_many_clients(client, address):
    with Client(address) as other:
        slow = client.start(OPS + "nap", [0.2])
        assert other.call(OPS + "add", [1]) == 2
        assert client.receive()["id"] == slow


def test_client_that_leaves_ends_its_calls(client, address):
    with Client(address) as other:
        other.start(OPS + "until_cancelled", [10 * PATIENCE])
    assert client.call(OPS + "add", [1]) == 2


@ANY_BACKEND
def test_printing_does_not_disturb(client):
    assert client.call(OPS + "chatter") == 1


@ANY_BACKEND
def test_ends_with_its_input(start_worker):
    address = new_address()
    worker = start_worker(address)
    worker.stdout.readline()
    with Client(address) as idle, Client(address) as busy:
        busy.start(OPS + "nap", [10 * PATIENCE])
        worker.stdin.close()
        worker.stdin = None
        assert worker.wait(timeout=PATIENCE) == 0
        assert idle.receive() is None


@ANY_BACKEND
def test_its_input_is_not_that_of_operations(start_worker):
    """Reading it would block until the worker's own end. Closing it would hide that end."""
    address = new_address()
    worker = start_worker(address)
    worker.stdout.readline()
    with Client(address) as client:
        assert client.call(OPS + "read_input") == ["", ""]
        assert client.call(OPS + "add", [1]) == 2
        worker.stdin.close()
        worker.stdin = None
        assert worker.wait(timeout=PATIENCE) == 0


def test_what_a_killed_worker_left(start_worker, tmp_path):
    """Its socket is replaced. A socket with a listener, and a file, are not."""
    address = str(tmp_path / "socket")
    for _ in range(2):
        process = start_worker(address)
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.communicate()
    process = start_worker(address)
    assert process.stdout.readline() == "ready\n"
    (tmp_path / "file").write_text("mine")
    for taken in address, str(tmp_path / "file"):
        other = start_worker(taken)
        assert other.stdout.readline() == "" and other.wait() == 2
    with Client(address) as client:
        assert client.call(OPS + "add", [1]) == 2
    assert (tmp_path / "file").read_text() == "mine"


@ANY_BACKEND
@pytest.mark.parametrize("busy", [False, True])
def test_path_socket_is_private_and_removed(start_worker, tmp_path, busy):
    """This also works if an operation does not return."""
    path = tmp_path / "w"
    worker = start_worker(str(path))
    worker.stdout.readline()
    assert path.stat().st_mode & 0o777 == 0o600
    with Client(str(path)) as client:
        assert client.call(OPS + "add", [1]) == 2
        if busy:
            client.start(OPS + "item_and_nap", [10 * PATIENCE], stream=True)
            assert client.receive()["type"] == "item"
        worker.stdin.close()
        worker.stdin = None
        assert worker.wait(timeout=PATIENCE) == 0
    assert not path.exists()


@ANY_BACKEND
@pytest.mark.parametrize("words, why", [
    (["--allow", "no_such_module", "--socket", "@x"], "No module named"),
    (["--allow", "math", "--socket", "/no/such/folder/s"], "/no/such/folder/s: [Errno 2] No such file"),
    (["--socket", "@x"], "--allow"),
    (["--allow", "math"], "--socket"),
    (["--allow", "math", "--socket", "@x", "--spin-us", "101"], "--spin-us: '101' is not a number from 0 to 100"),
    (["--allow", "math", "--socket", "@x", "--spin-us", "-1"], "--spin-us"),
])
def test_bad_command_lines(words, why):
    done = subprocess.run([sys.executable, "-m", "tmesh.worker", *words], capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 2 and why in done.stderr and not done.stdout


@ANY_BACKEND
def test_socat(client, address):
    """Call the worker from a shell."""
    try:
        process = subprocess.Popen(["socat", "-", f"ABSTRACT-CONNECT:{address[1:]},type=5"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except FileNotFoundError:
        pytest.skip("socat is not installed")
    with process:
        said = b""
        try:
            process.stdin.write(b'{"v":1,"type":"call","id":1,"operation":"math.sqrt","payload":[4]}')
            process.stdin.flush()
            while b'"value":2.0' not in said:
                assert select.select([process.stdout], [], [], PATIENCE)[0], said
                piece = os.read(process.stdout.fileno(), 65536)
                assert piece, said
                said += piece
        finally:
            process.kill()


@ANY_BACKEND
def test_only_this_user(client, address):
    if os.geteuid():
        pytest.skip("only root can become another user")
    program = ("import os, socket, sys; os.setuid(65534)\n"
               "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
               "s.connect('\\0' + sys.argv[1][1:]); print(s.recv(9))")
    done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "b''\n", done.stderr
    assert isinstance(client.sock, socket.socket)
    assert client.call(OPS + "add", [1]) == 2


def test_a_killed_worker_with_a_forked_child(start_worker, tmp_path):
    """The child has no copies of the sockets: clients see the worker's end, and another worker takes its place."""
    path = str(tmp_path / "socket")
    worker = start_worker(path)
    assert worker.stdout.readline() == "ready\n"
    with Client(path) as client:
        child = client.call(OPS + "fork")
        try:
            worker.kill()
            worker.wait()
            assert client.receive() is None
            other = start_worker(path)
            assert other.stdout.readline() == "ready\n"
            with Client(path) as again:
                assert again.call(OPS + "add", [1]) == 2
        finally:
            os.kill(child, signal.SIGKILL)
