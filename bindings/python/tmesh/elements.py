# SPDX-License-Identifier: MIT
"""Elements of tensors that come from files, as PyTorch has them."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from . import _tmesh
from .errors import UnsupportedError

# As files spell the types whose elements are whole bytes; PyTorch's names.
TORCH_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}


class Entry(NamedTuple):
    """A tensor as its file describes it: elements in shape, bytes in offset and nbytes."""

    name: str
    type: str  # "BF16", "Q4_K"
    dtype: str | None  # None: tmesh has no such type, and the Tensor is of bytes
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
    """A Tensor as PyTorch's. A contiguous one by its bytes: not all types go through DLPack. A file's type that tmesh
    has no word for stays bytes. Of a read-only one the caller promises not to write."""
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


def plain_of_torch(value: Any) -> Any:
    """What may be copied in the place of a tensor of PyTorch's on the CPU, which refuses to give it by DLPack: one that wants
    gradients, is conjugated, or has truth values (before PyTorch 2). None: it is another thing."""
    torch = sys.modules.get("torch")
    if not torch or not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return None
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.dtype != torch.bool:
        return plain
    numpy = importlib.import_module("numpy")
    return numpy.from_dlpack(plain.contiguous().view(torch.uint8)).view("bool")


def _torch_type(torch: Any, entry: Entry) -> Any:
    name = TORCH_TYPES.get(entry.type) or str(entry.dtype)
    if not hasattr(torch, name):
        raise UnsupportedError(95, f"tensor {entry.name!r} is {entry.type}: PyTorch {torch.__version__} "
                                   f"has no {name}")
    return getattr(torch, name)
