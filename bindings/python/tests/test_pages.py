# SPDX-License-Identifier: MIT
"""Pages and sequences: a KV cache that processes share."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import collide

import tmesh
from tmesh import _tmesh

pytestmark = pytest.mark.skipif(not hasattr(_tmesh, "PagesHandle"), reason="built without libtmesh-model")

PATIENCE = 60
BYTES, TOKENS = 4096, 16


@pytest.fixture
def pool():
    with tmesh.PagePool(page_bytes=BYTES, page_tokens=TOKENS, slab_pages=16, max_pages=64) as pool:
        yield pool
    gc.collect()


@pytest.fixture
def pages(pool):
    with tmesh.Pages.open(pool.tenant()) as pages:
        yield pages
    gc.collect()


def filled(pages, blocks):
    sequence = pages.sequence()
    sequence.append(blocks * TOKENS)
    for block in range(blocks):
        sequence.page(block, writable=True)[:] = block + 1
    return sequence


def test_a_sequence(pool, pages):
    assert pages.info()["page_bytes"] == BYTES and pages.info()["page_tokens"] == TOKENS
    sequence = pages.sequence()
    assert (sequence.tokens, len(sequence), bool(sequence)) == (0, 0, True) and len(sequence.block_table()) == 0
    sequence.append(40)
    table = sequence.block_table()
    assert table.dtype == np.int32 and table.shape == (3,) and len(set(table)) == 3
    assert pages.info()["held"] == 3 and sequence.tokens == 40 and repr(sequence) == "<tmesh.Sequence of 40 tokens>"
    mapping = sequence.slot_mapping()
    assert mapping.dtype == np.int64 and mapping.tolist() == [table[t // 16] * 16 + t % 16 for t in range(40)]
    assert sequence.slot_mapping(38).tolist() == mapping[38:].tolist()
    assert sequence.slot_mapping(3, 2).tolist() == mapping[3:5].tolist()
    sequence.truncate(17)
    assert sequence.block_table().tolist() == table[:2].tolist() and pages.info()["held"] == 2
    sequence.release()
    sequence.release()
    assert pages.info()["held"] == 0 and sequence.released and pages.head(0) == (0, 0)


def test_memory(pages):
    sequence = filled(pages, 3)
    table = sequence.block_table()
    page = sequence.page(1)
    assert page.dtype == np.uint8 and page.shape == (BYTES,) and not page.flags.writeable and np.all(page == 2)
    assert page.ctypes.data == pages.base() + int(table[1]) * BYTES
    view = sequence.view(100)
    assert view.shape == (3, BYTES) and not view.flags.writeable and view[:, 0].tolist() == [1, 2, 3]
    sequence.append(TOKENS)
    sequence.page(3, writable=True)[5] = 9
    longer = sequence.view(100)
    assert longer.shape == (4, BYTES) and longer.ctypes.data == view.ctypes.data and longer[3, 5] == 9
    # The memory lives with the array.
    del sequence, page, longer
    gc.collect()
    assert view[2, BYTES - 1] == 3 and pages.info()["held"] == 4
    del view
    gc.collect()
    assert pages.info()["held"] == 0


def test_a_fork_copies_what_is_written(pages):
    one = filled(pages, 2)
    other = one.fork()
    assert other.block_table().tolist() == one.block_table().tolist() and other.id != one.id
    assert pages.info()["held"] == 2
    other.page(0, writable=True)[:] = 77
    assert pages.info()["copies"] == 1 and pages.info()["bytes_copied"] == BYTES
    assert one.page(0)[0] == 1 and other.page(0)[0] == 77 and other.page(1)[0] == 2
    assert one.block_table()[1] == other.block_table()[1] and one.block_table()[0] != other.block_table()[0]


def test_tables(pages):
    one, two = filled(pages, 3), filled(pages, 1)
    two.append(1)
    tables, lengths = pages.tables([one, two, pages.sequence()])
    assert (tables.dtype, lengths.dtype) == (np.int32, np.int32) and tables.flags.c_contiguous
    assert tables.tolist() == [one.block_table().tolist(), [*two.block_table().tolist(), 0], [0, 0, 0]]
    assert lengths.tolist() == [48, 17, 0]
    assert pages.tables([one], width=5)[0].tolist() == [[*one.block_table().tolist(), 0, 0]]
    assert pages.tables([])[0].shape == (0, 0)
    with pytest.raises(tmesh.InvalidError, match="width"):
        pages.tables([one], width=2)


def test_as_a_kernel_uses_them(pages):
    """Attention over the pages, gathered by the table, is that over the view."""
    sequence = pages.sequence()
    sequence.append(40)
    random = np.random.default_rng(1)
    for block in range(3):
        sequence.page(block, writable=True)[:] = random.standard_normal(BYTES // 4).astype("float32").view("uint8")
    tables, lengths = pages.tables([sequence])
    dim = BYTES // 4 // TOKENS
    keys = np.concatenate([sequence.page(block).view("float32").reshape(TOKENS, dim) for block in range(tables.shape[1])])
    flat = sequence.view(64).view("float32").reshape(-1, dim)
    assert np.array_equal(keys[:lengths[0]], flat[:lengths[0]])


def test_prefixes(pool):
    token = pool.tenant()
    with tmesh.Pages.open(token) as pages, tmesh.Pages.open(token) as friend, tmesh.Pages.open(pool.tenant()) as stranger:
        sequence, hashes, parent = filled(pages, 3), [], None
        for block in range(3):
            parent = pages.hash(range(block * TOKENS, (block + 1) * TOKENS), parent)
            hashes.append(parent)
        assert len(set(hashes)) == 3 and all(len(one) == 16 for one in hashes)
        assert friend.hash(range(TOKENS)) == hashes[0] != stranger.hash(range(TOKENS))
        sequence.cache(hashes[:2])
        found = friend.find(hashes)
        assert found.tokens == 32 and found.block_table().tolist() == sequence.block_table()[:2].tolist()
        assert found.page(1)[0] == 2 and stranger.find(hashes).tokens == 0
        sequence.release()
        found.release()
        assert friend.find(hashes).tokens == 32     # cached, held by nobody
        with pytest.raises(tmesh.InvalidError):
            filled(friend, 1).cache(hashes[:2])
    gc.collect()


def test_a_tenant_has_its_limit(pool):
    with tmesh.Pages.open(pool.tenant(16)) as pages:
        sequence = pages.sequence()
        sequence.append(16 * TOKENS)
        with pytest.raises(tmesh.LimitError):
            sequence.append(1)
        sequence.truncate(8)
        sequence.append(1)
        sequence.release()


PEER = """
import os, sys, signal, tmesh
pages = tmesh.Pages.open(sys.argv[1])
for line in sys.stdin:
    what = line.split()
    if what[0] == "take":
        sequence = pages.take(what[1])
        print(sequence.tokens, *sequence.view(100)[:, 0].tolist(), flush=True)
    elif what[0] == "make":
        sequence = pages.sequence()
        sequence.append(64)
        sequence.page(0, writable=True)[:] = 5
        print(sequence.share(), flush=True)
"""


def test_other_processes(pool, pages, peer):
    token = pool.tenant()
    with tmesh.Pages.open(token) as mine:
        other = peer(PEER, token)
        sequence = filled(mine, 2)
        ticket = sequence.share()
        print("take", ticket, file=other.stdin, flush=True)
        assert other.stdout.readline().split() == ["32", "1", "2"]
        mine.unshare(ticket)
        with pytest.raises(tmesh.NotFoundError):
            mine.take(ticket)
        print("make", file=other.stdin, flush=True)
        there = mine.take(other.stdout.readline().strip())
        assert there.tokens == 64 and there.page(0)[0] == 5
        # A killed process's pages come back, but for those that others hold.
        died = pool.info()["died"]
        other.send_signal(signal.SIGKILL)
        other.wait()
        end = time.monotonic() + PATIENCE
        while pool.info()["died"] == died:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert pool.info()["reclaimed"] > 0 and there.page(0)[0] == 5 and sequence.page(1)[0] == 2
        with pytest.raises(tmesh.NotFoundError):
            tmesh.Pages.open(token).take(ticket)
        del there, sequence


def test_arrays_hold_pages(pages):
    sequence = filled(pages, 2)
    read = sequence.page(0)
    for use in (lambda: sequence.truncate(0), sequence.release, sequence.__exit__):
        with pytest.raises(tmesh.BusyError, match="arrays"):
            use()
    other = sequence.fork()                     # reading does no harm to it
    sequence.append(1)
    del read
    other.release()
    write = sequence.page(0, writable=True)
    for use in (sequence.fork, sequence.share, lambda: sequence.cache([])):
        with pytest.raises(tmesh.BusyError, match="writable"):
            use()
    write[:] = 3
    del write
    with sequence.fork() as other:
        assert other.page(0)[0] == 3
    sequence.truncate(0)


def test_two_threads_on_one_sequence(pages):
    sequence = filled(pages, 2)
    # A call that waits for the owner's answer.
    assert "one at a time" in collide(lambda: pages.unshare(sequence.share()))
    assert sequence.tokens == 2 * TOKENS


def test_one_thread_at_a_time(pages):
    """Threads with sequences of their own do not meet."""
    wrong = []

    def run(number):
        for _ in range(20):
            with pages.sequence() as sequence:
                sequence.append(3 * TOKENS)
                for block in range(3):
                    sequence.page(block, writable=True)[:] = number
                if not np.all(sequence.view(64) == number):
                    wrong.append(number)

    threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong and pages.info()["held"] == 0


def test_use_after_close(pool):
    pages = tmesh.Pages.open(pool.tenant())
    sequence = filled(pages, 1)
    pages.close()
    pages.close()
    for use in (pages.info, pages.sequence, pages.trim, pages.base, lambda: pages.head(0), lambda: pages.find([]),
                lambda: pages.hash([1]), lambda: pages.take("x"), lambda: pages.unshare("x"), pages.__enter__):
        with pytest.raises(tmesh.ReleasedError):
            use()
    assert sequence.page(0)[0] == 1 and "closed" in repr(pages)
    sequence.append(1)
    sequence.release()
    for use in (lambda: sequence.tokens, lambda: sequence.id, lambda: sequence.append(1), lambda: sequence.truncate(0),
                sequence.fork, sequence.share, sequence.block_table, lambda: sequence.page(0), lambda: sequence.view(1),
                sequence.gather, lambda: sequence.cache([]), sequence.slot_mapping, sequence.__enter__):
        with pytest.raises(tmesh.ReleasedError):
            use()
    assert repr(sequence) == "<tmesh.Sequence, released>"
    other = tmesh.PagePool(page_bytes=BYTES)
    late = tmesh.Pages.open(other.tenant())
    last = late.sequence()
    other.close()
    other.close()
    for use in (other.info, other.tenant, other.__enter__):
        with pytest.raises(tmesh.ReleasedError):
            use()
    with pytest.raises(tmesh.GoneError):
        last.append(1)
    assert other.closed and "closed" in repr(other)


def test_what_travels(pool, pages):
    for what, word in ((pool, "token"), (pages, "token"), (pages.sequence(), "ticket")):
        with pytest.raises(TypeError, match=word):
            pickle.dumps(what)


def test_a_child_has_its_own(pool):
    token = pool.tenant()
    pages = tmesh.Pages.open(token)
    sequence = filled(pages, 2)
    ticket = sequence.share()
    child = os.fork()
    if not child:
        code = 1
        try:
            for use in (pages.sequence, lambda: sequence.append(1), sequence.fork, pool.tenant, pool.info):
                with pytest.raises(tmesh.AccessError):
                    use()
            with tmesh.Pages.open(token) as own, own.take(ticket) as taken:
                assert taken.view(64)[:, 0].tolist() == [1, 2]
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sequence.page(1)[0] == 2
    sequence.append(1)


@pytest.mark.parametrize("more, error", [
    ({"page_bytes": 5}, tmesh.InvalidError), ({"page_bytes": 1 << 40}, tmesh.InvalidError),
    ({"page_bytes": -1}, OverflowError), ({"max_pages": 1 << 32}, OverflowError),
    ({"max_pages": (1 << 32) - 1}, tmesh.InvalidError), ({"devices": 1000}, tmesh.InvalidError),
    ({"page_tokens": "x"}, TypeError), ({"place": 5}, TypeError),
])
def test_bad_pools(more, error):
    with pytest.raises(error):
        tmesh.PagePool(**more)


def test_bad_input(pool, pages):
    for token, error in (("", tmesh.ProtocolError), ("a\0b", tmesh.ProtocolError), (5, TypeError)):
        with pytest.raises(error):
            tmesh.Pages.open(token)
        with pytest.raises(error):
            pages.take(token)
        with pytest.raises((error, tmesh.NotFoundError)):
            pages.unshare(token)
    with pytest.raises(tmesh.Error):
        tmesh.Pages.open(tmesh.put(b"x").token)
    sequence = filled(pages, 1)
    for use in (lambda: sequence.append(1 << 40), lambda: sequence.truncate(17), lambda: sequence.page(1),
                lambda: sequence.page(0, device=1), lambda: sequence.view(0), lambda: sequence.slot_mapping(0, 17),
                lambda: sequence.slot_mapping(10, 10), lambda: sequence.slot_mapping(0, 1 << 62), lambda: pages.base(1),
                lambda: pages.head(9), lambda: sequence.view(64, device=7), lambda: pages.find([b"x"]),
                lambda: sequence.cache(["x" * 16]), lambda: pages.hash([1], b"short"), lambda: pages.hash([1 << 40]),
                lambda: pages.hash([1.5])):
        with pytest.raises(tmesh.InvalidError):
            use()
    for use in (lambda: sequence.append(-1), lambda: sequence.page(-1), lambda: sequence.slot_mapping(-1)):
        with pytest.raises(OverflowError):
            use()
    with pytest.raises(TypeError):
        sequence.append("x")
    assert sequence.tokens == 16 and pages.info()["held"] == 1


def test_gather(pages):
    sequence = filled(pages, 3)
    if tmesh.backend() == "memfd":
        with pytest.raises(tmesh.UnsupportedError):
            sequence.gather()
    else:
        assert np.array_equal(sequence.gather().numpy(), sequence.view(64).reshape(-1))


def test_memory_returns():
    live = tmesh.stats()["regions_live"]
    with tmesh.PagePool(page_bytes=BYTES) as pool, tmesh.Pages.open(pool.tenant()) as pages:
        filled(pages, 3).view(64)
        assert tmesh.stats()["regions_live"] > live
    gc.collect()
    assert tmesh.stats()["regions_live"] == live
