# SPDX-License-Identifier: MIT
"""Tensors out of and into a running JAX program: tmesh.xla beside jax.experimental.io_callback, which puts and
sends, or receives, by tmesh in Python. A step of a compiled loop each, with what the loop itself costs.

  4KB    200 steps a sample
  64MB   one step
"""

import json
import os
import subprocess
import sys
from time import perf_counter_ns

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental import io_callback
except ImportError:
    for size in ("4KB", "64MB"):
        for way in ("push", "pop"):
            print(json.dumps({"topic": "xla", "name": f"{size}-{way}-tmesh", "skip": "JAX is not installed"}))
    sys.exit()

import numpy as np
import tmesh
import tmesh.xla
from harness import CPU_CONSUMER, Series

PEER = sys.argv[1]
SIZES = {"4KB": (1024, 200, 20), "64MB": (1 << 24, 1, 6)}
SEQUENCE = jax.ShapeDtypeStruct((), "uint32")


def peer(role, count):
    process = subprocess.Popen(["taskset", "-c", str(CPU_CONSUMER % os.cpu_count()), PEER, role, str(count)],
                               stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def loop(step, count, steps):
    """A program that does `step` so many times, each time with other data."""
    def body(_, both):
        sequence, x = both
        sequence, y = step(sequence, x)
        return sequence, jax.lax.dynamic_update_slice(x, y[:1] + 1, (0,))

    return jax.jit(lambda: jax.lax.fori_loop(0, steps, body, (tmesh.xla.sequence(), jnp.zeros(count))))


def ways(count):
    like = jax.ShapeDtypeStruct((count,), "float32")
    peers = {name: peer(role, count) for name, role in (("out", "recv"), ("in", "repeat"), ("pyout", "recv"),
                                                         ("pyin", "repeat"))}
    tmesh.xla.bind("out", peers["out"][1], "send")
    tmesh.xla.bind("in", peers["in"][1], "recv")
    pyout = tmesh.Channel.open(peers["pyout"][1], "send")
    pyin = tmesh.Channel.open(peers["pyin"][1], "recv")
    arena = tmesh.Arena() if count * 4 <= 65536 else None

    def send(sequence, x):
        pyout.send(tmesh.put(np.asarray(x), arena=arena) if arena else tmesh.put(np.asarray(x)))
        return sequence + np.uint32(1)

    def receive(sequence):
        return sequence + np.uint32(1), pyin.recv().numpy()

    steps = {
        "push-tmesh": lambda s, x: (tmesh.xla.push(s, x, channel="out"), x),
        "push-callback": lambda s, x: (io_callback(send, SEQUENCE, s, x, ordered=True), x),
        "pop-tmesh": lambda s, x: tmesh.xla.pop(s, like, channel="in"),
        "pop-callback": lambda s, x: io_callback(receive, (SEQUENCE, like), s, ordered=True),
    }
    return steps, [process for process, _ in peers.values()]


def main():
    series = Series("xla")
    for size, (count, each, rounds) in SIZES.items():
        steps, peers = ways(count)
        programs = {name: loop(step, count, each) for name, step in steps.items()}
        for turn in range(-2, rounds):
            for name, program in programs.items():
                began = perf_counter_ns()
                jax.block_until_ready(program())
                jax.effects_barrier()
                if turn >= 0:
                    series.add(f"{size}-{name}", (perf_counter_ns() - began) // each)
        for process in peers:
            process.kill()
            process.wait()
    series.print()


main()
