# SPDX-License-Identifier: MIT
"""Several devices: a waiting device keeps no other from going on, on one core and on two."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="jax is not installed, and cannot be had from the package index")

WAITING = """
import os, sys, threading
cores, count = int(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
import jax, jax.numpy as jnp
import tmesh, tmesh.xla as xla
from jax.sharding import Mesh, PartitionSpec

devices = jax.devices()
assert len(devices) == count
boxes = [tmesh.Channel("send") for _ in devices]
outbox = tmesh.Channel("recv", producers=count)
for i, box in enumerate(boxes):
    xla.bind(f"in{i}", box, "recv")
xla.bind("out", outbox, "send")
like = jax.ShapeDtypeStruct((), "float32")

def feed(i):
    boxes[i].send(tmesh.put(jnp.float32(i).__array__()), timeout=600)

def take():
    with outbox.recv(timeout=600) as message:
        return float(message.numpy())
"""

# Each device has a program of its own. All but one wait, the last computes and sends; then they are fed, the last first.
PROGRAMS = WAITING + """
def waits(i):
    def program(s):
        s, x = xla.pop(s, like, channel=f"in{i}", timeout=600)
        return xla.push(s, x, channel="out", timeout=600)
    return jax.jit(program)

def works(s, x):
    return xla.push(s, jnp.float32(-1) + 0 * (x @ x).sum(), channel="out", timeout=600)

def run(program, i, *args):
    jax.block_until_ready(program(jax.device_put(xla.sequence(), devices[i]), *args))

threads = [threading.Thread(target=run, args=(waits(i), i)) for i in range(count - 1)]
for thread in threads:
    thread.start()
for _ in range(3):
    run(jax.jit(works), count - 1, jax.device_put(jnp.ones((600, 600)), devices[-1]))
    assert take() == -1
for i in reversed(range(count - 1)):
    feed(i)
    assert take() == i
    threads[i].join(600)
    assert not threads[i].is_alive()
"""

# One program on all devices, in which all but the last wait, each for a message of its own.
SHARDED = WAITING + """
def part(i):
    def act(s, x):
        if i == count - 1:
            return xla.push(s, jnp.float32(-1) + 0 * (x @ x).sum(), channel="out", timeout=600)
        s, y = xla.pop(s, like, channel=f"in{i}", timeout=600)
        return xla.push(s, y, channel="out", timeout=600)
    return act

def each(s, x):
    return jax.lax.switch(jax.lax.axis_index("i"), [part(i) for i in range(count)], s[0], x)[None]

mesh = Mesh(devices, "i")
program = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"), check_vma=False))
thread = threading.Thread(target=lambda: jax.block_until_ready(
    program(jnp.zeros(count, "uint32"), jnp.ones((600 * count, 600)))))
thread.start()
assert take() == -1
for i in reversed(range(count - 1)):
    feed(i)
    assert take() == i
thread.join(600)
assert not thread.is_alive()
"""


LONG = os.environ.get("TMESH_TEST_LENGTH") == "full"


@pytest.mark.parametrize("cores", [1, 2] if LONG else [1])
@pytest.mark.parametrize("source", [PROGRAMS, SHARDED], ids=["programs", "sharded"])
def test_a_device_that_waits(source, cores):
    if len(os.sched_getaffinity(0)) < cores:
        pytest.skip(f"{cores} cores are needed")
    done = subprocess.run([sys.executable, "-P", "-c", source, str(cores), "8"], timeout=1200)
    assert done.returncode == 0
