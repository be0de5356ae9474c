# SPDX-License-Identifier: MIT
"""Named tensors as one: a model's weights, an adapter, a batch.

    weights = tmesh.bundle({"w": array, "b": other}, metadata='{"format":"mine"}')
    queue.put(weights.ref())          # one ref, whatever the number of tensors
    weights = tmesh.open(ref)         # elsewhere: a Mapping of the same memory
    weights["w"].numpy()
"""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from . import _tmesh, sent
from .elements import Entry, is_contiguous, to_torch
from .errors import Error, InvalidError, NotFoundError, ReleasedError, UnsupportedError

# How long pickle holds one, in seconds, as it holds Tensors.
_HOLD = 60.0


class Bundle(Mapping[str, _tmesh.Tensor]):
    """Named tensors in a few regions, under one ref; made by tmesh.bundle() and tmesh.open(). It never
    changes. A tensor taken from it lives on when it is released."""

    _released_by: int | None = None  # the thread that did

    def __init__(self, held: _tmesh.Held) -> None:
        self._held = held
        self._numbers = {name: number for number, name in enumerate(held.names())}

    def __getitem__(self, name: str) -> _tmesh.Tensor:
        return self._held.tensor(self._numbers[name])

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    # As with tensors: one bundle is another when it is the same.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def metadata(self) -> str:
        """Text that its maker gave it, "" if none."""
        return self._held.metadata

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' elements."""
        return self._held.nbytes

    @property
    def id(self) -> str:
        """Of the region that says what is where."""
        return self._held.id

    def ref(self, *, writable: bool = False, hold: float | None = None) -> dict[str, Any]:
        """What opens it elsewhere, by tmesh.open(): a dict of plain values, for reading unless writable.
        It holds nothing but for so many seconds, or until somebody opened it, as a Tensor's. SealedError: writable, and a
        tensor of it is sealed; AccessError: writable, and this process may not write; ReleasedError: it was released;
        InvalidError: that is no time."""
        ref: dict[str, Any] = json.loads(self._held.ref(writable, hold))
        return ref

    def send(self, socket: Any, /, *, writable: bool = False, timeout: float | None = None) -> None:
        """Hand it over by a connected Unix socket, or its descriptor, to recv_bundle(). A socket takes a few
        hundred regions at once: the peer has to receive meanwhile. PeerTimeoutError after timeout seconds; GoneError:
        nobody is there; AccessError: writable, and this process may not write; SealedError: writable, and it is
        sealed; ReleasedError: it was released."""
        self._held.send(socket, writable, timeout)

    def private(self) -> dict[str, _tmesh.Tensor]:
        """All tensors in one copy-on-write view of each region, as Tensor.private() is of one tensor: what is
        written is one's own. Each call makes new views. Only of a sealed bundle. InvalidError: it is not sealed;
        ReleasedError: it was released."""
        return dict(zip(self, self._held.private()))

    def state_dict(self, *, private: bool = True) -> dict[str, Any]:
        """All tensors as PyTorch's, without a copy. They are in one copy-on-write view that is new at each call:
        what is written is one's own, a page at a time. private=False promises not to write: a write ends the
        process then. InvalidError: private, and it is not sealed; ReleasedError: it was released."""
        tensors = self.private() if private else self
        return {name: to_torch(tensors[name], entry) for name, entry in zip(self, self._entries())}

    def _entries(self) -> list[Entry]:
        """Those of types that only PyTorch has are bytes here, with the type's name and shape."""
        return [Entry(name, kind or one.dtype, None if kind else one.dtype, shape if kind else one.shape, 0, one.nbytes)
                for (name, one), (kind, shape) in zip(self.items(), self._held.types())]

    def release(self) -> None:
        """Let go. Tensors that were taken from it stay; all other use raises ReleasedError."""
        # The first: later calls change nothing. Known to whoever finds it released.
        self._released_by = self._released_by or threading.get_ident()
        self._held.release()

    def __enter__(self) -> Bundle:
        self._held.id
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            held: object = self._held
            if isinstance(held, _Lost):
                return _lost, (held.error,)
            return _unpickled, (self.ref(hold=_HOLD),)
        except ReleasedError as error:
            return _too_late(self, error)

    def __deepcopy__(self, memo: dict[int, Any]) -> Bundle:
        """A bundle that nobody else writes to: of the same memory if all of it is sealed, else of copies. Tensors in the same place,
        such as tied weights, stay one. TypeError: what is to be copied has a type that only PyTorch knows; ReleasedError: it was
        released."""
        if all(tensor.sealed for tensor in self.values()):
            opened: Bundle = _tmesh.open(self.ref())
            return opened
        if any(kind for kind, _shape in self._held.types()):
            raise TypeError("a bundle that is not sealed and has elements of a type that only PyTorch knows cannot be copied: "
                            "seal its tensors")
        copies = _together({name: _bytes_of_ours(tensor) for name, tensor in self.items()})
        return Bundle(_tmesh.make_bundle(tuple(copies.items()), self.metadata or None, False, None))

    @property
    def lost(self) -> bool:
        """Whether it was unpickled too late: its memory is gone, and any use raises the error."""
        held: object = self._held
        return isinstance(held, _Lost)

    def __repr__(self) -> str:
        if self._released_by is not None:
            return "<tmesh.Bundle, released>"
        if self.lost:
            return "<tmesh.Bundle, lost>"
        return f"<tmesh.Bundle of {len(self)} tensors: {', '.join([*self][:4])}{', ...' * (len(self) > 4)}>"


class _Lost:
    """What a Bundle has in the place of both its members when it is lost: any use raises."""

    def __init__(self, error: Error) -> None:
        self.error = error

    def _raise(self, *_: Any) -> NoReturn:
        raise type(self.error)(*self.error.args)

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()

    __getitem__ = __contains__ = __iter__ = __len__ = _raise


def _lost(error: Error) -> Bundle:
    bundle = Bundle.__new__(Bundle)
    # For all to see as what it would be.
    nothing: Any = _Lost(error)
    bundle._held = bundle._numbers = nothing
    return bundle


def _too_late(bundle: Bundle, error: ReleasedError) -> tuple[Any, ...]:
    late = sent.too_late(bundle._released_by)
    if late is None:
        raise error
    return _lost, (NotFoundError(errno.ENOENT, late),)


def _unpickled(ref: dict[str, Any]) -> Any:
    """An exception in the middle of another's unpickling would break it."""
    try:
        return _tmesh.open(ref)
    except Error as error:
        return _lost(error)


def _reduce(bundle: Bundle) -> tuple[Any, ...]:
    """Held until it is taken, region by region."""
    parcels: list[bytes] = []
    sent.here.look()
    try:
        if bundle.lost:
            return bundle.__reduce__()
        ref = bundle.ref()
        for region in bundle._held.regions():
            parcels.append(sent.here.send(region, False))
    except BaseException as error:
        for parcel in parcels:
            sent.here.give_up(parcel)
        if isinstance(error, ReleasedError):
            return _too_late(bundle, error)
        raise
    return _received, (ref, parcels)


def _received(ref: dict[str, Any], parcels: list[bytes]) -> Any:
    bundle = _unpickled(ref)
    for parcel in parcels:
        sent.here.give_up(parcel)
    return bundle


ForkingPickler.register(Bundle, _reduce)


class _Bytes(NamedTuple):
    """What is copied into a bundle: elements in C order, as bytes."""

    flat: Any  # NumPy, uint8
    dtype: str
    shape: tuple[int, ...]

    def place(self) -> tuple[Any, ...]:
        """Equal for what lies in the same memory, such as tied weights."""
        return self.flat.__array_interface__["data"][0], self.dtype, self.shape


def _bytes_of_torch(torch: Any, tensor: Any) -> _Bytes | None:
    """Also of types that NumPy has not."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        if tensor.device.type != "cpu" or _tmesh.empty(0, dtype).dtype != dtype:
            return None
        import numpy

        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        # By DLPack, which also works where PyTorch was built for another NumPy than is there.
        flat = numpy.from_dlpack(plain.reshape(-1).view(torch.uint8))
        return _Bytes(flat, dtype, tuple(tensor.shape))
    except (ImportError, RuntimeError, InvalidError):
        return None


def _bytes_of_ours(tensor: _tmesh.Tensor) -> _Bytes:
    plain = tensor if is_contiguous(tensor) else _tmesh.put(tensor, seal=False)
    return _Bytes(plain.reshape(-1).view("uint8").numpy(), tensor.dtype, tensor.shape)


def _bytes_of(value: object) -> _Bytes | None:
    """None: NumPy does not know its type, or has none that is ours."""
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        return _bytes_of_torch(torch, value)
    try:
        import numpy

        masked: Any = numpy.ma  # has no types
        if masked.is_masked(value):
            return None  # put() refuses it
        array = numpy.ascontiguousarray(value) if numpy.ndim(value) else numpy.asarray(value)  # type: ignore[arg-type]
        _tmesh.empty(0, array.dtype).numpy()
    except (ImportError, TypeError, InvalidError, UnsupportedError):
        return None
    return _Bytes(array.reshape(-1).view("uint8"), array.dtype.name, array.shape)


def _together(found: dict[str, _Bytes]) -> dict[str, _tmesh.Tensor]:
    """Copies, one behind the other in one region; of what shares memory there is one."""
    alone = {one.place(): one for one in found.values()}
    offsets, end = _tmesh.plan_bundle(tuple((one.dtype, one.shape) for one in alone.values()))
    region = _tmesh.empty(end, "uint8")
    made: dict[tuple[Any, ...], _tmesh.Tensor] = {}
    for one, at in zip(alone.values(), offsets):
        part = region[at:at + one.flat.nbytes]
        if one.flat.nbytes:
            _tmesh.write(part, one.flat)
        made[one.place()] = part.view(one.dtype).reshape(one.shape)
    return {name: made[one.place()] for name, one in found.items()}


def bundle(tensors: Mapping[str, object], *, metadata: str | None = None, seal: bool = True,
           label: str | None = None) -> Bundle:
    """A Bundle of tensors by their names, in that order, and of text that says more, such as JSON.

    Of a Tensor the memory itself goes in, whole regions of it: it is sealed then, unless seal=False.
    What else put() takes is copied once: PyTorch's tensors, and what NumPy has types for, into one region, where
    what shares memory (tied weights) goes on sharing it.
    label: a name for people.
    InvalidError: what is to be sealed lies in an arena; TypeError: it is no dict by names; other errors as of tmesh.put()."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"a bundle is made of a dict of names and arrays, not {type(tensors).__name__}")
    if metadata is not None and not isinstance(metadata, (str, bytes)):
        raise TypeError("a bundle's metadata is text, such as json.dumps() gives, "
                        f"not {type(metadata).__name__}")
    pairs: dict[str, _tmesh.Tensor | None] = {}
    arrays = {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"a bundle's tensors have names, each a str, not {name!r}")
        try:
            if isinstance(value, _tmesh.Tensor):
                pairs[name] = value
            elif (found := _bytes_of(value)) is not None:
                pairs[name], arrays[name] = None, found
            else:
                pairs[name] = _tmesh.put(value, seal=False)
        except Exception as error:
            error.add_note(f"It is the bundle's {name!r} that cannot be taken.")
            raise
    copies = _together(arrays) if arrays else {}
    whole = tuple((name, copies[name] if tensor is None else tensor) for name, tensor in pairs.items())
    return Bundle(_tmesh.make_bundle(whole, metadata, seal, label))
