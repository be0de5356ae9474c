# SPDX-License-Identifier: MIT
"""tmesh.movers, which fetch tmesh.ray's objects from another machine: real NIXL and Mooncake, without Ray.
test_fetcher.py tests the fetcher."""

import os
import signal
import threading

import numpy as np
import pytest

import tmesh
from conftest import need_movers
from tmesh import movers

need_movers()

from net_target import PATIENCE, Target, without_ray  # noqa: E402

SIZE = 4 << 16
# The event that would cancel a fetch; these engines cannot be cancelled.
NEVER = threading.Event()


@pytest.fixture(scope="module", params=["nixl", "mooncake"])
def mover(request):
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch.setitem)
        return movers.Engine(request.param)


@pytest.fixture
def targets(mover):
    both = [Target(mover.name) for _ in range(2)]
    yield both
    for one in both:
        one.kill()


def good(tensors):
    tensor, = tensors
    return tensor.sealed and np.array_equal(tensor.numpy().view("uint32"), np.arange(1 << 16))


def test_an_object_comes(mover, targets):
    offer = targets[0]("sealed")
    assert good(mover.fetch(offer, [SIZE], NEVER)) and good(mover.fetch(offer, [SIZE], NEVER))


@pytest.mark.parametrize("sizes", [[], [SIZE, SIZE], [SIZE - 1], [SIZE + 1]])
def test_an_offer_of_another_object(mover, targets, sizes):
    with pytest.raises(tmesh.ProtocolError, match="offer is of another object"):
        mover.fetch(targets[0]("sealed"), sizes, NEVER)


def test_a_stopped_peer_stops_nobody_else(mover, targets, monkeypatch):
    """One object arrives while another one's source is silent. When that source dies, its fetch ends."""
    stopped, other = targets
    offer, more = stopped("sealed"), other("sealed")
    assert good(mover.fetch(offer, [SIZE], NEVER))             # each engine makes its connections at the first fetch
    asking, ended, transfer = threading.Event(), [], mover._module.Peer._transfer

    def seen(self, *arguments):
        asking.set()
        return transfer(self, *arguments)

    def fetch():
        try:
            ended.append(mover.fetch(offer, [SIZE], NEVER))
        except tmesh.Error as error:
            ended.append(error)

    monkeypatch.setattr(mover._module.Peer, "_transfer", seen)
    stopped.process.send_signal(signal.SIGSTOP)
    # Wait until all of its threads have stopped: on a busy machine one of them still answers for a while.
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        assert asking.wait(PATIENCE)
        assert good(mover.fetch(more, [SIZE], NEVER)) and not ended
    finally:
        stopped.process.kill()
        thread.join()
    assert isinstance(ended[0], tmesh.Error)


def test_many_at_a_time(mover, targets):
    """Fetch from one source and from two, each with its own offer."""
    offers = [target("dropped") for target in targets for _ in range(4)]
    come = [None] * len(offers)

    def fetch(number):
        for _ in range(5):
            come[number] = good(mover.fetch(offers[number], [SIZE], NEVER))

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(len(offers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(come)
