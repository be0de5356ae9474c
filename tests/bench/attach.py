# SPDX-License-Identifier: MIT
"""Attach in Python to 1 MiB that another process made, up to an array and its first value:
tmesh.open(ref).numpy() of a known producer, and tmesh.shared_memory, beside
multiprocessing.shared_memory. Every region and every segment is opened once only.
"""

import multiprocessing
from multiprocessing import resource_tracker, shared_memory
from time import sleep

import numpy as np

import tmesh
import tmesh.shared_memory
from harness import CPU_CONSUMER, CPU_PRODUCER, Series, pin

ROUNDS, WARM_UP = 300, 20
COUNT = 1 << 18


def produce(pipe):
    pin(CPU_PRODUCER)
    tensors = [tmesh.empty(COUNT, "float32") for _ in range(ROUNDS + WARM_UP)]
    ours, theirs = ([module.SharedMemory(create=True, size=4 * COUNT) for _ in tensors]
                    for module in (tmesh.shared_memory, shared_memory))
    for number, tensor in enumerate(tensors):
        tensor.numpy()[0] = number
        for segment in ours[number], theirs[number]:
            np.ndarray(COUNT, np.float32, segment.buf)[0] = number
    pipe.send([(tensor.ref(), mine.name, their.name)
               for tensor, mine, their in zip(tensors, ours, theirs)])
    pipe.recv()
    for segment in ours + theirs:
        segment.close()
        segment.unlink()


def attach_tmesh(ref):
    array = tmesh.open(ref).numpy()
    return array, array[0]


def attach_shared_memory(module, name):
    segment = module.SharedMemory(name)
    array = np.ndarray(COUNT, np.float32, segment.buf)
    return array, array[0], segment


def main():
    resource_tracker.ensure_running()  # one for both ends, or it unlinks what lives
    fork = multiprocessing.get_context("fork")
    pipe, other = fork.Pipe()
    producer = fork.Process(target=produce, args=(other,))
    producer.start()
    pin(CPU_CONSUMER)
    series = Series("python")
    for number, (ref, mine, their) in enumerate(pipe.recv()):
        keep = number >= WARM_UP
        sleep(0.0005)
        array, value = series.time("open", lambda: attach_tmesh(ref), keep)
        assert value == number
        for way, module, name in (("block", tmesh.shared_memory, mine),
                                  ("shared-memory", shared_memory, their)):
            sleep(0.0005)
            array, value, segment = series.time(
                way, lambda: attach_shared_memory(module, name), keep)
            assert value == number
            del array
            segment.close()
    pipe.send("done")
    producer.join()
    series.print()


main()
