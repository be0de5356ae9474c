# SPDX-License-Identifier: MIT
"""tmesh.nixl and tmesh.mooncake: real NIXL and Mooncake between two processes, by TCP and on CPUs."""

import ctypes
import dataclasses
import gc
import json
from multiprocessing import Pipe
import os
from pathlib import Path
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tmesh
from conftest import assert_refused, need_movers
from tmesh.offers import Offer, Place

need_movers()

from net_target import PATIENCE, Target, mover, numbers  # noqa: E402


@pytest.fixture(scope="module", params=["nixl", "mooncake"])
def engine(request):
    return request.param, *mover(request.param, "initiator")


@pytest.fixture(scope="module")
def target(engine):
    one = Target(engine[0])
    yield one
    one.kill()


@pytest.fixture
def mine(engine):
    """The memory into which a peer's bytes are read."""
    tensor = tmesh.zeros(1 << 16, "uint32")
    with engine[2](tensor, writable=True) as registration:
        yield tensor, registration
    tensor.release()                # nothing holds the memory any more


def test_a_strangers_first_program(engine, target, mine):
    """A peer's tensor is read whole, without a copy by tmesh."""
    offer = target("sealed")
    place, = engine[1].offered(offer).places
    assert (place.shape, place.dtype, place.nbytes, place.writable) == ((1 << 16,), "uint32", 4 << 16, False)
    before = tmesh.stats()["bytes_copied"]
    with mine[1].peer(offer) as peer:
        peer.read(mine[0])
    assert np.array_equal(mine[0].numpy(), np.arange(1 << 16))
    assert target("copied") == tmesh.stats()["bytes_copied"] - before == 0


def test_parts(engine, target, mine):
    """Read many at once, and write."""
    tensor, registration = mine
    with registration.peer(target("sealed")) as peer:
        peer.read([(tensor[i * 1024:(i + 1) * 1024], 0, 4096 * (9 - i)) for i in range(4)])
        peer.read([])
    assert tensor.numpy()[:5 * 1024:1024].tolist() == [9216, 8192, 7168, 6144, 0]
    # Name tensors also by the places that offered() returns.
    offer = target("sealed")
    place, = engine[1].offered(offer).places
    with registration.peer(offer) as peer:
        peer.read([(tensor[:1024], place, 8192)])
        assert tensor.numpy()[0] == 2048
        peer.read(tensor[:1024], place, 4096)
        assert tensor.numpy()[0] == 1024
        with pytest.raises(tmesh.InvalidError, match="of another offer than this peer's"):
            peer.read(tensor[:1024], dataclasses.replace(place, nbytes=4))
    tensor.numpy()[:1024] = np.float32(2.5).view("uint32")
    with registration.peer(target("rows")) as peer:
        peer.write(tensor[:1024], offset=3 * 4096)
        assert target("values")[1] == [0, 0, 0, 2.5, 0, 0, 0, 0]
        tensor.numpy()[:] = 0
        peer.write([(tensor[:1024], 0, 3 * 4096)])
    assert target("values")[1] == [0] * 8


def test_sealed_memory_cannot_be_written_to(target, mine):
    """Neither this module's peers nor one that ignores the rules can write. The process with the memory stays alive,
    and its bytes stay the same."""
    tensor, registration = mine
    offer = target("sealed")
    with registration.peer(offer) as peer, pytest.raises(tmesh.AccessError, match="for reading only"):
        peer.write(tensor)
    told = json.loads(offer)
    told["places"][0]["writable"] = True
    with registration.peer(json.dumps(told).encode()) as hostile:
        try:
            hostile.write(tensor)
        except tmesh.Error:  # Mooncake reports it; NIXL writes to a view of its own
            pass
    assert target("values")[0] and target.process.poll() is None


def test_what_is_registered(engine, mine):
    register = engine[2]
    sealed = tmesh.put(np.arange(4.0))
    assert_refused(lambda: register(sealed, writable=True), tmesh.AccessError, "reading only")
    assert_refused(lambda: register(tmesh.zeros(4, "uint8")), tmesh.AccessError, "not sealed")
    assert_refused(lambda: register(tmesh.open(mine[0].ref()), writable=True), tmesh.AccessError, "reading only")
    assert_refused(lambda: register(tmesh.put(np.empty(0))), tmesh.InvalidError, "without elements")
    with pytest.raises(tmesh.InvalidError, match="only contiguous tensors are registered"):
        register(tmesh.put(np.ones((4, 4)))[:, 0])
    assert_refused(register, tmesh.InvalidError, "1 to")
    assert_refused(lambda: register(np.ones(3)), TypeError, "not numpy.ndarray: tmesh.put")
    more = {"host": "127.0.0.1"} if engine[0] == "mooncake" else {}
    assert_refused(lambda: engine[1].register(sealed, mine[0], **more), TypeError, r"takes a \w+ first, not a tmesh")


def test_a_tensor_that_was_released(engine):
    """A registered tensor stays and is offered, even after its "with" has ended."""
    with tmesh.put(np.arange(4.0)) as tensor:
        registration = engine[2](tensor)
    with registration:
        place, = engine[1].offered(registration.offer()).places
        assert (place.dtype, place.shape, place.writable) == ("float64", (4,), False)
        assert (np.ctypeslib.as_array((ctypes.c_double * 4).from_address(place.address)) == np.arange(4.0)).all()


def test_registered_twice(engine, mine):
    """NIXL accepts it. Mooncake has one registration of the memory, and gives the reason to refuse another."""
    if engine[0] == "nixl":
        engine[2](mine[0], writable=True).close()
    else:
        with pytest.raises(tmesh.ExistsError, match="registered with this engine already"):
            engine[2](mine[0][:4], writable=True)


def test_an_offer_of_ones_own(engine, mine):
    """Mooncake also reads from its own process."""
    offer = mine[1].offer()
    assert "metadata" not in repr(engine[1].offered(offer))
    if engine[0] == "nixl":
        assert_refused(lambda: mine[1].peer(offer), tmesh.ExistsError, "needs a name of its own")
    else:
        mine[1].peer(offer).close()


def test_a_registration_that_nobody_has(engine, mine):
    """It stays until it is closed. Otherwise the engine would give peers freed memory."""
    target = Target(engine[0])
    try:
        with mine[1].peer(target("dropped")) as peer:
            peer.read(mine[0])
        assert mine[0].numpy()[-1] == (1 << 16) - 1 and target("values")[0]
    finally:
        target.kill()


@pytest.mark.parametrize("what", [np.ones(3), [1], 5, [(np.ones(3), 0, 0)], [(1, 2)], [("x", "y", "z")]])
def test_what_cannot_be_read_into(target, mine, what):
    with mine[1].peer(target("sealed")) as peer, pytest.raises(TypeError, match="a tmesh.Tensor is needed"):
        peer.read(what)


def test_out_of_range(engine, target, mine):
    tensor, registration = mine
    with registration.peer(target("sealed")) as peer:
        for offset in 4, -4, 1 << 62:
            assert_refused(lambda: peer.read(tensor, offset=offset), tmesh.InvalidError, "not within the peer's tensor")
        for place in 1, -1:
            assert_refused(lambda: peer.read(tensor, place), tmesh.InvalidError, "none with the number")
        with pytest.raises(tmesh.NotFoundError, match="not part of what was registered"):
            peer.read(tmesh.zeros(4, "uint32"))
        for timeout in -1, float("nan"):
            assert_refused(lambda: peer.read(tensor, timeout=timeout), tmesh.InvalidError, "timeout")
        with pytest.raises(TypeError, match="timeout is None or a number of seconds, not 'soon'"):
            peer.read(tensor, timeout="soon")
        own = tmesh.put(np.arange(4, dtype="uint32"))
        with engine[2](own) as sealed, sealed.peer(target("sealed")) as other, \
                pytest.raises(tmesh.AccessError, match="sealed memory"):
            other.read(own)
    assert not tensor.numpy().any()
    assert_refused(lambda: peer.read(tensor), tmesh.ReleasedError)


def test_what_is_closed(engine, target):
    tensor = tmesh.zeros(16, "uint32")
    registration = engine[2](tensor, writable=True)
    offer = target("sealed")
    peer = registration.peer(offer)
    peer.read(tensor)
    told = engine[1].offered(offer)
    assert repr(registration) == f"<tmesh.{engine[0]}.Registration tensors=1 bytes=64 writable>"
    assert repr(peer) == f"<tmesh.{engine[0]}.Peer {told.peer!r} tensors=1>"
    for thing, words in (registration, r"send its offer\(\)"), (peer, "send the offer that it was made of"):
        assert_refused(lambda: pickle.dumps(thing), TypeError, words)
    for wrong in told, None, 5:
        with pytest.raises(TypeError, match=f"the bytes that a registration's .* gave, not {type(wrong).__name__}"):
            registration.peer(wrong)
    registration.close()
    registration.close()
    assert_refused(lambda: peer.read(tensor), tmesh.ReleasedError)
    assert_refused(registration.offer, tmesh.ReleasedError)
    peer.close()
    peer.close()
    assert repr(registration) == f"<tmesh.{engine[0]}.Registration, closed>" and repr(peer).endswith(", closed>")
    for thing in registration, peer:
        with pytest.raises(tmesh.ReleasedError, match="is closed"), thing:
            pass
    tensor.release()                # nothing holds the memory any more


@pytest.mark.parametrize("engine", ["mooncake"], indirect=True)
def test_an_engine_that_was_not_started(engine):
    """Its calls would end the process."""
    from mooncake.engine import TransferEngine
    with pytest.raises(tmesh.InvalidError, match="was not started: engine.initialize"):
        engine[1].register(TransferEngine(), tmesh.put(b"x"), host="127.0.0.1")


def test_the_other_engines_offer(engine, mine):
    other = {"nixl": "mooncake", "mooncake": "nixl"}[engine[0]]
    with pytest.raises(tmesh.ProtocolError, match="for the engine"):
        mine[1].peer(Offer(other, "x", b"", (Place(4096, 4, "uint32", (1,), False),)).to_bytes())


@pytest.mark.parametrize("engine", ["nixl"], indirect=True)
def test_a_false_name(engine, target, mine):
    """The metadata name another agent, and a transfer would go to that one."""
    told = json.loads(target("sealed"))
    told["peer"] = "somebody else"
    assert_refused(lambda: mine[1].peer(json.dumps(told).encode()), tmesh.ProtocolError, "somebody else")


def test_two_peers_of_one_process(target, mine):
    """Each is known as long as it is open, in a registration that no peer has written to."""
    offer = target("dropped")
    with mine[1].peer(offer) as peer:
        with mine[1].peer(offer) as other:
            other.read(mine[0])
        mine[0].numpy()[:] = 0
        peer.read(mine[0])
    assert mine[0].numpy()[-1] == (1 << 16) - 1


def test_garbage_for_the_engine(engine, mine):
    """A well-formed offer of no agent."""
    offer = Offer(engine[0], "127.0.0.1:1", b"nonsense", (Place(4096, 4, "uint32", (1,), False),)).to_bytes()
    with pytest.raises(tmesh.Error), mine[1].peer(offer) as peer:
        peer.read(mine[0][:1])


def test_the_peer_dies(engine, mine):
    """The peer dies at a random moment, while it is read."""
    tensor, registration = mine
    target = Target(engine[0])
    try:
        with registration.peer(target("sealed")) as peer:
            peer.read(tensor)
            threading.Timer(0.05, os.kill, (target.process.pid, signal.SIGKILL)).start()
            end = time.monotonic() + PATIENCE
            with pytest.raises(tmesh.Error):
                while time.monotonic() < end:
                    peer.read(tensor)
            assert_refused(lambda: peer.read(tensor), tmesh.GoneError)
    finally:
        target.kill()


def descriptors(process):
    return len(os.listdir(f"/proc/{process}/fd"))


def test_peers_one_after_the_other_cost_no_descriptors(target, mine):
    """When NIXL forgets an agent, UCX keeps the connection. So agents that will be used again must stay known."""
    tensor, registration = mine
    counts = []
    for _ in range(3):
        for _ in range(10):
            with registration.peer(target("sealed")) as peer:
                peer.read(tensor)
        counts.append((descriptors("self"), descriptors(target.process.pid)))
    assert counts[1] == counts[2]


def test_a_name_that_another_process_has_now(engine, mine):
    """It works once the Peer of the first one is closed, and also after a failure."""
    tensor, registration = mine
    for killed in False, True:
        Target.count = 1000
        first = Target(engine[0])
        peer = registration.peer(first("sealed"))
        peer.read(tensor)
        if killed:
            first.kill()
            assert_refused(lambda: peer.read(tensor), tmesh.GoneError)
        peer.close()
        Target.count = 1000
        second = Target(engine[0])
        try:
            with registration.peer(second("sealed")) as peer:
                tensor.numpy()[:] = 0
                peer.read(tensor)
            assert np.array_equal(tensor.numpy(), np.arange(1 << 16))
        finally:
            first.kill()
            second.kill()


def test_a_forked_child(engine, target, mine):
    """A child has the objects but not the engine. It gets an error, although Mooncake's calls would never end there,
    and does not disturb the parent's."""
    module, register = engine[1:]
    tensor, registration = mine
    peer = registration.peer(target("sealed"))
    here, there = Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            said = []
            for call in (lambda: peer.read(tensor), lambda: registration.peer(peer.offer.to_bytes()), registration.offer,
                         lambda: register(numbers()), peer.__enter__):
                with pytest.raises(tmesh.AccessError, match="a forked child makes an engine of its own") as refused:
                    call()
                said.append(refused.type.__name__)
            peer.close()
            registration.close()
            there.send((said, repr(peer), repr(registration)))
        finally:
            os._exit(0)
    try:
        assert here.poll(PATIENCE)
        assert here.recv() == (["AccessError"] * 5, f"<tmesh.{engine[0]}.Peer {peer.offer.peer!r} tensors=1, closed>",
                               f"<tmesh.{engine[0]}.Registration, closed>")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    peer.read(tensor)
    assert np.array_equal(tensor.numpy(), np.arange(1 << 16))
    peer.close()


def stop(target):
    """Stop the target, and wait until none of its threads runs."""
    os.kill(target.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, target.process.pid, os.WSTOPPED)


def give_up(target, register, offer, how):
    """Give up a read into memory that nothing holds afterwards."""
    room = tmesh.zeros(1 << 16, "uint32")
    with register(room, writable=True) as mine, mine.peer(offer) as peer:
        peer.read(room[:4])
        stop(target)
        if how == "Ctrl-C":
            # A shell's background jobs start without this handler.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(tmesh.PeerTimeoutError if how == "timeout" else KeyboardInterrupt):
            if how == "Ctrl-C":
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            peer.read(room, timeout=0.2 if how == "timeout" else PATIENCE)
    room.release()


@pytest.mark.parametrize("how", ["timeout", "Ctrl-C"])
def test_late_bytes(engine, how):
    """Late bytes of a read that was given up come to no other memory, even if its registration and Peer are closed.
    Over TCP NIXL cannot cancel a read."""
    module, register = engine[1:]
    if engine[0] == "mooncake":
        pytest.skip("Mooncake drops its connection")
    target = Target("nixl")
    try:
        offer = target("sealed")
        give_up(target, register, offer, how)
        gc.collect()
        # New tensors would reuse freed memory.
        others = [tmesh.empty(1 << 16, "uint32") for _ in range(8)]
        for other in others:
            other.numpy()[:] = 7
        os.kill(target.process.pid, signal.SIGCONT)
        fresh = tmesh.zeros(1 << 16, "uint32")
        with register(fresh, writable=True) as mine, mine.peer(offer) as peer:
            for _ in range(100):
                peer.read(fresh)
        assert all((other.numpy() == 7).all() for other in others)
        assert not module._abandoned
    finally:
        target.kill()


def test_a_read_behind_one_that_was_given_up(engine):
    """A read waits for an earlier one that was given up, so that its bytes are not overwritten later."""
    if engine[0] == "mooncake":
        pytest.skip("Mooncake drops its connection")
    target = Target("nixl")
    try:
        offer = target("sealed")
        room = tmesh.zeros(1 << 16, "uint32")
        with engine[2](room, writable=True) as mine, mine.peer(offer) as peer:
            peer.read(room[:4])
            stop(target)
            assert_refused(lambda: peer.read(room, timeout=0.2), tmesh.PeerTimeoutError, "It still may")
            with pytest.raises(tmesh.PeerTimeoutError, match="an earlier transfer of this memory"):
                peer.read(room, timeout=0.2)
            os.kill(target.process.pid, signal.SIGCONT)
            peer.read(room, timeout=PATIENCE)
            assert not engine[1]._abandoned
            assert np.array_equal(room.numpy(), np.arange(1 << 16))
    finally:
        target.kill()


def test_the_example():
    """Run examples/nixl_kv_pages.py unchanged."""
    example = Path(__file__).resolve().parents[3] / "examples" / "nixl_kv_pages.py"
    # Ignore its exit status: NIXL's UCX sometimes aborts at exit, also without tmesh.
    said = subprocess.run([sys.executable, "-P", str(example)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.stdout == ("fetched 6 of 8 pages; the sequence is [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]\n")


@pytest.mark.parametrize("engine", ["mooncake"], indirect=True)
def test_a_closed_offer(engine, mine):
    """NIXL over TCP does not check registrations, and the process that closed one may die:
    docs/howto/integrations.md."""
    target = Target(engine[0])
    try:
        with mine[1].peer(target("sealed")) as peer:
            peer.read(mine[0])
            target("close")
            assert_refused(lambda: peer.read(mine[0]), tmesh.GoneError, "closed what it offered")
            assert target.process.poll() is None and target("values")[0]
    finally:
        target.kill()
