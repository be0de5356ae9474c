# SPDX-License-Identifier: MIT
"""Files of tensors, read once for all processes.

    model = tmesh.load_model("model.safetensors")   # or GGUF, an index, a folder with a model
    model["w"].numpy()                              # a Mapping of Tensors, sealed
    net.load_state_dict(model.state_dict(), assign=True)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any

from . import _tmesh, bundles
from .elements import Entry


class Description:
    """The header of a file of tensors: its format ("gguf", "safetensors"), entries by the tensors' names, metadata and
    the bytes of all tensors. Made by tmesh.describe_model(). It holds neither memory nor the file."""

    def __init__(self, path: str, format: str, entries: list[Entry], metadata: str) -> None:
        self.path, self.format = path, format
        self.entries = {entry.name: entry for entry in entries}
        self.metadata: dict[str, Any] = json.loads(metadata)
        self.nbytes = sum(entry.nbytes for entry in entries)

    def __repr__(self) -> str:
        return f"<tmesh.Description of {self.path}, {self.format}, {len(self.entries)} tensors>"


class Model(Mapping[str, _tmesh.Tensor]):
    """A file's tensors by their names, sealed and shared with all processes that load the same file. Made by
    tmesh.load_model(). A tensor taken from it stays valid after its release. In a pickle, a copy or a slot a Model
    becomes a Bundle, whose metadata is the same as JSON text."""

    def __init__(self, held: _tmesh.Held, report: _tmesh.ModelReport, entries: list[Entry], path: str) -> None:
        #: The path from which it was loaded.
        self.path = path
        self._bundle = bundles.Bundle(held)
        self._report = report
        self._entries = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> _tmesh.Tensor:
        return self._bundle[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def metadata(self) -> dict[str, Any]:
        """The file's metadata; each call returns a new dict."""
        found: dict[str, Any] = json.loads(self._bundle.metadata or "{}")
        return found

    @property
    def report(self) -> _tmesh.ModelReport:
        """A report of the load, a dict: bytes_read by this process (0: another process had read it), method, reason,
        whether it is shared, and the measured times."""
        return self._report

    @property
    def entries(self) -> dict[str, Entry]:
        """Each tensor by the file's description: type as in the file, shape in elements."""
        return dict(self._entries)

    @property
    def bundle(self) -> bundles.Bundle:
        """Return the same tensors as a Bundle."""
        return self._bundle

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' elements."""
        return self._bundle.nbytes

    def ref(self) -> dict[str, Any]:
        """Return a ref that tmesh.open() opens as a Bundle. It does not hold the memory. ReleasedError: it was
        released."""
        return self._bundle.ref()

    def private(self) -> dict[str, _tmesh.Tensor]:
        """Return Bundle.private(): copy-on-write views of all tensors. ReleasedError: it was released."""
        return self._bundle.private()

    def state_dict(self, *, private: bool = True) -> dict[str, Any]:
        """Return all tensors as PyTorch's, without a copy. They are in one copy-on-write view, which is new at each
        call. A write copies a page, and other processes do not see it. private=False promises not to write: a write
        would end the process. ReleasedError: it was released."""
        return self._bundle.state_dict(private=private)

    def release(self) -> None:
        """Release the model. Tensors that were taken from it stay valid; all other use raises ReleasedError."""
        self._bundle.release()

    def __enter__(self) -> Model:
        self._bundle.id
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._bundle.__reduce__()

    def __copy__(self) -> bundles.Bundle:
        return self._bundle.__copy__()

    def __deepcopy__(self, memo: dict[int, Any]) -> bundles.Bundle:
        """Return a Bundle of the same memory, which never changes."""
        return self._bundle.__deepcopy__(memo)

    def __repr__(self) -> str:
        if self._bundle._released_by is not None:
            return "<tmesh.Model, released>"
        return f"<tmesh.Model of {len(self)} tensors: {', '.join([*self][:4])}{', ...' * (len(self) > 4)}>"


ForkingPickler.register(Model, lambda model: bundles._reduce(model.bundle))


def load_model(path: str | os.PathLike[str], *, keep: bool = False, alone: bool = False, hash: bool = False,
               lenient: bool = False, progress: Callable[[int, int, bool], object] | None = None) -> Model:
    """Load the tensors of a safetensors or GGUF file, an index (.json), a split GGUF (its first file), or a folder with
    model.safetensors. Processes of one user that load the same files share one memory, which is read once. A later
    change of the file has no effect. Pages are huge if possible.

    keep: the memory outlives all processes, until it is dropped (tmeshctl drop). alone: do not share the memory. hash:
    report["hash"] is the contents' checksum. lenient: also load GGUF of version 2, bytes after the last tensor and
    tensors that an index does not name; report["reason"] names the problem. progress: called with the bytes done, the
    total, and whether another process is reading. Its exception ends the load and leaves nothing behind, and so does
    Ctrl-C.

    NotFoundError, AccessError: there is no such file, or it may not be read. ProtocolError: it is malformed, or has
    another format. LimitError, OutOfMemoryError: no room."""
    held, report, entries = _tmesh.load_model(path, keep, alone, hash, lenient, progress)
    return Model(held, report, [Entry(*entry) for entry in entries], os.fsdecode(path))


def describe_model(path: str | os.PathLike[str]) -> Description:
    """Read only the header of a file, or of the files, that load_model() accepts. Ctrl-C ends it.

    NotFoundError, AccessError: there is no such file, or it may not be read. ProtocolError: it is malformed, or has
    another format."""
    format, entries, metadata = _tmesh.describe_model(path)
    return Description(os.fsdecode(path), format, [Entry(*entry) for entry in entries], metadata or "{}")
