# SPDX-License-Identifier: MIT
"""The Python side of the Elixir tests: each line of input is answered with one line.

put           a sealed float32 tensor of shape [3, 4] with the numbers 0 to 11: its ref
transposed    a ref of the same, with the axes swapped
sum REF       the sum of a tensor's elements
double REF    double a tensor's elements in place
"""

import json
import sys

import numpy
import tmesh

kept = []


def obey(verb, rest):
    if verb == "put":
        kept.append(tmesh.put(numpy.arange(12, dtype=numpy.float32).reshape(3, 4), seal=True))
        return json.dumps(kept[-1].ref())
    if verb == "transposed":
        ref = kept[-1].ref()
        return json.dumps({**ref, "shape": ref["shape"][::-1], "strides": ref["strides"][::-1]})
    if verb == "sum":
        with tmesh.open(rest) as tensor:
            return str(tensor.numpy().sum())
    if verb == "double":
        with tmesh.open(json.loads(rest), writable=True) as tensor:
            tensor.numpy(writable=True)[...] *= 2
        return "ok"
    return "no such command"


for line in sys.stdin:
    command, _, argument = line.rstrip("\n").partition(" ")
    try:
        print(obey(command, argument), flush=True)
    except (OSError, ValueError, TypeError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
