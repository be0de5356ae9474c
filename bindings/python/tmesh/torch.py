# SPDX-License-Identifier: MIT
"""PyTorch's CPU tensors through the queues and pipes of torch.multiprocessing, by way of tmesh.

    import tmesh.torch
    tmesh.torch.register()       # where tensors are sent from
    queue.put(tensor)            # as before

As with PyTorch's own way, the first send moves the tensor's storage into shared memory, which
copies it once, and both sides then have the same memory and may both write. A tensor over tmesh's
memory (torch.from_dlpack(tmesh.zeros(...))) and one that was sent before are not copied at all.
What differs:

  - Only what was sent moves. Tensors of one message that share a storage go on sharing it, at both ends (a slice
    beside its whole, tied weights); others that shared it keep the old memory.
  - To move is a change in place, in autograd's eyes: send before the forward pass that needs the
    tensor for its backward pass, or after both.
  - Nothing is left in /dev/shm, and no descriptors pass through a server thread of the sender.
  - The sender keeps what it sent until it was taken out; it lets go when it sends something
    after that, or ends. What nobody ever takes stays until it ends.

Tensors that are not on the CPU, sparse and nested ones and others that have no plain memory go
PyTorch's own way. A read-only tensor is refused: PyTorch could not know. Send the tmesh.Tensor.
"""

from __future__ import annotations

import errno
import importlib
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from . import _tmesh, sent
from .errors import AccessError, InvalidError, NotFoundError

__all__ = ["register"]

# Not by their names: mypy would read all of PyTorch, where that is installed.
torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")

_Parameter: Any = torch.nn.Parameter
_STRIDED: Any = torch.strided
# Its name in PyTorch 2 and before. A typed one takes several microseconds to make.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage

# PyTorch's wrapper around it asks of a capsule what only other objects have.
_from_dlpack: Any = getattr(torch._C, "_from_dlpack", torch.from_dlpack)

# Those that torch.from_dlpack() knows in every version.
_DTYPES = frozenset(["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                     "float32", "float64", "complex64", "complex128"])
_NAMES: dict[Any, str] = {getattr(torch, name): name for name in _DTYPES}


def _is_plain(tensor: Any) -> bool:
    """Whether its elements lie in memory of the CPU, as its strides say."""
    return bool(tensor.is_cpu and tensor.layout is _STRIDED and not tensor.is_nested
                and (not tensor.requires_grad or tensor.is_leaf)
                and not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized))


def _bytes_of(storage: Any) -> Any:
    """All of it."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _as_ours(tensor: Any, ours: _tmesh.Tensor) -> _tmesh.Tensor | None:
    """ours, which is all of the tensor's storage, with the tensor's layout; None where only
    PyTorch can do that."""
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
    """data is all of a storage, of which the last element of that dtype may end before the end."""
    rest = data.numel() % torch.empty(0, dtype=dtype).element_size()
    whole = data[:-rest] if rest else data
    return whole.view(dtype).as_strided(size, stride, offset)


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()


def _move(tensor: Any, data: Any) -> None:
    """To another storage that has the same in it."""
    # What was made in this mode can be changed in it only; leaves that want gradients can be too.
    with torch.inference_mode():
        tensor.set_(_laid_out(data, *_layout(tensor)))


class _Storage:
    """A storage in a message, all of whose tensors get one where it arrives, and have one here. From now on it is
    tmesh's: the first of them moved, and those move after it that the message has too."""

    def __init__(self, tensor: Any) -> None:
        storage = _storage(tensor)
        ours = _tmesh.begins_at(storage.data_ptr())
        self.data: Any = None
        # Its address is of none other meanwhile; the memory itself may go.
        self.weak = reductions.StorageWeakRef(storage)
        if ours is None:
            ours = _tmesh.put(_bytes_of(storage), seal=False)
            with torch.inference_mode():
                self.data = _over(ours)
            _move(tensor, self.data)
            storage = _storage(tensor)
            self.moved = reductions.StorageWeakRef(storage)
        _refuse_readers(ours)
        self.ours = _tmesh.part(ours, "uint8", (storage.nbytes(),), (1,), _tmesh.layout(ours)[3])

    def follow(self, tensor: Any) -> None:
        if self.data is not None and _storage(tensor)._cdata != self.moved.cdata:
            _move(tensor, self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        key = "torch", self.ours.id
        region = sent.first_of(None, *key)
        mark = None
        if region is None:
            region = sent.Writable(self.ours)
            mark = sent.is_first(region, *key)
        return _restored, (region, _tmesh.layout(self.ours), mark)


def _share(tensor: Any) -> _tmesh.Tensor:
    """The memory of its storage, which from now on is tmesh's."""
    return _Storage(tensor).ours


def _refuse_readers(ours: _tmesh.Tensor) -> None:
    if not ours.writable:
        raise AccessError(errno.EACCES, "this tensor lies in read-only memory, which PyTorch could "
                          "not know over there: send the tmesh.Tensor")


def _placed(tensor: Any) -> tuple[_tmesh.Tensor, bool] | None:
    """Its memory, shared if need be, and whether that has its layout too; None where only PyTorch
    can send it."""
    address = _is_plain(tensor) and tensor.data_ptr()
    if not address:
        return None
    # Most are what torch.from_dlpack() made, as they were made.
    found = _tmesh.find(address, _NAMES.get(tensor.dtype, ""), tensor.shape, tensor.stride())
    ours = _share(tensor) if found is None else found
    _refuse_readers(ours)
    laid_out = _as_ours(tensor, ours) if found is None else found
    return (ours, False) if laid_out is None else (laid_out, True)


def _reduce(tensor: Any) -> tuple[Any, ...]:
    if not _is_plain(tensor) or not tensor.data_ptr():
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    sent.here.look()
    key = "storage", _storage(tensor)._cdata
    storage = sent.first_of(None, *key)
    marks: tuple[sent.First, ...] = ()
    if storage is None:
        storage = _Storage(tensor)
        marks = sent.is_first(storage, *key), sent.is_first(storage, "storage", _storage(tensor)._cdata)
    else:
        storage.follow(tensor)
    return _rebuild, (storage, _layout(tensor), type(tensor) is _Parameter, tensor.requires_grad, *marks)


class Lost(torch.Tensor):  # type: ignore[misc]
    """What came too late: its memory is gone, and any use raises. An exception in the middle of another's
    unpickling would break it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise NotFoundError(errno.ENOENT, "this tensor is lost: what was sent is to be taken before its sender ends, so "
                            "get() comes before join()")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _lost, ()

    def __repr__(self, **_: Any) -> str:
        return "<a tensor that is lost>"


def _lost() -> Any:
    return torch.Tensor._make_subclass(Lost, torch.empty(0))


def _restored(region: _tmesh.Tensor, layout: tuple[Any, ...], _: Any) -> Any:
    return _lost() if region.lost else _over(sent.part(region, *layout))


def _rebuild(data: Any, layout: Any, is_parameter: bool, requires_grad: bool, *_: Any) -> Any:
    if type(data) is Lost:
        return _lost()
    tensor = _laid_out(data, *layout)
    if is_parameter:
        return _Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def register() -> None:
    """From now on this process sends its CPU tensors by way of tmesh, through whatever pickles as
    multiprocessing does: queues, pipes, pools, concurrent.futures. Whoever receives them need not
    call this."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)
