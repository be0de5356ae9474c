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

class Model(Mapping[str, _tmesh.Tensor]):
    """A file's tensors by their names, sealed and shared with all who load the same file. Made by
    tmesh.load_model(). A tensor taken from it lives on when it is released. Sent to another process, pickled, copied or
    published it arrives as a Bundle, whose metadata is the same as JSON text."""

    def __init__(self, held: _tmesh.Held, report: _tmesh.ModelReport, entries: list[Entry]) -> None:
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
        """What the file says beside its tensors; a dict of one's own."""
        found: dict[str, Any] = json.loads(self._bundle.metadata or "{}")
        return found

    @property
    def report(self) -> _tmesh.ModelReport:
        """How it was loaded, a dict: bytes_read by this process (0: another had read it), method, reason,
        whether it is shared, and what was measured."""
        return self._report

    @property
    def entries(self) -> dict[str, Entry]:
        """Each tensor as the file describes it: type as the file spells it, shape in elements."""
        return dict(self._entries)

    @property
    def bundle(self) -> bundles.Bundle:
        """The same tensors as a Bundle."""
        return self._bundle

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' elements."""
        return self._bundle.nbytes

    def ref(self) -> dict[str, Any]:
        """What opens it elsewhere as a Bundle, by tmesh.open(). It holds nothing. ReleasedError: it was released."""
        return self._bundle.ref()

    def private(self) -> dict[str, _tmesh.Tensor]:
        """Bundle.private(): copy-on-write views of all tensors. ReleasedError: it was released."""
        return self._bundle.private()

    def state_dict(self, *, private: bool = True) -> dict[str, Any]:
        """All tensors as PyTorch's, without a copy. They are in one copy-on-write view that is new at each call:
        what is written is one's own, a page at a time. private=False promises not to write: a write ends the
        process then. ReleasedError: it was released."""
        return self._bundle.state_dict(private=private)

    def release(self) -> None:
        """Let go. Tensors that were taken from it stay; all other use raises ReleasedError."""
        self._bundle.release()

    def __enter__(self) -> Model:
        self._bundle.id
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._bundle.__reduce__()

    def __repr__(self) -> str:
        if self._bundle._released_by is not None:
            return "<tmesh.Model, released>"
        return f"<tmesh.Model of {len(self)} tensors: {', '.join([*self][:4])}{', ...' * (len(self) > 4)}>"


ForkingPickler.register(Model, lambda model: bundles._reduce(model.bundle))


def load_model(path: str | os.PathLike[str], *, keep: bool = False, alone: bool = False, hash: bool = False,
               progress: Callable[[int, int, bool], object] | None = None) -> Model:
    """The tensors of a safetensors or GGUF file, of an index (.json), of a split GGUF by its first file, or of a
    folder with model.safetensors in it. Processes of one user that load the same files share one memory, which is
    read once; a file that changes later changes nothing. Pages are huge where they can be.

    keep: the memory outlives all processes, until it is dropped (tmeshctl drop). alone: share with nobody.
    hash: report["hash"] is the contents' checksum. progress: called with the bytes done, the bytes in all, and
    whether another process is reading; what it raises ends the loading, as Ctrl-C does, and nothing is left.

    NotFoundError, AccessError: there is no such file, or it may not be read; ProtocolError: it is malformed, or of no such
    format; UnsupportedError: the package was built without files of tensors; LimitError, OutOfMemoryError: no room."""
    held, report, entries = _tmesh.load_model(path, keep, alone, hash, progress)
    return Model(held, report, [Entry(*entry) for entry in entries])
