# SPDX-License-Identifier: MIT
"""Beside torch.multiprocessing: the round trip of a tensor that is shared already, and the first
share of one that is not, which either side copies once. The other end reads one value.
"""

import multiprocessing

import numpy as np
import torch
import torch.multiprocessing  # teaches multiprocessing's pipes to carry tensors

import tmesh
from harness import CPU_CONSUMER, CPU_PRODUCER, Series, pin

SIZES = {"1MB": (1_000_000, 200), "100MB": (100_000_000, 20)}
WARM_UP = 3


def consume(pipe):
    pin(CPU_CONSUMER)
    torch.set_num_threads(1)
    while True:
        try:
            received = pipe.recv()
        except EOFError:
            return
        if isinstance(received, tmesh.Tensor):
            received = received.numpy()
        value = float(received[0])
        del received
        pipe.send(value)


def main():
    torch.set_num_threads(1)
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    consumer = spawn.Process(target=consume, args=(other,))
    consumer.start()
    other.close()
    pin(CPU_PRODUCER)
    tmesh.configure(pool_bytes=256_000_000)

    def round_trip(thing):
        pipe.send(thing)
        return pipe.recv()

    series = Series("torch")
    for size, (count, rounds) in SIZES.items():
        array = np.ones(count, np.uint8)
        shared = torch.ones(count, dtype=torch.uint8).share_memory_()
        tensor = tmesh.put(array)
        for turn in range(-WARM_UP, rounds):
            fresh = torch.ones(count, dtype=torch.uint8)
            for name, thing in {
                f"shared-{size}-torch": lambda: shared,
                f"shared-{size}-tmesh": lambda: tensor,
                f"first-{size}-torch": lambda: fresh,
                f"first-{size}-tmesh": lambda: tmesh.put(array),
            }.items():
                value = series.time(name, lambda: round_trip(thing()), turn >= 0)
                assert value == 1
    pipe.close()
    consumer.join()
    series.print()


if __name__ == "__main__":
    main()
