# SPDX-License-Identifier: MIT
"""Named tensors as one unit: a model's weights, an adapter, a batch.

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

from . import _tmesh, in_transit
from .elements import Entry, is_contiguous, to_torch
from .errors import Error, InvalidError, NotFoundError, ReleasedError, UnsupportedError

# How long a pickle holds a bundle for its receiver, in seconds, as for Tensors.
_HOLD = 60.0


class Bundle(Mapping[str, _tmesh.Tensor]):
    """Named tensors in a few regions, under one ref; made by tmesh.bundle() and tmesh.open(). A bundle never changes. A
    tensor taken from it stays valid after the bundle is released."""

    _released_by: int | None = None  # the thread that released it

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

    # Compare by identity, as tensors do.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def metadata(self) -> str:
        """The text that its producer gave it, "" if none."""
        return self._held.metadata

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' elements."""
        return self._held.nbytes

    @property
    def id(self) -> str:
        """The id of the region that lists the tensors."""
        return self._held.id

    def ref(self, *, writable: bool = False, hold: float | None = None) -> dict[str, Any]:
        """Return a ref for tmesh.open(): a dict of plain values, for reading unless writable. By default it does not
        hold the memory. hold: hold it for so many seconds, or until a process has opened it, as for a Tensor.
        SealedError: writable, and a tensor of it is sealed. AccessError: writable, and this process may not write.
        ReleasedError: it was released. InvalidError: the time is out of range."""
        ref: dict[str, Any] = json.loads(self._held.ref(writable, hold))
        return ref

    def send(self, socket: Any, /, *, writable: bool = False, timeout: float | None = None) -> None:
        """Hand the bundle over by a connected Unix socket, or its descriptor, to recv_bundle(). A socket takes a few
        hundred regions at once, so the peer has to receive meanwhile. PeerTimeoutError: timeout seconds have passed.
        GoneError: the other end is closed. AccessError: writable, and this process may not write. SealedError:
        writable, and it is sealed. ReleasedError: it was released."""
        self._held.send(socket, writable, timeout)

    def private(self) -> dict[str, _tmesh.Tensor]:
        """Return all tensors in one copy-on-write view of each region, as Tensor.private() does for one tensor. Other
        processes do not see writes to it. Each call makes new views. InvalidError: the bundle is not sealed.
        ReleasedError: it was released."""
        return dict(zip(self, self._held.private()))

    def state_dict(self, *, private: bool = True) -> dict[str, Any]:
        """Return all tensors as PyTorch's, without a copy. They are in one copy-on-write view, which is new at each
        call. A write copies a page, and other processes do not see it. private=False promises not to write: a write
        would end the process. InvalidError: private, and the bundle is not sealed. ReleasedError: it was released."""
        tensors = self.private() if private else self
        return {name: to_torch(tensors[name], entry) for name, entry in zip(self, self._entries())}

    def _entries(self) -> list[Entry]:
        """Return the entries. Tensors of types that only PyTorch has are bytes here, with the type's name and shape."""
        return [Entry(name, kind or one.dtype, None if kind else one.dtype, shape if kind else one.shape, 0, one.nbytes)
                for (name, one), (kind, shape) in zip(self.items(), self._held.types())]

    def release(self) -> None:
        """Release the bundle. Tensors that were taken from it stay valid; all other use raises ReleasedError."""
        # Set it before the release, so that a thread that finds the bundle released can read it. Later calls do not
        # change it.
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
            return _stored, (*_elements(self), self.metadata, all(tensor.sealed for tensor in self.values()))
        except ReleasedError as error:
            return _too_late(self, error)

    def __copy__(self) -> Bundle:
        """Return a bundle of the same memory."""
        if self.lost:
            return self
        opened: Bundle = _tmesh.open(self.ref())
        return opened

    def __deepcopy__(self, memo: dict[int, Any]) -> Bundle:
        """Return a bundle that no other process writes to: the same memory if all of it is sealed, else copies. Tensors
        in the same place, such as tied weights, stay one. TypeError: a tensor to copy has a type that only PyTorch has.
        ReleasedError: it was released."""
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
        """Whether its memory was gone when it was unpickled. Any use then raises the error."""
        held: object = self._held
        return isinstance(held, _Lost)

    def __repr__(self) -> str:
        if self._released_by is not None:
            return "<tmesh.Bundle, released>"
        if self.lost:
            return "<tmesh.Bundle, lost>"
        return f"<tmesh.Bundle of {len(self)} tensors: {', '.join([*self][:4])}{', ...' * (len(self) > 4)}>"


class _Lost:
    """The members of a lost Bundle: any use raises its error."""

    def __init__(self, error: Error) -> None:
        self.error = error

    def _raise(self, *_: Any) -> NoReturn:
        raise type(self.error)(*self.error.args)

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()

    __getitem__ = __contains__ = __iter__ = __len__ = _raise


def _lost(error: Error) -> Bundle:
    bundle = Bundle.__new__(Bundle)
    # Make it a Bundle that raises at use.
    nothing: Any = _Lost(error)
    bundle._held = bundle._numbers = nothing
    return bundle


def _too_late(bundle: Bundle, error: ReleasedError) -> tuple[Any, ...]:
    late = in_transit.too_late(bundle._released_by)
    if late is None:
        raise error
    return _lost, (NotFoundError(errno.ENOENT, late),)


def _unpickled(ref: dict[str, Any]) -> Any:
    """Return a lost bundle instead of raising: an exception would break the unpickling of the whole message."""
    try:
        return _tmesh.open(ref)
    except Error as error:
        if in_transit.is_passing(error):
            raise
        return _lost(error)


_ALIGNMENT = 64


def _elements(bundle: Bundle) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """Return the elements that pickle stores, each place once, and the place of each name."""
    places: dict[Any, int] = {}
    found: list[tuple[Any, ...]] = []
    names: dict[str, int] = {}
    for name, tensor in bundle.items():
        names[name] = places.setdefault((tensor.id, *_tmesh.layout(tensor)), len(found))
        if names[name] == len(found):
            found.append(in_transit.elements_of(tensor))
    return found, names


def _stored(found: list[tuple[Any, ...]], names: dict[str, int], metadata: str, sealed: bool) -> Bundle:
    """Make a bundle in one region of the elements that pickle stored."""
    ends = [0]
    for data, *_ in found:
        ends.append(ends[-1] + -(-len(data) // _ALIGNMENT) * _ALIGNMENT)
    region = _tmesh.empty((max(ends[-1], 1),), "uint8")
    for start, (data, *_) in zip(ends, found):
        if data:
            _tmesh.write(region[start:start + len(data)], data)
    tensors = [_tmesh.part(region, dtype, shape, strides, start) for start, (_, dtype, shape, strides) in zip(ends, found)]
    return bundle({name: tensors[at] for name, at in names.items()}, metadata=metadata or None, seal=sealed)


def _reduce_held(bundle: Bundle) -> tuple[Any, ...]:
    """Pickle a bundle for loky, which sends to processes of this machine and does not name the receiver."""
    try:
        return bundle.__reduce__() if bundle.lost else (_unpickled, (bundle.ref(hold=_HOLD),))
    except ReleasedError as error:
        return _too_late(bundle, error)


def _reduce(bundle: Bundle) -> tuple[Any, ...]:
    """Pickle a bundle, held region by region until the receiver has opened it."""
    in_transit.here.look()
    try:
        with in_transit.message() as parcels:
            if bundle.lost:
                return bundle.__reduce__()
            ref = bundle.ref()
            for region in bundle._held.regions():
                in_transit.send(region, False)
    except ReleasedError as error:
        return _too_late(bundle, error)
    return _received, (ref, parcels)


def _received(ref: dict[str, Any], parcels: list[bytes]) -> Any:
    bundle = _unpickled(ref)
    for parcel in parcels:
        in_transit.let_go(parcel)
    return bundle


ForkingPickler.register(Bundle, _reduce)
in_transit.register_held(Bundle, _reduce_held)


class _Bytes(NamedTuple):
    """An array to copy into a bundle: elements in C order, as bytes."""

    flat: Any  # NumPy, uint8
    dtype: str
    shape: tuple[int, ...]

    def place(self) -> tuple[Any, ...]:
        """Return a key that is equal for arrays of the same memory, such as tied weights."""
        return self.flat.__array_interface__["data"][0], self.dtype, self.shape


def _bytes_of_torch(torch: Any, tensor: Any) -> _Bytes | None:
    """Return a PyTorch tensor's bytes, even if NumPy does not have its type."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        if tensor.device.type != "cpu" or _tmesh.empty(0, dtype).dtype != dtype:
            return None
        import numpy

        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        # Use DLPack, which also works if PyTorch was built for another version of NumPy than the installed one.
        flat = numpy.from_dlpack(plain.reshape(-1).view(torch.uint8))
        return _Bytes(flat, dtype, tuple(tensor.shape))
    except (ImportError, RuntimeError, InvalidError):
        return None


def _bytes_of_ours(tensor: _tmesh.Tensor) -> _Bytes:
    plain = tensor if is_contiguous(tensor) else _tmesh.put(tensor, seal=False)
    return _Bytes(plain.reshape(-1).view("uint8").numpy(), tensor.dtype, tensor.shape)


def _bytes_of(value: object) -> _Bytes | None:
    """Return an array's bytes; None if NumPy does not know its type, or tmesh does not have it."""
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        return _bytes_of_torch(torch, value)
    try:
        import numpy

        masked: Any = numpy.ma  # NumPy is installed without its types
        if masked.is_masked(value):
            return None  # put() refuses it, with a reason
        array = numpy.ascontiguousarray(value) if numpy.ndim(value) else numpy.asarray(value)  # type: ignore[arg-type]
        _tmesh.empty(0, array.dtype).numpy()
    except (ImportError, TypeError, InvalidError, UnsupportedError):
        return None
    return _Bytes(array.reshape(-1).view("uint8"), array.dtype.name, array.shape)


def _together(found: dict[str, _Bytes]) -> dict[str, _tmesh.Tensor]:
    """Copy arrays into one region, one behind the other. Arrays that share memory are copied once."""
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
    """Make a Bundle of tensors by their names, in that order. metadata: text about them, such as JSON.

    A Tensor is not copied: the whole of its region becomes part of the bundle, and is sealed unless seal=False. Other
    arrays that put() accepts are copied once into one region: PyTorch's tensors, and types that NumPy has. Arrays that
    share memory (tied weights) still share it. label: a name for people. InvalidError: a tensor to seal is in an arena.
    TypeError: it is no dict by names. Other errors are as for tmesh.put()."""
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
