# SPDX-License-Identifier: MIT
"""PyTorch's tensors through a queue, by way of tmesh.torch and by tmesh.Queue, beside torch.multiprocessing. The time
ends when the other end has read one value, by the other end's clock, which comes back on another way.

  shared  a tensor that was sent before: nothing is copied on either way
  first   a new tensor in the process's own memory: either way copies it into shared memory
  born    a new tensor that was made over tmesh's memory (torch.from_dlpack(tmesh.empty(...))) and so
          is not copied, beside PyTorch's first share, which always copies

usage: torch_share.py [SIZE...]
"""

import multiprocessing
import sys
from time import perf_counter_ns

import torch
import torch.multiprocessing

import tmesh
import tmesh.torch
from harness import CPU_CONSUMER, CPU_PRODUCER, Series, pin

SIZES = {"4KB": (4_000, 200), "1MB": (1_000_000, 200), "100MB": (100_000_000, 10)}
WARM_UP = 3

by_tmesh = tmesh.torch.register
by_torch = torch.multiprocessing.reductions.init_reductions


def consume(queue, answers):
    pin(CPU_CONSUMER)
    torch.set_num_threads(1)
    while (tensor := queue.get()) is not None:
        value, arrived = int(tensor[0]), perf_counter_ns()
        del tensor
        answers.put((value, arrived))


def own(count):
    return torch.ones(count, dtype=torch.uint8)


def born(count):
    return torch.from_dlpack(tmesh.empty(count, "uint8")).fill_(1)


def main():
    torch.set_num_threads(1)
    spawn = multiprocessing.get_context("spawn")
    plain, ours, answers = spawn.SimpleQueue(), tmesh.Queue(), spawn.SimpleQueue()
    consumers = [spawn.Process(target=consume, args=(queue, answers)) for queue in (plain, ours)]
    for consumer in consumers:
        consumer.start()
    pin(CPU_PRODUCER)

    def one_way(tensor, queue):
        began = perf_counter_ns()
        queue.put(tensor)
        value, arrived = answers.get()
        assert value == 1
        return arrived - began

    def let_go():
        """The next send releases the tensors received before."""
        by_tmesh()
        one_way(small, plain)
        one_way(small, ours)

    series = Series("torch")
    small = born(1)
    for size, (count, rounds) in SIZES.items():
        if sys.argv[1:] and size not in sys.argv[1:]:
            continue
        rounds = min(rounds, 50) if sys.argv[1:] else rounds
        shared = own(count).share_memory_(), born(count)
        for turn in range(-WARM_UP, rounds):
            for name, way in (("shared", "torch"), ("shared", "tmesh"), ("shared", "queue"),
                              ("first", "torch"), ("first", "tmesh"), ("first", "queue"),
                              ("born", "tmesh"), ("born", "queue")):
                if name == "shared":
                    tensor = shared[way != "torch"]
                else:
                    tensor = own(count) if name == "first" else born(count)
                let_go()
                (by_torch if way == "torch" else by_tmesh)()
                spent = one_way(tensor, ours if way == "queue" else plain)
                if turn >= 0:
                    series.add(f"{name}-{size}-{way}", spent)
    for queue, consumer in zip((plain, ours), consumers):
        queue.put(None)
        consumer.join()
    series.print()


if __name__ == "__main__":
    main()
