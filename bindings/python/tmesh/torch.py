# SPDX-License-Identifier: MIT
"""PyTorch's CPU tensors through the queues and pipes of torch.multiprocessing, by way of tmesh.

    import tmesh.torch
    tmesh.torch.register()       # where tensors are sent from
    queue.put(tensor)            # as before

As with PyTorch's own way, the first send moves the tensor's storage into shared memory, which
copies it once, and both sides then have the same memory and may both write. A tensor over tmesh's
memory (torch.from_dlpack(tmesh.empty(...))) and one that was sent before are not copied at all.
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
import functools
import importlib
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import _tmesh, sent
from .errors import AccessError, InvalidError

__all__ = ["register"]

# Not by their names: mypy would read all of PyTorch, where that is installed.
torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")

# Its name in PyTorch 2 and before. A typed one takes several microseconds to make.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage

# Those that torch.from_dlpack() knows in every version.
_DTYPES = frozenset(["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                     "float32", "float64", "complex64", "complex128"])


def _is_plain(tensor: Any) -> bool:
    """Whether its elements lie in memory of the CPU, as its strides say."""
    return bool(tensor.device.type == "cpu" and tensor.layout is torch.strided
                and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
                and not tensor.is_nested and (tensor.is_leaf or not tensor.requires_grad)
                and _storage(tensor).data_ptr())


def _bytes_of(tensor: Any) -> Any:
    """All of its storage."""
    count = _storage(tensor).nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)


@functools.cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _as_ours(tensor: Any, ours: _tmesh.Tensor) -> _tmesh.Tensor | None:
    """ours, which is all of the tensor's storage, with the tensor's layout; None where only
    PyTorch can do that."""
    dtype, shape = _name(tensor.dtype), tuple(tensor.shape)
    if dtype not in _DTYPES or not tensor.numel():
        return None
    offset = tensor.storage_offset() * tensor.element_size()
    if not offset and (ours.dtype, ours.shape, ours.strides) == (dtype, shape, tensor.stride()):
        return ours
    end = offset + tensor.numel() * tensor.element_size()
    try:
        whole = ours.reshape(-1).view("uint8")
    except InvalidError:
        return None
    if end > whole.nbytes or not tensor.is_contiguous():
        return None
    return whole[offset:end].view(dtype).reshape(shape)


def _over(ours: _tmesh.Tensor) -> Any:
    # A capsule: of what has __dlpack__ its device is asked first.
    return torch.from_dlpack(ours.dlpack())


def _laid_out(data: Any, dtype: Any, size: Any, stride: Any, offset: int) -> Any:
    return data.view(dtype).as_strided(size, stride, offset)


def _share(tensor: Any) -> _tmesh.Tensor:
    """The memory of its storage, which from now on is tmesh's."""
    ours = _tmesh.from_address(_storage(tensor).data_ptr())
    if ours is not None:
        return ours
    ours = _tmesh.put(_bytes_of(tensor))
    layout = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()
    # What was made in this mode can be changed in it only; leaves that want gradients can be too.
    with torch.inference_mode():
        tensor.set_(_laid_out(_over(ours), *layout))
    return ours


def _reduce(tensor: Any) -> tuple[Any, ...]:
    if not _is_plain(tensor):
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    ours = _share(tensor)
    if not ours.writable:
        raise AccessError(errno.EACCES, "this tensor lies in read-only memory, which PyTorch could "
                          "not know over there: send the tmesh.Tensor")
    grad = (type(tensor) is torch.nn.Parameter, tensor.requires_grad)
    layout = None
    laid_out = _as_ours(tensor, ours)
    if laid_out is None:
        layout = tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()
        laid_out = ours if ours.dtype == "uint8" else ours.reshape(-1).view("uint8")
    return _rebuild, (laid_out.ref(writable=True), layout, grad, sent.keep(laid_out))


def _rebuild(ref: _tmesh.Ref, layout: Any, grad: tuple[bool, bool], ticket: sent.Ticket) -> Any:
    tensor = _over(_tmesh.open(ref, True))
    if layout:
        tensor = _laid_out(tensor, *layout)
    sent.take(ticket)
    is_parameter, requires_grad = grad
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def register() -> None:
    """From now on this process sends its CPU tensors by way of tmesh, through whatever pickles as
    multiprocessing does: queues, pipes, pools, concurrent.futures. Whoever receives them need not
    call this."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)
