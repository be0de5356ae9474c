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
  - Nothing is left in /dev/shm, and no descriptors pass through a server thread of the sender.
  - The sender keeps what it sent until it was taken out; it lets go when it sends something
    after that, or ends. What nobody ever takes stays until it ends.

Tensors that are not on the CPU, sparse ones and others that have no plain memory go PyTorch's own
way. A read-only tensor is refused: PyTorch could not know. Send the tmesh.Tensor itself.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import itertools
from multiprocessing.reduction import ForkingPickler
import os
import threading
from typing import Any

from . import _tmesh
from .errors import AccessError, LimitError, NotFoundError

__all__ = ["register"]

# Not by their names: mypy would read all of PyTorch, where that is installed.
torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")

# What is under way is looked at so many at a time.
_LOOKS = 8
_SLOTS = 4096

# A token of the sender's slots, a slot, a number.
Ticket = tuple[str, int, int]


class _Sender:
    """What this process has sent and nobody has taken yet. Whoever takes a tensor writes its
    number into its slot of a small region, which the sender looks at when it sends again."""

    def __init__(self) -> None:
        self.number = 0
        self.slots = _tmesh.empty(_SLOTS, "int64", label="tmesh.torch")
        self.token = self.slots.ref(writable=True)["token"]
        self.taken = memoryview(self.slots)
        self.free = [*range(_SLOTS)]
        self.sent: dict[int, tuple[int, _tmesh.Tensor]] = {}
        self.lock = threading.Lock()

    def keep(self, tensor: _tmesh.Tensor) -> Ticket:
        with self.lock:
            for slot in [*itertools.islice(self.sent, _LOOKS)]:
                number, waiting = self.sent.pop(slot)
                if self.taken[slot] == number:
                    self.free.append(slot)
                else:
                    self.sent[slot] = number, waiting
            if not self.free:
                raise LimitError(errno.EDQUOT, f"{_SLOTS} tensors were sent and not yet taken out")
            slot = self.free.pop()
            self.number += 1
            self.sent[slot] = self.number, tensor
            return self.token, slot, self.number


# By the process's id: a forked child inherits its parent's, and needs one of its own.
_senders: dict[int, _Sender] = {}


def _keep(tensor: _tmesh.Tensor) -> Ticket:
    pid = os.getpid()
    sender = _senders.get(pid)
    if sender is None:
        # Each queue has a thread that sends: of those that come here at once, the first has made it.
        sender = _senders.setdefault(pid, _Sender())
        for parent in {*_senders} - {pid}:
            _senders.pop(parent, None)
    return sender.keep(tensor)


@functools.lru_cache(16)
def _slots(token: str, pid: int) -> _tmesh.Tensor:
    """A sender's slots. A forked child has its own, for it may not write to its parent's."""
    return _tmesh.open(token, True).view("int64")


def _take(ticket: Ticket) -> None:
    token, slot, number = ticket
    with contextlib.suppress(NotFoundError):  # the sender has ended, and keeps nothing
        memoryview(_slots(token, os.getpid()))[slot] = number


# Its name in PyTorch 2 and before. A typed one takes several microseconds to make.
_storage: Any = getattr(torch.Tensor, "untyped_storage", None) or torch.Tensor._storage


def _is_plain(tensor: Any) -> bool:
    """Whether its elements lie in memory of the CPU, as its strides say."""
    return bool(tensor.device.type == "cpu" and tensor.layout is torch.strided
                and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
                and (tensor.is_leaf or not tensor.requires_grad) and _storage(tensor).data_ptr())


def _bytes_of(tensor: Any) -> Any:
    """All of its storage."""
    count = _storage(tensor).nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)


def _laid_out(data: Any, dtype: Any, size: Any, stride: Any, offset: int) -> Any:
    return data.view(dtype).as_strided(size, stride, offset)


def _share(tensor: Any) -> _tmesh.Tensor:
    """The memory of its storage, which from now on is tmesh's."""
    ours = _tmesh.from_address(_storage(tensor).data_ptr())
    if ours is not None:
        return ours
    ours = _tmesh.put(_bytes_of(tensor))
    layout = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()
    with torch.no_grad():
        tensor.set_(_laid_out(torch.from_dlpack(ours), *layout))
    return ours


def _reduce(tensor: Any) -> tuple[Any, ...]:
    if not _is_plain(tensor):
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    ours = _share(tensor)
    if not ours.writable:
        raise AccessError(errno.EACCES, "this tensor lies in read-only memory, which PyTorch could "
                          "not know over there: send the tmesh.Tensor")
    layout = tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()
    grad = (type(tensor) is torch.nn.Parameter, tensor.requires_grad)
    ours = ours.reshape(-1).view("uint8") if ours.dtype != "uint8" else ours
    return _rebuild, (ours.ref(writable=True), layout, grad, _keep(ours))


def _rebuild(ref: _tmesh.Ref, layout: Any, grad: tuple[bool, bool], ticket: Ticket) -> Any:
    tensor = _laid_out(torch.from_dlpack(_tmesh.open(ref, True)), *layout)
    _take(ticket)
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
