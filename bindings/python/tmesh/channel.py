# SPDX-License-Identifier: MIT
"""The asyncio side of Channel, by way of its descriptor."""

from __future__ import annotations

import asyncio
from typing import AsyncIterator

from ._tmesh import Channel, Tensor
from .errors import GoneError


async def recv(channel: Channel) -> bytes | Tensor | tuple[Tensor, bytes]:
    """What Channel.recv_async() does."""
    while (message := channel.try_recv()) is None:
        await _readable(channel)
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


async def _readable(channel: Channel) -> None:
    """Nobody else may use the channel meanwhile: a second reader of its descriptor would push out
    the first, and once it is closed nothing would wake us."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    fd = channel.fileno()
    channel._begin_wait()
    try:
        loop.add_reader(fd, _wake, ready)
        await ready
    finally:
        channel._end_wait()
        loop.remove_reader(fd)
