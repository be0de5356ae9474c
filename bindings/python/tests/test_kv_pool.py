# SPDX-License-Identifier: MIT
"""A pool of blocks of a KV cache (tmesh.kv_pool), with the real keeper and no engine."""

import errno
import os
import signal
import threading

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually, pytorch
from test_process import in_fork
from tmesh import kv_pool
from tmesh.kv_pool import Pool
from tmesh.tenant import read_key

any_backend()
pytestmark = pytest.mark.usefixtures("nothing_kept")

KEY = b"k" * 32


@pytest.fixture
def pool():
    made = []

    def make(key=KEY, space=b"model", **more):
        made.append(Pool(key, space, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def block(torch, number, layers=3):
    """Return the layers of a block, which are parts of larger tensors, as in an engine."""
    return [torch.full((2, 4, 8), number + layer / 8).transpose(0, 1) for layer in range(layers)]


def found(pool, names):
    result = pool.find(names)
    assert result.wait(600)
    return result


def read(pool, jobs):
    counts = []
    pool.read(jobs, counts.append)
    eventually(lambda: counts)
    return counts[0]


def stored(pool, torch, numbers):
    for number in numbers:
        assert pool.put(pool.name(bytes([number])), block(torch, number))
    pool.flush()


def names(pool, numbers):
    return [pool.name(bytes([number])) for number in numbers]


def test_another_engine_finds_what_one_has_stored(pool):
    torch = pytorch()
    first, second = pool(), pool()
    stored(first, torch, range(5))
    assert first.counts["stored"] == 5 and len(tmesh.kept()) == 5
    result = found(second, names(second, range(8)))
    assert len(result.tensors) == 5 and second.counts["found"] == 5
    into = [[torch.zeros(4, 2, 8) for _ in range(3)] for _ in range(5)]
    assert read(second, list(zip(names(second, range(5)), into))) == 5
    for number, layers in enumerate(into):
        assert all(torch.equal(one, other) for one, other in zip(layers, block(torch, number)))
    # The longest run counts, not single blocks.
    tmesh.drop(second.name(b"\2"))
    result.release()
    assert len(found(second, names(second, range(5))).tensors) == 2 and not found(second, names(second, [2, 3])).tensors
    # A block that another engine has dropped is stored again after a search for it.
    assert not found(first, names(first, [2])).tensors
    stored(first, torch, [2])
    assert len(found(second, names(second, range(5))).tensors) == 5
    tmesh.drop(second.name(b"\2"))
    # Known blocks are not copied again, and a third engine that does not know them stores nothing twice.
    assert not first.put(first.name(b"\0"), block(torch, 0))
    third = pool()
    stored(third, torch, [0])
    assert third.counts["stored"] == 0 and len(tmesh.kept()) == 4


def test_other_keys_and_spaces_find_nothing(pool):
    torch = pytorch()
    mine = pool()
    stored(mine, torch, [1])
    for other in pool(key=b"x" * 32), pool(space=b"another model"), pool(space=b""):
        assert not found(other, names(other, [1])).tensors
    assert mine.name(b"\1") != mine.name(b"\1", 1)
    old = mine.name(b"\1")
    mine.change_space(b"newer weights")
    assert mine.name(b"\1") != old and not found(mine, names(mine, [1])).tensors
    # Bytes cannot be moved between parts of a name, and each name can be kept.
    many = {pool(space=space).name(block_hash, part) for space, block_hash, part in (
        (b"", b"ab", 0), (b"a", b"b", 0), (b"ab", b"", 0), (b"", b"ab0", 0), (b"", b"a" * 100000, 0), (b"", b"/../\0\n", 0), (b"", b"ab", -1))}
    assert len(many) == 7 and all(len(name) <= 63 and name.isascii() and "/" not in name for name in many)


def test_blocks_in_parts(pool):
    """A block counts if the parts of all ranks are there."""
    torch = pytorch()
    one = pool()
    parts = [[one.name(bytes([number]), rank) for rank in range(2)] for number in range(3)]
    for name in parts[0] + parts[1][:1] + parts[2]:
        one.put(name, block(torch, 1))
    one.flush()
    assert len(found(one, parts).tensors) == 2


def test_wrong_memory_of_a_name_is_not_read(pool):
    """Memory of another length, other kinds of memory, and blocks that are gone end the run, and leave what follows untouched."""
    torch = pytorch()
    one = pool()
    stored(one, torch, [0, 4])
    wrong = names(one, [1, 2])
    tmesh.keep(tmesh.put(b"x" * 100), wrong[0])
    tmesh.keep(tmesh.bundle({"a": tmesh.put(b"x" * 100)}), wrong[1])
    for name in wrong + names(one, [3]):
        into = [[torch.zeros(4, 2, 8) for _ in range(3)] for _ in range(3)]
        assert read(one, list(zip([one.name(b"\0"), name, one.name(b"\4")], into))) == 1
        assert into[0][1].any() and not any(layer.any() for layers in into[1:] for layer in layers)
    assert one.counts["lost"] == 3 and not found(one, wrong[1:]).tensors


def test_the_limit(pool):
    """The longest unused blocks go; blocks that a search holds stay."""
    torch = pytorch()
    one = pool(max_bytes=8 * 3 * 4096)
    stored(one, torch, range(8))
    held = found(one, names(one, [0, 1]))
    assert len(held.tensors) == 2
    stored(one, torch, range(8, 12))
    there = {entry["name"] for entry in one.blocks()}
    assert len(there) <= 8 and {*names(one, [0, 1, 11])} <= there and one.counts["evicted"] >= 4
    assert sum(entry["bytes"] for entry in one.blocks()) <= 8 * 3 * 4096
    # An evicted block can be stored again.
    gone = next(number for number in range(2, 8) if one.name(bytes([number])) not in there)
    stored(one, torch, [gone])
    assert one.name(bytes([gone])) in {entry["name"] for entry in one.blocks()}


def test_a_full_pool_stores_nothing_and_says_so_once(pool, caplog):
    torch = pytorch()
    one = pool(max_bytes=2 * 3 * 4096)
    stored(one, torch, [0, 1])
    held = found(one, names(one, [0, 1]))
    for number in 2, 3:
        one.put(one.name(bytes([number])), block(torch, number))
        one.flush()
    assert len(held.tensors) == 2 and one.counts["errors"] == 2 and not one.paused()
    assert caplog.text.count("storing a block of a KV cache") == 1 and "max_bytes" in caplog.text
    held.release()
    # The keeper learns of it a moment later.
    eventually(lambda: not any(entry["held"] for entry in one.blocks()))
    stored(one, torch, [4])
    assert one.counts["stored"] == 3
    # A block that is larger than the limit.
    one.put(one.name(b"large"), [torch.zeros(1 << 15)])
    one.flush()
    assert one.counts["errors"] == 3
    for bad in 0, -1, "8", True, 1.5:
        assert_refused(lambda: Pool(KEY, b"", max_bytes=bad), tmesh.InvalidError, "max_bytes is")


def test_errors_pause_the_pool(pool, monkeypatch, caplog):
    """If the keeper does not answer, the engine goes on, and the pool tries again after a while."""
    torch = pytorch()
    one = pool()
    stored(one, torch, [0])

    def fails(*_, **__):
        raise tmesh.PeerTimeoutError(errno.ETIMEDOUT, "the keeper does not answer")

    monkeypatch.setattr(kv_pool, "open_kept", fails)
    assert not found(one, names(one, [0])).tensors
    assert one.paused() and "goes on without shared blocks" in caplog.text and "does not answer" in caplog.text
    monkeypatch.undo()
    assert not found(one, names(one, [0])).tensors and not one.put(one.name(b"\1"), block(torch, 1))
    assert one.counts["skipped"] == 1 and one.counts["dropped"] == 1
    one._paused = 0.0
    assert len(found(one, names(one, [0])).tensors) == 1
    monkeypatch.setattr(kv_pool, "keep", fails)
    one.put(one.name(b"\2"), block(torch, 2))
    one.flush()
    assert one.paused()
    one._paused = 0.0
    monkeypatch.undo()
    stored(one, torch, [2])


def test_a_block_that_cannot_be_copied_does_not_count_as_waiting(pool, caplog):
    torch = pytorch()
    one = pool()
    assert not one.put(one.name(b"\0"), [object()]) and one._waiting == 0
    assert one.paused() and "storing a block of a KV cache" in caplog.text
    one._paused = 0.0
    stored(one, torch, [0])


def test_a_slow_keeper_delays_no_call(pool, monkeypatch):
    """Copied blocks wait for the keeper up to a number; further ones are not stored."""
    torch = pytorch()
    one = pool()
    go = threading.Event()
    keep = kv_pool.keep
    monkeypatch.setattr(kv_pool, "keep", lambda *args: go.wait(600) and keep(*args))
    taken = [one.put(one.name(number.to_bytes(2, "big")), block(torch, 0)) for number in range(kv_pool._WAITING + 5)]
    assert sum(taken) == kv_pool._WAITING and not any(taken[kv_pool._WAITING:]) and one.counts["dropped"] == 5
    go.set()
    one.flush()
    assert len(tmesh.kept()) == kv_pool._WAITING


def test_a_thread_copies(pool, monkeypatch):
    """store() reports how many blocks are there afterwards, also those that another call has stored."""
    torch = pytorch()
    one = pool()

    def store(*numbers):
        counts = []
        one.store([(one.name(bytes([number])), block(torch, number)) for number in numbers], counts.append)
        one.flush()
        return counts

    assert store(0, 1) == [2] and store(1, 2) == [2] and store() == [0] and one.counts["stored"] == 3
    into = [torch.zeros(4, 2, 8) for _ in range(3)]
    assert read(one, [(one.name(b"\2"), into)]) == 1 and torch.equal(into[1], block(torch, 2)[1])

    def fails(*_, **__):
        raise tmesh.LimitError(errno.EDQUOT, "full")

    monkeypatch.setattr(kv_pool, "keep", fails)
    assert store(0, 3, 1, 4) == [2] and not one.paused()
    monkeypatch.setattr(kv_pool, "_copy_in", fails)
    assert store(0, 5, 1) == [2]
    monkeypatch.undo()
    assert store(3, 4, 5) == [3] and one._waiting == 0


class Device:
    """A GPU's module of PyTorch, such as torch.cuda, for tensors that are the host's. It notes what streams do."""

    def __init__(self):
        self.type, self.notes = "stand_in", []

    def current_stream(self, device):
        assert device is self
        return self

    def record_event(self):
        self.notes.append("record")
        return "event"

    def wait_event(self, event):
        self.notes.append(f"wait for {event}")

    def synchronize(self):
        self.notes.append("synchronize")


class OnDevice:
    """A tensor of such a GPU."""

    def __init__(self, tensor, device):
        self.tensor, self.device = tensor, device

    def numel(self):
        return self.tensor.numel()

    def element_size(self):
        return self.tensor.element_size()

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    def copy_(self, other):
        self.device.notes.append("copy")
        self.tensor.copy_(other)


def test_blocks_on_a_gpu_are_there_when_done_is_called(pool, monkeypatch):
    """Copies begin after the work so far of the caller's stream, and their end is waited for."""
    torch = pytorch()
    one, device = pool(), Device()
    monkeypatch.setattr(torch, "stand_in", device, raising=False)
    stored(one, torch, [0])
    into = [OnDevice(torch.zeros(4, 2, 8), device) for _ in range(3)]
    one.read([(one.name(b"\0"), into)], lambda count: device.notes.append(f"done {count}"))
    one.flush()
    assert device.notes == ["record", "wait for event", "copy", "copy", "copy", "synchronize", "done 1"]
    assert torch.equal(into[2].tensor, block(torch, 0)[2])


def test_a_released_search_ends(pool, monkeypatch):
    torch = pytorch()
    one = pool()
    stored(one, torch, range(3))
    opened = kv_pool.open_kept
    asked = []
    result = None

    def slow(name):
        asked.append(name)
        eventually(lambda: result is not None)
        result.release()
        return opened(name)

    monkeypatch.setattr(kv_pool, "open_kept", slow)
    result = one.find(names(one, range(3)))
    assert result.wait(600) and not result.tensors and len(asked) == 1


WRITER = """
import sys, torch
from tmesh.kv_pool import Pool

pool = Pool(b"k" * 32, b"model")
print("ready", flush=True)
number = 0

while True:
    value = (number * 7) % 50
    pool.put(pool.name(bytes([value])), [torch.full((4096,), float(value))])
    number += 1
"""


def test_engines_are_killed_while_they_store(pool, peer):
    """Blocks of dead engines stay usable, and each is whole."""
    torch = pytorch()
    one = pool()
    for seen in 3, 12, 25:
        writers = [peer(WRITER) for _ in range(2)]
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
        eventually(lambda: len(tmesh.kept()) >= seen)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        there = [value for value in range(50) if found(one, names(one, [value])).tensors]
        assert len(there) >= seen
        for value in there:
            into = torch.zeros(4096)
            assert read(one, [(one.name(bytes([value])), [into])]) == 1 and (into == value).all()


def test_a_closed_pool_does_nothing():
    torch = pytorch()
    one = Pool(KEY, b"")
    one.put(one.name(b"x"), block(torch, 0))
    one.close()
    assert len(tmesh.kept()) == 1
    assert not one.put(one.name(b"y"), block(torch, 0)) and not found(one, names(one, [0])).tensors
    counts = []
    one.read([(one.name(b"x"), block(torch, 0))], counts.append)
    assert counts == [0]


def test_a_forked_child(pool, monkeypatch):
    """It has no thread of its parent's pool, and may be forked while one has a lock. It makes a pool of its own."""
    torch = pytorch()
    one, go, opened = pool(), threading.Event(), kv_pool.open_kept
    stored(one, torch, range(2))
    ended = found(one, names(one, [0]))
    monkeypatch.setattr(kv_pool, "open_kept", lambda name: go.wait(600) and opened(name))
    begun = one.find(names(one, [1]))

    def check():
        name, rows = one.name(b"\2"), block(torch, 2)
        for use in (lambda: one.find([name]), lambda: one.put(name, rows), lambda: one.put_rows([(name, 0)], rows), lambda: one.read([(name, rows)], print),
                    lambda: one.store([(name, rows)], print), lambda: one.change_space(b""), one.flush):
            assert_refused(use, tmesh.AccessError, "this pool is the parent's: a forked child makes a pool of its own")
        for use in begun.done, begun.wait:
            assert_refused(use, tmesh.AccessError, "this search is the parent's")
        assert ended.done() and ended.wait() and ended.tensors[0].nbytes == 3 * 2 * 4 * 8 * 4
        for each in ended, begun:
            each.release()
        one.close()
        monkeypatch.undo()
        mine = pool()
        stored(mine, torch, [2])
        assert len(found(mine, names(mine, range(3))).tensors) == 3
        mine.close()

    with one._lock:
        word = in_fork(check)
    go.set()
    assert word == "fine" and begun.wait(600)
    assert len(begun.tensors) == len(ended.tensors) == 1 and len(found(one, names(one, range(3))).tensors) == 3
    one.flush()


def test_bad_key_files(tmp_path):
    path = str(tmp_path / "key")
    key = read_key(path)
    assert len(key) == 32 and read_key(path) == key and os.stat(path).st_mode & 0o777 == 0o600
    os.chmod(path, 0o640)
    assert_refused(lambda: read_key(path), tmesh.AccessError, "chmod 600")
    os.chmod(path, 0o600)
    os.truncate(path, 31)
    assert_refused(lambda: read_key(path), tmesh.InvalidError, "has 32 bytes")
    assert_refused(lambda: read_key(str(tmp_path / "none" / "key")), tmesh.NotFoundError, "Its folder has to be there")
