# SPDX-License-Identifier: MIT
"""Memory fetched from another machine is opened by its kept name, on the module and on memfd. This process keeps it in
place of tmesh-net, and no Tmesh.Net runs. tests/net/test_beside.py has the nodes."""

import gc
import json
import os
import signal
import socket
import struct

import numpy as np
import pytest

import tmesh
import tmesh.net
from conftest import assert_refused, eventually

SUM = "%032x"
pytestmark = pytest.mark.usefixtures("nothing_kept")


def shard(tensor, number, **more):
    """Describe memory that tmesh-net has kept as Tmesh.Net.offer/1 does."""
    return {**tensor.ref(), "home": "a@nowhere", "checksum": SUM % number, "region_bytes": tensor.nbytes, **more}


def fetched(number, array):
    tensor = tmesh.put(array)
    tmesh.keep(tensor, "net-" + SUM % number)
    return shard(tensor, number)


def test_a_tensor():
    offer = fetched(1, np.arange(12.0).reshape(3, 4))
    for told in offer, json.dumps(offer), json.dumps(offer).encode():
        come = tmesh.net.open(told)
        assert come.sealed and not come.writable and come.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    part = tmesh.net.open({**offer, "offset": 32, "byte_size": 32, "shape": [4], "strides": [1]})
    assert part.tolist() == [4, 5, 6, 7]


def test_another_process(python):
    """Open it after the fetching process has ended."""
    text = json.dumps(fetched(1, np.arange(6, dtype="uint8")))
    gc.collect()
    assert python(f"import tmesh.net; print(tmesh.net.open({text!r}).tolist())").strip() == "[0, 1, 2, 3, 4, 5]"


def test_a_bundle():
    """All regions of a bundle are found, or the net is asked. Regions that had been opened are closed."""
    here = fetched(1, np.arange(3.0))
    with pytest.raises(tmesh.NotFoundError, match="home is a@nowhere"):
        tmesh.net.open({"kind": "bundle", "home": "a@nowhere", "shards": [here, {**here, "checksum": SUM % 2}]})
    # The keeper learns of it a moment later.
    eventually(lambda: [one["held"] for one in tmesh.kept()] == [0])


@pytest.mark.parametrize("change", [
    {"checksum": SUM % 2}, {"checksum": "net"}, {"checksum": (SUM % 1).replace("0", "A")}, {"checksum": 1}, {"checksum": "\ud800" * 32},
    {"region_bytes": 95}, {"region_bytes": 97}, {"region_bytes": -1}, {"region_bytes": 1 << 64}, {"region_bytes": 96.0},
    {"region_bytes": True}, {"shape": [13]}, {"offset": 8}, {"kind": "bundle"}, {"kind": "bundle", "shards": []},
    {"kind": "bundle", "shards": 5}, {"kind": "bundle", "shards": [5]}, {"kind": "bundle", "shards": [{}] * 2000},
])
def test_what_is_not_here(change):
    """The net is asked, and none runs."""
    offer = {**fetched(1, np.arange(12.0)), **change}
    assert_refused(lambda: tmesh.net.open(offer), (tmesh.NotFoundError, tmesh.ProtocolError))


@pytest.mark.skipif(tmesh.backend() != "memfd", reason="the module keeps without a process")
def test_the_keeper_is_not_woken():
    """A stopped keeper does not answer."""
    offer = fetched(1, np.arange(12.0))
    before = tmesh.stats()["opens_without_wake"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(os.environ["TMESH_RUNTIME_DIR"] + "/keeper")
        keeper = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert tmesh.net.open(offer).tolist() == np.arange(12.0).tolist()
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert tmesh.stats()["opens_without_wake"] == before + 1
