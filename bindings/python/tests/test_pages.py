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
from conftest import assert_refused, collide

import tmesh

PATIENCE = 600
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
    assert repr(sequence) == "<tmesh.Sequence of 40 tokens>"
    mapping = sequence.slot_mapping()
    assert mapping.dtype == np.int64 and mapping.tolist() == [table[t // 16] * 16 + t % 16 for t in range(40)]
    assert sequence.slot_mapping(38).tolist() == mapping[38:].tolist()
    assert sequence.slot_mapping(3, 2).tolist() == mapping[3:5].tolist()
    sequence.truncate(17)
    assert sequence.block_table().tolist() == table[:2].tolist()
    sequence.release()
    assert sequence.released and pages.head(0) == (0, 0)


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
    # The array keeps the memory.
    del sequence, page, longer
    gc.collect()
    assert view[2, BYTES - 1] == 3 and pages.info()["held"] == 4
    del view
    gc.collect()
    assert pages.info()["held"] == 0


def test_tables(pages):
    one, two = filled(pages, 3), filled(pages, 1)
    two.append(1)
    tables, lengths = pages.tables([one, two, pages.sequence()])
    assert (tables.dtype, lengths.dtype) == (np.int32, np.int32) and tables.flags.c_contiguous
    assert tables.tolist() == [one.block_table().tolist(), [*two.block_table().tolist(), 0], [0, 0, 0]]
    assert lengths.tolist() == [48, 17, 0]
    assert pages.tables([one], width=5)[0].tolist() == [[*one.block_table().tolist(), 0, 0]]
    assert pages.tables([])[0].shape == (0, 0)
    assert_refused(lambda: pages.tables([one], width=2), tmesh.InvalidError, "width")
    assert_refused(lambda: pages.tables([one, 3]), TypeError, "not of 3")


def test_as_a_kernel_uses_them(pages):
    """Attention over the pages, gathered by the table, equals that over the view."""
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


def test_arrays_hold_pages(pages):
    sequence = filled(pages, 2)
    read = sequence.page(0)
    for use in (lambda: sequence.truncate(0), sequence.release, sequence.__exit__):
        assert_refused(use, tmesh.BusyError, "arrays")
    other = sequence.fork()                     # reading does not damage it
    sequence.append(1)
    del read
    other.release()
    write = sequence.page(0, writable=True)
    for use in (sequence.fork, sequence.share, lambda: sequence.cache([])):
        assert_refused(use, tmesh.BusyError, "writable")
    write[:] = 3
    del write
    with sequence.fork() as other:
        assert other.page(0)[0] == 3
    sequence.truncate(0)


def write_a_page(sequence):
    sequence.page(1, writable=True)[:] = 90


def grow(sequence):
    sequence.append(1)


@pytest.mark.parametrize("replace", [write_a_page, grow])
def test_an_array_goes_on_showing_its_page(pages, replace):
    """A page that is copied before a write goes to no other sequence while an array shows it."""
    prompt = filled(pages, 2)
    prompt.truncate(TOKENS + 4)
    answer = prompt.fork()
    shown, other = answer.page(1), answer.page(0)
    replace(answer)
    prompt.release()
    assert answer.block_table()[1] != (shown.ctypes.data - pages.base()) // BYTES
    news = [filled(pages, 4) for _ in range(5)]  # other sequences have all free pages now, and have written to them
    assert np.all(shown == 2) and np.all(other == 1)
    held = pages.info()["held"]
    del shown, other
    gc.collect()
    assert pages.info()["held"] == held - 1
    # If nothing is replaced, nothing is held.
    shown = answer.page(1)
    replace(answer)
    assert_refused(lambda: answer.append(1 << 40), tmesh.Error)
    assert np.all(shown == answer.page(1))
    del shown
    gc.collect()
    assert pages.info()["held"] == held - 1
    news.clear()
    answer.release()
    assert pages.info()["held"] == 0


def test_a_view_has_the_room_it_was_given(pages):
    sequence = filled(pages, 2)
    assert sequence.view(2 * TOKENS).shape == (2, BYTES)
    for use in (lambda: sequence.append(1), lambda: sequence.view(2 * TOKENS + 1)):
        assert_refused(use, tmesh.InvalidError, "fork the sequence")
    with sequence.fork() as longer:
        longer.append(1)
        assert longer.view(8 * TOKENS)[:2, 0].tolist() == [1, 2]


def test_idle_handles_keep_pages_ready(pool, pages):
    token = pool.tenant()
    with tmesh.Pages.open(token) as idle, tmesh.Pages.open(token) as busy, idle.sequence() as all_of_them, busy.sequence() as some:
        all_of_them.append(64 * TOKENS)
        all_of_them.truncate(0)
        assert_refused(lambda: some.append(1), tmesh.LimitError, "trim")
        idle.trim()
        some.append(1)


def test_two_threads_on_one_sequence(pages):
    sequence = filled(pages, 2)
    # A call that waits for the owner's answer.
    assert "one at a time" in collide(lambda: pages.unshare(sequence.share()))
    assert sequence.tokens == 2 * TOKENS


def test_one_thread_at_a_time(pages):
    """Threads with sequences of their own do not conflict."""
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
    for use in (pages.trim, pages.base, lambda: pages.head(0), lambda: pages.hash([1]), pages.__enter__):
        assert_refused(use, tmesh.ReleasedError)
    assert "closed" in repr(pages)
    sequence.release()
    for use in (lambda: sequence.id, lambda: sequence.view(1), sequence.gather, sequence.slot_mapping, sequence.__enter__):
        assert_refused(use, tmesh.ReleasedError)
    assert repr(sequence) == "<tmesh.Sequence, released>"
    pool.close()
    assert_refused(pool.__enter__, tmesh.ReleasedError)
    assert pool.closed and "closed" in repr(pool)


def test_what_travels(pool, pages):
    for what, word in ((pool, "tmesh.Pages.open"), (pages, "tmesh.Pages.open"), (pages.sequence(), "ticket")):
        assert_refused(lambda: pickle.dumps(what), TypeError, word)


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
                assert_refused(use, tmesh.AccessError)
            with tmesh.Pages.open(token) as own, own.open_sequence(ticket) as taken:
                assert taken.view(64)[:, 0].tolist() == [1, 2]
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sequence.page(1)[0] == 2
    sequence.append(1)


@pytest.mark.parametrize("more, error", [
    ({"page_bytes": -1}, OverflowError), ({"max_pages": 1 << 32}, OverflowError), ({"page_tokens": "x"}, TypeError),
    ({"place": 5}, TypeError),
])
def test_bad_pools(more, error):
    assert_refused(lambda: tmesh.PagePool(**more), error)


def test_bad_input(pool, pages):
    for token, error in (("a\0b", tmesh.ProtocolError), (5, TypeError)):
        assert_refused(lambda: tmesh.Pages.open(token), error)
        assert_refused(lambda: pages.open_sequence(token), error)
        assert_refused(lambda: pages.unshare(token), (error, tmesh.NotFoundError))
    sequence = filled(pages, 1)
    for use in (lambda: sequence.append(1 << 40), lambda: sequence.truncate(17), lambda: sequence.page(1),
                lambda: sequence.page(0, device=1), lambda: sequence.view(0), lambda: sequence.slot_mapping(0, 17),
                lambda: sequence.slot_mapping(10, 10), lambda: sequence.slot_mapping(0, 1 << 62), lambda: pages.base(1),
                lambda: pages.head(9), lambda: sequence.view(64, device=7), lambda: pages.find([b"x"]),
                lambda: sequence.cache(["x" * 16]), lambda: pages.hash([1], b"short"), lambda: pages.hash([1 << 40]),
                lambda: pages.hash([1.5])):
        assert_refused(use, tmesh.InvalidError)
    for use in (lambda: sequence.append(-1), lambda: sequence.page(-1), lambda: sequence.slot_mapping(-1)):
        assert_refused(use, OverflowError)
    assert_refused(lambda: sequence.append("x"), TypeError)
    assert sequence.tokens == 16 and pages.info()["held"] == 1


def test_gather(pages):
    sequence = filled(pages, 3)
    if tmesh.backend() == "memfd":
        assert_refused(sequence.gather, tmesh.UnsupportedError)
    else:
        assert np.array_equal(sequence.gather().numpy(), sequence.view(64).reshape(-1))


def test_memory_returns():
    live = tmesh.stats()["regions_live"]
    with tmesh.PagePool(page_bytes=BYTES) as pool, tmesh.Pages.open(pool.tenant()) as pages:
        filled(pages, 3).view(64)
        assert tmesh.stats()["regions_live"] > live
    gc.collect()
    assert tmesh.stats()["regions_live"] == live
