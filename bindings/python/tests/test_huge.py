# SPDX-License-Identifier: MIT
"""Each way to make memory of 2 MiB and more puts it into huge pages, if memfds have them."""
import numpy as np
import pytest

import tmesh
import tmesh.shared_memory

MIB = 1 << 20
pytestmark = pytest.mark.skipif(tmesh.backend() != "memfd", reason="the module's regions have huge pages of their own")


@pytest.fixture(scope="module", autouse=True)
def makes_some():
    before = tmesh.stats()
    tmesh.empty(2 * MIB, "uint8").numpy()
    after = tmesh.stats()
    if after["huge_given_up"] > before["huge_given_up"] or after["huge_bytes"] == before["huge_bytes"]:
        pytest.skip("this machine makes no huge pages of shared memory")


ARRAY = np.arange(4 * MIB, dtype=np.float32).reshape(1024, 4096)


def in_arena(make):
    def way():
        return make(tmesh.Arena(32 * MIB))
    return way


WAYS = {
    "put": (16, lambda: tmesh.put(ARRAY)),
    "put, strided": (16, lambda: tmesh.put(ARRAY.T)),
    "put, not sealed": (16, lambda: tmesh.put(ARRAY, seal=False)),
    "zeros": (16, lambda: tmesh.zeros(ARRAY.shape, "float32").numpy()),
    "empty": (16, lambda: tmesh.empty(ARRAY.shape, "float32").numpy()),
    "arena, put": (32, in_arena(lambda arena: tmesh.put(ARRAY[:256], arena=arena))),
    "arena, zeros": (32, in_arena(lambda arena: tmesh.zeros((256, 4096), "float32", arena=arena).numpy())),
    "shared memory": (16, lambda: tmesh.shared_memory.SharedMemory(create=True, size=16 * MIB)),
}


@pytest.mark.parametrize("way", WAYS)
def test_way(way):
    mib, make = WAYS[way]
    tmesh.trim()
    before = tmesh.stats()
    made = make()
    after = tmesh.stats()
    assert after["huge_given_up"] == before["huge_given_up"]
    assert after["huge_bytes"] - before["huge_bytes"] == mib * MIB
    if hasattr(made, "close"):
        made.close()
        made.unlink()


def test_opened():
    """A holder's mapping begins at a multiple of huge pages, and lists report them."""
    tensor = tmesh.put(ARRAY)
    opened = tmesh.open(tensor.ref())
    assert opened.numpy().ctypes.data % (2 * MIB) == 0
    assert (opened.numpy() == ARRAY).all()
    mine = [region for region in tmesh.regions() if region["id"] == tensor.id]
    assert [region["huge_bytes"] for region in mine] == [16 * MIB]
