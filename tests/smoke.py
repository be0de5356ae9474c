#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One tensor through each binding and tool: smoke.py BUILD. Prints TAP.

A Python process puts a tensor and loads a model; a program of each other face opens them by their refs.
"""
import ctypes
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile

BUILD = Path(sys.argv[1]).resolve()
PYTHON = BUILD / "venv/bin/python"
PRODUCER = """
import json, sys, numpy, tmesh, tmesh.safetensors.numpy
array = numpy.array([1, 2, 3, 4], "f4")
table = tmesh.put(array)
tmesh.safetensors.numpy.save_file({"w": array}, sys.argv[1])
model = tmesh.load_model(sys.argv[1])
print(json.dumps([table.ref(), table.id, list(model)]), flush=True)
sys.stdin.read()
"""
FACES = {
    "Python in another process": [PYTHON, "-P", "-c", "import sys, tmesh; print(sum(memoryview(tmesh.open(sys.argv[1]))))", "REF"],
    "libtmesh-cuda, on a stand-in for the driver": [
        PYTHON, "-P", "-c", "import sys, tmesh.cuda; print(tmesh.cuda.open(sys.argv[1]).shape)", "REF"],
    "Elixir": ["elixir", "--erl", "-logger level warning", "-pa", BUILD / "beam/dev/lib/tmesh/ebin", "-e", """
        {:ok, _} = Application.ensure_all_started(:tmesh)
        alias Tmesh.ZeroCopy
        ref = ZeroCopy.TensorRef.from_json!(hd(System.argv()))
        bytes = ref |> ZeroCopy.open!() |> ZeroCopy.to_binary!(copy: false)
        IO.inspect(Enum.sum(for <<x::float-32-native <- bytes>>, do: x))""", "REF"],
    "tmeshctl": [BUILD / "tmeshctl", "ls"],
    "tmesh-engine": [BUILD / "tmesh-engine", "--help"],
    "tmeshctl devices": [BUILD / "tmeshctl-devices", "--help"],
}
SAYS = {"Python in another process": "10.0", "libtmesh-cuda, on a stand-in for the driver": "(4,)", "Elixir": "10.0",
        "tmeshctl": None, "tmesh-engine": "usage", "tmeshctl devices": "usage"}

number = failed = 0


def point(ok, name, why=""):
    global number, failed
    number += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {number} - {name}", flush=True)
    for line in "" if ok else why.splitlines()[-8:]:
        print(f"# {line}", flush=True)


def run(words, ref):
    return subprocess.run([str(ref if word == "REF" else word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TMESH_BACKEND="memfd", TMESH_RUNTIME_DIR=folder, TMESH_KEEPER=str(BUILD / "tmesh-keeper"),
                          LD_LIBRARY_PATH=f"{BUILD / 'tests/cuda'}:{BUILD}")
        producer = subprocess.Popen([PYTHON, "-P", "-c", PRODUCER, f"{folder}/model.safetensors"], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        line = producer.stdout.readline()
        point(line, "Python puts a tensor, saves and loads a model")
        if line:
            ref, identity, names = json.loads(line)
            ref = json.dumps(ref)
            point(names == ["w"], "the model has the tensor", str(names))
            for face, words in FACES.items():
                done = run(words, ref)
                says = SAYS[face] or identity
                point(not done.returncode and says in done.stdout, f"{face} opens it" if "REF" in words else f"{face} runs", done.stdout)
        producer.stdin.close()
        producer.wait()
    ctypes.CDLL(str(BUILD / "libtmesh.so"), ctypes.RTLD_GLOBAL)
    point(hasattr(ctypes.CDLL(str(BUILD / "libtmesh-xla.so")), "tmesh_xla_bind"), "libtmesh-xla can be loaded")
    print(f"1..{number}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
