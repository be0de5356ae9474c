#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pages of a KV cache from one process to another by NIXL, which reaches other machines too.

    pip install './bindings/python[nixl]'      # in tmesh's repository
    python examples/nixl_kv_pages.py

The first process computes a prompt, seals its pages and offers them. The second has two pages from an earlier prompt with
the same beginning. It fetches only the missing pages, into places of its own cache. The offer passes between them by a
pipe; between machines, send it by any other means."""

import multiprocessing
import os

import numpy
import tmesh
import tmesh.nixl
from nixl_cu12._api import nixl_agent, nixl_agent_config

PAGES, TOKENS, HEADS, WIDTH = 8, 16, 4, 64
SHAPE = 2, TOKENS, HEADS, WIDTH              # keys and values of a page


def agent(role):
    """Return an agent. Each process's agent needs its own name, because peers are identified by it."""
    return nixl_agent(f"{role} {os.getpid()}", nixl_agent_config(backends=["UCX"]))


def prefill(pipe):
    """Compute a prompt's pages: here each holds its own number."""
    pages = tmesh.put(numpy.arange(PAGES, dtype="float32").repeat(numpy.prod(SHAPE)).reshape(PAGES, *SHAPE))
    with tmesh.nixl.register(agent("prefill"), pages) as mine:
        pipe.send_bytes(mine.offer())
        pipe.recv()                          # keep the pages until the other process has read them


def main():
    pipe, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=prefill, args=(theirs,))
    child.start()
    theirs.close()

    cache = tmesh.zeros((32, *SHAPE), "float32")
    table = [5, 9]                           # places of the sequence's pages; two exist already
    cache.numpy()[5], cache.numpy()[9] = 0, 1
    with tmesh.nixl.register(agent("decode"), cache, writable=True) as mine:
        with mine.peer(pipe.recv_bytes()) as peer:
            count, *shape = peer.places[0].shape
            if tuple(shape) != SHAPE:
                raise SystemExit(f"the other's pages are of the shape {shape}")
            size = peer.places[0].nbytes // count
            missing = range(len(table), count)
            table += [20 + number for number in missing]
            peer.read([(cache[table[number]], 0, number * size) for number in missing], timeout=30)
    pipe.send("done")
    child.join()
    print(f"fetched {len(missing)} of {count} pages; the sequence is", cache.numpy()[table, 0, 0, 0, 0].tolist(),
          flush=True)                        # NIXL's UCX may end a process with SIGSEGV at its exit


if __name__ == "__main__":
    main()
