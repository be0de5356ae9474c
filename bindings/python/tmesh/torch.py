# SPDX-License-Identifier: MIT
"""PyTorch's CPU tensors through the queues and pipes of torch.multiprocessing, by way of tmesh.

    import tmesh.torch
    tmesh.torch.register()       # where tensors are sent from
    queue.put(tensor)            # as before

As with PyTorch's own way, the first send moves the tensor's storage into shared memory, which
copies it once, and both sides then have the same memory and may both write. A tensor over tmesh's
memory (torch.from_dlpack(tmesh.zeros(...))) and one that was sent before are not copied at all.
What differs:

  - Only the tensor that was sent moves. Others that shared its storage keep the old memory.
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


def _bytes_of(tensor: Any) -> Any:
    """All of its storage."""
    count = _storage(tensor).nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)


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
    return data.view(dtype).as_strided(size, stride, offset)


def _share(tensor: Any) -> _tmesh.Tensor:
    """The memory of its storage, which from now on is tmesh's."""
    ours = _tmesh.from_address(_storage(tensor).data_ptr())
    if ours is not None:
        return ours
    ours = _tmesh.put(_bytes_of(tensor), seal=False)
    layout = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()
    # What was made in this mode can be changed in it only; leaves that want gradients can be too.
    with torch.inference_mode():
        tensor.set_(_laid_out(_over(ours), *layout))
    return ours


def _placed(tensor: Any) -> tuple[_tmesh.Tensor, bool] | None:
    """Its memory, shared if need be, and whether that has its layout too; None where only PyTorch
    can send it."""
    address = _is_plain(tensor) and tensor.data_ptr()
    if not address:
        return None
    # Most are what torch.from_dlpack() made, as they were made.
    found = _tmesh.find(address, _NAMES.get(tensor.dtype, ""), tensor.shape, tensor.stride())
    ours = _share(tensor) if found is None else found
    if not ours.writable:
        raise AccessError(errno.EACCES, "this tensor lies in read-only memory, which PyTorch could "
                          "not know over there: send the tmesh.Tensor")
    laid_out = _as_ours(tensor, ours) if found is None else found
    return (ours, False) if laid_out is None else (laid_out, True)


def _reduce(tensor: Any) -> tuple[Any, ...]:
    placed = _placed(tensor)
    if not placed:
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    ours, has_layout = placed
    layout = None
    if not has_layout:
        layout = tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()
        ours = ours if ours.dtype == "uint8" else ours.reshape(-1).view("uint8")
    is_parameter = type(tensor) is _Parameter
    sent.here.look()
    parcel = sent.here.send(ours, True)
    if layout or is_parameter or tensor.requires_grad:
        return _rebuild, (parcel, layout, is_parameter, tensor.requires_grad)
    return _rebuild, (parcel,)


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


def _rebuild(parcel: bytes, layout: Any = None, is_parameter: bool = False,
             requires_grad: bool = False) -> Any:
    ours = sent.here.unpickle(parcel)
    if ours.lost:
        return _lost()
    tensor = _over(ours)
    if layout:
        tensor = _laid_out(tensor, *layout)
    if is_parameter:
        return _Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def register() -> None:
    """From now on this process sends its CPU tensors by way of tmesh, through whatever pickles as
    multiprocessing does: queues, pipes, pools, concurrent.futures. Whoever receives them need not
    call this."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)
