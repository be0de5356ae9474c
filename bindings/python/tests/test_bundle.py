# SPDX-License-Identifier: MIT
"""Named tensors under one ref."""

import collections.abc
import concurrent.futures
import gc
import json
from multiprocessing.reduction import ForkingPickler
import multiprocessing
import pickle
import socket

import numpy as np
import pytest

import tmesh
import tmesh.in_transit
from tmesh import _tmesh
from conftest import assert_refused


@pytest.fixture(autouse=True)
def begin_anew():
    yield
    gc.collect()
    tmesh.in_transit.here = _tmesh.InTransit()


ARRAYS = {"w": np.arange(6.0).reshape(2, 3), "b": np.float32(2.5), "none": np.zeros((0, 4), "int8"),
          "mask": np.array([True, False]), "t": np.arange(12).reshape(3, 4).T}


def same(bundle, arrays):
    return [*bundle] == [*arrays] and all(
        np.array_equal(bundle[name].numpy(), array) and bundle[name].dtype == array.dtype.name
        and bundle[name].shape == array.shape for name, array in arrays.items())


def test_arrays_lie_in_one_region():
    copies = tmesh.stats()["copies"]
    made = tmesh.bundle(ARRAYS, metadata='{"format":"mine"}', label="weights")
    assert same(made, ARRAYS) and tmesh.stats()["copies"] == copies + 4
    assert len({tensor.id for tensor in made.values()}) == 1
    assert all(tensor.sealed for tensor in made.values())
    assert made.metadata == '{"format":"mine"}' and made.nbytes == sum(a.nbytes for a in ARRAYS.values())
    assert isinstance(made, collections.abc.Mapping) and "w" in made and "x" not in made and 5 not in made
    assert made.get("x") is None and len(made) == 5 and repr(made).startswith("<tmesh.Bundle of 5 tensors: w, b")
    assert_refused(lambda: made["x"], KeyError)


def test_open_every_way():
    made = tmesh.bundle(ARRAYS, metadata="ü")
    for ref in (made.ref(), json.dumps(made.ref()), json.dumps(made.ref()).encode(),
                pickle.loads(pickle.dumps(made.ref()))):
        there = tmesh.open(ref)
        assert isinstance(there, tmesh.Bundle) and same(there, ARRAYS) and there.metadata == "ü"
        assert there.id == made.id and there["w"].id == made["w"].id and not there["w"].writable
    assert same(pickle.loads(pickle.dumps(made)), ARRAYS)
    assert isinstance(tmesh.open(made["w"].ref()), tmesh.Tensor)


def test_tensors_go_in_as_they_are():
    w, b = tmesh.put([1.0, 2.0]), tmesh.zeros(3, "bfloat16")
    copies = tmesh.stats()["copies"]
    made = tmesh.bundle({"w": w, "tail": w[1:], "b": b})
    assert tmesh.stats()["copies"] == copies
    assert made["w"].id == w.id == made["tail"].id and made["b"].id == b.id
    assert b.sealed and made["tail"].tolist() == [2.0] and made["b"].dtype == "bfloat16"


def test_a_view_of_a_member_prevents_the_seal():
    t = tmesh.zeros(3, "int32")
    view = tmesh.bundle({"t": t}, seal=False)["t"].numpy()
    assert_refused(t.seal, tmesh.BusyError)
    assert not view.any()


def test_what_cannot_be_sealed_is_refused():
    t = tmesh.zeros(3, "int32")
    view = t.numpy()
    assert_refused(lambda: tmesh.bundle({"t": t}), tmesh.BusyError, "writable views")
    view[0] = 7
    arena = tmesh.Arena()
    assert_refused(lambda: tmesh.bundle({"t": tmesh.put(b"x", arena=arena)}), tmesh.InvalidError, "arena")
    assert tmesh.bundle({"t": t}, seal=False)["t"].tolist() == [7, 0, 0]


def test_release():
    with tmesh.bundle(ARRAYS) as made:
        w = made["w"]
    for use in (lambda: made["w"], made.ref, lambda: made.metadata, lambda: made.nbytes, made.__enter__,
                lambda: pickle.dumps(made)):
        assert_refused(use, tmesh.ReleasedError)
    made.release()
    assert w.tolist() == ARRAYS["w"].tolist() and "w" in made
    live = tmesh.stats()["regions_live"]
    tmesh.bundle(ARRAYS)
    assert tmesh.stats()["regions_live"] == live


@pytest.mark.parametrize("tensors, error", [
    ({5: [1]}, TypeError), ({"a\0b": [1]}, tmesh.InvalidError), ({"a\nb": [1]}, tmesh.InvalidError),
    ({"x" * 5000: [1]}, tmesh.InvalidError), ({"a": "text"}, tmesh.Error), ([("a", [1])], TypeError),
    ({"a": object()}, (TypeError, tmesh.Error)),
])
def test_bad_input(tensors, error):
    assert_refused(lambda: tmesh.bundle(tensors), error)


def test_a_ref_with_what_is_not_json():
    assert_refused(lambda: tmesh.open({**tmesh.bundle(ARRAYS).ref(), "more": object()}), TypeError)


def test_bad_metadata():
    assert_refused(lambda: tmesh.bundle({}, metadata=5), TypeError)
    assert_refused(lambda: tmesh.bundle({}, metadata="a\0b"), tmesh.InvalidError)


def test_hand_over_by_a_socket():
    left, right = socket.socketpair()
    sent = tmesh.bundle({"w": np.arange(6.0).reshape(2, 3), "b": np.arange(3)})
    with left, right:
        sent.send(left.fileno())
        assert tmesh.recv_bundle(right.fileno(), timeout=600)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert_refused(lambda: tmesh.recv_bundle(right, timeout=0.01), tmesh.PeerTimeoutError)
        sent.release()
        assert_refused(lambda: sent.send(left), tmesh.ReleasedError)
    assert_refused(lambda: tmesh.bundle({"x": [1]}).send("x"), TypeError)


def make(number):
    return tmesh.bundle({"x": np.full(1000, number), "y": np.arange(3)})


def test_from_a_pool():
    processes = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes) as pool:
        made = [*pool.map(make, range(3))]
    assert [int(bundle["x"][999]) for bundle in made] == [0, 1, 2] and made[0]["y"].tolist() == [0, 1, 2]


def test_held_until_it_is_taken():
    data = ForkingPickler.dumps(make(5))
    gc.collect()
    assert tmesh.in_transit.here.under_way() == 2
    assert pickle.loads(data)["x"][0].item() == 5 and tmesh.in_transit.here.under_way() == 0


def test_which_one_cannot_be_taken():
    for wrong in np.array([object()]), "text", None:
        with pytest.raises(tmesh.UnsupportedError) as caught:
            tmesh.bundle({"good": np.ones(2), "bad one": wrong})
        assert "'bad one'" in caught.value.__notes__[0]
