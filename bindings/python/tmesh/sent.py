# SPDX-License-Identifier: MIT
"""What this process has sent by ref and nobody has taken yet: it is held until then.

So travels a Tensor through whatever pickles as multiprocessing does: queues, pipes, pools and
concurrent.futures. pickle itself knows no receiver, so there a Tensor is its ref, which holds
nothing."""

from __future__ import annotations

import functools
from multiprocessing import parent_process, util
from multiprocessing.reduction import ForkingPickler
import os
import time
from typing import Any

from . import _tmesh

# How long a process that ends waits for what it sent to be opened.
PATIENCE = 2.0

here = _tmesh.Sent()


def wait(timeout: float) -> None:
    """Until what this process has sent was taken, but no longer than that: who died with a ref
    takes nothing."""
    deadline = time.monotonic() + timeout
    while here.under_way() and time.monotonic() < deadline:
        time.sleep(0.001)


@functools.cache
def wait_at_exit(pid: int) -> None:
    """What was taken by then may not be opened yet."""
    util.Finalize(None, wait, (PATIENCE,), exitpriority=-6)


# A queue's thread may send while its process ends already, too late to ask for that: so at the start. A
# process without a parent has seen its children end by the time it would wait.
util.register_after_fork(wait, lambda _: wait_at_exit(os.getpid()))
if parent_process() is not None:
    wait_at_exit(os.getpid())


def _reduce(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    here.look()
    return _received, (here.send(tensor, False),)


def _received(parcel: bytes) -> _tmesh.Tensor:
    return here.open(parcel)


ForkingPickler.register(_tmesh.Tensor, _reduce)
