# SPDX-License-Identifier: MIT
"""The interface of safetensors.torch. Tensors on the CPU are copy-on-write views of memory that processes share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..elements import TORCH_TYPES
from . import Plain, SafetensorError, load_bytes, safe_open, to_bytes, to_file

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

_TYPES = {f"torch.{name}": kind for kind, name in TORCH_TYPES.items()}


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """Load all tensors of a file."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Load all tensors of a file's bytes, copied once."""
    return load_bytes(data, "torch")



def _refuse_shared(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that share memory: a file would store it twice."""
    spans = sorted((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(),
                    name) for name, tensor in tensors.items() if tensor.numel() and tensor.device.type != "meta")
    for (device, _, end, name), (there, start, _, other) in zip(spans, spans[1:]):
        if device == there and start < end:
            raise RuntimeError(f"Some tensors share memory: {name!r} and {other!r}. A file would have it twice: save "
                               "one of them, or a clone()")


def _plain(tensors: Mapping[str, Any]) -> dict[str, Plain]:
    # Use DLPack, which also works if PyTorch was built for another version of NumPy than the installed one.
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
    """Return a file's bytes."""
    return to_bytes(_plain(tensors), metadata)


def save_file(tensors: Mapping[str, Any], filename: str | os.PathLike[str],
              metadata: Mapping[str, str] | None = None) -> None:
    """Write a file, which appears whole or not at all."""
    to_file(_plain(tensors), filename, metadata)


# Modules whose tensors share memory, as tied weights do. A file stores each memory once.

def _storage(tensor: Any) -> tuple[int, int]:
    """Return the address of a tensor's storage, and its bytes."""
    try:
        storage = tensor.untyped_storage()
    except AttributeError:  # PyTorch before 2.0
        storage = tensor.storage()
    return storage.data_ptr(), storage.nbytes()


def _end(tensor: Any) -> int:
    """Return the address after the last byte of a tensor's elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else -1
    end: int = tensor.data_ptr() + (last + 1) * tensor.element_size()
    return end


def _groups(state_dict: Mapping[str, Any]) -> list[list[str]]:
    """Group names whose tensors overlap. A tensor that overlaps with none is a group of its own."""
    storages: dict[tuple[str, int, int], list[str]] = {}
    for name, tensor in state_dict.items():
        if tensor.device.type != "meta" and all(_storage(tensor)):
            storages.setdefault((str(tensor.device), *_storage(tensor)), []).append(name)
    groups: list[list[str]] = []
    for names in storages.values():
        end = None
        for start, stop, name in sorted((state_dict[name].data_ptr(), _end(state_dict[name]), name) for name in names):
            if end is None or start >= end:
                groups.append([])
            groups[-1].append(name)
            end = stop if end is None else max(end, stop)
    return groups


def _remove_duplicate_names(state_dict: Mapping[str, Any], *, preferred_names: Iterable[str] | None = None,
                            discard_names: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Return the names to leave out, by the name that stays for them."""
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    removed: dict[str, list[str]] = {}
    for names in _groups(state_dict):
        whole = {name for name in names if _storage(state_dict[name]) == (
            state_dict[name].data_ptr(), state_dict[name].numel() * state_dict[name].element_size())}
        if not whole:
            raise RuntimeError(f"None of {sorted(names)} covers its whole storage, so that no name is fit to be kept "
                               "for the others: a file would have more than the model needs. Save a clone() of them")
        kept = min(whole & preferred or whole - discarded or whole)
        others = sorted(name for name in names if name != kept)
        if others:
            removed[kept] = others
    return removed


def save_model(model: Any, filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None,
               force_contiguous: bool = True) -> None:
    """Save a module's tensors. If tensors share memory, only one is saved; the metadata maps the other names to it."""
    state, said = model.state_dict(), dict(metadata or {})
    for kept, others in _remove_duplicate_names(state).items():
        for name in others:
            said.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, said or metadata)
    except ValueError as error:
        raise ValueError(f"{error}, or save_model(..., force_contiguous=True)") from error


def load_model(model: Any, filename: str | os.PathLike[str], strict: bool = True, device: Any = "cpu", *,
               backend: str = "mmap") -> tuple[set[str], list[str]]:
    """Load a file's tensors into a module. Return the names that were missing and those that the module does not
    have."""
    state = load_file(filename, device=device, backend=backend)
    removed = _remove_duplicate_names(model.state_dict(), preferred_names=state)
    lacking, unexpected = model.load_state_dict(state, strict=False)
    missing = set(lacking)
    for name in (name for names in removed.values() for name in names):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in ("Missing", missing), ("Unexpected", unexpected):
            if names:
                lines.append(f"    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names)))
        raise RuntimeError("\n".join(lines))
    return missing, unexpected
