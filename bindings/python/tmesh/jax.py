# SPDX-License-Identifier: MIT
"""Sealed tensors as JAX arrays over the same memory.

    weights = tmesh.jax.array(tmesh.open(ref))    # no copy: JAX reads the region

The array keeps the tensor's memory alive. It works on the CPU.

This module needs JAX 0.7 or newer.
"""

from __future__ import annotations

import errno
import importlib
from typing import Any

from ._tmesh import Tensor
from .errors import UnsupportedError

__all__ = ["array"]

try:
    # Imported by name, since mypy would otherwise read all of JAX if it is installed.
    jax: Any = importlib.import_module("jax")
except ModuleNotFoundError as problem:
    if problem.name != "jax":
        raise
    raise ModuleNotFoundError("tmesh.jax needs JAX: pip install jax", name="jax") from None
ml_dtypes: Any = importlib.import_module("ml_dtypes")

# JAX uses memory in place at multiples of this, and copies the rest.
_ALIGN = 64
_BYTES = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def array(tensor: Tensor, /) -> Any:
    """Return a JAX array over a sealed tensor's memory. UnsupportedError: JAX would have to copy it. It is not sealed
    or not contiguous, begins between multiples of 64 bytes, or has a type of 64 bits without jax_enable_x64.
    jax.numpy.array(tensor.numpy()) copies."""
    if not tensor.sealed:
        raise UnsupportedError(errno.EOPNOTSUPP, "JAX's arrays never change, and this tensor can: seal() it first")
    name = _BYTES.get(tensor.dtype)
    view = tensor.view(name).numpy().view(getattr(ml_dtypes, tensor.dtype)) if name else tensor.numpy()
    if jax.dtypes.canonicalize_dtype(view.dtype) != view.dtype:
        raise UnsupportedError(errno.EOPNOTSUPP,
                               f'JAX has no {view.dtype} here: jax.config.update("jax_enable_x64", True)')
    made = jax.device_put(view, jax.devices("cpu")[0])
    if view.size and made.unsafe_buffer_pointer() != view.ctypes.data:
        raise UnsupportedError(errno.EOPNOTSUPP, f"JAX copies what is not contiguous or not at a multiple of {_ALIGN} bytes")
    return made
