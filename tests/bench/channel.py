# SPDX-License-Identifier: MIT
"""Channels driven from Python, beside iceoryx2 driven from Python. Half a round trip between two processes that look
busily on two CPUs, and the cost of receiving a message that is there.

  tensor, iceoryx2  a tensor of 1 MiB that both share; 56 bytes, whose payload is looked at. A
                    sender of a tensor by iceoryx2 has to name it in such a message
  ready             receiving a tensor that is there, in one process
"""

import ctypes
import json
import os
import subprocess
import sys
from time import perf_counter_ns

import tmesh
from harness import CPU_CONSUMER, CPU_PRODUCER, Series, pin

try:
    import iceoryx2
except ImportError:
    iceoryx2 = None

ROUNDS, WARM_UP, TRIPS, READY = 200, 10, 100, 60


class Payload(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint64), ("rest", ctypes.c_uint8 * 48)]


class ByChannel:
    """A tensor there, a tensor back."""

    def __init__(self, names, near):
        self.tensor = tmesh.empty(1 << 20, "uint8")
        if near:
            self.out, self.into = tmesh.Channel("send"), tmesh.Channel("recv")
            names += [self.out.token, self.into.token]
        else:
            self.into = tmesh.Channel.open(names[0], "recv")
            self.out = tmesh.Channel.open(names[1], "send")

    def send(self):
        self.out.send(self.tensor)

    def receive(self):
        receive = self.into.try_recv
        while (tensor := receive()) is None:
            pass
        return tensor


class ByIceoryx:
    """A message there, a message back."""

    def __init__(self, name, near):
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        there, back = (
            self.node.service_builder(iceoryx2.ServiceName.new(f"{name}/{way}"))
            .publish_subscribe(Payload).open_or_create() for way in ("there", "back"))
        out, into = (there, back) if near else (back, there)
        self.publisher = out.publisher_builder().create()
        self.subscriber = into.subscriber_builder().create()
        self.payload = Payload(number=1)

    def send(self):
        self.publisher.loan_uninit().write_payload(self.payload).send()

    def receive(self):
        receive = self.subscriber.receive
        while (sample := receive()) is None:
            pass
        return sample.payload().contents.number


def ways(names, near):
    yield "tensor", ByChannel(names, near)
    if iceoryx2:
        yield "iceoryx2", ByIceoryx(f"tmesh-bench-{os.getpid() if near else os.getppid()}", near)


def far():
    """Answer as often as a line from the nearer end asks for."""
    pin(CPU_CONSUMER)
    both = dict(ways(json.loads(sys.stdin.readline()), near=False))
    print("ready", flush=True)
    for line in sys.stdin:
        way = both[line.strip()]
        print("go", flush=True)
        for _ in range(TRIPS):
            way.receive()
            way.send()


def main():
    pin(CPU_PRODUCER)
    names = []
    both = dict(ways(names, near=True))
    own = tmesh.Channel("send")
    ready = tmesh.Channel.open(own.token, "recv")
    tensor = both["tensor"].tensor
    other = subprocess.Popen([sys.executable, "-B", __file__, "far"], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print(json.dumps(names), file=other.stdin, flush=True)
    other.stdout.readline()
    series = Series("python")
    for number in range(-WARM_UP, ROUNDS):
        for name, way in both.items():
            print(name, file=other.stdin, flush=True)
            other.stdout.readline()
            start = perf_counter_ns()
            for _ in range(TRIPS):
                way.send()
                way.receive()
            if number >= 0:
                series.add(f"channel-{name}", (perf_counter_ns() - start) / (2 * TRIPS))
        for _ in range(READY):
            own.send(tensor)
        start = perf_counter_ns()
        for _ in range(READY):
            ready.recv()
        if number >= 0:
            series.add("channel-ready", (perf_counter_ns() - start) / READY)
    other.stdin.close()
    other.wait()
    series.print()
    if not iceoryx2:
        print(json.dumps({"topic": "python", "name": "channel-iceoryx2",
                          "skip": "iceoryx2 is not installed"}))


far() if sys.argv[1:] == ["far"] else main()
