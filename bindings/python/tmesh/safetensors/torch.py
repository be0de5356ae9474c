# SPDX-License-Identifier: MIT
"""The face of safetensors.torch. Tensors on the CPU are copy-on-write views of what processes share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from ..elements import TORCH_TYPES
from . import Plain, SafetensorError, load_bytes, safe_open, to_bytes, to_file

__all__ = ["load", "load_file", "save", "save_file"]

_TYPES = {f"torch.{name}": kind for kind, name in TORCH_TYPES.items()}


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """All tensors of a file."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """All tensors of a file's bytes, copied once."""
    return load_bytes(data, "torch")



def _refuse_shared(tensors: Mapping[str, Any]) -> None:
    """A file has no two tensors of one memory."""
    spans = sorted((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(),
                    name) for name, tensor in tensors.items() if tensor.numel() and tensor.device.type != "meta")
    for (device, _, end, name), (there, start, _, other) in zip(spans, spans[1:]):
        if device == there and start < end:
            raise RuntimeError(f"Some tensors share memory: {name!r} and {other!r}. A file would have it twice: save "
                               "one of them, or a clone()")


def _plain(tensors: Mapping[str, Any]) -> dict[str, Plain]:
    # By DLPack, which also works where PyTorch was built for another NumPy than is there.
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    if not isinstance(tensors, Mapping):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.layout != torch.strided:
            raise ValueError(f"You are trying to save a sparse tensor: `{name}`. Make it dense before: to_dense()")
        if not tensor.is_contiguous():
            raise ValueError(f"You are trying to save a non contiguous tensor: `{name}`. Make it contiguous before: "
                             "contiguous()")
        if str(tensor.dtype) not in _TYPES:
            raise SafetensorError(f"Unknown dtype {tensor.dtype} of {name!r}")
    _refuse_shared(tensors)
    plain = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().to("cpu").reshape(-1).view(torch.uint8)
        plain[name] = _TYPES[str(tensor.dtype)], tuple(tensor.shape), memoryview(numpy.from_dlpack(flat))
    return plain


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file's bytes."""
    return to_bytes(_plain(tensors), metadata)


def save_file(tensors: Mapping[str, Any], filename: str | os.PathLike[str],
              metadata: Mapping[str, str] | None = None) -> None:
    """A file, which appears whole or not at all."""
    to_file(_plain(tensors), filename, metadata)
