# SPDX-License-Identifier: MIT
"""The Python end of between.exs: an operation for Tmesh.Worker. Run as a program it sends messages back through
channels; with the argument "port" it answers a port of Elixir.
"""

import json
import struct
import sys
from multiprocessing import resource_tracker, shared_memory

import numpy as np

import tmesh
from harness import CPU_CONSUMER, pin

SPIN_S = 20e-6  # as the library's own
BOTH = 2 << 30  # both tensors' regions stay open

pin(CPU_CONSUMER)


def ends(array):
    """Return bytes that show that the whole array arrived."""
    array = np.frombuffer(array, np.uint8)
    return int(array[0]) + int(array[-1])


def attached(name):
    segment = shared_memory.SharedMemory(name)
    resource_tracker.unregister(segment._name, "shared_memory")  # Elixir's to remove
    total = ends(segment.buf)
    segment.close()
    return total


def listed(text):
    return int(np.array(json.loads(text)).size)


def read(count):
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = sys.stdin.buffer.readinto(view[done:])
        if not got:
            sys.exit()
        done += got
    return data


def answer_port():
    """Packets with four bytes of length ahead: the first byte names the kind of the rest."""
    kinds = {ord("B"): ends, ord("J"): listed, ord("N"): lambda name: attached(name.decode())}
    while True:
        packet = read(struct.unpack(">I", read(4))[0])
        text = str(kinds[packet[0]](packet[1:])).encode()
        sys.stdout.buffer.write(struct.pack(">I", len(text)) + text)
        sys.stdout.buffer.flush()


def echo(into_token, out_token):
    into = tmesh.Channel.open(into_token, "recv", spin=SPIN_S, max_bytes=BOTH)
    out = tmesh.Channel.open(out_token, "send")
    for message in into:
        out.send(message)


if __name__ == "__main__":
    if sys.argv[1] == "port":
        answer_port()
    else:
        echo(*sys.argv[1:])
