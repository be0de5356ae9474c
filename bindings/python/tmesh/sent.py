# SPDX-License-Identifier: MIT
"""What this process has sent by ref and nobody has taken yet. A ref holds nothing, so the sender
does until whoever takes the tensor writes its number into its slot of a small region."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import threading
import time

from . import _tmesh
from .errors import LimitError, NotFoundError

# What is under way is looked at so many at a time.
_LOOKS = 8
_SLOTS = 4096

# A token of the sender's slots, a slot, a number.
Ticket = tuple[str, int, int]


class _Sender:
    """The sender looks at its slots when it sends again."""

    def __init__(self) -> None:
        self.number = 0
        self.slots = _tmesh.empty(_SLOTS, "int64", label="tmesh.sent")
        self.token = self.slots.ref(writable=True)["token"]
        self.taken = memoryview(self.slots)
        self.free = [*range(_SLOTS)]
        self.sent: dict[int, tuple[int, _tmesh.Tensor]] = {}
        self.lock = threading.Lock()

    def look(self, count: int) -> None:
        for slot in [*itertools.islice(self.sent, count)]:
            number, waiting = self.sent.pop(slot)
            if self.taken[slot] == number:
                self.free.append(slot)
            else:
                self.sent[slot] = number, waiting

    def keep(self, tensor: _tmesh.Tensor) -> Ticket:
        with self.lock:
            self.look(_LOOKS)
            if not self.free:
                raise LimitError(errno.EDQUOT, f"{_SLOTS} tensors were sent and not yet taken out")
            slot = self.free.pop()
            self.number += 1
            self.sent[slot] = self.number, tensor
            return self.token, slot, self.number


# By the process's id: a forked child inherits its parent's, and needs one of its own.
_senders: dict[int, _Sender] = {}


def keep(tensor: _tmesh.Tensor) -> Ticket:
    """Hold it until take() of the ticket, here or in another process."""
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


def take(ticket: Ticket) -> None:
    """Tell the sender that the tensor was opened, or is not wanted."""
    token, slot, number = ticket
    with contextlib.suppress(NotFoundError):  # the sender has ended, and keeps nothing
        memoryview(_slots(token, os.getpid()))[slot] = number


def wait(timeout: float) -> None:
    """Until what this process has sent was taken, but no longer than that: who died with a ticket
    takes nothing."""
    sender = _senders.get(os.getpid())
    deadline = time.monotonic() + timeout
    while sender and sender.sent and time.monotonic() < deadline:
        with sender.lock:
            sender.look(_SLOTS)
        if sender.sent:
            time.sleep(0.001)
