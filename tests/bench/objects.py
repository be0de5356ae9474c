# SPDX-License-Identifier: MIT
"""Objects that must be pickled through tmesh.Queue, beside the two queues of multiprocessing. The time ends when the
other end has the object, by the other end's clock, which comes back on another way.

  dict    272 bytes pickled
  bytes   100 KB
"""

import multiprocessing
from time import perf_counter_ns

import tmesh
from harness import CPU_CONSUMER, CPU_PRODUCER, Series, pin

OBJECTS = {
    "dict": {"name": "x" * 100, "values": [*range(60)], "scale": 1.5},
    "bytes": b"x" * 100_000,
}
ROUNDS, WARM_UP = 500, 50


def consume(queue, answers):
    pin(CPU_CONSUMER)
    while (thing := queue.get()) is not None:
        answers.put((len(thing), perf_counter_ns()))


def main():
    spawn = multiprocessing.get_context("spawn")
    queues = {"tmesh": tmesh.Queue(), "queue": spawn.Queue(), "simple": spawn.SimpleQueue()}
    answers = spawn.SimpleQueue()
    consumers = [spawn.Process(target=consume, args=(queue, answers)) for queue in queues.values()]
    for consumer in consumers:
        consumer.start()
    pin(CPU_PRODUCER)
    series = Series("objects")
    for turn in range(-WARM_UP, ROUNDS):
        for kind, thing in OBJECTS.items():
            for name, queue in queues.items():
                began = perf_counter_ns()
                queue.put(thing)
                count, arrived = answers.get()
                assert count == len(thing)
                if turn >= 0:
                    series.add(f"{kind}-{name}", arrived - began)
    for queue, consumer in zip(queues.values(), consumers):
        queue.put(None)
        consumer.join()
    series.print()


if __name__ == "__main__":
    main()
