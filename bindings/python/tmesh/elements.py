# SPDX-License-Identifier: MIT
"""Elements of tensors in files, as PyTorch represents them."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from . import _tmesh
from .errors import UnsupportedError

# The types in files whose elements are whole bytes, with PyTorch's names.
TORCH_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}


class Entry(NamedTuple):
    """A tensor by its file's description: elements in shape, bytes in offset and nbytes."""

    name: str
    type: str  # "BF16", "Q4_K"
    dtype: str | None  # None: tmesh does not have the type, and the Tensor is of bytes
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def is_contiguous(tensor: _tmesh.Tensor) -> bool:
    step = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.strides)):
        if length != 1 and stride != step:
            return not tensor.size
        step *= length
    return True


def to_torch(tensor: _tmesh.Tensor, entry: Entry) -> Any:
    """Return a Tensor as PyTorch's. A contiguous one passes as bytes, since DLPack does not have all types. If tmesh
    does not have a file's type, the result is bytes. The caller promises not to write to a read-only one."""
    torch = importlib.import_module("torch")
    if not is_contiguous(tensor):
        return torch.from_dlpack(tensor.dlpack(allow_readonly=True))
    if not entry.nbytes and (entry.dtype or entry.type in TORCH_TYPES):
        return torch.empty(entry.shape, dtype=_torch_type(torch, entry))
    raw = (tensor if tensor.shape else tensor.reshape(1)).view("uint8").reshape(-1)
    flat = torch.from_dlpack(raw.dlpack(allow_readonly=True))
    if entry.dtype is None and entry.type not in TORCH_TYPES:
        return flat.reshape(tensor.shape)
    return flat.view(_torch_type(torch, entry)).reshape(entry.shape)


# Types of the package ml_dtypes, which NumPy lacks. Each element is whole bytes.
_OF_ML_DTYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}
# ml_dtypes stores one of these in each byte, tmesh two.
_HALVES = {"int4", "uint4", "float4_e2m1fn"}


def numpy_type(name: str) -> Any:
    """Return NumPy's dtype of that name, by ml_dtypes if NumPy does not have it. None: neither has it, or they store it
    differently."""
    numpy = importlib.import_module("numpy")
    if name not in _OF_ML_DTYPES:
        try:
            return None if name in _HALVES else numpy.dtype(name)
        except TypeError:
            return None
    try:
        found = getattr(importlib.import_module("ml_dtypes"), name, None)
    except ImportError:
        return None
    return None if found is None else numpy.dtype(found)


def plain_of(value: Any) -> Any:
    """Return a copyable stand-in for an array that supports neither Python's buffers nor DLPack, or (bytes, dtype's
    name, shape). None: the value is no such array."""
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _plain_of_ml_dtypes(numpy, numpy.asarray(value))
    return _plain_of_torch(value)


def _plain_of_ml_dtypes(numpy: Any, array: Any) -> Any:
    name = array.dtype.name
    if name in _OF_ML_DTYPES:
        return numpy.ascontiguousarray(array).reshape(array.shape).view(f"uint{8 * array.dtype.itemsize}"), name, array.shape
    if name not in _HALVES or array.dtype.itemsize != 1:
        return None
    halves = numpy.ascontiguousarray(array).reshape(-1).view("uint8") & 15
    whole = numpy.zeros(-(-halves.size // 2) * 2, "uint8")
    whole[:halves.size] = halves
    return whole[::2] | whole[1::2] << 4, name, array.shape


def _plain_of_torch(value: Any) -> Any:
    """Convert a PyTorch tensor on the CPU that requires gradients or is conjugated. Also convert elements that PyTorch does
    not export: truth values before version 2, and float8 before 2.9."""
    torch = sys.modules.get("torch")
    if not torch or not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return None
    plain = value.detach().resolve_conj().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    if name != "bool" and name not in _OF_ML_DTYPES:
        return plain
    numpy = importlib.import_module("numpy")
    flat = numpy.from_dlpack(plain.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8))
    return flat.view("bool").reshape(plain.shape) if name == "bool" else (flat, name, tuple(plain.shape))


def _torch_type(torch: Any, entry: Entry) -> Any:
    name = TORCH_TYPES.get(entry.type) or str(entry.dtype)
    if not hasattr(torch, name):
        raise UnsupportedError(95, f"tensor {entry.name!r} is {entry.type}: PyTorch {torch.__version__} "
                                   f"has no {name}")
    return getattr(torch, name)
