# SPDX-License-Identifier: MIT
"""A process that runs Python functions for others and shares tensors with them.

    python -m tmesh.worker --socket PATH --allow my_operations

Clients connect to its socket and call ``my_operations.name``: Elixir's ``Tmesh.Worker``, or any
program that can write JSON to a Unix socket. Tensors go both ways by their refs, not copied. The
protocol is in docs/worker.md.

An operation is a plain function of a module on the allow-list:

    def scale(array, factor):           # called with {"array": tensor, "factor": 2}
        return array * factor           # copied once, into shared memory

It gets tensors as NumPy arrays over shared memory, read-only unless the caller granted more. A
``tmesh.Tensor`` that it returns is not copied; any other array is, once. A generator function is
called by clients that stream, an item at a time.
"""

from collections.abc import Callable
from typing import TypeVar

from . import _calls

__all__ = ["cancelled", "takes_tensors"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def cancelled() -> bool:
    """Whether the running call was given up by its client or has run out of time.

    For operations that take long: nothing but their own code can end them early. What one returns
    after it was told so is dropped: the answer is the error "cancelled" or "timeout"."""
    call = _calls.running
    if call is None or not call.over():
        return False
    call.noticed = True
    return True


def takes_tensors(function: _Function) -> _Function:
    """Mark an operation that wants ``tmesh.Tensor`` objects in place of NumPy arrays."""
    function.__tmesh_takes_tensors__ = True  # type: ignore[attr-defined]
    return function
