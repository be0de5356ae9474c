# SPDX-License-Identifier: MIT
"""Tensors out of and into a running JAX program: tmesh.xla beside jax.experimental.io_callback, which puts and
sends, or receives, by tmesh in Python. A step of a compiled loop each, with the cost of the loop itself.

  4KB    200 steps a sample
  64MB   one step
  train  a training's step, 50 a sample, with and without a push of its loss
  end    the time that a call waits on after its sender was killed, tmesh.xla.cancel(), Ctrl-C
"""

import json
import os
import signal
import subprocess
import sys
import threading
from time import perf_counter_ns

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental import io_callback
except ImportError:
    for size in ("4KB", "64MB"):
        for way in ("push", "pop"):
            print(json.dumps({"topic": "xla", "name": f"{size}-{way}-tmesh", "skip": "JAX is not installed"}))
    for name in ("train-pushing", "end-killed", "end-cancelled", "end-interrupted", "end-pipe", "train-plain"):
        print(json.dumps({"topic": "xla", "name": name, "skip": "JAX is not installed"}))
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


def train(series):
    """The same steps with and without a push of the loss, in turn."""
    sink, token = peer("recv", 0)
    tmesh.xla.bind("loss", token, "send")
    batch = jax.random.normal(jax.random.key(0), (256, 512))
    weights = jax.random.normal(jax.random.key(1), (512, 512))

    def loss_of(weights):
        return jnp.mean((jnp.tanh(batch @ weights) @ weights - batch) ** 2)

    def steps(pushes):
        def step(_, both):
            sequence, weights = both
            loss, gradient = jax.value_and_grad(loss_of)(weights)
            if pushes:
                sequence = tmesh.xla.push(sequence, loss, channel="loss")
            return sequence, weights - 0.01 * gradient

        return jax.jit(lambda: jax.lax.fori_loop(0, 50, step, (tmesh.xla.sequence(), weights)))

    programs = {"train-pushing": steps(True), "train-plain": steps(False)}
    for turn in range(-1, 12):
        for name, program in programs.items():
            began = perf_counter_ns()
            jax.block_until_ready(program())
            if turn >= 0:
                series.add(name, (perf_counter_ns() - began) // 50)
    sink.kill()
    sink.wait()


# The error of a wait that was ended in this way. A wait that ran out of time would be a sample of another thing.
SAYS = {"killed": "UNAVAILABLE", "cancelled": "CANCELLED", "interrupted": "KeyboardInterrupt"}
SILENT = "import sys, tmesh; box = tmesh.Channel('send'); print(box.token, flush=True); sys.stdin.read()"


def end(series):
    """The time from the end of a wait's cause to the error, in the thread that JAX calls from."""
    # A shell that runs the benches in the background has them ignore SIGINT, and so has Python.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = jax.jit(lambda s: tmesh.xla.pop(s, jax.ShapeDtypeStruct((), "float32"), channel="silent"))
    for name in ("killed", "cancelled", "interrupted") * 10:
        sender = subprocess.Popen([sys.executable, "-c", SILENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        tmesh.xla.bind("silent", sender.stdout.readline().strip(), "recv")
        began = []

        def act():
            began.append(perf_counter_ns())
            if name == "killed":
                sender.kill()
            elif name == "cancelled":
                tmesh.xla.cancel("silent")
            else:
                os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, act)
        timer.start()
        try:
            jax.block_until_ready(program(tmesh.xla.sequence()))
        except (RuntimeError, ValueError, KeyboardInterrupt) as error:
            took = perf_counter_ns() - began[0]
            assert SAYS[name] in repr(error), f"{name}: {error!r}"
            series.add(f"end-{name}", took)
        else:
            sys.exit(f"the wait that is {name} ended without an error")
        timer.join()
        sender.kill()
        sender.wait()
    tmesh.xla.unbind("silent", timeout=0)
    for _ in range(10):
        sender = subprocess.Popen([sys.executable, "-c", SILENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        sender.stdout.readline()
        began = []
        timer = threading.Timer(0.2, lambda: (began.append(perf_counter_ns()), sender.kill()))
        timer.start()
        os.read(sender.stdout.fileno(), 1)
        series.add("end-pipe", perf_counter_ns() - began[0])
        sender.wait()


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
    train(series)
    end(series)
    series.print()


main()
