# SPDX-License-Identifier: MIT
"""The interface of the package safetensors, on memory that processes share.

    from tmesh.safetensors import safe_open
    from tmesh.safetensors.torch import load_file, save_file

or, for programs that import safetensors themselves (transformers, diffusers):

    tmesh.safetensors.install()

A file is read once for all processes that load it at the same time. Tensors are copy-on-write views of that memory:
other processes do not see writes, and later changes of the file have no effect. Tensors of another device than the CPU
are copies from a mapping for reading.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

from .. import _tmesh
from ..elements import TORCH_TYPES, Entry, numpy_type, to_torch
from ..errors import InvalidError, ProtocolError, UnsupportedError
from ..model import Model, load_model

__all__ = ["SafetensorError", "install", "safe_open", "uninstall"]

try:
    # The package's own class if it is installed, so that programs that catch it catch ours.
    SafetensorError: type[Exception] = importlib.import_module("safetensors").SafetensorError
except ImportError:
    SafetensorError = type("SafetensorError", (Exception,), {"__module__": __name__})

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}
_ALIGN = 256


def _to_numpy(tensor: _tmesh.Tensor, entry: Entry) -> Any:
    known = _numpy_type(entry)
    if known is None:
        raise TypeError(f"tensor {entry.name!r} is {entry.type}, which NumPy has not: install ml_dtypes, which has more types, or "
                        "take framework=\"pt\"")
    return tensor.numpy() if entry.dtype else tensor.numpy().view(known).reshape(entry.shape)


def _to(tensor: _tmesh.Tensor, entry: Entry, torch: bool) -> Any:
    return to_torch(tensor, entry) if torch else _to_numpy(tensor, entry)


def _numpy_type(entry: Entry) -> Any:
    name = entry.dtype or TORCH_TYPES.get(entry.type)
    return None if name is None else numpy_type(name)


def _refuse(filename: object, why: object) -> Exception:
    return SafetensorError(f"Error while deserializing {filename}: {why}")


class _Slice:
    """A tensor of a file, whose parts [...] returns."""

    def __init__(self, view: _tmesh.Tensor, entry: Entry, torch: bool, device: Any) -> None:
        self._view = view
        self._entry = entry
        self._torch = torch
        self._device = device

    def get_shape(self) -> list[int]:
        """Return the shape in elements."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return the type as in the file: "F32"."""
        return self._entry.type

    def __getitem__(self, index: Any) -> Any:
        if self._torch:
            part = to_torch(self._view, self._entry)[index]
            return part if self._device is None else part.to(self._device)
        indices = index if isinstance(index, tuple) else (index,)
        for each in indices:
            if isinstance(each, slice):
                if each.step is not None and each.step <= 0:
                    raise SafetensorError(f"Slice step must be a positive integer, got {each.step}")
            elif each is not Ellipsis and (isinstance(each, bool) or not hasattr(each, "__index__")
                                           or hasattr(each, "shape") and each.shape):
                raise SafetensorError(f"Unsupported slice index {each!r}: a slice, an int or an ellipsis")
        numpy = importlib.import_module("numpy")
        try:
            return numpy.asarray(_to_numpy(self._view, self._entry)[indices])  # this indexes within an element too
        except IndexError as error:
            raise SafetensorError(f"Error during slicing {index!r} with shape {self.get_shape()}: {error}") from error


class safe_open:
    """A safetensors file, like safetensors' class of this name. framework: "pt" or "np". device: that of PyTorch's tensors
    ("cpu" needs no copy). backend: accepted, without effect."""

    def __init__(self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *,
                 backend: str = "mmap") -> None:
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid here: \"pt\" or \"np\"")
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f"backend {backend!r} is invalid (expected one of: \"mmap\", \"pread\")")
        self._torch = _FRAMEWORKS[framework] == "torch"
        self._device = self._find_device(device)
        if os.path.isdir(filename):
            raise IsADirectoryError(21, "a folder: tmesh.load_model() takes one", os.fspath(filename))
        if os.fspath(filename).endswith(".json"):
            raise _refuse(filename, "an index: tmesh.load_model() takes one")
        try:
            self._model: Model | None = load_model(filename)
        except (ProtocolError, InvalidError, UnsupportedError) as error:
            raise _refuse(filename, error) from error
        if self._model.report["format"] != "safetensors":
            raise _refuse(filename, f"it is {self._model.report['format']}")
        self._entries = self._model.entries
        self._views: Mapping[str, _tmesh.Tensor] | None = None

    def _find_device(self, device: Any) -> Any:
        """Find the device. None means the CPU's memory."""
        if device is None:
            return None
        if self._torch:
            torch = importlib.import_module("torch")
            try:
                found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            except (RuntimeError, TypeError) as error:
                raise SafetensorError(f"device {device} is invalid: {error}") from error
            return None if found.type == "cpu" else found
        if device != "cpu":
            raise SafetensorError(f"Device {device} is not supported for framework numpy")
        return None

    def _entry(self, name: str) -> Entry:
        if self._model is None:
            raise SafetensorError("File is closed")
        if name not in self._entries:
            raise SafetensorError(f"File does not contain tensor {name}")
        return self._entries[name]

    def _view(self, name: str) -> _tmesh.Tensor:
        self._entry(name)
        if self._views is None:
            assert self._model is not None
            # Tensors of a device are copies, so the memory is only read. On unified memory a copy from a writable
            # private mapping would copy its pages first.
            self._views = self._model.private() if self._device is None else self._model
        return self._views[name]

    def keys(self) -> list[str]:
        """Return the names, sorted."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the file."""
        if self._model is None:
            raise SafetensorError("File is closed")
        return [*self._entries]

    def metadata(self) -> dict[str, str] | None:
        """Return the file's metadata, None if it has none."""
        if self._model is None:
            raise SafetensorError("File is closed")
        return self._model.metadata or None

    def get_tensor(self, name: str) -> Any:
        """Return a whole tensor. Tensors of one safe_open with the same name share their memory."""
        tensor = _to(self._view(name), self._entry(name), self._torch)
        return tensor if self._device is None else tensor.to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors by their names, in the order of the file."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> Any:
        """Return a slice object for parts: f.get_slice("w")[:, :8]. get_shape() and get_dtype() describe the whole
        tensor."""
        return _Slice(self._view(name), self._entry(name), self._torch, self._device)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        if self._model is not None:
            self._model.release()
        self._model = self._views = None


def load_bytes(data: bytes, framework: str) -> dict[str, Any]:
    """Return all tensors of a file's bytes, copied once into memory of this process."""
    try:
        kind, listed, _ = _tmesh.parse_model(data)
    except (ProtocolError, InvalidError) as error:
        raise _refuse("bytes", error) from error
    if kind != "safetensors":
        raise _refuse("bytes", f"they are {kind}")
    entries = [Entry(*entry) for entry in listed]
    region = _tmesh.empty(max(sum(-(-entry.nbytes // _ALIGN) * _ALIGN for entry in entries), 1), "uint8")
    found, end, whole = {}, 0, memoryview(data)
    for entry in entries:
        part = region[end:end + entry.nbytes]
        end += -(-entry.nbytes // _ALIGN) * _ALIGN
        if entry.nbytes:
            _tmesh.write(part, whole[entry.offset:entry.offset + entry.nbytes])
        if framework == "torch":
            found[entry.name] = to_torch(part, entry)
        elif _numpy_type(entry) is None:
            raise KeyError(entry.type)
        elif entry.dtype:
            found[entry.name] = part.view(entry.dtype).reshape(entry.shape).numpy()
        else:
            found[entry.name] = _to_numpy(part, entry)
    return found


# A tensor to write: type, shape and bytes.
Plain = tuple[str, tuple[int, ...], memoryview]
_ORDER = ["BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ",
          "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


def _header(tensors: Mapping[str, Plain], metadata: Mapping[str, str] | None) -> tuple[bytes, list[str]]:
    """Return the header, and the names in the order of their bytes: the widest types first, which keeps all aligned."""
    if metadata is not None and not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise TypeError("metadata is a dict of str to str")
    if not all(isinstance(name, str) for name in tensors):
        raise TypeError("a tensor's name is a str")
    names = sorted(tensors, key=lambda name: (-_ORDER.index(tensors[name][0]), name))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        kind, shape, data = tensors[name]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, names


def to_bytes(tensors: Mapping[str, Plain], metadata: Mapping[str, str] | None) -> bytes:
    """Return a whole file as bytes."""
    header, names = _header(tensors, metadata)
    return b"".join([header, *(tensors[name][2] for name in names)])


def _write(out: BinaryIO, header: bytes, names: list[str], tensors: Mapping[str, Plain]) -> None:
    out.write(header)
    for name in names:
        out.write(tensors[name][2])


def to_file(tensors: Mapping[str, Plain], filename: str | os.PathLike[str],
            metadata: Mapping[str, str] | None) -> None:
    """Write a file, which appears whole or not at all: it is written under another name, synced and renamed. If the
    path is a device or a pipe, write to it."""
    import tempfile

    header, names = _header(tensors, metadata)
    path = os.fspath(filename)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as out:
                _write(out, header, names, tensors)
            return
        file, beside = tempfile.mkstemp(prefix=".tmp", dir=os.path.dirname(path) or ".")
        try:
            with os.fdopen(file, "wb") as out:
                _write(out, header, names, tensors)
                out.flush()
                os.fsync(out.fileno())
            os.rename(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise SafetensorError(f"Error while serializing: {error}") from error


_theirs: Any = None


def _replace(old: Any, new: Any) -> None:
    """Replace it under all names in all loaded modules."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__name__", "")).startswith("tmesh."):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def install() -> None:
    """Replace safetensors' safe_open, in the package itself, whose load_file() calls it, and in every module that has
    imported it (transformers, diffusers). A second call has no effect. Afterwards loading for frameworks other than
    PyTorch and NumPy fails, until uninstall(). Saving stays safetensors' own."""
    global _theirs
    package = importlib.import_module("safetensors")
    importlib.import_module("safetensors.numpy")
    if package.safe_open is safe_open:
        return
    _theirs = package.safe_open
    _replace(_theirs, safe_open)


def uninstall() -> None:
    """Undo install()."""
    global _theirs
    if _theirs is not None:
        _replace(safe_open, _theirs)
    _theirs = None
