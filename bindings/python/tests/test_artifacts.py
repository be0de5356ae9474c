# SPDX-License-Identifier: MIT
"""Finished weights under a fingerprint (tmesh.artifacts), with the real keeper and no engine."""

import errno
import json
import logging
import os
import re
import select
import signal

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually, pytorch
from tmesh import _tmesh, artifacts

any_backend()
pytestmark = pytest.mark.usefixtures("nothing_kept")

KEY = {"model": "tiny", "dtype": "bfloat16", "rank": 0}


def tensors(torch):
    """Return tensors of several kinds: tied, transposed, a part of another, without elements, of few bits."""
    torch.manual_seed(1)
    embedding = torch.randn(10, 6).to(torch.bfloat16)
    large = torch.arange(24.0).reshape(4, 6)
    return {"embed": embedding, "head": embedding, "t": large.t(), "part": large[1:, 2:4], "none": torch.empty(0, 3),
            "scalar": torch.tensor(3.5, dtype=torch.float64), "mask": torch.tensor([True, False]),
            "wide": torch.ones(1, 3).expand(5, 3), "conj": torch.tensor([1 + 2j]).conj(),
            "neg": torch.tensor([1 + 2j]).conj().imag}


def test_tensors_come_back_as_they_were():
    torch = pytorch()
    made = tensors(torch)
    artifact = artifacts.keep(KEY, made, extra={"flags": [1]})
    assert re.fullmatch(r"a\.[a-z2-7]{52}", artifact.name) and [one["name"] for one in tmesh.kept()] == [artifact.name]
    for found in artifact, artifacts.find(dict(reversed(KEY.items()))):
        back = found.tensors()
        assert back.keys() == made.keys() and found.extra == {"flags": [1]} and len(found) == len(made)
        for name, value in made.items():
            assert torch.equal(back[name], value) and back[name].dtype == value.dtype, name
        assert back["t"].stride() == made["t"].stride() and back["wide"].stride() == (0, 1)
        assert back["head"] is back["embed"] and found.aliases == {"head": "embed"}
        # Parts of one storage still are, and it was copied once.
        assert back["part"].data_ptr() - back["t"].data_ptr() == made["part"].data_ptr() - made["t"].data_ptr()
        assert found.nbytes == 9 * 64
    # A write is private to its view.
    back["t"][0, 0] = 99
    assert artifacts.find(KEY).tensors(private=False)["t"][0, 0] == 0 and found.tensors()["t"][0, 0] == 0


class Gpu:
    """Memory of the host in place of a GPU's: float32 counts as there."""

    def __init__(self, torch):
        self.torch = torch

    def has(self, tensor):
        return tensor.dtype == self.torch.float32

    def make(self, nbytes):
        raw = self.torch.empty(nbytes, dtype=self.torch.uint8)
        return raw, raw

    def keep(self, memory, name):
        tmesh.keep(memory.numpy(), name, replace=True)

    def open(self, name):
        return self.torch.from_dlpack(tmesh.open_kept(name).dlpack(allow_readonly=True))


def test_tensors_on_a_gpu_are_kept_there(caplog, monkeypatch):
    """The artifact has the memory that it was made with, or none."""
    torch = pytorch()
    gpu, made, told = Gpu(torch), tensors(torch), []
    artifact = artifacts.keep(KEY, made, gpu=gpu, progress=lambda *how: told.append(how))
    block = "g" + artifact.name[1:]
    assert sorted(one["name"] for one in tmesh.kept()) == [artifact.name, block] and told[-1] == (250, 5 * 64 + 3 * 512)
    entries = json.loads(tmesh.open_kept(artifact.name).metadata)["tensors"].values()
    assert sorted({start - start % 512 for *_, start in (entry[:4] for entry in entries if entry[4:])}) == [0, 512, 1024]
    found = artifacts.find(KEY, gpu=gpu)
    for back in found.tensors(), artifact.tensors():
        for name, value in made.items():
            assert torch.equal(back[name], value) and back[name].dtype == value.dtype and back[name].stride() == value.stride(), name
        assert back["head"] is back["embed"] and found.gpu_bytes == 3 * 512
    assert_refused(artifacts.find(KEY).tensors, tmesh.InvalidError, "has tensors on a GPU: open it with gpu")
    # Another one of the same fingerprint brings memory of its own.
    changed = artifacts.keep(KEY, {**made, "t": made["t"] + 1}, gpu=gpu)
    assert artifacts.find(KEY, gpu=gpu).tensors()["t"][0, 0] == 1 and found.tensors()["t"][0, 0] == 0
    with caplog.at_level(logging.WARNING):
        gpu.keep(torch.zeros(changed.gpu_bytes + 32, dtype=torch.uint8), block)
        assert artifacts.find(KEY, gpu=gpu) is None and f"the memory kept as {block} is that of another artifact; it counts as a miss" in caplog.text
        tmesh.drop(block)
        assert artifacts.find(KEY, gpu=gpu) is None and f"its GPU memory, {block}, was dropped; it counts as a miss" in caplog.text
    tmesh.drop(artifact.name)

    def full(*_, **__):
        raise tmesh.LimitError(28, "full")

    # Without the manifest no memory stays.
    monkeypatch.setattr(artifacts, "_keep", full)
    assert_refused(lambda: artifacts.keep(KEY, made, gpu=gpu), tmesh.LimitError, "full")
    assert not tmesh.kept()


def test_any_other_fingerprint_is_a_miss():
    torch = pytorch()
    artifacts.keep(KEY, {"w": torch.ones(2)})
    for other in ({**KEY, "rank": 1}, {**KEY, "rank": "0"}, {**KEY, "rank": 0.0}, {**KEY, "more": None}, {"model": "tiny"}, {}):
        assert artifacts.find(other) is None
    assert artifacts.find(KEY)
    for bad in ({"x": object()}, {"x": float("nan")}, {"x": b"y"}):
        assert_refused(lambda: artifacts.name_of(bad), tmesh.InvalidError, "plain JSON")


def manifest(**changed):
    good = {"format": 1, "fingerprint": KEY, "tensors": {"w": ["float32", [2, 3], [3, 1], 0]}, "aliases": {}, "extra": None}
    return json.dumps({**good, **changed})


def tensor(*entry):
    return manifest(tensors={"w": list(entry)})


BAD = {
    "no JSON": "{", "no dict": "[]", "another format": manifest(format=2), "another fingerprint": manifest(fingerprint={}),
    "no tensors": manifest(tensors=None), "no aliases": manifest(aliases=[]), "a short entry": tensor("float32", [2, 3], [3, 1]),
    "no list": manifest(tensors={"w": "float32"}), "a shape that does not fit": tensor("float32", [6, 3], [3, 1], 0),
    "a stride that does not fit": tensor("float32", [2, 3], [60, 1], 0), "an offset behind the end": tensor("float32", [2, 3], [3, 1], 44),
    "a huge offset": tensor("float32", [2, 3], [3, 1], 1 << 63), "a negative offset": tensor("float32", [2, 3], [3, 1], -4),
    "a negative stride": tensor("float32", [2, 3], [-3, 1], 0), "an odd offset": tensor("float32", [1], [1], 2),
    "a product that overflows": tensor("float32", [1 << 40, 1 << 40], [1 << 40, 1], 0), "a truth value": tensor("float32", [True], [1], 0),
    "no type": tensor("system", [1], [1], 0), "no type's name": tensor(5, [1], [1], 0), "a module": tensor("nn", [1], [1], 0),
    "another device": tensor("float32", [2, 3], [3, 1], 0, "cpu"), "a GPU without memory": tensor("float32", [2, 3], [3, 1], 0, "gpu"),
    "a GPU of negative size": manifest(gpu_bytes=-1), "a GPU's memory behind the end": manifest(
        tensors={"w": ["float32", [2, 3], [3, 1], 44, "gpu"]}, gpu_bytes=64, gpu_mark=""),
    "few strides": tensor("float32", [2, 3], [1], 0), "a stray alias": manifest(aliases={"x": "y"}),
    "an alias of itself": manifest(aliases={"w": "w"}),
    "an alias of a list": manifest(aliases={"x": []}), "an alias of a number": manifest(aliases={"x": 1}),
    "nesting without end": "[" * 100000, "nesting inside": manifest(extra=0)[:-2] + "[" * 100000,
    "more elements than there are numbers": tensor("float32", [1 << 59, 1 << 59], [0, 0], 0),
    "no elements of a shape that overflows": tensor("float32", [0, 1 << 59, 1 << 59], [1, 1, 1], 0),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_manifest_is_a_miss(what, caplog):
    pytorch()
    name = artifacts.name_of(KEY)
    tmesh.keep(tmesh.bundle({"data": tmesh.put(b"\0" * 64)}, metadata=BAD[what]), name)
    with caplog.at_level(logging.WARNING):
        assert artifacts.find(KEY) is None
    assert name in caplog.text and "counts as a miss" in caplog.text and f"tmeshctl drop {name}" in caplog.text


def test_a_keeper_that_does_not_answer_is_no_reason_to_drop(monkeypatch, caplog):
    pytorch()

    def fails(name):
        raise tmesh.PeerTimeoutError(errno.ETIMEDOUT, "the keeper does not answer")

    monkeypatch.setattr(artifacts, "open_kept", fails)
    assert artifacts.find(KEY) is None
    assert "does not answer; it counts as a miss" in caplog.text and "tmeshctl drop" not in caplog.text


def test_other_memory_of_that_name_is_a_miss_and_is_replaced():
    torch = pytorch()
    name = artifacts.name_of(KEY)
    for wrong in (tmesh.put(b"x" * 64), tmesh.bundle({"other": tmesh.put(b"x" * 64)}, metadata=manifest()),
                  tmesh.bundle({"data": tmesh.put([1.0] * 8)}, metadata=manifest()), tmesh.bundle({}, metadata=manifest())):
        tmesh.keep(wrong, name, replace=True)
        assert artifacts.find(KEY) is None
    artifacts.keep(KEY, {"w": torch.ones(2)})
    assert artifacts.find(KEY).tensors()["w"].tolist() == [1, 1]


def test_tensors_that_cannot_be_kept():
    torch = pytorch()
    for bad in (torch.empty(2, device="meta"), torch.ones(2).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)):
        with pytest.raises(tmesh.InvalidError, match="the tensor 'w' is .* copy it to a plain tensor of the CPU"):
            artifacts.keep(KEY, {"v": torch.ones(2), "w": bad})
    assert_refused(lambda: artifacts.keep(KEY, {}, extra=object()), tmesh.InvalidError, "extra is no plain JSON")
    assert not tmesh.kept()


def files():
    folder = _tmesh.runtime_dir()
    try:
        return [name for name in os.listdir(folder) if name.startswith("artifact-")]
    finally:
        os.close(folder)


LOADER = """
import sys, torch
from tmesh import artifacts
def make(tell):
    tell(10, 40)
    print("making", flush=True)
    sys.stdin.readline()
    return artifacts.keep({0!r}, {{"w": torch.full((3,), float(sys.argv[1]))}})
seen = []

def show(done, total, other):
    if other and total and not seen:
        seen.append(done)
        print(done, total, flush=True)

found = artifacts.obtain({0!r}, make, progress=show)
print(found.made, found.artifact.tensors()["w"].tolist(), flush=True)
""".format(KEY)


def test_one_loads_and_the_others_wait(peer):
    """A waiting process sees the progress. It takes over from one that was killed, and nothing half made is seen."""
    pytorch()
    first = peer(LOADER, "1")
    assert first.stdout.readline() == "making\n"
    others = [peer(LOADER, number) for number in "23"]
    assert [one.stdout.readline() for one in others] == ["10 40\n"] * 2
    assert len(files()) == 1
    first.kill()
    first.wait()
    assert artifacts.find(KEY) is None
    # One of the two makes it now; the pipe of the other one stays empty until that has happened.
    ready, _, _ = select.select([one.stdout for one in others], [], [], 600)
    maker = next(one for one in others if one.stdout is ready[0])
    other = others[1 - others.index(maker)]
    assert maker.stdout.readline() == "making\n"
    maker.stdin.write("go\n")
    maker.stdin.flush()
    made = maker.stdout.readline()
    number = float(2 + others.index(maker))
    assert made == f"True {[number] * 3}\n"
    assert other.stdout.readline() == f"False {[number] * 3}\n"
    eventually(lambda: not files())


def test_a_stopped_process_is_not_waited_for_for_ever(peer):
    pytorch()
    first = peer(LOADER, "1")
    assert first.stdout.readline() == "making\n"
    os.kill(first.pid, signal.SIGSTOP)
    found = artifacts.obtain(KEY, lambda tell: pytest.fail("it has no turn"), timeout=.1)
    assert found.artifact is None and not found.made and f"process {first.pid}" in found.reason and "let it go on" in found.reason
    os.kill(first.pid, signal.SIGCONT)
    first.stdin.write("go\n")
    first.stdin.flush()
    assert first.stdout.readline() == "True [1.0, 1.0, 1.0]\n"
    assert artifacts.obtain(KEY, None).artifact.tensors()["w"][0] == 1


def test_a_load_that_fails_or_cannot_be_shared():
    """Its error comes through, the turn ends, and the next one loads."""
    torch = pytorch()
    assert_refused(lambda: artifacts.obtain(KEY, lambda tell: 1 // 0), ZeroDivisionError)
    found = artifacts.obtain(KEY, lambda tell: None)
    assert found.artifact is None and found.made and found.reason
    heard = []
    found = artifacts.obtain(KEY, lambda tell: artifacts.keep(KEY, {"w": torch.ones(4)}, progress=tell), progress=lambda *how: heard.append(how))
    assert found.made and heard == [(16, 64, False)] and not files()


def test_a_forked_child_does_not_keep_the_turn():
    pytorch()

    def make(tell):
        held, end = os.pipe()
        child = os.fork()
        if not child:
            os.read(held, 1)
            os._exit(0)
        os.close(held)
        return (child, end)

    found = artifacts.obtain(KEY, make)
    child, end = found.artifact
    try:
        assert artifacts.obtain(KEY, lambda tell: None, timeout=600).made
    finally:
        os.close(end)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
