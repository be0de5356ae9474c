# SPDX-License-Identifier: MIT
"""Offers of tmesh.nixl and tmesh.mooncake, and hostile ones that they must refuse. test_net.py runs the engines."""

import json
import warnings

import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused
from tmesh.offers import MAX_OFFER, Offer, Place
from tmesh.interop import warn_of_another

pytestmark = ANY_BACKEND

OFFER = Offer("nixl", "there", b"\0m", (Place(4096, 64, "float32", (4, 4), True), Place(1 << 62, 1, "bool", (), False)))


def test_an_offer_as_bytes():
    assert Offer.from_bytes(OFFER.to_bytes(), "nixl") == OFFER


def changed(**members):
    told = json.loads(OFFER.to_bytes())
    told["places"][0].update(members)
    return json.dumps(told).encode()


@pytest.mark.parametrize("data", [
    b"", b"[]", b"null", b"{}", b"\xff", b"[" * 5000, OFFER.to_bytes() + b" " * MAX_OFFER,
    OFFER.to_bytes().replace(b'"v": 1', b'"v": 2'),
    OFFER.to_bytes().replace(b'"nixl"', b'"other"'),
    OFFER.to_bytes().replace(b'"there"', b'""'),
    OFFER.to_bytes().replace(b'"there"', b"7"),
    OFFER.to_bytes().replace(b'"AG0="', b'"?"'),
    OFFER.to_bytes().replace(b'"AG0="', b"[]"),
    Offer("nixl", "there", b"", ()).to_bytes(),
    Offer("nixl", "there", b"", (OFFER.places[0],) * 4097).to_bytes(),
    changed(address=0), changed(address=-4096), changed(address=1 << 63), changed(address=(1 << 63) - 1), changed(address=1.5),
    changed(address=True), changed(byte_size=0), changed(byte_size=-1), changed(byte_size="64"), changed(dtype=4),
    changed(writable=1), changed(shape=[-1, -4]), changed(shape=[1 << 40, 1 << 40]), changed(shape=[0, 1 << 63]), changed(byte_size=0, shape=[0]), changed(shape=[1] * 9), changed(shape=None),
], ids=lambda data: f"{len(data)} bytes")
def test_what_is_no_offer(data):
    assert_refused(lambda: Offer.from_bytes(data, "nixl"), tmesh.ProtocolError, "this is not an offer")


def test_another_version_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_another("pytest", pytest.__version__)
        with pytest.raises(RuntimeWarning, match=r"tried with pytest 0\.1.*pip install pytest==0\.1"):
            warn_of_another("pytest", "0.1")
        with pytest.raises(RuntimeWarning, match="of an unknown version"):
            warn_of_another("no-such-package-of-tmesh", "0.1")
