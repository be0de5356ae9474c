# SPDX-License-Identifier: MIT
"""Sends PyTorch's CPU tensors through torch.multiprocessing's queues and pipes by tmesh.

    import tmesh.torch
    tmesh.torch.register()       # where tensors are sent from
    queue.put(tensor)            # as before

As in PyTorch's own way, the first send moves the tensor's storage into shared memory. This copies it once; then both
sides have the same memory and may write. A tensor over tmesh's memory (torch.from_dlpack(tmesh.zeros(...))) is not
copied, nor is one that was sent before. All tensors over one storage stay one memory:

  - A tensor and its base move into tmesh's memory if no other tensors have their storage. Nothing stays in
    /dev/shm, no descriptor passes through a server thread of the sender, and later views have that memory too.
  - If other tensors have the storage (more views, a state_dict), or if it is already in PyTorch's shared
    memory, it goes PyTorch's own way, which moves it for all of them at once.
  - For autograd a move is a change in place. If a backward pass needs the tensor, send it before the
    forward pass, or after both.
  - The sender keeps a tensor until it was taken out. It lets go at its next send, or at its end. A
    tensor that no process ever takes stays until the sender ends.

Other tensors go PyTorch's own way: on other devices, sparse, nested, or without plain memory. A read-only tensor is
refused, since PyTorch has no such tensors. Send the tmesh.Tensor instead.

A process that has imported this module sends tensors in tmesh's memory by tmesh, even without register(). PyTorch's own
way would move them into memory that earlier receivers do not have.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import importlib
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from . import _tmesh, in_transit
from .errors import AccessError, InvalidError, NotFoundError

__all__ = ["register"]

# Imported by name, since mypy would otherwise read all of PyTorch if it is installed.
torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")

_Parameter: Any = torch.nn.Parameter
_STRIDED: Any = torch.strided
# The name in PyTorch 2 and before. Making a typed storage takes several microseconds.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage

# PyTorch's wrapper around it uses attributes that a capsule does not have.
_from_dlpack: Any = getattr(torch._C, "_from_dlpack", torch.from_dlpack)

# The types that torch.from_dlpack() supports in every version.
_DTYPES = frozenset(["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                     "float32", "float64", "complex64", "complex128"])
_NAMES: dict[Any, str] = {getattr(torch, name): name for name in _DTYPES}


def _is_plain(tensor: Any) -> bool:
    """Whether its elements are in CPU memory and laid out by its strides."""
    return bool(tensor.is_cpu and tensor.layout is _STRIDED and not tensor.is_nested
                and (not tensor.requires_grad or tensor.is_leaf)
                and not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized))


def _bytes_of(storage: Any) -> Any:
    """Return all of its bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _as_ours(tensor: Any, ours: _tmesh.Tensor) -> _tmesh.Tensor | None:
    """Return ours, which is all of the tensor's storage, with the tensor's layout; None if only PyTorch can make that
    layout."""
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        return None
    offset = tensor.storage_offset() * tensor.element_size()
    end = offset + tensor.numel() * tensor.element_size()
    try:
        whole = ours.reshape(-1).view("uint8")
    except InvalidError:
        return None
    if end > whole.nbytes or not tensor.is_contiguous():
        return None
    return whole[offset:end].view(dtype).reshape(tuple(tensor.shape))


def _over(ours: _tmesh.Tensor) -> Any:
    return _from_dlpack(ours.dlpack())


def _laid_out(data: Any, dtype: Any, size: Any, stride: Any, offset: int) -> Any:
    """Lay out data, which is all of a storage. Its size need not be a multiple of the dtype's."""
    rest = data.numel() % torch.empty(0, dtype=dtype).element_size()
    whole = data[:-rest] if rest else data
    return whole.view(dtype).as_strided(size, stride, offset)


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()


def _set(tensor: Any, data: Any) -> None:
    """Give the tensor another storage."""
    # A tensor made in inference mode can only be changed in that mode; leaves that require gradients can be changed
    # there too.
    with torch.inference_mode():
        tensor.set_(_laid_out(data, *_layout(tensor)))


def _moved(tensor: Any) -> _tmesh.Tensor | None:
    """Move the tensor's storage, and return the new memory. None if tensors other than this one and its base have the
    storage, since moving would separate them. It is then in PyTorch's shared memory, for all of them."""
    if _storage(tensor).is_shared():
        return None
    moving = [tensor] if tensor._base is None else [tensor._base, tensor]
    weak = reductions.StorageWeakRef(_storage(tensor))
    ours = _tmesh.put(_bytes_of(_storage(tensor)), seal=False)
    with torch.inference_mode():
        data = _over(ours)
    for each in moving:
        _set(each, data)
    # Not every PyTorch has a count of a storage's users. If there are no others, it has ended by now.
    others = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
    if others is None:
        return _found(tensor)
    for each in moving:
        _set(each, _bytes_of(others))
    others.share_memory_()
    return None


def _found(tensor: Any) -> _tmesh.Tensor | None:
    """Return all of its storage, if that is in tmesh's memory."""
    storage = _storage(tensor)
    address, size = storage.data_ptr(), storage.nbytes()
    ours, before = _tmesh.begins_at(address), 0
    if ours is None:
        around = _tmesh.containing(address)
        if around is None or around[1] + size > around[0].nbytes:
            return None
        ours, before = around
    return _tmesh.part(ours, "uint8", (size,), (1,), _tmesh.layout(ours)[3] + before)


def _share(tensor: Any) -> _tmesh.Tensor | None:
    """Return the memory of its storage, moved to tmesh's if needed; None if only PyTorch can share it."""
    ours = _found(tensor)
    return _moved(tensor) if ours is None else ours


class _Storage:
    """A storage in a message. All of its tensors share one on arrival."""

    def __init__(self, tensor: Any, ours: _tmesh.Tensor) -> None:
        # While this exists no other storage gets its address; the memory itself may be freed.
        self.weak = reductions.StorageWeakRef(_storage(tensor))
        self.ours = ours

    def __reduce__(self) -> tuple[Any, ...]:
        key = "torch", self.ours.id
        region = in_transit.first_of(None, *key)
        mark = None
        if region is None:
            region = in_transit.Writable(self.ours)
            mark = in_transit.is_first(region, *key)
        return _restored, (region, _tmesh.layout(self.ours), mark)


def _refuse_readers(ours: _tmesh.Tensor) -> None:
    if not ours.writable:
        raise AccessError(errno.EACCES, "this tensor lies in read-only memory, which PyTorch could "
                          "not know over there: send the tmesh.Tensor")


def _placed(tensor: Any) -> tuple[_tmesh.Tensor, bool] | None:
    """Return its memory, shared if needed, and whether that has the tensor's layout; None if only PyTorch can send
    it."""
    address = _is_plain(tensor) and tensor.data_ptr()
    if not address:
        return None
    # Most tensors come from torch.from_dlpack() unchanged, so look for the exact layout first.
    found = _tmesh.find(address, _NAMES.get(tensor.dtype, ""), tensor.shape, tensor.stride())
    ours = _share(tensor) if found is None else found
    if ours is None:
        return None
    _refuse_readers(ours)
    laid_out = _as_ours(tensor, ours) if found is None else found
    return (ours, False) if laid_out is None else (laid_out, True)


def _reduce(tensor: Any, share: Callable[[Any], _tmesh.Tensor | None] = _share) -> tuple[Any, ...]:
    if not _is_plain(tensor) or not tensor.data_ptr():
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    key = "storage", _storage(tensor)._cdata
    storage = in_transit.first_of(None, *key)
    marks: tuple[in_transit.First, ...] = ()
    if storage is None:
        ours = share(tensor)
        if ours is None:
            return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
        _refuse_readers(ours)
        storage = _Storage(tensor, ours)
        marks = in_transit.is_first(storage, "storage", _storage(tensor)._cdata),
    in_transit.here.look()
    return _rebuild, (storage, _layout(tensor), type(tensor) is _Parameter, tensor.requires_grad, *marks)


def _found_to_send(tensor: Any) -> _tmesh.Tensor | None:
    """Return _found(), or None if PyTorch's way gives receivers the same: no process writes to it, or it came by a fork."""
    try:
        ours = _found(tensor)
        if ours is not None and ours.writable:
            ours.ref(writable=True)
            return ours
    except AccessError:
        pass
    return None


def _reduce_found(tensor: Any) -> tuple[Any, ...]:
    """Reduce without register(): a storage in tmesh's memory stays there, others go PyTorch's own way."""
    return _reduce(tensor, _found_to_send)


class Lost(torch.Tensor):  # type: ignore[misc]
    """A tensor that arrived too late: its memory is gone, and any use raises. An exception during unpickling would
    break the whole message."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise NotFoundError(errno.ENOENT, "this tensor is lost, because its sender ended before a receiver took it: "
                            "call get() before join()")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _lost, ()

    def __repr__(self, **_: Any) -> str:
        return "<a tensor that is lost>"


def _lost() -> Any:
    return torch.Tensor._make_subclass(Lost, torch.empty(0))


def _restored(region: _tmesh.Tensor, layout: tuple[Any, ...], _: Any) -> Any:
    return _lost() if region.lost else _over(in_transit.part(region, *layout))


def _rebuild(data: Any, layout: Any, is_parameter: bool, requires_grad: bool, *_: Any) -> Any:
    if type(data) is Lost:
        return _lost()
    tensor = _laid_out(data, *layout)
    if is_parameter:
        return _Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _to_read(tensor: _tmesh.Tensor) -> Any:
    """Return it as PyTorch's, for readers only."""
    # Some versions do not accept truth values.
    plain = tensor.view("uint8") if tensor.dtype == "bool" else tensor
    made = _from_dlpack(plain.dlpack(allow_readonly=True))
    return made.view(torch.bool) if tensor.dtype == "bool" else made


def _register_collate() -> None:
    """Let default_collate() of a DataLoader stack Tensors like NumPy's arrays."""
    collate: Any = importlib.import_module("torch.utils.data._utils.collate")
    known = getattr(collate, "default_collate_fn_map", None)
    if known is not None:
        known[_tmesh.Tensor] = lambda batch, *, collate_fn_map=None: collate.collate_tensor_fn(
            [_to_read(tensor) for tensor in batch], collate_fn_map=collate_fn_map)


def _register(reduce: Any) -> None:
    for kind in torch.Tensor, _Parameter:
        ForkingPickler.register(kind, reduce)


def register() -> None:
    """Send this process's CPU tensors by tmesh from now on, in pickles of multiprocessing: queues, pipes, pools,
    concurrent.futures. Receivers need not call this."""
    _register(_reduce)


_register(_reduce_found)
_register_collate()
