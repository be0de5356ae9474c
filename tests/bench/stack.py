# SPDX-License-Identifier: MIT
"""The time of put() in a loop beside torch.stack() of the same 9.6 MB, in memory that each releases at once."""

import torch

import tmesh
from harness import Series

ROUNDS, WARM_UP = 40, 8
ROWS = [torch.randn(3, 223, 224) for _ in range(16)]


def named(**options):
    tensor = tmesh.put(source, **options)
    tensor.ref()
    return tensor


def stacked():
    tensor = tmesh.empty(source.shape, "float32")
    return torch.stack(ROWS, out=torch.from_dlpack(tensor))


def let_go(_):
    """The caller has no reference to it any more when this returns."""


torch.set_num_threads(1)
source = torch.stack(ROWS)
series = Series("stack")
# One way after another: a way would get the memory of the pool that another way has released. The sealed way comes
# first, for its memory never returns to the pool.
for name, make in (
    ("torch", lambda: torch.stack(ROWS)),
    ("put-sealed", lambda: tmesh.put(source)),
    ("put-named", named),
    ("put", lambda: tmesh.put(source, seal=False)),
    ("into-empty", stacked),
):
    for turn in range(-WARM_UP, ROUNDS):
        series.time(name, lambda: let_go(make()), turn >= 0)
series.print()
