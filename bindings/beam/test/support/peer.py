# SPDX-License-Identifier: MIT
"""The Python side of the Elixir tests: each line of input is answered with one line.

put           a sealed float32 tensor of shape [3, 4] with the numbers 0 to 11: its ref
pages TOKEN TICKET
              takes the sequence, writes 77 into its block 0: a ticket for that, and the first bytes of the blocks
"""

import json
import sys

import numpy
import tmesh

kept = []


def take_pages(token, ticket):
    pages = tmesh.Pages.open(token)
    sequence = pages.take(ticket)
    seen = sequence.view(1000)[:, 0].tolist()
    sequence.page(0, writable=True)[:] = 77
    kept.append(sequence)
    return f"{sequence.share()} {json.dumps(seen)}"


def obey(line):
    verb, *words = line.split()
    if verb == "pages":
        return take_pages(*words)
    if verb == "put":
        kept.append(tmesh.put(numpy.arange(12, dtype=numpy.float32).reshape(3, 4), seal=True))
        return json.dumps(kept[-1].ref())
    return "no such command"


for line in sys.stdin:
    print(obey(line.rstrip("\n")), flush=True)
