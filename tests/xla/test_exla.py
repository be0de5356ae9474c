# SPDX-License-Identifier: MIT
"""EXLA's part, without EXLA: registration in a stand-in for its library, and the StableHLO that follows from tmesh's
answers to its protocol, in JAX's XLA."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed, and cannot be had from the package index")

import tmesh
import tmesh.xla as xla
from jax._src import xla_bridge
from jaxlib import xla_client

ROOT = Path(__file__).resolve().parents[2]
EBIN = ROOT / "build/beam/dev/lib/tmesh/ebin"
CHANNEL = 'in "é\\'


def specs():
    """(target, attributes) of a pop and a push, as Elixir gives them."""
    if not shutil.which("elixir") or not EBIN.exists():
        pytest.skip("Elixir, or tmesh for it (make beam), is not there")
    standin = os.environ["TMESH_TEST_XLA_STANDIN"]
    done = subprocess.run(["elixir", "-pa", EBIN, ROOT / "tests/xla/exla.exs",
                           ROOT / "bindings/beam/lib/tmesh/xla/custom_call.ex"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "LD_PRELOAD": standin, "STANDIN_TELLS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("stand-in for XLA: handler tmesh_push\n") == 1
    assert done.stderr.count("stand-in for XLA: handler tmesh_pop\n") == 1
    return [line.split("\t") for line in done.stdout.splitlines()]


def run(text, *arguments):
    """A program in StableHLO, compiled by jaxlib as EXLA has it compiled: it declares no side effects, and no
    aliases."""
    backend = xla_bridge.get_backend("cpu")
    devices = backend.local_devices()[:1]
    program = backend.compile_and_load(text, devices, xla_client.CompileOptions())
    results = program.execute_sharded([jax.device_put(argument, devices[0]) for argument in arguments])
    return [np.asarray(arrays[0]) for arrays in results.disassemble_into_single_device_arrays()]


def test_what_elixir_tells_runs_in_xla():
    (pop, pop_attributes), (push, push_attributes) = specs()
    outbox, inbox = tmesh.Channel("recv"), tmesh.Channel("send")
    xla.bind("out", outbox, "send")
    xla.bind(CHANNEL, inbox, "recv")
    try:
        call = '"stablehlo.custom_call"(%s) {call_target_name = "%s", api_version = 4 : i32, backend_config = {%s}}'
        inbox.send(tmesh.put(np.arange(4, dtype="float32")))
        values = run(f"""module @m {{ func.func public @main(%arg0: tensor<ui32>) -> (tensor<4xf32>, tensor<ui32>) {{
          %0:2 = {call % ("%arg0", pop, pop_attributes)} : (tensor<ui32>) -> (tensor<ui32>, tensor<4xf32>)
          %1 = {call % ("%0#0, %0#1", push, push_attributes)} : (tensor<ui32>, tensor<4xf32>) -> tensor<ui32>
          return %0#1, %1 : tensor<4xf32>, tensor<ui32> }} }}""", np.uint32(0))
        assert values[0].tolist() == [0, 1, 2, 3] and int(values[1]) == 2
        with outbox.recv(timeout=600) as sent:
            assert sent.sealed and np.asarray(sent).tolist() == [0, 1, 2, 3]
    finally:
        for name in ("out", CHANNEL):
            xla.unbind(name, timeout=0)
