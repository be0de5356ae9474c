# SPDX-License-Identifier: MIT
"""Tensors by gRPC, with real grpcio."""

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tmesh
from conftest import assert_refused

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: make python-arrow-check")
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: make python-arrow-check")

import tmesh.grpc  # noqa: E402
from tmesh.grpc import messages, services  # noqa: E402


# The limit of a wait, for slow machines: a call's default is 5 s.
PATIENCE = 600


class Clock:
    """The clock of the service and its clients in this process. A lease is longer than any pause of the machine, and
    the test advances the clock instead of waiting."""

    def __init__(self):
        self.ahead = 0

    def monotonic(self):
        return time.monotonic() + self.ahead

    def later(self, seconds, whose):
        self.ahead += seconds
        with whose:
            whose.notify_all()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tmesh.grpc, "time", clock)
    return clock


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/tensors.sock"


@pytest.fixture
def server(address):
    with tmesh.grpc.Server(address) as server:
        yield server


@pytest.fixture
def client(server):
    with tmesh.grpc.Client(server.address, timeout=PATIENCE) as client:
        # The default lease of tests, so long that none ends because this process pauses for a while.
        client.get = functools.partial(client.get, lease=300)
        yield client


def put(values, **more):
    return tmesh.put(np.asarray(values, "float32"), **more)


def until(true):
    """Wait until another thread makes a condition true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_tensor_by_its_name(server, client):
    server.publish("w", put([[1, 2], [3, 4]], seal=True))
    with client.get("w") as leased:
        assert leased.tensor.numpy().tolist() == [[1, 2], [3, 4]]
        assert not leased.tensor.writable
        assert server.leases == 1
    until(lambda: server.leases == 0)
    assert leased.reason == "released"
    assert leased.tensor.numpy()[1, 1] == 4     # a process that has opened it keeps it
    assert "released" in repr(leased)


def test_views_and_other_types_arrive_as_they_are(server, client):
    whole = tmesh.put(np.arange(24, dtype="int16").reshape(4, 6), seal=True)
    server.publish("part", whole[1:, ::2])
    server.publish("bf", tmesh.put(np.arange(6, dtype="uint16"), seal=True).view("bfloat16"))
    server.publish("scalar", tmesh.put(np.float64(2.5), seal=True))
    server.publish("none", tmesh.put(np.empty((0, 3)), seal=True))
    part = client.get("part").tensor
    assert part.numpy().tolist() == np.arange(24).reshape(4, 6)[1:, ::2].tolist()
    assert client.get("bf").tensor.dtype == "bfloat16"
    assert client.get("scalar").tensor.numpy() == 2.5
    assert client.get("none").tensor.shape == (0, 3)


def test_the_server_holds_what_is_leased(server, client):
    tensor = put([1, 2], seal=True)
    server.publish("w", tensor)
    leased = client.get("w")
    server.publish("w", put([3, 4], seal=True))
    tensor_id = tensor.id
    del tensor
    gc.collect()
    assert leased.tensor.id == tensor_id
    again = tmesh.open(leased.tensor.ref())     # by the server's token or this process's own
    assert again.numpy().tolist() == [1, 2]
    assert client.get("w").tensor.numpy().tolist() == [3, 4]


def test_callbacks_that_raise(clock, server, client, monkeypatch):
    """A callback's exception ends no thread of the client: it still reports other ends and renews other leases."""
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    for name in "abc":
        server.publish(name, put([1], seal=True))
    a, b, c = (client.get(name, lease=300) for name in "abc")
    told = threading.Event()
    for leased in a, b:
        leased.on_end(lambda leased: 1 / 0)
        leased.on_end(lambda leased: told.set())
    # One runs in the thread that receives ends, and one in the thread that renews.
    server.withdraw("a")
    assert told.wait(PATIENCE) and a.reason == "withdrawn"
    told.clear()
    server._leases.leases.pop(b._id)
    there = server._leases.leases[c._id]
    deadline = there.deadline
    clock.later(101, client._changed)
    assert told.wait(PATIENCE) and b.reason == "lapsed"
    until(lambda: there.deadline > deadline)
    server.withdraw("c")
    assert c.ended.wait(PATIENCE)
    assert raised == [ZeroDivisionError] * 2


def test_leases_are_renewed_and_lapse_without(clock, server, client):
    server.publish("w", put([1], seal=True))
    leased = client.get("w", lease=300)
    [there] = server._leases.leases.values()
    deadline = there.deadline
    clock.later(101, client._changed)
    until(lambda: there.deadline > deadline)
    assert server.leases == 1 and not leased.ended.is_set()
    stub = services.SharedTensorsStub(grpc.insecure_channel(server.address))
    # It may have ended before the answer arrives.
    assert stub.Get(messages.GetRequest(name="w", duration_ms=50, client="0" * 32)).lease.id != there.id
    until(lambda: server.leases == 1)


def test_ends_are_told(server, client):
    server.publish("a", put([1], seal=True))
    server.publish("b", put([2], seal=True))
    a, b = client.get("a"), client.get("b")
    told = threading.Event()
    a.on_end(lambda leased: told.set())
    server.withdraw("a")
    assert told.wait(PATIENCE) and a.reason == "withdrawn"
    late = []
    a.on_end(late.append)
    assert late == [a]
    assert not b.ended.is_set()
    server.stop()
    assert b.ended.wait(PATIENCE) and b.reason == "stopped"
    assert_refused(lambda: server.withdraw("a"), tmesh.NotFoundError)


def test_a_lease_that_the_server_has_ended_is_released_quietly(server, client):
    server.publish("w", put([1], seal=True))
    leased = client.get("w")
    server.withdraw("w")
    leased.release()
    assert leased.ended.is_set()


def test_writable_only_where_it_is_published_so(server, client):
    server.publish("r", put([1], seal=False))
    server.publish("w", put([1], seal=False), writable=True)
    assert_refused(lambda: client.get("r", writable=True), tmesh.AccessError)
    until(lambda: server.leases == 0)       # nothing stays of the tensor that could not be opened
    client.get("w", writable=True).tensor.numpy()[0] = 5
    assert client.get("w").tensor.numpy()[0] == 5
    assert_refused(lambda: server.publish("sealed", put([1], seal=True), writable=True), tmesh.AccessError, "read-only")


def test_bad_requests(server, client):
    server.publish("w", put([1], seal=True))
    assert_refused(lambda: client.get("other"), tmesh.NotFoundError, "'other'")
    for lease in (0, -1, 1e6):
        assert_refused(lambda: client.get("w", lease=lease), ValueError, "a lease takes")
    assert_refused(lambda: server.publish("x", np.ones(3)), TypeError, "tmesh.put")
    stub = services.SharedTensorsStub(grpc.insecure_channel(server.address))

    def code(call, request):
        with pytest.raises(grpc.RpcError) as raised:
            answer = call(request)
            list(answer)
        return raised.value.code()

    for name in ("", "0" * 31, "0" * 33, "x" * 32):
        assert code(stub.Get, messages.GetRequest(name="w", duration_ms=5, client=name)) is grpc.StatusCode.INVALID_ARGUMENT
        assert code(stub.Watch, messages.WatchRequest(client=name)) is grpc.StatusCode.INVALID_ARGUMENT
    for call, request in ((stub.Renew, messages.RenewRequest(lease_id="0" * 32)),
                          (stub.Release, messages.ReleaseRequest(lease_id=""))):
        assert code(call, request) is grpc.StatusCode.NOT_FOUND
    assert server.leases == 0


def test_limits(address):
    with tmesh.grpc.Server(address, max_leases=2, max_clients=1) as server:
        server.publish("w", put([1], seal=True))
        with tmesh.grpc.Client(address, timeout=PATIENCE) as client:
            first, _second = client.get("w", lease=300), client.get("w", lease=300)
            assert_refused(lambda: client.get("w"), tmesh.Error, "2 leases are given")
            first.release()
            client.get("w")
            until(lambda: server._leases.watchers)  # its stream is open
            stub = services.SharedTensorsStub(grpc.insecure_channel(address))
            with pytest.raises(grpc.RpcError) as raised:
                list(stub.Watch(messages.WatchRequest(client="0" * 32)))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_two_streams_of_one_client(server):
    stub = services.SharedTensorsStub(grpc.insecure_channel(server.address))
    first = stub.Watch(messages.WatchRequest(client="a" * 32))
    first.initial_metadata()
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.Watch(messages.WatchRequest(client="a" * 32)))
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    first.cancel()

    def again():
        stream = stub.Watch(messages.WatchRequest(client="a" * 32))
        try:
            stream.initial_metadata()
            return stream.is_active()
        finally:
            stream.cancel()
    until(again)


def test_answers_that_lie(address):
    """If a server's descriptions do not fit their region, the client refuses them."""
    class Liar(services.SharedTensorsServicer):
        released = 0

        def Get(self, request, context):
            answer = tmesh.grpc._description(ref)
            answer.lease.id, answer.lease.duration_ms = "x", 1000
            for name, value in lies.items():
                if isinstance(value, list):
                    del getattr(answer, name)[:]
                    getattr(answer, name).extend(value)
                else:
                    setattr(answer, name, value)
            return answer

        def Release(self, request, context):
            self.released += 1
            return messages.ReleaseReply()

        def Watch(self, request, context):
            context.add_callback(over.set)
            over.wait()
            return iter(())

    tensor = put([1, 2, 3], seal=True)
    ref = tensor.ref()
    liar = Liar()
    over = threading.Event()
    server = grpc.server(ThreadPoolExecutor(4))
    services.add_SharedTensorsServicer_to_server(liar, server)
    server.add_insecure_port(address)
    server.start()
    try:
        with tmesh.grpc.Client(address, timeout=PATIENCE) as client:
            for number, lies in enumerate((
                    {"offset": 1 << 62}, {"length": 1 << 62}, {"dtype": "float33"}, {"shape": [-1]}, {"shape": [1 << 61]},
                    {"strides": [1 << 61]}, {"shape": [1] * 9}, {"token": "tm1m-" + "0" * 32 + "-" + "0" * 32},
                    {"device": "tpu"}, {"id": "zz"}), 1):
                assert_refused(lambda: client.get("w"), tmesh.Error)
                until(lambda n=number: liar.released == n)
    finally:
        server.stop(0).wait()


def test_two_processes(clock, server):
    server.publish("w", put(range(1000), seal=True))
    program = ("import sys, tmesh.grpc; c = tmesh.grpc.Client(sys.argv[1], timeout=600); l = c.get('w', lease=300);"
               "print(l.tensor.numpy().sum(), flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-P", "-c", program, server.address], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "499500.0\n"
    assert server.leases == 1
    os.kill(other.pid, signal.SIGKILL)
    other.communicate()
    clock.later(301, server._leases.changed)
    until(lambda: server.leases == 0)


def test_a_server_that_is_killed(clock, tmp_path):
    address = f"unix:{tmp_path}/tensors.sock"
    program = ("import sys, numpy, tmesh, tmesh.grpc; s = tmesh.grpc.Server(sys.argv[1]);"
               "s.publish('w', tmesh.put(numpy.arange(4.0), seal=True)); print(1, flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-P", "-c", program, address], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    client = tmesh.grpc.Client(address, timeout=PATIENCE)
    leased = client.get("w", lease=300)
    other.kill()
    other.communicate()
    clock.later(301, client._changed)
    assert leased.ended.wait(PATIENCE) and leased.reason == "unreachable"
    assert leased.tensor.numpy().tolist() == [0, 1, 2, 3]
    assert_refused(lambda: client.get("w"), tmesh.Error)
    client.close()
    assert_refused(lambda: client.get("w"), ValueError, "closed")


def test_beside_another_service(address):
    """Add the service to a server of one's own."""
    mine = grpc.server(ThreadPoolExecutor(8))
    tensors = tmesh.grpc.Server()
    tensors.add_to(mine)
    mine.add_insecure_port(address)
    mine.start()
    tensors.publish("w", put([7], seal=True))
    with tmesh.grpc.Client(grpc.insecure_channel(address), timeout=PATIENCE) as client:
        assert client.get("w").tensor.numpy()[0] == 7
    tensors.stop()
    mine.stop(0).wait()


SERVE = """
import numpy, sys, tmesh, tmesh.grpc
try:
    server = tmesh.grpc.Server(sys.argv[1])
except tmesh.BusyError as error:
    print(f"refused: {error}", flush=True)
else:
    server.publish("w", tmesh.put(numpy.arange(4.0)))
    print("serves", flush=True)
    sys.stdin.read()
    server.stop()
"""


def serve_elsewhere(address):
    other = subprocess.Popen([sys.executable, "-P", "-c", SERVE, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return other, other.stdout.readline()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_one_server_at_an_address(tmp_path, kind):
    """Clients would reach either of two servers, and the first one to end would remove the socket."""
    address = f"unix:{tmp_path}/tensors.sock" if kind == "unix" else "127.0.0.1:0"
    with tmesh.grpc.Server(address) as server:
        address = server.address
        server.publish("w", put([7]))
        assert_refused(lambda: tmesh.grpc.Server(address), tmesh.BusyError, "cannot serve")
        other, said = serve_elsewhere(address)
        other.communicate()
        assert "refused: " in said and "cannot serve" in said
        with tmesh.grpc.Client(address, timeout=PATIENCE) as client:
            assert client.get("w", lease=300).tensor.numpy()[0] == 7
    # After its end, and after a killed server, the next one can serve.
    for end in ("kill", "stop"):
        other, said = serve_elsewhere(address)
        assert said == "serves\n"
        assert_refused(lambda: tmesh.grpc.Server(address), tmesh.BusyError, "cannot serve")
        if end == "kill":
            other.kill()
        other.communicate()
    assert not list(tmp_path.iterdir())
    with tmesh.grpc.Server(address):
        pass


def test_an_address_that_others_serve(address):
    mine = grpc.server(ThreadPoolExecutor(8))
    mine.add_insecure_port(address)
    mine.start()
    assert_refused(lambda: tmesh.grpc.Server(address), tmesh.BusyError, "another server serves it")
    mine.stop(0).wait()
    with tmesh.grpc.Server(address):
        pass
