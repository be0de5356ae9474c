# SPDX-License-Identifier: MIT
"""A process that runs Python functions for other processes and shares tensors with them.

    python -m tmesh.worker --socket PATH --allow my_operations

Clients connect to its socket and call ``my_operations.name``. They use Elixir's ``Tmesh.Worker``, or any
program that can write JSON to a Unix socket. Tensors pass in both directions by their refs, without a
copy. The protocol is in docs/reference/worker.md.

An operation is a plain function of a module on the allow-list:

    def scale(array, factor):           # called with {"array": tensor, "factor": 2}
        return array * factor           # copied once, into shared memory

It gets tensors as NumPy arrays over shared memory, read-only unless the caller granted more. A returned
``tmesh.Tensor`` is not copied. Neither is an argument, a part of one, or an array over sealed memory. Any
other array is copied once. A generator function is for clients that stream; each gets one item at a time.
"""

from collections.abc import Callable
from typing import TypeVar

from . import _calls

__all__ = ["cancelled", "takes_tensors"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def cancelled() -> bool:
    """Whether the client has cancelled the running call, or its time is over.

    Long operations should check this: only their own code can end them early. The result of one that has
    seen True is dropped; the answer is the error "cancelled" or "timeout"."""
    call = _calls.running
    if call is None or not call.over():
        return False
    call.noticed = True
    return True


def takes_tensors(function: _Function) -> _Function:
    """Mark an operation that takes ``tmesh.Tensor`` objects in place of NumPy arrays."""
    function.__tmesh_takes_tensors__ = True  # type: ignore[attr-defined]
    return function
