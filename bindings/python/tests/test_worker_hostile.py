# SPDX-License-Identifier: MIT
"""python -m tmesh.worker and malicious clients: each gets the reason, loses at most its own connection, and does
not disturb others."""

import array
import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused, eventually
from test_worker import (  # noqa: F401
    OPS,
    address,
    client,
    end,
    mortal,
    new_address,
    start,
    start_worker,
    worker,
)
from tmesh.worker import _server
from unanswered import unanswered
from worker_client import Client, tensor

pytestmark = ANY_BACKEND

CALL = {"v": 1, "type": "call", "id": 1, "operation": "math.sqrt", "payload": [4]}


def text(**changes):
    return json.dumps({**CALL, **changes})


BROKEN = {
    "no JSON": "{",
    "no object": "[]",
    "a number": "1",
    "not UTF-8": b'{"v":1,"type":"\xff"}',
    "UTF-16": '{"v":1}'.encode("utf-16"),
    "rest behind it": text() + "x",
    "two objects": text() + text(),
    "member twice": '{"v":1,"v":1,"type":"cancel","id":1}',
    "NaN": '{"v":1,"type":"call","id":1,"operation":"math.sqrt","payload":[NaN]}',
    "infinite": '{"v":1,"type":"call","id":1,"operation":"math.sqrt","payload":[1e999]}',
    "infinite, by a sign": text().replace("4", "-4.5E+309"),
    "infinite, by digits": text().replace("4", "4" * 400 + ".5"),
    "integer of 65 bits": text(payload=[1 << 63]),
    "integer of 5000 digits": text().replace("4", "4" * 5000),
    "half a surrogate": '{"v":1,"type":"call","id":1,"operation":"math.sqrt","payload":["\\ud800"]}',
    "half a surrogate as key":
        '{"v":1,"type":"call","id":1,"operation":"math.sqrt","payload":{"\\udfff":1}}',
    "nested": text(payload=[]).replace("[]", "[" * 64 + "]" * 64),
    "nested beyond reason": "[" * 60_000,
    "objects nested beyond reason": '{"a":' * 13_000,
    "other version": text(v=2),
    "version as text": text(v="1"),
    "version as boolean": text(v=True),
    "unknown type": text(type="run"),
    "type of a worker": text(type="result"),
    "type as list": text(type=[]),
    "type as a method of the connection": text(type="close"),
    "no id": json.dumps({k: v for k, v in CALL.items() if k != "id"}),
    "id below zero": text(id=-1),
    "id too large": text(id=1 << 53),
    "id as text": text(id="1"),
    "id as boolean": text(id=True),
    "id as real": text(id=1.0),
    "operation as number": text(operation=1),
    "operation empty": text(operation=""),
    "operation too long": text(operation="x" * 256),
    "payload as text": text(payload="x"),
    "payload missing": json.dumps({k: v for k, v in CALL.items() if k != "payload"}),
    "stream as number": text(stream=1),
    "timeout zero": text(timeout_ms=0),
    "timeout huge": text(timeout_ms=(1 << 40) + 1),
    "timeout real": text(timeout_ms=0.5),
    "threshold below zero": text(threshold_bytes=-1),
    "unknown member": text(extra=1),
    "release of nothing": '{"v":1,"type":"release","id":9}',
    "release of nothing in a stream": '{"v":1,"type":"release","id":9,"sequence":0}',
    "body without descriptor": '{"v":1,"body":10}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_messages(client, address, name):  # noqa: F811
    with Client(address) as bad:
        bad.send_text(BROKEN[name])
        message = bad.receive()
        assert (message["type"], message["id"]) == ("error", None), message
        assert message["error"]["type"] == "malformed" and message["error"]["message"]
        assert bad.receive() is None
    assert client.call(OPS + "add", [1]) == 2


def test_packet_too_long(client, address):  # noqa: F811
    with Client(address) as bad:
        bad.send_text("x" * 65_537)
        assert "too long" in bad.receive()["error"]["message"]
        assert bad.receive() is None
    with Client(address) as good:
        padded = text() + " " * (65_536 - len(text()))
        good.send_text(padded)
        assert good.receive()["value"] == 2


def test_no_descriptor_for_a_client(client, worker, address):  # noqa: F811
    limits = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        # The first gets the descriptor that accept() took before it waited.
        assert_refused(lambda: [Client(address, timeout=0.3) for _ in range(2)], TimeoutError)
    finally:
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, limits)
    with Client(address) as later:
        assert later.call(OPS + "add", [1]) == 2
    assert client.call(OPS + "add", [1]) == 2


def test_no_thread_for_a_last_word(client, address):  # noqa: F811
    client.call(OPS + "fail_next_thread")
    with Client(address) as bad:
        bad.send_text("{")
        assert bad.receive() is None
    with Client(address) as later:
        assert later.call(OPS + "add", [1]) == 2


def test_id_in_use(client):  # noqa: F811
    client.start(OPS + "until_cancelled")
    client.send(type="call", id=1, operation="math.sqrt", payload=[4])
    assert "in use" in client.receive()["error"]["message"]


def test_id_of_a_result_that_is_held(client):  # noqa: F811
    held = client.answer(OPS + "ones", [1])
    client.send(type="call", id=held["id"], operation="math.sqrt", payload=[4])
    assert "in use" in client.receive()["error"]["message"]


def files(kind):
    """Return descriptors that are no bodies."""
    if kind == "pipe":
        return list(os.pipe())[:1]
    if kind == "file":
        return [os.open(__file__, os.O_RDONLY)]
    if kind == "socket":
        return [socket.socket(socket.AF_UNIX).detach()]
    return [os.open("/dev/zero", os.O_RDONLY)]


@pytest.mark.parametrize("kind", ["pipe", "file", "socket", "device"])
def test_descriptors_that_are_no_bodies(client, address, kind):  # noqa: F811
    with Client(address) as bad:
        own = files(kind)
        bad.send_text('{"v":1,"body":10}', own)
        assert "sealed memfd" in bad.receive()["error"]["message"]
        for file in own:
            os.close(file)
    with Client(address) as bad:
        bad.send_text(text(), files("device"))
        assert bad.receive()["error"]["type"] == "malformed"


def test_bodies(client, address):  # noqa: F811
    def refused(*args, **kwargs):
        with Client(address) as bad:
            bad.send_body(*args, **kwargs)
            message = bad.receive()
            assert message["id"] is None and bad.receive() is None
            return message["error"]["message"]

    assert "sealed" in refused(text().encode(), seals=0)
    for seal in fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE:
        assert "sealed" in refused(text().encode(), seals=seal)
    assert "size" in refused(text().encode(), size=3)
    assert "size" in refused(text().encode(), size=1000)
    assert "size" in refused(text().encode(), size=(16 << 20) + 1)
    assert "size" in refused(text().encode(), size=0)
    assert "size" in refused(text().encode(), size=-1)
    assert "size" in refused(text().encode(), size="5")
    assert "JSON" in refused(b"{")
    assert "other members" in refused(b'{"v":1,"type":"release"}')
    assert "version" in refused(b'{"v":3,"body":5}')
    with Client(address) as good:
        good.send_body(text().encode())
        assert good.receive()["value"] == 2


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_too_many_descriptors_are_closed(client, worker, address):  # noqa: F811
    with Client(address) as bad:
        before = descriptors(worker.pid)
        own = files("device")
        bad.send_text('{"v":1,"body":10}', own * 2)
        assert "too many" in bad.receive()["error"]["message"]
        assert bad.receive() is None
    with Client(address) as bad:
        bad.send_text('{"v":1,"body":10}', own * 20)
        assert "too many" in bad.receive()["error"]["message"]
        assert bad.receive() is None
        os.close(own[0])
    assert client.call(OPS + "add", [1]) == 2
    # A thread closes them.
    eventually(lambda: descriptors(worker.pid) <= before)


OTHER = """
import sys
from worker_client import Client
input()
with Client(sys.argv[1]) as other:
    other.send_body(sys.argv[2].encode())
    print(other.receive()["value"] == 2)
"""


def test_files_of_a_server_that_does_not_answer(client, worker, address):  # noqa: F811
    """Closing such a file waits for its server. Only one thread waits, and few of these files are accepted from one
    process, so that others' messages arrive."""
    # Start it before such a file exists, because a new process would close it.
    other = subprocess.Popen([sys.executable, "-c", OTHER, address, text()], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
    given = unanswered()
    if not given:
        other.communicate("\n")
        pytest.skip("no FUSE without root and its module")
    file, end_server = given
    try:
        before = descriptors(worker.pid)
        for _ in range(40):
            with Client(address) as bad:
                bad.send_text('{"v":1,"body":10}', [file])
                assert bad.receive()["error"]["type"] == "malformed" and bad.receive() is None
            assert client.call(OPS + "add", [1]) == 2
        assert descriptors(worker.pid) <= before + _server._Foreign.OF_PROCESS
        with Client(address) as same:
            same.send_body(text().encode())
            assert same.receive()["error"]["type"] == "malformed"
        assert other.communicate("\n") == ("True\n", None)
    finally:
        end_server()
        with contextlib.suppress(OSError):
            os.close(file)
    eventually(lambda: descriptors(worker.pid) <= before)
    # A file counts until its close() has returned, a moment longer than it is open.
    answer = {}
    while "value" not in answer:
        with Client(address) as good:
            good.send_body(text().encode())
            answer = good.receive()
    assert answer["value"] == 2


def test_files_are_closed_by_the_next_thread(monkeypatch):
    """If no thread can be started, no error is raised."""
    foreign, ends = _server._Foreign(), os.pipe()

    def none(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        foreign.close(array.array("i", ends[:1]), 1)
    os.fstat(ends[0])
    foreign.close(array.array("i", ends[1:]), 2)
    eventually(lambda: not foreign._waiting.total())
    for end in ends:
        assert_refused(lambda: os.fstat(end), OSError)


NOT_OPERATIONS = ["os.system", "subprocess.run", "builtins.eval", "worker_operations", "",
                  "worker_operations.", ".echo", "worker_operations..echo", "echo",
                  OPS + "os.system", OPS + "subprocess.run", OPS + "subprocess", OPS + "numpy",
                  OPS + "time.sleep", OPS + "_private", OPS + "__builtins__", OPS + "__loader__",
                  OPS + "kept", OPS + "worker", OPS + "echo.__call__", OPS + "echo.__globals__",
                  OPS + "no_such", "numpy.testing.measure", "numpy.linalg.norm", "numpy.os",
                  "tmesh.worker.cancelled", OPS + "ec\0ho", OPS + "éç", "math.pi", "numpy.pi"]


@pytest.mark.parametrize("operation", [name for name in NOT_OPERATIONS if name])
def test_nothing_else_can_be_called(client, operation):  # noqa: F811
    error = client.error(operation, ["ls"])
    assert error["type"] == "not_allowed", error


def placeholders():
    t = tmesh.put(np.arange(16, dtype="float32"), label="for hostile refs", seal=False)
    ref = t.ref()
    yield t, {"__tmesh__": "tensor"}
    yield t, {"__tmesh__": "tensor", "ref": None}
    yield t, {"__tmesh__": "tensor", "ref": []}
    yield t, {"__tmesh__": "tensor", "ref": "x"}
    yield t, {"__tmesh__": "tensor", "ref": ref, "more": 1}
    yield t, {"__tmesh__": "tensor", "ref": ref, "writable": 1}
    yield t, {"__tmesh__": "tensor", "ref": ref, "writable": True}  # its token does not permit that
    several = tmesh.bundle({"t": t}, seal=False)
    yield several, {"__tmesh__": "tensor", "ref": several.ref()}
    yield several, {"__tmesh__": "tensor", "ref": several.ref(), "writable": True}
    for change in ({"offset": 1 << 40}, {"offset": -4}, {"shape": [17]}, {"shape": [-1]},
                   {"byte_size": 1 << 62}, {"shape": [1 << 62]}, {"strides": [1 << 61]},
                   {"strides": [-1]}, {"dtype": "float31"}, {"device": "cuda:0"}, {"shape": [1] * 9},
                   {"token": "tm1m-" + "0" * 32 + "-" + "0" * 32}, {"token": "../../etc/passwd"},
                   {"token": ""}, {"id": 5}, {"v": 2}, {"shape": [[]]}):
        yield t, {"__tmesh__": "tensor", "ref": {**ref, **change}}
    yield t, {"__tmesh__": "bytes"}
    yield t, {"__tmesh__": "bytes", "base64": "x"}
    yield t, {"__tmesh__": "bytes", "base64": "AA*A="}
    yield t, {"__tmesh__": "bytes", "base64": 5}
    yield t, {"__tmesh__": "bytes", "base64": "", "ref": ref}
    yield t, {"__tmesh__": "array", "dtype": "uint8", "shape": [3], "base64": "AAA="}
    yield t, {"__tmesh__": "array", "dtype": "uint8", "shape": [1 << 62], "base64": ""}
    yield t, {"__tmesh__": "array", "dtype": "uint8", "shape": 3, "base64": "AAAA"}
    yield t, {"__tmesh__": "array", "dtype": [], "shape": [3], "base64": "AAAA"}
    yield t, {"__tmesh__": "array", "dtype": "x", "shape": [3], "base64": "AAAA"}
    yield t, {"__tmesh__": "float", "value": "x"}
    yield t, {"__tmesh__": "float", "value": []}
    yield t, {"__tmesh__": "call"}
    yield t, {"__tmesh__": []}
    yield t, {"__tmesh__": None}
    yield t, {"__snakepit_zero_copy__": True}
    yield t, {"__snakepit_zero_copy__": True, "kind": [], "ref": ref}
    yield t, {"__snakepit_zero_copy__": True, "kind": "dlpack", "ref": 5}
    yield t, {"__snakepit_zero_copy__": True, "kind": "dlpack", "ref": ref, "shape": [15]}


def test_hostile_placeholders(client):  # noqa: F811
    for number, (_, value) in enumerate(placeholders()):
        error = client.error(OPS + "echo", [{"deep": [value]}])
        assert error["type"] in ("malformed", "tensor", "exception") and error["message"], value
        assert error["type"] != "exception" or number > 20, (value, error)
    assert client.call(OPS + "add", [1]) == 2


def test_a_client_that_does_not_release_is_refused(client):  # noqa: F811
    for _ in range(256):
        assert client.answer(OPS + "ones", [1])["type"] == "result"
    assert client.error(OPS + "add", [1])["type"] == "busy"
    client.send(type="release", id=1)
    assert client.call(OPS + "add", [1]) == 2


def test_a_client_that_calls_too_much_is_refused(client, address):  # noqa: F811
    first = client.start(OPS + "until_cancelled")
    for _ in range(256):
        client.start(OPS + "add", [1])
    assert client.receive()["error"]["type"] == "busy"
    # Other clients are served meanwhile.
    with Client(address) as other:
        id = other.start(OPS + "add", [1])
        client.send(type="cancel", id=first)
        assert other.receive()["id"] == id


def waits_for_a_reader(module):
    address = new_address()
    process = start(address, "worker_operations", module)
    assert process.stdout.readline() == "ready\n"
    yield address
    end(process)


@pytest.fixture
def impatient():
    yield from waits_for_a_reader("worker_impatient")


@pytest.fixture
def patient():
    yield from waits_for_a_reader("worker_patient")


def test_a_client_that_does_not_read_does_not_stop_the_others(impatient):
    with Client(impatient) as bad, Client(impatient) as good:
        # Its time may end, and the connection with it, before it has sent all.
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                bad.start(OPS + "text", [60_000])
        assert good.call(OPS + "add", [1]) == 2


def test_a_client_that_ends_without_reading_does_not_stop_the_others(patient):
    with Client(patient) as good, Client(patient) as bad:
        for _ in range(40):
            bad.start(OPS + "text", [60_000])
        time.sleep(0.5)  # until the worker waits for it to read
        bad.sock.shutdown(socket.SHUT_WR)
        good.send_text("{")
        assert good.receive()["error"]["type"] == "malformed"


def test_refusals_that_are_not_read_do_not_stop_the_others(patient):
    with Client(patient) as good, Client(patient) as bad:
        first = good.start(OPS + "until_cancelled")
        # Until the worker reads it no more.
        bad.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(1 << 20):
                bad.start(OPS + "add", [1])
        good.send(type="cancel", id=first)
        assert good.receive()["error"]["type"] == "cancelled"
        # Neither do the answers that it does not read.
        good.send_text("{")
        assert good.receive()["error"]["type"] == "malformed"


def test_too_many_connections(mortal):  # noqa: F811
    """Use a worker without other clients, whose end it may not have noticed."""
    others = [Client(mortal.address) for _ in range(63)]
    assert all(other.hello for other in others) and Client(mortal.address).hello is None
    for other in others:
        other.sock.close()
    assert mortal.call(OPS + "add", [1]) == 2


def test_a_dying_operation_ends_the_connection(mortal):  # noqa: F811
    t = tmesh.put(np.ones(100), seal=False)
    mortal.start(OPS + "keep", [tensor(t)])
    mortal.start(OPS + "die")
    assert mortal.receive()["type"] == "result"
    assert mortal.receive() is None
    assert mortal.worker.wait() == 9
    assert t.numpy().sum() == 100


def test_random_bytes(client, address):  # noqa: F811
    dice = random.Random(5)
    rounds = 2000 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 200
    valid = text(payload=[{"__tmesh__": "tensor", "ref": {"v": 1, "shape": [2]}}], stream=True)
    for _ in range(rounds):
        with Client(address) as bad:
            data = bytearray(valid.encode())
            for _ in range(dice.randrange(1, 8)):
                at = dice.randrange(len(data))
                data[at:at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
            bad.send_text(bytes(data) or b"x")
            if dice.random() < 0.5:
                bad.receive()
    assert client.call(OPS + "add", [1]) == 2


def test_killed_at_any_time(start_worker):  # noqa: F811
    """The tensors here stay the same, whatever the worker was doing."""
    dice = random.Random(7)
    t = tmesh.put(np.arange(1000), seal=False)
    for _ in range(30 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 4):
        name = new_address()
        worker = start_worker(name)
        worker.stdout.readline()
        with Client(name) as victim:
            results = []
            for _ in range(dice.randrange(1, 20)):
                message = victim.answer(OPS + "add", [tensor(t), 1])
                results.append(tmesh.open(message["value"]["ref"]))
                victim.send(type="release", id=message["id"])
            victim.start(OPS + "add", [tensor(t), 1])
            worker.send_signal(signal.SIGKILL)
            while (message := victim.receive()) is not None:
                assert message["type"] == "result"
        for result in results:
            assert result.numpy()[999] == 1000
    assert t.numpy()[999] == 999
