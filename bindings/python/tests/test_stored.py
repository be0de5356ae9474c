# SPDX-License-Identifier: MIT
"""Tensors in files: pickle, and formats based on it, store elements, which outlive the process."""

import copy
import io
import pickle

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused, pytorch

pytestmark = ANY_BACKEND

WRITE = """
import pickle, sys, numpy, tmesh
t = tmesh.put(numpy.arange(12.0).reshape(3, 4))
with open(sys.argv[1], "wb") as file:
    pickle.dump({"t": t, "part": t[1:, ::2], "bundle": tmesh.bundle({"w": t, "tied": t, "v": numpy.ones(2)}, metadata="more")}, file)
"""


def test_a_file_outlives_its_writer(python, tmp_path):
    file = tmp_path / "stored.pkl"
    python(WRITE, str(file))
    back = pickle.loads(file.read_bytes())
    assert back["t"].tolist() == np.arange(12.0).reshape(3, 4).tolist() and back["t"].sealed
    assert back["part"].tolist() == [[4, 6], [8, 10]]
    bundle = back["bundle"]
    assert bundle["w"].tolist() == back["t"].tolist() and bundle["v"].tolist() == [1, 1] and bundle.metadata == "more"
    assert len({tensor.id for tensor in bundle.values()}) == 1 and bundle["w"].sealed
    assert np.shares_memory(bundle["w"].numpy(), bundle["tied"].numpy())


def test_torch_save(tmp_path):
    torch = pytorch()
    t = tmesh.put([1.0, 2.0])
    buffer = io.BytesIO()
    torch.save({"t": t}, buffer)
    t.release()
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False)["t"].tolist() == [1, 2]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(protocol):
    t = tmesh.put(np.arange(6, dtype="int16"), seal=False, label="named")
    back = pickle.loads(pickle.dumps(t, protocol))
    assert back.tolist() == [0, 1, 2, 3, 4, 5] and back.writable and not back.sealed and back.label == "named"
    back[0] = 9
    assert t[0].item() == 0


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4",
                                   "float4_e2m1fn", "complex128"])
def test_every_dtype(dtype):
    t = tmesh.zeros((2, 4), dtype)
    raw = t.view("uint8")
    raw.numpy()[:] = np.arange(raw.nbytes, dtype="uint8").reshape(raw.shape) % 2
    back = pickle.loads(pickle.dumps(t))
    assert (back.dtype, back.shape) == (dtype, (2, 4)) and bytes(back.view("uint8")) == bytes(raw)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_shapes(shape):
    for seal in (False, True):
        back = pickle.loads(pickle.dumps(tmesh.put(np.ones(shape), seal=seal)))
        assert back.shape == shape and back.sealed is seal and (back.numpy() == 1).all()


def test_of_an_arena_and_turned_around():
    t = tmesh.put(np.arange(6.0), arena=tmesh.Arena())[::-2]
    assert pickle.loads(pickle.dumps(t)).tolist() == [5, 3, 1]


def test_a_bundle_that_may_be_written_to():
    made = tmesh.bundle({"a": np.ones(3), "none": np.ones((0, 2))}, seal=False)
    back = pickle.loads(pickle.dumps(made))
    back["a"][0] = 5
    assert made["a"][0].item() == 1 and back["none"].shape == (0, 2) and back.metadata == made.metadata
    assert copy.copy(made)["a"].id == made["a"].id


def test_what_was_released_is_not_stored():
    t = tmesh.put(b"x")
    t.release()
    assert_refused(lambda: pickle.dumps(t), tmesh.ReleasedError)


def test_in_a_forked_child(python):
    python("""
import os, pickle, tmesh
t = tmesh.put([1.0, 2.0])
child = os.fork()
if not child:
    os._exit(0 if pickle.loads(pickle.dumps(t)).tolist() == [1, 2] else 1)
assert os.waitpid(child, 0)[1] == 0
""")
