# SPDX-License-Identifier: MIT
"""The interface of safetensors.numpy. Arrays are writable, copy-on-write views of memory that processes share."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from .. import _tmesh
from ..elements import TORCH_TYPES, is_contiguous
from . import Plain, SafetensorError, load_bytes, safe_open, to_bytes, to_file

__all__ = ["load", "load_file", "save", "save_file"]

_TYPES = {name: kind for kind, name in TORCH_TYPES.items()}


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Load all arrays of a file."""
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Load all arrays of a file's bytes, copied once."""
    return load_bytes(data, "numpy")


def _plain_of_ours(name: str, tensor: _tmesh.Tensor) -> Plain:
    """Return a Tensor's type, shape and bytes, even if NumPy does not have its type."""
    kind = _TYPES.get(tensor.dtype)
    if kind is None:
        raise SafetensorError(f"Unknown dtype {tensor.dtype!r} of {name!r}. Supported: {', '.join(TORCH_TYPES.values())}")
    if not tensor.nbytes:
        return kind, tensor.shape, memoryview(b"")
    whole = tensor if is_contiguous(tensor) else _tmesh.put(tensor, seal=False)
    return kind, tensor.shape, memoryview(whole.reshape(-1).view("uint8"))


def _plain(tensors: Mapping[str, Any]) -> dict[str, Plain]:
    """Return arrays' types, shapes and bytes. Those that are not contiguous or not little-endian are copied."""
    numpy = importlib.import_module("numpy")
    if not isinstance(tensors, Mapping):
        raise AttributeError(f"what is saved is a dict of names and arrays, not {type(tensors).__name__}")
    plain = {}
    for name, value in tensors.items():
        if isinstance(value, _tmesh.Tensor):
            plain[name] = _plain_of_ours(name, value)
            continue
        if not isinstance(value, (numpy.ndarray, numpy.generic)):
            raise AttributeError(f"{name!r} is a NumPy array or a tmesh.Tensor, not {type(value).__name__}: take "
                                 "numpy.asarray() of it")
        if value.dtype.name not in _TYPES:
            raise SafetensorError(f"Unknown dtype {value.dtype.name!r} of {name!r}. Supported: {', '.join(_TYPES)}")
        order = value.dtype.byteorder
        if order == ">" or order == "=" and sys.byteorder == "big":
            value = value.astype(value.dtype.newbyteorder("<"))
        flat = numpy.ascontiguousarray(value).reshape(-1).view("uint8")
        plain[name] = _TYPES[value.dtype.name], tuple(value.shape), memoryview(flat)
    return plain


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file's bytes."""
    return to_bytes(_plain(tensor_dict), metadata)


def save_file(tensor_dict: Mapping[str, Any], filename: str | os.PathLike[str],
              metadata: Mapping[str, str] | None = None) -> None:
    """Write a file, which appears whole or not at all."""
    to_file(_plain(tensor_dict), filename, metadata)
