# SPDX-License-Identifier: MIT
"""The asyncio side of Channel, by way of its descriptor."""

from __future__ import annotations

import asyncio
import errno
from typing import AsyncIterator

from ._tmesh import Channel, Tensor
from .errors import BusyError, GoneError

_waiting: set[int] = set()


async def recv(channel: Channel) -> bytes | Tensor | tuple[Tensor, bytes]:
    """What Channel.recv_async() does."""
    while (message := channel.try_recv()) is None:
        await _readable(channel.fileno())
    return message


async def iterate(channel: Channel) -> AsyncIterator[bytes | Tensor | tuple[Tensor, bytes]]:
    """What ``async for`` does, until nobody is left to send."""
    try:
        while True:
            yield await recv(channel)
    except GoneError:
        return


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(fd: int) -> None:
    """The loop knows one reader of a descriptor: a second would push out the first."""
    if fd in _waiting:
        raise BusyError(errno.EBUSY, "another task waits at this channel: open one for each")
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    _waiting.add(fd)
    loop.add_reader(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
        _waiting.discard(fd)
